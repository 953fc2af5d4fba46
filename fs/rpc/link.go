package rpc

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

const (
	// readBufferSize lets one read take many small frames. Bulk beyond what is buffered goes around it.
	readBufferSize = 64 << 10
	// copyBulkMax is the largest bulk that is copied behind its body to leave with one write; larger bulk goes out by
	// writev without a copy.
	copyBulkMax = 16 << 10
	// keepBodySize is the largest body buffer that stays with its flight or call for the next one.
	keepBodySize = 16 << 10
)

// link is one connection as both halves see it: frames in, frames out.
type link struct {
	nc net.Conn

	// lastHeard is when the last frame began to arrive, in nanoseconds of the wall clock.
	lastHeard atomic.Int64
	// frameStart is when a frame of which only a part is there began to arrive, 0 for none.
	frameStart atomic.Int64
	// writes is odd while a write runs; it grows at both its ends.
	writes atomic.Uint64

	// pinging: a ping is on its way, since pinged, in nanoseconds of the wall clock.
	pinging atomic.Bool
	pinged  atomic.Int64

	closeOnce sync.Once
	cause     error         // why it was closed; written before closed is
	closed    chan struct{} // closed when the link is

	// Of the goroutine that calls stuck: the write that it saw last, and when first.
	seenWrite uint64
	seenAt    time.Time

	// role says who reads; nil at the server.
	role *role

	// Of the goroutine that has the reading role:
	frame wire.Header
	heard time.Time // when the frame began to arrive
	// called is when the last call of the server did; zero at the server.
	called time.Time
	rbuf   []byte
	r, w   int                   // rbuf[r:w] is buffered
	head   [wire.HeaderSize]byte // the header as it came
	// eager says that a frame is expected soon, and nobody else waits for one here.
	eager bool
	poll  poller

	// dead and outstanding are guarded by the mu of the table that sends on this link.
	dead        bool
	outstanding int

	wmu  sync.Mutex
	mute bool        // nothing is written any more, as if the network lost it; guarded by wmu
	wbuf []byte      // guarded by wmu
	vec  [][]byte    // guarded by wmu
	bufs net.Buffers // guarded by wmu
}

func newLink(nc net.Conn) *link {
	l := &link{nc: nc, rbuf: make([]byte, readBufferSize), closed: make(chan struct{})}
	l.lastHeard.Store(time.Now().UnixNano())
	l.poll.init(nc)
	return l
}

// close ends the connection; readers and writers get an error. The first cause stays.
func (l *link) close(cause error) {
	l.closeOnce.Do(func() {
		l.cause = cause
		close(l.closed)
		l.nc.Close()
	})
}

func (l *link) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// err is why the link ended: what close was told, else what the connection said.
func (l *link) err(read error) error {
	select {
	case <-l.closed:
		if l.cause != nil {
			return l.cause
		}
	default:
	}
	return read
}

