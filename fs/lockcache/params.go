package lockcache

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/stats"
)

// settings are the parameters; all can change at any time.
type settings struct {
	size     atomic.Int64 // lru_size; 0: dynamic
	ceiling  atomic.Int64 // unused locks at most when dynamic
	most     atomic.Int64 // unused locks beyond which Unpin asks for a trim
	maxAge   atomic.Int64
	batch    atomic.Int64
	recalc   atomic.Int64
	percent  atomic.Int64
	dirtyAge atomic.Int64
	prolongs atomic.Int64 // lock timeouts that a called-back lock is kept alive
	elc      atomic.Bool

	mu    sync.Mutex
	pool  ldlm.ClientPool // guarded by mu
	limit uint64          // the server's; guarded by mu
}

func (s *settings) init(o *Options) {
	s.ceiling.Store(int64(o.Ceiling))
	s.setSize(int64(o.LRUSize))
	s.maxAge.Store(int64(o.MaxAge))
	s.batch.Store(DefaultBatch)
	s.recalc.Store(int64(DefaultRecalcPeriod))
	s.percent.Store(DefaultRecalcPercent)
	s.dirtyAge.Store(int64(DefaultDirtyAgeLimit))
	s.prolongs.Store(DefaultProlongMax)
	s.elc.Store(true)
}

func (s *settings) setSize(n int64) {
	s.size.Store(n)
	if n == 0 {
		n = s.ceiling.Load()
	}
	s.most.Store(n)
}

// SetCeiling changes how many unused locks are kept at most while lru_size is 0. What is above goes soon.
func (c *Cache) SetCeiling(n int) {
	c.set.ceiling.Store(int64(max(n, 1)))
	if size := c.set.size.Load(); size == 0 {
		c.set.setSize(0)
		wake(c.kick)
	}
}

func (s *settings) period() time.Duration { return time.Duration(s.recalc.Load()) }

func (s *settings) prolongMax(timeout time.Duration) time.Duration {
	return time.Duration(s.prolongs.Load()) * timeout
}

// policy is the LRU's as it is now. A fixed lru_size takes no account of the pool.
func (s *settings) policy() ldlm.LRU {
	p := ldlm.LRU{Max: int(s.most.Load()), MaxAge: time.Duration(s.maxAge.Load())}
	if s.size.Load() == 0 {
		s.mu.Lock()
		p.Pool = s.pool
		s.mu.Unlock()
	}
	return p
}

// observe enters a server's pool and reports whether to trim now.
func (s *settings) observe(slv, limit uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
	return s.pool.Observe(slv, uint64(s.percent.Load()))
}

func (s *settings) poolFigures() (slv, limit, factor uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pool.SLV, s.limit, max(1, s.pool.Factor)
}

// figures are what the cache has done, beside the namespace's own counts.
type figures struct {
	revoked      [len(whyNames)]*stats.Counter
	enqueueTime  *stats.Histogram
	waits        *stats.Counter
	blocking     *stats.Counter
	completion   *stats.Counter
	glimpse      *stats.Counter
	early        *stats.Counter
	converts     *stats.Counter
	prolongs     *stats.Counter
	stuck        *stats.Counter
	adopted      *stats.Counter
	adoptedTwice *stats.Counter
	contended    *stats.Counter
	lost         *stats.Counter
	silences     *stats.Counter
	sheltered    *stats.Counter

	cancelRPCs, cancelledLocks *stats.Counter

	mu                    sync.Mutex
	last                  ldlm.Counts // guarded by mu
	grantRate, cancelRate int64       // guarded by mu
}

// rates brings the pool's rates up to date.
func (f *figures) rates(c ldlm.Counts, passed time.Duration) {
	sec := max(1, int64(passed/time.Second))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.grantRate, f.cancelRate = int64(c.Granted-f.last.Granted)/sec, int64(c.Cancelled-f.last.Cancelled)/sec
	f.last = c
}

func (f *figures) rate(cancel bool) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if cancel {
		return f.cancelRate
	}
	return f.grantRate
}

func (c *Cache) path() string { return "ldlm.namespaces." + stats.Element(c.o.Name) }

func (c *Cache) unregister(reg *stats.Registry) { reg.Unregister(c.path()) }

// register makes the figures, and enters all into a registry if there is one.
func (c *Cache) register(reg *stats.Registry) {
	at := c.path() + "."
	counter := func(name, help string) *stats.Counter {
		if reg == nil {
			return new(stats.Counter)
		}
		return reg.Counter(at+name, help)
	}
	f := &c.figs
	for w := WhyBlocking; int(w) < len(whyNames); w++ {
		f.revoked[w] = counter("revoked_"+w.String(), "Locks, or bits of them, revoked here for this reason: "+w.String()+".")
	}
	f.revoked[0] = new(stats.Counter)
	f.waits = counter("enqueue_waits", "Requests for locks that had to wait.")
	f.blocking = counter("ldlm_bl_callback", "Blocking ASTs received.")
	f.completion = counter("ldlm_cp_callback", "Completion ASTs received.")
	f.glimpse = counter("ldlm_gl_callback", "Glimpse ASTs received.")
	f.early = counter("early_cancels", "Locks whose cancel went with another request.")
	f.converts = counter("bits_given_up", "Locks that gave up some of their bits and were kept.")
	f.prolongs = counter("prolonged", "Times that a called-back lock in use was kept alive.")
	f.stuck = counter("prolong_gave_up", "Called-back locks that were used longer than prolong_max allows.")
	f.adopted = counter("adopted", "Locks that came with the answers to other requests.")
	f.adoptedTwice = counter("adopted_twice", "Of those, locks on what was locked already, given back.")
	f.contended = counter("contention_hints", "Answers that asked to read and write without locks.")
	f.lost = counter("evictions", "Times that all locks were lost.")
	f.silences = counter("silences", "Times that the target was silent for half the eviction time.")
	f.sheltered = counter("sheltered", "Calls served under a lock on its way back.")
	f.cancelRPCs = counter("cancel_rpcs", "CANCEL requests sent.")
	f.cancelledLocks = counter("cancels_sent", "Locks in CANCEL requests.")
	f.enqueueTime = new(stats.Histogram)
	if reg == nil {
		return
	}
	f.enqueueTime = reg.Histogram(at+"ldlm_enqueue", "Time until a lock that was asked for was granted or denied.")
	c.ns.Register(reg, c.o.Name)
	c.registerPool(reg, at+"pool.")
	c.registerParams(reg, at)
	reg.Func(at+"lock_called_count", "Locks called back and not given back yet.", c.called.len)
	reg.Func(at+"cancel_queue", "Locks whose cancel is queued or not answered.", c.cancels.depth)
	reg.Func(at+"revoke_queue", "Called-back locks that are queued for, or in, their owner's hands.", c.revokes.depth)
}

