package ldlm

import (
	"time"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/status"
)

// Request asks for a lock. Flock requests have their own type.
type Request struct {
	Res    ResID
	Mode   Mode
	Client ClientID // who asks; Local for the server's own
	Remote Handle   // the asker's handle of the lock
	// Extent is what is asked of a TypeExtent resource; a GROUP lock gets the whole object whatever it says.
	Extent extent.Extent
	// Bits must be granted, TryBits are granted where free: TypeInodeBits. With TryBits alone the request never waits.
	Bits, TryBits Bits
	// GID is the group of a GROUP lock.
	GID uint64
	// Cause is, for the server's own requests, the client that caused it: a COS lock held for the same one is no
	// obstacle. 0 means Client.
	Cause ClientID
	// Initiator numbers the MDT where the operation began, plus 1; a TXN lock held by the same one is no obstacle.
	Initiator uint32
	Flags     Flags
	// KnownSize is the size in the LVB: with Glimpse, only holders of write locks that reach past it are asked.
	KnownSize uint64
	// Cancels are locks of Client to cancel first (early lock cancel).
	Cancels []Handle
	// Data is the caller's own; effects bring it back.
	Data any
}

// Outcome is what became of a request.
type Outcome uint8

// The outcomes.
const (
	// Denied: no lock; Status says why.
	Denied Outcome = iota
	// Granted: the reply holds the lock.
	Granted
	// Waiting: an effect will tell (completion, deny or deadlock).
	Waiting
	// Asking: no lock; glimpse effects were made. When their answers are in the LVB, call GlimpseAgain.
	Asking
	// LVBOnly: no lock, and nobody to ask: the LVB is the answer.
	LVBOnly
)

var outcomeNames = [...]string{"denied", "granted", "waiting", "asking", "lvb"}

// String is the outcome in one lower-case word.
func (o Outcome) String() string { return outcomeNames[o] }

// Reply is the answer to a request at once.
type Reply struct {
	Outcome Outcome
	Status  status.Kind // Denied
	Handle  Handle      // Granted, Waiting
	Desc    Desc        // Granted
	// Contended: many want this resource's bytes; the client should read and write without a lock.
	Contended bool
}

// whole is all bytes of an object.
func whole() extent.Extent { return extent.Extent{End: extent.EOF} }

// check refuses what no request may say, before anything is made for it.
func (r *Request) check() status.Kind {
	switch {
	case !r.Mode.Valid(), r.Mode&(COS|TXN) != 0, !r.Res.valid(), r.Res.Type == TypeFlock:
		return status.Invalid
	case r.Res.Type == TypeExtent && r.Mode != GROUP && r.Extent.Empty():
		return status.Invalid
	case (r.Bits|r.TryBits)&^Full != 0, r.Res.Type == TypeInodeBits && r.Bits|r.TryBits == 0:
		return status.Invalid
	case r.Flags&Glimpse != 0 && r.Res.Type != TypeExtent:
		return status.Invalid
	case r.Mode == GROUP && r.GID == 0:
		return status.Invalid
	case r.Flags&Own != 0 && (r.Client != Local || r.Cause == Local || r.Mode == GROUP):
		return status.Invalid
	}
	return status.OK
}

// step is one call's view of a shard, held with its mu.
type step struct {
	sh  *shard
	ns  *Namespace
	now time.Duration
	fx  *Effects
	// fresh: a lock was granted, or is no longer called back, since the waiting ones last called back what stands in
	// their way.
	fresh bool
}

// Enqueue asks for a lock. What conflicts with nothing granted, and nothing waiting before it, is granted at once, an
// extent with room to grow into; otherwise those who stand in the way are called back, each once, and the request waits
// or is denied by its flags. Precondition: not on a mirror.
//
// Statuses of a denial: Invalid (a request that no peer may make), Again (NoWait, Speculative, TryBits alone), Stale
// (Replay), NoMemory (the shard's table is full).
func (ns *Namespace) Enqueue(now time.Duration, r *Request, fx *Effects) Reply {
	if k := r.check(); k != status.OK {
		return Reply{Outcome: Denied, Status: k}
	}
	if len(r.Cancels) > 0 {
		ns.Cancel(now, r.Client, r.Cancels, fx)
	}
	sh, hash := ns.shardOf(r.Res)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := step{sh: sh, ns: ns, now: now, fx: fx}
	sh.count.Enqueued++
	res := sh.table.findOrAdd(r.Res, hash)
	l := sh.newLockLocked(res, r.Client)
	if l == nil {
		sh.tidyLocked(res)
		return Reply{Outcome: Denied, Status: status.NoMemory}
	}
	l.fill(r)
	if l.flags&Own != 0 {
		res.own++
	}
	reply := s.decide(res, l, r)
	reply.Contended = now < res.contention.until
	if reply.Outcome != Granted && reply.Outcome != Waiting {
		sh.freeLockLocked(l)
		sh.tidyLocked(res)
	}
	return reply
}

