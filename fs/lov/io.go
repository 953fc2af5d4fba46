package lov

import (
	"context"
	"sync"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/status"
)

// chunk gives the chunk that [off, off+n) is part of, and false when there is none or several. It does not allocate.
func (f *File) chunk(off, n uint64) (layout.Chunk, bool) {
	c := f.layout.At(off)
	if c == nil || len(c.Stripes) == 0 || off+n > c.Extent.End || len(c.Stripes) > 1 && off%c.StripeSize+n > c.StripeSize {
		return layout.Chunk{}, false
	}
	s, at := c.Locate(off)
	return layout.Chunk{Component: c, Stripe: s, FileOffset: off, ObjectOffset: at, Len: n}, true
}

// part is one chunk of a call and what became of it.
type part struct {
	layout.Chunk
	b   []byte
	n   int
	err error
}

// parts splits b at off into chunks. What no initialised component covers is left out: left is where it starts.
func (f *File) parts(b []byte, off uint64) (list []part, left int) {
	n := f.layout.Chunks(off, uint64(len(b)), func(c layout.Chunk) bool {
		at := c.FileOffset - off
		list = append(list, part{Chunk: c, b: b[at : at+c.Len]})
		return true
	})
	return list, int(n)
}

// forParts runs fn for all parts, parallelMax at a time, the last one in this goroutine.
func forParts(list []part, fn func(*part)) {
	if len(list) == 0 {
		return
	}
	slots := make(chan struct{}, parallelMax)
	var g sync.WaitGroup
	last := len(list) - 1
	for i := range list[:last] {
		slots <- struct{}{}
		g.Go(func() {
			fn(&list[i])
			<-slots
		})
	}
	fn(&list[last])
	g.Wait()
}

// stopped says why a write could not go on at a byte: no object holds it.
func (f *File) stopped(off uint64) error {
	if c := f.layout.At(off); c != nil && len(c.Stripes) != 0 {
		return f.fail(status.FileTooBig)
	}
	return f.noObjects()
}

func (f *File) noObjects() error {
	return status.Errorf(status.Invalid, "lov: %v: no object is there to write to", f.fid)
}

func (f *File) changed(mtime attr.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mtime = f.mtime.Later(mtime)
}

// Flush sends all dirty data of the file and waits until it is answered. It returns the delayed error of these and
// earlier writes, once; ctx ending is kind Interrupted, and nothing is lost by it.
func (f *File) Flush(ctx context.Context) error {
	if err := f.ready(); err != nil {
		return err
	}
	if err := f.flush(ctx, extent.Extent{End: extent.EOF}); err != nil {
		return err
	}
	f.SettleBlocks(ctx)
	return f.TakeError()
}

// SettleBlocks asks the OSTs for blocks that this client cannot guess. What is dirty, or fails, is guessed on.
func (f *File) SettleBlocks(ctx context.Context) {
	for i := range f.objects {
		if o := &f.objects[i]; f.usable(i) && o.Vague() && o.Dirty() == 0 {
			_, _ = o.Glimpse(ctx)
		}
	}
}

// flush writes back what is dirty in a range of the file.
func (f *File) flush(ctx context.Context, e extent.Extent) error {
	for i := range f.objects {
		f.objects[i].Start(f.on(i, e))
	}
	for i := range f.objects {
		if err := f.objects[i].Flush(ctx, f.on(i, e)); err != nil {
			return err
		}
	}
	return nil
}

// on gives the part of object i that holds the file range e.
func (f *File) on(i int, e extent.Extent) extent.Extent {
	if e.Start == 0 && e.End == extent.EOF {
		return e
	}
	for k := range f.layout.Components {
		c := &f.layout.Components[k]
		if i < len(c.Stripes) {
			part := e.Intersect(c.Extent)
			if part.Empty() {
				return extent.Extent{}
			}
			return c.ObjectExtent(layout.StripeIndex(i), part)
		}
		i -= len(c.Stripes)
	}
	return extent.Extent{}
}

// Sync is Flush, and then makes every object durable on its OST. A delayed error is reported once, and does not keep
// the objects from being synced.
func (f *File) Sync(ctx context.Context) error {
	err := f.ready()
	if err == nil {
		err = f.flush(ctx, extent.Extent{End: extent.EOF})
	}
	if err != nil {
		return err
	}
	lost := f.TakeError()
	err = f.each(func(i int, _ *layout.Component, _ layout.StripeIndex) error { return f.objects[i].Sync(ctx) })
	if lost != nil {
		return lost
	}
	return err
}
