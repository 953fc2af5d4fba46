package osc

import (
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/fs/ldlm"
)

// Sizes of the buffers that hold dirty data. A small one is a page of the machine, so that a random 4 KiB write costs
// 4 KiB; a large one keeps the list of a streaming write short: 16 pieces in an RPC of 1 MiB.
const (
	smallBytes = 4 << 10
	largeBytes = 64 << 10
)

// DefaultCacheBytes is the limit of a Cache made without one; below MinCacheBytes one full write would not fit.
const (
	DefaultCacheBytes = 256 << 20
	MinCacheBytes     = 256 << 10
)

// page is a run of dirty bytes of one object in one buffer.
//
// Invariant: base <= start < end <= base+len(buf), and base is a multiple of len(buf).
type page struct {
	start, end uint64
	base       uint64
	// lock is the one under which the newest of the bytes were gathered, 0 without locks. It covers some of them, and it is
	// held or being revoked for as long as they are dirty.
	lock ldlm.Handle
	buf  []byte
}

func (p *page) bytes(start, end uint64) []byte { return p.buf[start-p.base : end-p.base] }
func (p *page) room() uint64                   { return p.base + uint64(len(p.buf)) }

// share is what one OSC holds of a Cache.
type share struct {
	used int64 // guarded by Cache.mu: dirty, unanswered, read ahead
	kept int64 // guarded by Cache.mu: answered, not on the OST's disk
	// kick tells the OSC that its first block has become dirty, press that memory is short. Capacity 1.
	kick, press chan struct{}
}

// Cache is the memory of dirty data, shared by all OSCs of a process. Half of it is split evenly into parts that only
// their OSC can use, so that OSTs that are away never take all; the other half goes to whoever comes first. What is kept until it
// is on an OST's disk has memory of its own beside, divided in the same way (unstable.go).
//
// Invariant: the bytes of all buffers, in use and free, never exceed the two limits, or what was in use when they were lowered.
type Cache struct {
	limit     atomic.Int64 // changed under mu
	keptLimit atomic.Int64 // changed under mu
	// ahead is the bytes taken that hold what was read ahead.
	ahead atomic.Int64

	mu     sync.Mutex
	used   int64         // guarded by mu: bytes taken
	common int64         // guarded by mu: bytes taken beyond the takers' own parts
	free   int64         // guarded by mu: bytes in the free lists
	kept   int64         // guarded by mu: bytes of what is kept
	keptCo int64         // guarded by mu: those beyond the keepers' own parts
	shares []*share      // guarded by mu
	small  []*page       // guarded by mu: free pages with small buffers
	large  []*page       // guarded by mu: free pages with large buffers
	wake   chan struct{} // guarded by mu: closed when room, grant or an answer came; nil when nobody waits
}

// NewCache returns a cache of at most limitBytes, and as much again for what is kept; 0 is DefaultCacheBytes, less than
// MinCacheBytes is MinCacheBytes.
func NewCache(limitBytes int64) *Cache {
	if limitBytes == 0 {
		limitBytes = DefaultCacheBytes
	}
	c := &Cache{}
	c.limit.Store(max(limitBytes, MinCacheBytes))
	c.keptLimit.Store(c.limit.Load())
	return c
}

// Limit in bytes.
func (c *Cache) Limit() int64 { return c.limit.Load() }

// LeastLimit is the least that SetLimit takes: below it, one OST's full writes would wait for each other.
const LeastLimit = 32 << 20

// SetLimit changes the limit, to LeastLimit at least. What is in use beyond it is written back, and nothing new gets in until then.
func (c *Cache) SetLimit(bytes int64) {
	c.mu.Lock()
	c.limit.Store(max(bytes, LeastLimit))
	c.recountLocked()
	c.shrinkLocked(c.limit.Load() + c.kept)
	over := c.used > c.limit.Load()
	c.mu.Unlock()
	if over {
		c.press()
	}
	c.announce()
}

// ReadAhead is how many bytes hold what was read ahead and not read.
func (c *Cache) ReadAhead() int64 { return c.ahead.Load() }

