package ldlm

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Config is what a namespace is made with.
type Config struct {
	// Mirror makes the client's half: locks are pinned, matched and kept in an LRU.
	Mirror bool
	// Shards is the number of parts with a mutex each, a power of two from 1 to 256. 0 means 64, on a mirror 8.
	Shards int
	// Seed is random: it hides which names share a chain, and keeps handles of an earlier start from meaning anything.
	Seed uint64
	// LVB fills the lock value blocks of extent resources; nil where there are none.
	LVB LVBMethods
	// Limits to begin with; zero fields take the defaults.
	Limits Limits
}

// Limits are a namespace's parameters; all can change at any time.
type Limits struct {
	// ContendedLocks is how many conflicts in ContentionWindow make a resource contended.
	ContendedLocks int64
	// ContentionWindow is contention_seconds, ContentionHold contention_hold_seconds.
	ContentionWindow, ContentionHold time.Duration
	// LockTimeout is how long the holder of a called-back lock has before it is an eviction candidate.
	LockTimeout time.Duration
}

// DefaultLimits are Lustre's, and DESIGN's lock timeout.
func DefaultLimits() Limits {
	return Limits{ContendedLocks: 16, ContentionWindow: 4 * time.Second, ContentionHold: 30 * time.Second,
		LockTimeout: 20 * time.Second}
}

const (
	serverShards = 64
	mirrorShards = 8
)

// Namespace is the locks of one target: the server's half, or one client's mirror of it. All methods are safe for
// concurrent use and none waits for anything but a shard's mutex (LVB methods: also for the store).
//
// now is time since any fixed moment on a clock that never goes back, one clock per namespace.
type Namespace struct {
	mirror    bool
	seed      uint64
	shardMask uint64
	lvb       LVBMethods
	shards    []shard
	waits     waitGraph

	contendedLocks   atomic.Int64
	contentionWindow atomic.Int64
	contentionHold   atomic.Int64
	lockTimeout      atomic.Int64
	unused           atomic.Int64 // mirror: locks in the LRUs
}

// shard is a part of a namespace: the resources whose hash falls into it and their locks.
type shard struct {
	mu      sync.Mutex
	ns      *Namespace
	number  int
	seq     uint64
	locks   lockTable
	table   table
	clients map[ClientID]*list // its locks here; kept until Evict or Forget
	// unused is the LRU: on a mirror granted locks without a user, on a server granted locks of clients, oldest first.
	unused list
	// called is the called-back locks of clients by deadline, earliest first (server).
	called  list
	waiting int // locks that wait, in all queues
	count   Counts
	again   []*resource // scratch of Evict
	passed  []*lock     // scratch of reprocess

	_ [64]byte // keeps neighbours' mutexes off this cache line
}

// Counts are what a namespace has done. They only grow.
type Counts struct {
	Enqueued  uint64 // requests
	Granted   uint64 // locks granted, at once or later
	Cancelled uint64 // locks given back or taken away
	Waited    uint64 // requests that had to wait
	Denied    uint64 // requests denied
	Blocking  uint64 // locks called back
	Glimpses  uint64 // glimpse ASTs
	Converted uint64 // conversions done
	Expired   uint64 // eviction candidates named (lock_timeouts)
	Contended uint64 // times a resource became contended (contention_events)
	Deadlocks uint64
	Revoked   uint64 // called back to free memory
	Matched   uint64 // mirror: match found a lock (lock_lru_hits)
	Missed    uint64 // mirror: match found none
	BadHandle uint64 // cancels and converts of handles that are not, or no longer, the peer's
}

func (c *Counts) add(o *Counts) {
	c.Enqueued += o.Enqueued
	c.Granted += o.Granted
	c.Cancelled += o.Cancelled
	c.Waited += o.Waited
	c.Denied += o.Denied
	c.Blocking += o.Blocking
	c.Glimpses += o.Glimpses
	c.Converted += o.Converted
	c.Expired += o.Expired
	c.Contended += o.Contended
	c.Deadlocks += o.Deadlocks
	c.Revoked += o.Revoked
	c.Matched += o.Matched
	c.Missed += o.Missed
	c.BadHandle += o.BadHandle
}

// New makes an empty namespace. It panics when c.Shards is no power of two up to 256.
func New(c Config) *Namespace {
	if c.Shards == 0 {
		c.Shards = serverShards
		if c.Mirror {
			c.Shards = mirrorShards
		}
	}
	if c.Shards < 1 || c.Shards > maxShards || c.Shards&(c.Shards-1) != 0 {
		panic("ldlm: the number of shards is no power of two up to 256")
	}
	ns := &Namespace{mirror: c.Mirror, seed: c.Seed, shardMask: uint64(c.Shards - 1), lvb: c.LVB,
		shards: make([]shard, c.Shards)}
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.ns, sh.number = ns, i
		sh.clients = make(map[ClientID]*list)
		sh.locks.gen = uint32(mix(c.Seed, uint64(i)+1))
	}
	ns.SetLimits(c.Limits)
	return ns
}