// fill makes at least n bytes buffered. Precondition: n <= readBufferSize.
func (l *link) fill(n int) error {
	if l.w-l.r >= n {
		return nil
	}
	if l.r == l.w {
		l.r, l.w = 0, 0
	} else if l.r+n > len(l.rbuf) {
		l.w = copy(l.rbuf, l.rbuf[l.r:l.w])
		l.r = 0
	}
	for l.w-l.r < n {
		k, err := l.readSome(l.rbuf[l.w:])
		if k == 0 && err != nil {
			if errors.Is(err, io.EOF) && l.w > l.r {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if l.w == l.r && k < n {
			l.frameStart.Store(time.Now().UnixNano())
		}
		l.w += k
	}
	return nil
}

// readSome is the connection's Read.
func (l *link) readSome(b []byte) (int, error) {
	if l.eager && l.poll.raw != nil {
		return l.poll.read(b)
	}
	return l.nc.Read(b)
}

// buffered is how many bytes came with the last read and are not consumed yet.
func (l *link) buffered() int { return l.w - l.r }

// header waits for a frame and parses its header.
func (l *link) header(h *wire.Header) error {
	if err := l.fill(wire.HeaderSize); err != nil {
		return err
	}
	l.heard = time.Now()
	l.lastHeard.Store(l.heard.UnixNano())
	l.r += copy(l.head[:], l.rbuf[l.r:])
	if err := h.Parse(l.head[:]); err != nil {
		return err
	}
	if need := int(h.BodyLen + h.BulkLen); need > l.buffered() {
		l.frameStart.Store(l.lastHeard.Load())
	}
	return nil
}

// frameDone notes that the frame whose header was read is consumed.
func (l *link) frameDone() {
	if l.frameStart.Load() != 0 {
		l.frameStart.Store(0)
	}
}

// body reads the body that h announces into *buf, which grows as needed, and checks the frame's checksum.
func (l *link) body(buf *[]byte, h *wire.Header) ([]byte, error) {
	n := int(h.BodyLen)
	if cap(*buf) < n {
		*buf = make([]byte, n, max(n, 512))
	}
	b := (*buf)[:n]
	if _, err := l.read(b); err != nil {
		return nil, err
	}
	return b, wire.Verify(l.head[:], b)
}

// read fills b, from the buffer first; what is large comes straight from the connection. It returns how much of b was
// filled before an error.
func (l *link) read(b []byte) (int, error) {
	n := copy(b, l.rbuf[l.r:l.w])
	l.r += n
	for n < len(b) {
		if len(b)-n < copyBulkMax {
			if err := l.fill(len(b) - n); err != nil {
				return n, noEOF(err)
			}
			k := copy(b[n:], l.rbuf[l.r:l.w])
			l.r += k
			n += k
			continue
		}
		k, err := l.nc.Read(b[n:])
		l.lastHeard.Store(time.Now().UnixNano())
		n += k
		if err != nil && n < len(b) {
			return n, noEOF(err)
		}
	}
	return n, nil
}

// discard reads n bytes and forgets them.
func (l *link) discard(n int) error {
	for n > 0 {
		if l.r == l.w {
			if err := l.fill(1); err != nil {
				return noEOF(err)
			}
		}
		k := min(n, l.w-l.r)
		l.r += k
		n -= k
	}
	return nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// send writes a frame: head is header and body, bulk follows it. It waits for other writers and for the connection. After
// an error the link is closed, because a part of the frame may have left.
func (l *link) send(head []byte, bulk [][]byte, bulkLen int) error {
	l.wmu.Lock()
	err := l.sendLocked(head, bulk, bulkLen)
	l.wmu.Unlock()
	if err != nil {
		l.close(err)
	}
	return err
}

func (l *link) sendLocked(head []byte, bulk [][]byte, bulkLen int) error {
	if l.mute {
		return nil
	}
	l.writes.Add(1)
	var err error
	switch {
	case bulkLen == 0:
		_, err = l.nc.Write(head)
	case bulkLen <= copyBulkMax:
		l.wbuf = append(l.wbuf[:0], head...)
		for _, b := range bulk {
			l.wbuf = append(l.wbuf, b...)
		}
		_, err = l.nc.Write(l.wbuf)
		if cap(l.wbuf) > copyBulkMax+keepBodySize {
			l.wbuf = nil
		}
	default:
		l.vec = append(append(l.vec[:0], head), bulk...)
		l.bufs = l.vec
		_, err = l.bufs.WriteTo(l.nc)
		clear(l.vec[:cap(l.vec)])
	}
	l.writes.Add(1)
	return err
}

// trySend writes a frame without bulk if nobody else writes now; the write gets at most d.
func (l *link) trySend(head []byte, d time.Duration) (bool, error) {
	if !l.wmu.TryLock() {
		return false, nil
	}
	err := l.nc.SetWriteDeadline(time.Now().Add(d))
	if err == nil {
		err = l.sendLocked(head, nil, 0)
	}
	if err == nil {
		err = l.nc.SetWriteDeadline(time.Time{})
	}
	l.wmu.Unlock()
	if err != nil {
		l.close(err)
	}
	return true, err
}

// stuck reports whether a write or a frame that began has made no end for longer than d. One goroutine calls it, again and
// again; a write counts from when it was first seen, so that writing needs no clock.
func (l *link) stuck(now time.Time, d time.Duration) error {
	if w := l.writes.Load(); w%2 == 1 && w == l.seenWrite {
		if now.Sub(l.seenAt) > d {
			return status.Errorf(status.Protocol, "rpc: the peer has not taken a frame within %v", d)
		}
	} else {
		l.seenWrite, l.seenAt = w, now
	}
	if t := l.frameStart.Load(); t != 0 && now.Sub(time.Unix(0, t)) > d {
		return status.Errorf(status.Protocol, "rpc: the peer has not finished a frame within %v", d)
	}
	return nil
}

// bulkSize adds up the pieces of bulk.
func bulkSize(bulk [][]byte) (n int) {
	for _, b := range bulk {
		n += len(b)
	}
	return n
}

// encodeBody puts room for a header and the encoded m into *buf, which grows as needed. A nil m is an empty body.
func encodeBody(buf *[]byte, m Message) error {
	n := 0
	if m != nil {
		n = m.SizeVT()
	}
	if n > wire.BodyMax {
		return status.Errorf(status.TooBig, "rpc: a body of %d bytes, at most %d", n, wire.BodyMax)
	}
	total := wire.HeaderSize + n
	if cap(*buf) < total {
		*buf = make([]byte, total, max(total, 512))
	}
	*buf = (*buf)[:total]
	if n == 0 {
		return nil
	}
	k, err := m.MarshalToSizedBufferVT(*buf)
	if err == nil && k != n {
		err = status.Errorf(status.Invalid, "rpc: %T takes %d bytes and said %d", m, k, n)
	}
	return err
}

// shrink forgets a buffer that is too large to keep.
func shrink(buf *[]byte) {
	if cap(*buf) > keepBodySize {
		*buf = nil
	}
}
