package lov

import (
	"context"
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/status"
)

// Mode bits of fallocate(2).
const (
	KeepSize  uint32 = 0x01
	PunchHole uint32 = 0x02
	ZeroRange uint32 = 0x10
)

// Truncate makes size the file's size: dirty data behind it is dropped, every stripe is cut or grown. It waits for
// the answers. When ctx ends before the stripes were asked, nothing has changed and the error is of kind Interrupted;
// when it ends later, the truncate goes on, other calls on the file's bytes wait for it, and its error is a delayed one.
// FileTooBig is over an object's bound.
func (f *File) Truncate(ctx context.Context, size uint64, mtime attr.Time) error {
	if err := f.fits(size); err != nil {
		return err
	}
	p := f.takePins()
	p.tail(size)
	return f.alone(ctx, p, func(ctx context.Context) error {
		return f.eachSpan(p, func(sp *span) error {
			o := &f.objects[sp.tag]
			if err := o.SettleOthers(ctx, sp.e); err != nil {
				return err
			}
			return o.Settle(ctx, sp.e)
		})
	}, func() error {
		f.changed(mtime)
		if err := f.cutAll(p, size, mtime); err != nil {
			return err
		}
		f.SetSize(size)
		return nil
	})
}

// cutAll cuts or grows the objects in an order in which the file never seems to be of a size between the two: the object that
// makes it as long as it was is cut behind all others, and the one that makes it longer is grown before them.
func (f *File) cutAll(p *pins, size uint64, mtime attr.Time) error {
	was, end := p.longest(f.Size())
	first := -1
	if size > was {
		if sp := p.lastSpan(size-1, 1); sp != nil {
			first = sp.tag
			if err := f.cut(sp, mtime); err != nil {
				return err
			}
		}
	}
	err := f.eachSpan(p, func(sp *span) error {
		if sp.tag == first || sp.tag == end && first < 0 {
			return nil
		}
		return f.cut(sp, mtime)
	})
	if sp := p.of(end); err == nil && sp != nil && first < 0 {
		return f.cut(sp, mtime)
	}
	return err
}

// longest is how long the file may be, as its locks tell or size, and the object that makes it so; -1 for none of them. A file that
// fits in one stripe has -1: all its other objects are empty, and the order does not matter.
func (p *pins) longest(size uint64) (was uint64, tag int) {
	tag, data := -1, 0
	for i := range p.list {
		sp := &p.list[i]
		n, _, known := sp.pin.Size()
		if !known {
			n = objectCut(sp.c, sp.s, size)
		}
		if n = max(n, p.f.objects[sp.tag].DirtyEnd()); n <= sp.e.Start {
			continue // it has nothing to be cut off
		}
		data++
		if end := sp.c.FileSize(sp.s, n); end > was {
			was, tag = end, sp.tag
		}
	}
	if data < 2 {
		tag = -1
	}
	return max(was, size), tag
}

// cut makes an object as long as its span says.
func (f *File) cut(sp *span, mtime attr.Time) error {
	o := &f.objects[sp.tag]
	o.Cut(sp.e.Start)
	// Old data may have been queued since it was prepared.
	if err := o.Settle(context.Background(), sp.e); err != nil {
		return err
	}
	err := o.Punch(sp.e, mtime, sp.pin.Handle())
	if err == nil {
		sp.pin.Cut(sp.e.Start)
	}
	return err
}

// eachSpan runs fn for each span, in parallel, and returns the error of the lowest object.
func (f *File) eachSpan(p *pins, fn func(*span) error) error {
	if len(p.list) == 1 {
		return fn(&p.list[0])
	}
	return f.each(func(i int, _ *layout.Component, _ layout.StripeIndex) error {
		if sp := p.of(i); sp != nil {
			return fn(sp)
		}
		return nil
	})
}

// objectCut is where a truncate to size cuts an object of c: at its start when the component lies behind the size.
func objectCut(c *layout.Component, s layout.StripeIndex, size uint64) uint64 {
	if size <= c.Extent.Start {
		return 0
	}
	return c.ObjectSize(s, size)
}

// fits refuses a size that an object cannot have.
func (f *File) fits(size uint64) error {
	if size > attr.SizeMax {
		return f.fail(status.FileTooBig)
	}
	if size == 0 {
		return nil
	}
	c := f.layout.At(size - 1)
	if c == nil || len(c.Stripes) == 0 {
		return f.noObjects()
	}
	if _, at := c.Locate(size - 1); at >= layout.MaxObjectSize {
		return f.fail(status.FileTooBig)
	}
	return nil
}

// alone runs change while no other call uses the file's bytes, here or on another client: it locks what p covers for writing,
// and gives p back in the end. prepare runs before, may be interrupted and must change
// nothing. change cannot be interrupted: a request that the caller no longer waits for could reach the OST behind
// later writes. So it goes on and keeps the others out when ctx ends first.
func (f *File) alone(ctx context.Context, p *pins, prepare func(context.Context) error, change func() error) error {
	if err := f.ready(); err != nil {
		p.give()
		return err
	}
	if err := p.lock(ctx, askWrite, extent.Extent{}); err != nil {
		p.give()
		return err
	}
	if err := f.gate.own(ctx); err != nil {
		p.give()
		return f.fail(err)
	}
	leave := func() {
		f.gate.leave()
		p.give()
	}
	if err := prepare(ctx); err != nil {
		leave()
		return err
	}
	if ctx.Done() == nil {
		defer leave()
		return change()
	}
	// gone tells who reports the error: the first of the two to take its token.
	done, gone := make(chan error, 1), make(chan struct{}, 1)
	f.set.running.Go(func() {
		err := change()
		leave()
		select {
		case gone <- struct{}{}:
			done <- err
		default:
			if err != nil {
				f.WriteFailed(err)
			}
		}
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case gone <- struct{}{}:
		return fmt.Errorf("lov: %v: %w", f.fid, ctx.Err())
	default:
		return <-done
	}
}

// Fallocate does what fallocate(2) does with n bytes from off: mode is 0, KeepSize, PunchHole|KeepSize, ZeroRange or
// ZeroRange|KeepSize; any other is kind NotSupport. Interruption is as for Truncate.
func (f *File) Fallocate(ctx context.Context, mode uint32, off, n uint64, mtime attr.Time) error {
	switch mode {
	case 0, KeepSize, PunchHole | KeepSize, ZeroRange, ZeroRange | KeepSize:
	default:
		return f.fail(status.NotSupport)
	}
	if n == 0 {
		return f.fail(status.Invalid)
	}
	if off > attr.SizeMax || n > attr.SizeMax-off {
		return f.fail(status.FileTooBig)
	}
	e := extent.Extent{Start: off, End: off + n}
	if err := f.fits(e.End); err != nil {
		return err
	}
	p := f.takePins()
	p.cover(e)
	prepare := func(ctx context.Context) error {
		for i := range p.list {
			if err := f.objects[p.list[i].tag].SettleOthers(ctx, p.list[i].e); err != nil {
				return err
			}
		}
		return f.flush(ctx, e)
	}
	return f.alone(ctx, p, prepare, func() error {
		if mode&(PunchHole|ZeroRange) != 0 {
			f.changed(mtime)
		}
		err := f.eachSpan(p, func(sp *span) error {
			err := f.objects[sp.tag].Fallocate(mode, sp.e, mtime, sp.pin.Handle())
			if err == nil && mode&KeepSize == 0 {
				sp.pin.Wrote(sp.e.End)
			}
			return err
		})
		if err == nil && mode&KeepSize == 0 {
			f.grow(e.End)
		}
		return err
	})
}
