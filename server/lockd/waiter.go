package lockd

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// waitState is where a waiting enqueue stands.
type waitState uint8

const (
	waitNew      waitState = iota // the step that may make it wait runs
	waitHeld                      // its call is answered when it ends
	waitDetached                  // its call was answered; a completion AST follows
	waitDone
)

// waiter is an enqueue of a client that waits, or that is about to find out whether it has to. The first fields do not
// change once the step has begun.
type waiter struct {
	s      *Server
	cl     *Client
	own    ldlm.Handle
	res    ldlm.ResID
	flock  ldlm.FlockRange // of type flock
	call   *rpc.Call
	intent wire.Op
	body   []byte // the intent's

	reply wirepb.EnqueueReply // of a held call
	begin time.Duration       // of the wait, for statistics

	mu     sync.Mutex
	state  waitState   // guarded by mu
	handle ldlm.Handle // guarded by mu
	ended  bool        // the wait was over before the step had returned; guarded by mu
	effect ldlm.Effect // what ended it; written once, before the state is waitDone
}

// ticket is what the engine brings back with the end of a wait. A lock keeps its Data for as long as it lives, and nobody
// else looks at it: so the ticket is small, lets go of the waiter, and is shared by all locks that did not wait.
type ticket struct{ w atomic.Pointer[waiter] }

func (t *ticket) end(f *ldlm.Effect) {
	if w := t.w.Swap(nil); w != nil {
		w.end(f)
	}
}

// spareWaiter prepares the worker's waiter for a request. One that does not wait leaves it to the next.
func (k *work) spareWaiter(s *Server, cl *Client, c *rpc.Call) *waiter {
	if k.spare == nil {
		k.spare, k.ticket = new(waiter), new(ticket)
		k.ticket.w.Store(k.spare)
	}
	w := k.spare
	m := &k.enqueue
	w.s, w.cl, w.call, w.own, w.intent = s, cl, c, ldlm.Handle(m.Own), wire.Op(m.Intent)
	w.ended = false
	return w
}

// end enters the effect that ends the wait.
func (w *waiter) end(f *ldlm.Effect) {
	w.mu.Lock()
	state := w.state
	if state != waitDone {
		w.effect, w.ended = *f, true
	}
	if state == waitNew {
		w.mu.Unlock()
		return // the step's goroutine goes on with it
	}
	w.state = waitDone
	w.mu.Unlock()
	if f.Kind == ldlm.EffectCompletion {
		w.s.count.waits.Observe(w.s.now() - w.begin)
	}
	switch state {
	case waitHeld:
		w.unlist(true)
		w.s.send.post(w.cl, job{kind: jobFinish, w: w})
	case waitDetached:
		w.unlist(false)
		w.s.send.post(w.cl, job{kind: jobCompletion, w: w})
	}
}

func (w *waiter) unlist(held bool) {
	cl := w.cl
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.waits[w.own] == w {
		delete(cl.waits, w.own)
	}
	if held {
		cl.held--
	}
}

// heldOn reports whether the call is held and picked.
func (w *waiter) heldOn(which func(*rpc.Call) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state == waitHeld && which(w.call)
}

func (w *waiter) waits() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state != waitDone
}

// outcome says how the wait ended: status.OK with what the client has now, or why not. status.Interrupted: the lock is gone.
func (w *waiter) outcome(k *work, a *ldlm.Answer) status.Kind {
	f := &w.effect
	switch {
	case f.Kind == ldlm.EffectDeadlock:
		return status.Deadlock
	case f.Kind == ldlm.EffectDeny:
		return f.Status
	case w.res.Type == ldlm.TypeFlock:
		*a = ldlm.Answer{Desc: f.Desc}
		return status.OK
	}
	var ok bool
	if *a, ok = w.s.ns.Told(w.cl.id, f.Handle); !ok {
		return status.Interrupted
	}
	return status.OK
}

// finish answers a held call.
func (w *waiter) finish(k *work) {
	var a ldlm.Answer
	kind := w.outcome(k, &a)
	if kind != status.OK {
		w.call.Finish(kind)
		return
	}
	err := w.s.answer(k, w, &w.reply, &a)
	w.call.Reply = &w.reply
	w.call.Finish(err)
}

