package osc

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
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
	// File is the file that it belongs to, Stripe its place there.
	File   fid.FID
	Stripe uint32
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
	tag    int
	holder Holder

	mu     sync.Mutex
	owner  Owner             // guarded by mu
	blocks map[uint64]*block // guarded by mu: by offset / OSC.block; only those with data
	dirty  int64             // guarded by mu: bytes dirty or unanswered
	end    uint64            // guarded by mu: the object is at least this long
	space  space             // guarded by mu
	done   chan struct{}     // guarded by mu: closed when a write ended; nil when nobody waits
}

// Init makes o an object of c.
// Precondition: o is zero and nobody else uses it.
func (o *Object) Init(c *OSC, cfg ObjectConfig) {
	o.osc, o.id, o.file, o.stripe = c, cfg.ID, cfg.File, cfg.Stripe
	o.tag, o.holder, o.owner = cfg.Tag, cfg.Holder, cfg.Owner
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

// End is a size that the object has at least: what this client wrote or was told, cut by its truncates.
func (o *Object) End() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.end
}

// covered reports whether this client may keep the bytes of e in its cache. It may keep all of them: a mount that
// writes is the file system's only writer, the targets refuse a second one. Extent locks answer this once there are several.
func (o *Object) covered(extent.Extent) bool { return o.osc != nil }

func (o *Object) blockLocked(index uint64) *block {
	bl := o.blocks[index]
	if bl == nil {
		bl = o.osc.newBlock(o, index)
		if o.blocks == nil {
			o.blocks = make(map[uint64]*block)
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
func (o *Object) put(b []byte, off uint64, mtime attr.Time) (int, shortage) {
	o.mu.Lock()
	defer o.mu.Unlock()
	size := o.osc.block
	for n := 0; ; {
		pos := off + uint64(n)
		bl := o.blockLocked(pos / size)
		part := b[n:]
		part = part[:min(uint64(len(part)), (bl.index+1)*size-pos)]
		clean, before := len(bl.dirty) == 0, bl.size
		k, why := bl.put(o.osc, part, pos)
		n += k
		o.dirty += int64(bl.size - before)
		if k > 0 {
			bl.mtime = bl.mtime.Later(mtime)
			o.end = max(o.end, pos+uint64(k))
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
	return o.settleLocked(ctx, e)
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
	return o.settleLocked(ctx, e)
}

func (o *Object) settleLocked(ctx context.Context, e extent.Extent) error {
	if len(o.blocks) == 0 {
		return nil
	}
	seq := o.osc.lastSeq()
	for o.unansweredLocked(e, seq) {
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

func (o *Object) unansweredLocked(e extent.Extent, seq uint64) bool {
	for _, bl := range o.blocks {
		for _, w := range bl.writes {
			if w.seq <= seq && w.overlaps(e) {
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
		o.cutLocked(o.blocks[i], start)
	}
	o.end = min(o.end, start)
	o.space.cut(start)
	o.osc.cache.announce()
}

func (o *Object) cutLocked(bl *block, start uint64) {
	var gone uint64
	i := find(bl.dirty, start)
	if i < len(bl.dirty) && bl.dirty[i].start < start {
		gone += bl.dirty[i].end - start
		bl.dirty[i].end = start
		i++
	}
	for _, p := range bl.dirty[i:] {
		gone += p.end - p.start
	}
	if gone == 0 {
		return
	}
	o.osc.cache.give(o.osc.share, bl.dirty[i:])
	bl.dirty = bl.dirty[:i]
	bl.size -= gone
	o.dirty -= int64(gone)
	o.osc.unreserve(gone)
	if len(bl.dirty) == 0 {
		o.osc.cleaned(bl)
	}
	o.dropBlockLocked(bl)
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
		o.cutLocked(bl, 0)
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
