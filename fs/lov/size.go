package lov

import (
	"context"
	"sync"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
)

// truth reports whether the size kept here is the file's.
func (f *File) truth() bool { return f.exclusive.Load() || !f.locked.Load() }

// within is how many of n bytes from off are inside the file. last is the span of the last byte, with its lock pinned, nil
// when no object holds it; only says that the file has no other object.
//
// In a file that others may change, the object's size as the lock tells it is enough for bytes in front of it: nobody else can
// cut them off while the lock is held. For others all objects are asked.
func (f *File) within(ctx context.Context, off, n uint64, last *span) (uint64, error) {
	size := uint64(0)
	if f.truth() {
		size = f.Size()
	} else {
		if last != nil {
			_, at := last.c.Locate(off + n - 1)
			have, exact, known := last.pin.Size()
			switch {
			case known && at < have:
				return n, nil
			case known && exact && len(f.objects) == 1:
				size = last.c.FileSize(last.s, have)
				return min(n, size-min(size, off)), nil
			}
		}
		s, err := f.glimpse(ctx)
		if err != nil {
			return 0, err
		}
		size = s.Size
	}
	return min(n, size-min(size, off)), nil
}

// Sizes is what a glimpse tells of a file: bytes, blocks of 512 bytes, time of the newest change of data, and of any change.
type Sizes struct {
	Size, Blocks uint64
	Mtime, Ctime attr.Time
	// Held says that locks which were held already told it, on all objects: no OST was asked.
	Held bool
	sum  uint64 // of what the objects' sizes make of the file's
}

// Glimpse asks what is the file's size now, on all OSTs in parallel, with what any client has not written back yet. A lock
// held on a whole object answers without a request. It never waits for a lock. Size is from then on what it found, if
// no other call changed it meanwhile.
func (f *File) Glimpse(ctx context.Context) (Sizes, error) {
	if err := f.enter(ctx); err != nil {
		return Sizes{}, err
	}
	defer f.gate.leave()
	before := f.size.Load()
	out, err := f.glimpse(ctx)
	if err != nil {
		return Sizes{}, err
	}
	if !f.locked.Load() || !f.size.CompareAndSwap(before, out.Size) {
		f.grow(out.Size)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out.Mtime, out.Ctime = out.Mtime.Later(f.mtime), out.Ctime.Later(f.mtime)
	return out, nil
}

// looksMax bounds how often the objects of a file are asked that somebody else changes meanwhile. From timesMax on the same sizes
// are enough, though the times say that there was a change between: there are few who change a file to and fro.
const (
	looksMax = 12
	timesMax = 4
)

// glimpse is Glimpse within a call. A call of another client that changes several objects may come between the looks at two of
// them: so it looks until it has seen the same twice, or under locks of all, which then asks nobody.
func (f *File) glimpse(ctx context.Context) (Sizes, error) {
	if len(f.objects) == 1 {
		return f.glimpseFirst(ctx)
	}
	out, err := f.look(ctx)
	held := out.Held // else the locks are here only now
	for n := 1; err == nil && !out.Held && n < looksMax && f.locked.Load(); n++ {
		was := out
		out, err = f.look(ctx)
		if out.Size == was.Size && out.sum == was.sum && (n >= timesMax || out.Mtime == was.Mtime && out.Ctime == was.Ctime) {
			break
		}
	}
	out.Held = held
	return out, err
}

// lookHeld is look with locks on all objects that are held already, if they are: they are pinned together, so that it sees one
// moment. It asks nobody.
func (f *File) lookHeld(ctx context.Context) (out Sizes, ok bool, err error) {
	if !f.locked.Load() {
		return Sizes{}, false, nil
	}
	p := f.takePins()
	defer p.give()
	p.all()
	for i := range p.list {
		if sp := &p.list[i]; !f.objects[sp.tag].TryLock(ldlm.PR, sp.e, &sp.pin) {
			return Sizes{}, false, nil
		}
	}
	out.Held = true
	for i := range p.list {
		sp := &p.list[i]
		one, err := f.glimpseOne(ctx, sp.tag, sp.c, sp.s)
		if err != nil {
			return Sizes{}, false, err
		}
		out.add(&one)
	}
	return out, true, nil
}

func (s *Sizes) add(one *Sizes) {
	s.Size, s.Blocks, s.sum = max(s.Size, one.Size), s.Blocks+one.Blocks, s.sum+one.Size
	s.Mtime, s.Ctime = s.Mtime.Later(one.Mtime), s.Ctime.Later(one.Ctime)
	s.Held = s.Held && one.Held
}

// look asks each object once.
func (f *File) look(ctx context.Context) (Sizes, error) {
	if out, ok, err := f.lookHeld(ctx); ok || err != nil {
		return out, err
	}
	var out Sizes
	var mu sync.Mutex
	err := f.each(func(i int, c *layout.Component, s layout.StripeIndex) error {
		one, err := f.glimpseOne(ctx, i, c, s)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		out.add(&one)
		return nil
	})
	if err != nil {
		return Sizes{}, err
	}
	return out, nil
}

// glimpseFirst is glimpse of a file with one object. It does not allocate.
func (f *File) glimpseFirst(ctx context.Context) (Sizes, error) {
	for i := range f.layout.Components {
		if c := &f.layout.Components[i]; len(c.Stripes) == 1 {
			return f.glimpseOne(ctx, 0, c, 0)
		}
	}
	return Sizes{}, nil
}

// glimpseOne is what one object tells of the file.
func (f *File) glimpseOne(ctx context.Context, i int, c *layout.Component, s layout.StripeIndex) (Sizes, error) {
	o := &f.objects[i]
	dirty := o.DirtyEnd() // it may be answered before the OST looks, or after
	g, err := o.Glimpse(ctx)
	if err != nil {
		return Sizes{}, err
	}
	return Sizes{Size: c.FileSize(s, max(g.Size, dirty, o.DirtyEnd())), Blocks: max(o.Blocks(), g.Blocks), Mtime: g.Mtime, Ctime: g.Ctime, Held: g.Held}, nil
}

// end is the file's size, with every object's lock pinned from start to end, so that nobody else changes it.
func (p *pins) end(ctx context.Context) (uint64, error) {
	if p.f.truth() {
		return p.f.Size(), nil
	}
	size := uint64(0)
	for i := range p.list {
		sp := &p.list[i]
		n, exact, known := sp.pin.Size()
		if !exact || !known {
			g, err := p.f.objects[sp.tag].Glimpse(ctx)
			if err != nil {
				return 0, err
			}
			n = g.Size
		}
		size = max(size, sp.c.FileSize(sp.s, max(n, p.f.objects[sp.tag].DirtyEnd())))
	}
	return size, nil
}

// lastSpan is the span of the last byte of a call; nil when no object holds it.
func (p *pins) lastSpan(off, n uint64) *span {
	c := p.f.layout.At(off + n - 1)
	if c == nil || len(c.Stripes) == 0 {
		return nil
	}
	s, _ := c.Locate(off + n - 1)
	return p.of(p.f.tag(c, s))
}

// touch notes that the kernel may cache what the spans cover.
func (p *pins) touch() {
	for i := range p.list {
		if e := p.list[i].e; e.End != extent.EOF {
			p.list[i].pin.Touch(e.End)
		}
	}
}
