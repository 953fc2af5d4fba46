package boltdev

import (
	"hash/maphash"
	"maps"
	"slices"
	"testing"

	"github.com/strakefs/strake/store"
	"pgregory.net/rapid"
)

func TestTableLayerIsAnOrderedMap(t *testing.T) {
	seed := maphash.MakeSeed()
	rapid.Check(t, func(r *rapid.T) {
		var a arena
		var tl tableLayer
		want := map[string]*version{}
		keys := rapid.SliceOf(rapid.StringMatching(`[a-d]{1,5}`)).Draw(r, "keys")
		if rapid.Bool().Draw(r, "sorted") {
			slices.Sort(keys)
		}
		for i, k := range keys {
			h := maphash.String(seed, k)
			if e := tl.find(h, []byte(k)); (e != nil) != (want[k] != nil) {
				r.Fatalf("find %q: %v", k, e)
			} else if e != nil {
				continue
			}
			v := a.version()
			v.n = store.Transno(i + 1)
			tl.insert(&a, h, []byte(k), v)
			want[k] = v
		}
		sorted := slices.Sorted(maps.Keys(want))
		var got []string
		for e := tl.seek(nil); e != nil; e = e.next[0].Load() {
			got = append(got, string(e.key))
			if f := tl.find(e.hash, e.key); f != e || e.at(1<<60) != want[string(e.key)] {
				r.Fatalf("%q is not what was put", e.key)
			}
		}
		if !slices.Equal(got, sorted) {
			r.Fatalf("order: %q, want %q", got, sorted)
		}
		from := rapid.StringMatching(`[a-e]{0,4}`).Draw(r, "from")
		at, _ := slices.BinarySearch(sorted, from)
		if e := tl.seek([]byte(from)); (e == nil) != (at == len(sorted)) || e != nil && string(e.key) != sorted[at] {
			r.Fatalf("seek %q", from)
		}
		checkLevels(r, &tl)
	})
}

// checkLevels checks that each level holds the entries that are high enough, in order.
func checkLevels(r *rapid.T, tl *tableLayer) {
	for l := range maxHeight {
		var want, got []*entry
		for e := tl.head[0].Load(); e != nil; e = e.next[0].Load() {
			if len(e.next) > l {
				want = append(want, e)
			}
		}
		for e := tl.head[l].Load(); e != nil; e = e.next[l].Load() {
			got = append(got, e)
		}
		if !slices.Equal(got, want) {
			r.Fatalf("level %d: %d entries, want %d", l, len(got), len(want))
		}
	}
}
