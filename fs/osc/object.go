package osc

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Holder is the file that an object belongs to. Its methods are called with the object's mutex held: they must not wait
// nor call the object.
type Holder interface {
	// WriteFailed tells that accepted data was lost, and why.
	WriteFailed(err error)
	// Written tells that a write-through whose caller was interrupted has reached the object's byte end-1 after all.
	Written(tag int, end uint64)
}

// ObjectConfig says what an object is.
type ObjectConfig struct {
	ID fid.ObjectID
	// File is the file that it belongs to, Stripe its place there: the number of its stripe in Component, which tells where the
	// object's bytes are in the file and must not change. Component may be nil where no kernel caches pages.
	File      fid.FID
	Stripe    uint32
	Component *layout.Component
	// Tag is given to Holder.Written.
	Tag    int
	Holder Holder
	Owner  Owner
}

// Object is one object of the OST and this client's dirty data of it. The zero value must be given to Init.
type Object struct {
	osc    *OSC
	id     fid.ObjectID
	file   fid.FID
	stripe uint32
	comp   *layout.Component
	place  layout.StripeIndex
	tag    int
	holder Holder

	mu     sync.Mutex
	owner  Owner             // guarded by mu
	blocks map[uint64]*block // guarded by mu: by offset / OSC.block; only those with data
	dirty  int64             // guarded by mu: bytes dirty or unanswered
	space  space             // guarded by mu
	done   chan struct{}     // guarded by mu: closed when a write ended; nil when nobody waits

	nextLive *Object // guarded by live.mu
}

// Init makes o an object of c.
// Precondition: o is zero and nobody else uses it.
func (o *Object) Init(c *OSC, cfg ObjectConfig) {
	o.osc, o.id, o.file, o.stripe = c, cfg.ID, cfg.File, cfg.Stripe
	o.tag, o.holder, o.owner = cfg.Tag, cfg.Holder, cfg.Owner
	o.comp, o.place = cfg.Component, layout.StripeIndex(cfg.Stripe)
}

// Ready reports whether Init was called.
func (o *Object) Ready() bool { return o.osc != nil }

// OSC is the OST that the object is on.
func (o *Object) OSC() *OSC { return o.osc }

// Chown changes whom writes sent from now on are charged to.
func (o *Object) Chown(w Owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.owner = w
}

// Dirty is how many bytes are dirty or unanswered.
func (o *Object) Dirty() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dirty
}

// DirtyEnd is behind the last byte that is dirty or unanswered, 0 when nothing is. DirtyEnd of another File's Object of the
// same object is not in it.
func (o *Object) DirtyEnd() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	end, _ := o.dirtyLocked()
	return end
}

func (o *Object) blockLocked(index uint64) *block {
	bl := o.blocks[index]
	if bl == nil {
		bl = o.osc.newBlock(o, index)
		if o.blocks == nil {
			o.blocks = make(map[uint64]*block)
		}
		if len(o.blocks) == 0 {
			o.osc.live.enter(o)
		}
		o.blocks[index] = bl
	}
	return bl
}

// indexesLocked lists the blocks that hold data in e, in ascending order.
func (o *Object) indexesLocked(e extent.Extent) []uint64 {
	if len(o.blocks) == 0 || e.Empty() {
		return nil
	}
	first, last := e.Start/o.osc.block, (e.End-1)/o.osc.block
	list := make([]uint64, 0, min(uint64(len(o.blocks)), last-first+1))
	for i := range o.blocks {
		if i >= first && i <= last {
			list = append(list, i)
		}
	}
	slices.Sort(list)
	return list
}

// freeze queues what is dirty in one block and returns how many bytes that were.
func (o *Object) freeze(index uint64) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	bl := o.blocks[index]
	if bl == nil {
		return 0
	}
	n := bl.size
	o.freezeLocked(bl)
	return n
}

// put gathers b at off; see block.put.
func (o *Object) put(b []byte, off uint64, mtime attr.Time, lock ldlm.Handle) (int, shortage) {
	o.mu.Lock()
	defer o.mu.Unlock()
	size := o.osc.block
	for n := 0; ; {
		pos := off + uint64(n)
		bl := o.blockLocked(pos / size)
		part := b[n:]
		part = part[:min(uint64(len(part)), (bl.index+1)*size-pos)]
		clean, before := len(bl.dirty) == 0, bl.size
		k, why := bl.put(o.osc, part, pos, lock)
		n += k
		o.dirty += int64(bl.size - before)
		if k > 0 {
			bl.mtime = bl.mtime.Later(mtime)
			if clean {
				o.osc.dirtied(bl)
			}
			if off+uint64(n) == (bl.index+1)*size && bl.full(size) {
				o.freezeLocked(bl)
			}
		}
		if why != enough || n == len(b) {
			o.dropBlockLocked(bl)
			return n, why
		}
	}
}

