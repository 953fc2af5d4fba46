package rpc

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

// indexBits of an xid name the flight, so that a reply finds its request without a search. The bits above grow with each
// request, and so does the xid.
const (
	indexBits  = 10
	indexLimit = 1 << indexBits
)

type flightState uint8

const (
	// flightFree: nobody uses it, or its Do has not sent it yet.
	flightFree flightState = iota
	// flightSent: on its way or at the peer.
	flightSent
	// flightReceiving: the reader is taking its reply.
	flightReceiving
	// flightReplied: the reply is in hdr, reply and the caller's room for bulk.
	flightReplied
	// flightLost: its connection ended before the reply.
	flightLost
)

// flight is one request in flight. Its memory belongs to the goroutine in Do, except reply, hdr and n, which belong to the
// reader while state is flightReceiving. An orphan belongs to the table whole.
type flight struct {
	index uint32
	slot  uint32
	pool  *slots
	op    wire.Op
	xid   wire.XID
	buf   []byte // header and body, kept for resending
	reply []byte // the reply's body
	hdr   wire.Header
	n     int
	sent  bool // at least once
	// done gets one token for each change from sent or receiving to replied or lost, under the table's mu.
	done chan struct{}

	// All below guarded by the table's mu.
	state flightState
	link  *link
	into  []byte
	// orphan: Do has left; the table gives the slot back when the reply comes.
	orphan bool
	// filling: the reader is writing into into.
	filling bool
}

// table holds the requests in flight of one sender.
type table struct {
	flights []flight
	// late hears of the replies whose Do has left, nil for nobody. It must not wait and keeps nothing of body.
	late func(op wire.Op, body []byte)
	// kept gets the modifying requests that are answered, before their callers have the answer; nil keeps none.
	kept *replayLog

	mu    sync.Mutex
	seq   uint64        // upper bits of the last xid; guarded by mu
	freed chan struct{} // closed when a reply has been taken; nil when settle does not wait; guarded by mu
}

func newTable(size int) *table {
	if size > indexLimit {
		panic("rpc: a table over the index limit")
	}
	// Numbers start above those of an earlier life of the same client: a microsecond is shorter than any request.
	t := &table{flights: make([]flight, size), seq: uint64(time.Now().UnixMicro())}
	for i := range t.flights {
		t.flights[i].index = uint32(i)
		t.flights[i].done = make(chan struct{}, 1)
	}
	return t
}

// begin notes that f goes out on l, with its first xid if it has none, and returns whether it is alone there. It returns
// ok false when the link is dead already.
func (t *table) begin(f *flight, l *link, into []byte) (alone, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.dead {
		return false, false
	}
	if f.xid == 0 {
		t.seq++
		f.xid = wire.XID(t.seq<<indexBits | uint64(f.index))
	}
	f.state, f.link, f.into = flightSent, l, into
	l.outstanding++
	return l.outstanding == 1, true
}

// beginOrphan is begin for a request without a Do.
func (t *table) beginOrphan(f *flight, l *link) bool {
	_, ok := t.begin(f, l, nil)
	if ok {
		t.mu.Lock()
		f.orphan = true
		t.mu.Unlock()
	}
	return ok
}

// undo takes back a begin whose frame did not leave.
func (t *table) undo(f *flight, l *link) {
	t.mu.Lock()
	if f.link != l || f.state != flightSent {
		t.mu.Unlock()
		return
	}
	l.outstanding--
	pool := f.freeLocked()
	t.mu.Unlock()
	pool.release(f.index)
}

// releaseOrphans gives back the orphans that wait for a connection.
func (t *table) releaseOrphans() {
	for _, f := range t.lostOrphans() {
		t.free(f)
	}
}

// receive takes the reply whose header has just been read from l. last says that nothing else is in flight on l. Its error
// ends the link.
func (t *table) receive(l *link, h *wire.Header) (last bool, err error) {
	i := uint64(h.XID) & (indexLimit - 1)
	if i >= uint64(len(t.flights)) {
		return false, errUnasked(h)
	}
	f := &t.flights[i]
	t.mu.Lock()
	if f.xid != h.XID || f.link != l || f.state != flightSent || f.op != h.Op {
		t.mu.Unlock()
		return false, errUnasked(h)
	}
	if !f.orphan && int(h.BulkLen) > len(f.into) {
		t.mu.Unlock()
		return false, status.Errorf(status.Protocol, "rpc: a reply to %v with bulk of %d bytes, at most %d were asked for",
			h.Op, h.BulkLen, len(f.into))
	}
	f.state = flightReceiving
	t.mu.Unlock()

	body, err := l.body(&f.reply, h)
	if err != nil {
		return false, err
	}
	f.reply, f.n = body, int(h.BulkLen)
	if f.n > 0 {
		if err := t.receiveBulk(l, f); err != nil {
			return false, err
		}
	}
	l.frameDone()
	return t.arrived(l, f, h), nil
}

func errUnasked(h *wire.Header) error {
	return status.Errorf(status.Protocol, "rpc: a reply that nobody asked for: %v", h)
}

