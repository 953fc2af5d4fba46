package rpc

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

// Conn is the server's end of one connection.
//
// Its workers share one reading role. Who has it reads a request and serves it, so that no queue lies between the socket and
// the handler. It hands the role on first where the next request is there already; waking a thread for that costs more than a
// small request.
type Conn struct {
	s       *Server
	l       *link
	ctx     context.Context // the life of the connection, for Call.Context
	cancel  context.CancelFunc
	calls   *table // callbacks to the client
	callIDs *slots

	// Set by CONNECT, before the role is handed on for the first time.
	session Session
	bulk    bool
	target  string
	peer    string
	limit   int    // max_rpcs_in_flight
	brwSize uint32 // largest bulk

	// Of the worker with the reading role:
	header   wire.Header
	aloneRun int // requests in a row that said that they were alone

	mu      sync.Mutex
	idle    []*worker   // last one in, first one out; guarded by mu
	minIdle int         // fewest idle since the last sweep; guarded by mu
	lazy    *worker     // serves while it keeps the reading role; guarded by mu
	lazies  uint64      // requests that were served so; guarded by mu
	seen    uint64      // lazies when the timer was last set; guarded by mu
	timer   *time.Timer // takes the role from lazy; guarded by mu
	armed   bool        // the timer runs; guarded by mu
	normal  int         // requests taken and not answered, of those that count in flight; guarded by mu
	prior   int         // as above, of the reserve; guarded by mu
	writing int         // replies being written; guarded by mu
	free    []*Call     // guarded by mu
	dead    bool        // guarded by mu
}

// worker is one goroutine of a connection.
type worker struct {
	// role gets true with the reading role, false to end.
	role chan bool
	e    *env.Env
}

const (
	// aloneAfter is how many requests in a row must have been alone until a worker waits for the next one with its thread.
	aloneAfter = 4
	// lazyBulkMax is the largest bulk of a request that is served before the next one is read.
	lazyBulkMax = 128 << 10
	// aloneLimit is how long a worker with the role may take, and twice that at most, before it is taken from it. The timer is
	// not set for each request: that wakes a thread too.
	aloneLimit = 500 * time.Microsecond
)

func newConn(s *Server, nc net.Conn) *Conn {
	cn := &Conn{s: s, l: newLink(nc), calls: newTable(CallbacksMax), callIDs: newSlots(0, CallbacksMax), peer: nc.RemoteAddr().String()}
	cn.ctx, cn.cancel = context.WithCancel(context.Background())
	return cn
}

// startWorker starts a worker that has the reading role.
func (cn *Conn) startWorker() {
	cn.s.stats.workers.Add(1)
	cn.s.workers.Go(func() {
		defer cn.s.stats.workers.Add(-1)
		w := &worker{role: make(chan bool, 1), e: env.New()}
		w.e.OnWait(func() { cn.letGo(w) })
		cn.work(w)
	})
}

func (cn *Conn) work(w *worker) {
	for {
		c, err := cn.next()
		if err != nil {
			cn.end(err)
			return
		}
		if c.Header.Op == wire.OpReplay { // A session takes replays in the order they come, and holds them.
			cn.serve(w, c)
			continue
		}
		cn.handOn(w, &c.Header)
		cn.serve(w, c)
		if !cn.again(w) {
			return
		}
	}
}

// next reads up to the next request. Only the worker with the reading role calls it.
func (cn *Conn) next() (*Call, error) {
	if cn.session == nil {
		if err := cn.connect(); err != nil {
			return nil, err
		}
	}
	h := &cn.header
	for {
		if err := cn.l.header(h); err != nil {
			return nil, err
		}
		switch {
		case h.Flags&(wire.FlagReply|wire.FlagCallback) == wire.FlagReply|wire.FlagCallback:
			if _, err := cn.calls.receive(cn.l, h); err != nil {
				return nil, err
			}
			continue
		case h.Flags&(wire.FlagReply|wire.FlagCallback) != 0:
			return nil, errUnasked(h)
		}
		return cn.take(h)
	}
}

// take admits a request, if the peer may send it, and reads it.
func (cn *Conn) take(h *wire.Header) (*Call, error) {
	// The slots of requests that were lost may be above what this instance allows.
	again := h.Flags&wire.FlagResent != 0
	switch {
	case h.Op == wire.OpConnect:
		return nil, status.Errorf(status.Protocol, "rpc: a second CONNECT on one connection")
	case h.BulkLen > cn.brwSize:
		return nil, status.Errorf(status.Protocol, "rpc: %v with bulk of %d bytes, %d were agreed", h.Op, h.BulkLen, cn.brwSize)
	case h.Slot > uint32(PriorSlots+cn.limit) && !again || h.Slot > PriorSlots+MaxInFlightLimit:
		return nil, status.Errorf(status.Protocol, "rpc: %v in slot %d, %d were agreed", h.Op, h.Slot, PriorSlots+cn.limit)
	case h.Op.Modifies() == (h.Slot == 0):
		return nil, status.Errorf(status.Protocol, "rpc: %v in slot %d", h.Op, h.Slot)
	}
	c, err := cn.admit(h)
	if err != nil {
		return nil, err
	}
	body, err := cn.l.body(&c.buf, h)
	if err != nil {
		return nil, err
	}
	c.Body = body
	if h.BulkLen > 0 {
		c.bulkBuf = cn.s.pool.get(int(h.BulkLen))
		c.Bulk = c.bulkBuf
		if _, err := cn.l.read(c.Bulk); err != nil {
			return nil, err
		}
	}
	cn.l.frameDone()
	return c, nil
}

