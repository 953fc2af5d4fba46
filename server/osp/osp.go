package osp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// OSP is one OST as the metadata target sees it.
type OSP struct {
	set         *Set
	index       layout.OSTIndex
	name        string
	remote      Remote
	up          atomic.Bool
	full        atomic.Bool
	deactivated atomic.Bool           // by the configuration
	off         atomic.Bool           // by an administrator, here: the parameter active
	cleaned     atomic.Bool           // orphans are gone, or kept; objects can be made
	destroyed   atomic.Int64          // when an object was last given up, Unix ns
	space       atomic.Pointer[Space] // nil until it was told
	createWake  chan struct{}
	logWake     chan struct{}

	log logState // of the log's goroutine

	mu     sync.Mutex
	cursor uint64   // the next precreated id; guarded by mu
	last   uint64   // the last precreated id; guarded by mu
	freed  []uint64 // ids given back; guarded by mu
	top    uint64   // highest id used; guarded by mu
	batch  uint64   // how many objects the next precreate makes; guarded by mu
	handed uint64   // ids handed out since the start; guarded by mu
	dry    bool     // an Allocate has found no object since the last refill; guarded by mu
}

// newOSP reads the last used id and makes the connection.
func newOSP(s *Set, index layout.OSTIndex, addresses []string) (*OSP, error) {
	o := &OSP{
		set: s, index: index, name: TargetName(s.o.FSName, index), batch: s.o.CreateCount,
		createWake: make(chan struct{}, 1), logWake: make(chan struct{}, 1),
	}
	key := binary.BigEndian.AppendUint32(nil, uint32(index))
	v, err := s.o.Device.Get(env.New(), s.o.Tables.LastUsed, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return nil, fmt.Errorf("last used object id: %w", err)
	case len(v) != 8:
		return nil, fmt.Errorf("last used object id of %d bytes", len(v))
	default:
		o.top = binary.BigEndian.Uint64(v)
	}
	o.cursor, o.last = o.top+1, o.top
	o.remote, err = s.o.Connect(index, addresses, Events{Connected: o.connected, Committed: o.committed})
	return o, err
}

// Index is the OST's index, Name its name.
func (o *OSP) Index() layout.OSTIndex { return o.index }

// Name is the OST's name.
func (o *OSP) Name() string { return o.name }

// switchedOff reports whether new files are to avoid the OST by somebody's will.
func (o *OSP) switchedOff() bool { return o.deactivated.Load() || o.off.Load() }

// State is "up", "down", "full" or "deactivated".
func (o *OSP) State() string {
	c := o.candidate()
	if c.usable() {
		return "up"
	}
	return c.reason()
}

// Space is the OST's space as it last told it; false if it never did.
func (o *OSP) Space() (Space, bool) {
	if s := o.space.Load(); s != nil {
		return *s, true
	}
	return Space{}, false
}

func (o *OSP) connected(*wirepb.ConnectReply) {
	if !o.up.Swap(true) {
		o.set.notify()
	}
	wake(o.createWake)
	wake(o.logWake)
}

func (o *OSP) committed(wire.Transno) { wake(o.logWake) }

// connecter is a Remote that must be told to connect, as an rpc.Import.
type connecter interface {
	Connect(ctx context.Context) error
}

// start runs the loops until the set's context ends.
func (o *OSP) start() {
	o.register()
	if c, ok := o.remote.(connecter); ok {
		o.set.done.Go(func() { o.connectLoop(c) })
	}
	o.set.done.Go(o.statfsLoop)
	o.set.done.Go(o.createLoop)
	o.set.done.Go(o.logLoop)
}

// retryEvery is the pause after an OST has refused something.
const retryEvery = time.Second

// pause waits for d; false if the set closes first.
func (o *OSP) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-o.set.ctx.Done():
		return false
	}
}

// connectLoop connects for the first time; afterwards the import reconnects by itself.
func (o *OSP) connectLoop(c connecter) {
	for {
		err := c.Connect(o.set.ctx)
		if err == nil || o.set.ctx.Err() != nil {
			return
		}
		o.set.o.Log.Warn("connecting to an OST", "ost", o.name, "err", err)
		if !o.pause(retryEvery) {
			return
		}
	}
}

// stater is a Remote that knows its connection, as an rpc.Import.
type stater interface {
	State() rpc.State
}

