package ldlm

import (
	"slices"
	"time"

	"github.com/strakefs/strake/fs/status"
)

// Cancel gives locks back, granted or waiting, and grants what waited for them. Handles that are not the client's are
// counted and skipped: a cancel that crosses an eviction, or an AST, is normal. It returns how many were the client's.
func (ns *Namespace) Cancel(now time.Duration, client ClientID, handles []Handle, fx *Effects) int {
	n := 0
	for _, h := range handles {
		if ns.cancelOne(now, client, h, fx) {
			n++
		}
	}
	return n
}

func (ns *Namespace) cancelOne(now time.Duration, client ClientID, h Handle, fx *Effects) bool {
	sh := ns.shardByHandle(h)
	if sh == nil {
		return false
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.locks.find(h, client)
	if l == nil {
		sh.count.BadHandle++
		return false
	}
	s := step{sh: sh, ns: ns, now: now, fx: fx}
	res := l.res
	s.remove(l)
	s.reprocess(res)
	sh.tidyLocked(res)
	return true
}

// remove takes a lock out of all queues and forgets it.
func (s *step) remove(l *lock) {
	res := l.res
	switch l.state {
	case stateGranted, stateCancelling:
		if l.has(markConverting) {
			at := slices.Index(res.converting, l)
			res.converting = slices.Delete(res.converting, at, at+1)
		}
		res.drop(l)
		s.sh.count.Cancelled++
	case stateWaiting:
		res.waiting.remove(l, linkQueue)
		s.sh.waiting--
		if res.id.Type == TypeExtent {
			res.trees.waiting[l.mode.index()].remove(l)
		}
		if l.has(markPosix) {
			s.ns.waits.clear(l.handle, l.flockOwner())
		}
	}
	s.sh.freeLockLocked(l)
}

// Evict takes all locks of a client away, granted, waiting and flock, and grants what waited for them. No AST goes to
// the client. It returns how many there were. Precondition: no step of this client runs meanwhile, nor later.
func (ns *Namespace) Evict(now time.Duration, client ClientID, fx *Effects) int {
	total := 0
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		s := step{sh: sh, ns: ns, now: now, fx: fx}
		total += s.evict(client)
		sh.mu.Unlock()
	}
	return total
}

func (s *step) evict(client ClientID) int {
	n := 0
	again := s.sh.again[:0]
	mark := func(res *resource) {
		if !res.queued {
			res.queued = true
			again = append(again, res)
		}
	}
	if mine := s.sh.clients[client]; mine != nil {
		for l := mine.head; l != nil; l = mine.head {
			mark(l.res)
			s.remove(l)
			n++
		}
		delete(s.sh.clients, client)
	}
	for _, res := range s.sh.table.flocks {
		if dropped := res.flock.table.DropClient(client); dropped > 0 {
			n += dropped
			mark(res)
		}
	}
	for _, res := range again {
		s.reprocess(res)
		res.queued = false
		s.sh.tidyLocked(res)
	}
	clear(again)
	s.sh.again = again[:0]
	return n
}

// Told is called when a completion AST or a late reply is about to be sent: it returns the lock as it is granted now and
// whether it is called back already; then the AST says so itself and no blocking AST will follow. ok is false when the
// lock is gone or still waits.
func (ns *Namespace) Told(client ClientID, h Handle) (a Answer, ok bool) {
	sh := ns.shardByHandle(h)
	if sh == nil {
		return Answer{}, false
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.locks.find(h, client)
	if l == nil || l.state != stateGranted {
		return Answer{}, false
	}
	l.marks &^= markUntold
	return Answer{Remote: h, Desc: l.desc(), Blocked: l.has(markBlocked),
		Recall: Recall{Bits: l.called, Discard: l.has(markDiscard)}}, true
}

// DenyWaiting denies all that waits for a resource, flock requests included: its object is gone. It returns how many.
func (ns *Namespace) DenyWaiting(now time.Duration, id ResID, k status.Kind, fx *Effects) int {
	sh, hash := ns.shardOf(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	res := sh.table.find(id, hash)
	if res == nil {
		return 0
	}
	s := step{sh: sh, ns: ns, now: now, fx: fx}
	n := 0
	for l := res.waiting.head; l != nil; l = res.waiting.head {
		fx.add(EffectDeny, l).Status = k
		sh.count.Denied++
		s.remove(l)
		n++
	}
	s.reprocess(res)
	sh.tidyLocked(res)
	return n
}

// reprocess grants what can be granted after a lock of the resource went or became weaker: converters first, then
// the waiting queue in order, nothing ahead of a conflicting lock that still waits.
//
// A first pass decides with the extents as they were asked, a second one lets the granted ones grow: growth never
// covers what a waiting lock asked for and could still get, so it changes no decision.
func (s *step) reprocess(res *resource) {
	if res.id.Type == TypeFlock {
		s.reprocessFlock(res)
		return
	}
	s.reprocessConverting(res)
	passed, done := s.sh.passed[:0], false
	if res.id.Type == TypeExtent {
		passed, done = s.reprocessHead(res, passed)
	}
	if !done {
		passed = s.reprocessAll(res, passed)
	}
	for _, l := range passed {
		res.drop(l)
		s.takeTryBits(res, l)
		s.grow(l)
		res.add(l)
		s.fx.add(EffectCompletion, l)
	}
	clear(passed)
	s.sh.passed = passed[:0]
}

// reprocessHead grants from the front of an extent resource's queue as long as it can. It reports whether that was all:
// the queue is empty, or its first lock keeps out all others, which is how a queue for whole objects looks. Then
// the walk over all of it is spared.
func (s *step) reprocessHead(res *resource, passed []*lock) ([]*lock, bool) {
	for l := res.waiting.head; l != nil; l = res.waiting.head {
		if s.conflictsGranted(res, l) || s.conflictsConverting(res, l) {
			if s.fresh {
				s.callBack(res, l)
			}
			return passed, res.wall(l)
		}
		res.trees.waiting[l.mode.index()].remove(l)
		passed = s.pass(res, l, passed)
	}
	return passed, true
}

// wall reports whether a waiting lock keeps out all that wait behind it, and is kept out by all that keeps them out.
func (r *resource) wall(l *lock) bool {
	if l.ext != whole() || l.mode == GROUP || r.own > 0 {
		return false
	}
	for m := range r.trees.waiting {
		if mode := Mode(1 << m); r.trees.waiting[m].root != nil && (Compatible(l.mode, mode) || !l.mode.covers(mode)) {
			return false
		}
	}
	return true
}

// reprocessAll walks the whole queue and fills the index of waiting locks with those it passes over.
func (s *step) reprocessAll(res *resource, passed []*lock) []*lock {
	res.resetWaitIndex()
	for l := res.waiting.head; l != nil; {
		next := l.links[linkQueue].next
		if s.conflictsGranted(res, l) || s.conflictsWaiting(res, l) || s.conflictsConverting(res, l) {
			res.waitIndex(l)
			if s.fresh {
				s.callBack(res, l)
			}
		} else {
			passed = s.pass(res, l, passed)
		}
		l = next
	}
	return passed
}

// pass grants a waiting lock as it was asked for.
func (s *step) pass(res *resource, l *lock, passed []*lock) []*lock {
	res.waiting.remove(l, linkQueue)
	s.sh.waiting--
	l.marks |= markUntold
	s.grant(l)
	s.fresh = true
	return append(passed, l)
}
