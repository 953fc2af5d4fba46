package lockd

import (
	"context"
	"fmt"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
)

// LocalLock is a lock of one of the server's own operations. Set the first fields, call Lock or TryLock, then Unlock. It may
// be used again after Unlock, and then allocates nothing. It must not be copied while it is held.
type LocalLock struct {
	Res    ldlm.ResID
	Mode   ldlm.Mode
	Bits   ldlm.Bits
	Extent extent.Extent
	// Cause is the client on whose behalf it is asked for, 0 for nobody: a COS lock held for it is no obstacle.
	Cause ldlm.ClientID
	// Own says that it is an operation of Cause: what that client holds is no obstacle to it, nor it to what the client is
	// granted meanwhile, by Grant above all. Without a Cause it says nothing.
	Own bool
	// Initiator numbers the MDT where the operation began, plus 1.
	Initiator uint32
	// OnBlocking, if not nil, is told when somebody wants the lock, once, maybe before Lock has returned and, where it
	// crosses, after Unlock: the handle tells. It must not wait nor call the server. It is for locks held until a
	// transaction is on disk, and must be set before the first Lock and never changed.
	OnBlocking func(ldlm.Handle)

	handle ldlm.Handle
	w      *localWait
}

// Handle names the lock while it is held.
func (l *LocalLock) Handle() ldlm.Handle { return l.handle }

// localWait is what the engine gives back with a local lock. It is used again unless a wait was given up, because then an
// effect may still be on its way to it.
type localWait struct {
	onBlocking func(ldlm.Handle)
	over       chan status.Kind // has room for the one end of a wait
}

func (w *localWait) end(f *ldlm.Effect) {
	k := status.OK
	if f.Kind != ldlm.EffectCompletion {
		k = f.Status
	}
	w.over <- k
}

// ask puts a local request to the engine.
func (s *Server) askLocal(k *work, l *LocalLock, f ldlm.Flags) ldlm.Reply {
	if l.handle != 0 {
		panic(fmt.Sprintf("lockd: local lock %v on %v is asked for twice", l.handle, l.Res))
	}
	if l.w == nil {
		l.w = &localWait{over: make(chan status.Kind, 1), onBlocking: l.OnBlocking}
	}
	if l.Own && l.Cause != ldlm.Local {
		f |= ldlm.Own
	}
	k.req = ldlm.Request{Res: l.Res, Mode: l.Mode, Client: ldlm.Local, Extent: l.Extent, Bits: l.Bits, Cause: l.Cause,
		Initiator: l.Initiator, Flags: f, Data: l.w, Cancels: k.req.Cancels[:0]}
	r := s.ns.Enqueue(s.now(), &k.req, &k.fx)
	s.run(k)
	return r
}

// Lock takes a lock for one of the server's own operations and waits for it until ctx ends, whose error it then
// returns, or the server closes (status.Stopping). In which order an operation takes its locks is the caller's business; so
// is to hold none that a client it waits for needs. Other errors: those of ldlm.Namespace.Enqueue.
func (s *Server) Lock(ctx context.Context, e *env.Env, l *LocalLock) error {
	k := workOf(e)
	r := s.askLocal(k, l, 0)
	switch r.Outcome {
	case ldlm.Granted:
		l.handle = r.Handle
		return nil
	case ldlm.Waiting:
		e.WillWait()
	default:
		return r.Status
	}
	var err error
	select {
	case kind := <-l.w.over:
		if kind != status.OK {
			return kind
		}
		l.handle = r.Handle
		if a, ok := s.ns.Told(ldlm.Local, l.handle); ok && a.Blocked && l.OnBlocking != nil {
			l.OnBlocking(l.handle)
		}
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-s.ctx.Done():
		err = status.Stopping
	}
	l.w = nil
	k.handles = append(k.handles[:0], r.Handle)
	s.ns.Cancel(s.now(), ldlm.Local, k.handles, &k.fx)
	s.run(k)
	return err
}

// TryLock takes a lock if it is free at once; otherwise it returns status.Again and nobody is called back.
func (s *Server) TryLock(e *env.Env, l *LocalLock) error {
	r := s.askLocal(workOf(e), l, ldlm.NoWait)
	if r.Outcome != ldlm.Granted {
		return r.Status
	}
	l.handle = r.Handle
	return nil
}

// Unlock gives a lock back. One that is not held is left alone.
func (s *Server) Unlock(e *env.Env, l *LocalLock) {
	if l.handle == 0 {
		return
	}
	k := workOf(e)
	k.handles = append(k.handles[:0], l.handle)
	l.handle = 0
	if s.ns.Cancel(s.now(), ldlm.Local, k.handles, &k.fx) != 1 {
		panic(fmt.Sprintf("lockd: local lock %v on %v is gone", k.handles[0], l.Res))
	}
	s.run(k)
}

// Deny ends all waits for a resource with a status, application locks' included: its object is gone. Held locks stay.
func (s *Server) Deny(e *env.Env, id ldlm.ResID, k status.Kind) {
	w := workOf(e)
	s.ns.DenyWaiting(s.now(), id, k, &w.fx)
	s.run(w)
}

// Destroyed tells that the object or inode of a resource is gone: waits for it end with status.NotExist, and locks that clients hold on it
// are called back without being waited for; what they cover need not be written back.
func (s *Server) Destroyed(e *env.Env, id ldlm.ResID) {
	k := workOf(e)
	s.ns.DenyWaiting(s.now(), id, status.NotExist, &k.fx)
	s.run(k)
	l := LocalLock{Res: id, Mode: ldlm.EX}
	if id.Type == ldlm.TypeExtent {
		l.Extent = extent.Extent{End: extent.EOF}
	} else {
		l.Bits = ldlm.Full
	}
	s.recall(k, &l, ldlm.DiscardData)
}

// Recall calls back what clients hold that is in the way of l, and neither waits for it nor takes l. It uses the fields of l that
// Lock does, and may be called while l is held.
func (s *Server) Recall(e *env.Env, l *LocalLock) { s.recall(workOf(e), l, 0) }

// recall asks for a lock, which calls back those in its way, and gives up at once.
func (s *Server) recall(k *work, l *LocalLock, f ldlm.Flags) {
	if l.Own && l.Cause != ldlm.Local {
		f |= ldlm.Own
	}
	k.req = ldlm.Request{Res: l.Res, Mode: l.Mode, Client: ldlm.Local, Extent: l.Extent, Bits: l.Bits, Cause: l.Cause,
		Initiator: l.Initiator, Flags: f, Cancels: k.req.Cancels[:0]}
	if r := s.ns.Enqueue(s.now(), &k.req, &k.fx); r.Handle != 0 {
		k.handles = append(k.handles[:0], r.Handle)
		s.ns.Cancel(s.now(), ldlm.Local, k.handles, &k.fx)
	}
	s.run(k)
}

// Downgrade makes a held lock weaker. To COS, tag is the client that caused it; to TXN, the initiating MDT's number plus 1:
// the lock is then held until the transaction is on disk.
func (s *Server) Downgrade(e *env.Env, l *LocalLock, mode ldlm.Mode, tag uint64) {
	k := workOf(e)
	r := s.ns.Convert(s.now(), &ldlm.Conversion{Client: ldlm.Local, Handle: l.handle, Mode: mode, Tag: tag}, &k.fx)
	s.run(k)
	if r.Outcome != ldlm.Granted {
		panic(fmt.Sprintf("lockd: local lock %v %v on %v does not become %v: %v", l.handle, l.Mode, l.Res, mode, r.Status))
	}
}
