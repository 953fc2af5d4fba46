package lockcache

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Import is what a Cache wants of its import; *rpc.Import is one. Do must return soon after ctx ended.
type Import interface {
	Do(ctx context.Context, r *rpc.Request) error
}

// Why says why a lock, or bits of it, are given back.
type Why uint8

// The reasons.
const (
	// WhyBlocking: the server asked for it, because somebody wants it or its memory is short.
	WhyBlocking Why = iota + 1
	// WhyEarly: a request of this client is about to change what it covers. Revoke runs in the goroutine that called
	// Early or Acquire, which may be serving the kernel: it must not wait for anything that waits for that call.
	WhyEarly
	// WhyUnused: the LRU or the pool gives it back.
	WhyUnused
	// WhyClear: Clear was called.
	WhyClear
	// WhyEvicted: the lock is gone already, and somebody may still believe that he uses it; what it covers can only be
	// dropped, and nothing written back.
	WhyEvicted
)

var whyNames = [...]string{"", "blocking", "early", "unused", "clear", "evicted"}

// String is the reason in one lower-case word.
func (w Why) String() string { return whyNames[w] }

// Revocation is a lock, or some of its bits, on the way back.
type Revocation struct {
	Lock ldlm.Handle
	Res  ldlm.ResID
	// Desc is the lock as it was granted: extent, bits, mode.
	Desc ldlm.Desc
	// Bits are those given up of a lock on an inode, Desc.Bits when all are; 0 for other types.
	Bits ldlm.Bits
	// Discard: nothing need be written back, the object is being destroyed.
	Discard bool
	Why     Why
	// Data is what the request or Adopt brought.
	Data any
}

// Owner is who keeps things under the locks: the client's files and folders, or the objects of an OSC. No lock of this
// package is held during its methods, which may call the Cache.
type Owner interface {
	// Revoke writes back and drops what a lock, or the bits named, cover, in the kernel too; when it returns the lock goes
	// back. Nobody uses the lock and no Match finds it any more, but for calls with Request.Leaving: after them Revoke runs
	// once more. It may wait, also for requests to this target; errors of writing back are the owner's to report. ctx ends
	// with the Cache.
	Revoke(ctx context.Context, r *Revocation)
	// Glimpse fills v with what is known of the object of a lock held here, and returns false if that is nothing beyond
	// what the server knows. It must not wait.
	Glimpse(res ldlm.ResID, data any, v *ldlm.LVB) bool
	// Lost tells that all locks of this cache are gone: this client was evicted, or the target restarted without them.
	// It runs before any lock granted later is seen, must not wait, and must at once make all that was kept under these
	// locks unusable; Revoke with WhyEvicted follows for each lock.
	Lost()
	// Silent tells that the target has not been heard for half the eviction time. No Match finds a lock until it is heard
	// again. It clears the kernel's caches under the locks of this cache; it may wait, until ctx ends.
	Silent(ctx context.Context)
}

// Defaults of the parameters. Those that Lustre has are Lustre's (LUSTRE.md section 1), but for the times of DESIGN
// section 8.
const (
	DefaultMaxAge         = 600 * time.Second // lru_max_age
	DefaultBatch          = 16                // lru_cancel_batch
	DefaultRecalcPeriod   = 10 * time.Second  // pool.recalc_period
	DefaultRecalcPercent  = 10                // ns_recalc_pct
	DefaultDirtyAgeLimit  = 10 * time.Second  // dirty_age_limit
	DefaultEvictTime      = 60 * time.Second  // a silent client is evicted after this
	DefaultProlongMax     = 10                // lock timeouts
	DefaultRevokers       = 256
	defaultUnusedCeiling  = 100_000
	defaultUnusedRevokers = 4
	longestTick           = time.Second
)

