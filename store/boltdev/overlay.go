package boltdev

import (
	"bytes"
	"math/bits"
	"sync/atomic"

	"github.com/strakefs/strake/store"
)

// entry is one key of one table in one layer.
type entry struct {
	key  []byte
	hash uint64
	ver  atomic.Pointer[version] // newest
	next []atomic.Pointer[entry] // the next entry in key order, on each level of the skip list
}

// version is what one layer knows of a key after some transaction. It does not change once it is stored in an entry.
type version struct {
	prev *version // what was before the transaction n; nil if nothing
	n    store.Transno
	kind store.Kind // a Delta stands on what the layers below hold
	// value is the value of a Put, the combined delta of a Delta.
	value []byte
}

// What an entry and a version cost, for the count of a layer's bytes: their size and their hash slots.
const (
	entryBytes   = 64 + 24
	versionBytes = 56
)

// maxHeight of the skip lists. A quarter of the entries of a level reach the next one: 12 levels serve 16 million.
const maxHeight = 12

// tableLayer is one table in one layer: a hash table for points and a skip list for order, over the same entries.
// There is one writer, under Device.mu; readers take no lock. Nothing is removed from it: deletes are versions.
type tableLayer struct {
	slots atomic.Pointer[[]atomic.Pointer[entry]] // open addressing, a power of two, half full at most; nil when empty
	head  [maxHeight]atomic.Pointer[entry]
	count atomic.Int64
	// finger holds, per level, the last entry before where the last insertion went, nil for the head. Keys that come in
	// order, as new FIDs do, are placed from here in a few steps.
	finger [maxHeight]*entry
	random uint64
}

// find returns the entry of a key, nil if there is none.
func (t *tableLayer) find(hash uint64, key []byte) *entry {
	slots := t.slots.Load()
	if slots == nil {
		return nil
	}
	mask := uint64(len(*slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		e := (*slots)[i].Load()
		if e == nil || e.hash == hash && bytes.Equal(e.key, key) {
			return e
		}
	}
}

// minSlots of a hash table that has any.
const minSlots = 64

// insert adds a key that find did not find. It copies the key. The entry has the version v from the start.
func (t *tableLayer) insert(a *arena, hash uint64, key []byte, v *version) {
	e := a.entry(t.height())
	e.key, e.hash = a.keep(key), hash
	e.ver.Store(v)
	t.link(e)
	n := int(t.count.Add(1))
	slots := t.slots.Load()
	if slots == nil || 2*n > len(*slots) {
		slots = t.resize(max(minSlots, 4*n))
	}
	place(*slots, e)
}

// resize makes a hash table of at least n slots and moves the entries. Readers of the old one miss only what comes
// after.
func (t *tableLayer) resize(n int) *[]atomic.Pointer[entry] {
	slots := make([]atomic.Pointer[entry], 1<<bits.Len(uint(n-1)))
	if old := t.slots.Load(); old != nil {
		for i := range *old {
			if e := (*old)[i].Load(); e != nil {
				place(slots, e)
			}
		}
	}
	t.slots.Store(&slots)
	return &slots
}

func place(slots []atomic.Pointer[entry], e *entry) {
	mask := uint64(len(slots) - 1)
	i := e.hash & mask
	for slots[i].Load() != nil {
		i = (i + 1) & mask
	}
	slots[i].Store(e)
}

// height draws the height of a new entry: xorshift, a quarter goes on to each next level.
func (t *tableLayer) height() int {
	if t.random == 0 {
		t.random = 0x9e3779b97f4a7c15
	}
	t.random ^= t.random << 13
	t.random ^= t.random >> 7
	t.random ^= t.random << 17
	return min(1+bits.TrailingZeros64(t.random|1<<62)/2, maxHeight)
}

// link puts e into the skip list.
func (t *tableLayer) link(e *entry) {
	t.seekFinger(e.key)
	for l := range e.next {
		after := t.after(t.finger[l], l)
		e.next[l].Store(after.Load())
	}
	// Bottom up: who finds e on a level finds it on all below.
	for l := range e.next {
		t.after(t.finger[l], l).Store(e)
		t.finger[l] = e
	}
}

// after returns the link behind e on level l, the head's for nil.
func (t *tableLayer) after(e *entry, l int) *atomic.Pointer[entry] {
	if e == nil {
		return &t.head[l]
	}
	return &e.next[l]
}

// seekFinger sets the finger to the places before key. It climbs from where it stands to the first level that brackets
// the key and goes down from there.
func (t *tableLayer) seekFinger(key []byte) {
	l := 0
	for ; l < maxHeight; l++ {
		p := t.finger[l]
		if p != nil && bytes.Compare(p.key, key) >= 0 {
			continue
		}
		if n := t.after(p, l).Load(); n == nil || bytes.Compare(n.key, key) >= 0 {
			break
		}
	}
	var p *entry
	if l < maxHeight {
		p = t.finger[l]
	}
	for l = min(l, maxHeight-1); l >= 0; l-- {
		for n := t.after(p, l).Load(); n != nil && bytes.Compare(n.key, key) < 0; n = t.after(p, l).Load() {
			p = n
		}
		t.finger[l] = p
	}
}

// seek returns the first entry at or after key. Safe beside the writer.
func (t *tableLayer) seek(key []byte) *entry {
	var p *entry
	for l := maxHeight - 1; l >= 0; l-- {
		for n := t.after(p, l).Load(); n != nil && bytes.Compare(n.key, key) < 0; n = t.after(p, l).Load() {
			p = n
		}
	}
	return t.after(p, 0).Load()
}

// at returns the version of e that readers may see when everything up to visible is published, nil if none: the
// transaction being published is seen by nobody, so a transaction appears whole.
func (e *entry) at(visible store.Transno) *version {
	v := e.ver.Load()
	if v.n > visible {
		v = v.prev
	}
	return v
}
