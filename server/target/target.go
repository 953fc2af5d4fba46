package target

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// Handler is the part of a target that knows what its requests mean.
type Handler interface {
	// Serve runs one request of an export that is connected. A modifying one owns its slot and was not run before.
	// It may return rpc.ErrHeld for a request that does not modify, and ErrAgain for any.
	Serve(e *env.Env, x *Export, c *rpc.Call) error
	// ExportGone tells that the export has ended, by a disconnect or by eviction. No request of it runs any more.
	ExportGone(x *Export)
}

// ErrAgain is what a Handler returns for a request that it has not carried out and that is held until the Handler gives it to
// Export.Serve again, and what that returns to Call.Finish, unless it is rpc.ErrHeld. The request holds no worker meanwhile,
// and nothing of its export; when its connection has been lost, Export.Serve finds that.
var ErrAgain = errors.New("target: the request is served again later")

// Options of a target.
type Options struct {
	// Name is "strake-MDT0000"; FSName is the file system's.
	Name, FSName string
	// Device holds the tables that Specs names, at the indices Clients and Slots.
	Device         store.Device
	Clients, Slots store.Table
	Handler        Handler
	Log            *slog.Logger
	// Stats may be nil. Prefix is the first element of the paths of this target: "mdt" or "obdfilter".
	Stats  *stats.Registry
	Prefix string

	// NewExport runs once for each export, restored ones too, before anybody sees it. nil does nothing.
	NewExport func(x *Export)
	// Admit may refuse a new export, with status.Refused and a sentence. nil admits. It must not wait.
	Admit func(x *Export, r *wirepb.ConnectRequest) error
	// ConnectReply completes the answer to a control connection. nil adds nothing. It must not wait.
	ConnectReply func(x *Export, r *wirepb.ConnectReply)
	// Connected tells that an export has a new control connection, and Disconnected that a connection of it has ended,
	// control or bulk. When Connected is called the earlier generation has ended and the requests of this one have not begun.
	// Disconnected of a connection comes after its Connected, but may come after that of the next one, and after ExportGone. Either may
	// be nil; they must not wait for a client, nor for requests of the export. conn is nil where rpc has none, in tests.
	Connected, Disconnected func(x *Export, conn *rpc.Conn)
	// LockTimeout is told to clients: how long a called-back lock may stay out. nil: the target has no locks.
	LockTimeout func() time.Duration
	// ReplayWindow is how long a target that has been started again waits for clients that make no progress with their replays, and
	// with handing back opens and locks, before it serves others (recovery.go): recovery_time_soft. 0: it has no window.
	ReplayWindow time.Duration
	// EndReplay runs when every client has handed back what it had, or was evicted, while nothing else is served: the time to end what
	// nobody came back for. Flush then brings everything that was replayed to disk where a commit of the device is not enough; its error
	// leaves the window open until the target stops. Recovered runs when the window's end is on disk and new work has begun. Without a window EndReplay and
	// Recovered run before New returns. Each may be nil.
	EndReplay func() error
	Flush     func(ctx context.Context) error
	Recovered func()
	// Noticed reports whether clients are told of a restart by the MGS (imperative recovery); nil: they are not.
	Noticed func() bool
	// Committed is the last_committed of replies; nil takes the device's.
	Committed func() wire.Transno
	// MaxInFlight is told to clients; 0 is 16.
	MaxInFlight uint32
	// EvictAfter is how long an export lives whose client has no connection, or is silent; 0 is EvictAfterDefault.
	EvictAfter time.Duration
}

// Defaults of times: DESIGN §8.
const (
	EvictAfterDefault   = 60 * time.Second
	ReplayWindowDefault = 30 * time.Second
)

// MaxSlots bounds the slots of one export, so that a client cannot make the target's memory grow: what an import numbers at
// most.
const MaxSlots = rpc.PriorSlots + rpc.MaxInFlightLimit

// Target implements rpc.Target for a handler. Make it with New.
type Target struct {
	o        Options
	instance uint64
	// previous is the instance before this one, and restart what it had committed.
	previous uint64
	restart  wire.Transno
	stop     chan struct{}
	stopOnce sync.Once
	done     sync.WaitGroup
	stopped  atomic.Bool
	stats    opStats
	recovery recovery

	mu      sync.Mutex
	exports exportTable // guarded by mu
	nextIdx uint32      // guarded by mu
}

