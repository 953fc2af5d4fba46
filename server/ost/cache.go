package ost

import (
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

const (
	cacheShards = 64
	// The chains of a shard double when entries per bucket pass growTheta and halve below shrinkTheta, as those of the resource
	// tables do.
	growTheta, shrinkTheta = 0.75, 0.30
	minBuckets             = 8
	bucketBytes            = 8
	// objectBytes is what an object takes (TestBytesPerObject), but for its file, which the device keeps.
	objectBytes = 320
)

// cache holds objects by id: a hash table in shards, each with its own lock, chains and lists of what nobody uses. Its memory
// is bounded by the process's budget, its open files by a number of its own. What is in use or pinned stays, so it can grow past
// both: it refuses nothing because it is full.
//
// Invariant: an object without users that is not pinned is stated, not gone, and in its shard's list of unused ones.
type cache struct {
	shards [cacheShards]shard
	budget *target.Budget
	// openPerShard bounds the unused objects with an open file.
	openPerShard int
	used         atomic.Int64  // bytes
	purgeAt      atomic.Uint32 // the shard that the next purge begins with
}

type shard struct {
	mu      sync.Mutex
	buckets []*object       // chains by hash, a power of two; guarded by mu
	n       int             // objects in the chains; guarded by mu
	lists   [listKinds]list // guarded by mu

	grows, shrinks, hits, misses, purged int64 // guarded by mu

	_ [64]byte // shards on cache lines of their own
}

// The lists of a shard, of objects without users.
const (
	unused    = iota // may leave the table
	opened           // have an open file
	listKinds = iota
)

type linkage struct{ next, prev *object }

// list is one of objects in the order in which they were used last.
type list struct {
	oldest, newest *object
	n              int
}

func (s *shard) pushLocked(kind int, ob *object) {
	l := &s.lists[kind]
	ob.on[kind], ob.links[kind] = true, linkage{prev: l.newest}
	if l.newest != nil {
		l.newest.links[kind].next = ob
	} else {
		l.oldest = ob
	}
	l.newest = ob
	l.n++
}

func (s *shard) pullLocked(kind int, ob *object) {
	if !ob.on[kind] {
		return
	}
	l, at := &s.lists[kind], ob.links[kind]
	if at.prev != nil {
		at.prev.links[kind].next = at.next
	} else {
		l.oldest = at.next
	}
	if at.next != nil {
		at.next.links[kind].prev = at.prev
	} else {
		l.newest = at.prev
	}
	ob.on[kind], ob.links[kind] = false, linkage{}
	l.n--
}

func (c *cache) init(budget *target.Budget, maxOpen int) {
	c.budget, c.openPerShard = budget, max(maxOpen/cacheShards, 1)
}

// hashOf mixes group and id, so that neither ids in order nor the same ids of many groups fall together.
func hashOf(id fid.ObjectID) uint64 {
	h := (id.ID ^ uint64(id.Group)<<40) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
	return h ^ h>>32
}

func (c *cache) shard(hash uint64) *shard { return &c.shards[hash>>58] }

func (s *shard) findLocked(id fid.ObjectID, hash uint64) *object {
	if len(s.buckets) == 0 {
		return nil
	}
	ob := s.buckets[hash&uint64(len(s.buckets)-1)]
	for ob != nil && ob.id != id {
		ob = ob.chain
	}
	return ob
}

// addLocked enters a new object and returns the bytes that the table has grown by.
func (s *shard) addLocked(ob *object, hash uint64) int64 {
	bytes := int64(objectBytes)
	if float64(s.n+1) > growTheta*float64(len(s.buckets)) {
		bytes += s.resizeLocked(max(2*len(s.buckets), minBuckets))
	}
	b := &s.buckets[hash&uint64(len(s.buckets)-1)]
	ob.chain, *b = *b, ob
	s.n++
	return bytes
}

// removeLocked takes an object out and returns the bytes that the table has grown by.
func (s *shard) removeLocked(ob *object) int64 {
	at := &s.buckets[hashOf(ob.id)&uint64(len(s.buckets)-1)]
	for *at != ob {
		at = &(*at).chain
	}
	*at, ob.chain = ob.chain, nil
	s.n--
	bytes := int64(-objectBytes)
	if len(s.buckets) > minBuckets && float64(s.n) < shrinkTheta*float64(len(s.buckets)) {
		bytes += s.resizeLocked(len(s.buckets) / 2)
	}
	return bytes
}

func (s *shard) resizeLocked(n int) int64 {
	old := s.buckets
	if n > len(old) && len(old) > 0 {
		s.grows++
	} else if n < len(old) {
		s.shrinks++
	}
	s.buckets = make([]*object, n)
	for _, ob := range old {
		for ob != nil {
			next := ob.chain
			b := &s.buckets[hashOf(ob.id)&uint64(n-1)]
			ob.chain, *b = *b, ob
			ob = next
		}
	}
	return int64(n-len(old)) * bucketBytes
}

// charge tells the budget of memory taken or given back. No shard may be locked: others may have to give back.
func (c *cache) charge(bytes int64) {
	if bytes == 0 {
		return
	}
	c.used.Add(bytes)
	if c.budget.Charge(bytes) && bytes > 0 {
		c.budget.Trim()
	}
}

// get returns the object of an id with a reference. It may not be loaded.
func (c *cache) get(id fid.ObjectID) *object {
	hash := hashOf(id)
	s := c.shard(hash)
	s.mu.Lock()
	if ob := s.findLocked(id, hash); ob != nil {
		s.hits++
		s.refLocked(ob)
		s.mu.Unlock()
		return ob
	}
	s.misses++
	ob := &object{id: id, refs: 1}
	bytes := s.addLocked(ob, hash)
	s.mu.Unlock()
	c.charge(bytes)
	return ob
}

func (s *shard) refLocked(ob *object) {
	if ob.refs == 0 {
		s.pullLocked(unused, ob)
		s.pullLocked(opened, ob)
	}
	ob.refs++
}

// ref takes a reference on an object that is pinned or that the caller has one on.
func (c *cache) ref(ob *object) {
	s := c.shard(hashOf(ob.id))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refLocked(ob)
}

// put gives a reference back. When too many unused objects have an open file, the oldest one's is closed; what is not there,
// or destroyed, leaves the table.
func (c *cache) put(ob *object) {
	var old store.Object
	bytes := int64(0)
	s := c.shard(hashOf(ob.id))
	s.mu.Lock()
	if ob.refs--; ob.refs == 0 {
		old, bytes = s.idleLocked(ob, c.openPerShard)
	}
	s.mu.Unlock()
	if old != nil {
		old.Close() //nolint:errcheck // What was written has its errors from WriteAt and Flush.
	}
	c.charge(bytes)
}

func (s *shard) idleLocked(ob *object, openMost int) (old store.Object, bytes int64) {
	if ob.loaded.Load() {
		s.pushLocked(opened, ob)
		if s.lists[opened].n > openMost {
			old = s.shutLocked(s.lists[opened].oldest)
		}
	}
	switch {
	case ob.pinned:
	case ob.stated && !ob.gone:
		s.pushLocked(unused, ob)
	default:
		bytes = s.removeLocked(ob)
	}
	return old, bytes
}

// shutLocked takes the open file from an object without users; the caller closes it without a lock.
func (s *shard) shutLocked(ob *object) (h store.Object) {
	s.pullLocked(opened, ob)
	h, ob.h = ob.h, nil
	ob.loaded.Store(false)
	return h
}

// Used implements target.Cache.
func (c *cache) Used() int64 { return c.used.Load() }

// Uses implements target.Cache.
func (c *cache) Uses() (n int64) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += s.hits + s.misses
		s.mu.Unlock()
	}
	return n
}

