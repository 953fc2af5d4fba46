package osc

import (
	"context"
	"sync"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
)

// Pages drops what the kernel caches of files' bytes.
type Pages interface {
	// DropPages drops the pages of n bytes of a file from off; n 0 means to the end. It may wait for READs and for the
	// writing back of mapped pages in flight. When it returns, no page of the range is valid that was before.
	DropPages(f fid.FID, off, n uint64)
}

// Kernel is the kernel's page cache as the OSCs of one mount see it. Safe for concurrent use; the zero value has no kernel.
//
// To drop pages waits for READs in flight, and such a READ may wait for a lock of another stripe, whose holder may wait for
// the very lock that is being revoked. But the pages that a READ holds locked are not valid yet: what waits for a lock has
// nothing to be dropped. So the READs that wait are known here, and dropping goes around them.
type Kernel struct {
	mu      sync.Mutex
	pages   Pages                 // guarded by mu
	waiting map[fid.FID]*heldFile // guarded by mu: files with READs that wait for a lock
	helpers sync.WaitGroup
}

// heldFile is a file's READs that wait for a lock.
type heldFile struct {
	reads []extent.Extent
	// more is closed when another one begins to wait; nil when nobody looks.
	more chan struct{}
}

// SetPages says who drops pages; nil: nobody has any.
func (k *Kernel) SetPages(p Pages) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pages = p
}

// Hold notes that a READ of the kernel, which keeps the pages of e locked and not valid, begins to wait for a lock.
// Each is followed by a Free.
func (k *Kernel) Hold(f fid.FID, e extent.Extent) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.fileLocked(f)
	h.reads = append(h.reads, e)
	if h.more != nil {
		close(h.more)
		h.more = nil
	}
}

// Free notes that the READ of e has its lock, or has given up.
func (k *Kernel) Free(f fid.FID, e extent.Extent) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.waiting[f]
	for i, r := range h.reads {
		if r == e {
			last := len(h.reads) - 1
			h.reads[i] = h.reads[last]
			h.reads = h.reads[:last]
			break
		}
	}
	k.tidyLocked(f, h)
}

func (k *Kernel) fileLocked(f fid.FID) *heldFile {
	h := k.waiting[f]
	if h == nil {
		if k.waiting == nil {
			k.waiting = make(map[fid.FID]*heldFile)
		}
		h = new(heldFile)
		k.waiting[f] = h
	}
	return h
}

func (k *Kernel) tidyLocked(f fid.FID, h *heldFile) {
	if len(h.reads) == 0 && h.more == nil {
		delete(k.waiting, f)
	}
}

// drop drops the pages of these ranges of a file. It goes on without those that a READ holds which waits for a lock: who
// is stuck there comes to an end with that READ.
func (k *Kernel) drop(ctx context.Context, f fid.FID, ranges []extent.Extent) {
	for {
		k.mu.Lock()
		p := k.pages
		if p == nil || len(ranges) == 0 {
			k.mu.Unlock()
			return
		}
		h := k.fileLocked(f)
		if h.more == nil {
			h.more = make(chan struct{})
		}
		more := h.more
		list := ranges
		for _, r := range h.reads {
			list = without(list, r)
		}
		k.mu.Unlock()
		done := make(chan struct{})
		k.helpers.Go(func() {
			for _, e := range list {
				n := e.Len()
				if e.End == extent.EOF {
					n = 0
				}
				p.DropPages(f, e.Start, n)
			}
			close(done)
		})
		over := false
		select {
		case <-done:
			over = true
		case <-more:
		case <-ctx.Done():
			over = true
		}
		if over {
			k.unwatch(f, more)
			return
		}
	}
}

// unwatch forgets a channel that nobody looks at any more; others who look at it are woken and look again.
func (k *Kernel) unwatch(f fid.FID, more chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.waiting[f]
	if h == nil || h.more != more {
		return
	}
	close(h.more)
	h.more = nil
	k.tidyLocked(f, h)
}

// Close waits for what still drops pages. Precondition: no READ waits any more.
func (k *Kernel) Close() { k.helpers.Wait() }

// without gives list less e.
func without(list []extent.Extent, e extent.Extent) []extent.Extent {
	out := make([]extent.Extent, 0, len(list)+1)
	for _, r := range list {
		if !r.Overlaps(e) {
			out = append(out, r)
			continue
		}
		if r.Start < e.Start {
			out = append(out, extent.Extent{Start: r.Start, End: e.Start})
		}
		if e.End < r.End {
			out = append(out, extent.Extent{Start: e.End, End: r.End})
		}
	}
	return out
}
