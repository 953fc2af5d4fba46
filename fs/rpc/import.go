package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
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

// Defaults of max_rpcs_in_flight (DESIGN §3).
const (
	DefaultInFlightData     = 8
	DefaultInFlightMetadata = 16
)

var errClosed = status.Errorf(status.NotConnected, "rpc: the import is closed")

// ImportOptions says to whom an import connects and as what.
type ImportOptions struct {
	Transport Transport
	// Addresses of the target's server, tried in turn.
	Addresses []string
	// FSName and Target name the file system and the target: "strake-OST0001", "strake-MDT0000" or "MGS".
	FSName, Target string
	// UUID names this client for as long as its mount or target process lives.
	UUID [16]byte
	// Peer says who that is, for people: host, role, mount point.
	Peer string
	// Kind is one of KindClient, KindMDT, KindOST and KindTool.
	Kind     uint32
	ReadOnly bool
	// Bulk opens a second connection, on which operations with wire.Op.Bulk travel.
	Bulk bool
	// MaxInFlight bounds the requests in flight that do not modify, and as many again that do; 0 is 8 with Bulk and 16
	// without, MaxInFlightLimit is the most. The server may lower it. Operations with wire.Op.Prior do not count.
	MaxInFlight int
	// RetryLimit is how long Do waits for a target that is away, before it returns status.TimedOut; 0 is for ever, until
	// the caller's ctx ends.
	RetryLimit time.Duration
	// OnConnect runs after each connect, before requests flow. It must not wait. r is not used afterwards.
	OnConnect func(r *wirepb.ConnectReply)
	// OnCommitted runs when the target's last_committed has advanced, in the goroutine of some Do or of a reader, possibly in
	// several at once and then not in order. It must not wait.
	OnCommitted func(wire.Transno)
	// Replay keeps modifying requests after their answers until last_committed covers them, and sends them again when the
	// target was started again and has lost them (state REPLAY).
	Replay bool
	// ReplayMax bounds the memory of what Replay keeps, in bytes; 0 is DefaultReplayMax. Above half of it the import asks the
	// target for a commit (wire.OpSync), above all of it Do of requests that modify waits.
	ReplayMax int
	// ReplayMore, if set, sends in the state REPLAY what the caller keeps by itself, by Recovery.Replay, and returns when all is
	// answered: what has a transno above after, in the order of transnos. An error, but for the connection's loss, is logged.
	ReplayMore func(ctx context.Context, r *Recovery, after wire.Transno) error
	// Restore, if set, hands opens and locks back in the state REPLAY_LOCKS, by Recovery.Do, and returns when they are. An error,
	// but for the connection's loss, is logged. Both hooks run in a goroutine of their own while no other request flows, so
	// they must not call Do of this import, nor wait for one; they return soon after ctx has ended, and run again, from the
	// start, when the connection was lost meanwhile: what they send may have been done already.
	Restore func(ctx context.Context, r *Recovery) error
	// OnRefused hears of a request that was answered, and that the target has lost and refuses to repeat, with its body. It
	// must not wait and keeps nothing of body.
	OnRefused func(op wire.Op, body []byte, err error)
	// OnLate gets the body of a reply of status 0 whose Do has left because its ctx ended: what was asked has happened, and
	// nobody else knows what came of it. It must not wait and keeps nothing of body; nil ignores such replies.
	OnLate func(op wire.Op, body []byte)
	// Callback serves the server's calls to this client, at most CallbacksMax at once; nil answers status.NotSystem.
	Callback func(e *env.Env, c *Call) error
	// Log may be nil.
	Log *slog.Logger
	// Stats may be nil.
	Stats *stats.Registry
}

// links are the connections of one connect. bulk is control where there is no second one.
type links struct {
	control, bulk *link
	generation    uint64
	instance      uint64
	readers       sync.WaitGroup
	// ended is closed when a reader has left.
	ended chan struct{}
	once  sync.Once
}

func (ls *links) of(op wire.Op) *link {
	if op.Bulk() {
		return ls.bulk
	}
	return ls.control
}

func (ls *links) close(cause error) {
	ls.control.close(cause)
	ls.bulk.close(cause)
}

