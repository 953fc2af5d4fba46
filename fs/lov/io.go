package lov

import (
	"context"
	"sync"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/status"
)

// ReadAt reads into b from off and returns how many bytes there are: fewer than len(b) only at the end of the file as
// Size gives it. It sees this client's dirty data; holes are zeros. ctx ending is kind Interrupted.
func (f *File) ReadAt(ctx context.Context, b []byte, off uint64) (int, error) {
	if err := f.enter(ctx); err != nil {
		return 0, err
	}
	defer f.gate.leave()
	size := f.Size()
	if off >= size || len(b) == 0 {
		return 0, nil
	}
	b = b[:min(uint64(len(b)), size-off)]
	if c, ok := f.chunk(off, uint64(len(b))); ok {
		if err := f.object(c.Component, c.Stripe).Read(ctx, b, c.ObjectOffset); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	return f.readChunks(ctx, b, off)
}

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

// readChunks reads the chunks in parallel.
func (f *File) readChunks(ctx context.Context, b []byte, off uint64) (int, error) {
	list, left := f.parts(b, off)
	clear(b[left:])
	forParts(list, func(p *part) {
		p.err = f.object(p.Component, p.Stripe).Read(ctx, p.b, p.ObjectOffset)
	})
	for i := range list {
		if err := list[i].err; err != nil {
			return int(list[i].FileOffset - off), err
		}
	}
	return len(b), nil
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

// WriteAt writes b at off, with mtime as the time of the change, and returns how many bytes were accepted; fewer
// than len(b) come with an error. A delayed error of earlier writes comes first, once. Data is gathered in the cache; when direct is set, and
// where the OST promised no space, it goes through and the error is this write's own. It waits for room; ctx ending
// then is kind Interrupted, and accepted bytes are never dropped. FileTooBig is over an object's bound.
func (f *File) WriteAt(ctx context.Context, b []byte, off uint64, mtime attr.Time, direct bool) (int, error) {
	if err := f.TakeError(); err != nil {
		return 0, err
	}
	if err := f.enter(ctx); err != nil {
		return 0, err
	}
	defer f.gate.leave()
	if len(b) == 0 {
		return 0, nil
	}
	if off > attr.SizeMax || uint64(len(b)) > attr.SizeMax-off {
		return 0, f.fail(status.FileTooBig)
	}
	f.changed(mtime)
	if direct {
		return f.writeDirect(ctx, b, off, mtime)
	}
	done := 0
	var err error
	n := f.layout.Chunks(off, uint64(len(b)), func(c layout.Chunk) bool {
		var k int
		if k, err = f.writable(c); err == nil {
			o := f.object(c.Component, c.Stripe)
			if k, err = o.Write(ctx, b[done:done+k], c.ObjectOffset, mtime); k > 0 {
				f.grow(c.FileOffset + uint64(k))
			}
		}
		done += k
		return err == nil && uint64(k) == c.Len
	})
	if err == nil && done < len(b) {
		err = f.stopped(off + n)
	}
	return done, err
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

// writable is how much of a chunk an object can hold, FileTooBig for nothing.
func (f *File) writable(c layout.Chunk) (int, error) {
	if c.ObjectOffset >= layout.MaxObjectSize {
		return 0, f.fail(status.FileTooBig)
	}
	return int(min(c.Len, layout.MaxObjectSize-c.ObjectOffset)), nil
}

func (f *File) changed(mtime attr.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mtime = f.mtime.Later(mtime)
}

// writeDirect writes the chunks through, in parallel. It returns the count up to the first that failed.
func (f *File) writeDirect(ctx context.Context, b []byte, off uint64, mtime attr.Time) (int, error) {
	if c, ok := f.chunk(off, uint64(len(b))); ok {
		return f.writePart(ctx, c, b, mtime)
	}
	list, left := f.parts(b, off)
	if left == 0 {
		return 0, f.noObjects()
	}
	forParts(list, func(p *part) { p.n, p.err = f.writePart(ctx, p.Chunk, p.b, mtime) })
	done := 0
	for i := range list {
		p := &list[i]
		done += p.n
		if p.n < len(p.b) {
			return done, p.err
		}
	}
	if done < len(b) {
		return done, f.noObjects()
	}
	return done, nil
}

// writePart writes b, one chunk's bytes, through.
func (f *File) writePart(ctx context.Context, c layout.Chunk, b []byte, mtime attr.Time) (int, error) {
	n, err := f.writable(c)
	if err != nil {
		return 0, err
	}
	n, err = f.object(c.Component, c.Stripe).WriteThrough(ctx, b[:n], c.ObjectOffset, mtime)
	if n > 0 {
		f.grow(c.FileOffset + uint64(n))
	}
	if err == nil && n < len(b) {
		err = f.fail(status.FileTooBig)
	}
	return n, err
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
