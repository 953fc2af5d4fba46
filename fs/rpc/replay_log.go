package rpc

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/wire"
)

// DefaultReplayMax is what a replay log may hold: the work of several commits of a busy client.
const DefaultReplayMax = 64 << 20

const (
	// chunkBytes and chunkEntries are the size of a chunk; a larger entry has one of its own.
	chunkBytes   = 64 << 10
	chunkEntries = 256
	// entryBytes is what an entry takes beside its bodies.
	entryBytes = 40
	// sparesMax bounds the chunks kept for use: what comes between two commits needs no allocation.
	sparesMax = 64
	// askTime is the pause between two requests for a commit.
	askTime = 50 * time.Millisecond
)

// logEntry is a modifying request that was answered.
type logEntry struct {
	transno wire.Transno
	xid     wire.XID
	at      uint32 // where in the chunk the request's body begins; the reply's follows it
	body    uint32 // length
	reply   uint32 // length
	slot    uint32
	op      wire.Op
	refused bool // in a replay: it is gone
}

// logChunk is memory of entries.
type logChunk struct {
	entries []logEntry
	bytes   []byte
	newest  wire.Transno // of entries
}

func (c *logChunk) size() int { return cap(c.bytes) + cap(c.entries)*entryBytes }

// replayLog keeps the modifying requests that are answered and that last_committed does not cover, in chunks that are used
// again. The chunks in use are dropped from the front, whole.
type replayLog struct {
	max  atomic.Int64
	ask  func()      // asks the target for a commit, in a goroutine of its own; it calls asked at its end
	full atomic.Bool // requests that modify wait

	mu        sync.Mutex
	chunks    []*logChunk   // in the order they were begun; the last one is open; guarded by mu
	spare     []*logChunk   // guarded by mu
	bytes     int64         // of chunks; guarded by mu
	count     int           // entries in chunks; guarded by mu
	committed wire.Transno  // guarded by mu
	pinned    bool          // a replay reads them; guarded by mu
	asking    bool          // guarded by mu
	askedAt   time.Time     // guarded by mu
	moved     chan struct{} // closed when chunks were dropped; nil when nobody waits; guarded by mu
}

func newReplayLog(maxBytes int, ask func()) *replayLog {
	l := &replayLog{ask: ask}
	l.max.Store(int64(maxBytes))
	return l
}

// add keeps an answered request: h is its reply's header, body and reply the bodies, which are copied. It does not wait.
func (l *replayLog) add(f *flight, h *wire.Header, body, reply []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.Transno <= max(l.committed, h.LastCommitted) {
		return
	}
	n := len(body) + len(reply)
	var c *logChunk
	if k := len(l.chunks); k > 0 {
		c = l.chunks[k-1]
	}
	if c == nil || cap(c.bytes)-len(c.bytes) < n || len(c.entries) == cap(c.entries) {
		c = l.chunkLocked(n)
	}
	at := len(c.bytes)
	c.bytes = append(append(c.bytes, body...), reply...)
	c.entries = append(c.entries, logEntry{
		transno: h.Transno, xid: f.xid, at: uint32(at), body: uint32(len(body)), reply: uint32(len(reply)), slot: f.slot, op: f.op,
	})
	c.newest = max(c.newest, h.Transno)
	l.count++
}

// chunkLocked opens a chunk with room for n bytes.
func (l *replayLog) chunkLocked(n int) *logChunk {
	var c *logChunk
	if k := len(l.spare); k > 0 && n <= chunkBytes {
		c, l.spare = l.spare[k-1], l.spare[:k-1]
	} else {
		c = &logChunk{bytes: make([]byte, 0, max(n, chunkBytes)), entries: make([]logEntry, 0, chunkEntries)}
	}
	l.chunks = append(l.chunks, c)
	l.bytes += int64(c.size())
	most := l.max.Load()
	if l.bytes >= most {
		l.full.Store(true)
	}
	if l.bytes >= most/2 {
		l.askLocked()
	}
	return c
}