// Import is a client's connection to one target. See the package's documentation for its states.
type Import struct {
	o         ImportOptions
	log       *slog.Logger
	stats     *importStats
	table     *table
	reads     *slots // requests that change nothing
	mods      *slots // modifying ones
	priorRead *slots // as above, of the reserve
	priorMods *slots
	pings     *slots
	restores  *slots     // of a Recovery
	kept      *replayLog // nil without ImportOptions.Replay
	life      context.Context
	end       context.CancelFunc // of life
	times     timeouts
	service   answers // of requests that do not wait by their nature
	network   answers // of pings
	limits    limits
	calls     callbacks

	// full is nil unless the state is StateFull.
	full      atomic.Pointer[links]
	instance  atomic.Uint64
	committed atomic.Uint64
	replayed  atomic.Uint64 // the last transno of a replay
	noticed   atomic.Uint64 // see NewInstance
	evictions atomic.Uint64
	heard     atomic.Int64 // see LastHeard
	inactive  atomic.Bool  // an administrator has switched it off
	closing   chan struct{}
	kick      chan struct{} // one token: driver, look

	mu        sync.Mutex
	addresses []string           // guarded by mu
	state     State              // guarded by mu
	changed   chan struct{}      // closed and replaced at each change of what await looks at; guarded by mu
	refusal   error              // why the target will not have us; guarded by mu
	lastErr   error              // of the last connect that failed; guarded by mu
	history   history            // of states; guarded by mu
	attempts  int                // connects tried; guarded by mu
	address   string             // of the connection, or of the last one; guarded by mu
	cancel    context.CancelFunc // ends the driver; nil before it runs; guarded by mu
	driver    sync.WaitGroup
	want      struct { // what the driver is to do; guarded by mu
		connect, evicted, resend, addresses bool
	}
}

// NewImport makes an import that is not connected: Do waits until Connect has been called.
func NewImport(o ImportOptions) (*Import, error) {
	if o.Transport == nil || len(o.Addresses) == 0 || o.Target == "" {
		return nil, fmt.Errorf("rpc: an import needs a transport, an address and a target's name")
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = DefaultInFlightMetadata
		if o.Bulk {
			o.MaxInFlight = DefaultInFlightData
		}
	}
	if o.MaxInFlight < 0 || o.MaxInFlight > MaxInFlightLimit {
		return nil, fmt.Errorf("rpc: max_rpcs_in_flight of %d, at most %d", o.MaxInFlight, MaxInFlightLimit)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	path := importPath(o.Kind, o.Target)
	n := o.MaxInFlight
	i := &Import{
		o: o, log: o.Log.With("target", o.Target), stats: newImportStats(o.Stats, path),
		closing: make(chan struct{}), kick: make(chan struct{}, 1), changed: make(chan struct{}),
		addresses: append([]string(nil), o.Addresses...), limits: limits{reads: n, mods: n, granted: n},
	}
	size := uint32(0)
	section := func(n int) *slots {
		s := newSlots(size, n)
		size += uint32(n)
		return s
	}
	i.priorMods, i.mods = section(PriorSlots), section(n)
	i.reads, i.priorRead, i.pings, i.restores = section(n), section(PriorSlots), section(2), section(replayWindow)
	i.table = newTable(int(size))
	i.table.late = o.OnLate
	i.life, i.end = context.WithCancel(context.Background())
	i.times.init()
	if o.Replay {
		if o.ReplayMax == 0 {
			o.ReplayMax = DefaultReplayMax
		}
		i.kept = newReplayLog(o.ReplayMax, i.startAsking)
		i.table.kept = i.kept
	}
	i.history.add(time.Now(), StateNew)
	i.calls.init(i)
	if o.Stats != nil {
		i.register(o.Stats, path)
		i.registerSwitches(path)
	}
	return i, nil
}

// Connect connects for the first time, waiting until requests flow. An error of kind status.Refused comes back at once.
// When ctx ends first, the error wraps ctx's and says what the last try met. After either the import goes on trying by
// itself until Close.
func (i *Import) Connect(ctx context.Context) error {
	i.mu.Lock()
	if i.state == StateClosed {
		i.mu.Unlock()
		return errClosed
	}
	if i.cancel == nil {
		run, cancel := context.WithCancel(context.Background())
		i.cancel = cancel
		i.driver.Go(func() { newDriver(i).run(run) })
	}
	i.refusal = nil
	i.want.connect = true
	i.mu.Unlock()
	wake(i.kick)
	_, err := i.await(ctx, wire.OpConnect, time.Time{})
	if err != nil && ctx.Err() != nil {
		i.mu.Lock()
		last := i.lastErr
		i.mu.Unlock()
		if last != nil {
			return fmt.Errorf("rpc: connecting to %s: %w (last try: %w)", i.o.Target, err, last)
		}
	}
	return err
}

// await waits until requests flow, for one of op. It returns ctx's error, status.TimedOut at a limit that is not zero, the refusal of a
// target that will not have this client, or errClosed.
func (i *Import) await(ctx context.Context, op wire.Op, limit time.Time) (*links, error) {
	var timeout <-chan time.Time
	for {
		i.mu.Lock()
		ls, changed, err := i.full.Load(), i.changed, i.refusal
		if i.state == StateClosed {
			err = errClosed
		}
		i.mu.Unlock()
		if err == nil && ls == nil {
			err = i.off(op, false)
		}
		if ls != nil || err != nil {
			return ls, err
		}
		if timeout == nil && !limit.IsZero() {
			t := time.NewTimer(time.Until(limit))
			defer t.Stop()
			timeout = t.C
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timeout:
			return nil, status.Errorf(status.TimedOut, "rpc: %s has been away for %v", i.o.Target, i.o.RetryLimit)
		}
	}
}

// startAsking runs askCommit beside the driver, unless the import is closed.
func (i *Import) startAsking() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.state != StateClosed {
		i.driver.Go(i.askCommit)
	}
}

