package osp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// Remote is an OST as the set reaches it; *rpc.Import is one.
type Remote interface {
	Do(ctx context.Context, r *rpc.Request) error
	LastCommitted() wire.Transno
	Instance() uint64
	SetAddresses(a []string)
	Close(ctx context.Context) error
}

// Events are what a Remote tells its owner. None of them waits.
type Events struct {
	Connected func(r *wirepb.ConnectReply)
	Committed func(wire.Transno)
}

// Options of a Set.
type Options struct {
	// Device is the metadata target's; Tables says where Specs stands in it.
	Device store.Device
	Tables Tables
	// Group is the metadata target's index: the group of its objects.
	Group  uint32
	FSName string
	// Name is the metadata target's, "strake-MDT0000"; Peer says who that is, for people.
	Name, Peer string
	UUID       [16]byte
	Transport  rpc.Transport
	Log        *slog.Logger
	// Stats may be nil.
	Stats *stats.Registry

	// CreateCount is the first batch of objects made ahead, CreateMax the largest; 0 is 32 and 20,000.
	CreateCount, CreateMax uint64
	// StatfsEvery is how often an OST is asked for its space; 0 is a second. An OST is down when its connection is lost,
	// or when it does not answer for three times as long and at least for answerMin.
	StatfsEvery time.Duration
	// WaitLimit is how long Allocate waits for objects; 0 is 30 s.
	WaitLimit time.Duration
	// Connect makes the Remote of an OST; nil makes an rpc.Import.
	Connect func(index layout.OSTIndex, addresses []string, ev Events) (Remote, error)
	// Rand draws the random numbers of the choice; nil is math/rand/v2.
	Rand func() uint64
}

// Set is the OSTs of a file system as one metadata target sees them. It implements Pool. Make it with New.
type Set struct {
	o      Options
	plain  layout.Layout
	ctx    context.Context // ends with Close; for the loops, which are goroutines of the set
	cancel context.CancelFunc
	done   sync.WaitGroup
	turn   atomic.Uint64
	osts   atomic.Pointer[[]*OSP] // sorted by index; replaced whole
	// recovered is closed when recovery has ended.
	recovered   chan struct{}
	recoverOnce sync.Once
	allocations sync.Pool

	mu      sync.Mutex
	changed chan struct{} // closed when an OST got objects or changed its state; nil with nobody waiting; guarded by mu
	closed  bool          // guarded by mu
	keep    keeper        // after a restore; guarded by mu
}

// New makes a set without OSTs. Call it before the device's first publish.
func New(o Options) *Set {
	o.CreateCount = cmpOr(o.CreateCount, 32)
	o.CreateMax = cmpOr(o.CreateMax, 20000)
	o.StatfsEvery = cmpOr(o.StatfsEvery, time.Second)
	o.WaitLimit = cmpOr(o.WaitLimit, 30*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Rand == nil {
		o.Rand = rand.Uint64
	}
	s := &Set{o: o, plain: layout.Plain(1, layout.StripeSizeDefault), recovered: make(chan struct{})}
	if o.Connect == nil {
		s.o.Connect = s.dial
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.osts.Store(&[]*OSP{})
	s.keep.bad = s.loadKept()
	o.Device.OnCommitted(func(store.Transno) {
		for _, p := range s.list() {
			wake(p.logWake)
		}
	})
	return s
}

func cmpOr[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// wake leaves one token for a loop.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// dial is the default of Options.Connect: an import that keeps trying until it is closed.
func (s *Set) dial(index layout.OSTIndex, addresses []string, ev Events) (Remote, error) {
	return rpc.NewImport(rpc.ImportOptions{
		Transport: s.o.Transport, Addresses: addresses, FSName: s.o.FSName, Target: TargetName(s.o.FSName, index),
		UUID: s.o.UUID, Peer: s.o.Peer, Kind: rpc.KindMDT, Log: s.o.Log, Stats: s.o.Stats,
		OnConnect: ev.Connected, OnCommitted: ev.Committed,
	})
}

// TargetName is the name of an OST of a file system.
func TargetName(fsname string, index layout.OSTIndex) string {
	return fmt.Sprintf("%s-OST%04x", fsname, uint32(index))
}

func (s *Set) list() []*OSP { return *s.osts.Load() }

// find returns the OST of an index, nil if there is none.
func (s *Set) find(index layout.OSTIndex) *OSP {
	all := s.list()
	if int(index) < len(all) && all[index].index == index {
		return all[index] // The usual case: indices without gaps.
	}
	for _, o := range all {
		if o.index == index {
			return o
		}
	}
	return nil
}

// SetOST enters an OST or tells its addresses anew, and whether the administrator has it active. It does not wait for
// the OST. The error is the device's, or of a malformed address.
func (s *Set) SetOST(index layout.OSTIndex, addresses []string, active bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.ErrStopped
	}
	if s.keep.bad != nil {
		return s.keep.bad
	}
	if o := s.find(index); o != nil {
		o.remote.SetAddresses(addresses)
		o.deactivated.Store(!active)
		s.changedLocked()
		return nil
	}
	o, err := newOSP(s, index, addresses)
	if err != nil {
		return fmt.Errorf("osp: %s: %w", TargetName(s.o.FSName, index), err)
	}
	o.deactivated.Store(!active)
	all := append(slices.Clone(s.list()), o)
	slices.SortFunc(all, func(a, b *OSP) int { return int(a.index) - int(b.index) })
	s.osts.Store(&all)
	o.start()
	s.changedLocked()
	return nil
}

// RecoveryEnded lets the set clean up orphans and make objects. Call it once every replayed create has come; the objects
// above the highest id used then are destroyed.
func (s *Set) RecoveryEnded() { s.recoverOnce.Do(func() { close(s.recovered) }) }

// watch returns a channel that is closed at the next change.
func (s *Set) watch() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

func (s *Set) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changedLocked()
}

func (s *Set) changedLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Close ends the loops and the connections. Logs stay on disk for the next start.
func (s *Set) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.done.Wait()
	all := s.list()
	errs := make([]error, len(all))
	var closing sync.WaitGroup
	for i, o := range all {
		closing.Go(func() { errs[i] = o.remote.Close(ctx) }) // One that does not answer takes its time alone.
	}
	closing.Wait()
	return errors.Join(errs...)
}

// Space is the sum over the OSTs that have told theirs.
type Space struct {
	TotalBytes, FreeBytes, AvailBytes uint64
	Inodes, FreeInodes                uint64
}

// Statfs sums the space of the OSTs that are not deactivated, as they last told it.
func (s *Set) Statfs() Space {
	var sum Space
	for _, o := range s.list() {
		if f := o.space.Load(); f != nil && !o.switchedOff() {
			sum.TotalBytes += f.TotalBytes
			sum.FreeBytes += f.FreeBytes
			sum.AvailBytes += f.AvailBytes
			sum.Inodes += f.Inodes
			sum.FreeInodes += f.FreeInodes
		}
	}
	return sum
}

// OSTs returns the OSTs, sorted by index. The slice is shared: do not change it.
func (s *Set) OSTs() []*OSP { return s.list() }

// Ready waits until every active OST answers and has objects, or is full; until ctx ends.
func (s *Set) Ready(ctx context.Context) error {
	for {
		changed := s.watch()
		waits := ""
		for _, o := range s.list() {
			if c := o.candidate(); !c.Deactivated && (!c.Up || c.Ready == 0 && !c.Full) {
				waits = o.name
			}
		}
		if waits == "" {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("osp: %s is not ready: %w", waits, ctx.Err())
		}
	}
}
