package ldlm

import "time"

// stands reports whether a held lock keeps the asker a out, bits and bytes aside. While a lock is asked for, its owner
// is the client that caused the request and its pid the initiating MDT.
func (a *lock) stands(h *lock) bool {
	switch {
	case h.handle == a.handle, Compatible(h.mode, a.mode), a.own(h):
		return false
	case h.mode == GROUP && a.mode == GROUP:
		return h.owner != a.owner
	case h.mode == COS && a.mode != GROUP:
		return a.owner == uint64(Local) || a.owner != h.owner
	case h.mode == TXN:
		return a.pid == 0 || uint64(a.pid) != h.owner
	}
	return true
}

// own reports whether one of two locks is a client's and the other one of an operation of that client (Own).
func (a *lock) own(b *lock) bool {
	return b.flags&Own != 0 && a.client != Local && b.owner == uint64(a.client) ||
		a.flags&Own != 0 && b.client != Local && a.owner == uint64(b.client)
}

// mayOwn reports whether own may hold between a and another lock of the resource: then an index by mode says too much.
func (r *resource) mayOwn(a *lock) bool { return a.flags&Own != 0 || r.own > 0 && a.client != Local }

// conflictsGranted reports whether a granted lock keeps the asker out.
func (s *step) conflictsGranted(res *resource, a *lock) bool {
	for set := a.mode.conflicts(); set != 0; {
		var m Mode
		m, set = set.lowest()
		q := &res.granted[m.index()]
		if q.n == 0 {
			continue
		}
		if res.id.Type == TypeExtent {
			if m == GROUP && !a.stands(q.head) && !res.mayOwn(a) { // all of one group
				continue
			}
			n := res.trees.granted[m.index()].anyOverlap(a.ext)
			if n == nil || !a.stands(n) && (n.handle == a.handle || res.mayOwn(a)) && !anyStands(&res.trees.granted[m.index()], a) {
				continue
			}
			return true
		}
		if res.counted && res.bits.held(m)&a.bits == 0 {
			continue
		}
		for h := q.head; h != nil; h = h.links[linkQueue].next {
			if h.bits&a.bits != 0 && a.stands(h) {
				return true
			}
		}
	}
	return false
}

// anyStands reports whether a lock of a tree that overlaps the asker keeps it out.
func anyStands(t *tree, a *lock) bool {
	found := false
	t.overlapping(a.ext, func(h *lock) bool {
		found = a.stands(h)
		return !found
	})
	return found
}

// conflictsWaiting reports whether a lock in the index of waiting ones keeps l out. For GROUP only other groups count:
// it goes ahead of all others.
func (s *step) conflictsWaiting(res *resource, l *lock) bool {
	if res.waiting.n == 0 {
		return false
	}
	if l.mode == GROUP {
		for w := res.waiting.head; w != nil && w.mode == GROUP && w != l; w = w.links[linkQueue].next {
			if w.owner != l.owner && (res.id.Type == TypeExtent || w.bits&l.bits != 0) {
				return true
			}
		}
		return false
	}
	for set := l.mode.conflicts(); set != 0; {
		var m Mode
		m, set = set.lowest()
		if res.id.Type == TypeExtent {
			t := &res.trees.waiting[m.index()]
			if t.root != nil && t.anyOverlap(l.ext) != nil && (!res.mayOwn(l) || anyStands(t, l)) {
				return true
			}
		} else if res.waitBits[m.index()]&l.bits != 0 && (!res.mayOwn(l) || anyAhead(res, l)) {
			return true
		}
	}
	return false
}

// anyAhead reports whether a lock that waits before l, or any when l does not wait, keeps it out.
func anyAhead(res *resource, l *lock) bool {
	for w := res.waiting.head; w != nil && w != l; w = w.links[linkQueue].next {
		if w.bits&l.bits != 0 && l.stands(w) {
			return true
		}
	}
	return false
}

// conflictsConverting reports whether a lock that waits for a stronger mode keeps l out: converters go first.
func (s *step) conflictsConverting(res *resource, l *lock) bool {
	for _, c := range res.converting {
		if c.handle != l.handle && !Compatible(c.newMode, l.mode) && !l.own(c) && (res.id.Type == TypeExtent && c.ext.Overlaps(l.ext) ||
			res.id.Type != TypeExtent && c.newBits&l.bits != 0) {
			return true
		}
	}
	return false
}

// callBack makes a blocking AST for every granted lock that keeps the asker out and was not called back yet.
func (s *step) callBack(res *resource, a *lock) {
	for set := a.mode.conflicts(); set != 0; {
		var m Mode
		m, set = set.lowest()
		q := &res.granted[m.index()]
		if q.n == 0 {
			continue
		}
		if res.id.Type == TypeExtent {
			res.trees.granted[m.index()].overlapping(a.ext, func(h *lock) bool {
				if !h.has(markBlocked) && a.stands(h) {
					s.block(h, a, 0)
				}
				return true
			})
			continue
		}
		for h := q.head; h != nil && !h.has(markBlocked); {
			next := h.links[linkQueue].next
			if common := h.bits & a.bits; common != 0 && a.stands(h) {
				s.block(h, a, common)
			}
			h = next
		}
	}
}

// block calls a granted lock back, for by or, with nil, to free memory.
func (s *step) block(h, by *lock, bits Bits) {
	s.sh.unlistLocked(h)
	h.marks |= markBlocked
	h.called = 0
	if h.res.id.Type == TypeInodeBits {
		h.called = bits
	}
	q := &h.res.granted[h.mode.index()]
	q.remove(h, linkQueue)
	q.pushBack(h, linkQueue)
	s.sh.count.Blocking++
	if h.client != Local {
		deadline := never // an application that holds a group lock gives it up when it likes
		if h.mode != GROUP {
			deadline = s.now + time.Duration(s.ns.lockTimeout.Load())
		}
		s.sh.listCalledLocked(h, deadline)
	}
	if by != nil && by.flags&DiscardData != 0 {
		h.marks |= markDiscard
	}
	if h.has(markUntold) {
		return // Told says so
	}
	e := s.fx.add(EffectBlocking, h)
	e.Desc, e.Cancel, e.Discard = Desc{}, h.called, h.has(markDiscard)
	if by != nil {
		e.Desc = by.desc()
	}
}

// contended counts the real conflicts that an enqueue met: those whose requested ranges overlap. Whole-object PR locks
// (glimpses) do not count on either side.
func (s *step) contended(res *resource, a *lock) {
	if res.id.Type == TypeExtent && a.mode == PR && a.req == whole() {
		return
	}
	n := uint32(0)
	if res.id.Type != TypeExtent {
		n = 1
	} else {
		for set := a.mode.conflicts(); set != 0; {
			var m Mode
			m, set = set.lowest()
			count := func(h *lock) bool {
				if a.stands(h) && h.req.Overlaps(a.req) && (m != PR || h.req != whole()) {
					n++
				}
				return n < contendedScan
			}
			res.trees.granted[m.index()].overlapping(a.req, count)
			res.trees.waiting[m.index()].overlapping(a.req, count)
		}
	}
	if n == 0 {
		return
	}
	sum := res.contention.count(s.now, time.Duration(s.ns.contentionWindow.Load()), n)
	if int64(sum) < s.ns.contendedLocks.Load() {
		return
	}
	if s.now >= res.contention.until {
		s.sh.count.Contended++
	}
	res.contention.until = s.now + time.Duration(s.ns.contentionHold.Load())
}

// contendedScan bounds how many conflicts one enqueue counts: more say nothing more.
const contendedScan = 64
