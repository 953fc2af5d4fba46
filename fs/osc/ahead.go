package osc

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
)

// This file keeps what was read ahead: clean bytes that somebody is expected to read soon, once. They lie under a lock of
// this client, which is pinned while they are fetched; its Revoke drops them. They take memory of the Cache only where
// nobody waits for it.

// aheadSenders bounds the READs of an OSC that read ahead: half of the slots stay for who reads now.
const aheadSenders = 4

// ahead is a run of bytes that is being read ahead, or was.
type ahead struct {
	e     extent.Extent
	pages []*page       // of largeBytes each, the first from e.Start on
	ready chan struct{} // closed when it was fetched, or failed
	gone  bool          // dropped, or failed: nobody may use it; guarded by aheads.mu
	users int           // who copies from it; guarded by aheads.mu
	next  *ahead        // of the same object; guarded by aheads.mu
}

// aheads finds an OSC's runs by object.
type aheads struct {
	n       atomic.Int64 // runs; who finds 0 need not lock
	mu      sync.Mutex
	of      map[fid.ObjectID]*ahead // guarded by mu
	sending int                     // guarded by mu
	hits    atomic.Uint64           // bytes read from here
	wait    atomic.Int64            // nanoseconds that a small READ takes, a running mean
}

// Ahead is what became of a wish to read ahead.
type Ahead uint8

// The answers.
const (
	AheadStarted Ahead = iota
	AheadThere         // it is there already, or coming
	AheadNoLock        // no lock is held on it
	AheadNoMemory
	AheadBusy // enough is on its way
	AheadNear // the OST answers so fast that to copy twice costs more than to wait
)

// ReadAhead begins to read e of the object, as far as it goes, into memory, if a lock on it is held already. It does not wait. At
// most limit bytes of the Cache hold what was read ahead.
func (o *Object) ReadAhead(e extent.Extent, limit int64) Ahead {
	c := o.osc
	if c.locks == nil {
		return AheadNoLock
	}
	if c.aheads.wait.Load() < int64(c.o.AheadWait) {
		return AheadNear
	}
	var pin Pin
	if !o.TryLock(ldlm.PR, e, &pin) {
		return AheadNoLock
	}
	size, _, known := pin.Size()
	e.End = min(e.End, size)
	if !known || e.Empty() {
		pin.Unlock()
		return AheadNoLock
	}
	n := int64((e.Len() + largeBytes - 1) / largeBytes)
	if c.cache.ahead.Load()+n*largeBytes > limit {
		pin.Unlock()
		return AheadBusy
	}
	a := &ahead{e: e, ready: make(chan struct{})}
	if why := c.aheads.begin(o.id, a); why != AheadStarted {
		pin.Unlock()
		return why
	}
	if !c.cache.take(c.share, n*largeBytes) {
		c.aheads.fetched(c, o.id, a, false)
		pin.Unlock()
		return AheadNoMemory
	}
	c.cache.ahead.Add(n * largeBytes)
	for range n {
		a.pages = append(a.pages, c.cache.page(largeBytes))
	}
	if !c.spawn(func() {
		err := o.fetchAhead(a, pin.Handle())
		c.aheads.fetched(c, o.id, a, err == nil)
		pin.Unlock()
	}) {
		c.aheads.fetched(c, o.id, a, false)
		pin.Unlock()
		return AheadBusy
	}
	return AheadStarted
}

// spawn runs f in a goroutine that Close waits for; false after Close.
func (c *OSC) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(f)
	return true
}

// fetchAhead fetches a run in one request.
func (o *Object) fetchAhead(a *ahead, lock ldlm.Handle) error {
	b := make([]byte, a.e.Len())
	if err := o.fetch(&o.osc.life, b, a.e.Start, lock, false); err != nil {
		return err
	}
	for i, p := range a.pages {
		copy(p.buf, b[i*largeBytes:])
	}
	return nil
}

// DefaultAheadWait is the time of a small READ above which reading ahead is worth its second copy. One thread that reads 47,008 bytes
// in strides, or 128 KiB in order, on two cores: over loopback, 50 to 130 us a READ, it is half as fast with read-ahead as
// without; half a millisecond away it is three times as fast (BenchmarkReadAhead in server/cluster).
const DefaultAheadWait = 400 * time.Microsecond

