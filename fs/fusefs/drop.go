package fusefs

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/fid"
	"golang.org/x/sys/unix"
)

// This file takes back what the kernel was told: it implements client.Kernel.

const (
	// dropWait is how long a notification is waited for that the kernel may keep until one of our own requests is answered.
	dropWait = 5 * time.Millisecond
	// listingWait is the same for a folder that is being listed: a listing waits for nobody, so it soon lets the notification in.
	listingWait = 200 * time.Millisecond
	// writingWait is how long a page of a write under way is waited for, which takes microseconds unless it is locked.
	writingWait = 20 * time.Millisecond
	// dropsMax bounds the notifications that wait in the kernel.
	dropsMax = 64
	pageSize = 4096
)

// busyFolders counts, by node, requests during which the kernel holds a folder's lock: notifications about its entries would
// wait for them. Slots are shared, which costs lookups only.
type busyFolders struct {
	slots [1 << 12]atomic.Int32
	// last is when a request ended, in nanoseconds: its answer may be on its way to the kernel.
	last [1 << 12]atomic.Int64
}

func slotOf(node uint64) int { return int((node * 0x9e3779b97f4a7c15) >> 52) }

func (b *busyFolders) enter(node uint64) { b.slots[slotOf(node)].Add(1) }

func (b *busyFolders) leave(node uint64) { b.slots[slotOf(node)].Add(-1) }

// left is leave, remembered for lately.
func (b *busyFolders) left(node uint64) {
	b.last[slotOf(node)].Store(time.Now().UnixNano())
	b.leave(node)
}

func (b *busyFolders) is(node uint64) bool { return b.slots[slotOf(node)].Load() > 0 }

// lately reports whether the folder is busy, or was a moment ago.
func (b *busyFolders) lately(node uint64) bool {
	return b.is(node) || time.Now().UnixNano()-b.last[slotOf(node)].Load() < int64(listingWait)
}

// suspects are nodes that a kernel without epochs may still find by an old name. The next request that found one by its
// name is answered with ESTALE, which makes the kernel look the name up again.
type suspects struct {
	n  atomic.Int32
	mu sync.Mutex
	m  map[uint64]struct{} // guarded by mu
}

func (s *suspects) add(node uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = make(map[uint64]struct{})
	}
	s.m[node] = struct{}{}
	s.n.Store(int32(len(s.m)))
}

func (s *suspects) take(node uint64) bool {
	if s.n.Load() == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.m[node]
	delete(s.m, node)
	s.n.Store(int32(len(s.m)))
	return ok
}

// notified runs a notification in a goroutine of its own and waits for it. done is false when it goes on, or could not be
// begun because too many do.
func (f *FS) notified(wait time.Duration, fn func() error) (err error, done bool) {
	over := make(chan error, 1)
	if !f.notifying(func() { over <- fn() }) {
		return nil, false
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	select {
	case err := <-over:
		return err, true
	case <-limit.C:
		return nil, false
	}
}

// notifying runs fn in a goroutine of its own, unless too many do.
func (f *FS) notifying(fn func()) bool {
	select {
	case f.drops <- struct{}{}:
	default:
		return false
	}
	f.wait.Go(func() {
		fn()
		<-f.drops
	})
	return true
}

// DropAttr implements client.Kernel. The kernel takes no lock for it. It may not know the node yet whose attributes are on
// their way to it; if it does not get to know it soon, every name is looked up again, and with it the attributes.
func (f *FS) DropAttr(g fid.FID, recent bool) {
	node := f.number(g)
	for range 5 {
		err := f.kernel.invalidate(node, -1, 0)
		if !errors.Is(err, unix.ENOENT) || !recent {
			return
		}
		time.Sleep(time.Millisecond)
	}
	f.epoch(node)
}

// DropEntries implements client.Kernel. An entry whose folder the kernel has locked for one of our requests is not waited
// for: then all names are looked up again.
func (f *FS) DropEntries(child fid.FID, names []client.Entry, believed bool) {
	node := f.number(child)
	f.dropped.Add(1)
	raise := false
	for _, e := range names {
		parent := f.number(e.Parent)
		drop := func() error { return f.kernel.dropEntry(parent, e.Name) }
		if !believed || raise || f.busy.is(parent) {
			raise = raise || believed
			f.notifying(func() { _ = drop() })
			continue
		}
		wait := dropWait
		if f.listing.lately(parent) {
			// What a listing brings counts as looked up when it is entered, whatever the epoch was when it was asked for.
			wait = listingWait
		}
		err, done := f.notified(wait, drop)
		raise = !done || errors.Is(err, unix.ENOENT) && f.c.Renaming() || err != nil && !errors.Is(err, unix.ENOENT)
	}
	if raise {
		f.epoch(node)
	}
}

// epoch makes the kernel look every name up again. One that cannot do that is told ESTALE when it next uses the node.
func (f *FS) epoch(node uint64) {
	if f.kernel.newEpoch() != nil {
		f.suspect.add(node)
		_ = f.kernel.invalidate(node, -1, 0)
	}
}

// DropAll implements client.Kernel. Every name is looked up again at its next use, where the kernel can do that (6.16 and
// later), and with it the attributes; those of what is open go by themselves. Pages lie under locks of the OSTs.
func (f *FS) DropAll() {
	if err := f.kernel.newEpoch(); err != nil {
		f.log.Warn("the kernel may believe old names for a while", "for", cacheTime, "err", err)
	}
	f.files.Range(func(_ uint64, h *client.Handle) bool {
		_ = f.kernel.invalidate(f.number(h.FID()), -1, 0)
		return true
	})
	f.dirs.Range(func(_ uint64, d *client.Dir) bool {
		_ = f.kernel.invalidate(f.number(d.FID()), -1, 0)
		return true
	})
	_ = f.kernel.invalidate(fuse.FUSE_ROOT_ID, -1, 0)
}

// writeTable knows the WRITE requests under way by node.
type writeTable struct {
	shards [64]struct {
		mu sync.Mutex
		m  map[uint64][]*writing // guarded by mu
	}
}

// writing is a WRITE under way. page is the offset of the page that the kernel may have locked until the answer, -1 for
// none: one that is written in part and was not in its cache. The kernel ends a request with such a page.
type writing struct{ page int64 }

// begin notes a WRITE. Of one past the cache (direct), as those of O_APPEND are, the kernel has no page locked.
func (t *writeTable) begin(in *fuse.WriteIn, direct bool) *writing {
	w := &writing{page: -1}
	end := in.Offset + uint64(in.Size)
	if !direct && in.Size > 0 && (end%pageSize != 0 || in.Offset%pageSize != 0 && in.Offset/pageSize == (end-1)/pageSize) {
		w.page = int64((end - 1) / pageSize * pageSize)
	}
	s := &t.shards[in.NodeId%64]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = make(map[uint64][]*writing)
	}
	s.m[in.NodeId] = append(s.m[in.NodeId], w)
	return w
}

