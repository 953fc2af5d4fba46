package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// pipeBufferSize is what one direction of a pipe holds when nobody reads. It fits the small frames of all requests in
// flight; bulk goes from the writer's memory straight into a waiting reader's.
const pipeBufferSize = 128 << 10

// Pipe is an in-process network: a Transport whose addresses are any names. Connections are buffered in both directions
// and honour deadlines. One Pipe value is one network, of which others see nothing.
type Pipe struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener // guarded by mu
}

// NewPipe makes an empty network.
func NewPipe() *Pipe { return &Pipe{listeners: map[string]*pipeListener{}} }

// Listen takes a name; the error wraps EADDRINUSE if it is taken.
func (p *Pipe) Listen(addr string) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listeners[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "pipe", Addr: pipeAddr(addr), Err: syscall.EADDRINUSE}
	}
	l := &pipeListener{network: p, addr: pipeAddr(addr), backlog: make(chan net.Conn), closed: make(chan struct{})}
	p.listeners[addr] = l
	return l, nil
}

// Dial connects to the listener of that name; the error wraps ECONNREFUSED if there is none. It waits for Accept.
func (p *Pipe) Dial(ctx context.Context, addr string) (net.Conn, error) {
	p.mu.Lock()
	l := p.listeners[addr]
	p.mu.Unlock()
	err := error(syscall.ECONNREFUSED)
	if l != nil {
		ours, theirs := newPipeConns(l.addr)
		select {
		case l.backlog <- theirs:
			return ours, nil
		case <-l.closed:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return nil, &net.OpError{Op: "dial", Net: "pipe", Addr: pipeAddr(addr), Err: err}
}

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

type pipeListener struct {
	network *Pipe
	addr    pipeAddr
	backlog chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func (l *pipeListener) Addr() net.Addr { return l.addr }

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.backlog:
		return c, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: "pipe", Addr: l.addr, Err: net.ErrClosed}
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.network.mu.Lock()
		delete(l.network.listeners, string(l.addr))
		l.network.mu.Unlock()
	})
	return nil
}

// pipeConn is one end: it reads from one half and writes into the other.
type pipeConn struct {
	in, out *pipeHalf
	addr    pipeAddr
}

func newPipeConns(addr pipeAddr) (a, b *pipeConn) {
	x, y := newPipeHalf(), newPipeHalf()
	return &pipeConn{x, y, addr}, &pipeConn{y, x, addr}
}

func (c *pipeConn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *pipeConn) Write(b []byte) (int, error) { return c.out.write(b) }
func (c *pipeConn) LocalAddr() net.Addr         { return c.addr }
func (c *pipeConn) RemoteAddr() net.Addr        { return c.addr }

// Close ends both directions: the other end reads what is buffered and then EOF, its writes fail with EPIPE.
func (c *pipeConn) Close() error {
	c.in.close(false)
	c.out.close(true)
	return nil
}

func (c *pipeConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *pipeConn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readEnd, t)
	return nil
}

func (c *pipeConn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writeEnd, t)
	return nil
}

// pipeHalf is one direction.
//
// Lock order: reading or writing, then mu.
type pipeHalf struct {
	reading, writing sync.Mutex // let one reader and one writer in at a time

	// canRead and canWrite wake the one that waits; a stale token costs one more look.
	canRead, canWrite chan struct{}

	mu       sync.Mutex
	buf      []byte    // ring, made at the first byte that needs it; guarded by mu
	r, n     int       // n bytes are buffered from r; guarded by mu
	want     []byte    // memory of the reader that waits; guarded by mu
	got      int       // bytes put there; guarded by mu
	eof      bool      // the writing end was closed; guarded by mu
	gone     bool      // the reading end was closed; guarded by mu
	readEnd  pipeLimit // guarded by mu
	writeEnd pipeLimit // guarded by mu
}

// pipeLimit is a deadline with the timer that enforces it.
type pipeLimit struct {
	at    time.Time
	timer *time.Timer
}

func newPipeHalf() *pipeHalf {
	return &pipeHalf{canRead: make(chan struct{}, 1), canWrite: make(chan struct{}, 1)}
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (l *pipeLimit) passed() bool { return !l.at.IsZero() && !time.Now().Before(l.at) }

func (h *pipeHalf) setDeadline(l *pipeLimit, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l.at = at
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if !at.IsZero() {
		l.timer = time.AfterFunc(time.Until(at), func() { wake(h.canRead); wake(h.canWrite) })
	}
}

func (h *pipeHalf) close(byWriter bool) {
	h.mu.Lock()
	if byWriter {
		h.eof = true
	} else {
		h.gone = true
	}
	for _, l := range []*pipeLimit{&h.readEnd, &h.writeEnd} {
		if l.timer != nil {
			l.timer.Stop()
		}
	}
	h.mu.Unlock()
	wake(h.canRead)
	wake(h.canWrite)
}

func (h *pipeHalf) read(b []byte) (int, error) {
	h.reading.Lock()
	defer h.reading.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.gone:
			return 0, net.ErrClosed
		case h.readEnd.passed():
			return 0, os.ErrDeadlineExceeded
		case h.n > 0:
			return h.takeLocked(b), nil
		case h.eof:
			return 0, io.EOF
		case len(b) == 0:
			return 0, nil
		}
		h.want, h.got = b, 0
		h.mu.Unlock()
		<-h.canRead
		h.mu.Lock()
		n := h.got
		h.want, h.got = nil, 0
		if n > 0 {
			return n, nil
		}
	}
}

// takeLocked moves buffered bytes into b and tells a writer that waits for room.
func (h *pipeHalf) takeLocked(b []byte) int {
	full := h.n == len(h.buf)
	n := copy(b, h.buf[h.r:min(h.r+h.n, len(h.buf))])
	if n < len(b) && n < h.n {
		n += copy(b[n:], h.buf[:h.n-n])
	}
	h.r = (h.r + n) % len(h.buf)
	h.n -= n
	if h.n == 0 {
		h.r = 0
	}
	if full {
		wake(h.canWrite)
	}
	return n
}

func (h *pipeHalf) write(b []byte) (int, error) {
	h.writing.Lock()
	defer h.writing.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	for done := 0; ; {
		switch {
		case h.eof:
			return done, net.ErrClosed
		case h.gone:
			return done, syscall.EPIPE
		case h.writeEnd.passed():
			return done, os.ErrDeadlineExceeded
		case done == len(b):
			return done, nil
		}
		if n := h.giveLocked(b[done:]); n > 0 {
			done += n
			continue
		}
		h.mu.Unlock()
		<-h.canWrite
		h.mu.Lock()
	}
}

// giveLocked puts what fits of b into the waiting reader's memory, or else into the buffer.
func (h *pipeHalf) giveLocked(b []byte) int {
	if h.n == 0 && h.want != nil {
		n := copy(h.want, b)
		h.want, h.got = nil, n
		wake(h.canRead)
		return n
	}
	if h.buf == nil {
		h.buf = make([]byte, pipeBufferSize)
	}
	if h.n == len(h.buf) {
		return 0
	}
	w := (h.r + h.n) % len(h.buf)
	end := len(h.buf)
	if w < h.r {
		end = h.r
	}
	n := copy(h.buf[w:end], b)
	h.n += n
	wake(h.canRead)
	return n
}
