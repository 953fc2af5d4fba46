package lockcache

import (
	"context"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
)

// This file is about calls that a Revoke waits for. The kernel drops pages by waiting for every READ that has locked one; such
// a READ comes here for the lock that is being revoked, and no match finds it. Were it to ask the server, it would wait
// behind the one for whom the lock is revoked: for itself. So it is served under the lock on its way back, which is still
// held, and the Revoke runs again until nobody was served meanwhile (DESIGN section 6, the kernel's caches, trap 2).

// leavingShard is a shard number that no mirror has: handles of uses of leaving locks.
const leavingShard = ldlm.Handle(0xfe) << 56

const (
	// promptRounds is how many Revokes serve such calls at once. A task that reads in a tight loop would keep the lock here
	// for ever; so later calls are first let wait for lateServe: if the Revoke ends, it did not wait for them.
	promptRounds = 2
	lateServe    = 5 * time.Millisecond
)

// leave is one lock on its way back, from the moment it was decided until its Revoke is over. All of it is guarded by
// leaving.mu.
type leave struct {
	res    ldlm.ResID
	desc   ldlm.Desc
	bits   ldlm.Bits // leaving
	own    ldlm.Handle
	data   any
	why    Why
	next   *leave // of the same resource, or of the free ones
	rounds int    // Revokes begun
	uses   int
	served bool          // since the last Revoke began
	idle   chan struct{} // closed with the last use; nil when nobody waits
	over   chan struct{} // closed when the Revoke is over; nil when nobody waits
}

// leavesKept bounds the free ones.
const leavesKept = 256

// leaving finds the locks on their way back.
type leaving struct {
	mu      sync.Mutex
	of      map[ldlm.ResID]*leave  // guarded by mu
	uses    map[ldlm.Handle]*leave // guarded by mu
	seq     uint64                 // guarded by mu
	watched bool                   // somebody waits for changed; guarded by mu
	changed chan struct{}          // closed when a lock is added, if watched; guarded by mu
	free    *leave                 // guarded by mu
	spare   int                    // in free; guarded by mu
}

func (k *leaving) init() {
	k.of, k.uses, k.changed = map[ldlm.ResID]*leave{}, map[ldlm.Handle]*leave{}, make(chan struct{})
}

// add enters a job's lock.
func (k *leaving) add(j *job) *leave {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.free
	if l != nil {
		k.free = l.next
		k.spare--
	} else {
		l = new(leave)
	}
	*l = leave{res: j.res, desc: j.desc, bits: j.bits, own: j.own, data: j.data, why: j.why, next: k.of[j.res]}
	k.of[j.res] = l
	if k.watched {
		k.watched = false
		close(k.changed)
		k.changed = make(chan struct{})
	}
	return l
}

// begin notes that a Revoke begins. Who is being served already may still put something there that it does not see.
func (k *leaving) begin(l *leave) {
	k.mu.Lock()
	l.rounds++
	l.served = l.uses > 0
	k.mu.Unlock()
}

// finish ends a lock's time here after a Revoke, when nobody was served meanwhile; otherwise it waits until all have been,
// and returns false: revoke again. l is not used after true.
func (k *leaving) finish(ctx context.Context, l *leave) bool {
	k.mu.Lock()
	if !l.served && l.uses == 0 || ctx.Err() != nil {
		defer k.mu.Unlock()
		k.removeLocked(l)
		return true
	}
	var idle chan struct{}
	if l.uses > 0 {
		idle = make(chan struct{})
		l.idle = idle
	}
	k.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
		}
	}
	return false
}

func (k *leaving) removeLocked(l *leave) {
	if l.over != nil {
		close(l.over)
	}
	if first := k.of[l.res]; first != l {
		at := first
		for at.next != l {
			at = at.next
		}
		at.next = l.next
	} else if l.next != nil {
		k.of[l.res] = l.next
	} else {
		delete(k.of, l.res)
	}
	if l.uses == 0 && k.spare < leavesKept {
		l.next, k.free, l.data = k.free, l, nil
		k.spare++
	}
}

// sheltering is what became of a look for a leaving lock: a use of one, or what to wait for.
type sheltering struct {
	handle ldlm.Handle
	of     *leave          // valid while the use lasts
	over   <-chan struct{} // a lock is there whose Revoke may end without this call
	next   <-chan struct{} // closed when another lock leaves
}

// try begins a use of a leaving lock that covers what is wanted. late: the call has waited for its Revoke.
func (k *leaving) try(w *ldlm.Wanted, late bool) sheltering {
	k.mu.Lock()
	defer k.mu.Unlock()
	for l := k.of[w.Res]; l != nil; l = l.next {
		if w.Modes&l.desc.Mode == 0 || l.bits&w.Bits != w.Bits || !l.desc.Extent.Contains(w.Extent) || l.desc.GID != w.GID {
			continue
		}
		if l.rounds > promptRounds && !late {
			if l.over == nil {
				l.over = make(chan struct{})
			}
			return sheltering{over: l.over}
		}
		l.uses++
		l.served = true
		k.seq++
		h := leavingShard | ldlm.Handle(k.seq)&(1<<56-1)
		k.uses[h] = l
		return sheltering{handle: h, of: l}
	}
	k.watched = true
	return sheltering{next: k.changed}
}

// has reports whether the Revoke of a lock is not over.
func (k *leaving) has(res ldlm.ResID, own ldlm.Handle) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for l := k.of[res]; l != nil; l = l.next {
		if l.own == own {
			return true
		}
	}
	return false
}

// end ends a use.
func (k *leaving) end(h ldlm.Handle) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.uses[h]
	if l == nil {
		panic("lockcache: unpin of lock " + h.String() + " that is not pinned")
	}
	delete(k.uses, h)
	if l.uses--; l.uses == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// shelter looks for a lock on its way back that serves: a grant under it, or the channel that tells of the next one to
// look at. With neither, ctx has ended.
func (c *Cache) shelter(ctx context.Context, w *ldlm.Wanted) (Grant, <-chan struct{}) {
	late := false
	for ctx.Err() == nil {
		s := c.leaving.try(w, late)
		switch {
		case s.handle != 0:
			c.figs.sheltered.Inc()
			l := s.of // stays while it is used; what is read of it does not change
			return Grant{Handle: s.handle, Own: l.own, Desc: l.desc, Data: l.data, Matched: true, Leaving: true, Why: l.why}, nil
		case s.next != nil:
			return Grant{}, s.next
		}
		t := time.NewTimer(lateServe)
		select {
		case <-s.over:
		case <-ctx.Done():
		case <-t.C:
			late = true
		}
		t.Stop()
	}
	return Grant{}, nil
}
