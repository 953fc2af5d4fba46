package osc

import (
	"context"
	"fmt"
	"time"
)

// ageList links blocks with dirty data, oldest first.
type ageList struct{ head, tail *block }

func (l *ageList) push(b *block) {
	b.aging, b.prev, b.next = true, l.tail, nil
	if l.tail != nil {
		l.tail.next = b
	} else {
		l.head = b
	}
	l.tail = b
}

func (l *ageList) remove(b *block) {
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		l.head = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	} else {
		l.tail = b.prev
	}
	b.aging, b.prev, b.next = false, nil, nil
}

// queue is a ring of writes.
type queue struct {
	ring []*write
	head int
	n    int
}

func (q *queue) push(w *write) {
	if q.n == len(q.ring) {
		ring := make([]*write, max(16, 2*q.n))
		for i := range q.n {
			ring[i] = q.ring[(q.head+i)%len(q.ring)]
		}
		q.ring, q.head = ring, 0
	}
	q.ring[(q.head+q.n)%len(q.ring)] = w
	q.n++
}

func (q *queue) pop() *write {
	if q.n == 0 {
		return nil
	}
	w := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) % len(q.ring)
	q.n--
	return w
}

// reserve accounts n more dirty bytes, if limit and grant allow.
func (c *OSC) reserve(n uint64) shortage {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return stopped
	case c.dirty+c.pending+n > uint64(c.maxDirty.Load()):
		return noRoom
	case !c.grant.take(n):
		return noGrant
	}
	c.dirty += n
	return enough
}

// unreserve is for bytes that were not gathered after all, or were dropped.
func (c *OSC) unreserve(n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty -= n
	c.grant.refund(n)
}

// dirtied puts a block on the age list when it has become dirty.
func (c *OSC) dirtied(bl *block) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if bl.aging {
		return
	}
	bl.since = time.Now()
	c.age.push(bl)
	if !c.armed {
		c.armed = true
		kick(c.share.kick)
	}
}

// cleaned takes a block without dirty data off the age list.
func (c *OSC) cleaned(bl *block) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if bl.aging {
		c.age.remove(bl)
	}
}

// frozen moves n bytes of a block from dirty to pending.
func (c *OSC) frozen(bl *block, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if bl.aging {
		c.age.remove(bl)
	}
	c.dirty -= n
	c.pending += n
}

// enter numbers a write, links it to the unanswered ones and queues it when it is ready.
func (c *OSC) enter(w *write, ready bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	w.seq = c.seq
	w.prev = c.newest
	if c.newest != nil {
		c.newest.next = w
	} else {
		c.oldest = w
	}
	c.newest = w
	if w.charged == 0 {
		c.pending += w.len()
	}
	if ready {
		c.pushLocked(w)
	}
}

func (c *OSC) push(w *write) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pushLocked(w)
}

func (c *OSC) pushLocked(w *write) {
	l := &c.lines[0]
	if w.lock == 0 && c.locks != nil {
		l = &c.lines[1]
	}
	l.queue.push(w)
	if l.senders < int(c.maxInFlight.Load()) {
		l.senders++
		c.wg.Add(1)
		go c.send(l)
	}
}

// line is writes that may be sent, and how many goroutines send them. Those that go under no lock have a line of their own,
// because they may wait at the OST.
type line struct {
	queue   queue
	senders int
}

// send sends a line's writes until there are none.
func (c *OSC) send(l *line) {
	defer c.wg.Done()
	for {
		c.mu.Lock()
		w := l.queue.pop()
		if w == nil {
			l.senders--
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		c.sendWrite(w)
	}
}

// ended takes an answered or dropped write out of the accounts and recycles it.
func (c *OSC) ended(w *write, sent bool) {
	n := w.len()
	c.cache.give(c.share, w.pages)
	c.mu.Lock()
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		c.oldest = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		c.newest = w.prev
	}
	c.pending -= n
	if sent {
		c.grant.answered(w.charged, w.reply.Grant)
	} else {
		c.grant.refund(w.charged)
	}
	c.freeWriteLocked(w)
	c.mu.Unlock()
	c.cache.announce()
}

// pooledMax bounds the free writes and blocks that an OSC keeps; more go to the garbage collector.
const pooledMax = 256

func (c *OSC) lastSeq() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seq
}

func (c *OSC) newWrite() *write {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.writes); n > 0 {
		w := c.writes[n-1]
		c.writes = c.writes[:n-1]
		return w
	}
	return new(write)
}

