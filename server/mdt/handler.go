package mdt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/lockd"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// errFormat is a record on disk that this version does not read.
var errFormat = errors.New("mdt: a record is damaged, or of a later version")

// rootFID names the root folder.
var rootFID = fid.Root

// Tables are the indices of the MDT's tables among the device's.
type Tables struct {
	Inode, Dirent, Xattr, Orphan, Sequence store.Table
}

// Specs are the tables that an MDT keeps on its device, in the order of the fields of Tables.
func Specs() []store.Spec {
	return []store.Spec{
		{Name: "inode", Merger: inodeMerger{}},
		{Name: "dirent"},
		{Name: "xattr"},
		{Name: "orphan"},
		{Name: "sequence", Merger: useMerger{}},
	}
}

// TablesAt says that the device's specs hold those of Specs from index first on.
func TablesAt(first store.Table) Tables {
	return Tables{Inode: first, Dirent: first + 1, Xattr: first + 2, Orphan: first + 3, Sequence: first + 4}
}

// Pool is what an MDT wants of its OSTs; osp.Set is one.
type Pool interface {
	// Allocate reserves objects for a new file by its template. It may wait, so it comes before any lock.
	Allocate(ctx context.Context, tmpl *layout.Layout, own fid.FID) (*osp.Allocation, error)
	// Destroy puts into tx what makes the objects of l go once tx is on disk.
	Destroy(tx *store.Tx, e *env.Env, l *layout.Layout)
	// Chown puts into tx what gives the objects of l another owner once tx is on disk.
	Chown(tx *store.Tx, e *env.Env, l *layout.Layout, o osp.Owner)
	// Replay puts into tx that exactly the objects of l are used, which a replayed create was given. It refuses what no OST can have
	// given it.
	Replay(tx *store.Tx, e *env.Env, l *layout.Layout) error
}

// Options of an MDT.
type Options struct {
	// Name is "strake-MDT0000"; FSName is the file system's.
	Name, FSName string
	Device       store.Device
	Tables       Tables
	// Clients and Slots are the tables of package target.
	Clients, Slots store.Table
	// Inspect are the tables that tools may read, by name; nil: none.
	Inspect map[string]store.Table
	// Key is the file system's secret of 16 bytes: it keys the hash of names.
	Key     []byte
	Objects Pool
	Log     *slog.Logger
	Stats   *stats.Registry
	// Locks is what the lock namespaces of a process have in common; nil makes one of this MDT's own. LockLimits are the
	// namespace's, ReconnectGrace is how long a client whose lock is wanted may be without a connection; zero is lockd's.
	Locks          *lockd.Shared
	LockLimits     ldlm.Limits
	ReconnectGrace time.Duration
	// Clock is the time of namespace operations; nil is time.Now.
	Clock func() time.Time
	// EvictAfter is how long an export without a connection lives; 0 is the default of package target.
	EvictAfter time.Duration
	// ReplayWindow is how long a restarted MDT waits for clients that make no progress with their replays; 0: it has no window, and what was
	// not on disk is lost. Whoever publishes on the device before New calls target.KeepPoint first. Recovered is called when the window is over, or before New returns without one: the time to make new
	// objects and destroy those that nobody owns.
	ReplayWindow time.Duration
	Recovered    func()
	// Noticed is target.Options'.
	Noticed func() bool
}

// handlerStats are figures of one MDT.
type handlerStats struct {
	hashRunsFull, restarts, granted, takenBack, vbrRefused *stats.Counter
	opens, orphans                                         *stats.Gauge
}

// Handler is a metadata target: what its requests mean. It implements target.Handler.
type Handler struct {
	o      Options
	dev    store.Device
	tables Tables
	key    hashKey
	target *target.Target
	ldlm   *lockd.Server
	users  folderUsers
	// life is what operations without a call wait in.
	life     context.Context
	endLife  context.CancelFunc
	ctimeAge atomic.Int64 // a time.Duration
	opens    *openTable
	syncs    syncer
	sharing  sharing
	stats    handlerStats
	log      *slog.Logger
	// inspector answers tools.
	inspector target.Inspector
	// contextOf is (*rpc.Call).Context; calls made without a connection, in benchmarks, have none.
	contextOf func(*rpc.Call) context.Context
	rootDef   atomic.Pointer[[]byte] // the root folder's default layout, nil without

	seqMu    sync.Mutex
	nextSeq  fid.Seq                // guarded by seqMu
	restored map[[16]byte][]*seqUse // sequences of clients of an earlier start; guarded by seqMu
}