// Options configures a Cache. Zero values are the defaults.
type Options struct {
	// Name names the namespace in parameters: the target's and the mount's.
	Name string
	// Import reaches the target. Its Callback must be, or call, Cache.Callback, and its OnConnect Cache.Connected. It
	// belongs to the caller, who closes it after the Cache.
	Import Import
	Owner  Owner
	// Seed is random, see ldlm.Config.
	Seed uint64
	// LockTimeout is the server's: called-back locks in use are prolonged every third of it.
	LockTimeout time.Duration
	// EvictTime is how long the server lets a client be silent; after half of it without an answer no lock is used.
	EvictTime time.Duration
	// LRUSize is lru_size: unused locks kept; 0 lets the server's pool decide, up to Ceiling.
	LRUSize int
	// Ceiling bounds unused locks when LRUSize is 0: 100,000 are about 65 MiB.
	Ceiling int
	// MaxAge is lru_max_age.
	MaxAge time.Duration
	// Replay says that locks are handed back after a restart of the target (Held, Restored): a new instance alone does
	// not lose them.
	Replay bool
	// NoEarly asks for locks without giving conflicting own ones back first: for an owner whose Revoke may wait for the
	// very call that asks.
	NoEarly bool
	// Revokers bounds the goroutines that give called-back locks back. Revoke may wait for what another client gives
	// back, whose own may wait for this one's: the bound must be above the locks that one client's calls hold pinned.
	Revokers int
	// Heard is when the import last heard of its target; nil when it cannot say. Without it, or when it is long ago, the
	// Cache pings.
	Heard func() time.Time
	// Now is the clock, time.Now.
	Now func() time.Time
	// Ticks drives all that goes by time; nil makes a ticker of at most a second.
	Ticks <-chan time.Time
	// Log may be nil.
	Log *slog.Logger
	// Stats may be nil.
	Stats *stats.Registry
}

func (o *Options) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.LockTimeout, ldlm.DefaultLimits().LockTimeout)
	def(&o.EvictTime, DefaultEvictTime)
	def(&o.MaxAge, DefaultMaxAge)
	if o.Ceiling <= 0 {
		o.Ceiling = defaultUnusedCeiling
	}
	if o.Revokers <= 0 {
		o.Revokers = DefaultRevokers
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Name == "" {
		o.Name = "namespace"
	}
}

// errEvicted ends what waits for a lock when all are lost.
var errEvicted error = &status.Error{Kind: status.IO, Text: "lockcache: all locks of this target were lost while one was waited for"}

var errClosed = status.Errorf(status.NotConnected, "lockcache: the lock cache is closed")

// Cache is a client's half of one target's namespace. All methods are safe for concurrent use.
type Cache struct {
	o      Options
	log    *slog.Logger
	ns     *ldlm.Namespace
	start  time.Time
	coarse atomic.Int64 // the time since start, as of the last tick or request
	heard  atomic.Int64 // when the target last answered or called
	silent atomic.Bool  // no lock is used
	evict  atomic.Int64 // EvictTime, as the target says
	usable atomic.Bool  // neither silent nor closed: what Match looks at

	set     settings
	figs    figures
	waiters waiters
	spare   sync.Pool // of *waiter
	// revocations holds *Revocation.
	revocations sync.Pool
	// cancelMemory holds *cancelling.
	cancelMemory sync.Pool
	called       called
	adoption     adoption
	hints        hints
	granted      grantedFlocks
	mine         heldFlocks
	leaving      leaving
	revokes      pool // called-back locks
	others       pool // all others on their way back
	cancels      canceller

	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	kick     chan struct{} // one token: more unused locks than wanted
	wg       sync.WaitGroup
	trimming atomic.Bool
	asking   atomic.Bool // a prolong or ping is on its way
	flocks   atomic.Uint64
	closed   sync.Once

	// life is read-locked while what the target granted is entered, and locked while all is lost.
	life      sync.RWMutex
	epoch     uint64 // counts losses; guarded by life
	connected bool   // at least once; guarded by life
	instance  uint64 // guarded by life
}