// registerPool enters the pool's figures under Lustre's names.
func (c *Cache) registerPool(reg *stats.Registry, at string) {
	figure := func(get func() uint64) func() int64 { return func() int64 { return int64(min(get(), 1<<62)) } }
	reg.Func(at+"limit", "Locks that the server's memory is meant for, as it said last.",
		figure(func() uint64 { _, limit, _ := c.set.poolFigures(); return limit }))
	reg.Func(at+"server_lock_volume", "The server lock volume: lock seconds that a client's unused locks may have.",
		figure(func() uint64 { slv, _, _ := c.set.poolFigures(); return slv }))
	reg.Func(at+"granted", "Locks known, waiting ones included.", c.ns.LockCount)
	reg.Func(at+"grant_rate", "Locks granted per second, over the last period.", func() int64 { return c.figs.rate(false) })
	reg.Func(at+"cancel_rate", "Locks given back per second, over the last period.", func() int64 { return c.figs.rate(true) })
	reg.Param(at+"lock_volume_factor", "What the client lock volume is multiplied with.",
		func() string { _, _, f := c.set.poolFigures(); return strconv.FormatUint(f, 10) },
		func(text string) error {
			n, err := number("lock_volume_factor", text, 1, 1<<31)
			if err == nil {
				c.set.mu.Lock()
				c.set.pool.Factor = uint64(n)
				c.set.mu.Unlock()
			}
			return err
		})
}

func number(name, text string, low, high int64) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("lockcache: %s is a number from %d to %d, not %q", name, low, high, text)
	}
	return n, nil
}

// param is a parameter whose number is a multiple of unit.
type param struct {
	name, help string
	v          *atomic.Int64
	unit       time.Duration
	low, high  int64
}

func (p *param) register(reg *stats.Registry, at string) {
	reg.Param(at+p.name, p.help, func() string { return strconv.FormatInt(p.v.Load()/int64(p.unit), 10) },
		func(text string) error {
			n, err := number(p.name, text, p.low, p.high)
			if err == nil {
				p.v.Store(n * int64(p.unit))
			}
			return err
		})
}

func (c *Cache) registerParams(reg *stats.Registry, at string) {
	reg.Param(at+"lru_size", "Shows the unused locks. A number fixes how many are kept, 0 lets the server's pool decide, clear gives all back.",
		func() string { return strconv.FormatInt(c.ns.UnusedCount(), 10) }, c.setLRUSize)
	for _, p := range []param{
		{"lru_max_age", "Age in milliseconds at which an unused lock is given back; 0: never.", &c.set.maxAge, time.Millisecond, 0, 1 << 40},
		{"lru_cancel_batch", "Unused locks given back at a time.", &c.set.batch, 1, 1, 4096},
		{"ns_recalc_pct", "Fall of the server lock volume in percent at which unused locks are given back at once.", &c.set.percent, 1, 0, 100},
		{"dirty_age_limit", "Seconds unused after which a lock that is asked for its size is given back; 0: never.", &c.set.dirtyAge, time.Second, 0, 1 << 31},
		{"prolong_max", "Lock timeouts that a called-back lock in use is kept alive.", &c.set.prolongs, 1, 0, 1000},
		{"pool.recalc_period", "Seconds between looks at the LRU.", &c.set.recalc, time.Second, 1, 3600},
	} {
		p.register(reg, at)
	}
	reg.Param(at+"early_lock_cancel", "1: cancels of conflicting own locks go with the request that needs it.", func() string {
		if c.set.elc.Load() {
			return "1"
		}
		return "0"
	}, func(text string) error {
		n, err := number("early_lock_cancel", text, 0, 1)
		if err == nil {
			c.set.elc.Store(n == 1)
		}
		return err
	})
}

// setLRUSize sets lru_size; "clear" gives all unused locks back, in the background.
func (c *Cache) setLRUSize(text string) error {
	if strings.TrimSpace(text) == "clear" {
		c.spawn(func() {
			if n, err := c.Clear(c.ctx); err != nil {
				c.log.Info("giving unused locks back was interrupted", "locks", n, "error", err)
			}
		})
		return nil
	}
	n, err := number("lru_size", text, 0, 1<<31)
	if err != nil {
		return err
	}
	c.set.setSize(n)
	wake(c.kick)
	return nil
}
