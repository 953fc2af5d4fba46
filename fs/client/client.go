package client

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/stats"
)

// Atime says when reading moves a file's access time.
type Atime uint8

// Policies of mount(8).
const (
	// Relatime moves it when it is not later than mtime or ctime, or older than a day.
	Relatime Atime = iota
	NoAtime
	StrictAtime
)

// Options of a new Client.
type Options struct {
	MDC  *mdc.MDC
	Data *lov.Set
	// Locks is the lock cache of the MDC's import; Owner is its owner, which the new client takes over.
	Locks *lockcache.Cache
	Owner *Owner
	// Budget bounds what is cached; nil leaves that to Locks.
	Budget *Budget
	// Cache is the memory of dirty data, shared by the mounts of a process; nil: it is not told of, and nothing is read ahead.
	Cache    *osc.Cache
	ReadOnly bool
	Atime    Atime
	// Sync makes every write durable before it is answered, DirSync every change of a folder.
	Sync, DirSync bool
	// Alive makes sure that the MDT has been heard within half the eviction time, before an open file is used: a mount that
	// slept may have been evicted. nil believes it.
	Alive func(ctx context.Context) error
	// NamesMax bounds the names that are remembered to answer lookups of absent ones.
	NamesMax int
	// Info describes the mount for the tools; nil tells nothing.
	Info  func() *Info
	Log   *slog.Logger
	Stats *stats.Registry
	// StatsPrefix starts the paths of the client's figures: "llite.strake-1.".
	StatsPrefix string
}

// Client is one mount's state.
type Client struct {
	mdc     *mdc.MDC
	locks   *lockcache.Cache
	data    *lov.Set
	opts    Options
	log     *slog.Logger
	inodes  table
	nodes   nodes
	names   Names
	pages   pages
	changes changes
	hot     hot
	ahead   statahead
	params  params
	// life counts evictions: a handle of an earlier life is of no use.
	life atomic.Uint32
	// forgets counts the times that all locks of the MDT were lost.
	forgets atomic.Uint64
	// renames counts those under way; renamedAt is when the last one ended, in nanoseconds.
	renames   atomic.Int64
	renamedAt atomic.Int64

	retire retirement
	ctx    context.Context // of writing back after the last close
	cancel context.CancelFunc
	kernel atomic.Pointer[kernelRef]

	entries sync.Pool
	lost    *stats.Counter
}

// New starts a client. Close stops it.
func New(o Options) *Client {
	c := &Client{mdc: o.MDC, locks: o.Locks, data: o.Data, opts: o, log: o.Log}
	c.inodes.init()
	c.nodes.init()
	c.names.init(o.NamesMax)
	c.pages.init()
	c.ahead.init(c)
	c.params.begin(o.Cache, o.Data)
	c.entries.New = func() any { return new(mdc.Entry) }
	c.retire.init()
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if o.Stats != nil {
		c.lost = o.Stats.Counter(o.StatsPrefix+"write_errors_after_close", "files whose data could not be written after their last close")
		c.register(o.Stats, o.StatsPrefix)
		c.params.register(o.Stats, o.StatsPrefix)
		c.ahead.register(o.Stats, o.StatsPrefix)
	} else {
		c.lost = new(stats.Counter)
	}
	if o.Owner != nil {
		o.Owner.c.Store(c)
	}
	if o.Budget != nil {
		o.Budget.join(o.Locks, &c.pages, o.StatsPrefix, o.Stats)
	}
	for i := range retireWorkers {
		c.retire.workers.Add(1)
		go c.retireLoop(i < lateWorkers)
	}
	return c
}

// Close writes back what is dirty, reports it and stops, within ctx. The error tells how many files are not written back.
func (c *Client) Close(ctx context.Context) error {
	err := c.retire.drain(ctx)
	c.cancel()
	c.retire.stop()
	c.ahead.close()
	if c.opts.Budget != nil {
		c.opts.Budget.leave(c.locks)
	}
	return err
}

// ReadOnly reports whether the mount refuses changes.
func (c *Client) ReadOnly() bool { return c.opts.ReadOnly }

func (c *Client) entry() *mdc.Entry { return c.entries.Get().(*mdc.Entry) }

// putEntry ends the use of an answer: what its lock covers is cached by now.
func (c *Client) putEntry(e *mdc.Entry) {
	c.mdc.Settle(e)
	e.Want = 0
	c.entries.Put(e)
}

func (c *Client) renamed() {
	c.renamedAt.Store(time.Now().UnixNano())
	c.renames.Add(-1)
}

// Renaming reports whether the kernel may be moving an entry now: one that is dropped by its old name may be at its new one.
func (c *Client) Renaming() bool {
	return c.renames.Load() > 0 || time.Now().UnixNano()-c.renamedAt.Load() < int64(recently)
}

func now() attr.Time { return attr.TimeOf(time.Now()) }
