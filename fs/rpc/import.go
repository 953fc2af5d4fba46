package rpc

import (
	"context"
	"log/slog"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Kinds of peers, as ConnectRequest.Kind has them.
const (
	KindClient uint32 = 1
	KindMDT    uint32 = 2
	KindOST    uint32 = 3
	KindTool   uint32 = 4
)

// ImportOptions says to whom an import connects and as what.
type ImportOptions struct {
	Transport Transport
	// Addresses of the target's server, tried in turn.
	Addresses []string
	// FSName and Target name the file system and the target: "strake-OST0001", "strake-MDT0000" or "MGS".
	FSName, Target string
	// UUID names this client for as long as its mount or target process lives.
	UUID [16]byte
	// Peer says who that is, for people.
	Peer string
	// Kind is one of KindClient, KindMDT, KindOST and KindTool.
	Kind     uint32
	ReadOnly bool
	// Bulk opens a second connection, for bulk data.
	Bulk bool
	// MaxInFlight bounds requests in flight; 0 is 8 with Bulk and 16 without. The server may lower it.
	MaxInFlight int
	// RetryLimit is how long Do waits for a target that is away; 0 is for ever, until the caller's ctx ends.
	RetryLimit time.Duration
	// OnConnect runs after each connect, before requests flow. It must not wait.
	OnConnect func(r *wirepb.ConnectReply)
	// OnCommitted runs when the target's last_committed has advanced. It must not wait.
	OnCommitted func(wire.Transno)
	// Callback serves the server's calls to this client.
	Callback func(e *env.Env, c *Call) error
	Log      *slog.Logger
	// Stats may be nil.
	Stats *stats.Registry
}

// State of an import.
type State uint8

// Import is a client's connection to one target.
type Import struct{}

// NewImport makes an import that is not connected.
func NewImport(o ImportOptions) (*Import, error) { panic("rpc: not yet") }

// Connect connects for the first time. Afterwards the import reconnects by itself.
func (i *Import) Connect(ctx context.Context) error { panic("rpc: not yet") }

// Do sends r, waits for its reply and resends it where that is needed. A status other than 0 comes back as a
// *status.Error.
func (i *Import) Do(ctx context.Context, r *Request) error { panic("rpc: not yet") }

// State is the import's state now.
func (i *Import) State() State { panic("rpc: not yet") }

// LastCommitted is the newest last_committed that the target has told.
func (i *Import) LastCommitted() wire.Transno { panic("rpc: not yet") }

// Instance is the target's instance that the import last connected to, 0 before the first connect.
func (i *Import) Instance() uint64 { panic("rpc: not yet") }

// SetAddresses replaces the addresses; the next connect uses them.
func (i *Import) SetAddresses(a []string) { panic("rpc: not yet") }

// Reconnect drops the connection and connects anew, at once.
func (i *Import) Reconnect() { panic("rpc: not yet") }

// Close disconnects and waits for the import's goroutines.
func (i *Import) Close(ctx context.Context) error { panic("rpc: not yet") }
