package osc

import (
	"context"
	"log/slog"

	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Import is what an OSC wants of its import; *rpc.Import is one.
type Import interface {
	Do(ctx context.Context, r *rpc.Request) error
}

// Owner is whom new space in an object is charged to.
type Owner struct{ UID, GID, Project uint32 }

// Options configures an OSC.
type Options struct {
	// Import reaches the OST. It belongs to the caller, who closes it after the OSC.
	Import Import
	// Index of the OST; Name is the target's, "strake-OST0001".
	Index layout.OSTIndex
	Name  string
	// MaxDirtyBytes bounds dirty and unanswered data; 0 is DefaultMaxDirtyBytes.
	MaxDirtyBytes int64
	// Cache is the memory of dirty data, shared by all OSCs of a process. nil makes one of the default size.
	Cache *Cache
	Log   *slog.Logger
	// Stats may be nil.
	Stats *stats.Registry
}

// Cache is the memory of dirty data.
type Cache struct{}

// NewCache returns a cache of at most limitBytes.
func NewCache(limitBytes int64) *Cache { panic("osc: not yet") }

// OSC is one OST seen from a client.
type OSC struct{}

// New makes an OSC.
func New(o Options) *OSC { panic("osc: not yet") }

// Connected takes the grant and the sizes of a connect's reply; call it from rpc.ImportOptions.OnConnect.
func (o *OSC) Connected(r *wirepb.ConnectReply) { panic("osc: not yet") }

// Index of the OST.
func (o *OSC) Index() layout.OSTIndex { panic("osc: not yet") }

// Close writes back what is dirty until ctx ends, then stops.
func (o *OSC) Close(ctx context.Context) error { panic("osc: not yet") }

// Space is what statfs tells of one OST, in bytes and inodes.
type Space struct {
	Total, Free, Avail uint64
	Inodes, FreeInodes uint64
	Granted            uint64
}

// Statfs asks the OST.
func (o *OSC) Statfs(ctx context.Context) (Space, error) { panic("osc: not yet") }
