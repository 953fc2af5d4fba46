package ldlm

import (
	"time"

	"github.com/strakefs/strake/fs/status"
)

// flockState is what a resource of TypeFlock holds.
type flockState struct {
	table    FlockTable
	blockers []FlockOwner // scratch
	at       int          // place in the shard's list of flock resources
}

// maxFlockRanges bounds the ranges held on one file: beyond it a client's every lock call would keep the shard's mutex for
// more than about a millisecond.
const maxFlockRanges = 1 << 16

// FlockOp says what a flock request wants.
type FlockOp uint8

// The operations.
const (
	FlockShared FlockOp = iota
	FlockExclusive
	FlockUnlock
)

// FlockRequest asks for, or gives up, application locks.
type FlockRequest struct {
	Res    ResID
	Op     FlockOp
	Range  FlockRange // Write is taken from Op; BSD locks take the whole file whatever it says
	Wait   bool       // F_SETLKW, flock without LOCK_NB
	Remote Handle
	Data   any
}

// FlockReply is the answer at once.
type FlockReply struct {
	Outcome Outcome // Granted, Waiting or Denied
	Status  status.Kind
	Handle  Handle     // Waiting: name it to Cancel when the waiter is interrupted
	Holder  FlockRange // Denied with Again: who is in the way
}

func (r *FlockRequest) check() status.Kind {
	if r.Res.Type != TypeFlock || r.Op > FlockUnlock || r.Range.Owner.Class > BSD {
		return status.Invalid
	}
	r.Range.Write = r.Op == FlockExclusive
	if r.Range.Owner.Class == BSD {
		r.Range.Extent = whole()
	}
	if r.Range.Empty() {
		return status.Invalid
	}
	return status.OK
}

// Flock does one flock or fcntl request. Only held ranges are in the way of a new one, not waiting requests: an owner must
// be able to grow or change what it has. Waiting requests of one file are granted first come, first served.
//
// Statuses of a denial: Invalid, Again (it conflicts and does not wait), Deadlock (a Posix request that would wait for
// its own owner), NoMemory (65,536 ranges are held on the file, or the shard's table is full).
func (ns *Namespace) Flock(now time.Duration, r *FlockRequest, fx *Effects) FlockReply {
	if k := r.check(); k != status.OK {
		return FlockReply{Outcome: Denied, Status: k}
	}
	sh, hash := ns.shardOf(r.Res)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := step{sh: sh, ns: ns, now: now, fx: fx}
	sh.count.Enqueued++
	res := sh.table.findOrAdd(r.Res, hash)
	reply := s.flock(res, r)
	sh.tidyLocked(res)
	return reply
}

// TestFlock returns a range that would keep r out (F_GETLK).
func (ns *Namespace) TestFlock(r *FlockRequest) (FlockRange, bool) {
	if r.check() != status.OK {
		return FlockRange{}, false
	}
	sh, hash := ns.shardOf(r.Res)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	res := sh.table.find(r.Res, hash)
	if res == nil {
		return FlockRange{}, false
	}
	return res.flock.table.Conflict(&r.Range)
}

