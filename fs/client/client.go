package client

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/attr"
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

// retireWorkers bounds the files that are written back at once after their last close.
const retireWorkers = 16

// Client is one mount's state.
type Client struct {
	mdc     *mdc.MDC
	data    *lov.Set
	opts    Options
	log     *slog.Logger
	inodes  table
	names   Names
	changes changes

	retire  chan *inode
	ctx     context.Context
	cancel  context.CancelFunc
	workers sync.WaitGroup
	// busy counts inodes handed to retire and not through yet; idle is signalled when it reaches 0.
	busyMu sync.Mutex
	idle   *sync.Cond
	busy   int

	entries sync.Pool
	lost    *stats.Counter
}

// New starts a client. Close stops it.
func New(o Options) *Client {
	c := &Client{mdc: o.MDC, data: o.Data, opts: o, log: o.Log, retire: make(chan *inode, 1024)}
	c.inodes.init()
	c.names.init(o.NamesMax)
	c.entries.New = func() any { return new(mdc.Entry) }
	c.idle = sync.NewCond(&c.busyMu)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if o.Stats != nil {
		c.lost = o.Stats.Counter(o.StatsPrefix+"write_errors_after_close", "files whose data could not be written after their last close")
		o.Stats.Func(o.StatsPrefix+"inodes", "files with a handle, dirty data or an unanswered report", func() int64 { return int64(c.inodes.len()) })
		o.Stats.Func(o.StatsPrefix+"names", "names remembered to answer lookups of absent ones", func() int64 { return int64(c.names.len()) })
	} else {
		c.lost = new(stats.Counter)
	}
	for range retireWorkers {
		c.workers.Add(1)
		go c.retireLoop()
	}
	return c
}

// Close writes back what is dirty, reports it and stops, within ctx.
func (c *Client) Close(ctx context.Context) error {
	err := c.drain(ctx)
	c.cancel()
	c.workers.Wait()
	return err
}

// drain waits until no file is being written back.
func (c *Client) drain(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		c.busyMu.Lock()
		c.idle.Broadcast()
		c.busyMu.Unlock()
	})
	defer stop()
	c.busyMu.Lock()
	for c.busy > 0 && ctx.Err() == nil {
		c.idle.Wait()
	}
	c.busyMu.Unlock()
	return ctx.Err()
}

// Exclusive reports whether no other client can change the file system.
func (c *Client) Exclusive() bool { return c.opts.Exclusive.Load() }

// ReadOnly reports whether the mount refuses changes.
func (c *Client) ReadOnly() bool { return c.opts.ReadOnly }

func (c *Client) entry() *mdc.Entry     { return c.entries.Get().(*mdc.Entry) }
func (c *Client) putEntry(e *mdc.Entry) { c.entries.Put(e) }

func now() attr.Time { return attr.TimeOf(time.Now()) }
