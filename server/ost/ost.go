package ost

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/failpoint"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/lockd"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// Options of an OST.
type Options struct {
	// Name is "strake-OST0000"; FSName is the file system's.
	Name, FSName string
	// Device was opened with Specs. The OST does not close it.
	Device store.Device
	Log    *slog.Logger
	// Stats may be nil.
	Stats *stats.Registry

	// CommitEvery is the time from the first change to the commit that covers it; 0 is CommitEveryDefault.
	CommitEvery time.Duration
	// CommitBytes begins a commit early when that much was written since the last one; 0 is 256 MiB.
	CommitBytes int64
	// MaxOpen bounds the objects that nobody uses and whose file is kept open; 0 is 2,048: with two OSTs and a mount in one
	// process that stays below the 4,096 files that old systems allow as a hard limit.
	MaxOpen int
	// Memory bounds the object caches of the process; nil: one of this OST's own, for a machine whose memory is not known.
	Memory *target.Budget
	// FreshMax bounds how many fresh objects per group are looked at after a crash; 0 is 65,536.
	FreshMax uint64
	// GrantMax bounds the grant of one export, in bytes; 0 is 1 GiB.
	GrantMax int64
	// EvictAfter is passed to the target; 0 is its default.
	EvictAfter time.Duration
	// ReplayWindow is how long clients have after a restart to hand their locks back; 0 is the target's default, below 0 none.
	ReplayWindow time.Duration
	// Noticed is target.Options'.
	Noticed func() bool
	// Locks has what the namespace shares with others of the process, and what tests set; the OST fills in the rest.
	Locks lockd.Options
	// FailPoints may be nil.
	FailPoints *failpoint.Set
}

// CommitEveryDefault is how long a client has to keep its copy of what it wrote. A flush each two seconds keeps the host's
// writeback going without turning a stream of small files into a stream of flushes.
const CommitEveryDefault = 2 * time.Second

// OST is one object storage target. Make it with New. It implements rpc.Target.
type OST struct {
	o     Options
	t     *target.Target
	locks *lockd.Server
	cache cache
	space space
	stats ostStats
	// inspector answers tools.
	inspector target.Inspector
	ctx       context.Context // ends with Close; for the commit loop
	cancel    context.CancelFunc
	done      sync.WaitGroup

	start     uint64        // numbers of this start are above it
	seq       atomic.Uint64 // the newest number given
	committed atomic.Uint64 // the newest number on disk with all before it
	dirty     atomic.Int64  // bytes written since the last commit began
	kick      chan struct{} // asks for a commit now
	first     chan struct{} // tells of the first change since a commit

	groupsMu sync.RWMutex
	groups   map[uint32]*group // guarded by groupsMu

	exportsMu sync.Mutex
	exports   map[*lockd.Client]*target.Export // guarded by exportsMu

	commitMu sync.Mutex // held over one commit
	// pubMu is held while a transaction with records or marks is built and published, so that each follows the last. Nothing
	// waits under it.
	pubMu  sync.Mutex
	pubEnv *env.Env // guarded by pubMu

	activeMu sync.Mutex
	active   []*object // changed in the last commits; each with a reference; guarded by activeMu

	waitMu sync.Mutex
	moved  chan struct{} // closed when committed or failed moved; nil with nobody waiting; guarded by waitMu
	failed error         // why no commit will succeed any more; guarded by waitMu
}

// group is the objects of one metadata target.
type group struct {
	id    uint32
	mu    sync.Mutex    // held while objects are made
	last  atomic.Uint64 // the last id made, and on disk
	fresh atomic.Uint64 // ids in (fresh, last] are hot without a mark
}

