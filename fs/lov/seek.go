package lov

import (
	"context"
	"sync"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/status"
)

// Seek returns the offset of the first byte from off on that is data, or that is in a hole; the file's end counts as a
// hole. Dirty data is written back first, so that it is never taken for a hole. NoDevice says that off is at the end or
// behind it, or that no data follows: lseek(2).
func (f *File) Seek(ctx context.Context, off uint64, hole bool) (uint64, error) {
	if off >= f.Size() {
		return 0, f.fail(status.NoDevice)
	}
	if err := f.ready(); err != nil {
		return 0, err
	}
	if err := f.gate.own(ctx); err != nil {
		return 0, f.fail(err)
	}
	defer f.gate.leave()
	if err := f.flush(ctx, extent.Extent{Start: off, End: extent.EOF}); err != nil {
		return 0, err
	}
	best, size := uint64(extent.EOF), f.Size()
	var mu sync.Mutex
	err := f.each(func(i int, c *layout.Component, s layout.StripeIndex) error {
		from := max(off, c.Extent.Start)
		if from >= c.Extent.End {
			return nil
		}
		at, found, err := f.objects[i].Seek(ctx, c.ObjectSize(s, from), hole)
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

// Sizes is what a glimpse tells of a file: bytes, blocks of 512 bytes, time of the newest change of data.
type Sizes struct {
	Size, Blocks uint64
	Mtime, Ctime attr.Time
}

// Glimpse asks all OSTs of the file in parallel and adds what this client has not written back yet. Size grows to what
// it finds.
func (f *File) Glimpse(ctx context.Context) (Sizes, error) {
	if err := f.enter(ctx); err != nil {
		return Sizes{}, err
	}
	defer f.gate.leave()
	var out Sizes
	var mu sync.Mutex
	err := f.each(func(i int, c *layout.Component, s layout.StripeIndex) error {
		o := &f.objects[i]
		g, err := o.Glimpse(ctx)
		if err != nil {
			return err
		}
		size := c.FileSize(s, max(g.Size, o.End()))
		mu.Lock()
		defer mu.Unlock()
		out.Size = max(out.Size, size)
		out.Blocks += o.Blocks()
		out.Mtime = out.Mtime.Later(g.Mtime)
		return nil
	})
	if err != nil {
		return Sizes{}, err
	}
	f.grow(out.Size)
	f.mu.Lock()
	defer f.mu.Unlock()
	out.Mtime = out.Mtime.Later(f.mtime)
	return out, nil
}