// fill sets what the request says of a lock.
func (l *lock) fill(r *Request) {
	l.remote, l.data, l.mode, l.flags = r.Remote, r.Data, r.Mode, r.Flags
	l.pid = r.Initiator
	switch {
	case r.Mode == GROUP:
		l.owner = r.GID
	case r.Cause != Local:
		l.owner = uint64(r.Cause)
	default:
		l.owner = uint64(r.Client)
	}
	switch l.res.id.Type {
	case TypeExtent:
		l.req = r.Extent
		if r.Mode == GROUP {
			l.req = whole()
		}
		l.ext = l.req
	case TypeInodeBits:
		l.bits, l.tryBits = r.Bits, r.TryBits&^r.Bits
	default:
		l.bits = 1
	}
}

// decide grants, queues or denies. A lock that is denied is in no queue.
func (s *step) decide(res *resource, a *lock, r *Request) Reply {
	onlyTry := res.id.Type == TypeInodeBits && a.bits == 0
	if s.grantable(res, a, r.Flags) {
		s.takeTryBits(res, a)
		if !onlyTry || a.bits != 0 {
			s.grow(a)
			s.grant(a)
			if r.Flags&Replay != 0 && res.waiting.n > 0 { // it went ahead of those who must call it back now
				s.fresh = true
				s.reprocess(res)
			}
			return Reply{Outcome: Granted, Handle: a.handle, Desc: a.desc()}
		}
	}
	switch {
	case r.Flags&Replay != 0:
		s.sh.count.Denied++
		return Reply{Outcome: Denied, Status: status.Stale}
	case r.Flags&Glimpse != 0:
		g := glimpse{size: r.KnownSize}
		return Reply{Outcome: s.glimpse(res, &g, a.desc())}
	case onlyTry, r.Flags&(NoWait|Speculative) != 0:
		s.contended(res, a)
		s.sh.count.Denied++
		return Reply{Outcome: Denied, Status: status.Again}
	}
	s.contended(res, a)
	s.callBack(res, a)
	res.wait(a)
	s.sh.waiting++
	s.sh.count.Waited++
	return Reply{Outcome: Waiting, Handle: a.handle}
}

// grantable reports whether nothing granted, nor waiting before it, conflicts with a new request.
func (s *step) grantable(res *resource, a *lock, f Flags) bool {
	if a.mode == GROUP {
		if g := res.granted[GROUP.index()].head; g != nil && g.owner == a.owner && g.bits&a.bits == a.bits &&
			(res.own == 0 || !s.conflictsGranted(res, a)) {
			return true // a group's member joins whatever waits, or it would wait for itself
		}
	}
	if s.conflictsGranted(res, a) {
		return false
	}
	return f&Replay != 0 || !s.conflictsWaiting(res, a) && !s.conflictsConverting(res, a)
}

// takeTryBits adds the wanted bits that are free to a request that is being granted.
func (s *step) takeTryBits(res *resource, a *lock) {
	for rest := a.tryBits; rest != 0; rest &= rest - 1 {
		bit := rest & -rest
		must := a.bits
		a.bits = bit
		free := !s.conflictsGranted(res, a) && !s.conflictsWaiting(res, a) && !s.conflictsConverting(res, a)
		a.bits = must
		if free {
			a.bits |= bit
		}
	}
	a.tryBits = 0
}

// grant enters a lock among the granted ones.
func (s *step) grant(l *lock) {
	l.state = stateGranted
	l.res.add(l)
	s.sh.count.Granted++
	if l.client != Local {
		s.sh.listUnusedLocked(l, s.now)
	}
}