// New starts an OST on a device: after a crash it looks at the objects that were hot and puts their records right. It
// waits for the disk, until ctx ends. Close it before the device.
func New(ctx context.Context, o Options) (*OST, error) {
	o.defaults()
	s := &OST{
		o: o, kick: make(chan struct{}, 1), first: make(chan struct{}, 1), groups: map[uint32]*group{}, pubEnv: env.New(),
		exports: map[*lockd.Client]*target.Export{},
	}
	s.stats = newStats(o.Stats, o.Name)
	s.inspector = target.Inspector{KV: o.Device, Tables: target.NamesOf(Specs(), "reply_slots"), Stat: func(group uint32, ids []uint64,
		fn func(int, bool, int64, int64)) error {
		return Stat(o.Device.Objects(), group, ids, fn)
	}}
	s.cache.init(o.Memory, o.MaxOpen)
	s.space.init(o.Device)
	clean, err := s.restore()
	if err != nil {
		return nil, fmt.Errorf("ost: %s: reading the tables: %w", o.Name, err)
	}
	if !clean {
		if err := s.rescan(ctx); err != nil {
			return nil, fmt.Errorf("ost: %s: looking at objects after a crash: %w", o.Name, err)
		}
	}
	n, err := s.saveMeta(false, s.committed.Load())
	if err == nil {
		err = o.Device.WaitCommitted(ctx, n)
	}
	if err != nil {
		return nil, fmt.Errorf("ost: %s: starting: %w", o.Name, err)
	}
	// The device's start count, in the upper bits, is new with each start and now on disk: no number is given twice.
	s.seq.Store(uint64(n) >> store.CountBits << store.CountBits)
	s.start = s.seq.Load()
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.openLocks()
	s.t, err = target.New(target.Options{
		Name: o.Name, FSName: o.FSName, Device: o.Device, Clients: tableClients, Slots: tableSlots, Handler: handler{s},
		Log: o.Log, Stats: o.Stats, Prefix: "obdfilter", MaxInFlight: rpc.DefaultInFlightData, EvictAfter: o.EvictAfter,
		NewExport: s.newExport, ConnectReply: s.connectReply, Connected: s.connected, Disconnected: s.disconnected,
		LockTimeout: func() time.Duration { return s.locks.Namespace().Limits().LockTimeout }, ReplayWindow: o.ReplayWindow, Noticed: o.Noticed,
		Committed: func() wire.Transno { return wire.Transno(s.committed.Load()) }, Flush: s.flushReplayed,
	})
	if err != nil {
		s.cancel()
		s.locks.Close()
		return nil, err
	}
	s.o.Memory.Join(&s.cache)
	s.register()
	s.done.Go(s.commitLoop)
	return s, nil
}

func (o *Options) defaults() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.CommitEvery <= 0 {
		o.CommitEvery = CommitEveryDefault
	}
	if o.CommitBytes <= 0 {
		o.CommitBytes = 256 << 20
	}
	if o.MaxOpen <= 0 {
		o.MaxOpen = 2048
	}
	if o.Memory == nil {
		o.Memory = target.NewBudget(0)
	}
	if o.FreshMax == 0 {
		o.FreshMax = 65536
	}
	if o.GrantMax <= 0 {
		o.GrantMax = 1 << 30
	}
	if o.ReplayWindow == 0 {
		o.ReplayWindow = target.ReplayWindowDefault
	}
}

// Connect implements rpc.Target.
func (o *OST) Connect(ctx context.Context, conn *rpc.Conn, r *wirepb.ConnectRequest) (rpc.Session, *wirepb.ConnectReply, error) {
	return o.t.Connect(ctx, conn, r)
}

// Name is the target's name, Instance changes with each start.
func (o *OST) Name() string { return o.o.Name }

// Instance changes with each start of the OST.
func (o *OST) Instance() uint64 { return o.t.Instance() }

// Target is what the OST's server offers under its name.
func (o *OST) Target() *target.Target { return o.t }

// Newest is the number of the newest change.
func (o *OST) Newest() uint64 { return o.seq.Load() }

// Committed is the newest number that is on disk with all before it.
func (o *OST) Committed() wire.Transno { return wire.Transno(o.committed.Load()) }

// State is what the target reports of itself: "serving", "full" when new files should avoid it, "stopped".
func (o *OST) State() string {
	if o.failure() != nil {
		return "stopped"
	}
	if f := o.space.now(); f.Avail < max(f.Total/1000, fullBytes) {
		return "full"
	}
	return "serving"
}