// receiveBulk reads the reply's bulk into the caller's memory for as long as the caller is there, the rest into nowhere.
func (t *table) receiveBulk(l *link, f *flight) error {
	t.mu.Lock()
	f.filling = !f.orphan
	into := f.into
	t.mu.Unlock()
	if !f.filling {
		return l.discard(f.n)
	}
	// Only abandon ends a read by a deadline, and only while filling is set.
	n, err := l.read(into[:f.n])
	t.mu.Lock()
	gone := f.orphan
	f.filling = false
	if gone {
		l.nc.SetReadDeadline(time.Time{})
		f.done <- struct{}{} // abandon waits for it
	}
	t.mu.Unlock()
	if gone && errors.Is(err, os.ErrDeadlineExceeded) {
		return l.discard(f.n - n)
	}
	return err
}

// arrived completes f, whose reply is there, and returns whether it was the last one in flight on l.
func (t *table) arrived(l *link, f *flight, h *wire.Header) (last bool) {
	f.hdr = *h
	if t.kept != nil && h.Transno != 0 && h.Status == status.OK && f.op.Modifies() {
		t.kept.add(f, h, f.buf[wire.HeaderSize:], f.reply)
	}
	t.mu.Lock()
	l.outstanding--
	last = l.outstanding == 0
	f.link, f.into = nil, nil
	if f.orphan {
		t.mu.Unlock()
		// The table has the flight whole: nobody else looks at it until it is freed.
		t.tellLate(f)
		t.free(f)
		return last
	}
	f.state = flightReplied
	f.done <- struct{}{}
	t.mu.Unlock()
	return last
}

// tellLate hands on the reply of a request whose Do has left.
func (t *table) tellLate(f *flight) {
	if t.late != nil && f.hdr.Status == status.OK {
		t.late(f.op, f.reply)
	}
}

// refused notes that the reply was no answer, so that the request goes out again like a lost one.
func (t *table) refused(f *flight) {
	t.mu.Lock()
	f.state = flightLost
	t.takenLocked()
	t.mu.Unlock()
}

// takenLocked notes that a caller is through with a reply.
func (t *table) takenLocked() {
	if t.freed != nil {
		close(t.freed)
		t.freed = nil
	}
}

// settle waits until every caller has taken the reply that is there for it. Precondition: nobody reads any more.
func (t *table) settle(ctx context.Context) error {
	for {
		t.mu.Lock()
		waits := false
		for k := range t.flights {
			waits = waits || t.flights[k].state == flightReplied
		}
		if !waits {
			t.mu.Unlock()
			return nil
		}
		if t.freed == nil {
			t.freed = make(chan struct{})
		}
		freed := t.freed
		t.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// freeLocked makes f ready for its next request; the caller then releases its index to the pool returned.
func (f *flight) freeLocked() *slots {
	f.state, f.link, f.into, f.orphan, f.filling = flightFree, nil, nil, false, false
	f.xid, f.sent = 0, false
	shrink(&f.buf)
	shrink(&f.reply)
	return f.pool
}

// free gives f back after its Do is through with it.
func (t *table) free(f *flight) {
	t.mu.Lock()
	pool := f.freeLocked()
	t.takenLocked()
	t.mu.Unlock()
	pool.release(f.index)
}

// abandon is how Do leaves a request that it no longer wants to wait for. When it returns, nothing touches the caller's
// memory any more. A request that was sent keeps its slot until its reply comes, as an orphan; resend says that the
// orphan is waiting for the next connection.
func (t *table) abandon(f *flight) (resend bool) {
	t.mu.Lock()
	switch f.state {
	case flightSent:
		f.orphan, f.into = true, nil
	case flightReceiving:
		f.orphan = true
		if f.filling {
			// The reader may be waiting for a slow peer with our memory in its hands. A deadline in the past takes it
			// out of the read.
			f.link.nc.SetReadDeadline(time.Unix(1, 0))
			t.mu.Unlock()
			<-f.done
			return false
		}
	case flightLost, flightReplied, flightFree:
		select { // the token of a change that Do has not seen
		case <-f.done:
		default:
		}
		if f.state == flightLost && f.op.Modifies() {
			f.orphan = true
			t.mu.Unlock()
			return true
		}
		replied := f.state == flightReplied
		t.mu.Unlock()
		if replied {
			t.tellLate(f)
		}
		t.free(f)
		return false
	}
	t.mu.Unlock()
	return false
}

// drop marks l as dead and its requests as lost. Orphans that modify wait for the next connection, others are done with.
// Only the goroutine that reads l calls it, after its last read.
func (t *table) drop(l *link) {
	var release []*flight
	t.mu.Lock()
	l.dead = true
	for i := range t.flights {
		f := &t.flights[i]
		if f.link != l {
			continue
		}
		f.link, f.into = nil, nil
		switch {
		case !f.orphan:
			f.state, f.filling = flightLost, false
			f.done <- struct{}{}
		case f.op.Modifies():
			f.state = flightLost
		default:
			f.freeLocked()
			release = append(release, f)
		}
	}
	t.mu.Unlock()
	for _, f := range release {
		f.pool.release(f.index)
	}
}

// lostOrphans returns the orphans that wait for a connection.
func (t *table) lostOrphans() (lost []*flight) {
	t.mu.Lock()
	for i := range t.flights {
		if f := &t.flights[i]; f.orphan && f.state == flightLost {
			lost = append(lost, f)
		}
	}
	t.mu.Unlock()
	return lost
}