// answer fills a reply with a granted lock, its LVB and its intent's answer.
func (s *Server) answer(k *work, w *waiter, m *wirepb.EnqueueReply, a *ldlm.Answer) error {
	wire.PutEnqueueReply(m, a)
	m.Slv, m.LockLimit = s.pool.volume()
	if w.res.Type == ldlm.TypeExtent && s.o.Objects != nil {
		var err error
		if m.Lvb, err = s.ns.FillLVB(k.e, w.res, m.Lvb[:0]); err != nil {
			k.handles = append(k.handles[:0], a.Remote)
			s.ns.Cancel(s.now(), w.cl.id, k.handles, &k.fx)
			s.run(k)
			return err
		}
	}
	if w.intent != 0 {
		s.o.Intent.Serve(k.e, w.cl, w.intent, w.body, m)
	}
	return nil
}

// wait makes a request wait whose step has returned, or answers it when the wait is over already.
func (s *Server) wait(k *work, w *waiter, h ldlm.Handle) error {
	k.spare, k.ticket = nil, nil
	w.begin = s.now()
	if w.intent != 0 {
		w.body = append([]byte(nil), k.enqueue.IntentBody...)
	}
	cl := w.cl
	cl.mu.Lock()
	for old := cl.waits[w.own]; old != nil && old.waits(); old = cl.waits[w.own] {
		cl.mu.Unlock()
		if err := s.supersede(k, w, old); err != nil {
			k.handles = append(k.handles[:0], h)
			s.ns.Cancel(s.now(), cl.id, k.handles, &k.fx)
			s.run(k)
			return err
		}
		cl.mu.Lock()
	}
	w.mu.Lock()
	w.handle = h
	if w.ended {
		w.state = waitDone
		w.mu.Unlock()
		cl.mu.Unlock()
		return s.endedEarly(k, w)
	}
	cl.waits[w.own] = w
	detach := k.enqueue.Detach || cl.held >= s.o.HeldMax
	if w.state = waitHeld; detach {
		w.state = waitDetached
	} else {
		cl.held++
	}
	w.mu.Unlock()
	cl.mu.Unlock()
	if detach {
		s.count.detached.Inc()
		k.reply.Lock, k.reply.Waiting = uint64(h), true
		k.reply.Slv, k.reply.LockLimit = s.pool.volume()
		w.call.Reply = &k.reply
		return nil
	}
	if w.call.Context().Err() != nil { // Disconnected may have looked before it was listed
		s.withdraw(k, w, status.NotConnected)
	}
	return rpc.ErrHeld
}

// endedEarly answers a request whose wait was over before it began.
func (s *Server) endedEarly(k *work, w *waiter) error {
	var a ldlm.Answer
	if kind := w.outcome(k, &a); kind != status.OK {
		return kind
	}
	w.call.Reply = &k.reply
	return s.answer(k, w, &k.reply, &a)
}

// supersede ends the wait of a request that was sent again while what had come on the lost connection was still being put to
// the engine.
func (s *Server) supersede(k *work, w, old *waiter) error {
	switch {
	case w.call.Header.Flags&wire.FlagResent == 0:
		return status.Errorf(status.Protocol, "lockd: %s waits for two locks that it calls %v", w.cl.name, w.own)
	case s.withdraw(k, old, status.NotConnected):
		return nil
	}
	return status.NotConnected // Its answer goes where nobody listens. Sent once more, the request finds the lock.
}

// withdraw ends a wait that its client, or its connection's end, gave up; a held call is answered with why. It returns false
// when the wait was over: the answer is there or on its way.
func (s *Server) withdraw(k *work, w *waiter, why error) bool {
	w.mu.Lock()
	h, state := w.handle, w.state
	w.mu.Unlock()
	if state == waitDone {
		return false
	}
	k.handles = append(k.handles[:0], h)
	n := s.ns.Cancel(s.now(), w.cl.id, k.handles, &k.fx)
	if n == 0 {
		s.run(k)
		return false // its end is on the way to this waiter
	}
	w.mu.Lock()
	state, w.state = w.state, waitDone
	w.mu.Unlock()
	if state != waitDone {
		w.unlist(state == waitHeld)
	}
	s.run(k)
	if state == waitHeld {
		w.call.Finish(why)
	}
	return true
}
