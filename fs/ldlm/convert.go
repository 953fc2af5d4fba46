package ldlm

import (
	"time"

	"github.com/strakefs/strake/fs/status"
)

// Conversion asks to change a granted lock.
type Conversion struct {
	Client ClientID
	Handle Handle
	// Mode is the new mode; 0 keeps it. COS and TXN are for Local locks, which Tag then marks.
	Mode Mode
	// Bits are the new bits; 0 keeps them. An extent does not change.
	Bits Bits
	// Tag is the client that caused a COS lock, or the initiating MDT's number plus 1 of a TXN lock.
	Tag uint64
}

// Convert changes a granted lock. To a weaker mode or fewer bits: at once, what waited for the difference is granted, and
// the lock counts as not called back. To a stronger mode or more bits: at once if nothing granted conflicts, otherwise
// it waits, still granted as it was and ahead of the waiting queue; the completion tells.
//
// Statuses of a denial: BadHandle, Invalid, Deadlock (it would wait for a lock that waits to convert itself: give the
// lock back and ask anew), Busy (it waits already).
func (ns *Namespace) Convert(now time.Duration, c *Conversion, fx *Effects) Reply {
	sh := ns.shardByHandle(c.Handle)
	if sh == nil {
		return Reply{Outcome: Denied, Status: status.BadHandle}
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.locks.find(c.Handle, c.Client)
	if l == nil {
		sh.count.BadHandle++
		return Reply{Outcome: Denied, Status: status.BadHandle}
	}
	mode, bits, k := l.target(c)
	if k != status.OK {
		return Reply{Outcome: Denied, Status: k}
	}
	s := step{sh: sh, ns: ns, now: now, fx: fx}
	if l.mode.covers(mode) && bits&^l.bits == 0 {
		s.become(l, mode, bits)
		if mode&(COS|TXN) != 0 {
			l.owner = c.Tag
			l.disown() // it says now whose change is not on disk yet, nothing of who asks
		}
		if l.has(markBlocked) {
			s.sh.unlistLocked(l)
			l.marks &^= markBlocked | markDiscard
			l.called = 0
			l.res.drop(l) // to the front: called-back ones stand behind
			l.res.add(l)
			if l.client != Local {
				s.sh.listUnusedLocked(l, now)
			}
		}
		sh.count.Converted++
		s.fresh = true
		s.reprocess(l.res)
		return Reply{Outcome: Granted, Handle: l.handle, Desc: l.desc()}
	}
	return s.strengthen(l, mode, bits)
}

// target checks a conversion and returns what the lock is to become.
func (l *lock) target(c *Conversion) (Mode, Bits, status.Kind) {
	mode, bits := c.Mode, c.Bits
	if mode == 0 {
		mode = l.mode
	}
	if bits == 0 {
		bits = l.bits
	}
	switch {
	case l.state != stateGranted, l.res.id.Type == TypeFlock:
		return 0, 0, status.Invalid
	case l.has(markConverting):
		return 0, 0, status.Busy
	case !mode.Valid(), (mode == GROUP || l.mode == GROUP) && mode != l.mode:
		return 0, 0, status.Invalid
	case mode&(COS|TXN) != 0 && (l.client != Local || l.res.id.Type != TypeInodeBits):
		return 0, 0, status.Invalid
	case bits&^Full != 0, l.res.id.Type != TypeInodeBits && bits != l.bits:
		return 0, 0, status.Invalid
	}
	return mode, bits, status.OK
}

// become changes a granted lock's mode and bits.
func (s *step) become(l *lock, mode Mode, bits Bits) {
	l.res.drop(l)
	l.mode, l.bits = mode, bits
	l.res.add(l)
}

// wanting is a converting lock as it wants to be.
func (l *lock) wanting(mode Mode, bits Bits) lock {
	w := *l
	w.mode, w.bits = mode, bits
	return w
}

func (s *step) strengthen(l *lock, mode Mode, bits Bits) Reply {
	want := l.wanting(mode, bits)
	l.newMode, l.newBits = mode, bits
	if !s.conflictsGranted(l.res, &want) && !s.conflictsConverting(l.res, &want) {
		s.become(l, mode, bits)
		s.sh.count.Converted++
		s.fresh = true
		s.reprocess(l.res) // those that wait may have to call it back now
		return Reply{Outcome: Granted, Handle: l.handle, Desc: l.desc()}
	}
	// A converter never waits for an older one, so converters do not wait for each other in a circle.
	for _, c := range l.res.converting {
		held := c.wanting(c.mode, c.bits)
		if want.stands(&held) && (l.res.id.Type == TypeExtent && held.ext.Overlaps(want.ext) ||
			l.res.id.Type != TypeExtent && held.bits&want.bits != 0) {
			s.sh.count.Deadlocks++
			return Reply{Outcome: Denied, Status: status.Deadlock}
		}
	}
	l.marks |= markConverting
	l.res.converting = append(l.res.converting, l)
	s.callBack(l.res, &want)
	return Reply{Outcome: Waiting, Handle: l.handle}
}

// reprocessConverting lets converters become what they want, first come, first served.
func (s *step) reprocessConverting(res *resource) {
	kept := res.converting[:0]
	for _, l := range res.converting {
		want := l.wanting(l.newMode, l.newBits)
		if s.conflictsGranted(res, &want) || keptConflict(res, kept, &want) {
			s.callBack(res, &want)
			kept = append(kept, l)
			continue
		}
		l.marks &^= markConverting
		l.marks |= markUntold
		s.become(l, l.newMode, l.newBits)
		s.sh.count.Converted++
		s.fresh = true
		s.fx.add(EffectCompletion, l)
	}
	clear(res.converting[len(kept):])
	res.converting = kept
}

// keptConflict reports whether an older converter that still waits wants what conflicts with want.
func keptConflict(res *resource, kept []*lock, want *lock) bool {
	for _, c := range kept {
		if !Compatible(c.newMode, want.mode) && !want.own(c) && (res.id.Type == TypeExtent && c.ext.Overlaps(want.ext) ||
			res.id.Type != TypeExtent && c.newBits&want.bits != 0) {
			return true
		}
	}
	return false
}
