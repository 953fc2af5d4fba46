package target

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/strakefs/strake/fs/stats"
)

// TestExportTable: against a map, while it grows and shrinks; chains stay short and its figures agree.
func TestExportTable(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	target := &Target{}
	table, shadow := &target.exports, map[[16]byte]*Export{}
	all := func() (list []*Export) {
		for x := range table.all() {
			list = append(list, x)
		}
		return list
	}
	step := func(grow bool) {
		var uuid [16]byte
		binary.LittleEndian.PutUint64(uuid[r.IntN(2)*8:], r.Uint64N(5000)) // in order or random, neither half may matter
		x := table.get(uuid)
		if x != shadow[uuid] {
			t.Fatalf("%x: %p, want %p", uuid, x, shadow[uuid])
		}
		switch {
		case x == nil && grow:
			x = &Export{UUID: uuid}
			table.add(x)
			shadow[uuid] = x
		case x != nil && !grow:
			table.remove(x)
			table.remove(x) // once more does nothing
			delete(shadow, uuid)
		}
	}
	check := func() (s stats.TableStats) {
		target.exportsTable(&s)
		sum := int64(0)
		for _, n := range s.Chains {
			sum += n
		}
		if list := all(); len(list) != len(shadow) || s.Entries != int64(len(shadow)) || sum != s.Buckets || s.Chains[0] != s.Empty {
			t.Fatalf("%d exports of %d, figures %+v", len(list), len(shadow), s)
		}
		return s
	}
	for range 20000 {
		step(r.IntN(8) > 0)
	}
	full := check()
	if full.Entries < 4000 || full.Buckets < full.Entries || full.Grows < 8 || full.Longest > 12 {
		t.Errorf("full: %+v", full)
	}
	for range 60000 {
		step(false)
	}
	for _, x := range all() {
		table.remove(x)
	}
	clear(shadow)
	if s := check(); s.Buckets != exportBuckets || s.Shrinks != s.Grows || s.Longest != 0 {
		t.Errorf("empty: %+v", s)
	}
}
