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
	// dropsMax bounds the notifications that wait in the kernel.
	dropsMax = 64
	pageSize = 4096
)

// busyFolders counts, by node, requests during which the kernel holds a folder's lock: notifications about its entries would
// wait for them. Slots are shared, which costs lookups only.
type busyFolders struct {
	slots [1 << 12]atomic.Int32
}

func (b *busyFolders) slot(node uint64) *atomic.Int32 {
	return &b.slots[(node*0x9e3779b97f4a7c15)>>52]
}

func (b *busyFolders) enter(node uint64)   { b.slot(node).Add(1) }
func (b *busyFolders) leave(node uint64)   { b.slot(node).Add(-1) }
func (b *busyFolders) is(node uint64) bool { return b.slot(node).Load() > 0 }

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

// notified runs a notification in a goroutine of its own and waits for it for dropWait. done is false when it goes on, or
// could not be begun because too many do.
func (f *FS) notified(fn func() error) (err error, done bool) {
	select {
	case f.drops <- struct{}{}:
	default:
		return nil, false
	}
	over := make(chan error, 1)
	f.wait.Go(func() {
		over <- fn()
		<-f.drops
	})
	limit := time.NewTimer(dropWait)
	defer limit.Stop()
	select {
	case err := <-over:
		return err, true
	case <-limit.C:
		return nil, false
	}
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
func (f *FS) DropEntries(child fid.FID, names []client.Entry, recent bool) {
	node := f.number(child)
	for _, e := range names {
		parent := f.number(e.Parent)
		if f.busy.is(parent) {
			f.epoch(node)
			return
		}
		err, done := f.notified(func() error { return f.kernel.dropEntry(parent, e.Name) })
		if !done || errors.Is(err, unix.ENOENT) && f.c.Renaming() || err != nil && !errors.Is(err, unix.ENOENT) {
			f.epoch(node)
			return
		}
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

func (t *writeTable) begin(in *fuse.WriteIn) *writing {
	w := &writing{page: -1}
	end := in.Offset + uint64(in.Size)
	if in.Size > 0 && (end%pageSize != 0 || in.Offset%pageSize != 0 && in.Offset/pageSize == (end-1)/pageSize) {
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
// not filled from the file.
func (f *FS) DropPages(g fid.FID, off, n uint64) {
	node := f.number(g)
	end := int64(-1)
	if n != 0 {
		end = int64(off + n)
	}
	locked := f.writes.pages(node)
	over := f.dropAround(node, int64(off), end, locked)
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