// Used is how many bytes hold dirty or unanswered data now.
func (c *Cache) Used() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

func (c *Cache) join() *share {
	s := &share{kick: make(chan struct{}, 1), press: make(chan struct{}, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shares = append(c.shares, s)
	c.recountLocked()
	return s
}

// Precondition: s holds nothing.
func (c *Cache) leave(s *share) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, t := range c.shares {
		if t == s {
			c.shares = append(c.shares[:i], c.shares[i+1:]...)
			break
		}
	}
	c.recountLocked()
}

func (c *Cache) recountLocked() {
	c.common, c.keptCo = 0, 0
	for _, s := range c.shares {
		c.common += max(0, s.used-c.ownLocked())
		c.keptCo += max(0, s.kept-c.ownKeptLocked())
	}
}

func (c *Cache) ownLocked() int64 { return c.limit.Load() / int64(2*max(1, len(c.shares))) }

// take takes n bytes for s if they are there. The buffers then come from page and never fail.
func (c *Cache) take(s *share, n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.ownLocked()
	more := max(0, s.used+n-own) - max(0, s.used-own)
	if limit := c.limit.Load(); c.used+n > limit || more > 0 && c.common+more > limit-own*int64(len(c.shares)) {
		return false
	}
	c.used += n
	s.used += n
	c.common += more
	return true
}

// page returns a page with a buffer of size bytes, smallBytes or largeBytes, with undefined content.
// Precondition: size bytes were taken.
func (c *Cache) page(size int64) *page {
	c.mu.Lock()
	list := c.listLocked(size)
	if n := len(*list); n > 0 {
		p := (*list)[n-1]
		(*list)[n-1] = nil
		*list = (*list)[:n-1]
		c.free -= size
		c.mu.Unlock()
		return p
	}
	c.shrinkLocked(c.limit.Load() + c.keptLimit.Load())
	c.mu.Unlock()
	return &page{buf: make([]byte, size)}
}

func (c *Cache) listLocked(size int64) *[]*page {
	if size == smallBytes {
		return &c.small
	}
	return &c.large
}

// shrinkLocked forgets free buffers until all buffers are within most bytes.
func (c *Cache) shrinkLocked(most int64) {
	for c.used+c.kept+c.free > most && c.free > 0 {
		list := &c.large
		if len(*list) == 0 {
			list = &c.small
		}
		n := len(*list) - 1
		c.free -= int64(len((*list)[n].buf))
		(*list)[n] = nil
		*list = (*list)[:n]
	}
}

// give takes pages back.
func (c *Cache) give(s *share, pages []*page) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaveLocked(s, bytesOf(pages))
	c.freeLocked(pages)
}

// leaveLocked takes n bytes out of the account of what is dirty or unanswered.
func (c *Cache) leaveLocked(s *share, n int64) {
	own := c.ownLocked()
	c.common -= max(0, s.used-own) - max(0, s.used-n-own)
	c.used -= n
	s.used -= n
}

// freeLocked enters pages into the free lists.
func (c *Cache) freeLocked(pages []*page) {
	for i, p := range pages {
		size := int64(len(p.buf))
		c.free += size
		list := c.listLocked(size)
		*list = append(*list, p)
		pages[i] = nil
	}
}

// bytesOf is the memory of pages' buffers.
func bytesOf(pages []*page) (n int64) {
	for _, p := range pages {
		n += int64(len(p.buf))
	}
	return n
}

// trim gives the free buffers of an idle cache to the garbage collector.
func (c *Cache) trim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used == 0 && c.kept == 0 {
		c.small, c.large, c.free = nil, nil, 0
	}
}

// waiter returns a channel that is closed at the next announce. Ask for it before looking at what is waited for.
func (c *Cache) waiter() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wake == nil {
		c.wake = make(chan struct{})
	}
	return c.wake
}

// announce wakes all waiters: memory, grant or an answer has come.
func (c *Cache) announce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wake != nil {
		close(c.wake)
		c.wake = nil
	}
}

// press asks every OSC to write back.
func (c *Cache) press() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.shares {
		kick(s.press)
	}
}

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
