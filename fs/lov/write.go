package lov

import (
	"context"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/status"
)

// writing is one call that writes.
type writing struct {
	f     *File
	data  [][]byte
	off   uint64
	n     uint64 // bytes in data
	mtime attr.Time
	// through: the call waits for the answers. Otherwise data is gathered under the locks.
	through bool
	// pages are the file's bytes of which the kernel may hold valid pages because of this write: whole ones, since a page that
	// is written in part does not become valid by that. Empty for none.
	pages extent.Extent
}

// wholePages is what of a file's e are pages written from end to end.
func wholePages(e extent.Extent) extent.Extent {
	e.Start, e.End = (e.Start+pageSize-1)/pageSize*pageSize, e.End/pageSize*pageSize
	if e.Start >= e.End {
		return extent.Extent{}
	}
	return e
}

// WriteAt is Write of one piece, gathered or, when direct is set, written through.
func (f *File) WriteAt(ctx context.Context, b []byte, off uint64, mtime attr.Time, direct bool) (int, error) {
	h := How{Direct: direct}
	return f.write(ctx, writing{f: f, data: [][]byte{b}, off: off, mtime: mtime}, &h)
}

// Write writes data, one piece behind the other, at off, with mtime as the time of the change, and returns how many bytes
// were accepted; fewer than all come with an error. Nobody sees a part of it, where it is not interrupted or fails. A delayed
// error of earlier writes comes first, once. Data is gathered in the cache under a lock; when the call is Direct, the
// object contended, or where the OST promised no space, it goes through and the error is this write's own. It waits for locks
// and room; ctx ending then is kind Interrupted, and accepted bytes are never dropped. FileTooBig is over an object's bound.
func (f *File) Write(ctx context.Context, data [][]byte, off uint64, mtime attr.Time, h *How) (int, error) {
	h.Uncached, h.told = false, true
	return f.write(ctx, writing{f: f, data: data, off: off, mtime: mtime}, h)
}

func (f *File) write(ctx context.Context, w writing, h *How) (int, error) {
	if err := f.TakeError(); err != nil {
		return 0, err
	}
	if err := f.ready(); err != nil {
		return 0, err
	}
	for _, b := range w.data {
		w.n += uint64(len(b))
	}
	if w.n == 0 {
		return 0, nil
	}
	if w.off > attr.SizeMax || w.n > attr.SizeMax-w.off {
		return 0, f.fail(status.FileTooBig)
	}
	f.changed(w.mtime)
	w.through = h.Direct
	whole := extent.Extent{Start: w.off, End: w.off + w.n}
	if h.Mapped {
		w.pages = whole
		return w.mapped(ctx)
	}
	if !h.Direct {
		w.pages = wholePages(whole)
	}
	if c, ok := f.chunk(w.off, w.n); ok {
		return w.one(ctx, c, h)
	}
	p := f.takePins()
	defer p.give()
	p.cover(extent.Extent{Start: w.off, End: w.off + w.n})
	if err := p.lock(ctx, askWrite, extent.Extent{}); err != nil {
		return 0, err
	}
	if err := f.enter(ctx); err != nil {
		return 0, err
	}
	defer f.gate.leave()
	return w.under(ctx, p)
}

// one writes to one object.
func (w *writing) one(ctx context.Context, c layout.Chunk, h *How) (int, error) {
	f := w.f
	tag := f.tag(c.Component, c.Stripe)
	o := &f.objects[tag]
	e := extent.Extent{Start: c.ObjectOffset, End: c.ObjectOffset + c.Len}
	var pin osc.Pin
	if !o.TryLock(ldlm.PW, e, &pin) {
		if h.Direct || h.told && o.Lockless() {
			w.through, h.Uncached = true, !h.Direct
		} else if err := o.Lock(ctx, osc.Ask{Mode: ldlm.PW, Extent: e}, &pin); err != nil {
			return 0, err
		}
	}
	defer pin.Unlock()
	if !f.loose(&pin) {
		if err := f.enter(ctx); err != nil {
			return 0, err
		}
		defer f.gate.leave()
	}
	done := 0
	for _, b := range w.data {
		if len(b) == 0 {
			continue
		}
		n, err := w.piece(ctx, c, b, &pin)
		done += n
		if err != nil {
			return done, err
		}
		c.FileOffset, c.ObjectOffset, c.Len = c.FileOffset+uint64(n), c.ObjectOffset+uint64(n), c.Len-uint64(n)
	}
	return done, nil
}

// loose reports whether a call goes without a lock. It may wait at the OST for who wants a lock that another call has pinned, which
// waits to get in alone; so it stays outside.
func (f *File) loose(pin *osc.Pin) bool { return pin.Handle() == 0 && f.locked.Load() }

// piece writes b to c's object from c's offset on, under a pin, which may hold no lock.
func (w *writing) piece(ctx context.Context, c layout.Chunk, b []byte, pin *osc.Pin) (int, error) {
	if c.ObjectOffset >= layout.MaxObjectSize {
		return 0, w.f.fail(status.FileTooBig)
	}
	o := w.f.object(c.Component, c.Stripe)
	k := int(min(uint64(len(b)), layout.MaxObjectSize-c.ObjectOffset))
	var n int
	var err error
	if w.through {
		n, err = o.WriteThrough(ctx, b[:k], c.ObjectOffset, w.mtime, pin.Handle())
	} else {
		n, err = o.Write(ctx, b[:k], c.ObjectOffset, w.mtime, pin.Handle())
	}
	if n > 0 {
		end := c.ObjectOffset + uint64(n)
		if pin.Handle() == 0 {
			o.Grown(end)
		}
		pin.Wrote(end)
		if e := w.pages.Intersect(extent.Extent{Start: c.FileOffset, End: c.FileOffset + uint64(n)}); !e.Empty() {
			pin.Touch(c.ObjectOffset + (e.End - c.FileOffset))
		}
		w.f.grow(c.FileOffset + uint64(n))
	}
	if err == nil && n < len(b) {
		err = w.f.fail(status.FileTooBig)
	}
	return n, err
}

