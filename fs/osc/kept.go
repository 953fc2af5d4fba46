package osc

import (
	"context"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// This file keeps what the OST has answered until it is on the OST's disk, so that it can be said again to an OST that has lost it.

// kept is a change that was answered and may not be on disk. Guarded by OSC.mu, but for what never changes while it is linked.
type kept struct {
	transno uint64
	// instance is the start of the OST that answered.
	instance uint64
	obj      *Object
	op       wire.Op
	// A write has start, mtime, owner and pages, whose bytes never change; any other change the body of its request.
	start uint64
	mtime attr.Time
	owner Owner
	pages []*page
	body  []byte
	// spilled: the pages had no room beside what is dirty, and are counted there.
	spilled bool
	// lost: the OST has evicted this client since. The pages are gone; what becomes of the change is up to the OST.
	lost       bool
	prev, next *kept
}

// keptLog is what is kept, in order of transno.
type keptLog struct {
	oldest, newest *kept  // guarded by OSC.mu
	count          int    // guarded by OSC.mu
	bytes, spilled int64  // guarded by OSC.mu: of buffers; of those the spilled ones
	instance       uint64 // guarded by OSC.mu: the start of the OST that the client is connected to
	committed      uint64 // guarded by OSC.mu: last_committed
	asking, asks   bool   // guarded by OSC.mu: a commit, or news of one, is being asked for
	free           []*kept
	kick           chan struct{} // the log has become not empty; capacity 1
}

const (
	// keptMost is how many changes are kept before the OST is asked to commit, whatever their size: truncates have no bytes.
	keptMost = 16384
	// keptNews is how long the log waits for last_committed to come along with other answers before it asks. An OST commits two
	// seconds after the first change.
	keptNews = 3 * time.Second
	// keptPause is the least time between a question that brought nothing and the next.
	keptPause = 200 * time.Millisecond
	// keptFarewell bounds the wait of Close for the OST's commit.
	keptFarewell = 5 * time.Second
)

// errNotReplayed is what becomes of kept data that the OST may have lost and does not take back.
var errNotReplayed error = &status.Error{Kind: status.IO, Text: "osc: the target was started again and does not take back what it had answered; it may be lost"}

// keepWrite takes over the pages of an answered write until they are on disk. It returns false for an answer of an earlier start
// of the OST than the one that changes are replayed to: the answer counts as not heard, and the write goes out again.
// Precondition: w.obj.mu is held.
func (c *OSC) keepWrite(w *write) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.currentLocked(&w.req) {
		return false
	}
	c.committedLocked(uint64(w.req.LastCommitted))
	if uint64(w.req.Transno) <= c.kept.committed || w.dropped {
		return true
	}
	k := c.newKeptLocked(w.obj, &w.req)
	k.start, k.mtime = w.start, w.mtime
	k.owner = Owner{UID: w.body.Uid, GID: w.body.Gid, Project: w.body.Project}
	k.pages = append(k.pages[:0], w.pages...)
	clear(w.pages)
	w.pages = w.pages[:0]
	n := bytesOf(k.pages)
	moved, half := c.cache.keep(c.share, n)
	c.kept.bytes += n
	if k.spilled = !moved; k.spilled {
		c.kept.spilled += n
	}
	c.linkLocked(k)
	if half || c.kept.count >= keptMost {
		c.hastenLocked()
	}
	return true
}

// keepChange is keepWrite for a change without bulk, whose body names no lock.
func (c *OSC) keepChange(o *Object, r *rpc.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.currentLocked(r) {
		return false
	}
	c.committedLocked(uint64(r.LastCommitted))
	if uint64(r.Transno) <= c.kept.committed {
		return true
	}
	k := c.newKeptLocked(o, r)
	k.body = encode(k.body, r.Body)
	c.linkLocked(k)
	if c.kept.count >= keptMost {
		c.hastenLocked()
	}
	return true
}

// encode puts a message into b, which it may grow.
func encode(b []byte, m rpc.Message) []byte {
	n := m.SizeVT()
	if cap(b) < n {
		b = make([]byte, n)
	}
	b = b[:n]
	if _, err := m.MarshalToSizedBufferVT(b); err != nil {
		panic(err) // It was sent a moment ago.
	}
	return b
}

// currentLocked reports whether a request was answered by the start of the OST that the client is connected to.
func (c *OSC) currentLocked(r *rpc.Request) bool {
	return r.Instance == 0 || c.kept.instance == 0 || r.Instance == c.kept.instance
}

func (c *OSC) newKeptLocked(o *Object, r *rpc.Request) *kept {
	k := new(kept)
	if n := len(c.kept.free); n > 0 {
		k, c.kept.free = c.kept.free[n-1], c.kept.free[:n-1]
	}
	k.obj, k.op, k.transno, k.instance = o, r.Op, uint64(r.Transno), r.Instance
	return k
}

// linkLocked enters k in order. Answers come nearly in order, so the place is found from the end.
func (c *OSC) linkLocked(k *kept) {
	l := &c.kept
	at := l.newest
	for at != nil && at.transno > k.transno {
		at = at.prev
	}
	k.prev = at
	if at != nil {
		k.next, at.next = at.next, k
	} else {
		k.next, l.oldest = l.oldest, k
	}
	if k.next != nil {
		k.next.prev = k
	} else {
		l.newest = k
	}
	if l.count++; l.count == 1 {
		kick(l.kick)
	}
}