func (s *step) flock(res *resource, r *FlockRequest) FlockReply {
	t := &res.flock.table
	if len(t.ranges) >= maxFlockRanges && r.Op != FlockUnlock {
		s.sh.count.Denied++
		return FlockReply{Outcome: Denied, Status: status.NoMemory}
	}
	if r.Op == FlockUnlock || r.Range.Owner.Class == BSD && !heldAs(t, &r.Range) {
		if t.Clear(&r.Range) {
			s.sh.count.Cancelled++
			s.reprocessFlock(res)
		}
		if r.Op == FlockUnlock {
			return FlockReply{Outcome: Granted}
		}
	}
	holder, conflict := t.Conflict(&r.Range)
	switch {
	case !conflict:
		t.Set(&r.Range)
		s.sh.count.Granted++
		s.reprocessFlock(res) // what was exclusive may be shared now
		return FlockReply{Outcome: Granted}
	case !r.Wait:
		s.sh.count.Denied++
		return FlockReply{Outcome: Denied, Status: status.Again, Holder: holder}
	}
	l := s.sh.newLockLocked(res, r.Range.Owner.Client)
	if l == nil {
		return FlockReply{Outcome: Denied, Status: status.NoMemory}
	}
	l.fillFlock(r)
	if l.has(markPosix) {
		res.flock.blockers = t.blockers(&r.Range, res.flock.blockers[:0])
		if !s.ns.waits.set(l.handle, r.Range.Owner, res.flock.blockers) {
			s.sh.count.Deadlocks++
			s.sh.freeLockLocked(l)
			return FlockReply{Outcome: Denied, Status: status.Deadlock, Holder: holder}
		}
	}
	res.wait(l)
	s.sh.waiting++
	s.sh.count.Waited++
	return FlockReply{Outcome: Waiting, Handle: l.handle}
}

// heldAs reports whether a BSD owner holds its lock already in the kind that it asks for.
func heldAs(t *FlockTable, r *FlockRange) bool {
	for i := range t.ranges {
		if t.ranges[i].Owner == r.Owner {
			return t.ranges[i].Write == r.Write
		}
	}
	return false
}

func (l *lock) fillFlock(r *FlockRequest) {
	l.remote, l.data = r.Remote, r.Data
	l.ext, l.req = r.Range.Extent, r.Range.Extent
	l.owner, l.pid = r.Range.Owner.Owner, r.Range.PID
	l.bits = Bits(r.Range.Owner.Class)
	l.mode = PR
	if r.Range.Write {
		l.mode = PW
	}
	if r.Range.Owner.Class == Posix {
		l.marks |= markPosix
	}
}

func (l *lock) flockOwner() FlockOwner {
	return FlockOwner{Client: l.client, Owner: l.owner, Class: FlockClass(l.bits)}
}

func (l *lock) flockRange() FlockRange {
	return FlockRange{Extent: l.ext, Owner: l.flockOwner(), PID: l.pid, Write: l.mode == PW}
}

// reprocessFlock grants waiting requests that nothing held keeps out any more, in order, until a pass grants none (a
// grant can weaken what its owner had); then it brings the wait-for graph up to date and denies what has become a
// circle.
func (s *step) reprocessFlock(res *resource) {
	t := &res.flock.table
	for again := true; again; {
		again = false
		for l := res.waiting.head; l != nil; {
			next := l.links[linkQueue].next
			r := l.flockRange()
			if _, conflict := t.Conflict(&r); !conflict {
				t.Set(&r)
				s.sh.count.Granted++
				s.endFlockWait(l, EffectCompletion)
				again = true
			}
			l = next
		}
	}
	for l := res.waiting.head; l != nil; {
		next := l.links[linkQueue].next
		if l.has(markPosix) {
			r := l.flockRange()
			res.flock.blockers = t.blockers(&r, res.flock.blockers[:0])
			if !s.ns.waits.set(l.handle, r.Owner, res.flock.blockers) {
				s.sh.count.Deadlocks++
				s.endFlockWait(l, EffectDeadlock)
			}
		}
		l = next
	}
}

// endFlockWait makes the effect that ends a wait and forgets the request.
func (s *step) endFlockWait(l *lock, k EffectKind) {
	e := s.fx.add(k, l)
	e.Desc.Bits = 0 // the class, not inode bits
	l.res.waiting.remove(l, linkQueue)
	s.sh.waiting--
	if l.has(markPosix) {
		s.ns.waits.clear(l.handle, l.flockOwner())
	}
	s.sh.freeLockLocked(l)
}

// FlockRanges appends the application locks of a file to to.
func (ns *Namespace) FlockRanges(id ResID, to []FlockRange) []FlockRange {
	sh, hash := ns.shardOf(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if res := sh.table.find(id, hash); res != nil && res.flock != nil {
		to = append(to, res.flock.table.ranges...)
	}
	return to
}
