package lov

import (
	"context"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
)

// ReadAt is Read with no wishes, for bytes that do not come into the kernel's pages: CopyTo, tools.
func (f *File) ReadAt(ctx context.Context, b []byte, off uint64) (int, error) {
	h := How{}
	return f.read(ctx, b, off, &h)
}

// ReadBy is a READ of the kernel into pages that it keeps locked until the answer, by an open file's Reader; see How.Paged. For any
// other bytes use ReadAt: while a ReadBy waits for a lock, nobody drops pages of its range.
func (f *File) ReadBy(ctx context.Context, b []byte, off uint64, r *Reader) (int, error) {
	h := How{Paged: true, Reader: r}
	return f.read(ctx, b, off, &h)
}

// Read reads into b from off and returns how many bytes there are: fewer than len(b) only at the end of the file. It sees all
// that any client has written; holes are zeros. The bytes are those of one moment, also where the call spans objects. It waits
// for locks; ctx ending is kind Interrupted.
func (f *File) Read(ctx context.Context, b []byte, off uint64, h *How) (int, error) {
	h.Uncached, h.told = false, true
	return f.read(ctx, b, off, h)
}

func (f *File) read(ctx context.Context, b []byte, off uint64, h *How) (int, error) {
	if err := f.ready(); err != nil {
		return 0, err
	}
	if len(b) == 0 || off >= attr.SizeMax {
		return 0, nil
	}
	b = b[:min(uint64(len(b)), attr.SizeMax-off)]
	if f.truth() && !h.Paged {
		// The kernel's own READs are locked whole, also behind the end: it keeps pages of zeros there, and another client may
		// write to them.
		size := f.Size()
		if off >= size {
			return 0, nil
		}
		b = b[:min(uint64(len(b)), size-off)]
	}
	var n int
	var err error
	if c, ok := f.chunk(off, uint64(len(b))); ok {
		n, err = f.readOne(ctx, b, c, h)
	} else {
		n, err = f.readMany(ctx, b, off, h)
	}
	if n > 0 && !h.Direct && !h.Uncached {
		r := h.Reader
		if r == nil {
			r = &f.reader
		}
		f.readAhead(r, off, uint64(n))
	}
	return n, err
}

// pageSize is the page in which figures of read-ahead count.
const pageSize = 4096

// holds is the range whose pages the kernel holds for a read.
func (h *How) holds(off uint64, n int) extent.Extent {
	if !h.Paged || h.Direct {
		return extent.Extent{}
	}
	return extent.Extent{Start: off, End: off + uint64(n)}
}

// readOne reads bytes of one chunk.
func (f *File) readOne(ctx context.Context, b []byte, c layout.Chunk, h *How) (int, error) {
	tag := f.tag(c.Component, c.Stripe)
	sp := span{tag: tag, c: c.Component, s: c.Stripe, e: extent.Extent{Start: c.ObjectOffset, End: c.ObjectOffset + c.Len}}
	o := &f.objects[tag]
	if !o.TryLock(ldlm.PR, sp.e, &sp.pin) {
		if n, done, err := f.readLockless(ctx, b, &c, h); done || err != nil {
			return n, err
		}
		a := askRead(h)
		a.Extent = sp.e
		if err := f.pinOne(ctx, o, a, &sp.pin, h.holds(c.FileOffset, len(b))); err != nil {
			return 0, err
		}
	}
	defer sp.pin.Unlock()
	if err := f.enter(ctx); err != nil {
		return 0, err
	}
	defer f.gate.leave()
	if !h.Direct {
		sp.pin.Touch(sp.e.End)
	}
	n, err := f.within(ctx, c.FileOffset, c.Len, &sp)
	if err != nil || n == 0 {
		return 0, err
	}
	if err := o.Read(ctx, b[:n], c.ObjectOffset, sp.pin.Handle()); err != nil {
		return 0, err
	}
	return int(n), nil
}

// readLockless reads a chunk under a lock that the OST takes, when that is what the call wants, or the OST. done is false
// when a lock must be had: own dirty data is there, or what is behind the object's end lies inside the file or not.
func (f *File) readLockless(ctx context.Context, b []byte, c *layout.Chunk, h *How) (n int, done bool, err error) {
	o := f.object(c.Component, c.Stripe)
	if !f.locked.Load() || !h.Direct && !(h.mayUncache() && o.Lockless()) || o.Holds() {
		return 0, false, nil
	}
	if held := h.holds(c.FileOffset, len(b)); !held.Empty() {
		f.set.kernel.Hold(f.fid, held)
		defer f.set.kernel.Free(f.fid, held)
	}
	n, err = o.ReadThrough(ctx, b, c.ObjectOffset)
	if err != nil {
		return 0, false, err
	}
	if n < len(b) && len(f.objects) > 1 {
		return 0, false, nil
	}
	h.Uncached = !h.Direct
	return n, true, nil
}

// mayUncache: calls without a How of the caller's cannot tell him.
func (h *How) mayUncache() bool { return h.told }

// readMany reads bytes of several chunks, or of none.
func (f *File) readMany(ctx context.Context, b []byte, off uint64, h *How) (int, error) {
	p := f.takePins()
	defer p.give()
	p.cover(extent.Extent{Start: off, End: off + uint64(len(b))})
	if err := p.lock(ctx, askRead(h), h.holds(off, len(b))); err != nil {
		return 0, err
	}
	if err := f.enter(ctx); err != nil {
		return 0, err
	}
	defer f.gate.leave()
	if !h.Direct {
		p.touch()
	}
	n, err := f.within(ctx, off, uint64(len(b)), p.lastSpan(off, uint64(len(b))))
	if err != nil || n == 0 {
		return 0, err
	}
	return f.readChunks(ctx, b[:n], off, p)
}

// readChunks reads the chunks in parallel.
func (f *File) readChunks(ctx context.Context, b []byte, off uint64, p *pins) (int, error) {
	list, left := f.parts(b, off)
	clear(b[left:])
	forParts(list, func(q *part) {
		var lock ldlm.Handle
		if sp := p.of(f.tag(q.Component, q.Stripe)); sp != nil {
			lock = sp.pin.Handle()
		}
		q.err = f.object(q.Component, q.Stripe).Read(ctx, q.b, q.ObjectOffset, lock)
	})
	for i := range list {
		if err := list[i].err; err != nil {
			return int(list[i].FileOffset - off), err
		}
	}
	return len(b), nil
}
