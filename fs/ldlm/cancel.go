package ldlm

import (
	"slices"
	"time"
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
func (ns *Namespace) Told(client ClientID, h Handle) (d Desc, cancel Bits, blocked, ok bool) {
	sh := ns.shardByHandle(h)
	if sh == nil {
		return Desc{}, 0, false, false
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.locks.find(h, client)
	if l == nil || l.state != stateGranted {
		return Desc{}, 0, false, false
	}
	l.marks &^= markUntold
	return l.desc(), l.called, l.has(markBlocked), true
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
	res.resetWaitIndex()
	passed := s.sh.passed[:0]
	for l := res.waiting.head; l != nil; {
		next := l.links[linkQueue].next
		if s.conflictsGranted(res, l) || s.conflictsWaiting(res, l) || s.conflictsConverting(res, l) {
			res.waitIndex(l)
			if s.fresh {
				s.callBack(res, l)
			}
		} else {
			res.waiting.remove(l, linkQueue)
			l.marks |= markUntold
			s.grant(l)
			s.fresh = true
			passed = append(passed, l)
		}
		l = next
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