// under writes to several objects, whose locks are pinned.
func (w *writing) under(ctx context.Context, p *pins) (int, error) {
	done := 0
	for _, b := range w.data {
		var n int
		var err error
		if w.through {
			n, err = w.parallel(ctx, b, w.off+uint64(done), p)
		} else {
			n, err = w.inOrder(ctx, b, w.off+uint64(done), p)
		}
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (w *writing) inOrder(ctx context.Context, b []byte, off uint64, p *pins) (int, error) {
	done := 0
	var err error
	n := w.f.layout.Chunks(off, uint64(len(b)), func(c layout.Chunk) bool {
		var k int
		k, err = w.piece(ctx, c, b[done:done+int(c.Len)], &p.of(w.f.tag(c.Component, c.Stripe)).pin)
		done += k
		return err == nil
	})
	if err == nil && done < len(b) {
		err = w.f.stopped(off + n)
	}
	return done, err
}

// parallel writes the chunks through, in parallel. It returns the count up to the first that failed.
func (w *writing) parallel(ctx context.Context, b []byte, off uint64, p *pins) (int, error) {
	list, left := w.f.parts(b, off)
	if left == 0 {
		return 0, w.f.stopped(off)
	}
	one := *w // so that the calls that need no goroutine do not allocate theirs
	forParts(list, func(q *part) {
		q.n, q.err = one.piece(ctx, q.Chunk, q.b, &p.of(one.f.tag(q.Component, q.Stripe)).pin)
	})
	done := 0
	for i := range list {
		q := &list[i]
		done += q.n
		if q.err != nil || q.n < len(q.b) {
			return done, q.err
		}
	}
	if done < len(b) {
		return done, w.f.stopped(off + uint64(left))
	}
	return done, nil
}

// mapped writes pages of a mapping, chunk by chunk, each under a lock of its own: it may be called by a Revoke, and must not
// hold one lock while it waits for another.
func (w *writing) mapped(ctx context.Context) (int, error) {
	done := 0
	for _, b := range w.data {
		at := 0
		var err error
		off := w.off + uint64(done)
		n := w.f.layout.Chunks(off, uint64(len(b)), func(c layout.Chunk) bool {
			var k int
			k, err = w.mappedChunk(ctx, c, b[at:at+int(c.Len)])
			at += k
			return err == nil
		})
		done += at
		if err == nil && at < len(b) {
			err = w.f.stopped(off + n)
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (w *writing) mappedChunk(ctx context.Context, c layout.Chunk, b []byte) (int, error) {
	o := w.f.object(c.Component, c.Stripe)
	var pin osc.Pin
	e := extent.Extent{Start: c.ObjectOffset, End: c.ObjectOffset + c.Len}
	if err := o.Lock(ctx, osc.Ask{Mode: ldlm.PW, Extent: e, Mapped: true}, &pin); err != nil {
		return 0, err
	}
	defer pin.Unlock()
	if !w.f.loose(&pin) {
		if err := w.f.enter(ctx); err != nil {
			return 0, err
		}
		defer w.f.gate.leave()
	}
	one := *w
	one.through = w.f.locked.Load() && (pin.Leaving() || pin.Handle() == 0)
	return one.piece(ctx, c, b, &pin)
}

// Append writes data, one piece behind the other, at the end of the file as it is when nobody else can change it, and returns
// where that was and how many bytes were accepted. It is one with respect to every other call of every client. Otherwise as
// Write. It locks all objects from start to end.
func (f *File) Append(ctx context.Context, data [][]byte, mtime attr.Time, direct bool) (off uint64, n int, err error) {
	if err := f.TakeError(); err != nil {
		return 0, 0, err
	}
	if err := f.tail.own(ctx); err != nil {
		return 0, 0, f.fail(err)
	}
	defer f.tail.leave()
	if err := f.ready(); err != nil {
		return 0, 0, err
	}
	p := f.takePins()
	defer p.give()
	p.all()
	if err := p.lock(ctx, askWrite, extent.Extent{}); err != nil {
		return 0, 0, err
	}
	if err := f.enter(ctx); err != nil {
		return 0, 0, err
	}
	defer f.gate.leave()
	w := writing{f: f, data: data, mtime: mtime, through: direct}
	for _, b := range data {
		w.n += uint64(len(b))
	}
	if w.off, err = p.end(ctx); err != nil || w.n == 0 {
		return w.off, 0, err
	}
	if w.off > attr.SizeMax || w.n > attr.SizeMax-w.off {
		return w.off, 0, f.fail(status.FileTooBig)
	}
	f.changed(mtime)
	if !direct { // the kernel does not know where its pages' bytes went
		w.pages = extent.Extent{Start: w.off, End: w.off + w.n}
	}
	n, err = w.under(ctx, p)
	return w.off, n, err
}
