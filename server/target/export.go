package target

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

// Export is the target's side of one client. It implements rpc.Session. The exported fields never change once the
// export is visible, State excepted, which belongs to the handler.
type Export struct {
	UUID [16]byte
	// Kind is one of rpc.KindClient and its like; Peer says who that is, for people.
	Kind     uint32
	Peer     string
	ReadOnly bool
	// Index numbers the exports of a target; a number is free again when its export has ended.
	Index uint32
	// Since is when the client first connected.
	Since time.Time
	// Restored says that the export was read from disk when the target started.
	Restored bool
	// State is the handler's: opens of an MDT, grants of an OST. Set it in Options.NewExport.
	State any

	t *Target
	// gate is held shared by every request that runs, and whole while the generation changes.
	gate       sync.RWMutex
	gone       bool          // guarded by gate
	generation atomic.Uint64 // changes only with gate held whole
	saved      atomic.Uint64 // transno of the export's record, 0 for a restored one

	mu    sync.Mutex
	conns []*rpc.Conn // guarded by mu
	alone time.Time   // since when there is no connection; guarded by mu
	slots []*slot     // by number - 1; guarded by mu

	chain *Export // the next one of its bucket; guarded by Target.mu
}

// Generation implements rpc.Session.
func (x *Export) Generation() uint64 { return x.generation.Load() }

// LastCommitted implements rpc.Session.
func (x *Export) LastCommitted() wire.Transno { return x.t.recovery.committed(x) }

// Connected reports whether the client has a connection now.
func (x *Export) Connected() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.conns) > 0
}

// Disconnected implements rpc.Session.
func (x *Export) Disconnected(conn *rpc.Conn) {
	x.lose(conn)
	x.t.recovery.disconnected(x, conn)
	if x.t.o.Disconnected != nil {
		x.t.o.Disconnected(x, conn)
	}
}

func (x *Export) lose(conn *rpc.Conn) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, c := range x.conns {
		if c == conn {
			x.conns = append(x.conns[:i], x.conns[i+1:]...)
			break
		}
	}
	if len(x.conns) == 0 && x.alone.IsZero() {
		x.alone = time.Now()
	}
}

// aloneFor is how long the client has had no connection; 0 while it has one.
func (x *Export) aloneFor() time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.alone.IsZero() {
		return 0
	}
	return time.Since(x.alone)
}

// silentFor is how long nothing has been heard of a client that has a connection; 0 when it has none.
func (x *Export) silentFor(now time.Time) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	var last time.Time
	for _, c := range x.conns {
		if c == nil { // A test's.
			return 0
		}
		if heard := c.LastHeard(); heard.After(last) {
			last = heard
		}
	}
	if last.IsZero() {
		return 0
	}
	return now.Sub(last)
}

// reconnect gives the export a new generation, with conn as its only connection, after all that runs has ended; false if
// the export is gone.
func (x *Export) reconnect(conn *rpc.Conn) bool {
	x.cut() // Requests that run notice by their context.
	x.gate.Lock()
	defer x.gate.Unlock()
	if x.gone {
		return false
	}
	x.generation.Add(1)
	x.mu.Lock()
	x.conns, x.alone = append(x.conns[:0], conn), time.Time{}
	x.mu.Unlock()
	if x.t.o.Connected != nil {
		x.t.o.Connected(x, conn)
	}
	return true
}

// join adds a connection under the present generation.
func (x *Export) join(conn *rpc.Conn, generation uint64) bool {
	x.gate.RLock()
	defer x.gate.RUnlock()
	if x.gone || x.generation.Load() != generation {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.conns) == 0 {
		return false
	}
	x.conns = append(x.conns, conn)
	return true
}

// cut closes the export's connections.
func (x *Export) cut() { x.cutBut(nil) }

// cutBut closes the export's connections but for one.
func (x *Export) cutBut(keep *rpc.Conn) {
	x.mu.Lock()
	conns := append([]*rpc.Conn(nil), x.conns...)
	x.mu.Unlock()
	for _, c := range conns {
		if c != nil && c != keep { // A test may serve an export without a connection.
			c.Close()
		}
	}
}

// finish marks the export ended when nothing of it runs; false if it was ended before.
func (x *Export) finish() bool {
	x.gate.Lock()
	defer x.gate.Unlock()
	if x.gone {
		return false
	}
	x.gone = true
	return true
}

// drain waits until nothing of the export runs.
func (x *Export) drain() {
	x.gate.Lock()
	defer x.gate.Unlock()
}

// Serve implements rpc.Session.
func (x *Export) Serve(e *env.Env, c *rpc.Call) error {
	if err := x.t.serving(); err != nil {
		return err
	}
	switch c.Header.Op {
	case wire.OpPing:
		return nil
	case wire.OpDisconnect:
		if c.Header.Generation != x.Generation() {
			return status.NotConnected
		}
		x.cutBut(c.Conn) // Requests on others may wait for locks; nobody waits for them.
		x.t.end(x, false, "disconnected")
		return nil
	}
	c.Header.Flags &^= wire.FlagReplay // Only the window's own goroutine says that.
	if x.t.recovery.open.Load() {
		if err := x.t.recovery.hold(x, c); err != errServe {
			return err
		}
	}
	x.gate.RLock()
	defer x.gate.RUnlock()
	if x.gone || c.Header.Generation != x.generation.Load() {
		return status.NotConnected
	}
	switch c.Header.Op {
	case wire.OpReplayDone:
		return nil
	case wire.OpReplay:
		return status.Errorf(status.Stale, "%s is not in recovery", x.t.o.Name)
	}
	start, op := time.Now(), c.Header.Op // A call that is held may be another's when run returns.
	err := x.run(e, c)
	if errors.Is(err, ErrAgain) {
		return rpc.ErrHeld // It is counted when it is carried out.
	}
	x.t.stats.observe(op, time.Since(start), err)
	if err != nil && !errors.Is(err, rpc.ErrHeld) {
		return Status(err)
	}
	return err
}

// run serves a request, from its slot if it was run before.
func (x *Export) run(e *env.Env, c *rpc.Call) error {
	if !c.Header.Op.Modifies() {
		return x.t.o.Handler.Serve(e, x, c)
	}
	s, err := x.slot(c.Header.Slot)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.Header.XID == s.xid && s.xid != 0:
		s.replay(e, c)
		return nil
	case c.Header.XID <= s.xid:
		return status.Errorf(status.Protocol, "%s: %v with xid %d in slot %d, which is at xid %d",
			x.t.o.Name, c.Header.Op, c.Header.XID, c.Header.Slot, s.xid)
	}
	return x.t.o.Handler.Serve(e, x, c)
}