// dropLocked ends the keeping of k.
func (c *OSC) dropLocked(k *kept) {
	l := &c.kept
	if k.prev != nil {
		k.prev.next = k.next
	} else {
		l.oldest = k.next
	}
	if k.next != nil {
		k.next.prev = k.prev
	} else {
		l.newest = k.prev
	}
	l.count--
	c.stripLocked(k)
	pages, body := k.pages, k.body
	*k = kept{pages: pages, body: body[:0]}
	if len(l.free) < pooledMax {
		l.free = append(l.free, k)
	}
}

// stripLocked frees k's pages.
func (c *OSC) stripLocked(k *kept) {
	n := bytesOf(k.pages)
	if n == 0 {
		return
	}
	c.kept.bytes -= n
	if k.spilled {
		c.kept.spilled -= n
		c.cache.give(c.share, k.pages)
	} else {
		c.cache.unkeep(c.share, k.pages)
	}
	k.pages, k.spilled = k.pages[:0], false
}

// Committed tells that the OST has everything up to transno n on disk: for rpc.ImportOptions.OnCommitted. It does not wait.
func (c *OSC) Committed(n wire.Transno) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.committedLocked(uint64(n))
}

func (c *OSC) committedLocked(n uint64) {
	if n <= c.kept.committed {
		return
	}
	c.kept.committed = n
	freed := false
	for k := c.kept.oldest; k != nil && k.transno <= n; k = c.kept.oldest {
		c.dropLocked(k)
		freed = true
	}
	if freed {
		c.cache.announce()
	}
}

// reconnected sorts out what is kept after a connect, before requests flow: what is on disk goes; what may be replayed stays; what
// the OST may have lost and takes from nobody any more is dropped, and its files are told. Of a client that was evicted by the
// start that answered it no byte stays, but the OST still has what it answered: the files are told only if it loses that.
func (c *OSC) reconnected(r *wirepb.ConnectReply) {
	c.mu.Lock()
	l := &c.kept
	c.committedLocked(r.LastCommitted)
	same := l.instance == r.Instance
	l.instance = r.Instance
	var lost []*Object
	for k := l.oldest; k != nil; {
		next := k.next
		switch earlier := k.instance != r.Instance; {
		case !earlier && r.Recovered:
		case !earlier:
			c.stripLocked(k)
			k.lost = true
		case r.Recovered && r.Recovering && !k.lost:
			// To be replayed.
		case r.Recovered && same && !k.lost:
			// The window was open when this client came first, and is over: all of it has been replayed.
			c.dropLocked(k)
		default:
			if n := len(lost); n == 0 || lost[n-1] != k.obj {
				lost = append(lost, k.obj)
			}
			c.dropLocked(k)
		}
		k = next
	}
	c.mu.Unlock()
	c.tell(lost, errNotReplayed)
	c.cache.announce()
}

// tell tells the files of objects, once each, that answered data is lost.
func (c *OSC) tell(list []*Object, err error) {
	told := make(map[*Object]bool, len(list))
	for _, o := range list {
		if told[o] {
			continue
		}
		told[o] = true
		c.log.Warn("answered data may be lost", "object", o.id, "error", err)
		o.mu.Lock()
		o.holder.WriteFailed(o.fail("replay", 0, err))
		o.mu.Unlock()
	}
}

// hastenLocked asks the OST to commit, unless it was asked and has not answered.
func (c *OSC) hastenLocked() {
	if c.kept.asking || c.closed {
		return
	}
	c.kept.asking = true
	c.wg.Go(func() {
		m := wirepb.ObjectSyncRequest{All: true}
		r := rpc.Request{Op: wire.OpObjectSync, Body: &m, Reserve: true}
		err := c.do(&c.life, &r)
		c.heard(&r, err)
		c.mu.Lock()
		c.kept.asking = false
		c.mu.Unlock()
		c.cache.announce()
	})
}

// hasten asks the OST to commit if that makes room for what is dirty.
func (c *OSC) hasten() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept.spilled > 0 {
		c.hastenLocked()
	}
}

// heard takes last_committed from an answer. Without news it waits, so that nobody asks again at once.
func (c *OSC) heard(r *rpc.Request, err error) {
	c.mu.Lock()
	before := c.kept.committed
	if err == nil {
		c.committedLocked(uint64(r.LastCommitted))
	}
	moved := c.kept.committed != before
	c.mu.Unlock()
	if moved {
		return
	}
	t := time.NewTimer(keptPause)
	defer t.Stop()
	select {
	case <-c.life.done:
	case <-t.C:
	}
}

// news asks for last_committed when no other answer has told that everything is on disk. It reports whether the log still has
// something.
func (c *OSC) news() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept.count == 0 {
		return false
	}
	if !c.kept.asks && !c.closed {
		c.kept.asks = true
		c.wg.Go(func() {
			r := rpc.Request{Op: wire.OpPing}
			err := c.do(&c.life, &r)
			c.heard(&r, err)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.kept.asks = false
		})
	}
	return true
}

// settleKept waits until what is kept is on disk, for a while: nobody replays it after the end of this client.
func (c *OSC) settleKept(ctx context.Context) {
	c.mu.Lock()
	n, bytes := c.kept.count, c.kept.bytes
	c.mu.Unlock()
	if n == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keptFarewell)
	defer cancel()
	m := wirepb.ObjectSyncRequest{All: true}
	r := rpc.Request{Op: wire.OpObjectSync, Body: &m, Reserve: true}
	if err := c.do(ctx, &r); err != nil {
		c.log.Warn("this client ends with answered data that is not known to be on disk", "bytes", bytes, "error", err)
		return
	}
	c.Committed(r.LastCommitted)
}

// dropKept forgets everything.
func (c *OSC) dropKept() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.kept.oldest != nil {
		c.dropLocked(c.kept.oldest)
	}
}
