package lockcache

import (
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// waiter is one Acquire that has asked. It belongs to that goroutine; desc, err, lvb and contended are written by who took
// it out of waiters, before the token in done.
type waiter struct {
	c     *Cache
	done  chan struct{} // one token from who took the waiter out
	run   func()        // askServer, bound once
	rpc   rpc.Request
	req   wirepb.EnqueueRequest
	reply wirepb.EnqueueReply
	early Early
	value wirepb.LVB

	ask  ldlm.Request
	into []byte // memory for the intent's reply

	// epoch and instance are the cache's when the request was made.
	epoch, instance uint64

	// Between the caller and the goroutine that sends: who changes fate first goes on with the waiter.
	own     ldlm.Handle
	fate    atomic.Int32
	replied chan error // one token with fateReplied

	desc      ldlm.Desc
	err       error
	lvb       []byte
	contended bool
	leaving   bool      // Request.Leaving
	shelters  ldlm.Mode // modes of locks on their way back that serve
	flock     bool      // of Flock: nothing of it is in the mirror
	finished  bool      // completed by an AST or a loss
	parked    bool      // its request was answered with waiting; guarded by the shard's mu
}

// The fates of a request that another goroutine sends.
const (
	fateOpen    int32 = iota
	fateReplied       // the caller goes on
	fateLeft          // the caller has left: the goroutine goes on
)

func (c *Cache) newWaiter(r *Request) *waiter {
	w, _ := c.spare.Get().(*waiter)
	if w == nil {
		w = &waiter{c: c, done: make(chan struct{}, 1), replied: make(chan error, 1)}
		w.run = w.askServer
	}
	w.ask = ldlm.Request{Res: r.Res, Mode: r.Mode, Extent: r.Extent, Bits: r.Bits, TryBits: r.TryBits, GID: r.GID,
		Flags: r.Flags, Data: r.Data}
	if r.Mode == ldlm.GROUP { // the whole object, whatever was asked
		w.ask.Extent = extent.Extent{End: extent.EOF}
	}
	w.into, w.leaving = r.IntentReply[:0], r.Leaving
	if w.shelters = r.LeavingModes; w.shelters == 0 {
		w.shelters = Serving(r.Mode)
	}
	w.err, w.contended, w.flock, w.finished, w.parked = nil, false, false, false, false
	w.lvb = w.lvb[:0]
	return w
}

// ask fills the request.
func (w *waiter) fill(own ldlm.Handle, r *Request) {
	m := &w.req
	m.ResetVT()
	wire.PutEnqueue(m, &w.ask, own)
	m.Cancels = append(m.Cancels[:0], w.early.Handles...)
	m.Intent, m.IntentBody = uint32(r.Intent), append(m.IntentBody[:0], r.IntentBody...)
	// A request that waits at the server would hold one of few slots, and what it waits for may need them.
	m.Detach = true
	w.send(wire.OpEnqueue)
	w.rpc.Into = r.Into
}

func (w *waiter) send(op wire.Op) {
	w.reply.ResetVT()
	w.rpc = rpc.Request{Op: op, Body: &w.req, Reply: &w.reply}
}

// grant is what the caller gets. What it holds is copied: w goes back to the pool.
func (w *waiter) grant(h ldlm.Handle, d ldlm.Desc) Grant {
	r := &w.reply
	g := Grant{Handle: h, Own: h, Desc: d, Data: w.ask.Data, Contended: r.Contended || w.contended, IntentStatus: status.Kind(r.IntentStatus), N: w.rpc.N}
	lvb := r.Lvb
	if w.finished {
		lvb = w.lvb
	}
	// An object without a byte or a time has an LVB of no bytes.
	g.HasLVB = decodeLVB(lvb, &w.value, &g.LVB) || len(lvb) == 0 && w.ask.Res.Type == ldlm.TypeExtent
	if len(r.IntentReply) > 0 {
		g.IntentReply = append(w.into, r.IntentReply...)
	}
	return g
}

// decodeLVB reads an LVB message; false when there is none that can be used.
func decodeLVB(b []byte, m *wirepb.LVB, v *ldlm.LVB) bool {
	m.ResetVT()
	if len(b) == 0 || m.UnmarshalVT(b) != nil {
		return false
	}
	*v = wire.LVB(m)
	return true
}

// complete wakes the Acquire. Precondition: the caller took w out of waiters.
func (w *waiter) complete(err error) {
	w.err, w.finished = err, true
	w.done <- struct{}{}
}

// release gives w back. Precondition: it is out of waiters and its token was received.
func (c *Cache) release(w *waiter) {
	w.rpc.Into, w.into, w.ask.Data = nil, nil, nil
	c.spare.Put(w)
}

// waiterShards spreads waiters over maps with a mutex each.
const waiterShards = 8

// waiters finds those who wait by the handle of their lock.
type waiters struct {
	shards [waiterShards]waiterShard
}

type waiterShard struct {
	mu sync.Mutex
	m  map[ldlm.Handle]*waiter // guarded by mu
}

func (s *waiters) init() {
	for i := range s.shards {
		s.shards[i].m = map[ldlm.Handle]*waiter{}
	}
}

func (s *waiters) of(h ldlm.Handle) *waiterShard { return &s.shards[h%waiterShards] }

func (s *waiters) add(h ldlm.Handle, w *waiter) {
	sh := s.of(h)
	sh.mu.Lock()
	sh.m[h] = w
	sh.mu.Unlock()
}

// take takes a waiter out: who gets it completes it, once.
func (s *waiters) take(h ldlm.Handle) *waiter {
	sh := s.of(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	w := sh.m[h]
	delete(sh.m, h)
	return w
}

// beginLocked enters a waiter before its request is sent. Called with life held.
func (c *Cache) beginLocked(own ldlm.Handle, w *waiter) {
	w.epoch, w.instance = c.epoch, c.instance
	c.waiters.add(own, w)
}

// park notes that a waiter's request was answered with waiting. It returns false when the target has restarted since the
// request was made, so that nobody can say which start answered.
func (c *Cache) park(own ldlm.Handle, w *waiter) bool {
	c.life.RLock()
	defer c.life.RUnlock()
	if c.instance != w.instance {
		return false
	}
	sh := c.waiters.of(own)
	sh.mu.Lock()
	w.parked = true
	sh.mu.Unlock()
	return true
}

// askAgain completes the wishes of applications that are parked: they are made once more.
func (s *waiters) askAgain() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for h, w := range sh.m {
			if w.flock && w.parked {
				delete(sh.m, h)
				w.complete(errAgain)
			}
		}
		sh.mu.Unlock()
	}
}

// fail completes all, or those that are parked: the others' requests are sent again by the import. spare leaves wishes of applications.
func (s *waiters) fail(err error, parked, spare bool) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for h, w := range sh.m {
			if (w.parked || !parked) && !(spare && w.flock) {
				delete(sh.m, h)
				w.complete(err)
			}
		}
		sh.mu.Unlock()
	}
}
