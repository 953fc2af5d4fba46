package boltdev

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/store"
)

// counts is a table of numbers that deltas add to.
type counts struct{}

func (counts) Combine(dst, a, b []byte) []byte {
	return binary.BigEndian.AppendUint64(dst, binary.BigEndian.Uint64(a)+binary.BigEndian.Uint64(b))
}

func (c counts) Apply(dst, base, delta []byte) []byte {
	if base == nil {
		return append(dst, delta...)
	}
	return c.Combine(dst, base, delta)
}

// TestSlowReaderAppliesDeltasOnce: a reader that has found its layers and goes to the database only after they were
// committed must not put their deltas on what has them already; with one more txg above, and with every mix of commits.
func TestSlowReaderAppliesDeltasOnce(t *testing.T) {
	dir, err := os.MkdirTemp("", "boltdev")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	d, err := Open(Options{Dir: dir, Specs: []store.Spec{{Name: "counts", Merger: counts{}}}, Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	e := env.New()
	one := binary.BigEndian.AppendUint64(nil, 1)
	total := uint64(0)
	add := func() {
		total++
		tx := d.Begin(e)
		tx.Delta(0, []byte("k"), one)
		if _, err := d.Publish(tx); err != nil {
			t.Fatal(err)
		}
	}
	commit := func() {
		if err := d.WaitCommitted(t.Context(), d.Last()); err != nil {
			t.Fatal(err)
		}
	}
	for mask := range 16 {
		// Before the reader: some deltas, committed or not. After it has its snapshot: more, committed or not.
		for i := range 2 {
			if add(); mask>>i&1 == 1 {
				commit()
			}
		}
		low := total
		in := snapshot{d.view.Load(), store.Transno(d.last.Load())}
		for i := 2; i < 4; i++ {
			if add(); mask>>i&1 == 1 {
				commit()
			}
		}
		v, err := d.getIn(e, 0, []byte("k"), in)
		if err != nil {
			t.Fatal(err)
		}
		if got := binary.BigEndian.Uint64(v); got < low || got > total {
			t.Errorf("commits %04b: get %d, want %d to %d", mask, got, low, total)
		}
		n := 0
		err = d.scanIn(e, 0, span{}, func(_, v []byte) bool {
			n++
			if got := binary.BigEndian.Uint64(v); got < low || got > total {
				t.Errorf("commits %04b: scan %d, want %d to %d", mask, got, low, total)
			}
			return true
		}, in)
		if err != nil || n != 1 {
			t.Fatal(n, err)
		}
	}
}
