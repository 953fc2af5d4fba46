package ldlm

import (
	"math/bits"
	"time"
	"unsafe"
)

// The resource table of a shard is an array of chains whose length is a power of two. It doubles when entries per
// bucket (theta) pass growTheta and halves when they fall below shrinkTheta, never below minBuckets: Lustre's thresholds,
// far enough apart that a table which has just changed is in the middle.
const (
	growTheta   = 0.75
	shrinkTheta = 0.30
	minBuckets  = 8
)

// spareResources is the number of free resources that a shard keeps beside a quarter of the live ones.
const spareResources = 16

// TableStats are the figures of a resource table, under the names of hash_stats where those exist.
type TableStats struct {
	Buckets, Entries int
	Empty            int     // buckets without an entry
	Theta            float64 // entries per bucket
	MaxDepth         int     // longest chain (maxdep)
	Grows, Shrinks   uint64  // rehash
	Hits, Misses     uint64  // searches that found the resource, and that did not
	// Distribution counts buckets by chain length: 0, 1, 2-3, 4-7, 8-15, 16-31, 32-63, 64 and more.
	Distribution [8]int
	// Bytes is the memory of buckets and resources, with their trees, spare ones included.
	Bytes int64
}

func (s *TableStats) add(o *TableStats) {
	s.Buckets += o.Buckets
	s.Entries += o.Entries
	s.Empty += o.Empty
	s.MaxDepth = max(s.MaxDepth, o.MaxDepth)
	s.Grows += o.Grows
	s.Shrinks += o.Shrinks
	s.Hits += o.Hits
	s.Misses += o.Misses
	for i, n := range o.Distribution {
		s.Distribution[i] += n
	}
	s.Bytes += o.Bytes
	if s.Buckets > 0 {
		s.Theta = float64(s.Entries) / float64(s.Buckets)
	}
}

// table finds the resources of one shard by name.
type table struct {
	buckets []*resource
	n       int
	spare   *resource
	nSpare  int
	flocks  []*resource // those of TypeFlock, for evictions

	grows, shrinks, hits, misses uint64
}

func (t *table) find(id ResID, hash uint64) *resource {
	if len(t.buckets) > 0 {
		for r := t.buckets[hash&uint64(len(t.buckets)-1)]; r != nil; r = r.chain {
			if r.hash == hash && r.id == id {
				t.hits++
				return r
			}
		}
	}
	t.misses++
	return nil
}

// findOrAdd returns the resource of a name, a new one when there is none.
func (t *table) findOrAdd(id ResID, hash uint64) *resource {
	if r := t.find(id, hash); r != nil {
		return r
	}
	r := t.spare
	if r != nil {
		t.spare = r.chain
		t.nSpare--
	} else {
		r = new(resource)
	}
	r.id, r.hash = id, hash
	if id.Type == TypeExtent && r.trees == nil {
		r.trees = new(trees)
	}
	if id.Type == TypeFlock {
		if r.flock == nil {
			r.flock = new(flockState)
		}
		r.flock.at = len(t.flocks)
		t.flocks = append(t.flocks, r)
	}
	if len(t.buckets) == 0 {
		t.buckets = make([]*resource, minBuckets)
	}
	if t.n++; float64(t.n) > growTheta*float64(len(t.buckets)) {
		t.rehash(2 * len(t.buckets))
		t.grows++
	}
	at := &t.buckets[hash&uint64(len(t.buckets)-1)]
	r.chain, *at = *at, r
	return r
}

// remove takes an empty resource out and keeps it for reuse.
func (t *table) remove(r *resource) {
	at := &t.buckets[r.hash&uint64(len(t.buckets)-1)]
	for *at != r {
		at = &(*at).chain
	}
	*at, r.chain = r.chain, nil
	t.n--
	if r.id.Type == TypeFlock {
		last := len(t.flocks) - 1
		t.flocks[r.flock.at] = t.flocks[last]
		t.flocks[r.flock.at].flock.at = r.flock.at
		t.flocks[last] = nil
		t.flocks = t.flocks[:last]
	}
	if len(t.buckets) > minBuckets && float64(t.n) < shrinkTheta*float64(len(t.buckets)) {
		t.rehash(len(t.buckets) / 2)
		t.shrinks++
	}
	if t.nSpare > spareResources+t.n/4 {
		if t.nSpare > 2*(spareResources+t.n/4) { // the live ones have become fewer: one more goes with each
			t.spare, t.nSpare = t.spare.chain, t.nSpare-1
		}
		return
	}
	*r = resource{trees: r.trees, bits: r.bits, flock: r.flock, lvb: r.lvb, converting: r.converting[:0], chain: t.spare}
	if r.lvb != nil {
		r.lvb.forget()
	}
	t.spare = r
	t.nSpare++
}

func (t *table) rehash(size int) {
	old := t.buckets
	t.buckets = make([]*resource, size)
	for _, r := range old {
		for r != nil {
			next := r.chain
			at := &t.buckets[r.hash&uint64(size-1)]
			r.chain, *at = *at, r
			r = next
		}
	}
}

func (t *table) stats() TableStats {
	s := TableStats{Buckets: len(t.buckets), Entries: t.n, Grows: t.grows, Shrinks: t.shrinks,
		Hits: t.hits, Misses: t.misses}
	s.Bytes = int64(cap(t.buckets)) * int64(unsafe.Sizeof((*resource)(nil)))
	for _, r := range t.buckets {
		depth := 0
		for ; r != nil; r = r.chain {
			depth++
			s.Bytes += r.bytes()
		}
		if depth == 0 {
			s.Empty++
		}
		s.MaxDepth = max(s.MaxDepth, depth)
		s.Distribution[min(bits.Len(uint(depth)), len(s.Distribution)-1)]++
	}
	for r := t.spare; r != nil; r = r.chain {
		s.Bytes += r.bytes()
	}
	return s
}

// bytes is the memory that hangs on a resource, without its locks.
func (r *resource) bytes() int64 {
	n := unsafe.Sizeof(*r) + uintptr(cap(r.converting))*unsafe.Sizeof((*lock)(nil))
	if r.trees != nil {
		n += unsafe.Sizeof(*r.trees)
	}
	if r.bits != nil {
		n += unsafe.Sizeof(*r.bits)
	}
	if r.lvb != nil {
		n += unsafe.Sizeof(*r.lvb)
	}
	if r.flock != nil {
		n += unsafe.Sizeof(*r.flock) + uintptr(cap(r.flock.table.ranges)+cap(r.flock.table.scratch))*unsafe.Sizeof(FlockRange{})
	}
	return int64(n)
}

// hashRes mixes a resource's name with the namespace's secret, so that peers who choose names cannot choose chains.
func hashRes(id ResID, seed uint64) uint64 {
	h := mix(seed^0x9e3779b97f4a7c15, id.Seq^uint64(id.Type)<<56)
	h = mix(h^0xbf58476d1ce4e5b9, id.OID^seed)
	return mix(h^0x94d049bb133111eb, id.Hash^seed<<1^seed>>63)
}

// mix folds the 128-bit product of two words.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^a>>32, b|1)
	h := hi ^ lo ^ b
	h ^= h >> 29
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}

// never is the time of what has no deadline.
const never = time.Duration(1<<63 - 1)