// admit counts a request and gives it a Call. More than was agreed is an error of kind Protocol.
func (cn *Conn) admit(h *wire.Header) (*Call, error) {
	prior := h.Op.Prior()
	cn.mu.Lock()
	defer cn.mu.Unlock()
	count, limit := &cn.normal, 2*cn.limit
	switch {
	case prior:
		count, limit = &cn.prior, 2*PriorSlots+2
	case h.Flags&wire.FlagResent != 0 && h.Op.Modifies():
		limit = cn.limit + MaxInFlightLimit
	}
	if *count >= limit || cn.writing > 2*(2*cn.limit+2*PriorSlots) {
		return nil, status.Errorf(status.Protocol, "rpc: more than %d requests in flight, or replies not taken", limit)
	}
	*count++
	var c *Call
	if n := len(cn.free); n > 0 {
		c, cn.free = cn.free[n-1], cn.free[:n-1]
	} else {
		c = &Call{Conn: cn, owner: cn, pool: cn.s.pool}
	}
	c.Header, c.Session, c.prior, c.start = *h, cn.session, prior, cn.l.heard
	return c, nil
}

// handOn gives the reading role to another worker if the next request has come already, or may come while much data is served.
// Else w keeps it while it serves, and loses it when that takes long or waits for others.
func (cn *Conn) handOn(w *worker, h *wire.Header) {
	more := cn.l.buffered() > 0 || h.BulkLen > lazyBulkMax
	if h.Flags&wire.FlagAlone != 0 && !more {
		cn.aloneRun++
	} else {
		cn.aloneRun = 0
	}
	cn.l.eager = cn.aloneRun > aloneAfter
	cn.mu.Lock()
	defer cn.mu.Unlock()
	if more {
		cn.passLocked()
		return
	}
	cn.lazy = w
	cn.lazies++
	if !cn.armed {
		cn.armLocked()
	}
}

// letGo takes the role from a worker that is going to wait.
func (cn *Conn) letGo(w *worker) {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	if cn.lazy == w && !cn.dead {
		cn.lazy = nil
		cn.passLocked()
	}
}

func (cn *Conn) armLocked() {
	cn.armed, cn.seen = true, cn.lazies
	if cn.timer == nil {
		cn.timer = time.AfterFunc(aloneLimit, cn.takeRole)
		return
	}
	cn.timer.Reset(aloneLimit)
}

// takeRole is what the timer does.
func (cn *Conn) takeRole() {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	switch {
	case cn.dead:
	case cn.seen != cn.lazies:
		cn.armLocked() // It is another request's worker, or was.
		return
	case cn.lazy != nil:
		cn.lazy = nil
		cn.passLocked()
	}
	cn.armed = false
}

// passLocked gives the reading role to an idle worker, or to a new one. Workers are bounded by what admit admits.
func (cn *Conn) passLocked() {
	n := len(cn.idle) - 1
	if n < 0 {
		cn.minIdle = 0
		cn.startWorker()
		return
	}
	w := cn.idle[n]
	cn.idle = cn.idle[:n]
	cn.minIdle = min(cn.minIdle, n)
	w.role <- true
}

// again waits until w has the reading role; false says that w is to end.
func (cn *Conn) again(w *worker) bool {
	cn.mu.Lock()
	if cn.lazy == w {
		cn.lazy = nil
		cn.mu.Unlock()
		return true
	}
	if cn.dead {
		cn.mu.Unlock()
		return false
	}
	cn.idle = append(cn.idle, w)
	cn.mu.Unlock()
	return <-w.role
}

// serve runs one request.
func (cn *Conn) serve(w *worker, c *Call) {
	s := cn.s
	s.stats.received.Add(int64(len(c.Body) + len(c.Bulk)))
	if c.Header.Flags&wire.FlagResent != 0 {
		s.stats.resent.Inc()
	}
	if s.o.FailPoints.Armed() && cn.failRequest(w, c) {
		return
	}
	err := cn.check(c)
	if err == nil && c.Header.Op != wire.OpPing {
		s.stats.active.Add(1)
		s.running.Add(1)
		if s.draining.Load() {
			err = status.Stopping
		} else {
			err = c.Session.Serve(w.e, c)
		}
		s.stats.active.Add(-1)
		if s.running.Add(-1); s.draining.Load() {
			defer wake(s.drained)
		}
	}
	if err == ErrHeld {
		s.stats.held.Add(1)
		if c.held.Add(1) == 2 {
			cn.recycle(c)
		}
	} else {
		cn.answer(c, err)
		cn.recycle(c)
	}
	w.e.Reset()
}

