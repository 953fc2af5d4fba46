package osc

import (
	"context"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
)

// grantRounds is how often a write without grant waits for an answer that may bring some before it goes through.
// Past a few the OST has no more to give.
const grantRounds = 4

// gapsMax is how many uncached stretches of one read are found in a pass.
const gapsMax = 8

// Write gathers b at off and returns when it is all in the cache. Without room it waits, without grant it goes through.
// It returns how many bytes were accepted; fewer than len(b) come with an error. ctx ending while it waits is kind
// Interrupted.
// Precondition: len(b) > 0; lock is the Handle of a Pin in mode PW that covers the bytes.
func (o *Object) Write(ctx context.Context, b []byte, off uint64, mtime attr.Time, lock ldlm.Handle) (int, error) {
	if err := o.alone(ctx, extent.Extent{Start: off, End: off + uint64(len(b))}); err != nil {
		return 0, err
	}
	n, why := o.put(b, off, mtime, lock)
	if why == enough {
		return n, nil
	}
	return o.writeSlow(ctx, rest{b: b, off: off, mtime: mtime, lock: lock}, n)
}

// rest is a write that goes on.
type rest struct {
	b     []byte
	off   uint64
	mtime attr.Time
	lock  ldlm.Handle
}

// writeSlow goes on with a write of which n bytes are in.
func (o *Object) writeSlow(ctx context.Context, r rest, n int) (int, error) {
	b, off := r.b, r.off
	for round := 0; ; round++ {
		ch := o.osc.cache.waiter()
		k, why := o.put(b[n:], off+uint64(n), r.mtime, r.lock)
		n += k
		switch {
		case why == enough:
			return n, nil
		case why == stopped:
			return n, o.closedErr("write", off)
		}
		o.osc.press(why)
		if why == noGrant && (round >= grantRounds || !o.osc.busy()) {
			k, err := o.WriteThrough(ctx, b[n:], off+uint64(n), r.mtime, r.lock)
			return n + k, err
		}
		select {
		case <-ch:
		case <-o.osc.life.done:
		case <-ctx.Done():
			return n, o.fail("write", off, ctx.Err())
		}
	}
}

// WriteThrough sends b at off and returns when it is answered. Older data of the same bytes goes first. When ctx ends
// before, it is kind Interrupted and the data may still be written; the Holder hears of it. Otherwise as Write. lock may also
// be 0: then the OST takes a lock of its own, and nothing of it is kept here.
func (o *Object) WriteThrough(ctx context.Context, b []byte, off uint64, mtime attr.Time, lock ldlm.Handle) (int, error) {
	if err := o.alone(ctx, extent.Extent{Start: off, End: off + uint64(len(b))}); err != nil {
		return 0, err
	}
	t := o.osc.newTicket()
	var stop error
	n := 0
	for n < len(b) && stop == nil {
		k := o.osc.piece(off+uint64(n), len(b)-n)
		if stop = o.room(ctx, off+uint64(n), k); stop == nil {
			o.submit(t, rest{b: b[n : n+k], off: off + uint64(n), mtime: mtime, lock: lock})
			n += k
		}
	}
	o.mu.Lock()
	if t.pending > 0 {
		t.waiting = true
		o.mu.Unlock()
		select {
		case <-t.done:
		case <-ctx.Done():
		}
		o.mu.Lock()
	}
	defer o.mu.Unlock()
	if t.pending > 0 {
		t.abandoned = true
		if t.end > 0 {
			o.Grown(t.end)
			o.holder.Written(o.tag, t.end)
		}
		return 0, o.fail("write", off, ctx.Err())
	}
	// The last answer may have come together with the end of ctx: its token must not wake the ticket's next user.
	select {
	case <-t.done:
	default:
	}
	if t.err != nil {
		n, stop = int(t.failedAt-off), t.err
	}
	o.osc.tickets.Put(t)
	return n, stop
}

// piece is how much of n bytes at off go into one write-through request: no more than a block, nor than an idle cache
// can hold for one OST.
func (c *OSC) piece(off uint64, n int) int {
	limit := min(c.rpcBytes(), uint64(c.cache.Limit()/4)&^(largeBytes-1))
	return int(min(uint64(n), limit-off%limit, c.block-off%c.block))
}