// purgeBatch bounds what is purged under one lock of a shard.
const purgeBatch = 64

// Purge implements target.Cache: it goes around the shards, from where the last purge has ended, and takes the oldest of each.
func (c *cache) Purge(bytes int64) (freed int64) {
	var handles [purgeBatch]store.Object
	for idle := 0; freed < bytes && idle < cacheShards; {
		s := &c.shards[c.purgeAt.Add(1)%cacheShards]
		most := max(1, min(purgeBatch, (bytes-freed)/objectBytes/cacheShards))
		got, open := int64(0), 0
		s.mu.Lock()
		for range most {
			ob := s.lists[unused].oldest
			if ob == nil {
				break
			}
			s.pullLocked(unused, ob)
			if ob.on[opened] {
				handles[open] = s.shutLocked(ob)
				open++
			}
			got -= s.removeLocked(ob)
			s.purged++
		}
		s.mu.Unlock()
		for i := range open {
			handles[i].Close() //nolint:errcheck // As in put.
			handles[i] = nil
		}
		if freed += got; got == 0 {
			idle++
			continue
		}
		idle = 0
		c.charge(-got)
	}
	return freed
}

// pin keeps an object in the table without users, its file closed when there is no room.
// Precondition: the caller has a reference.
func (c *cache) pin(ob *object) { c.setPinned(ob, true) }

