package osc

import (
	"context"
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
)

// This file is the owner of what lies under the locks.

// errLost is what becomes of dirty data whose lock was lost: others may have changed the bytes since.
var errLost error = &status.Error{Kind: status.IO, Text: "osc: the target has evicted this client; data not yet written is dropped"}

// LockOptions configures an OSC's lock cache.
type LockOptions struct {
	// Name of the namespace in parameters; empty is the OSC's name and "-osc".
	Name string
	// Seed is random: see ldlm.Config.
	Seed uint64
	// Heard is when the import last heard of its target; nil when it cannot say.
	Heard func() time.Time
}

// openLocks makes the lock cache.
func (c *OSC) openLocks(o *LockOptions) {
	name := o.Name
	if name == "" {
		name = c.o.Name + "-osc"
	}
	c.locks = lockcache.New(lockcache.Options{
		Name: name, Import: c.o.Import, Owner: owner{c}, Seed: o.Seed, Replay: true, NoEarly: true, Heard: o.Heard,
		Log: c.o.Log, Stats: c.o.Stats,
	})
}

// Callback serves the OST's calls, for rpc.ImportOptions.Callback.
func (c *OSC) Callback(e *env.Env, call *rpc.Call) error {
	if c.locks == nil {
		return status.NotSystem
	}
	return c.locks.Callback(e, call)
}

// Locks is the OSC's lock cache, nil when it uses the objects without locks.
func (c *OSC) Locks() *lockcache.Cache { return c.locks }

// Attach says whose kernel caches pages of the OST's objects. A Kernel is shared by the OSCs of a mount.
func (c *OSC) Attach(k *Kernel) { c.kernel.Store(k) }

// owner is the OSC as the lock cache sees it.
type owner struct{ c *OSC }

// Revoke implements lockcache.Owner: the kernel's pages go first, which brings the dirty ones here, then what is dirty here.
func (w owner) Revoke(ctx context.Context, r *lockcache.Revocation) {
	v, _ := r.Data.(*cover)
	if v == nil {
		return
	}
	c, e := w.c, r.Desc.Extent
	c.covers.remove(v)
	c.aheads.drop(c, v.id, e)
	c.dropPages(ctx, v, e)
	if r.Why == lockcache.WhyEvicted {
		if v.epoch == c.epoch.Load() { // this lock alone was lost
			for _, o := range c.live.find(v.id, nil, nil) {
				o.lose(e)
			}
		}
		return
	}
	if r.Desc.Mode == ldlm.PR {
		return
	}
	for _, o := range c.live.find(v.id, nil, nil) {
		if r.Discard {
			o.Discard()
		}
		if err := o.giveBack(ctx, e); err != nil { // the cache is being closed, and so is the OSC
			return
		}
	}
}

func (c *OSC) dropPages(ctx context.Context, v *cover, e extent.Extent) {
	if k := c.kernel.Load(); k != nil {
		if list := v.ranges(e); len(list) > 0 {
			k.drop(ctx, v.file, list)
		}
	}
}

// Glimpse implements lockcache.Owner: what is dirty or unanswered, which may be nothing; the OST has all else.
func (w owner) Glimpse(res ldlm.ResID, _ any, to *ldlm.LVB) bool {
	list := w.c.live.find(res.Object(), nil, nil)
	for _, o := range list {
		o.mu.Lock()
		end, mtime := o.dirtyLocked()
		blocks := uint64(0)
		if !o.space.vague {
			blocks = o.space.guess(uint64(o.dirty), max(end, o.space.sent))
		}
		o.mu.Unlock()
		ns := nanoseconds(mtime)
		to.Size, to.Blocks = max(to.Size, end), max(to.Blocks, blocks)
		to.Mtime, to.Ctime = max(to.Mtime, ns), max(to.Ctime, ns)
	}
	return true
}

// nanoseconds is a time as lock value blocks have it.
func nanoseconds(t attr.Time) int64 { return t.Sec*int64(time.Second) + int64(t.Nsec) }

// Lost implements lockcache.Owner: dirty data under lost locks is dropped, and its files are told once.
func (w owner) Lost() {
	c := w.c
	c.epoch.Add(1)
	c.covers.clear()
	c.aheads.dropAll(c)
	for _, o := range c.live.all(nil) {
		o.lose(extent.Extent{End: extent.EOF})
	}
}

// Silent implements lockcache.Owner.
func (w owner) Silent(ctx context.Context) {
	for _, l := range w.c.locks.Held(nil) {
		if v, _ := l.Data.(*cover); v != nil {
			w.c.dropPages(ctx, v, l.Desc.Extent)
		}
	}
}

// lose drops what is dirty or queued in e under locks. What is being sent is failed by the import or refused by the OST.
func (o *Object) lose(e extent.Extent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	lost := false
	for _, i := range o.indexesLocked(e) {
		bl := o.blocks[i]
		for _, w := range bl.writes {
			if w.lock == 0 || !w.overlaps(e) {
				continue
			}
			w.lost = true
			if w.ticket == nil && !w.dropped {
				w.dropped, lost = true, true
			}
		}
		if o.cutLocked(bl, e) > 0 {
			lost = true
		}
	}
	if lost {
		o.holder.WriteFailed(fmt.Errorf("osc: %s: object %v: %w", o.osc.o.Name, o.id, errLost))
		o.osc.cache.announce()
	}
}

// dirtyLocked gives the end of what is dirty or unanswered, 0 for nothing, and its newest time.
func (o *Object) dirtyLocked() (end uint64, mtime attr.Time) {
	for _, bl := range o.blocks {
		if n := len(bl.dirty); n > 0 {
			end, mtime = max(end, bl.dirty[n-1].end), mtime.Later(bl.mtime)
		}
		for _, w := range bl.writes {
			if !w.dropped {
				end, mtime = max(end, w.end), mtime.Later(w.mtime)
			}
		}
	}
	return end, mtime
}
