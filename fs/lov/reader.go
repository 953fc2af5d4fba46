package lov

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/osc"
)

// ReadAhead is the limits of read-ahead, in bytes; 0 of either turns it off.
type ReadAhead struct {
	// Max bounds what is read ahead and not read, in all files of the set; PerFile that of one open file.
	Max, PerFile int64
}

// Read-ahead by this client is for reads that the kernel does not recognise: in equal strides, and small ones in order. Large
// reads in order are the kernel's own read-ahead, 8 MiB of it in flight at once; to fetch those here too only copies them
// twice (BenchmarkReadAhead in server/cluster).
const (
	// aheadReadMax is the largest read that is read ahead for.
	aheadReadMax = 256 << 10
	// aheadAfter is how many reads in order, or in equal strides, open the window.
	aheadAfter = 2
	// aheadStep is one READ: the window grows by it.
	aheadStep = 1 << 20
	// aheadStrides is how many strides are read ahead at most.
	aheadStrides = 8
)

// Reader is what is known of how an open file is read. Its zero value knows nothing. Safe for concurrent use.
type Reader struct {
	mu       sync.Mutex
	off, end uint64 // guarded by mu: of the last read
	stride   uint64 // guarded by mu: from the last but one to the last
	inOrder  int    // guarded by mu: reads behind one another
	strided  int    // guarded by mu: equal strides
	window   uint64 // guarded by mu
	upTo     uint64 // guarded by mu: read ahead up to here, in order
}

// readAheadStats counts under Lustre's names.
type readAheadStats struct {
	pages, notConsecutive, noMemory, noLock, busy atomic.Int64
}

// SetReadAhead sets the limits. A set begins with none: nothing is read ahead.
func (s *Set) SetReadAhead(l ReadAhead) { s.limits.Store(&l) }

// ReadAheadStats prints what was read ahead, in Lustre's form; rows that it has and this client does not measure are left out.
func (s *Set) ReadAheadStats() string {
	var b strings.Builder
	now := time.Now()
	fmt.Fprintf(&b, "snapshot_time             %d.%09d secs.nsecs\n", now.Unix(), now.Nanosecond())
	a := &s.ahead
	var hits int64
	for _, c := range s.All() {
		hits += int64(c.AheadHits()) / pageSize
	}
	for _, r := range []struct {
		name string
		n    int64
	}{
		{"hits", hits}, {"misses", max(0, a.pages.Load()-hits)}, {"readpage_not_consecutive", a.notConsecutive.Load()},
		{"failed_grab_cache_page", a.noMemory.Load()}, {"failed_lock_match", a.noLock.Load()}, {"hit_max_r-a_issue", a.busy.Load()},
	} {
		fmt.Fprintf(&b, "%-25s %d samples [pages]\n", r.name, r.n)
	}
	return b.String()
}

// next notes a read and gives what to read ahead of it: count pieces of n bytes, the first at off, each a step behind the
// last. count 0 is nothing.
func (r *Reader) next(off, n uint64, perFile int64) (first, size, step uint64, count int, consecutive bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stride := off - r.off
	switch {
	case off == r.end && off != 0:
		r.inOrder++
		r.strided = 0
		consecutive = true
	case off > r.off && stride == r.stride && stride > n:
		r.strided++
		r.inOrder, r.window = 0, 0
		consecutive = true
	default:
		r.inOrder, r.strided, r.window, r.upTo = 0, 0, 0, 0
	}
	r.off, r.end, r.stride = off, off+n, stride
	switch {
	case n > aheadReadMax:
		return 0, 0, 0, 0, consecutive
	case r.inOrder >= aheadAfter:
		r.window = min(r.window+aheadStep, uint64(perFile))
		from := max(r.upTo, off+n)
		to := off + n + r.window
		if to < from+aheadStep && r.upTo > off+n { // half of it is still there
			return 0, 0, 0, 0, consecutive
		}
		count = int((to - from) / aheadStep)
		r.upTo = from + uint64(count)*aheadStep
		return from, aheadStep, aheadStep, count, consecutive
	case r.strided >= aheadAfter:
		return off + stride, n, stride, int(min(aheadStrides, uint64(perFile)/n)), consecutive
	}
	return 0, 0, 0, 0, consecutive
}

// readAhead reads ahead of a read that is done.
func (f *File) readAhead(r *Reader, off, n uint64) {
	l := f.set.limits.Load()
	if l == nil || l.PerFile == 0 || l.Max == 0 || !f.locked.Load() {
		return
	}
	st := &f.set.ahead
	at, size, step, count, consecutive := r.next(off, n, l.PerFile)
	st.pages.Add(pagesOf(n))
	if !consecutive {
		st.notConsecutive.Add(pagesOf(n))
	}
	for ; count > 0; count-- {
		if !f.readPiece(extent.Extent{Start: at, End: at + size}, l) {
			return
		}
		at += step
	}
}

func pagesOf(n uint64) int64 { return int64((n + pageSize - 1) / pageSize) }

// readPiece reads a piece ahead; false says that there is no use in going on.
func (f *File) readPiece(e extent.Extent, l *ReadAhead) bool {
	more := true
	f.layout.Chunks(e.Start, e.Len(), func(c layout.Chunk) bool {
		st := &f.set.ahead
		switch f.object(c.Component, c.Stripe).ReadAhead(extent.Extent{Start: c.ObjectOffset, End: c.ObjectOffset + c.Len}, l.Max) {
		case osc.AheadNear:
			more = false
		case osc.AheadNoLock:
			st.noLock.Add(pagesOf(c.Len))
			more = false
		case osc.AheadNoMemory:
			st.noMemory.Add(pagesOf(c.Len))
			more = false
		case osc.AheadBusy:
			st.busy.Add(pagesOf(c.Len))
			more = false
		}
		return more
	})
	return more
}