// unpin ends pin.
// Precondition: the caller has a reference.
func (c *cache) unpin(ob *object) { c.setPinned(ob, false) }

func (c *cache) setPinned(ob *object, pinned bool) {
	s := c.shard(hashOf(ob.id))
	s.mu.Lock()
	defer s.mu.Unlock()
	ob.pinned = pinned
}

// look returns the object of an id without a reference, nil when it is not in the table.
func (c *cache) look(id fid.ObjectID) *object {
	hash := hashOf(id)
	s := c.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.findLocked(id, hash)
}

// each calls fn for the objects that wanted chooses, with a reference held and no lock; wanted runs with their shard locked.
func (c *cache) each(wanted func(*object) bool, fn func(*object)) {
	var batch []*object
	for i := range c.shards {
		s := &c.shards[i]
		batch = batch[:0]
		s.mu.Lock()
		for _, ob := range s.buckets {
			for ; ob != nil; ob = ob.chain {
				if wanted(ob) {
					s.refLocked(ob)
					batch = append(batch, ob)
				}
			}
		}
		s.mu.Unlock()
		for _, ob := range batch {
			fn(ob)
			c.put(ob)
		}
	}
}

// close closes every file and leaves the budget. Nothing may use the cache any more.
func (c *cache) close() {
	for i := range c.shards {
		for _, ob := range c.shards[i].buckets {
			for ; ob != nil; ob = ob.chain {
				if ob.h != nil {
					ob.h.Close() //nolint:errcheck // The last commit has flushed.
				}
			}
		}
	}
	c.budget.Leave(c)
}

// handles is how many objects without users have an open file.
func (c *cache) handles() (n int64) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += int64(s.lists[opened].n)
		s.mu.Unlock()
	}
	return n
}

// tableStats gives the registry the cache's figures.
func (c *cache) tableStats(to *stats.TableStats) {
	to.Name, to.MinBuckets, to.ShrinkTheta, to.GrowTheta = "OBJECTS", cacheShards*minBuckets, shrinkTheta, growTheta
	to.Buckets, to.Entries, to.Busy, to.Longest, to.Empty, to.Grows, to.Shrinks = 0, 0, 0, 0, 0, 0, 0
	to.Hits, to.Misses, to.Evictions = 0, 0, 0
	to.Chains = [stats.ChainClasses]int64{}
	for i := range c.shards {
		c.shards[i].add(to)
	}
	to.Created = to.Misses
	to.Bytes, to.LimitBytes, to.Rule = c.used.Load(), c.budget.Limit(), c.budget.Rule()
}

func (s *shard) add(to *stats.TableStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to.Buckets += int64(len(s.buckets))
	to.Entries += int64(s.n)
	to.Grows, to.Shrinks = to.Grows+s.grows, to.Shrinks+s.shrinks
	to.Hits, to.Misses, to.Evictions = to.Hits+s.hits, to.Misses+s.misses, to.Evictions+s.purged
	for _, ob := range s.buckets {
		length := 0
		for ; ob != nil; ob = ob.chain {
			length++
			if ob.refs > 0 {
				to.Busy++
			}
		}
		if length == 0 {
			to.Empty++
		}
		to.Longest = max(to.Longest, int64(length))
		to.Chains[stats.ChainClass(length)]++
	}
}
