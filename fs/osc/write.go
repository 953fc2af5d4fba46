package osc

import (
	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// write is a frozen run of contiguous pages: one WRITE request. Its pages never change again.
type write struct {
	obj        *Object
	bl         *block
	start, end uint64
	pages      []*page
	mtime      attr.Time
	seq        uint64
	// charged is how much of it was gathered against grant: all or nothing.
	charged uint64
	// ticket is the call that waits for it, nil for gathered data. Guarded by the object's mutex.
	ticket *ticket
	// lock is the lock under which it was gathered or is written through, 0 for none: the OST takes one of its own.
	lock ldlm.Handle
	// lost says that the lock was lost before it was answered. Guarded by the object's mutex.
	lost bool
	// blocked says that an older write of the object overlaps; dropped that it must not be sent any more; sending
	// that the request is on its way. Guarded by the object's mutex.
	blocked, dropped, sending bool
	// prev and next link unanswered writes in order of seq. Guarded by OSC.mu.
	prev, next *write

	req   rpc.Request
	body  wirepb.WriteRequest
	id    wirepb.Object
	reply wirepb.ObjectReply
}

func (w *write) len() uint64 { return w.end - w.start }

func (w *write) overlaps(e extent.Extent) bool { return w.start < e.End && e.Start < w.end }

// ticket is a write-through call that waits for its writes. Guarded by the object's mutex, but for the channel.
type ticket struct {
	pending int
	// failedAt is the lowest offset whose write failed, extent.EOF for none; err is why.
	failedAt uint64
	err      error
	// end is behind the last byte that was written.
	end       uint64
	waiting   bool
	abandoned bool
	done      chan struct{}
}

// newTicket returns a ticket; one whose writes are all settled and noted may go back to the pool.
func (c *OSC) newTicket() *ticket {
	t, _ := c.tickets.Get().(*ticket)
	if t == nil {
		t = &ticket{done: make(chan struct{}, 1)}
	}
	*t = ticket{failedAt: extent.EOF, done: t.done}
	return t
}

// settle notes the end of one of the ticket's writes.
func (t *ticket) settle(w *write, err error) {
	t.pending--
	switch {
	case err == nil:
		t.end = max(t.end, w.end)
	case w.start < t.failedAt:
		t.failedAt, t.err = w.start, err
	}
	if t.pending == 0 && t.waiting {
		t.waiting = false
		t.done <- struct{}{}
	}
}

// freezeLocked turns what is dirty in a block into writes and queues them.
func (o *Object) freezeLocked(bl *block) {
	pages := bl.dirty
	if len(pages) == 0 {
		return
	}
	total := uint64(0)
	limit := o.osc.rpcBytes()
	for len(pages) > 0 {
		n, size := 1, pages[0].end-pages[0].start
		for n < len(pages) && pages[n].start == pages[n-1].end && size+pages[n].end-pages[n].start <= limit {
			size += pages[n].end - pages[n].start
			n++
		}
		w := o.osc.newWrite()
		w.pages = append(w.pages[:0], pages[:n]...)
		w.start, w.end, w.charged, w.mtime = pages[0].start, pages[n-1].end, size, bl.mtime
		w.lock = pages[0].lock
		total += size
		o.queueLocked(bl, w)
		pages = pages[n:]
	}
	clear(bl.dirty)
	bl.dirty = bl.dirty[:0]
	bl.mtime, bl.size = attr.Time{}, 0
	o.osc.frozen(bl, total)
}

// queueLocked enters a write behind the older ones of its block.
func (o *Object) queueLocked(bl *block, w *write) {
	w.obj, w.bl = o, bl
	w.blocked = blockedBy(bl.writes, w)
	bl.writes = append(bl.writes, w)
	o.osc.enter(w, !w.blocked)
}

// lockless reports whether a write goes under no lock of this client, for a call that still waits for it. At the OST it may
// wait for who wants a lock of this client; so nothing that a lock's way back needs waits for it. Calls that run at the
// same time have no order; of a call that was interrupted the writes keep theirs.
func (w *write) lockless() bool {
	return w.lock == 0 && w.ticket != nil && !w.ticket.abandoned && w.obj.osc.locks != nil
}

func blockedBy(older []*write, w *write) bool {
	for _, v := range older {
		if v.overlaps(extent.Extent{Start: w.start, End: w.end}) && !(w.lock != 0 && v.lockless()) {
			return true
		}
	}
	return false
}

// finish ends a write: it was answered, refused or dropped. again says that it has to be sent once more instead.
func (o *Object) finish(w *write, err error) (again bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	sent, t := w.sending, w.ticket
	if err == nil && sent && !o.osc.keepWrite(w) {
		return true
	}
	if err != nil && (t == nil || t.abandoned) && !w.dropped {
		o.holder.WriteFailed(err)
	}
	if err == nil && sent {
		o.space.wrote(w.start, w.end, w.reply.Blocks)
		o.osc.covers.wrote(w, max(o.space.blocks, w.reply.Blocks))
		if t != nil && t.abandoned {
			o.holder.Written(o.tag, w.end)
		}
	}
	// What was read ahead before the answer is older; until now the write hid it.
	o.osc.aheads.drop(o.osc, o.id, extent.Extent{Start: w.start, End: w.end})
	bl := w.bl
	for i, v := range bl.writes {
		if v == w {
			copy(bl.writes[i:], bl.writes[i+1:])
			bl.writes[len(bl.writes)-1] = nil
			bl.writes = bl.writes[:len(bl.writes)-1]
			break
		}
	}
	for i, v := range bl.writes {
		if v.blocked && !blockedBy(bl.writes[:i], v) {
			v.blocked = false
			o.osc.push(v)
		}
	}
	o.dirty -= int64(w.len())
	o.dropBlockLocked(bl)
	if t != nil {
		t.settle(w, err)
	}
	// Memory and grant are back before a waiter hears of it.
	o.osc.ended(w, sent)
	o.announceLocked()
	return false
}

// dropBlockLocked forgets a block that has nothing left.
func (o *Object) dropBlockLocked(bl *block) {
	if len(bl.dirty) == 0 && len(bl.writes) == 0 {
		delete(o.blocks, bl.index)
		o.osc.freeBlock(bl)
		if len(o.blocks) == 0 {
			o.osc.live.leave(o)
		}
	}
}

func (o *Object) announceLocked() {
	if o.done != nil {
		close(o.done)
		o.done = nil
	}
}
