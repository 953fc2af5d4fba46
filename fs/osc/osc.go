package osc

import (
	"context"
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Defaults. DefaultMaxDirtyBytes is the field's max_dirty_mb for fast networks; the shared Cache is mostly smaller.
// DefaultRPCBytes is one request of the kernel: sending starts with the first. BenchmarkWrite in server/cluster compares 1,
// 2 and 4 MiB; on a busy 2-core machine they could not be told apart.
const (
	DefaultMaxDirtyBytes = 512 << 20
	DefaultRPCBytes      = 1 << 20
	DefaultMaxAge        = 3 * time.Second
	defaultSenders       = 8
	minRPCBytes          = largeBytes
)

// Import is what an OSC wants of its import; *rpc.Import is one. Do must return soon after ctx ended.
type Import interface {
	Do(ctx context.Context, r *rpc.Request) error
}

// Owner is whom new space in an object is charged to.
type Owner struct{ UID, GID, Project uint32 }

// Options configures an OSC.
type Options struct {
	// Import reaches the OST. It belongs to the caller, who closes it after the OSC.
	Import Import
	// Index of the OST; Name is the target's, "strake-OST0001", made from Index when empty.
	Index layout.OSTIndex
	Name  string
	// MaxDirtyBytes bounds dirty and unanswered data of this OST; 0 is DefaultMaxDirtyBytes. The Cache bounds it too.
	MaxDirtyBytes int64
	// RPCBytes is the size of a full WRITE, a power of two from 64 KiB to wire.BulkMax; 0 is DefaultRPCBytes.
	RPCBytes int
	// MaxInFlight bounds WRITEs in flight; 0 is 8. The import's own bound counts too.
	MaxInFlight int
	// MaxAge is how long data stays dirty; 0 is DefaultMaxAge.
	MaxAge time.Duration
	// AheadWait is the time of a small READ above which is read ahead; 0 is DefaultAheadWait, 1 ns is always.
	AheadWait time.Duration
	// Cache is the memory of dirty data, shared by all OSCs of a process. nil makes one of the default size.
	Cache *Cache
	// Locks makes a lock cache: objects are used under extent locks, as they must be where anybody else may use them. nil uses
	// them without locks.
	Locks *LockOptions
	// Log may be nil.
	Log *slog.Logger
	// Stats may be nil.
	Stats *stats.Registry
}

// OSC is one OST seen from a client. Safe for concurrent use.
type OSC struct {
	o     Options
	log   *slog.Logger
	cache *Cache
	share *share
	// block is the length of a block: RPCBytes.
	block uint64
	// brw is the largest bulk that the target takes.
	brw  atomic.Uint64
	life lifetime
	wg   sync.WaitGroup
	brws sync.Pool
	// tickets holds those that no write refers to any more.
	tickets sync.Pool
	figs    figures

	locks      *lockcache.Cache // nil: no locks
	kernel     atomic.Pointer[Kernel]
	epoch      atomic.Uint64 // counts losses of all locks
	covers     covers
	live       live
	recovering recovering
	loose      loose
	aheads     aheads
	// maxDirty, maxInFlight and maxRPC are parameters: bytes, requests, bytes.
	maxDirty, maxInFlight, maxRPC atomic.Int64

	mu      sync.Mutex
	grant   grant
	dirty   uint64 // guarded by mu: bytes gathered and not frozen
	pending uint64 // guarded by mu: bytes frozen and not answered
	age     ageList
	armed   bool   // guarded by mu: the write-back goroutine watches the age list
	seq     uint64 // guarded by mu
	kept    keptLog
	oldest  *write // guarded by mu: unanswered writes in order of seq
	newest  *write
	lines   [2]line // guarded by mu: writes that may be sent, under locks and under none
	closed  bool    // guarded by mu
	writes  []*write
	blocks  []*block
}

// New makes an OSC and starts its write-back. It does no I/O.
func New(o Options) *OSC {
	if o.Name == "" {
		o.Name = fmt.Sprintf("OST%04x", uint32(o.Index))
	}
	if o.MaxDirtyBytes == 0 {
		o.MaxDirtyBytes = DefaultMaxDirtyBytes
	}
	if o.RPCBytes == 0 {
		o.RPCBytes = DefaultRPCBytes
	}
	if o.RPCBytes < minRPCBytes || o.RPCBytes > wire.BulkMax || bits.OnesCount(uint(o.RPCBytes)) != 1 {
		panic(fmt.Sprintf("osc: RPCs of %d bytes", o.RPCBytes))
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = defaultSenders
	}
	if o.AheadWait == 0 {
		o.AheadWait = DefaultAheadWait
	}
	if o.MaxAge == 0 {
		o.MaxAge = DefaultMaxAge
	}
	if o.Cache == nil {
		o.Cache = NewCache(0)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.MaxDirtyBytes = max(o.MaxDirtyBytes, largeBytes)
	c := &OSC{o: o, log: o.Log.With("target", o.Name), cache: o.Cache, block: uint64(o.RPCBytes)}
	c.maxDirty.Store(o.MaxDirtyBytes)
	c.maxInFlight.Store(int64(o.MaxInFlight))
	c.maxRPC.Store(int64(o.RPCBytes))
	c.loose.limit(o.MaxInFlight)
	c.brws.New = func() any { return new(brw) }
	c.brw.Store(wire.BulkMax)
	c.life.done = make(chan struct{})
	c.kept.kick = make(chan struct{}, 1)
	c.share = c.cache.join()
	c.register(o.Stats)
	if o.Locks != nil {
		c.openLocks(o.Locks)
	}
	c.wg.Go(c.writeback)
	return c
}

// Connected takes what a connect's reply promises; call it from rpc.ImportOptions.OnConnect. It does not wait.
func (c *OSC) Connected(r *wirepb.ConnectReply) {
	if r.BrwSize != 0 {
		c.brw.Store(min(max(uint64(r.BrwSize), minRPCBytes), wire.BulkMax))
	}
	c.mu.Lock()
	c.grant.connected(r.Grant)
	c.mu.Unlock()
	c.reconnected(r)
	if n := int(r.MaxRpcsInFlight); n > 0 {
		c.loose.limit(min(n, int(c.maxInFlight.Load())))
	}
	if c.locks != nil && c.locks.Connected(r) && !r.Recovering {
		c.handBackLater()
	}
}

// Index of the OST.
func (c *OSC) Index() layout.OSTIndex { return c.o.Index }

// Name of the target.
func (c *OSC) Name() string { return c.o.Name }

func (c *OSC) rpcBytes() uint64 { return min(c.block, c.brw.Load(), uint64(c.maxRPC.Load())) }

// Close writes back what is dirty until ctx ends, stops and waits for all goroutines. Data that could not be written is
// lost then, which the error says. Objects must not be used afterwards.
func (c *OSC) Close(ctx context.Context) error {
	err := c.flush(ctx)
	if err == nil {
		c.settleKept(ctx)
	}
	if c.locks != nil && err == nil {
		_, err = c.locks.Clear(ctx)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	left := c.dirty + c.pending
	c.mu.Unlock()
	close(c.life.done)
	c.recovering.end()
	if c.locks != nil {
		c.locks.Close()
	}
	c.freezeOldest(^uint64(0))
	c.wg.Wait()
	c.aheads.dropAll(c)
	c.dropKept()
	c.cache.announce()
	c.cache.leave(c.share)
	c.unregister(c.o.Stats)
	if left != 0 {
		return fmt.Errorf("osc: %s: close: %d bytes not written: %w", c.o.Name, left, err)
	}
	return nil
}

// lifetime is the context of what no caller may cancel: it ends with the OSC.
type lifetime struct{ done chan struct{} }

// Deadline is never.
func (l *lifetime) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done is closed when the OSC stops.
func (l *lifetime) Done() <-chan struct{} { return l.done }

// Value is always nil.
func (l *lifetime) Value(any) any { return nil }

// Err is context.Canceled after the OSC stopped.
func (l *lifetime) Err() error {
	select {
	case <-l.done:
		return context.Canceled
	default:
		return nil
	}
}
