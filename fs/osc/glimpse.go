package osc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// whole is an object, however long it gets.
var whole = extent.Extent{End: extent.EOF}

// Glimpse tells the object's size and times as every client would see them, with what is dirty anywhere. A lock on the whole
// object, if one is held, knows. Otherwise the OST is asked for one; where it cannot grant it at once, it asks the holders of
// write locks and answers without one. So a Glimpse never waits for a lock, and may be called whatever is pinned.
func (o *Object) Glimpse(ctx context.Context) (Glimpse, error) {
	if o.osc.locks == nil {
		return o.ask(ctx)
	}
	// What is being written back may be answered between the OST's look and this client's: it is looked at before too.
	dirty := o.osc.dirtyEnd(o)
	g, err := o.glimpse(ctx)
	if err != nil {
		return Glimpse{}, err
	}
	g.Size = max(g.Size, dirty, o.osc.dirtyEnd(o))
	return g, nil
}

// dirtyEnd is behind the last dirty or unanswered byte of the object, whichever of its Objects has it.
func (c *OSC) dirtyEnd(o *Object) (end uint64) {
	var few [4]*Object
	for _, x := range c.live.find(o.id, nil, few[:0]) {
		end = max(end, x.DirtyEnd())
	}
	return end
}

func (o *Object) glimpse(ctx context.Context) (Glimpse, error) {
	var p Pin
	if o.TryLock(ldlm.PR, whole, &p) {
		defer p.Unlock()
		if g, ok := p.glimpse(); ok {
			g.Held = true
			return g, nil
		}
		return o.askUnder(ctx, &p)
	}
	v := o.newCover()
	r := lockcache.Request{Res: ldlm.ObjectRes(o.id), Mode: ldlm.PR, Extent: whole, Flags: ldlm.Glimpse, Data: v}
	l, err := o.osc.locks.Acquire(ctx, &r)
	switch {
	case errors.Is(err, status.NotExist):
		o.osc.covers.remove(v)
		return Glimpse{}, nil
	case err != nil:
		o.osc.covers.remove(v)
		return Glimpse{}, fmt.Errorf("osc: %s: glimpse of object %v: %w", o.osc.o.Name, o.id, err)
	case l.Matched:
		o.osc.covers.remove(v)
		p.take(o.osc, &l)
		defer p.Unlock()
		if g, ok := p.glimpse(); ok {
			return g, nil
		}
		return o.askUnder(ctx, &p)
	}
	o.osc.granted(v, &l)
	if l.Handle != 0 {
		o.osc.locks.Unpin(l.Handle)
	}
	if !l.HasLVB {
		return Glimpse{}, status.Errorf(status.Protocol, "osc: %s: a glimpse of object %v with a bad lock value block", o.osc.o.Name, o.id)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dirty == 0 {
		o.space.told(l.LVB.Blocks, l.LVB.Size)
	}
	return glimpsed(&l.LVB), nil
}

// askUnder asks the OST under a lock on the whole object: nobody else writes, so that the OST and this client know all, and the lock
// knows it from then on.
func (o *Object) askUnder(ctx context.Context, p *Pin) (Glimpse, error) {
	if p.v == nil {
		return o.ask(ctx)
	}
	o.osc.covers.ensure(p.v)
	missed, dirty := p.v.missed.Load(), o.osc.dirtyEnd(o)
	g, err := o.ask(ctx)
	if err == nil {
		p.v.asked(&g, max(g.Size, dirty, o.osc.dirtyEnd(o)), missed)
	}
	return g, err
}

// glimpse is what a lock on the whole object knows; false when it was granted to somebody who had left.
func (p *Pin) glimpse() (Glimpse, bool) {
	if p.v == nil {
		return Glimpse{}, false
	}
	size := p.v.size.Load()
	if size == 0 {
		return Glimpse{}, false
	}
	p.v.mu.Lock()
	l := p.v.lvb
	p.v.mu.Unlock()
	l.Size = size - 1
	return glimpsed(&l), true
}

func glimpsed(l *ldlm.LVB) Glimpse {
	at := func(ns int64) attr.Time {
		if ns == 0 {
			return attr.Time{}
		}
		return attr.TimeOf(time.Unix(0, ns))
	}
	return Glimpse{Size: l.Size, Blocks: l.Blocks, Mtime: at(l.Mtime), Ctime: at(l.Ctime), Exists: true}
}

// ask asks the OST for what it has.
func (o *Object) ask(ctx context.Context) (Glimpse, error) {
	var id wirepb.Object
	r, err := o.call(ctx, wire.OpGlimpse, &wirepb.GlimpseRequest{Object: o.name(&id)})
	if err != nil {
		return Glimpse{}, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dirty == 0 {
		o.space.told(r.Blocks, r.Size)
	}
	return Glimpse{
		Size: r.Size, Blocks: r.Blocks, Exists: r.Exists,
		Mtime: attr.Time{Sec: r.MtimeSec, Nsec: r.MtimeNsec},
	}, nil
}