func (t *writeTable) end(node uint64, w *writing) {
	s := &t.shards[node%64]
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.m[node]
	for i, v := range list {
		if v == w {
			list[i] = list[len(list)-1]
			list[len(list)-1] = nil
			list = list[:len(list)-1]
			break
		}
	}
	if len(list) == 0 {
		delete(s.m, node)
		return
	}
	s.m[node] = list
}

// pages are the offsets of pages that the kernel may have locked for a WRITE, in ascending order.
func (t *writeTable) pages(node uint64) []int64 {
	s := &t.shards[node%64]
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []int64
	for _, w := range s.m[node] {
		if w.page >= 0 {
			out = append(out, w.page)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// DropPages implements client.Kernel. It waits for reads of the pages under way, but not for writes: they may wait for the
// lock that the pages lie under. What a write under way keeps locked is a page that nobody can read: written in part, and
// not filled from the file. But the same write does not lock a page that is filled, and which of the two it is only the kernel
// knows: so these pages are dropped too, and waited for as long as that takes when nobody has them locked.
func (f *FS) DropPages(g fid.FID, off, n uint64) {
	node := f.number(g)
	end := int64(-1)
	if n != 0 {
		end = int64(off + n)
	}
	locked := f.writes.pages(node)
	over := f.dropAround(node, int64(off), end, locked)
	f.dropWriting(node, int64(off), end, locked)
	limit := time.NewTicker(dropWait)
	defer limit.Stop()
	for {
		select {
		case <-over:
			return
		case <-limit.C:
		}
		// A write that came since may be in the way: then around it, too.
		if now := f.writes.pages(node); !slices.Equal(now, locked) {
			locked = now
			over = f.dropAround(node, int64(off), end, locked)
			f.dropWriting(node, int64(off), end, locked)
		}
	}
}

// dropWriting drops those of the pages of writes under way that lie between off and end (-1: all). It goes on without one that
// is not dropped in writingWait: the kernel has it locked until the write is answered.
func (f *FS) dropWriting(node uint64, off, end int64, pages []int64) {
	over := make(chan struct{}, len(pages))
	n := 0
	for _, p := range pages {
		if p+pageSize <= off || end >= 0 && p >= end {
			continue
		}
		n++
		f.wait.Go(func() {
			_ = f.kernel.invalidate(node, p, pageSize)
			over <- struct{}{}
		})
	}
	if n == 0 {
		return
	}
	limit := time.NewTimer(writingWait)
	defer limit.Stop()
	for range n {
		select {
		case <-over:
		case <-limit.C:
			return
		}
	}
}

// dropAround drops the pages from off to end (-1: all) but for those locked, in a goroutine; the channel is closed at the end.
func (f *FS) dropAround(node uint64, off, end int64, locked []int64) <-chan struct{} {
	over := make(chan struct{})
	f.wait.Go(func() {
		defer close(over)
		for _, p := range locked {
			if p+pageSize <= off || end >= 0 && p >= end {
				continue
			}
			if p > off {
				_ = f.kernel.invalidate(node, off, p-off)
			}
			off = p + pageSize
			if end >= 0 && off >= end {
				return
			}
		}
		n := int64(0)
		if end >= 0 {
			n = end - off
		}
		_ = f.kernel.invalidate(node, off, n)
	})
	return over
}

// DropWritten implements client.Kernel.
func (f *FS) DropWritten(g fid.FID, off, n uint64) {
	node := f.number(g)
	locked := f.writes.pages(node)
	over := f.dropAround(node, int64(off), int64(off+n), locked)
	limit := time.NewTimer(dropWait)
	defer limit.Stop()
	select {
	case <-over:
	case <-limit.C:
	}
}
