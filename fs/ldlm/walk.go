package ldlm

import (
	"cmp"
	"slices"
	"time"

	"github.com/strakefs/strake/fs/extent"
)

// LockInfo is a copy of one lock, for replay and for people.
type LockInfo struct {
	Handle, Remote Handle
	Client         ClientID
	Res            ResID
	Desc           Desc
	Asked          extent.Extent
	Flags          Flags
	Granted        bool // false: waiting
	Blocked        bool // called back
	Pins           int32
	// Unused: in the LRU, on a mirror since Since; on a server granted to a client, and not called back, at Since.
	Unused bool
	Since  time.Duration
	Data   any
}

func (l *lock) info() LockInfo {
	return LockInfo{Handle: l.handle, Remote: l.remote, Client: l.client, Res: l.res.id, Desc: l.desc(), Asked: l.req,
		Flags: l.flags, Granted: l.state == stateGranted || l.state == stateCancelling, Blocked: l.has(markBlocked),
		Pins: l.pins, Unused: l.has(markListed) && !l.has(markBlocked), Since: l.stamp, Data: l.data}
}

// Lock returns a copy of a client's lock.
func (ns *Namespace) Lock(client ClientID, h Handle) (LockInfo, bool) {
	sh := ns.shardByHandle(h)
	if sh == nil {
		return LockInfo{}, false
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if l := sh.locks.find(h, client); l != nil {
		return l.info(), true
	}
	return LockInfo{}, false
}

// Locks appends copies of a client's locks in the order in which each shard got them: on a mirror, with Local, all that
// a replay hands back.
func (ns *Namespace) Locks(client ClientID, to []LockInfo) []LockInfo {
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		if mine := sh.clients[client]; mine != nil {
			for l := mine.head; l != nil; l = l.links[linkClient].next {
				to = append(to, l.info())
			}
		}
		sh.mu.Unlock()
	}
	return to
}

// ClientLockCount is the number of a client's locks.
func (ns *Namespace) ClientLockCount(client ClientID) int {
	n := 0
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		if mine := sh.clients[client]; mine != nil {
			n += int(mine.n)
		}
		sh.mu.Unlock()
	}
	return n
}

// Forget drops what is kept for a client without locks: after its last one is gone and it has disconnected.
func (ns *Namespace) Forget(client ClientID) {
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		if mine := sh.clients[client]; mine != nil && mine.n == 0 {
			delete(sh.clients, client)
		}
		sh.mu.Unlock()
	}
}

// ResourceInfo is what people are shown of a resource.
type ResourceInfo struct {
	Res                          ResID
	Granted, Waiting, Converting int
	// Conflicts is the decayed count of the last conflict; Contended that the resource is contended now.
	Conflicts uint32
	Contended bool
	// Holders and Waiters are some of them, at most shownLocks each.
	Holders, Waiters []LockInfo
}

// shownLocks bounds the locks listed with a resource: a folder can have a million.
const shownLocks = 16

// Resource returns what is known of a resource.
func (ns *Namespace) Resource(now time.Duration, id ResID) (ResourceInfo, bool) {
	sh, hash := ns.shardOf(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	res := sh.table.find(id, hash)
	if res == nil {
		return ResourceInfo{}, false
	}
	return res.info(now, true), true
}

func (r *resource) info(now time.Duration, locks bool) ResourceInfo {
	i := ResourceInfo{Res: r.id, Granted: int(r.nGranted), Waiting: int(r.waiting.n), Converting: len(r.converting),
		Conflicts: r.contention.now + r.contention.prev, Contended: now < r.contention.until}
	if r.id.Type == TypeFlock {
		i.Granted = len(r.flock.table.ranges)
	}
	if !locks {
		return i
	}
	for m := range r.granted {
		for l := r.granted[m].head; l != nil && len(i.Holders) < shownLocks; l = l.links[linkQueue].next {
			i.Holders = append(i.Holders, l.info())
		}
	}
	for l := r.waiting.head; l != nil && len(i.Waiters) < shownLocks; l = l.links[linkQueue].next {
		i.Waiters = append(i.Waiters, l.info())
	}
	return i
}

// MostContended returns up to n resources with waiting locks or recent conflicts, the most wanted first. It looks at
// every resource, a shard at a time.
func (ns *Namespace) MostContended(now time.Duration, n int) []ResourceInfo {
	var all []ResourceInfo
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		for _, head := range sh.table.buckets {
			for r := head; r != nil; r = r.chain {
				if r.waiting.n > 0 || now < r.contention.until {
					all = append(all, r.info(now, false))
				}
			}
		}
		sh.mu.Unlock()
		slices.SortFunc(all, func(a, b ResourceInfo) int {
			return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.Conflicts, a.Conflicts))
		})
		all = all[:min(len(all), n)]
	}
	for i := range all {
		if full, ok := ns.Resource(now, all[i].Res); ok {
			all[i] = full
		}
	}
	return all
}
