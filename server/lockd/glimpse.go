package lockd

import (
	"context"
	"math"
	"sync"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// glimpse is an enqueue that asks holders of write locks for what they know; its call is held meanwhile.
type glimpse struct {
	s     *Server
	cl    *Client // who asks; nil for the server itself
	call  *rpc.Call
	over  chan struct{} // closed in the end, for the server itself
	res   ldlm.ResID
	asker ldlm.Desc
	reply wirepb.EnqueueReply

	mu      sync.Mutex
	pending int             // answers that have not come; guarded by mu
	asked   []ldlm.ClientID // guarded by mu
	shrinks uint64          // the object's when the round's holders were asked; guarded by mu
	second  bool            // the second round runs; guarded by mu
}

// glimpseBegin sends the glimpse ASTs of the step that has just been made and holds the call.
func (s *Server) glimpseBegin(k *work, cl *Client, c *rpc.Call) error {
	g := &glimpse{s: s, cl: cl, call: c, res: k.req.Res}
	g.reply.Contended = k.reply.Contended
	g.begin(k)
	return rpc.ErrHeld
}

// Glimpse returns what is known of an object, without a lock for the asker: holders of write locks are asked, until ctx ends. It is for
// the server's own operations, which must hold no lock meanwhile that keeps a holder from answering. It allocates only where somebody
// is asked.
func (s *Server) Glimpse(ctx context.Context, e *env.Env, o fid.ObjectID) (ldlm.LVB, error) {
	k := workOf(e)
	res := ldlm.ObjectRes(o)
	v, err := s.ns.GetLVB(e, res)
	if err != nil {
		return ldlm.LVB{}, err
	}
	k.req = ldlm.Request{Res: res, Mode: ldlm.PR, Client: ldlm.Local, Extent: extent.Extent{End: extent.EOF}, Flags: ldlm.Glimpse,
		KnownSize: v.Size, Cancels: k.req.Cancels[:0]}
	r := s.ns.Enqueue(s.now(), &k.req, &k.fx)
	switch r.Outcome {
	case ldlm.Asking:
		g := &glimpse{s: s, res: res, over: make(chan struct{})}
		g.begin(k)
		select {
		case <-g.over:
		case <-ctx.Done():
			return ldlm.LVB{}, ctx.Err()
		case <-s.ctx.Done():
			return ldlm.LVB{}, status.Stopping
		}
	case ldlm.Granted:
		k.handles = append(k.handles[:0], r.Handle)
		s.ns.Cancel(s.now(), ldlm.Local, k.handles, &k.fx)
		s.run(k)
		return v, nil
	case ldlm.LVBOnly:
		s.run(k)
		return v, nil
	default:
		s.run(k)
		return ldlm.LVB{}, r.Status
	}
	return s.ns.GetLVB(e, res)
}

// begin posts the ASTs of the first round, which the step in k has made.
func (g *glimpse) begin(k *work) {
	var asts []ldlm.Effect
	rest := k.fx.List[:0]
	for _, f := range k.fx.List {
		if f.Kind == ldlm.EffectGlimpse {
			asts = append(asts, f)
		} else {
			rest = append(rest, f)
		}
	}
	k.fx.List = rest
	g.s.run(k)
	g.ask(asts)
}

// ask posts one round's ASTs. Precondition: there is one at least.
func (g *glimpse) ask(asts []ldlm.Effect) {
	shrinks := g.s.ns.Shrinks(g.res)
	g.mu.Lock()
	g.pending += len(asts)
	g.shrinks = shrinks
	g.asker = asts[0].Desc
	for i := range asts {
		g.asked = append(g.asked, asts[i].Client)
	}
	g.mu.Unlock()
	for i := range asts {
		if cl := g.s.client(asts[i].Client); cl != nil {
			g.s.send.post(cl, job{kind: jobGlimpse, effect: asts[i], g: g})
		} else {
			g.s.glimpsed(g)
		}
	}
}

// glimpseAST asks one holder.
func (s *Server) glimpseAST(k *work, cl *Client, j *job) (again bool) {
	m := wirepb.GlimpseASTFromVTPool()
	defer m.ReturnToVTPool()
	reply := wirepb.GlimpseReplyFromVTPool()
	defer reply.ReturnToVTPool()
	wire.PutGlimpse(m, &j.effect)
	err := s.call(cl, &rpc.Request{Op: wire.OpGlimpseAST, Body: m, Reply: reply})
	switch {
	case err == nil:
		v := wire.LVB(reply.Lvb)
		if v.Size > math.MaxInt64 {
			v = ldlm.LVB{} // no file is that large; the store's figures count
		}
		j.g.mu.Lock()
		shrinks := j.g.shrinks
		j.g.mu.Unlock()
		err = s.ns.GlimpsedLVB(k.e, j.g.res, &v, shrinks)
	case err == errGone:
		err = nil
	case err == status.NotConnected:
		return true
	case status.Of(err) == status.BadHandle: // it gave the lock back meanwhile, with what it had written
		s.count.unknown.Inc()
		err = s.ns.UpdateLVB(k.e, j.g.res, nil, true)
	default:
		s.told(k, cl, &j.effect, err, "a glimpse AST for "+j.g.res.String())
		err = nil
	}
	if err != nil {
		s.log.Error("a glimpse's answer is lost", "resource", j.g.res.String(), "error", err)
	}
	s.glimpsed(j.g)
	return false
}

// glimpsed notes that one answer is in the LVB, or will not come. The last one begins the second round, or ends it all.
func (s *Server) glimpsed(g *glimpse) {
	g.mu.Lock()
	g.pending--
	over, second := g.pending == 0, g.second
	g.second = g.second || over
	round := ldlm.GlimpseRound{Res: g.res, Asked: g.asked, Asker: g.asker}
	g.mu.Unlock()
	switch {
	case !over:
		return
	case !second:
		k := s.takeWork()
		defer s.giveWork(k)
		v, err := s.ns.GetLVB(k.e, g.res)
		round.KnownSize = v.Size
		if err == nil && s.ns.GlimpseAgain(&round, &k.fx) == ldlm.Asking {
			asts := append([]ldlm.Effect(nil), k.fx.List...)
			k.fx.Reset()
			g.ask(asts)
			return
		}
	}
	if g.over != nil {
		close(g.over)
		return
	}
	s.send.post(g.cl, job{kind: jobReply, g: g})
}

// glimpseReply answers who asked.
func (s *Server) glimpseReply(k *work, g *glimpse) {
	err := s.lvbOnly(k, g.res, &g.reply)
	g.call.Reply = &g.reply
	g.call.Finish(err)
}

// lvbOnly fills a reply that is an LVB without a lock.
func (s *Server) lvbOnly(k *work, id ldlm.ResID, m *wirepb.EnqueueReply) error {
	m.Slv, m.LockLimit = s.pool.volume()
	var err error
	m.Lvb, err = s.ns.FillLVB(k.e, id, m.Lvb[:0])
	return err
}
