package lov

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/status"
)

// Owner is whom a file's space is charged to.
type Owner = osc.Owner

// File is one file's data: its layout, and this client's dirty data of it. Safe for concurrent use.
type File struct {
	set    *Set
	fid    fid.FID
	layout *layout.Layout
	gate   gate
	tail   gate   // appends, one at a time
	reader Reader // of calls that bring none
	// objects holds the objects of all components, stripe after stripe.
	objects []osc.Object
	// missing counts objects whose OST was not in the set yet.
	missing atomic.Int32
	// locked: the OSTs' objects are used under locks.
	locked atomic.Bool
	size   atomic.Uint64
	// exclusive says that size is the truth.
	exclusive atomic.Bool

	mu    sync.Mutex
	owner Owner     // guarded by mu
	err   error     // guarded by mu: the oldest delayed error that nobody was told
	mtime attr.Time // guarded by mu: of the newest write
}

// Open returns a file's data. It does no I/O. The file keeps l, which must not change any more; a layout without
// objects is a file that can be read as zeros and not be written. Errors are of kind Invalid.
func (s *Set) Open(id fid.FID, l *layout.Layout, o Owner) (*File, error) {
	if err := l.Check(); err != nil {
		return nil, fmt.Errorf("lov: %v: %w", id, err)
	}
	f := &File{set: s, fid: id, layout: l, owner: o}
	n := 0
	for i := range l.Components {
		n += len(l.Components[i].Stripes)
	}
	f.objects = make([]osc.Object, n)
	f.missing.Store(int32(n))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.findLocked()
	return f, nil
}

// findLocked makes the objects whose OST is known.
func (f *File) findLocked() {
	tag := 0
	for i := range f.layout.Components {
		for s, stripe := range f.layout.Components[i].Stripes {
			if o := &f.objects[tag]; !o.Ready() {
				if c := f.set.Get(stripe.OST); c != nil {
					o.Init(c, osc.ObjectConfig{
						ID: stripe.Object, File: f.fid, Stripe: uint32(s), Component: &f.layout.Components[i], Tag: tag, Holder: f,
						Owner: f.owner,
					})
					if c.Locked() {
						f.locked.Store(true)
					}
					f.missing.Add(-1)
				}
			}
			tag++
		}
	}
}

// ready returns an error of kind IO when an OST of the file is not in the set.
func (f *File) ready() error {
	if f.missing.Load() == 0 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.findLocked()
	if n := f.missing.Load(); n != 0 {
		return fmt.Errorf("lov: %v: %d of its objects are on OSTs that the configuration does not have: %w", f.fid, n, status.IO)
	}
	return nil
}

// enter lets a call in beside others. Its locks are pinned already: whoever is inside waits for no lock, so that who has one pinned may
// wait to get in.
func (f *File) enter(ctx context.Context) error {
	if err := f.ready(); err != nil {
		return err
	}
	if err := f.gate.share(ctx); err != nil {
		return f.fail(err)
	}
	return nil
}

func (f *File) fail(err error) error { return fmt.Errorf("lov: %v: %w", f.fid, err) }

// object gives the object of a component's stripe.
func (f *File) object(c *layout.Component, s layout.StripeIndex) *osc.Object {
	return &f.objects[f.tag(c, s)]
}

// tag gives the number of that object.
func (f *File) tag(c *layout.Component, s layout.StripeIndex) int {
	tag := int(s)
	for i := range f.layout.Components {
		if &f.layout.Components[i] == c {
			break
		}
		tag += len(f.layout.Components[i].Stripes)
	}
	return tag
}

// WriteFailed keeps the first error until somebody is told. It implements osc.Holder.
func (f *File) WriteFailed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

// Written grows the size to what an interrupted write reached after all. It implements osc.Holder.
func (f *File) Written(tag int, end uint64) {
	for i := range f.layout.Components {
		c := &f.layout.Components[i]
		if tag < len(c.Stripes) {
			f.grow(c.FileSize(layout.StripeIndex(tag), end))
			return
		}
		tag -= len(c.Stripes)
	}
}

// TakeError returns the delayed error that nobody was told yet, and forgets it. It does not wait; Flush does.
func (f *File) TakeError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.err
	f.err = nil
	return err
}

// Size is the file's size in bytes as far as this client knows: what SetSize said, grown by writes, set by truncates.
func (f *File) Size() uint64 { return f.size.Load() }

// SetSize tells the file its size, from the MDT's attributes or a Glimpse.
// Precondition: no call that changes the file is running.
func (f *File) SetSize(n uint64) { f.size.Store(n) }

