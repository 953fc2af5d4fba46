package osc

import (
	"context"
	"fmt"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
)

// Pin is a lock that a call holds on an object; its zero value holds none. It is given back by Unlock, once, and not copied
// while it is used.
type Pin struct {
	c *OSC
	// use is what is unpinned, own the lock that it is of.
	use, own ldlm.Handle
	v        *cover
	mode     ldlm.Mode
	extent   extent.Extent
	leaving  bool
}

// Ask says how a lock is asked for.
type Ask struct {
	Mode   ldlm.Mode
	Extent extent.Extent
	// Paged: a READ of the kernel, whose pages a Revoke waits for, is served under a lock on its way back too.
	Paged bool
	// Mapped: a WRITE of mapped pages. It is served under a read lock on its way back too; see Object.Lock.
	Mapped bool
}

// Locked reports whether the OST's objects are used under locks.
func (c *OSC) Locked() bool { return c.locks != nil }

// TryLock pins a held lock that allows what mode allows on e; it sends nothing. Without locks it succeeds.
func (o *Object) TryLock(mode ldlm.Mode, e extent.Extent, p *Pin) bool {
	c := o.osc
	if c.locks == nil {
		return true
	}
	w := ldlm.Wanted{Res: ldlm.ObjectRes(o.id), Modes: lockcache.Serving(mode), Extent: e}
	g, ok := c.locks.Match(&w)
	if ok {
		p.take(c, &g)
	}
	return ok
}

func (p *Pin) take(c *OSC, g *lockcache.Grant) {
	p.c, p.use, p.own, p.mode, p.extent, p.leaving = c, g.Handle, g.Own, g.Desc.Mode, g.Desc.Extent, g.Leaving
	p.v, _ = g.Data.(*cover)
}

// Lock pins a lock, a held one or one that the OST grants; it waits until others have given theirs back. Errors are those of
// lockcache.Cache.Acquire. Without locks it returns at once.
//
// A WRITE of mapped pages may be what the Revoke of its own lock waits for: the kernel writes dirty pages back before it
// drops them, also those that were read under PR. To ask for PW then would wait behind who wants the lock back, for ever.
// So it goes through under the lock on its way back, whatever the mode: who asked for that lock has called back all other
// readers of what it wants. Where nobody asked, because the lock goes for its age, others may read on: there the pin holds
// no lock, and the write goes through under the OST's own, which calls them back.
func (o *Object) Lock(ctx context.Context, a Ask, p *Pin) error {
	if o.TryLock(a.Mode, a.Extent, p) {
		return nil
	}
	return o.lockSlow(ctx, a, p)
}

func (o *Object) lockSlow(ctx context.Context, a Ask, p *Pin) error {
	c := o.osc
	v := o.newCover()
	r := lockcache.Request{Res: ldlm.ObjectRes(o.id), Mode: a.Mode, Extent: a.Extent, Data: v, Leaving: a.Paged || a.Mapped}
	if a.Mapped {
		r.LeavingModes = ldlm.EX | ldlm.PW | ldlm.PR
	}
	g, err := c.locks.Acquire(ctx, &r)
	if err != nil {
		c.covers.remove(v)
		return fmt.Errorf("osc: %s: lock of object %v: %w", c.o.Name, o.id, err)
	}
	if g.Leaving && a.Mapped && g.Desc.Mode == ldlm.PR && g.Why != lockcache.WhyBlocking {
		c.covers.remove(v)
		c.locks.Unpin(g.Handle)
		*p = Pin{}
		return nil
	}
	c.granted(v, &g)
	if !g.Matched && g.HasLVB {
		o.learn(&g.LVB)
	}
	p.take(c, &g)
	return nil
}

// learn takes an object's blocks from a new lock's LVB: they may be fewer when somebody has cut the object.
func (o *Object) learn(l *ldlm.LVB) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.dirty != 0:
	case l.Size < o.space.sent:
		o.space.told(l.Blocks, l.Size)
	default:
		o.space.blocks, o.space.sent = max(o.space.blocks, l.Blocks), max(o.space.sent, l.Size)
	}
}

// newCover is for a lock that is about to be asked for.
func (o *Object) newCover() *cover {
	v := &cover{id: o.id, file: o.file, comp: o.comp, stripe: o.place, epoch: o.osc.epoch.Load()}
	o.osc.covers.add(v)
	return v
}

// granted enters what came with a lock that was asked for with v.
func (c *OSC) granted(v *cover, g *lockcache.Grant) {
	if g.Matched || g.Handle == 0 || v.epoch != c.epoch.Load() {
		c.covers.remove(v)
	}
	if !g.Matched && g.Handle != 0 && g.HasLVB {
		v.told(&g.LVB)
	}
}

// Lockless reports whether the OST asked to use the object without locks for a while.
func (o *Object) Lockless() bool {
	return o.osc.locks != nil && o.osc.locks.Lockless(ldlm.ObjectRes(o.id))
}

// Unlock gives the pin back.
func (p *Pin) Unlock() {
	if p.use != 0 {
		p.c.locks.Unpin(p.use)
		p.use = 0
	}
}

// Handle is this client's handle of the lock for Read, Write and others; 0 when none is held.
func (p *Pin) Handle() ldlm.Handle { return p.own }

// Leaving reports whether the lock is on its way back: what is written must not stay dirty.
func (p *Pin) Leaving() bool { return p.leaving }

// Size is a size that the object has at least, as far as that lies under the lock; exact when nobody can change it while the
// lock is held. known is false when the lock says nothing.
func (p *Pin) Size() (size uint64, exact, known bool) {
	if p.v == nil {
		return 0, false, false
	}
	n := p.v.size.Load()
	if n == 0 {
		return 0, false, false
	}
	size = n - 1
	return size, p.extent.End == extent.EOF && size >= p.extent.Start, true
}

// Wrote notes that the object has end bytes at least by a write of this call.
func (p *Pin) Wrote(end uint64) {
	if p.v != nil {
		p.v.raise(end)
	}
}

// Cut notes that this call has made size the object's size. The lock reaches from there to the end.
func (p *Pin) Cut(size uint64) {
	if p.v != nil && p.v.size.Load() != 0 {
		p.v.size.Store(size + 1)
	}
}

// Touch notes that the kernel may cache the object's bytes up to end under this lock.
func (p *Pin) Touch(end uint64) {
	if p.v != nil && p.v.high.Load() < end {
		p.v.touch(end)
	}
}