// New makes a Cache and starts its goroutine. It does no I/O. Precondition: o.Import and o.Owner are set.
func New(o Options) *Cache {
	o.setDefaults()
	c := &Cache{o: o, log: o.Log.With("namespace", o.Name), start: o.Now(), kick: make(chan struct{}, 1)}
	c.ns = ldlm.New(ldlm.Config{Mirror: true, Seed: o.Seed, Limits: ldlm.Limits{LockTimeout: o.LockTimeout}})
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.set.init(&o)
	c.evict.Store(int64(o.EvictTime))
	c.usable.Store(true)
	c.waiters.init()
	c.called.init()
	c.adoption.init()
	c.hints.init()
	c.leaving.init()
	c.revokes.init(c, o.Revokers)
	c.others.init(c, defaultUnusedRevokers)
	c.cancels.c = c
	c.register(o.Stats)
	c.wg.Go(c.run)
	return c
}

// Close stops the cache: what waits fails with status.NotConnected, running Revokes are told by their ctx and waited for,
// locks are left to the disconnect. Call Clear first to give them back in good order. A second Close does nothing more.
func (c *Cache) Close() {
	c.closed.Do(func() {
		c.life.Lock()
		c.usable.Store(false)
		c.stop()
		c.life.Unlock()
		c.waiters.fail(errClosed, false, false)
		c.revokes.close()
		c.others.close()
		c.cancels.close()
		if c.o.Stats != nil {
			c.unregister(c.o.Stats)
		}
	})
	c.wg.Wait()
}

// now is the time of the last tick or request: exact enough for ages of seconds, and free.
func (c *Cache) now() time.Duration { return time.Duration(c.coarse.Load()) }

// look reads the clock.
func (c *Cache) look() time.Duration {
	d := c.o.Now().Sub(c.start)
	c.coarse.Store(int64(d))
	return d
}

// answered notes that the target was heard.
func (c *Cache) answered() { c.heard.Store(int64(c.look())) }

// do sends a request and notes what its answer says of the target.
func (c *Cache) do(ctx context.Context, r *rpc.Request) error {
	err := c.o.Import.Do(ctx, r)
	if err == nil {
		c.answered()
	}
	return err
}

// Connected is for the import's OnConnect. When the target does not know this client's locks any more they are dropped,
// before any request flows: Owner.Lost, then Revoke with WhyEvicted in the background. It takes over the target's times. It
// returns whether the target was started again and its locks are to be handed back (Options.Replay): see Held.
func (c *Cache) Connected(r *wirepb.ConnectReply) (handBack bool) {
	if r.LockTimeoutMsec != 0 {
		l := c.ns.Limits()
		l.LockTimeout = time.Duration(r.LockTimeoutMsec) * time.Millisecond
		c.ns.SetLimits(l)
	}
	if r.EvictAfterMsec != 0 {
		c.evict.Store(int64(r.EvictAfterMsec) * int64(time.Millisecond))
	}
	c.life.Lock()
	lost := c.connected && (!r.Recovered || r.Instance != c.instance && !c.o.Replay)
	if c.connected && !lost && r.Instance != c.instance {
		handBack = true
		c.waiters.fail(errAgain, true, false) // the new start does not know who waits
	}
	c.connected, c.instance = true, r.Instance
	c.life.Unlock()
	if lost {
		// What applications hold is handed back to a target that knows this client still, and what they wait for is asked again.
		c.lose(r.Recovered)
	}
	c.answered()
	return handBack
}

// Remote is the target's handle of a lock that is held or on its way back; false when it is gone or was not granted yet.
func (c *Cache) Remote(own ldlm.Handle) (ldlm.Handle, bool) {
	l, ok := c.ns.Lock(ldlm.Local, own)
	return l.Remote, ok && l.Granted && l.Remote != 0
}

// Evicted drops every lock at once; see Owner.Lost. What waits for a lock fails with status.IO.
func (c *Cache) Evicted() { c.lose(false) }

