package ldlm

import (
	"math/bits"

	"github.com/strakefs/strake/fs/extent"
)

const (
	// growConflicts is the number of conflicting granted locks beyond which a write lock grows by growBytes at most.
	growConflicts = 32
	growBytes     = 32 << 20
	// growWaiters is the number of conflicting waiting locks beyond which a lock does not grow downwards.
	growWaiters = 4
	// growAlign is the smallest alignment of a grown extent: a page.
	growAlign = 4096
)

// grow widens the extent of a lock that is about to be granted to what nobody else wants (LUSTRE, ldlm_extent.c):
//
//  1. Where conflicting locks are granted, not downwards, and upwards to the first of them.
//  2. With more than 32 of them a write lock gets no more than 32 MiB.
//  3. Conflicting waiting locks clip on both sides, but for those that want bytes of this request itself: they will
//     call it back whatever it has. More than 4 of any kind: not downwards.
//  4. Down to the largest power-of-two alignment that the request itself has, at least a page.
//
// Precondition: l conflicts with no granted lock and is in no interval tree.
func (s *step) grow(l *lock) {
	res := l.res
	if res.id.Type != TypeExtent || l.client == Local || l.mode == GROUP || l.req == whole() ||
		l.flags&(NoExpansion|Speculative|Replay) != 0 {
		return
	}
	want := whole()
	conflicting, waiting := int32(0), int32(0)
	for set := l.mode.conflicts(); set != 0; {
		var m Mode
		m, set = set.lowest()
		if n := res.granted[m.index()].n; n > 0 {
			conflicting += n
			want.Start = l.req.Start
			if next := res.trees.granted[m.index()].firstFrom(l.req.End); next != nil {
				want.End = min(want.End, next.ext.Start)
			}
		}
		waiting += clipWaiting(&res.trees.waiting[m.index()], l, &want)
	}
	if waiting > growWaiters {
		want.Start = l.req.Start
	}
	if conflicting > growConflicts && l.mode&(PW|CW) != 0 && l.req.Start < extent.EOF-growBytes {
		want.End = min(want.End, l.req.Start+growBytes)
	}
	l.ext = align(want, l.req)
}

// clipWaiting clips want by the waiting locks of one mode and returns how many there are, as far as it matters.
func clipWaiting(t *tree, l *lock, want *extent.Extent) int32 {
	if t.root == nil {
		return 0
	}
	if next := t.firstFrom(l.req.End); next != nil {
		want.End = min(want.End, next.ext.Start)
	}
	n := int32(0)
	t.overlapping(whole(), func(w *lock) bool {
		n++
		if w.ext.End <= l.req.Start {
			want.Start = max(want.Start, w.ext.End)
		}
		return n <= growWaiters // beyond, there is no growth downwards to clip
	})
	return n
}

// align shrinks want to the alignment of req, never below req.
func align(want, req extent.Extent) extent.Extent {
	ends := req.Start
	if req.End != extent.EOF {
		ends |= req.End
	}
	a := uint64(growAlign)
	if ends != 0 {
		a = max(a, 1<<bits.TrailingZeros64(ends))
	}
	got := want
	if up := want.Start + (a - 1); up >= want.Start {
		got.Start = up &^ (a - 1)
	} else {
		got.Start = req.Start
	}
	if want.End != extent.EOF {
		got.End = want.End &^ (a - 1)
	}
	return extent.Extent{Start: min(got.Start, req.Start), End: max(got.End, req.End)}
}