// aheadSample is the largest READ whose time counts: that of larger ones is the transfer's.
const aheadSample = 256 << 10

// waited counts the time of a READ that somebody waited for.
func (s *aheads) waited(n uint64, d time.Duration) {
	if n <= aheadSample {
		old := s.wait.Load()
		s.wait.Store(old + (int64(d)-old)/8)
	}
}

// begin enters a run, unless a part of it is there.
func (s *aheads) begin(id fid.ObjectID, a *ahead) Ahead {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := s.of[id]; x != nil; x = x.next {
		if x.e.Overlaps(a.e) {
			return AheadThere
		}
	}
	if s.sending >= aheadSenders {
		return AheadBusy
	}
	if s.of == nil {
		s.of = make(map[fid.ObjectID]*ahead)
	}
	a.next = s.of[id]
	s.of[id] = a
	s.sending++
	s.n.Add(1)
	return AheadStarted
}

// fetched ends the fetching of a run.
func (s *aheads) fetched(c *OSC, id fid.ObjectID, a *ahead, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending--
	if !ok && !a.gone {
		s.removeLocked(id, a)
	}
	close(a.ready)
	s.freeLocked(c, a)
}

// removeLocked takes a run out: nobody finds it any more.
func (s *aheads) removeLocked(id fid.ObjectID, a *ahead) {
	a.gone = true
	s.n.Add(-1)
	if first := s.of[id]; first != a {
		for first.next != a {
			first = first.next
		}
		first.next = a.next
	} else if a.next != nil {
		s.of[id] = a.next
	} else {
		delete(s.of, id)
	}
}

// freeLocked gives the memory of a run back that nobody uses any more.
func (s *aheads) freeLocked(c *OSC, a *ahead) {
	select {
	case <-a.ready:
	default:
		return
	}
	if a.gone && a.users == 0 && len(a.pages) > 0 {
		c.cache.ahead.Add(int64(-len(a.pages)) * largeBytes)
		c.cache.give(c.share, a.pages)
		a.pages = nil
		c.cache.announce()
	}
}

// drop forgets what was read ahead of e.
func (s *aheads) drop(c *OSC, id fid.ObjectID, e extent.Extent) {
	if s.n.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := s.of[id]; a != nil; {
		next := a.next
		if a.e.Overlaps(e) {
			s.removeLocked(id, a)
			s.freeLocked(c, a)
		}
		a = next
	}
}

// dropAll forgets everything.
func (s *aheads) dropAll(c *OSC) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.of {
		for a := s.of[id]; a != nil; a = s.of[id] {
			s.removeLocked(id, a)
			s.freeLocked(c, a)
		}
	}
}

// take copies what was read ahead from off on into b and returns how much that was; it waits for what is on its way. What is
// read to its end is forgotten: the reader has it.
func (o *Object) takeAhead(b []byte, off uint64) int {
	s := &o.osc.aheads
	if s.n.Load() == 0 {
		return 0
	}
	s.mu.Lock()
	a := s.of[o.id]
	for a != nil && (off < a.e.Start || off >= a.e.End) {
		a = a.next
	}
	if a == nil {
		s.mu.Unlock()
		return 0
	}
	a.users++
	s.mu.Unlock()
	select {
	case <-a.ready:
	case <-o.osc.life.done:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	if !a.gone {
		for end := min(a.e.End, off+uint64(len(b))); off+uint64(n) < end; {
			at := off + uint64(n) - a.e.Start
			p := a.pages[at/largeBytes].buf[at%largeBytes:]
			n += copy(b[n:min(len(b), int(end-off))], p)
		}
		if off+uint64(n) == a.e.End {
			s.removeLocked(o.id, a)
		}
	}
	s.hits.Add(uint64(n))
	a.users--
	s.freeLocked(o.osc, a)
	return n
}

// DropAhead forgets what was read ahead of the object: its file is closed.
func (o *Object) DropAhead() { o.osc.aheads.drop(o.osc, o.id, whole) }

// AheadHits is how many bytes were read from what had been read ahead.
func (c *OSC) AheadHits() uint64 { return c.aheads.hits.Load() }
