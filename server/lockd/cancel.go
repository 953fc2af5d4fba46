package lockd

import (
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

// cancels does CANCEL.
func (s *Server) cancels(k *work, cl *Client, c *rpc.Call) error {
	m := &k.cancel
	m.ResetVT()
	if err := c.Decode(m); err != nil {
		return err
	}
	var err error
	if k.handles, err = wire.Handles(m.Locks, k.handles[:0]); err != nil {
		return err
	}
	if len(m.Waiting) > wire.CancelsMax {
		return status.Errorf(status.Protocol, "lockd: %d waits are withdrawn at once", len(m.Waiting))
	}
	s.giveBack(k, cl)
	k.cancelR.ResetVT()
	for _, own := range m.Waiting {
		cl.mu.Lock()
		w := cl.waits[ldlm.Handle(own)]
		cl.mu.Unlock()
		if w == nil || !s.withdraw(k, w, status.Interrupted) {
			k.cancelR.Ended = append(k.cancelR.Ended, own)
		}
	}
	k.cancelR.Slv, k.cancelR.LockLimit = s.pool.volume()
	c.Reply = &k.cancelR
	return nil
}

// giveBack cancels the handles in k.
func (s *Server) giveBack(k *work, cl *Client) {
	if len(k.handles) == 0 {
		return
	}
	s.ns.Cancel(s.now(), cl.id, k.handles, &k.fx)
	cl.unprolong(k.handles)
	s.run(k)
}

// CancelEarly gives back the locks that a request names beside its own business, before it is done (early lock cancel).
// Unknown handles are skipped; too many are an error of kind Protocol.
func (s *Server) CancelEarly(e *env.Env, cl *Client, handles []uint64) error {
	if len(handles) == 0 {
		return nil
	}
	k := workOf(e)
	var err error
	if k.handles, err = wire.Handles(handles, k.handles[:0]); err != nil {
		return err
	}
	s.giveBack(k, cl)
	return nil
}

// converts does CONVERT: to fewer bits or a weaker mode. A client that wants more asks for another lock.
func (s *Server) converts(k *work, cl *Client, c *rpc.Call) error {
	m := &k.convert
	m.ResetVT()
	if err := c.Decode(m); err != nil {
		return err
	}
	var cv ldlm.Conversion
	if err := wire.Conversion(m, &cv); err != nil {
		return err
	}
	cv.Client = cl.id
	cl.convertMu.Lock() // what is checked here is still so when the engine does it
	defer cl.convertMu.Unlock()
	l, ok := s.ns.Lock(cl.id, cv.Handle)
	switch {
	case !ok:
		return status.BadHandle
	case cv.Bits&^l.Desc.Bits != 0, cv.Mode != 0 && !weaker(cv.Mode, l.Desc.Mode):
		return status.Errorf(status.Invalid, "lockd: a conversion of %v from %v %v to %v %v", l.Res, l.Desc.Mode, l.Desc.Bits, cv.Mode, cv.Bits)
	}
	r := s.ns.Convert(s.now(), &cv, &k.fx)
	if r.Outcome == ldlm.Waiting {
		panic(fmt.Sprintf("lockd: a conversion of %v from %+v to %v %v waits", l.Res, l.Desc, cv.Mode, cv.Bits))
	}
	s.run(k)
	if r.Outcome == ldlm.Denied {
		return r.Status
	}
	cl.unprolong(append(k.handles[:0], cv.Handle))
	k.convR.ResetVT()
	wire.PutConvertReply(&k.convR, &r.Desc)
	k.convR.Slv, k.convR.LockLimit = s.pool.volume()
	c.Reply = &k.convR
	return nil
}

// weaker reports whether a lock of mode held can become mode m at once: m keeps out nothing that held lets in.
func weaker(m, held ldlm.Mode) bool {
	if m == held {
		return true
	}
	for x := ldlm.EX; x <= ldlm.TXN; x <<= 1 {
		if !ldlm.Compatible(m, x) && ldlm.Compatible(held, x) {
			return false
		}
	}
	return true
}

// prolongs does PROLONG: each lock gets another timeout from now, up to prolongCap timeouts after the first one.
func (s *Server) prolongs(k *work, cl *Client, c *rpc.Call) error {
	m := &k.prolong
	m.ResetVT()
	if err := c.Decode(m); err != nil {
		return err
	}
	var err error
	if k.handles, err = wire.Handles(m.Locks, k.handles[:0]); err != nil {
		return err
	}
	k.prolR.ResetVT()
	for _, h := range k.handles {
		if !s.Prolong(cl, h) {
			k.prolR.Unknown = append(k.prolR.Unknown, uint64(h))
		}
	}
	k.prolR.Slv, k.prolR.LockLimit = s.pool.volume()
	c.Reply = &k.prolR
	return nil
}

// Prolong gives a called-back lock of the client another timeout, within the cap: its holder says that it still works, or a
// request under it has just been done. It reports whether the lock is the client's and called back.
func (s *Server) Prolong(cl *Client, h ldlm.Handle) bool {
	now, timeout := s.now(), s.ns.Limits().LockTimeout
	cl.mu.Lock()
	until, known := cl.prolong[h]
	cl.mu.Unlock()
	if !known {
		until = now + prolongCap*timeout
	}
	if !s.ns.Prolong(cl.id, h, min(now+timeout, until)) {
		return false
	}
	s.count.prolonged.Inc()
	if !known {
		cl.mu.Lock()
		cl.prolong[h] = until
		cl.mu.Unlock()
	}
	return true
}

// prolongedUntil is how long a called-back lock of the client may stay out at most, which begins when it is first prolonged or spared.
func (s *Server) prolongedUntil(cl *Client, h ldlm.Handle) time.Duration {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	until, known := cl.prolong[h]
	if !known {
		until = s.now() + prolongCap*s.ns.Limits().LockTimeout
		cl.prolong[h] = until
	}
	return until
}

// unprolong forgets the caps of locks that were given back.
func (cl *Client) unprolong(handles []ldlm.Handle) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if len(cl.prolong) > 0 {
		for _, h := range handles {
			delete(cl.prolong, h)
		}
	}
}

// sweepProlonged forgets the caps of locks that went another way: a client can prolong and vanish.
func (s *Server) sweepProlonged(cl *Client) {
	cl.mu.Lock()
	var old []ldlm.Handle
	for h, until := range cl.prolong {
		if until+time.Minute < s.now() {
			old = append(old, h)
		}
	}
	cl.mu.Unlock()
	for _, h := range old {
		if l, ok := s.ns.Lock(cl.id, h); !ok || !l.Blocked {
			cl.unprolong([]ldlm.Handle{h})
		}
	}
}

// flockRequest does FLOCK: an unlock, or the question who is in the way.
func (s *Server) flockRequest(k *work, cl *Client, c *rpc.Call) error {
	m := &k.flockM
	m.ResetVT()
	if err := c.Decode(m); err != nil {
		return err
	}
	if err := wire.FlockRequest(m, &k.flock); err != nil {
		return err
	}
	k.flock.Range.Owner.Client = cl.id
	k.flockR.ResetVT()
	c.Reply = &k.flockR
	if m.Test {
		if h, held := s.ns.TestFlock(&k.flock); held {
			r := &k.flockR
			r.Held, r.Start, r.End, r.Write, r.Pid, r.Same = true, h.Start, h.End, h.Write, h.PID, h.Owner.Client == cl.id
		}
		return nil
	}
	r := s.ns.Flock(s.now(), &k.flock, &k.fx)
	s.run(k)
	if r.Outcome == ldlm.Denied {
		return r.Status
	}
	return nil
}
