package ldlm

import (
	"time"

	"github.com/strakefs/strake/fs/extent"
)

// This file is the client's half. A mirror's lock is made before its enqueue is sent, so that a completion or blocking
// AST which overtakes the reply finds it. Whoever uses a lock pins it; a lock nobody pins is in the LRU.

// Prepare makes a lock that is about to be asked for, pinned once by the caller, and returns its handle, which the
// request carries as Remote. The request must pass the checks of Enqueue; otherwise, and when the table is full, Prepare
// returns 0. Precondition: on a mirror.
func (ns *Namespace) Prepare(r *Request) Handle {
	if !ns.mirror || r.check() != 0 {
		return 0
	}
	sh, hash := ns.shardOf(r.Res)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	res := sh.table.findOrAdd(r.Res, hash)
	l := sh.newLockLocked(res, Local)
	if l == nil {
		sh.tidyLocked(res)
		return 0
	}
	l.fill(r)
	l.pins = 1
	sh.count.Enqueued++
	res.wait(l)
	sh.waiting++
	return l.handle
}

// Recall is what a blocking AST asks for.
type Recall struct {
	Bits    Bits // to give up; 0: the whole lock
	Discard bool // what the lock covers need not be written back
}

// Answer is what the server granted, as a reply or completion AST tells it.
type Answer struct {
	Remote Handle // the server's handle
	Desc   Desc
	// Blocked: the lock is called back already, as Recall says.
	Blocked bool
	Recall  Recall
}

// Settle enters what the server granted. A second answer for the same lock changes nothing. It returns false when the
// lock is gone. The pin of Prepare stays.
func (ns *Namespace) Settle(h Handle, a *Answer) bool {
	sh, l := ns.lockMirror(h)
	if l == nil {
		return false
	}
	defer sh.mu.Unlock()
	d := &a.Desc
	if a.Remote != 0 {
		l.remote = a.Remote
	}
	if a.Blocked {
		l.callBack(&a.Recall)
	}
	if l.state != stateWaiting {
		return true
	}
	res := l.res
	res.waiting.remove(l, linkQueue)
	sh.waiting--
	if res.id.Type == TypeExtent {
		res.trees.waiting[l.mode.index()].remove(l)
		l.ext = d.Extent
	} else if d.Bits != 0 {
		l.bits = d.Bits
	}
	if d.Mode.Valid() {
		l.mode = d.Mode
	}
	l.tryBits = 0
	l.state = stateGranted
	res.add(l)
	sh.count.Granted++
	return true
}

// lockMirror finds a lock and returns with its shard's mu held; a nil lock, and nothing held, when there is none.
func (ns *Namespace) lockMirror(h Handle) (*shard, *lock) {
	sh := ns.shardByHandle(h)
	if sh == nil || !ns.mirror {
		return nil, nil
	}
	sh.mu.Lock()
	l := sh.locks.find(h, Local)
	if l == nil {
		sh.mu.Unlock()
		return nil, nil
	}
	return sh, l
}

// Drop forgets a lock whatever its state: the request was denied, the cancel has been sent, or the client was evicted.
func (ns *Namespace) Drop(h Handle) bool {
	sh, l := ns.lockMirror(h)
	if l == nil {
		return false
	}
	defer sh.mu.Unlock()
	res := l.res
	s := step{sh: sh, ns: ns}
	s.remove(l)
	sh.tidyLocked(res)
	return true
}

// Wanted is what Match looks for.
type Wanted struct {
	Res    ResID
	Modes  Mode // a set: any of them will do
	Bits   Bits // all of them
	Extent extent.Extent
	GID    uint64
	// Blocked also takes a lock that was called back and is still used: for who holds it pinned already, such as a page
	// fault under a running read.
	Blocked bool
}

// Match is a lock found.
type Match struct {
	Handle Handle
	Desc   Desc
	Data   any
}

// Match finds a granted lock that covers what is wanted and pins it; Unpin gives it back. It takes one mutex and
// allocates nothing.
func (ns *Namespace) Match(w *Wanted) (Match, bool) {
	sh, hash := ns.shardOf(w.Res)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.matchLocked(w, hash)
	if l == nil {
		sh.count.Missed++
		return Match{}, false
	}
	sh.unlistLocked(l)
	l.pins++
	sh.count.Matched++
	return Match{Handle: l.handle, Desc: l.desc(), Data: l.data}, true
}

func (sh *shard) matchLocked(w *Wanted, hash uint64) *lock {
	res := sh.table.find(w.Res, hash)
	if res == nil {
		return nil
	}
	for set := w.Modes & allModes; set != 0; {
		var m Mode
		m, set = set.lowest()
		q := &res.granted[m.index()]
		if q.n == 0 {
			continue
		}
		if res.id.Type == TypeExtent {
			if l := res.trees.granted[m.index()].containing(w.Extent, func(l *lock) bool { return l.fits(w) }); l != nil {
				return l
			}
			continue
		}
		for l := q.head; l != nil; l = l.links[linkQueue].next {
			if l.bits&w.Bits == w.Bits && l.fits(w) {
				return l
			}
		}
	}
	return nil
}