// check answers what no session needs to see.
func (cn *Conn) check(c *Call) error {
	h := &c.Header
	switch {
	case !h.Op.Known():
		return status.Errorf(status.NotSystem, "rpc: this version does not know %v", h.Op)
	case cn.s.draining.Load():
		return status.Stopping
	case h.Generation != c.Session.Generation():
		return status.NotConnected
	case h.BulkLen > 0 && h.Flags&wire.FlagBulkSum != 0 && wire.Sum(c.Bulk) != h.BulkSum:
		cn.s.stats.checksums.Inc()
		return status.Checksum
	}
	return nil
}

// answer implements callOwner. The request stops to count in flight before its reply leaves, because with the reply the
// client may send the next one.
func (cn *Conn) answer(c *Call, err error) {
	s := cn.s
	bulk, n := c.encode(err, c.Session.LastCommitted(), c.Session.Generation())
	s.stats.times.observe(c.Header.Op, time.Since(c.start))
	s.stats.sent.Add(int64(len(c.out) - wire.HeaderSize + n))
	if s.o.FailPoints.Armed() {
		cn.failReply(c)
	}
	cn.mu.Lock()
	cn.answeredLocked(c)
	cn.writing++
	cn.mu.Unlock()
	cn.l.send(c.out, bulk, n) // an error ends the link, which the reading role notices
	cn.mu.Lock()
	cn.writing--
	cn.mu.Unlock()
}

// answeredLocked lets a request count in flight no more.
func (cn *Conn) answeredLocked(c *Call) {
	if c.prior {
		cn.prior--
	} else {
		cn.normal--
	}
}

// recycle implements callOwner.
func (cn *Conn) recycle(c *Call) {
	c.reset()
	cn.mu.Lock()
	if len(cn.free) < 2*cn.limit+2*PriorSlots {
		cn.free = append(cn.free, c)
	}
	cn.mu.Unlock()
}

func (cn *Conn) context() context.Context { return cn.ctx }

// end closes the connection after its last read. Only the worker with the reading role calls it, once.
func (cn *Conn) end(err error) {
	err = cn.l.err(err)
	cn.l.close(err)
	cn.cancel()
	cn.mu.Lock()
	cn.dead = true
	for _, w := range cn.idle {
		w.role <- false
	}
	cn.idle = nil
	if cn.timer != nil {
		cn.timer.Stop()
	}
	cn.mu.Unlock()
	cn.calls.drop(cn.l)
	if status.Of(err) == status.Protocol {
		cn.s.stats.protocol.Inc()
		cn.s.o.Log.Warn("peer cut off", "peer", cn.peer, "error", err)
	} else if err != io.EOF {
		cn.s.o.Log.Debug("connection ended", "peer", cn.peer, "error", err)
	}
	cn.s.forget(cn)
	if cn.session != nil {
		cn.session.Disconnected(cn)
	}
}

// sweep cuts the connection if it is stuck or silent, and ends workers that the time since the last sweep did not need.
func (cn *Conn) sweep(now time.Time) {
	err := cn.l.stuck(now, cn.s.o.StuckTimeout)
	if silent := now.Sub(time.Unix(0, cn.l.lastHeard.Load())); err == nil && silent > cn.s.o.SilentTimeout {
		err = status.Errorf(status.TimedOut, "rpc: no sign of life for %v", silent.Round(time.Second))
	}
	if err != nil {
		cn.l.close(err)
		return
	}
	cn.mu.Lock()
	defer cn.mu.Unlock()
	n := min(cn.minIdle, len(cn.idle)) - 1 // one stays, for the next hand-over
	for range max(n, 0) {
		cn.idle[0].role <- false
		cn.idle = cn.idle[1:]
	}
	cn.minIdle = len(cn.idle)
}

// Peer says who is at the other end, for people: the peer's own words and its address.
func (cn *Conn) Peer() string { return cn.peer }

// Bulk reports whether this is the second, bulk connection of its import.
func (cn *Conn) Bulk() bool { return cn.bulk }

// LastHeard is when the last frame of the peer began to arrive, pings included.
func (cn *Conn) LastHeard() time.Time { return time.Unix(0, cn.l.lastHeard.Load()) }

// Close cuts the connection. It does not wait; Session.Disconnected follows.
func (cn *Conn) Close() { cn.l.close(net.ErrClosed) }
