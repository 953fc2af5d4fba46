package lockcache

import (
	"sync"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// This file is about locks that come with the answers to other requests: lookup, getattr, open, readdir. The client names
// no handle for them, so their blocking AST carries the server's only, and it may overtake the answer.

// Window is the time from before a request whose answer may bring locks until these were adopted. Its zero value is closed;
// it is the caller's and is not copied while open.
type Window struct {
	seq        uint64
	epoch      uint64
	prev, next *Window
	open       bool
}

// earlyRecall is a blocking AST for a lock that is not here yet.
type earlyRecall struct {
	recall ldlm.Recall
	upTo   uint64 // number of the newest window open then: the lock can only come with one of those
}

// earlyRecallsMax bounds recalls that came before their locks. At the bound, what open windows bring is given back.
const earlyRecallsMax = 4096

// adoption keeps the open windows, and the recalls that may be for what they bring.
//
// Invariant: a recall is in early only while a window is open that was open when it came.
type adoption struct {
	mu     sync.Mutex
	head   Window                      // ring of open windows, oldest first; guarded by mu
	seq    uint64                      // of the newest; guarded by mu
	early  map[ldlm.Handle]earlyRecall // by the server's handle; guarded by mu
	refuse uint64                      // windows up to this one bring nothing; guarded by mu
}

func (a *adoption) init() {
	a.head.prev, a.head.next = &a.head, &a.head
	a.early = map[ldlm.Handle]earlyRecall{}
}

// Expect opens a window, before the request is sent.
func (c *Cache) Expect(w *Window) {
	c.life.RLock()
	w.epoch = c.epoch
	c.life.RUnlock()
	a := &c.adoption
	a.mu.Lock()
	a.seq++
	w.seq, w.open = a.seq, true
	w.prev, w.next = a.head.prev, &a.head
	w.prev.next, w.next.prev = w, w
	a.mu.Unlock()
}

// Done closes a window, when the answer's locks were adopted or there was no answer.
func (c *Cache) Done(w *Window) {
	if !w.open {
		return
	}
	a := &c.adoption
	a.mu.Lock()
	w.prev.next, w.next.prev = w.next, w.prev
	w.prev, w.next, w.open = nil, nil, false
	var lost []ldlm.Handle
	if len(a.early) > 0 {
		oldest := a.seq + 1
		if a.head.next != &a.head {
			oldest = a.head.next.seq
		}
		for h, r := range a.early {
			if r.upTo < oldest {
				delete(a.early, h)
				lost = append(lost, h)
			}
		}
	}
	a.mu.Unlock()
	for _, h := range lost { // its answer did not come, or it had gone back before: the server waits for it in vain
		c.cancels.push(0, h)
	}
}

// Adopt enters a lock that came with the answer to w's request and returns it pinned: unpin it when what it covers has
// been put into the cache. Of a lock that this client has already, with all its bits, the older one is kept and returned.
// false: it cannot be used, and is given back; what came with it must not be cached.
func (c *Cache) Adopt(w *Window, g *wirepb.LockGrant, data any) (Grant, bool) {
	remote := ldlm.Handle(g.Lock)
	if remote == 0 {
		return Grant{}, false
	}
	var a ldlm.Answer
	res, _, err := wire.Grant(g, &a)
	if err != nil || !a.Desc.Mode.Valid() {
		c.log.Warn("a lock that came with an answer makes no sense and is given back", "lock", remote, "error", err)
		c.cancels.push(0, remote)
		return Grant{}, false
	}
	if !a.Blocked {
		want := ldlm.Wanted{Res: res, Modes: Serving(a.Desc.Mode), Bits: a.Desc.Bits, Extent: a.Desc.Extent}
		if had, ok := c.Match(&want); ok {
			c.adoption.settled(remote)
			c.cancels.push(0, remote)
			c.figs.adoptedTwice.Inc()
			had.HasLVB = decodeLVB(g.Lvb, new(wirepb.LVB), &had.LVB)
			return had, true
		}
	}
	c.life.RLock()
	var own ldlm.Handle
	if c.epoch == w.epoch && w.open && c.ctx.Err() == nil {
		own = c.ns.Prepare(&ldlm.Request{Res: res, Mode: a.Desc.Mode, Bits: a.Desc.Bits, Extent: a.Desc.Extent, Data: data})
		if own != 0 {
			c.ns.Settle(own, &a)
		}
	}
	c.life.RUnlock()
	recall, called, refused := c.adoption.arrived(remote, w.seq)
	switch {
	case own == 0, refused:
		if own != 0 {
			c.ns.Drop(own)
		}
		c.cancels.push(0, remote)
		return Grant{}, false
	case called:
		var fx ldlm.Effects
		if c.callBack(own, remote, &recall, &fx) != nil {
			return Grant{}, false
		}
	case a.Blocked:
		c.called.add(own, remote, c.now())
	}
	c.figs.adopted.Inc()
	out := Grant{Handle: own, Desc: a.Desc, Data: data}
	if len(g.Lvb) > 0 {
		out.HasLVB = decodeLVB(g.Lvb, new(wirepb.LVB), &out.LVB)
	}
	return out, true
}

// find is what a blocking AST without own handle does: it returns the lock's own handle; 0 and true when the lock may be on
// its way, then the recall is kept; false when this client does not have it.
func (a *adoption) find(c *Cache, res ldlm.ResID, remote ldlm.Handle, r ldlm.Recall) (ldlm.Handle, bool) {
	// Under mu from the search to the note, so that Adopt, which enters the lock and then looks for notes, misses none.
	a.mu.Lock()
	defer a.mu.Unlock()
	if own := c.remoteHandle(res, remote); own != 0 {
		return own, true
	}
	if a.head.next == &a.head {
		return 0, false
	}
	if len(a.early) >= earlyRecallsMax {
		a.refuse = a.seq
		return 0, false
	}
	e := a.early[remote]
	if e.upTo != 0 { // called back for more: a whole lock, named as no bits, stays a whole one
		if r.Bits != 0 && e.recall.Bits != 0 {
			r.Bits |= e.recall.Bits
		} else {
			r.Bits = 0
		}
		r.Discard = r.Discard || e.recall.Discard
	}
	a.early[remote] = earlyRecall{recall: r, upTo: a.seq}
	return 0, true
}

// arrived takes the recall that came before a lock, if there was one. refused: the lock must not be used.
func (a *adoption) arrived(remote ldlm.Handle, seq uint64) (r ldlm.Recall, called, refused bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, called := a.early[remote]
	delete(a.early, remote)
	return e.recall, called, seq <= a.refuse
}

// settled forgets the recall of a lock that is given back at once.
func (a *adoption) settled(remote ldlm.Handle) {
	a.mu.Lock()
	delete(a.early, remote)
	a.mu.Unlock()
}
