package client

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/mdc"
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
	MDC      *mdc.MDC
	Data     *lov.Set
	ReadOnly bool
	Atime    Atime
	// Sync makes every write durable before it is answered, DirSync every change of a folder.
	Sync, DirSync bool
	// Exclusive tells whether the MDT admits no other writer; it may change with a reconnect.
	Exclusive *atomic.Bool
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
	data    *lov.Set
	opts    Options
	log     *slog.Logger
	inodes  table
	names   Names
	changes changes

	retire retirement
	ctx    context.Context // of writing back after the last close
	cancel context.CancelFunc
	kernel atomic.Pointer[kernelRef]

	entries sync.Pool
	lost    *stats.Counter
}

// New starts a client. Close stops it.
func New(o Options) *Client {
	c := &Client{mdc: o.MDC, data: o.Data, opts: o, log: o.Log}
	c.inodes.init()
	c.names.init(o.NamesMax)
	c.entries.New = func() any { return new(mdc.Entry) }
	c.retire.init()
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if o.Stats != nil {
		c.lost = o.Stats.Counter(o.StatsPrefix+"write_errors_after_close", "files whose data could not be written after their last close")
		o.Stats.Func(o.StatsPrefix+"inodes", "files with a handle, dirty data or an unanswered report", func() int64 { return int64(c.inodes.len()) })
		o.Stats.Func(o.StatsPrefix+"names", "names remembered to answer lookups of absent ones", func() int64 { return int64(c.names.len()) })
	} else {
		c.lost = new(stats.Counter)
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
	return err
}

// Kernel is the side of the mount that keeps what the client told it. Its methods do not wait.
type Kernel interface {
	// DropAttr makes the kernel ask for an inode's attributes before it uses them again.
	DropAttr(f fid.FID)
	// DropAll makes the kernel ask for every name, and for attributes and pages of what is open, before it uses them again.
	DropAll()
}

type kernelRef struct{ Kernel }

// SetKernel tells who is told of changes that the kernel does not see.
func (c *Client) SetKernel(k Kernel) { c.kernel.Store(&kernelRef{k}) }

// Forget drops everything that is believed without asking: another mount may have written meanwhile (this one was
// evicted), or the MDT may have lost its newest changes (it was started again). It does not wait.
func (c *Client) Forget() {
	c.names.reset()
	c.changes.markAll()
	c.mdc.ForgetSequences()
	if k := c.kernel.Load(); k != nil {
		k.DropAll()
	}
}

// Exclusive reports whether no other client can change the file system.
func (c *Client) Exclusive() bool { return c.opts.Exclusive.Load() }

// ReadOnly reports whether the mount refuses changes.
func (c *Client) ReadOnly() bool { return c.opts.ReadOnly }

func (c *Client) entry() *mdc.Entry     { return c.entries.Get().(*mdc.Entry) }
func (c *Client) putEntry(e *mdc.Entry) { c.entries.Put(e) }

func now() attr.Time { return attr.TimeOf(time.Now()) }