// fits reports whether a lock that covers what is wanted may be used for it. While some of its bits are on their way
// back, the others serve on.
func (l *lock) fits(w *Wanted) bool {
	switch {
	case l.state != stateGranted, l.mode == GROUP && l.owner != w.GID:
		return false
	case l.has(markReturning):
		return w.Bits != 0 && w.Bits&l.called == 0 && w.Bits&^l.newBits == 0
	}
	return !l.has(markBlocked) || w.Blocked && l.pins > 0
}

// Pin pins a lock by its handle once more; false when it is gone or being given back.
func (ns *Namespace) Pin(h Handle) bool {
	sh, l := ns.lockMirror(h)
	if l == nil {
		return false
	}
	defer sh.mu.Unlock()
	if l.state == stateCancelling || l.has(markReturning) {
		return false
	}
	sh.unlistLocked(l)
	l.pins++
	return true
}

// Unpin gives one pin back. The last one puts the lock into the LRU, or makes the effect that gives it back when it was
// called back meanwhile. GROUP locks are given back at once.
func (ns *Namespace) Unpin(now time.Duration, h Handle, fx *Effects) {
	sh, l := ns.lockMirror(h)
	if l == nil {
		return
	}
	defer sh.mu.Unlock()
	if l.pins == 0 {
		panic("ldlm: unpin of lock " + h.String() + " that is not pinned")
	}
	l.pins--
	sh.restLocked(l, now, fx)
}

// restLocked finds the place of a lock that may have lost its last user.
func (sh *shard) restLocked(l *lock, now time.Duration, fx *Effects) {
	switch {
	case l.pins > 0 || l.state != stateGranted || l.has(markListed):
	case l.has(markReturning):
		// The answer to the conversion brings it back here.
	case l.has(markBlocked) || l.mode == GROUP:
		sh.giveBackLocked(l, fx)
	default:
		sh.listUnusedLocked(l, now)
	}
}

// giveBackLocked makes the effect that gives a lock, or the bits called back, to the server.
func (sh *shard) giveBackLocked(l *lock, fx *Effects) {
	if keep := l.bits &^ l.called; l.res.id.Type == TypeInodeBits && l.has(markBlocked) && keep != 0 {
		l.marks |= markReturning
		l.newBits = keep
		fx.add(EffectConvert, l).Cancel = l.bits & l.called
		return
	}
	l.state = stateCancelling
	fx.add(EffectCancel, l).Discard = l.has(markDiscard)
}

// allCalled in called means the whole lock, whatever bits it has.
const allCalled = ^Bits(0)

// callBack adds what a mirror's lock is asked for.
func (l *lock) callBack(r *Recall) {
	bits := r.Bits
	if r.Discard {
		l.marks |= markDiscard
	}
	if bits == 0 {
		bits = allCalled
	}
	l.marks |= markBlocked
	l.called |= bits
}

// CallBack enters a blocking AST. If nobody uses the lock the effect that gives it back comes at once, otherwise with the last Unpin. It returns false when the lock is gone or on its way
// already: the cancel crossed the AST.
func (ns *Namespace) CallBack(now time.Duration, h Handle, r *Recall, fx *Effects) bool {
	sh, l := ns.lockMirror(h)
	if l == nil {
		return false
	}
	defer sh.mu.Unlock()
	if l.state == stateCancelling {
		return false
	}
	sh.unlistLocked(l)
	l.callBack(r)
	sh.count.Blocking++
	if l.state == stateGranted { // matches find those not called back first
		q := &l.res.granted[l.mode.index()]
		q.remove(l, linkQueue)
		q.pushBack(l, linkQueue)
	}
	sh.restLocked(l, now, fx)
	return true
}

// Converted enters the server's agreement to a conversion: d is the lock as it is now. The lock counts as not called
// back unless the server asked for more meanwhile.
func (ns *Namespace) Converted(now time.Duration, h Handle, d Desc, fx *Effects) bool {
	sh, l := ns.lockMirror(h)
	if l == nil {
		return false
	}
	defer sh.mu.Unlock()
	if l.state != stateGranted || !d.Mode.Valid() {
		return false
	}
	s := step{sh: sh, ns: ns, now: now, fx: fx}
	l.marks &^= markReturning
	sh.unlistLocked(l)
	if l.called != allCalled {
		if l.called &= d.Bits; l.called == 0 {
			l.marks &^= markBlocked
		}
	}
	bits := l.bits
	if l.res.id.Type == TypeInodeBits && d.Bits != 0 {
		bits = d.Bits
	}
	s.become(l, d.Mode, bits)
	sh.count.Converted++
	sh.restLocked(l, now, fx)
	return true
}