// SetKnown tells the file its size and its blocks of 512 bytes as the MDT has them.
// Precondition: as for SetSize, and nothing is dirty.
func (f *File) SetKnown(size, blocks uint64) {
	f.SetSize(size)
	var cuts, sum uint64
	f.eachCut(size, func(_ int, cut uint64) { cuts += blocksOf(cut) })
	last := len(f.objects) - 1
	f.eachCut(size, func(i int, cut uint64) {
		share := blocksOf(cut)
		if blocks < cuts {
			// In 128 bits: a file of exabytes has that many blocks on paper.
			hi, lo := bits.Mul64(share, blocks)
			share, _ = bits.Div64(hi, lo, cuts)
		}
		if i == last {
			share = blocks - min(sum, blocks)
		}
		sum += share
		if f.usable(i) {
			f.objects[i].SetSpace(cut, share)
		}
	})
}

// SetExclusive tells whether the size kept here is the truth: nobody else can change it, because the caller holds the MDT's
// lock that covers it and this client is the only writer, or there is none. Before it is set the size must have been told
// by SetKnown, or found by Glimpse; it must be cleared before that lock goes back. A file begins with false.
func (f *File) SetExclusive(on bool) { f.exclusive.Store(on) }

// eachCut calls fn with each object's size in a file of size bytes without holes.
func (f *File) eachCut(size uint64, fn func(i int, cut uint64)) {
	i := 0
	for k := range f.layout.Components {
		c := &f.layout.Components[k]
		for s := range c.Stripes {
			fn(i, objectCut(c, layout.StripeIndex(s), size))
			i++
		}
	}
}

// blocksOf is how many blocks of 512 bytes an object of n bytes takes on a host with pages of 4 KiB.
func blocksOf(n uint64) uint64 { return (n + 4095) / 4096 * 8 }

func (f *File) grow(n uint64) {
	for {
		old := f.size.Load()
		if n <= old || f.size.CompareAndSwap(old, n) {
			return
		}
	}
}

// Chown changes whom writes sent from now on are charged to, those of data that is dirty already too.
func (f *File) Chown(o Owner) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owner = o
	for i := range f.objects {
		if f.objects[i].Ready() {
			f.objects[i].Chown(o)
		}
	}
}

// Dirty is how many bytes are dirty or unanswered.
func (f *File) Dirty() int64 {
	var n int64
	for i := range f.objects {
		if f.usable(i) {
			n += f.objects[i].Dirty()
		}
	}
	return n
}

// Blocks estimates the file's blocks of 512 bytes from what the OSTs told last and what is dirty.
func (f *File) Blocks() uint64 {
	var n uint64
	for i := range f.objects {
		if f.usable(i) {
			n += f.objects[i].Blocks()
		}
	}
	return n
}

// Vague reports whether Blocks may change without a call that changes the file: the OSTs know better once they have
// flushed.
func (f *File) Vague() bool {
	for i := range f.objects {
		if f.usable(i) && f.objects[i].Vague() {
			return true
		}
	}
	return false
}

// usable reports whether object i has its OST.
func (f *File) usable(i int) bool {
	if f.missing.Load() == 0 {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects[i].Ready()
}

// Discard drops dirty data unsent and forgets delayed errors: the file is unlinked and closed. What is on its way is
// not recalled.
func (f *File) Discard() {
	for i := range f.objects {
		if f.usable(i) {
			f.objects[i].Discard()
		}
	}
	_ = f.TakeError()
}

// Close ends the use of the file. Nothing is waited for; data that is still being written back is not harmed, only its
// errors have nobody left to be told to.
// Precondition: no handle is left.
func (f *File) Close() {
	for i := range f.objects {
		if f.usable(i) {
			f.objects[i].Start(extent.Extent{End: extent.EOF})
			f.objects[i].DropAhead()
		}
	}
}

// each calls fn for every object, in parallel, started in ascending order, and returns the error of the lowest stripe.
func (f *File) each(fn func(i int, c *layout.Component, s layout.StripeIndex) error) error {
	if len(f.objects) == 1 {
		for i := range f.layout.Components {
			if c := &f.layout.Components[i]; len(c.Stripes) == 1 {
				return fn(0, c, 0)
			}
		}
	}
	errs := make([]error, len(f.objects))
	slots := make(chan struct{}, parallelMax)
	var g sync.WaitGroup
	tag := 0
	for i := range f.layout.Components {
		c := &f.layout.Components[i]
		for s := range c.Stripes {
			slots <- struct{}{}
			i := tag
			g.Go(func() {
				errs[i] = fn(i, c, layout.StripeIndex(s))
				<-slots
			})
			tag++
		}
	}
	g.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
