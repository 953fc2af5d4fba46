package lov

import (
	"context"
	"sync"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/status"
)

// Seek returns the offset of the first byte from off on that is data, or that is in a hole; the file's end counts as a
// hole. Dirty data is written back first, so that it is never taken for a hole. NoDevice says that off is at the end or
// behind it, or that no data follows: lseek(2).
func (f *File) Seek(ctx context.Context, off uint64, hole bool) (uint64, error) {
	if err := f.ready(); err != nil {
		return 0, err
	}
	p := f.takePins()
	defer p.give()
	p.tail(off)
	if err := p.lock(ctx, osc.Ask{Mode: ldlm.PR}, extent.Extent{}); err != nil {
		return 0, err
	}
	if err := f.gate.own(ctx); err != nil {
		return 0, f.fail(err)
	}
	defer f.gate.leave()
	size := f.Size()
	if !f.truth() {
		g, err := f.glimpse(ctx)
		if err != nil {
			return 0, err
		}
		size = g.Size
	}
	if off >= size {
		return 0, f.fail(status.NoDevice)
	}
	if err := f.flush(ctx, extent.Extent{Start: off, End: extent.EOF}); err != nil {
		return 0, err
	}
	best := uint64(extent.EOF)
	var mu sync.Mutex
	err := f.each(func(i int, c *layout.Component, s layout.StripeIndex) error {
		from := max(off, c.Extent.Start)
		if from >= c.Extent.End {
			return nil
		}
		var lock ldlm.Handle
		if sp := p.of(i); sp != nil {
			lock = sp.pin.Handle()
		}
		at, found, err := f.objects[i].Seek(ctx, c.ObjectSize(s, from), hole, lock)
		if err != nil || !found {
			return err
		}
		pos := c.FileOffset(s, at)
		mu.Lock()
		defer mu.Unlock()
		if pos < c.Extent.End {
			best = min(best, pos)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if hole {
		return min(best, f.uncovered(off), size), nil
	}
	if best >= size {
		return 0, f.fail(status.NoDevice)
	}
	return best, nil
}

// uncovered gives the first offset from off on that no initialised component covers: a hole.
func (f *File) uncovered(off uint64) uint64 {
	for {
		c := f.layout.At(off)
		if c == nil || len(c.Stripes) == 0 || c.Extent.End == extent.EOF {
			if c != nil && len(c.Stripes) != 0 {
				return extent.EOF
			}
			return off
		}
		off = c.Extent.End
	}
}