// New restores the exports of an earlier start from the device and starts the target. Its clients have EvictAfter to
// come back. Close it.
func New(o Options) (*Target, error) {
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 16
	}
	if o.EvictAfter <= 0 {
		o.EvictAfter = EvictAfterDefault
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Committed == nil {
		o.Committed = func() wire.Transno { return wire.Transno(o.Device.Committed()) }
	}
	t := &Target{o: o, stop: make(chan struct{}), restart: o.Committed()}
	if err := t.restore(); err != nil {
		return nil, fmt.Errorf("target: %s: reading last_rcvd: %w", o.Name, err)
	}
	t.recovery.begin(t)
	t.stats.register(&o, t)
	if err := t.recovery.start(); err != nil {
		return nil, fmt.Errorf("target: %s: starting: %w", o.Name, err)
	}
	t.done.Go(t.evictLoop)
	return t, nil
}

// Name is the target's name.
func (t *Target) Name() string { return t.o.Name }

// Instance changes with each start of the target.
func (t *Target) Instance() uint64 { return t.instance }

// Count is the number of exports.
func (t *Target) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.exports.n
}

// Exports returns the exports there are, in no order.
func (t *Target) Exports() []*Export {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*Export, 0, t.exports.n)
	for x := range t.exports.all() {
		all = append(all, x)
	}
	return all
}

// Stop makes the target answer everything with status.Stopping from now on. It does not wait; Close does the rest.
func (t *Target) Stop() { t.stopped.Store(true) }

// Close stops the target, waits for the requests that run and ends its goroutines. Exports stay on disk: their clients
// find them again after the next start. It does not close the device.
func (t *Target) Close(ctx context.Context) error {
	t.stopped.Store(true)
	t.stopOnce.Do(func() { close(t.stop) })
	t.recovery.close()
	t.done.Wait()
	drained := make(chan struct{})
	go func() {
		for _, x := range t.Exports() {
			x.drain()
		}
		t.recovery.done.Wait()
		close(drained)
	}()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("target: %s: requests still run: %w", t.o.Name, ctx.Err())
	}
}

// serving is nil while the target answers requests.
func (t *Target) serving() error {
	if t.stopped.Load() {
		return status.Errorf(status.Stopping, "%s is stopping", t.o.Name)
	}
	if err := t.o.Device.Err(); err != nil {
		return status.Errorf(status.Stopping, "%s has stopped: %v", t.o.Name, err)
	}
	return nil
}

// Connect implements rpc.Target: it makes the export of a new client, or joins the one that the client has.
func (t *Target) Connect(ctx context.Context, conn *rpc.Conn, r *wirepb.ConnectRequest) (rpc.Session, *wirepb.ConnectReply, error) {
	if err := t.serving(); err != nil {
		return nil, nil, err
	}
	if err := t.check(r); err != nil {
		return nil, nil, err
	}
	if r.Bulk {
		return t.joinBulk(conn, r)
	}
	for {
		x, recovered, err := t.exportFor(conn, r)
		if err != nil {
			return nil, nil, err
		}
		// A target that was started again takes replays only from clients that it knows.
		if err := t.o.Device.WaitCommitted(ctx, store.Transno(x.saved.Load())); err != nil {
			return nil, nil, Status(err)
		}
		if !x.reconnect(conn) {
			continue // It ended in between: make a new one.
		}
		t.recovery.reconnected(x)
		reply := t.reply(x)
		reply.Recovered = recovered
		reply.Recovering = t.recovery.open.Load()
		switch {
		case reply.Recovering && x.Kind == rpc.KindClient:
			reply.LastCommitted = uint64(t.recovery.point)
		case r.Instance != 0 && r.Instance != t.instance:
			reply.LastCommitted = uint64(t.committedOf(r))
		}
		if t.o.ConnectReply != nil {
			t.o.ConnectReply(x, reply)
		}
		return x, reply, nil
	}
}

