package client

import "sync/atomic"

// changeSlots is a power of two. Two files that share a slot only cost a lookup that was not needed.
const changeSlots = 1 << 16

// changes remembers when this mount last changed a file, in a table of fixed size: attributes that were fetched before
// must not be handed to the kernel after, because the kernel would take them for newer than its own.
type changes struct {
	seq   atomic.Uint64
	all   atomic.Uint64 // when everything may have changed
	slots [changeSlots]atomic.Uint64
}

// now gives the point in time to compare with: take it before attributes are asked for.
func (c *changes) now() uint64 { return c.seq.Load() }

// mark notes that ino has changed: call it when the change was answered, before the kernel hears of it.
func (c *changes) mark(ino uint64) { c.markSince(ino, 0) }

// markSince is mark, and reports whether nothing else has changed ino since t: then the answer is the newest.
func (c *changes) markSince(ino, t uint64) bool {
	s := &c.slots[mix(ino)&(changeSlots-1)]
	n := c.seq.Add(1)
	for {
		old := s.Load()
		if old >= n {
			return false
		}
		if s.CompareAndSwap(old, n) {
			return old <= t && c.all.Load() <= t
		}
	}
}

// markAll notes that everything may have changed.
func (c *changes) markAll() { c.all.Store(c.seq.Add(1)) }

// since reports whether ino may have changed after the point in time t.
func (c *changes) since(ino, t uint64) bool {
	return c.slots[mix(ino)&(changeSlots-1)].Load() > t || c.all.Load() > t
}

// mix spreads the bits of an inode number (the finaliser of a 64-bit hash).
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}