func (c *OSC) freeWriteLocked(w *write) {
	w.req.Bulk = w.req.Bulk[:0]
	w.reply.Reset()
	w.obj, w.bl, w.ticket, w.prev, w.next = nil, nil, nil, nil, nil
	w.pages, w.charged = w.pages[:0], 0
	w.blocked, w.dropped, w.sending, w.lost, w.lock = false, false, false, false, 0
	if len(c.writes) < pooledMax {
		c.writes = append(c.writes, w)
	}
}

func (c *OSC) newBlock(o *Object, index uint64) *block {
	c.mu.Lock()
	defer c.mu.Unlock()
	bl := new(block)
	if n := len(c.blocks); n > 0 {
		bl, c.blocks = c.blocks[n-1], c.blocks[:n-1]
	}
	bl.obj, bl.index = o, index
	return bl
}

func (c *OSC) freeBlock(bl *block) {
	c.mu.Lock()
	defer c.mu.Unlock()
	bl.obj = nil
	if len(c.blocks) < pooledMax {
		c.blocks = append(c.blocks, bl)
	}
}

// writeback freezes what is old, and more when it is kicked.
func (c *OSC) writeback() {
	timer := time.NewTimer(c.o.MaxAge)
	timer.Stop()
	defer timer.Stop()
	news := time.NewTimer(keptNews)
	defer news.Stop()
	for {
		select {
		case <-c.life.done:
			return
		case <-c.share.kick:
			timer.Reset(c.o.MaxAge)
		case <-c.kept.kick:
			news.Reset(keptNews)
		case <-news.C:
			if c.news() {
				news.Reset(keptNews)
			}
		case <-c.share.press:
			c.hasten()
			c.aheads.dropAll(c)
			c.freezeOldest(c.pressBytes())
		case <-timer.C:
			if wait, ok := c.freezeAged(); ok {
				timer.Reset(wait)
			} else {
				c.cache.trim()
			}
		}
	}
}

// freezeAged freezes blocks older than MaxAge. It returns how long the oldest left may stay, false when none is left.
func (c *OSC) freezeAged() (time.Duration, bool) {
	c.freezeSince(time.Now().Add(-c.o.MaxAge))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.age.head == nil {
		c.armed = false
		return 0, false
	}
	return max(0, c.o.MaxAge-time.Since(c.age.head.since)), true
}

// freezeSince freezes the blocks that were dirty at t already.
func (c *OSC) freezeSince(t time.Time) {
	for c.freezeHead(func(bl *block) bool { return !bl.since.After(t) }) != 0 {
	}
}

// freezeOldest freezes blocks, oldest first, until limit bytes are frozen or nothing is dirty.
func (c *OSC) freezeOldest(limit uint64) {
	for n := uint64(0); n < limit; {
		k := c.freezeHead(func(*block) bool { return true })
		if k == 0 {
			return
		}
		n += k
	}
}

// freezeHead freezes the oldest dirty block if it is one that is meant, and returns how many bytes that were; 0 when
// there is none. A block that another goroutine froze first counts as one byte.
func (c *OSC) freezeHead(meant func(*block) bool) uint64 {
	c.mu.Lock()
	bl := c.age.head
	if bl == nil || !meant(bl) {
		c.mu.Unlock()
		return 0
	}
	o, index := bl.obj, bl.index
	c.mu.Unlock()
	return max(1, o.freeze(index))
}

// press makes room: it writes back the oldest data, here and, when the shared memory is short, on every OST.
func (c *OSC) press(why shortage) {
	c.freezeOldest(c.pressBytes())
	if why == noRoom {
		c.hasten()
		c.aheads.dropAll(c)
		c.cache.press()
	}
}

// pressBytes is how much to write back under pressure: a quarter, so that random writes still gather, and enough
// to fill the pipe.
func (c *OSC) pressBytes() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.dirty/4, 4*c.block)
}

// busy reports whether an answer may come that brings grant.
func (c *OSC) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending > 0
}

// flush writes back everything that is dirty now and waits for the answers, and for those that were on their way.
func (c *OSC) flush(ctx context.Context) error {
	c.freezeSince(time.Now())
	c.mu.Lock()
	seq := c.seq
	c.mu.Unlock()
	for {
		ch := c.cache.waiter()
		c.mu.Lock()
		done := c.oldest == nil || c.oldest.seq > seq
		c.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ch:
		case <-c.life.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("osc: %s: flush: %w", c.o.Name, ctx.Err())
		}
	}
}