func (t *Target) check(r *wirepb.ConnectRequest) error {
	switch {
	case len(r.Uuid) != 16:
		return status.Errorf(status.Protocol, "%s: a connect with a uuid of %d bytes", t.o.Name, len(r.Uuid))
	case r.Version+1 < wire.Version || r.Version > wire.Version+1:
		return status.Errorf(status.Refused, "%s speaks protocol version %d and one next to it; the peer speaks %d",
			t.o.Name, wire.Version, r.Version)
	case len(r.Fsname) != 0 && string(r.Fsname) != t.o.FSName:
		return status.Errorf(status.Refused, "%s belongs to file system %q, not to %q: check --fsname",
			t.o.Name, t.o.FSName, trim(r.Fsname))
	case len(r.Target) != 0 && string(r.Target) != t.o.Name:
		return status.Errorf(status.WrongTarget, "%s was asked for %q", t.o.Name, trim(r.Target))
	}
	return nil
}

// trim bounds what a peer's text adds to a sentence or a record.
func trim(b []byte) []byte { return b[:min(len(b), peerMax)] }

func (t *Target) reply(x *Export) *wirepb.ConnectReply {
	r := &wirepb.ConnectReply{
		Version: wire.Version, Generation: x.Generation(), Instance: t.instance,
		LastCommitted: uint64(t.o.Committed()), MaxRpcsInFlight: t.o.MaxInFlight, BrwSize: wire.BulkMax,
		EvictAfterMsec: msec(t.o.EvictAfter),
	}
	if t.o.LockTimeout != nil {
		r.LockTimeoutMsec = msec(t.o.LockTimeout())
	}
	r.Fsname = append(r.Fsname, t.o.FSName...)
	return r
}

func msec(d time.Duration) uint32 { return uint32(min(d/time.Millisecond, math.MaxUint32)) }

// committedOf is the last_committed of the instance that a client was connected to before. Numbers of a later instance
// are higher than all of its own, committed or not, and say nothing of them.
func (t *Target) committedOf(r *wirepb.ConnectRequest) wire.Transno {
	if r.Instance == t.previous {
		return t.restart
	}
	return min(wire.Transno(r.LastCommitted), t.restart) // What the client knows for certain.
}

// joinBulk adds a second connection to an export under the generation that the first one was given.
func (t *Target) joinBulk(conn *rpc.Conn, r *wirepb.ConnectRequest) (rpc.Session, *wirepb.ConnectReply, error) {
	t.mu.Lock()
	x := t.exports.get([16]byte(r.Uuid))
	t.mu.Unlock()
	if x == nil || !x.join(conn, r.Generation) {
		return nil, nil, status.Errorf(status.NotConnected, "%s: a bulk connection without its control connection", t.o.Name)
	}
	reply := t.reply(x)
	reply.Recovered = true
	return x, reply, nil
}

// exportFor finds or makes the export of a client; recovered says that it was there before.
func (t *Target) exportFor(conn *rpc.Conn, r *wirepb.ConnectRequest) (x *Export, recovered bool, err error) {
	for {
		t.mu.Lock()
		if x := t.exports.get([16]byte(r.Uuid)); x != nil {
			t.mu.Unlock()
			if x.Kind != r.Kind || x.ReadOnly != r.ReadOnly {
				return nil, false, status.Errorf(status.Refused, "%s: uuid %x is taken by %s", t.o.Name, r.Uuid, x.Peer)
			}
			return x, true, nil
		}
		if dead := t.predecessorLocked(r); dead != nil {
			t.mu.Unlock()
			if t.end(dead, true, "evicted: its successor has connected: "+string(trim(r.Peer))) {
				t.stats.evicted.Inc()
			}
			continue
		}
		x, err := t.admitLocked(conn, r)
		t.mu.Unlock()
		if err != nil {
			return nil, false, err
		}
		return x, false, t.saveExport(x)
	}
}

// Status gives an error of the store the kind that a peer is told; others pass.
func Status(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrStopped):
		return fmt.Errorf("%w: %w", status.Stopping, err)
	case errors.Is(err, store.ErrNoSpace):
		return fmt.Errorf("%w: %w", status.NoSpace, err)
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("%w: %w", status.NotExist, err)
	}
	return err
}