// answerMin is the least time that a connected OST has to answer before it counts as down: a busy one is not down.
const answerMin = 3 * time.Second

// down notes that the OST does not answer.
func (o *OSP) down(why error) {
	if o.up.Swap(false) {
		o.set.o.Log.Warn("OST is down: new files avoid it", "ost", o.name, "err", why)
		o.set.notify()
	}
}

// statfsLoop asks for the OST's space, which tells too whether it answers.
func (o *OSP) statfsLoop() {
	req := rpc.Request{Op: wire.OpStatfs, Reply: &wirepb.StatfsReply{}}
	for {
		reply := req.Reply.(*wirepb.StatfsReply)
		reply.Reset()
		if s, ok := o.remote.(stater); ok && o.up.Load() && s.State() != rpc.StateFull {
			o.down(fmt.Errorf("the connection is %v", s.State()))
		}
		ctx, cancel := context.WithTimeout(o.set.ctx, max(answerMin, 3*o.set.o.StatfsEvery))
		err := o.remote.Do(ctx, &req)
		cancel()
		if o.set.ctx.Err() != nil {
			return
		}
		if err == nil {
			o.tell(reply)
		} else {
			o.down(err)
		}
		if !o.pause(o.set.o.StatfsEvery) {
			return
		}
	}
}

// An OST is full below 0.1 % of its size and not full again above 0.2 % (reserved_mb_low and reserved_mb_high of the
// field), but at least these bounds, below which not one full-size RPC of every client fits.
const (
	fullBytes  = 16 << 20
	roomBytes  = 32 << 20
	fullInodes = 32
)

// tell takes in what the OST says of its space.
func (o *OSP) tell(r *wirepb.StatfsReply) {
	o.space.Store(&Space{
		TotalBytes: r.TotalBytes, FreeBytes: r.FreeBytes, AvailBytes: r.AvailBytes,
		Inodes: r.Inodes, FreeInodes: r.FreeInodes,
	})
	was := o.full.Load()
	full := r.AvailBytes < max(r.TotalBytes/1000, fullBytes) || r.FreeInodes < fullInodes
	if was && (r.AvailBytes < max(r.TotalBytes/500, roomBytes)) {
		full = true
	}
	o.full.Store(full)
	if full && !was {
		o.set.o.Log.Warn("OST is full: new files avoid it", "ost", o.name, "avail_bytes", r.AvailBytes, "free_inodes", r.FreeInodes)
	}
	if full {
		// Space comes back only when unlinks are on disk: hasten them.
		o.set.o.Device.Hasten(o.set.o.Device.Last())
	}
	if !o.up.Swap(true) || full != was {
		o.set.notify()
		wake(o.createWake)
	}
}

// refused notes that the OST could not make objects.
func (o *OSP) refused(err error) {
	if errors.Is(err, status.NoSpace) && !o.full.Swap(true) {
		o.set.notify()
	}
}

// register enters the figures under the names that the field's osp has.
func (o *OSP) register() {
	r := o.set.o.Stats
	if r == nil {
		return
	}
	base := "osp." + o.name + "-osc-" + o.set.o.Name[max(len(o.set.o.Name)-7, 0):]
	locked := func(f func() uint64) func() int64 {
		return func() int64 {
			o.mu.Lock()
			defer o.mu.Unlock()
			return int64(f())
		}
	}
	r.Func(base+".prealloc_next_id", "Next object id to be used.", locked(func() uint64 { return o.cursor }))
	r.Func(base+".prealloc_last_id", "Last object id made ahead.", locked(func() uint64 { return o.last }))
	r.Func(base+".create_count", "Objects made ahead per batch.", locked(func() uint64 { return o.batch }))
	r.Func(base+".destroys_in_flight", "Objects whose destroy the OST has not committed.", o.log.sentCount.Load)
	r.Param(base+".active", "1, or 0 when new files take no objects on the OST.", func() string {
		if o.off.Load() {
			return "0"
		}
		return "1"
	}, func(text string) error {
		on, err := rpc.ParseSwitch(text)
		if err == nil && o.off.Swap(!on) == on {
			o.set.o.Log.Info("OST is switched for new files", "ost", o.name, "active", on)
			o.set.notify()
			wake(o.createWake)
		}
		return err
	})
	r.Text(base+".state", "up, down, full or deactivated.", o.State)
}