// askCommit asks the target to commit, because the replay log is filling.
func (i *Import) askCommit() {
	defer i.kept.asked()
	err := i.Do(i.life, &Request{Op: wire.OpSync, Body: &wirepb.SyncRequest{All: true}, Reserve: true})
	if err != nil && i.life.Err() == nil {
		i.log.Debug("the target was asked for a commit", "error", err)
	}
}

// changedLocked wakes those who wait in await.
func (i *Import) changedLocked() {
	close(i.changed)
	i.changed = make(chan struct{})
}

// State is the import's state now.
func (i *Import) State() State {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.state
}

// LastCommitted is the newest last_committed that the target has told.
func (i *Import) LastCommitted() wire.Transno { return wire.Transno(i.committed.Load()) }

// Instance is the target's instance that the import last connected to, 0 before the first connect.
func (i *Import) Instance() uint64 { return i.instance.Load() }

// SetAddresses replaces the addresses, of which there must be one at least; the next connect begins with the first. An
// import that waits to try again tries at once.
func (i *Import) SetAddresses(a []string) {
	if len(a) == 0 {
		return
	}
	i.mu.Lock()
	i.addresses = append([]string(nil), a...)
	i.want.addresses = true
	i.mu.Unlock()
	wake(i.kick)
}

// NewInstance is what the MGS tells: the target's instance is n now. An import that is connected to an earlier one drops that
// connection, and one that waits to try again tries at once. Told the same again, or of the instance that it is connected to, it
// does nothing. It does not wait.
func (i *Import) NewInstance(n uint64) {
	if n == 0 || i.noticed.Swap(n) == n || i.instance.Load() == n {
		return
	}
	i.Reconnect()
}

// Reconnect drops the connection, if there is one, and connects anew, at once. It does not wait. Before the first Connect
// it does nothing.
func (i *Import) Reconnect() {
	if ls := i.full.Load(); ls != nil {
		ls.close(errors.New("rpc: told to reconnect"))
		return
	}
	i.mu.Lock()
	i.want.connect = true
	i.mu.Unlock()
	wake(i.kick)
}

// disconnectTimeout bounds the farewell to a target that does not answer.
const disconnectTimeout = 2 * time.Second

// Close tells the target good-bye if it is connected, fails every request that waits, cuts the connections and waits for
// the import's goroutines. ctx bounds the good-bye only; one that nobody answers in disconnectTimeout is no error, for the
// target may have gone first. A second Close returns nil at once.
func (i *Import) Close(ctx context.Context) error {
	var err error
	if i.full.Load() != nil {
		bye, cancel := context.WithTimeout(ctx, disconnectTimeout)
		err = i.Do(bye, &Request{Op: wire.OpDisconnect})
		cancel()
		k := status.Of(err)
		if k == status.NotSystem || k == status.NotConnected || k == status.TimedOut && ctx.Err() == nil {
			err = nil
		}
	}
	i.mu.Lock()
	if i.state == StateClosed {
		i.mu.Unlock()
		i.driver.Wait()
		return nil
	}
	i.state = StateClosed
	i.full.Store(nil)
	close(i.closing)
	i.end()
	i.changedLocked()
	if i.cancel != nil {
		i.cancel()
	}
	i.mu.Unlock()
	i.driver.Wait()
	i.calls.wait()
	return err
}