// Flush queues what is dirty in e and waits until that, and all that was queued in e before, is answered. The error is
// the end of ctx; what became of the data is told to the Holder.
func (o *Object) Flush(ctx context.Context, e extent.Extent) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, i := range o.indexesLocked(e) {
		o.freezeLocked(o.blocks[i])
	}
	return o.settleLocked(ctx, e, false)
}

// Start queues what is dirty in e and does not wait.
func (o *Object) Start(e extent.Extent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, i := range o.indexesLocked(e) {
		o.freezeLocked(o.blocks[i])
	}
}

// Settle waits until all that was queued in e is answered; what is dirty stays. The error is the end of ctx.
func (o *Object) Settle(ctx context.Context, e extent.Extent) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.settleLocked(ctx, e, false)
}

// giveBack is Flush for a lock that goes back: of what went under no lock nothing is waited for.
func (o *Object) giveBack(ctx context.Context, e extent.Extent) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, i := range o.indexesLocked(e) {
		o.freezeLocked(o.blocks[i])
	}
	return o.settleLocked(ctx, e, true)
}

func (o *Object) settleLocked(ctx context.Context, e extent.Extent, locked bool) error {
	if len(o.blocks) == 0 {
		return nil
	}
	seq := o.osc.lastSeq()
	for o.unansweredLocked(e, seq, locked) {
		if o.done == nil {
			o.done = make(chan struct{})
		}
		ch := o.done
		o.mu.Unlock()
		var err error
		select {
		case <-ch:
		case <-ctx.Done():
			err = o.fail("flush", e.Start, ctx.Err())
		}
		o.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *Object) unansweredLocked(e extent.Extent, seq uint64, locked bool) bool {
	for _, bl := range o.blocks {
		for _, w := range bl.writes {
			if w.seq <= seq && w.overlaps(e) && !(locked && w.lockless()) {
				return true
			}
		}
	}
	return false
}

// Cut drops what is dirty from start on: a truncate is about to punch it.
func (o *Object) Cut(start uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, i := range o.indexesLocked(extent.Extent{Start: start, End: extent.EOF}) {
		o.cutLocked(o.blocks[i], extent.Extent{Start: start, End: extent.EOF})
	}
	o.space.cut(start)
	o.osc.cache.announce()
}

// cutLocked drops what is dirty of a block in e, and returns how much that was. The block may be gone afterwards.
func (o *Object) cutLocked(bl *block, e extent.Extent) (gone uint64) {
	i := find(bl.dirty, e.Start)
	if i < len(bl.dirty) && bl.dirty[i].start < e.Start {
		// A page that reaches over both ends of e loses what is behind e too: its bytes are one run.
		gone += bl.dirty[i].end - e.Start
		bl.dirty[i].end = e.Start
		i++
	}
	j := i
	for ; j < len(bl.dirty) && bl.dirty[j].end <= e.End; j++ {
		gone += bl.dirty[j].end - bl.dirty[j].start
	}
	if j < len(bl.dirty) && bl.dirty[j].start < e.End {
		gone += e.End - bl.dirty[j].start
		bl.dirty[j].start = e.End
	}
	if gone == 0 {
		return 0
	}
	o.osc.cache.give(o.osc.share, bl.dirty[i:j])
	n := i + copy(bl.dirty[i:], bl.dirty[j:])
	clear(bl.dirty[n:])
	bl.dirty = bl.dirty[:n]
	bl.size -= gone
	o.dirty -= int64(gone)
	o.osc.unreserve(gone)
	if len(bl.dirty) == 0 {
		o.osc.cleaned(bl)
	}
	o.dropBlockLocked(bl)
	return gone
}

// Discard drops what is dirty, and what is queued and not sent yet: the file is gone.
func (o *Object) Discard() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, i := range o.indexesLocked(extent.Extent{End: extent.EOF}) {
		bl := o.blocks[i]
		for _, w := range bl.writes {
			w.dropped = true
		}
		o.cutLocked(bl, extent.Extent{End: extent.EOF})
	}
	o.osc.cache.announce()
}

func (o *Object) name(m *wirepb.Object) *wirepb.Object {
	m.Group, m.Id = o.id.Group, o.id.ID
	m.OwnerSeq, m.OwnerOid, m.Stripe = uint64(o.file.Seq), o.file.OID, o.stripe
	return m
}

func (o *Object) fail(what string, off uint64, err error) error {
	return fmt.Errorf("osc: %s: %s object %v at %d: %w", o.osc.o.Name, what, o.id, off, err)
}

// closedErr is what happens to data of an OSC that was closed.
func (o *Object) closedErr(what string, off uint64) error {
	return o.fail(what, off, fmt.Errorf("the mount has ended: %w", status.IO))
}