// Err is nil while the OST works, else why it stopped.
func (o *OST) Err() error {
	if err := o.failure(); err != nil {
		return err
	}
	return o.o.Device.Err()
}

// Close stops serving, waits for what runs until ctx ends, commits, and notes on disk that it stopped cleanly.
func (o *OST) Close(ctx context.Context) error {
	o.t.Stop()
	o.locks.Stop() // What waits for clients ends.
	err := o.t.Close(ctx)
	o.cancel()
	o.done.Wait()
	if err != nil {
		return err // Requests still use the cache; the process is being ended by force.
	}
	o.locks.Close()
	if err = o.commit(ctx); err == nil {
		err = o.closeClean(ctx)
	}
	o.cache.close()
	if errors.Is(err, store.ErrStopped) && o.o.Device.Err() != nil {
		return nil // It is known and logged why.
	}
	return err
}

// closeClean removes the hot marks, which say nothing any more, and notes the clean stop.
func (o *OST) closeClean(ctx context.Context) error {
	o.pubMu.Lock()
	o.pubEnv.Reset()
	tx := o.o.Device.Begin(o.pubEnv)
	o.activeMu.Lock()
	for _, ob := range o.active {
		if ob.marked {
			tx.Delete(tableHot, objectKey(o.pubEnv, ob.id))
		}
	}
	o.activeMu.Unlock()
	tx.Put(tableMeta, metaKey, putMeta(o.pubEnv.Alloc(metaSize), true, o.committed.Load()), metaStampAt)
	n, err := o.o.Device.Publish(tx)
	o.pubMu.Unlock()
	if err == nil {
		err = o.o.Device.WaitCommitted(ctx, n)
	}
	if err != nil {
		return fmt.Errorf("ost: %s: stopping: %w", o.o.Name, err)
	}
	return nil
}

// saveMeta publishes the meta record.
func (o *OST) saveMeta(clean bool, committed uint64) (store.Transno, error) {
	o.pubMu.Lock()
	defer o.pubMu.Unlock()
	o.pubEnv.Reset()
	tx := o.o.Device.Begin(o.pubEnv)
	tx.Put(tableMeta, metaKey, putMeta(o.pubEnv.Alloc(metaSize), clean, committed), metaStampAt)
	return o.o.Device.Publish(tx)
}

// restore reads the meta record and the groups; clean says that the last stop was clean, or that the device is new.
func (o *OST) restore() (clean bool, err error) {
	e := env.New()
	clean = true
	v, err := o.o.Device.Get(e, tableMeta, metaKey)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return false, err
	case len(v) != metaSize || v[0] != tableVersion:
		return false, fmt.Errorf("a meta record of %d bytes, or of a version that is not known", len(v))
	default:
		clean = v[1] == 1
		o.committed.Store(binary.BigEndian.Uint64(v[2:]))
	}
	var bad error
	err = o.o.Device.Scan(e, tableGroups, nil, nil, func(k, v []byte) bool {
		if len(k) != 4 || len(v) != groupSize || v[0] != tableVersion {
			bad = fmt.Errorf("a group record of %d and %d bytes, or of a version that is not known", len(k), len(v))
			return false
		}
		g := o.group(binary.BigEndian.Uint32(k))
		g.last.Store(binary.BigEndian.Uint64(v[1:]))
		g.fresh.Store(binary.BigEndian.Uint64(v[9:]))
		return true
	})
	return clean, errors.Join(err, bad)
}

// group returns the group of an id; an unknown one has no objects.
func (o *OST) group(id uint32) *group {
	o.groupsMu.RLock()
	g := o.groups[id]
	o.groupsMu.RUnlock()
	if g != nil {
		return g
	}
	o.groupsMu.Lock()
	defer o.groupsMu.Unlock()
	if g = o.groups[id]; g == nil {
		g = &group{id: id}
		if len(o.groups) < maxGroups {
			o.groups[id] = g
		}
	}
	return g
}

// maxGroups bounds the table of groups, one for each metadata target: a request can name any number.
const maxGroups = 4096
