package lockd

import (
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// enqueue does ENQUEUE.
func (s *Server) enqueue(k *work, cl *Client, c *rpc.Call) error {
	m := &k.enqueue
	m.ResetVT()
	if err := c.Decode(m); err != nil {
		return err
	}
	k.reply.ResetVT()
	switch {
	case m.Own == 0:
		return status.Errorf(status.Protocol, "lockd: a lock request without the client's handle")
	case m.Intent != 0 && (s.o.Intent == nil || m.Intent > 0xffff || wire.Op(m.Intent).Modifies()):
		return status.Errorf(status.NotSupport, "lockd: %s does not do %v with a lock", s.o.Name, wire.Op(m.Intent))
	}
	flock := m.ResType == uint32(ldlm.TypeFlock)
	var err error
	if flock {
		err = wire.Flock(m, &k.flock)
	} else {
		err = wire.Enqueue(m, &k.req)
	}
	if err != nil {
		return err
	}
	if c.Header.Flags&wire.FlagResent != 0 {
		if done, err := s.resent(k, cl, c); done {
			return err
		}
	}
	switch {
	case flock:
		return s.enqueueFlock(k, cl, c)
	case k.req.Flags&(ldlm.Replay|ldlm.Glimpse) == 0 && s.shared.full():
		if len(k.req.Cancels) > 0 {
			s.ns.Cancel(s.now(), cl.id, k.req.Cancels, &k.fx)
			s.run(k)
		}
		s.count.parked.Inc()
		s.park.add(cl, c)
		return rpc.ErrHeld
	}
	return s.ask(k, cl, c)
}

// ask puts the request in k to the engine.
func (s *Server) ask(k *work, cl *Client, c *rpc.Call) error {
	r := &k.req
	r.Client = cl.id
	if r.Flags&ldlm.Glimpse != 0 {
		v, err := s.ns.GetLVB(k.e, r.Res)
		if err != nil {
			return err
		}
		r.KnownSize = v.Size
	}
	w := k.spareWaiter(s, cl, c)
	w.res = r.Res
	r.Data = k.ticket
	reply := s.ns.Enqueue(s.now(), r, &k.fx)
	k.reply.Contended = reply.Contended
	w.reply.Contended = reply.Contended
	if reply.Outcome == ldlm.Asking {
		return s.glimpseBegin(k, cl, c)
	}
	s.run(k)
	switch reply.Outcome {
	case ldlm.Granted:
		w.body = k.enqueue.IntentBody
		c.Reply = &k.reply
		a := ldlm.Answer{Remote: reply.Handle, Desc: reply.Desc}
		err := s.answer(k, w, &k.reply, &a)
		w.body, w.call = nil, nil
		return err
	case ldlm.Waiting:
		return s.wait(k, w, reply.Handle)
	case ldlm.LVBOnly:
		c.Reply = &k.reply
		return s.lvbOnly(k, r.Res, &k.reply)
	}
	return reply.Status
}

// resent answers an enqueue that was sent again after a connection was lost, if it was carried out then: the lock is there
// under the client's handle. Otherwise it is carried out now.
func (s *Server) resent(k *work, cl *Client, c *rpc.Call) (done bool, err error) {
	own := ldlm.Handle(k.enqueue.Own)
	cl.mu.Lock()
	w := cl.waits[own]
	cl.mu.Unlock()
	if w != nil {
		w.mu.Lock()
		state, h := w.state, w.handle
		w.mu.Unlock()
		switch state {
		case waitDetached:
			k.reply.Lock, k.reply.Waiting = uint64(h), true
			c.Reply = &k.reply
			return true, nil
		case waitHeld: // of a connection whose end has not been told yet
			s.withdraw(k, w, status.NotConnected)
		}
	}
	if k.enqueue.ResType == uint32(ldlm.TypeFlock) {
		return false, nil // to grant it twice changes nothing
	}
	for _, l := range s.ns.Locks(cl.id, nil) {
		if l.Remote != own || l.Res != k.req.Res || !l.Granted {
			continue
		}
		a, ok := s.ns.Told(cl.id, l.Handle)
		if !ok {
			return false, nil
		}
		w := k.spareWaiter(s, cl, c)
		w.res, w.body = l.Res, k.enqueue.IntentBody
		c.Reply = &k.reply
		err := s.answer(k, w, &k.reply, &a)
		w.body, w.call = nil, nil
		return true, err
	}
	return false, nil
}

// enqueueFlock asks for an application lock.
func (s *Server) enqueueFlock(k *work, cl *Client, c *rpc.Call) error {
	r := &k.flock
	r.Range.Owner.Client = cl.id
	w := k.spareWaiter(s, cl, c)
	w.res, w.flock = r.Res, r.Range
	r.Data = k.ticket
	reply := s.ns.Flock(s.now(), r, &k.fx)
	w.flock = r.Range // as the engine takes it
	s.run(k)
	switch reply.Outcome {
	case ldlm.Granted:
		w.call = nil
		m := &k.reply
		m.Mode, m.Start, m.End = k.enqueue.Mode, r.Range.Start, r.Range.End
		m.Slv, m.LockLimit = s.pool.volume()
		c.Reply = m
		return nil
	case ldlm.Waiting:
		return s.wait(k, w, reply.Handle)
	}
	return reply.Status
}

// Grant gives a client a lock with the answer to another request, where that needs nobody's lock back: want says which, id
// on what. It fills to and returns true, or returns false with to untouched.
func (s *Server) Grant(e *env.Env, cl *Client, id ldlm.ResID, want *wirepb.LockWant, to *wirepb.LockGrant) bool {
	if want == nil || id.Type != ldlm.TypeInodeBits || (want.Bits|want.TryBits)&^uint32(ldlm.Full) != 0 ||
		want.Mode > uint32(ldlm.GROUP) || s.shared.full() {
		return false
	}
	k := workOf(e)
	k.req = ldlm.Request{Res: id, Mode: ldlm.Mode(want.Mode), Client: cl.id, Remote: ldlm.Handle(want.Own),
		Bits: ldlm.Bits(want.Bits), TryBits: ldlm.Bits(want.TryBits), Flags: ldlm.NoWait, Cancels: k.req.Cancels[:0]}
	r := s.ns.Enqueue(s.now(), &k.req, &k.fx)
	s.run(k)
	if r.Outcome != ldlm.Granted {
		return false
	}
	wire.PutGrant(to, id, k.req.Remote, &ldlm.Answer{Remote: r.Handle, Desc: r.Desc})
	return true
}
