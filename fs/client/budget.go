package client

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/stats"
)

// objectBytes is what an inode that is known under a lock costs: the lock and its resource, the node with one name, the
// entries of the tables, and the quarter of a lock and resource that is kept spare once others were given back. Measured with names
// of 15 bytes: 1,120 to 1,250 while the tables grow, as their arrays are fuller or less, 1,270 to 1,340 at the limit (server/cluster,
// TestBytesPerObject).
const objectBytes = 1280

// spareBytes is what a mount's namespace keeps of free locks and resources beside those in use, and leastObjects what it may hold
// however many mounts there are.
const (
	spareBytes   = 160 << 10
	leastObjects = 64
)

// Limits of the memory of cached objects (DESIGN section 9): a part of the machine's memory, shared by all mounts of a
// process.
const (
	// budgetPart is the part of the machine's memory.
	budgetPart = 40
	budgetMost = 256 << 20
	budgetLow  = 1 << 20
)

// Budget bounds the memory that all mounts of a process take for inodes that are known under locks, and for pages of folders. It follows the number of
// mounts: each may hold an equal part.
type Budget struct {
	mu     sync.Mutex
	limit  int64                       // bytes; guarded by mu
	caches map[*lockcache.Cache]*pages // of each mount; guarded by mu
}

// NewBudget makes the budget of a process on a machine with memoryBytes of memory; 0 takes the most there is.
func NewBudget(memoryBytes uint64) *Budget {
	b := &Budget{limit: budgetMost, caches: make(map[*lockcache.Cache]*pages)}
	if memoryBytes != 0 {
		b.limit = int64(max(budgetLow, min(memoryBytes/budgetPart, budgetMost)))
	}
	return b
}

// Limit in bytes.
func (b *Budget) Limit() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limit
}

// share is what each mount may take.
func (b *Budget) share() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limit / int64(max(1, len(b.caches)))
}

// join gives a mount's lock cache and its pages their part.
func (b *Budget) join(c *lockcache.Cache, p *pages, prefix string, reg *stats.Registry) {
	b.mu.Lock()
	b.caches[c] = p
	b.shareLocked()
	b.mu.Unlock()
	if reg == nil {
		return
	}
	reg.Param(prefix+"max_cached_objects_mb",
		"Memory for inodes that are known under locks and pages of folders, in MiB, shared by the mounts of the process: 1/40 of the machine's, 256 at most.",
		func() string { return strconv.FormatInt(b.Limit()>>20, 10) }, b.set)
}

func (b *Budget) leave(c *lockcache.Cache) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.caches, c)
	b.shareLocked()
}

func (b *Budget) set(text string) error {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 32)
	if err != nil || n < 1 || n > 1<<20 {
		return fmt.Errorf("client: max_cached_objects_mb is a number from 1 to %d, not %q", 1<<20, text)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit = n << 20
	b.shareLocked()
	return nil
}

func (b *Budget) shareLocked() {
	if len(b.caches) == 0 {
		return
	}
	share := b.limit / int64(len(b.caches))
	each := max((share-share/pagesPart-spareBytes)/objectBytes, leastObjects)
	for c, p := range b.caches {
		c.SetCeiling(int(each))
		p.limit.Store(share / pagesPart)
		p.shrink()
	}
}
