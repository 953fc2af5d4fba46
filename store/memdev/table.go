package memdev

import (
	"maps"
	"slices"
	"sort"

	"github.com/strakefs/strake/store"
)

// runSize bounds a run of sorted keys: an insertion moves at most this many.
const runSize = 512

// table is an ordered map. Values in it are never changed.
type table struct {
	values map[string][]byte
	runs   [][]string // sorted, each sorted and not empty
}

func newTable() *table { return &table{values: map[string][]byte{}} }

// clone returns a table with the same content; values are shared.
func (t *table) clone() *table {
	c := &table{values: maps.Clone(t.values), runs: make([][]string, len(t.runs))}
	for i, r := range t.runs {
		c.runs[i] = slices.Clone(r)
	}
	return c
}

// run returns the index of the run that holds key or would.
func (t *table) run(key string) int {
	i := sort.Search(len(t.runs), func(i int) bool { return t.runs[i][0] > key })
	return max(i-1, 0)
}

func (t *table) put(key string, value []byte) {
	_, had := t.values[key]
	t.values[key] = value
	if had {
		return
	}
	if len(t.runs) == 0 {
		t.runs = [][]string{{key}}
		return
	}
	i := t.run(key)
	at, _ := slices.BinarySearch(t.runs[i], key)
	r := slices.Insert(t.runs[i], at, key)
	t.runs[i] = r
	if len(r) > runSize {
		t.runs[i] = slices.Clone(r[:runSize/2])
		t.runs = slices.Insert(t.runs, i+1, slices.Clone(r[runSize/2:]))
	}
}

func (t *table) delete(key string) {
	if _, had := t.values[key]; !had {
		return
	}
	delete(t.values, key)
	i := t.run(key)
	at, _ := slices.BinarySearch(t.runs[i], key)
	t.runs[i] = slices.Delete(t.runs[i], at, at+1)
	if len(t.runs[i]) == 0 {
		t.runs = slices.Delete(t.runs, i, i+1)
	}
}

// page appends to keys up to n keys from the first one at or after from that are below to; hasTo false is no end.
func (t *table) page(keys []string, n int, from, to string, hasTo bool) []string {
	if len(t.runs) == 0 {
		return keys
	}
	i := t.run(from)
	at, _ := slices.BinarySearch(t.runs[i], from)
	for ; i < len(t.runs); i, at = i+1, 0 {
		for _, k := range t.runs[i][at:] {
			if len(keys) == n || hasTo && k >= to {
				return keys
			}
			keys = append(keys, k)
		}
	}
	return keys
}

// apply does one step on t. What it keeps of the step is the caller's to have copied.
func (t *table) apply(s *store.Step, m store.Merger) {
	key := string(s.Key)
	switch s.Kind {
	case store.Put:
		t.put(key, s.Value)
	case store.Delete:
		t.delete(key)
	case store.Delta:
		if v := m.Apply(nil, t.values[key], s.Value); len(v) > 0 {
			t.put(key, v)
		} else {
			t.delete(key)
		}
	}
}