// SetLimits changes the parameters; zero fields take the defaults.
func (ns *Namespace) SetLimits(l Limits) {
	d := DefaultLimits()
	set := func(to *atomic.Int64, v, def int64) {
		if v <= 0 {
			v = def
		}
		to.Store(v)
	}
	set(&ns.contendedLocks, l.ContendedLocks, d.ContendedLocks)
	set(&ns.contentionWindow, int64(l.ContentionWindow), int64(d.ContentionWindow))
	set(&ns.contentionHold, int64(l.ContentionHold), int64(d.ContentionHold))
	set(&ns.lockTimeout, int64(l.LockTimeout), int64(d.LockTimeout))
}

// Limits returns the parameters in force.
func (ns *Namespace) Limits() Limits {
	return Limits{ContendedLocks: ns.contendedLocks.Load(), ContentionWindow: time.Duration(ns.contentionWindow.Load()),
		ContentionHold: time.Duration(ns.contentionHold.Load()), LockTimeout: time.Duration(ns.lockTimeout.Load())}
}

// LockCount is the number of locks known, waiting ones included.
func (ns *Namespace) LockCount() int64 {
	var n int64
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		n += int64(sh.locks.live)
		sh.mu.Unlock()
	}
	return n
}

// WaitingCount is the number of locks that wait to be granted; those that convert are not among them.
func (ns *Namespace) WaitingCount() int64 {
	var n int64
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		n += int64(sh.waiting)
		sh.mu.Unlock()
	}
	return n
}

// UnusedCount is the number of a mirror's granted locks that nobody uses (lock_unused_count).
func (ns *Namespace) UnusedCount() int64 { return ns.unused.Load() }

// shardOf finds the shard of a name. The shard is taken from the hash's upper bits, the bucket from its lower ones.
func (ns *Namespace) shardOf(id ResID) (*shard, uint64) {
	h := hashRes(id, ns.seed)
	return &ns.shards[h>>48&ns.shardMask], h
}

// shardByHandle finds the shard that a handle names, nil when there is none.
func (ns *Namespace) shardByHandle(h Handle) *shard {
	if h.shard() >= len(ns.shards) {
		return nil
	}
	return &ns.shards[h.shard()]
}

// newLockLocked makes a lock of a client on a resource; nil when the shard is full.
func (sh *shard) newLockLocked(res *resource, client ClientID) *lock {
	l := sh.locks.take(sh.number)
	if l == nil {
		return nil
	}
	sh.seq++
	l.res, l.client, l.seq = res, client, sh.seq
	mine := sh.clients[client]
	if mine == nil {
		mine = new(list)
		sh.clients[client] = mine
	}
	mine.pushBack(l, linkClient)
	return l
}

// freeLockLocked forgets a lock that is in no queue.
func (sh *shard) freeLockLocked(l *lock) {
	l.disown()
	sh.unlistLocked(l)
	sh.clients[l.client].remove(l, linkClient)
	sh.locks.give(l)
}

// tidyLocked forgets a resource that nothing hangs on.
func (sh *shard) tidyLocked(res *resource) {
	if res.empty() && !res.queued {
		sh.table.remove(res)
	}
}

// unlistLocked takes a lock out of the list by age or deadline.
func (sh *shard) unlistLocked(l *lock) {
	if !l.has(markListed) {
		return
	}
	l.marks &^= markListed
	if l.has(markBlocked) && !sh.ns.mirror {
		sh.called.remove(l, linkAge)
		return
	}
	sh.unused.remove(l, linkAge)
	if sh.ns.mirror {
		sh.ns.unused.Add(-1)
	}
}

// listUnusedLocked enters a lock into the LRU as its newest.
func (sh *shard) listUnusedLocked(l *lock, now time.Duration) {
	l.stamp = now
	l.marks |= markListed
	sh.unused.pushBack(l, linkAge)
	if sh.ns.mirror {
		sh.ns.unused.Add(1)
	}
}

// listCalledLocked enters a called-back lock into the list by deadline.
func (sh *shard) listCalledLocked(l *lock, deadline time.Duration) {
	l.stamp = deadline
	l.marks |= markListed
	at := sh.called.tail
	for at != nil && at.stamp > deadline {
		at = at.links[linkAge].prev
	}
	sh.called.insertAfter(at, l, linkAge)
}

// Stats are a namespace's figures at one moment.
type Stats struct {
	Counts    Counts
	Table     TableStats
	Locks     int64
	Unused    int64 // mirror: without a user; server: granted to clients and not called back
	Called    int64 // called back, not given back yet
	Resources int64
	// LockBytes is the memory of locks and handles, spare ones included. With Table.Bytes it is the whole namespace.
	LockBytes int64
}

// Stats adds up the shards one after the other; it is not one moment's picture while others work. It walks the
// resource table: call it for people, not per request.
func (ns *Namespace) Stats() Stats {
	var s Stats
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		s.Counts.add(&sh.count)
		t := sh.table.stats()
		s.Table.add(&t)
		s.Locks += int64(sh.locks.live)
		s.Unused += int64(sh.unused.n)
		s.Called += int64(sh.called.n)
		s.LockBytes += int64(sh.locks.live+int(sh.locks.spare.n))*int64(unsafe.Sizeof(lock{})) +
			int64(cap(sh.locks.slots))*8 + int64(cap(sh.locks.free))*4
		sh.mu.Unlock()
	}
	s.Resources = int64(s.Table.Entries)
	return s
}
