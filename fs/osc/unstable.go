package osc

// This file is the memory of what is kept: answered by an OST and not on its disk yet. Lustre calls such pages unstable.

// SetKeptLimit changes how much memory holds what is kept, MinCacheBytes at least. What is kept beyond it stays until it is
// on disk.
func (c *Cache) SetKeptLimit(bytes int64) {
	c.mu.Lock()
	c.keptLimit.Store(max(bytes, MinCacheBytes))
	c.recountLocked()
	c.shrinkLocked(c.limit.Load() + c.keptLimit.Load())
	c.mu.Unlock()
	c.announce()
}

// KeptLimit in bytes.
func (c *Cache) KeptLimit() int64 { return c.keptLimit.Load() }

// Kept is how many bytes hold answered data that is not known to be on disk. Where they had no room beside what is dirty, Used
// counts them.
func (c *Cache) Kept() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept
}

func (c *Cache) ownKeptLocked() int64 { return c.keptLimit.Load() / int64(2*max(1, len(c.shares))) }

// keep moves n bytes of s from what is unanswered to what is kept, if they fit; otherwise they stay where they are, and writers
// find less room. half says that half of what s may keep is taken: the OST should commit.
func (c *Cache) keep(s *share, n int64) (moved, half bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.ownKeptLocked()
	common := c.keptLimit.Load() - own*int64(len(c.shares))
	mine := max(0, s.kept-own)
	more := max(0, s.kept+n-own) - mine
	most := own + common - (c.keptCo - mine)
	if c.kept+n > c.keptLimit.Load() || c.keptCo+more > max(common, c.keptCo) {
		return false, true
	}
	c.leaveLocked(s, n)
	c.kept += n
	s.kept += n
	c.keptCo += more
	return true, 2*s.kept >= most
}

// unkeep frees pages that were moved by keep.
func (c *Cache) unkeep(s *share, pages []*page) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := bytesOf(pages)
	own := c.ownKeptLocked()
	c.keptCo -= max(0, s.kept-own) - max(0, s.kept-n-own)
	c.kept -= n
	s.kept -= n
	c.freeLocked(pages)
}
