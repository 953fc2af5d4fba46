package lockcache

import (
	"fmt"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// astState is what a callback worker keeps in its Env.
type astState struct {
	blocking   wirepb.BlockingAST
	completion wirepb.CompletionAST
	glimpse    wirepb.GlimpseAST
	reply      wirepb.GlimpseReply
	value      wirepb.LVB
	fx         ldlm.Effects
}

func stateOf(e *env.Env) *astState {
	s, _ := e.State(env.LayerLDLM).(*astState)
	if s == nil {
		s = &astState{}
		e.SetState(env.LayerLDLM, s)
	}
	return s
}

// Callback serves the server's ASTs, for ImportOptions.Callback. Other calls are answered with status.NotSystem. It waits
// for nothing: what an AST starts goes on in other goroutines.
func (c *Cache) Callback(e *env.Env, call *rpc.Call) error {
	c.answered()
	s := stateOf(e)
	switch call.Header.Op {
	case wire.OpBlockingAST:
		s.blocking.ResetVT()
		if err := call.Decode(&s.blocking); err != nil {
			return err
		}
		return c.blocking(s)
	case wire.OpCompletionAST:
		s.completion.ResetVT()
		if err := call.Decode(&s.completion); err != nil {
			return err
		}
		return c.completion(&s.completion)
	case wire.OpGlimpseAST:
		s.glimpse.ResetVT()
		if err := call.Decode(&s.glimpse); err != nil {
			return err
		}
		call.Reply = &s.reply
		return c.glimpse(s)
	}
	return status.NotSystem
}

// blocking enters a blocking AST.
func (c *Cache) blocking(s *astState) error {
	c.figs.blocking.Inc()
	about, recall, _, err := wire.Blocking(&s.blocking)
	if err != nil {
		return err
	}
	own, remote := about.Own, about.Remote
	if own == 0 {
		var known bool
		if own, known = c.adoption.find(c, about.Res, remote, recall); !known {
			return status.BadHandle
		}
		if own == 0 { // its answer is on the way; Adopt finds the recall
			return nil
		}
	} else if l, ok := c.ns.Lock(ldlm.Local, own); !ok || l.Remote != 0 && l.Remote != remote {
		return status.BadHandle
	}
	return c.callBack(own, remote, &recall, &s.fx)
}

// callBack enters a recall of a lock that the mirror has, or had just now.
func (c *Cache) callBack(own, remote ldlm.Handle, r *ldlm.Recall, fx *ldlm.Effects) error {
	// Noted first: the effect may be carried out, and the lock forgotten, before this goroutine goes on.
	c.called.add(own, remote, c.now())
	fx.Reset()
	if c.ns.CallBack(c.now(), own, r, fx) {
		c.carryOut(fx)
		fx.Reset()
		return nil
	}
	if _, there := c.ns.Lock(ldlm.Local, own); there { // its cancel is being made ready, or crosses the AST
		return nil
	}
	c.called.forget(own)
	return status.BadHandle
}

// completion enters what became of a request that waited.
func (c *Cache) completion(m *wirepb.CompletionAST) error {
	var a ldlm.Answer
	about, kind, err := wire.Completion(m, &a)
	if err != nil {
		return err
	}
	own, remote := about.Own, about.Remote
	w := c.waiters.take(own)
	if w == nil {
		// A second answer for a lock that is there is harmless; one for a wish that was given up is a lock to give back.
		if l, ok := c.ns.Lock(ldlm.Local, own); ok && l.Granted && l.Remote == remote || kind != status.OK || c.granted.has(own) {
			return nil
		}
		if remote != 0 && about.Res.Type != ldlm.TypeFlock {
			c.cancels.push(0, remote)
		}
		return status.BadHandle
	}
	c.figs.completion.Inc()
	if kind != status.OK {
		w.complete(fmt.Errorf("lockcache: lock on %v in mode %v: %w", w.ask.Res, w.ask.Mode, kind))
		return nil
	}
	if w.flock {
		c.granted.add(own)
		c.mine.granted(&w.req)
		w.complete(nil)
		return nil
	}
	w.desc, w.contended, w.lvb = a.Desc, m.Contended, append(w.lvb[:0], m.Lvb...)
	w.complete(c.enter(own, w, &a))
	return nil
}

// glimpse asks the owner what it knows of an object, and gives a lock back that has not been used for long, so that
// the asker gets one itself the next time.
func (c *Cache) glimpse(s *astState) error {
	c.figs.glimpse.Inc()
	about := wire.Glimpse(&s.glimpse)
	own, res := about.Own, about.Res
	if own == 0 {
		own = c.remoteHandle(res, about.Remote)
	}
	l, ok := c.ns.Lock(ldlm.Local, own)
	if !ok || l.Res != res || !l.Granted {
		return status.BadHandle
	}
	var v ldlm.LVB
	if !c.o.Owner.Glimpse(res, l.Data, &v) {
		return status.NoData
	}
	s.value.ResetVT()
	wire.PutLVB(&s.value, &v)
	s.reply.Lvb = &s.value
	if limit := c.set.dirtyAge.Load(); limit > 0 && l.Unused && int64(c.now()-l.Since) >= limit {
		s.fx.Reset()
		c.ns.CallBack(c.now(), own, &ldlm.Recall{}, &s.fx)
		c.carryOut(&s.fx)
		s.fx.Reset()
	}
	return nil
}

// remoteHandle finds a lock by its resource and the server's handle, 0 when there is none.
func (c *Cache) remoteHandle(res ldlm.ResID, remote ldlm.Handle) ldlm.Handle {
	i, ok := c.ns.Resource(c.now(), res)
	if !ok {
		return 0
	}
	for _, l := range i.Holders {
		if l.Remote == remote {
			return l.Handle
		}
	}
	if i.Granted <= len(i.Holders) {
		return 0
	}
	// More locks on one resource than a ResourceInfo lists: rare, because Adopt keeps no second lock for the same bits.
	for _, l := range c.ns.Locks(ldlm.Local, nil) {
		if l.Res == res && l.Remote == remote {
			return l.Handle
		}
	}
	return 0
}
