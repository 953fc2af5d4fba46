package target

import (
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/fs/stats"
)

// Bounds of lu_cache_percent (DESIGN section 9; the default is Lustre's).
const (
	CachePercentDefault = 20
	cachePercentMost    = 50
	// cacheUnknown is the limit of a process that does not know the machine's memory.
	cacheUnknown = 256 << 20
)

// The limit shrinks while less than 1/pressLow of the memory is available, and grows back above 1/pressHigh. Between them it
// stays, so that it does not swing.
const (
	pressLow, pressHigh = 20, 10
	// squeezeLeast is what a budget keeps under any pressure: what is in use has to be somewhere.
	squeezeLeast = 1 << 20
	// giveBack is how much a squeeze has to free for the runtime to be told to return it at once.
	giveBack = 64 << 20
)

// Cache is an object cache that lives within a Budget. Its methods may be called at any time between Join and Leave.
type Cache interface {
	// Used is its memory in bytes.
	Used() int64
	// Uses grows with every search.
	Uses() int64
	// Purge frees about so many bytes of what was used least and has no user, and returns how many it freed; 0: all is in use.
	Purge(bytes int64) int64
}

// Budget bounds the memory that the object caches of all targets of a process take together: lu_cache_percent of the
// machine's. Caches tell it what they take. When that is too much, idle ones give back, and without those the one that takes most:
// targets that are busy share evenly, and one that has become idle does not keep what they need. Nothing is refused because the
// budget is full: what is in use stays.
type Budget struct {
	memory  int64        // of the machine, bytes; 0: unknown
	percent atomic.Int64 // lu_cache_percent
	used    atomic.Int64
	squeeze atomic.Int64 // the limit under pressure; 0: no pressure
	pressed atomic.Int64 // times that pressure has lowered the limit

	mu     sync.Mutex                // held to change caches
	caches atomic.Pointer[[]*member] // never nil
}

type member struct {
	Cache
	uses atomic.Int64 // at the last look
	idle atomic.Bool  // not used between the last two looks
}

// NewBudget makes the budget of a process on a machine with memoryBytes of memory; 0: unknown, then the limit is 256 MiB at the
// default percentage.
func NewBudget(memoryBytes uint64) *Budget {
	b := &Budget{memory: int64(min(memoryBytes, 1<<62))}
	b.percent.Store(CachePercentDefault)
	b.caches.Store(&[]*member{})
	return b
}

// Limit is what the caches may take now, in bytes.
func (b *Budget) Limit() int64 {
	l := b.ruled()
	if s := b.squeeze.Load(); s > 0 {
		l = min(l, s)
	}
	return l
}

// ruled is the limit without pressure.
func (b *Budget) ruled() int64 {
	if b.memory == 0 {
		return cacheUnknown / CachePercentDefault * b.percent.Load()
	}
	return b.memory / 100 * b.percent.Load()
}

// Used is what the caches take, in bytes.
func (b *Budget) Used() int64 { return b.used.Load() }

// Rule is where the limit comes from, in words.
func (b *Budget) Rule() string {
	of := fmt.Sprintf("%d MiB of memory", b.memory>>20)
	if b.memory == 0 {
		of = fmt.Sprintf("%d MiB: the memory is not known", cacheUnknown/CachePercentDefault*100>>20)
	}
	if b.squeeze.Load() > 0 {
		of += ", lowered because memory is short"
	}
	return fmt.Sprintf("lu_cache_percent: %d %% of %s, shared by the targets of the process", b.percent.Load(), of)
}

// Join adds a cache.
func (b *Budget) Join(c Cache) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := append([]*member{}, *b.caches.Load()...)
	all = append(all, &member{Cache: c})
	b.caches.Store(&all)
}

// Leave takes a cache out, with all that it has charged. It charges nothing more.
func (b *Budget) Leave(c Cache) {
	b.used.Add(-c.Used())
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*member
	for _, o := range *b.caches.Load() {
		if o.Cache != c {
			all = append(all, o)
		}
	}
	b.caches.Store(&all)
}

// Charge tells that a cache takes so many bytes more, or fewer, and reports whether it is time to call Trim.
func (b *Budget) Charge(bytes int64) bool { return b.used.Add(bytes) > b.Limit() }

// trimMost bounds what one call of Trim frees, so that no request pays for many.
const trimMost = 64 << 10

// Trim brings the caches towards the limit. No lock of a cache may be held.
func (b *Budget) Trim() { b.reclaim(min(b.used.Load()-b.Limit(), trimMost)) }

// reclaim frees about so many bytes if the caches have as much without a user, and returns how many it freed.
func (b *Budget) reclaim(bytes int64) (freed int64) {
	for freed < bytes {
		caches := *b.caches.Load()
		first := giver(caches)
		if first == nil {
			return freed
		}
		if n := first.Purge(bytes - freed); n > 0 {
			freed += n
			continue
		}
		for _, c := range caches { // All of the first is in use.
			if c != first && freed < bytes {
				freed += c.Purge(bytes - freed)
			}
		}
		return freed
	}
	return freed
}

// giver chooses who gives back first; nil when nobody has anything.
func giver(caches []*member) (first *member) {
	most, idle := int64(0), false
	for _, c := range caches {
		n, rests := c.Used(), c.idle.Load()
		if n > most && rests == idle || n > 0 && rests && !idle {
			first, most, idle = c, n, rests
		}
	}
	return first
}

// SetPercent sets lu_cache_percent; what is above it and has no user is freed before it returns.
func (b *Budget) SetPercent(percent int) error {
	if percent < 1 || percent > cachePercentMost {
		return fmt.Errorf("lu_cache_percent is a number from 1 to %d, not %d", cachePercentMost, percent)
	}
	b.percent.Store(int64(percent))
	b.reclaim(b.used.Load() - b.Limit())
	return nil
}

// Look has to be called every few seconds, with the bytes of the machine's memory that are available. It finds out who is idle;
// and while memory is short the caches give back a quarter of what they take at each look.
func (b *Budget) Look(bytes uint64) {
	for _, c := range *b.caches.Load() {
		n := c.Uses()
		c.idle.Store(c.uses.Swap(n) == n)
	}
	switch {
	case b.memory == 0:
		return
	case bytes >= uint64(b.memory/pressHigh):
		b.squeeze.Store(0)
		return
	case bytes >= uint64(b.memory/pressLow):
		return
	}
	used := min(b.used.Load(), b.Limit())
	b.squeeze.Store(max(used/4*3, squeezeLeast))
	b.pressed.Add(1)
	if b.reclaim(b.used.Load()-b.Limit()) >= giveBack {
		debug.FreeOSMemory()
	}
}

// Register enters the parameter and the figures of the process.
func (b *Budget) Register(reg *stats.Registry) {
	reg.Param("lu_cache_percent", "Memory that the object caches of all targets of the process may take together, in percent of the machine's, 1 to 50.",
		func() string { return strconv.FormatInt(b.percent.Load(), 10) },
		func(text string) error {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				return fmt.Errorf("lu_cache_percent is a number from 1 to %d, not %q", cachePercentMost, text)
			}
			return b.SetPercent(n)
		})
	reg.Func("lu_cache.limit_bytes", "Memory that the object caches may take now.", b.Limit)
	reg.Func("lu_cache.used_bytes", "Memory that the object caches take.", b.Used)
	reg.Func("lu_cache.pressed", "Times that the limit was lowered because memory was short.", b.pressed.Load)
}