// lose is Evicted; keep leaves applications' locks, and their wishes, in place.
func (c *Cache) lose(keep bool) {
	if !keep {
		c.mine.clear()
	}
	c.life.Lock()
	c.epoch++
	held := c.ns.Locks(ldlm.Local, nil)
	for i := range held {
		c.ns.Drop(held[i].Handle)
	}
	if keep {
		c.waiters.askAgain()
	}
	c.waiters.fail(errEvicted, false, keep)
	c.called.clear()
	c.cancels.forgetAll()
	c.hints.clear()
	c.life.Unlock()
	c.figs.lost.Inc()
	c.log.Warn("all locks of the target are lost", "locks", len(held))
	c.o.Owner.Lost()
	c.spawn(func() { c.revokeLost(held) })
}

// revokeLost lets the owner drop what lost locks covered.
func (c *Cache) revokeLost(held []ldlm.LockInfo) {
	for len(held) > 0 && c.ctx.Err() == nil {
		n := min(len(held), lostBatch)
		b := newBatch(n)
		for i := range held[:n] {
			l := &held[i]
			if !l.Granted {
				b.done()
				continue
			}
			c.others.push(&job{act: actRevoke, why: WhyEvicted, own: l.Handle, res: l.Res, desc: l.Desc, data: l.Data,
				bits: bitsOf(l.Res, l.Desc.Bits), batch: b})
		}
		<-b.over
		held = held[n:]
	}
}

// lostBatch bounds the queue of what is dropped after a loss.
const lostBatch = 256

// spawn runs f in a goroutine that Close waits for; after Close it does nothing.
func (c *Cache) spawn(f func()) {
	c.life.RLock()
	defer c.life.RUnlock()
	if c.ctx.Err() == nil {
		c.wg.Go(f)
	}
}

// spawnAsk is spawn of w.run, without a closure; run tells wg itself. false after Close.
func (c *Cache) spawnAsk(w *waiter) bool {
	c.life.RLock()
	defer c.life.RUnlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.wg.Add(1)
	go w.run()
	return true
}

// bitsOf is Revocation.Bits of a whole lock.
func bitsOf(res ldlm.ResID, b ldlm.Bits) ldlm.Bits {
	if res.Type == ldlm.TypeInodeBits {
		return b
	}
	return 0
}

// Held appends the locks that a replay hands back, as ldlm.Replay requests: granted ones, those too whose Revoke still runs
// and may write back under them, but none whose cancel is on its way. What still waits is asked for again by itself. The locks of one resource come in no certain order; they do not conflict.
func (c *Cache) Held(to []ldlm.LockInfo) []ldlm.LockInfo {
	first := len(to)
	to = c.ns.Locks(ldlm.Local, to)
	kept := to[:first]
	for _, l := range to[first:] {
		if !l.Granted || l.Pins == 0 && !l.Unused && !c.called.converting(l.Handle) && !c.leaving.has(l.Res, l.Handle) {
			continue
		}
		kept = append(kept, l)
	}
	clear(to[len(kept):])
	return kept
}

// Restored enters the target's answer to a lock handed back: its new handle there. With an error the lock is lost.
func (c *Cache) Restored(own, remote ldlm.Handle, err error) {
	if err == nil {
		c.ns.Settle(own, &ldlm.Answer{Remote: remote})
		return
	}
	l, ok := c.ns.Lock(ldlm.Local, own)
	c.called.forget(own)
	if !ok || !c.ns.Drop(own) {
		return
	}
	c.log.Warn("a lock could not be handed back", "resource", l.Res, "error", err)
	if l.Granted {
		c.others.push(&job{act: actRevoke, own: own, res: l.Res, desc: l.Desc, data: l.Data, why: WhyEvicted,
			bits: bitsOf(l.Res, l.Desc.Bits)})
	}
}

// Stats are the namespace's figures; see ldlm.Namespace.Stats for their cost.
func (c *Cache) Stats() ldlm.Stats { return c.ns.Stats() }

// UnusedCount is the number of locks in the LRU.
func (c *Cache) UnusedCount() int64 { return c.ns.UnusedCount() }

// Resource is what this client knows of a resource's locks.
func (c *Cache) Resource(id ldlm.ResID) (ldlm.ResourceInfo, bool) { return c.ns.Resource(c.now(), id) }
