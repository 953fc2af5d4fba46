package osc

import (
	"sort"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
)

// block is an aligned range of an object, one full RPC long, that has dirty or unanswered data. It exists only then.
//
// All but the age list is guarded by the object's mutex; the age list, obj and index of a block on it by OSC.mu.
type block struct {
	obj   *Object
	index uint64
	// dirty holds the gathered pages in order of offset, none overlapping another.
	dirty []*page
	// writes holds frozen data in the order it was frozen: queued or being sent.
	writes []*write
	// mtime is the newest of the dirty pages.
	mtime attr.Time
	// size is the number of dirty bytes.
	size uint64

	since      time.Time
	prev, next *block
	aging      bool
}

// shortage is why gathering stopped.
type shortage uint8

const (
	enough shortage = iota
	noRoom
	noGrant
	stopped
)

// find gives the index of the first page that ends behind pos.
func find(pages []*page, pos uint64) int {
	if n := len(pages); n == 0 || pages[n-1].end <= pos {
		return n
	}
	return sort.Search(len(pages), func(i int) bool { return pages[i].end > pos })
}

// put gathers b at pos and returns how many bytes it took. Bytes that are dirty already are overwritten in place.
// Precondition: b lies in the block; the object's mutex is held.
func (bl *block) put(c *OSC, b []byte, pos uint64, lock ldlm.Handle) (int, shortage) {
	n := 0
	for i := find(bl.dirty, pos); n < len(b); {
		at := pos + uint64(n)
		limit := pos + uint64(len(b))
		if i < len(bl.dirty) {
			p := bl.dirty[i]
			if p.start <= at {
				p.lock = lock
				n += copy(p.bytes(at, p.end), b[n:])
				i++
				continue
			}
			limit = min(limit, p.start)
		}
		k, why := bl.grow(c, i, extent.Extent{Start: at, End: limit})
		if why != enough {
			return n, why
		}
		if k.fresh {
			i++
		}
		bl.size += k.end - at
		bl.dirty[i-1].lock = lock
		n += copy(bl.dirty[i-1].bytes(at, k.end), b[n:])
	}
	return n, enough
}

type growth struct {
	end   uint64
	fresh bool
}

// grow makes room for the start of e, which is not dirty and lies before page i: in the page before, or in a new one,
// which it inserts at i.
func (bl *block) grow(c *OSC, i int, e extent.Extent) (growth, shortage) {
	follows := i > 0 && bl.dirty[i-1].end == e.Start
	if follows && bl.dirty[i-1].room() > e.Start {
		p := bl.dirty[i-1]
		end := min(e.End, p.room())
		if why := c.reserve(end - e.Start); why != enough {
			return growth{}, why
		}
		p.end = end
		return growth{end: end}, enough
	}
	size := uint64(smallBytes)
	if follows || e.Len() > largeBytes/2 {
		size = largeBytes
	}
	end := min(e.End, e.Start&^(size-1)+size)
	if why := c.reserve(end - e.Start); why != enough {
		return growth{}, why
	}
	if !c.cache.take(c.share, int64(size)) {
		c.unreserve(end - e.Start)
		if size == smallBytes {
			return growth{}, noRoom
		}
		size = smallBytes
		end = min(e.End, e.Start&^(size-1)+size)
		if why := c.reserve(end - e.Start); why != enough {
			return growth{}, why
		}
		if !c.cache.take(c.share, int64(size)) {
			c.unreserve(end - e.Start)
			return growth{}, noRoom
		}
	}
	p := c.cache.page(int64(size))
	p.start, p.end, p.base = e.Start, end, e.Start&^(size-1)
	bl.dirty = append(bl.dirty, nil)
	copy(bl.dirty[i+1:], bl.dirty[i:])
	bl.dirty[i] = p
	return growth{end: end, fresh: true}, enough
}

// lookup gives the newest cached bytes at pos, at most up to end; or nil and how many bytes from pos are not cached.
// Precondition: the object's mutex is held.
func (bl *block) lookup(pos, end uint64) ([]byte, uint64) {
	if i := find(bl.dirty, pos); i < len(bl.dirty) {
		p := bl.dirty[i]
		if p.start <= pos {
			end = min(end, p.end)
			return p.bytes(pos, end), end - pos
		}
		end = min(end, p.start)
	}
	for i := len(bl.writes) - 1; i >= 0; i-- {
		w := bl.writes[i]
		if w.end <= pos || w.start >= end {
			continue
		}
		if w.start > pos {
			end = w.start
			continue
		}
		p := w.pages[find(w.pages, pos)]
		end = min(end, p.end)
		return p.bytes(pos, end), end - pos
	}
	return nil, end - pos
}

// full reports whether every byte is dirty, or a run of at least a quarter reaches the block's end: a stream has
// passed. Precondition: a byte at the block's end was just written.
func (bl *block) full(size uint64) bool {
	i := len(bl.dirty) - 1
	if i < 0 || bl.dirty[i].end != (bl.index+1)*size {
		return false
	}
	for i > 0 && bl.dirty[i-1].end == bl.dirty[i].start {
		i--
	}
	return (bl.index+1)*size-bl.dirty[i].start >= size/4
}