// New opens the metadata target on a device: it makes the root folder at the first start, removes what an earlier life
// left unlinked, and starts answering. Close it before the device.
func New(o Options) (*Handler, error) {
	if len(o.Key) != 16 {
		return nil, fmt.Errorf("mdt: %s: the key of names has %d bytes, want 16", o.Name, len(o.Key))
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	h := &Handler{
		o: o, dev: o.Device, tables: o.Tables, key: hashKeyOf(o.Key), opens: newOpenTable(),
		log: o.Log, contextOf: (*rpc.Call).Context, restored: map[[16]byte][]*seqUse{},
	}
	h.inspector = target.Inspector{KV: o.Device, Tables: o.Inspect}
	h.life, h.endLife = context.WithCancel(context.Background())
	h.registerStats()
	if o.ReplayWindow > 0 {
		if err := target.KeepPoint(o.Device, o.Clients); err != nil {
			return nil, fmt.Errorf("mdt: starting %s: %w", o.Name, err)
		}
	}
	if err := h.startLocks(); err != nil {
		return nil, err
	}
	if err := h.start(); err != nil {
		h.ldlm.Close()
		return nil, fmt.Errorf("mdt: starting %s: %w", o.Name, err)
	}
	h.syncs.init(o.Device)
	h.sharing.init(o.Device)
	t, err := target.New(target.Options{
		Name: o.Name, FSName: o.FSName, Device: o.Device, Clients: o.Clients, Slots: o.Slots, Handler: h,
		Log: o.Log, Stats: o.Stats, Prefix: "mdt", EvictAfter: o.EvictAfter,
		NewExport: h.newExport, Connected: h.connected, Disconnected: h.disconnected, ConnectReply: h.connectReply,
		LockTimeout:  func() time.Duration { return h.ldlm.Namespace().Limits().LockTimeout },
		ReplayWindow: o.ReplayWindow, EndReplay: h.endReplay, Recovered: o.Recovered, Noticed: o.Noticed,
	})
	if err != nil {
		h.sharing.stop()
		h.syncs.stop()
		h.ldlm.Close()
		return nil, err
	}
	h.target = t
	if err := h.dropSequences(); err != nil {
		return nil, errors.Join(err, h.Close(context.Background()))
	}
	return h, nil
}

// start prepares what is on the device.
func (h *Handler) start() error {
	e := env.New()
	if err := h.makeRoot(e); err != nil {
		return err
	}
	return h.loadSequences(e)
}

// Target is what the MDT's server offers under its name.
func (h *Handler) Target() *target.Target { return h.target }

// Close ends the target and waits for its requests and goroutines. The device stays open.
func (h *Handler) Close(ctx context.Context) error {
	h.target.Stop()
	h.endLife()
	h.ldlm.Close() // Ends what waits for locks.
	h.syncs.stop()
	h.sharing.stop()
	return errors.Join(h.target.Close(ctx), h.sharing.drained(ctx))
}

func (h *Handler) registerStats() {
	s := &h.stats
	s.hashRunsFull, s.restarts, s.granted, s.takenBack = &stats.Counter{}, &stats.Counter{}, &stats.Counter{}, &stats.Counter{}
	s.opens, s.orphans, s.vbrRefused = &stats.Gauge{}, &stats.Gauge{}, &stats.Counter{}
	if r := h.o.Stats; r != nil {
		base := "mdt." + h.o.Name
		s.hashRunsFull = r.Counter(base+".hash_runs_full", "Creates refused because 128 names of a folder have one hash.")
		s.restarts = r.Counter(base+".lock_restarts", "Operations that looked their names up again after locking.")
		s.granted = r.Counter(base+".locks_granted", "Locks that went with answers to requests.")
		s.takenBack = r.Counter(base+".locks_taken_back", "Locks granted with an answer that did not come to be, or was lost.")
		s.vbrRefused = r.Counter(base+".vbr_refused", "Replays refused because what they rest on is not what it was.")
		s.opens = r.Gauge(base+".open_files", "Inodes that a client has open.")
		r.Table(base+".open_files", "Inodes that a client has open or writes.", h.opens.tableStats)
		s.orphans = r.Gauge(base+".orphans", "Inodes without a name that live until their last close.")
	}
	h.registerSharing()
}

func (h *Handler) connectReply(_ *target.Export, r *wirepb.ConnectReply) {
	r.RootSeq, r.RootOid = uint64(rootFID.Seq), rootFID.OID
}

// Serve implements target.Handler.
func (h *Handler) Serve(e *env.Env, x *target.Export, c *rpc.Call) error {
	o := h.begin(e, x, c)
	defer o.end()
	err := o.remember()
	if err == nil {
		err = o.serve()
	}
	if err != nil && o.again.on {
		err = o.refused(err)
	}
	o.finish(err)
	if !errors.Is(err, errShared) {
		return err
	}
	c.Reply, c.ReplyBulk = nil, nil
	o.end() // Before another goroutine may have the call.
	return h.sharing.hold(shareWaiter{call: c, x: x, transno: o.awaits, tries: o.tries})
}

func (o *op) serve() error {
	h := o.h
	if o.c.Header.Flags&wire.FlagResent != 0 {
		o.resent()
	}
	switch op := o.c.Header.Op; op {
	case wire.OpEnqueue, wire.OpConvert, wire.OpCancel, wire.OpProlong, wire.OpFlock:
		return o.lockRequest()
	case wire.OpStatfs:
		return o.statfs()
	case wire.OpSync:
		return o.sync()
	case wire.OpInspect:
		return h.inspector.Serve(o.e, o.x, o.c)
	default:
		i := int(op) - int(wire.OpLookup)
		if i < 0 || i >= len(operations) || operations[i] == nil {
			return status.Errorf(status.NotSupport, "mdt: %s does not know %v", h.o.Name, op)
		}
		if o.x.ReadOnly && op.Modifies() && !readOnlyMay(op) {
			return status.ReadOnly
		}
		if err := operations[i](o); err != nil || op.Modifies() {
			return err
		}
		return o.settled()
	}
}

// readOnlyMay reports whether a read-only client may ask for an operation that modifies: opens and closes are state of its
// export, and a report of it changes nothing but closes.
func readOnlyMay(op wire.Op) bool {
	return op == wire.OpOpen || op == wire.OpClose || op == wire.OpReportSizes || op == wire.OpSeq
}

// operations are the requests of an MDT, by opcode from wire.OpLookup on.
var operations = [...]func(*op) error{
	0:                                  (*op).lookup,
	wire.OpGetattr - wire.OpLookup:     (*op).getattr,
	wire.OpOpen - wire.OpLookup:        (*op).open,
	wire.OpCreate - wire.OpLookup:      (*op).create,
	wire.OpLink - wire.OpLookup:        (*op).link,
	wire.OpUnlink - wire.OpLookup:      (*op).unlink,
	wire.OpRename - wire.OpLookup:      (*op).rename,
	wire.OpSetattr - wire.OpLookup:     (*op).setattr,
	wire.OpReaddir - wire.OpLookup:     (*op).readdir,
	wire.OpReadlink - wire.OpLookup:    (*op).readlink,
	wire.OpGetxattr - wire.OpLookup:    (*op).getxattr,
	wire.OpSetxattr - wire.OpLookup:    (*op).setxattr,
	wire.OpListxattr - wire.OpLookup:   (*op).listxattr,
	wire.OpRemovexattr - wire.OpLookup: (*op).removexattr,
	wire.OpClose - wire.OpLookup:       (*op).close,
	wire.OpReportSizes - wire.OpLookup: (*op).reportSizes,
	wire.OpSeq - wire.OpLookup:         (*op).seq,
	wire.OpPath - wire.OpLookup:        (*op).path,
	wire.OpSetLayout - wire.OpLookup:   (*op).setLayout,
	wire.OpParents - wire.OpLookup:     (*op).parents,
	wire.OpReopen - wire.OpLookup:      (*op).reopen,
}

// statfs tells the device's space and inodes. The space for data is the OSTs', which the client asks.
func (o *op) statfs() error {
	s, err := o.h.dev.Statfs()
	if err != nil {
		return fmt.Errorf("mdt: statfs: %w", err)
	}
	o.rep.statfs = wirepb.StatfsReply{
		TotalBytes: s.Total, FreeBytes: s.Free, AvailBytes: s.Avail, Inodes: s.Inodes, FreeInodes: s.FreeInodes,
	}
	o.c.Reply = &o.rep.statfs
	return nil
}
