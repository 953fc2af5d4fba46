package lov_test

import (
	"testing"
	"time"

	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/osc"
)

// hot are the calls whose lock is held, on a file of one stripe.
func hot(tb testing.TB) map[string]func() error {
	s := newSite(tb, siteOptions{osts: 1})
	f := s.join(osc.Options{MaxAge: time.Hour}).open(7, 1)
	b := make([]byte, 4096)
	data := [][]byte{b}
	mtime := now()
	h, r, d := new(lov.How), &lov.How{Paged: true}, &lov.How{Direct: true}
	mustWrite(tb, f, make([]byte, 64<<10), 0, false)
	return map[string]func() error{
		"cached write":         func() error { _, err := f.Write(bg, data, 4096, mtime, h); return err },
		"read of dirty data":   func() error { _, err := f.Read(bg, b, 4096, r); return err },
		"glimpse under a lock": func() error { _, err := f.Glimpse(bg); return err },
		"append": func() error {
			_, _, err := f.Append(bg, data[:0], mtime, false)
			return err
		},
		"direct read of dirty data": func() error { _, err := f.Read(bg, b, 0, d); return err },
	}
}

func TestHotCallsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for name, fn := range hot(t) {
		if err := fn(); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(300, func() { _ = fn() }); n >= 1 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkHot(b *testing.B) {
	for name, fn := range hot(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := fn(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