// pageSize is the buffer for a write-through of n bytes.
func pageSize(n int) int64 {
	if n > largeBytes/2 {
		return largeBytes
	}
	return smallBytes
}

// room waits until the cache has taken memory for n bytes at off.
func (o *Object) room(ctx context.Context, off uint64, n int) error {
	size := uint64(pageSize(n))
	need := int64((off+uint64(n)-1)/size-off/size+1) * int64(size)
	if o.osc.cache.take(o.osc.share, need) {
		return nil
	}
	for {
		ch := o.osc.cache.waiter()
		if o.osc.cache.take(o.osc.share, need) {
			return nil
		}
		o.osc.press(noRoom)
		select {
		case <-ch:
		case <-o.osc.life.done:
			return o.closedErr("write", off)
		case <-ctx.Done():
			return o.fail("write", off, ctx.Err())
		}
	}
}

// submit queues one write-through behind what is dirty in its block.
// Precondition: its memory was taken; it lies in one block.
func (o *Object) submit(t *ticket, r rest) {
	b, off := r.b, r.off
	w := o.osc.newWrite()
	size := pageSize(len(b))
	w.start, w.end, w.mtime, w.ticket = off, off+uint64(len(b)), r.mtime, t
	w.lock = r.lock
	for pos := off; pos < w.end; {
		p := o.osc.cache.page(size)
		p.base = pos &^ uint64(size-1)
		p.start, p.end = pos, min(w.end, p.room())
		copy(p.bytes(pos, p.end), b[pos-off:])
		w.pages = append(w.pages, p)
		pos = p.end
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	bl := o.blockLocked(off / o.osc.block)
	o.freezeLocked(bl)
	t.pending++
	o.dirty += int64(len(b))
	o.queueLocked(bl, w)
}

// Read fills b with the object's bytes from off; what the object does not have reads as zeros. It sees this client's
// dirty data. When ctx ends it is kind Interrupted.
//
// Every byte is either copied from the cache while the mutex is held, or asked of the OST when the cache had nothing
// unanswered there: then the OST has the newest. lock is the Handle of a Pin that covers bytes of it, or 0: the OST takes
// a lock of its own for as long as each request runs.
func (o *Object) Read(ctx context.Context, b []byte, off uint64, lock ldlm.Handle) error {
	if err := o.alone(ctx, extent.Extent{Start: off, End: off + uint64(len(b))}); err != nil {
		return err
	}
	var gaps [gapsMax]extent.Extent
	for n := 0; n < len(b); {
		k, g := o.overlay(b[n:], off+uint64(n), gaps[:0])
		for _, e := range g {
			if lock != 0 {
				e.Start += uint64(o.takeAhead(b[e.Start-off:e.End-off], e.Start))
			}
			if e.Empty() {
				continue
			}
			if err := o.fetch(ctx, b[e.Start-off:e.End-off], e.Start, lock, true); err != nil {
				return err
			}
		}
		n += k
	}
	return nil
}

// overlay copies what is cached of b's bytes and appends to gaps the stretches that are not, as many as fit without
// growing. It returns how many bytes of b are copied or in gaps.
func (o *Object) overlay(b []byte, off uint64, gaps []extent.Extent) (int, []extent.Extent) {
	end := off + uint64(len(b))
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.blocks) == 0 {
		return len(b), append(gaps, extent.Extent{Start: off, End: end})
	}
	size := o.osc.block
	for pos := off; pos < end; {
		stop := min(end, (pos/size+1)*size)
		var src []byte
		k := stop - pos
		if bl := o.blocks[pos/size]; bl != nil {
			src, k = bl.lookup(pos, stop)
		}
		switch last := len(gaps) - 1; {
		case src != nil:
			copy(b[pos-off:], src)
		case last >= 0 && gaps[last].End == pos:
			gaps[last].End = pos + k
		case len(gaps) == cap(gaps):
			return int(pos - off), gaps
		default:
			gaps = append(gaps, extent.Extent{Start: pos, End: pos + k})
		}
		pos += k
	}
	return len(b), gaps
}
