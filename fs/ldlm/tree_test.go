package ldlm

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/strakefs/strake/fs/extent"
)

// TestTree compares the interval tree with a plain slice.
func TestTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tr tree
		var all []*lock
		seq := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				seq++
				l := &lock{ext: drawExtent(t), seq: seq}
				tr.insert(l)
				all = append(all, l)
			},
			"remove": func(t *rapid.T) {
				if len(all) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(all)-1).Draw(t, "i")
				tr.remove(all[i])
				all[i] = all[len(all)-1]
				all = all[:len(all)-1]
			},
			"query": func(t *rapid.T) { queryTree(t, &tr, all) },
			"": func(t *rapid.T) {
				if err := tr.check(len(all)); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

func drawExtent(t *rapid.T) extent.Extent {
	start := rapid.Uint64Range(0, 60).Draw(t, "start")
	if rapid.IntRange(0, 7).Draw(t, "eof") == 0 {
		return extent.Extent{Start: start, End: extent.EOF}
	}
	return extent.Extent{Start: start, End: start + rapid.Uint64Range(1, 20).Draw(t, "len")}
}

func queryTree(t *rapid.T, tr *tree, all []*lock) {
	e := drawExtent(t)
	overlaps, contains := map[*lock]bool{}, false
	var first *lock
	for _, l := range all {
		if l.ext.Overlaps(e) {
			overlaps[l] = true
		}
		contains = contains || l.ext.Contains(e)
		if l.ext.Start >= e.Start && (first == nil || l.ext.Start < first.ext.Start) {
			first = l
		}
	}
	if got := tr.anyOverlap(e); (got != nil) != (len(overlaps) > 0) || got != nil && !overlaps[got] {
		t.Fatalf("anyOverlap(%v) = %v, %d overlap", e, got, len(overlaps))
	}
	n := 0
	var last *lock
	tr.overlapping(e, func(l *lock) bool {
		if n++; !overlaps[l] || last != nil && !before(last, l) {
			t.Fatalf("overlapping(%v) gave %v", e, l.ext)
		}
		last = l
		return true
	})
	if n != len(overlaps) {
		t.Fatalf("overlapping(%v) gave %d, want %d", e, n, len(overlaps))
	}
	if got := tr.firstFrom(e.Start); (got == nil) != (first == nil) || got != nil && got.ext.Start != first.ext.Start {
		t.Fatalf("firstFrom(%d)", e.Start)
	}
	got := tr.containing(e, func(*lock) bool { return true })
	if (got != nil) != contains || got != nil && !got.ext.Contains(e) {
		t.Fatalf("containing(%v) = %v, want one: %v", e, got, contains)
	}
}

// TestTreeEqualExtents holds that equal extents live beside each other.
func TestTreeEqualExtents(t *testing.T) {
	var tr tree
	locks := make([]lock, 100)
	for i := range locks {
		locks[i] = lock{ext: extent.Extent{Start: 5, End: 9}, seq: uint64(i)}
		tr.insert(&locks[i])
	}
	for i := range locks {
		tr.remove(&locks[(i*37)%100])
		if err := tr.check(99 - i); err != nil {
			t.Fatal(err)
		}
	}
}