// askLocked asks for a commit, unless somebody does or has a moment ago.
func (l *replayLog) askLocked() {
	if now := time.Now(); !l.asking && now.Sub(l.askedAt) >= askTime {
		l.asking, l.askedAt = true, now
		l.ask()
	}
}

// asked notes that the request for a commit was answered.
func (l *replayLog) asked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asking = false
}

// drop forgets what is on the target's disk: entries with transnos up to n.
func (l *replayLog) drop(n wire.Transno) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n <= l.committed {
		return
	}
	l.committed = n
	l.dropLocked()
}

func (l *replayLog) dropLocked() {
	if l.pinned {
		return
	}
	k := 0
	for k < len(l.chunks) && l.chunks[k].newest <= l.committed {
		l.recycleLocked(l.chunks[k])
		k++
	}
	if k == 0 {
		return
	}
	l.chunks = slices.Delete(l.chunks, 0, k)
	if l.bytes < l.max.Load() {
		l.full.Store(false)
	}
	if l.moved != nil {
		close(l.moved)
		l.moved = nil
	}
}

func (l *replayLog) recycleLocked(c *logChunk) {
	l.bytes -= int64(c.size())
	l.count -= len(c.entries)
	if len(l.spare) < sparesMax && cap(c.bytes) == chunkBytes {
		c.entries, c.bytes, c.newest = c.entries[:0], c.bytes[:0], 0
		l.spare = append(l.spare, c)
	}
}

// clear forgets all, and returns how many entries there were.
func (l *replayLog) clear() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, c := range l.chunks {
		l.committed = max(l.committed, c.newest)
		for i := range c.entries {
			if !c.entries[i].refused {
				n++
			}
		}
	}
	l.pinned = false
	l.dropLocked()
	return n
}

// room waits until the log can take more, ctx's error or errClosed if that comes first.
func (l *replayLog) room(ctx context.Context, stop <-chan struct{}) error {
	for l.full.Load() {
		l.mu.Lock()
		if l.bytes < l.max.Load() {
			l.full.Store(false)
			l.mu.Unlock()
			return nil
		}
		l.askLocked()
		if l.moved == nil {
			l.moved = make(chan struct{})
		}
		moved := l.moved
		l.mu.Unlock()
		timer := time.NewTimer(2 * askTime) // The commit that was asked for may not have covered all.
		var err error
		select {
		case <-moved:
		case <-timer.C:
		case <-ctx.Done():
			err = ctx.Err()
		case <-stop:
			err = errClosed
		}
		timer.Stop()
		if err != nil {
			return err
		}
	}
	return nil
}

// setMax changes the bound, in bytes.
func (l *replayLog) setMax(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.max.Store(n)
	l.full.Store(l.bytes >= n)
}

// held tells the entries and the memory that they take, and the newest transno.
func (l *replayLog) held() (entries int, bytes int64, newest wire.Transno) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.chunks {
		newest = max(newest, c.newest)
	}
	return l.count, l.bytes, newest
}

// logRef is an entry with its chunk.
type logRef struct {
	e *logEntry
	c *logChunk
}

// body and reply are the bodies of then. They share the chunk's memory.
func (r logRef) body() []byte  { return r.c.bytes[r.e.at : r.e.at+r.e.body] }
func (r logRef) reply() []byte { return r.c.bytes[r.e.at+r.e.body : r.e.at+r.e.body+r.e.reply] }

// pin returns the entries with transnos above n, sorted by them, and keeps them where they are until clear.
func (l *replayLog) pin(n wire.Transno) []logRef {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pinned = true
	var list []logRef
	for _, c := range l.chunks {
		for k := range c.entries {
			if e := &c.entries[k]; e.transno > n && !e.refused {
				list = append(list, logRef{e, c})
			}
		}
	}
	slices.SortFunc(list, func(a, b logRef) int { return cmp.Compare(a.e.transno, b.e.transno) })
	return list
}
