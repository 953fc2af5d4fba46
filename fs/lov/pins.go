package lov

import (
	"context"
	"sync"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/osc"
)

// span is what a call uses of one object, and the lock on it.
type span struct {
	tag int // of the object
	c   *layout.Component
	s   layout.StripeIndex
	e   extent.Extent // of the object
	pin osc.Pin
}

// pins is what a call uses of a file, in ascending order of the objects.
type pins struct {
	f    *File
	list []span
}

// takePins returns an empty pins; give gives it back.
func (f *File) takePins() *pins {
	p, _ := f.set.pins.Get().(*pins)
	if p == nil {
		p = new(pins)
	}
	p.f = f
	return p
}

// give unlocks what is locked and takes p back.
func (p *pins) give() {
	p.unlock()
	set := p.f.set
	clear(p.list)
	p.f, p.list = nil, p.list[:0]
	set.pins.Put(p)
}

func (p *pins) unlock() {
	for i := range p.list {
		p.list[i].pin.Unlock()
	}
}

// cover adds what the file's e touches of each object. With an End of extent.EOF that is the rest of each.
func (p *pins) cover(e extent.Extent) {
	tag := 0
	for i := range p.f.layout.Components {
		c := &p.f.layout.Components[i]
		if part := e.Intersect(c.Extent); !part.Empty() && len(c.Stripes) > 0 {
			p.stripes(tag, c, part)
		}
		tag += len(c.Stripes)
	}
}

// stripes adds the stripes of c that e touches.
func (p *pins) stripes(tag int, c *layout.Component, e extent.Extent) {
	n := uint64(len(c.Stripes))
	first, last := e.Start/c.StripeSize, (e.End-1)/c.StripeSize
	if last-first >= n-1 {
		p.run(tag, c, e, extent.Extent{End: n})
		return
	}
	a, b := first%n, last%n
	if a <= b {
		p.run(tag, c, e, extent.Extent{Start: a, End: b + 1})
		return
	}
	p.run(tag, c, e, extent.Extent{End: b + 1})
	p.run(tag, c, e, extent.Extent{Start: a, End: n})
}

// run adds some stripes.
func (p *pins) run(tag int, c *layout.Component, e, which extent.Extent) {
	for s := which.Start; s < which.End; s++ {
		if part := c.ObjectExtent(layout.StripeIndex(s), e); !part.Empty() {
			p.list = append(p.list, span{tag: tag + int(s), c: c, s: layout.StripeIndex(s), e: part})
		}
	}
}

// tail adds of each object what a truncate to size cuts.
func (p *pins) tail(size uint64) {
	tag := 0
	for i := range p.f.layout.Components {
		c := &p.f.layout.Components[i]
		for s := range c.Stripes {
			if c.Extent.End > size || c.Extent.End == extent.EOF {
				s := layout.StripeIndex(s)
				p.list = append(p.list, span{tag: tag, c: c, s: s, e: extent.Extent{Start: objectCut(c, s, size), End: extent.EOF}})
			}
			tag++
		}
	}
}

// all adds every object from start to end.
func (p *pins) all() {
	tag := 0
	for i := range p.f.layout.Components {
		c := &p.f.layout.Components[i]
		for s := range c.Stripes {
			p.list = append(p.list, span{tag: tag, c: c, s: layout.StripeIndex(s), e: extent.Extent{End: extent.EOF}})
			tag++
		}
	}
}

// of finds the span of an object; nil if the call does not use it.
func (p *pins) of(tag int) *span {
	for i := range p.list {
		if p.list[i].tag == tag {
			return &p.list[i]
		}
	}
	return nil
}

// fetchFrom is how many locks must be missing for them to be asked for in parallel first: for two it is not worth that
// another client may take the first back before both are here.
const fetchFrom = 3

// lock pins a lock of this mode on each span, in ascending order: two calls that wait for each other's locks would have to
// hold them in opposite orders. On an error nothing is pinned. held are the file's bytes whose pages the kernel holds for
// this call, empty for none.
//
// Many locks that are not here yet are fetched in parallel before, with none of them pinned.
func (p *pins) lock(ctx context.Context, a osc.Ask, held extent.Extent) error {
	if !p.f.locked.Load() {
		return nil
	}
	n := 0
	for ; n < len(p.list); n++ {
		sp := &p.list[n]
		if !p.f.objects[sp.tag].TryLock(a.Mode, sp.e, &sp.pin) {
			break
		}
	}
	if n == len(p.list) {
		return nil
	}
	if !held.Empty() {
		k := &p.f.set.kernel
		k.Hold(p.f.fid, held)
		defer k.Free(p.f.fid, held)
	}
	if len(p.list)-n >= fetchFrom {
		p.unlock()
		p.fetch(ctx, a)
		n = 0
	}
	for ; n < len(p.list); n++ {
		sp := &p.list[n]
		a.Extent = sp.e
		if err := p.f.objects[sp.tag].Lock(ctx, a, &sp.pin); err != nil {
			p.unlock()
			return err
		}
	}
	return nil
}

// fetch asks for the locks in parallel and keeps none pinned. What fails, fails again when it is asked for one by one.
func (p *pins) fetch(ctx context.Context, a osc.Ask) {
	var g sync.WaitGroup
	slots := make(chan struct{}, parallelMax)
	for i := range p.list {
		sp := &p.list[i]
		slots <- struct{}{}
		g.Go(func() {
			ask := a
			ask.Extent = sp.e
			if p.f.objects[sp.tag].Lock(ctx, ask, &sp.pin) == nil {
				sp.pin.Unlock()
			}
			<-slots
		})
	}
	g.Wait()
}

// pinOne pins a lock for a call on one chunk.
func (f *File) pinOne(ctx context.Context, o *osc.Object, a osc.Ask, p *osc.Pin, held extent.Extent) error {
	if o.TryLock(a.Mode, a.Extent, p) {
		return nil
	}
	if !held.Empty() {
		f.set.kernel.Hold(f.fid, held)
		defer f.set.kernel.Free(f.fid, held)
	}
	return o.Lock(ctx, a, p)
}

// askRead and askWrite are what reads and writes ask for.
func askRead(h *How) osc.Ask { return osc.Ask{Mode: ldlm.PR, Paged: h.Paged} }

var askWrite = osc.Ask{Mode: ldlm.PW}
