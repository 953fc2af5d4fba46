package osp

import (
	"errors"
	"testing"

	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/status"
	"pgregory.net/rapid"
)

func osts(n int, avail uint64) []Candidate {
	c := make([]Candidate, n)
	for i := range c {
		c[i] = Candidate{Index: layout.OSTIndex(i), Up: true, Ready: 10, AvailBytes: avail}
	}
	return c
}

func TestChoose(t *testing.T) {
	any := layout.OffsetAny
	for _, c := range []struct {
		name   string
		change func([]Candidate)
		wish   Wish
		want   []layout.OSTIndex
		kind   error
	}{
		{"one", nil, Wish{Offset: any}, []layout.OSTIndex{0}, nil},
		{"turn", nil, Wish{Count: 2, Offset: any, Turn: 3}, []layout.OSTIndex{3, 0}, nil},
		{"all", nil, Wish{Count: layout.CountAll, Offset: any}, []layout.OSTIndex{0, 1, 2, 3}, nil},
		{"more than there are", nil, Wish{Count: 9, Offset: any}, []layout.OSTIndex{0, 1, 2, 3}, nil},
		{"three of four do", func(c []Candidate) { c[1].Up = false }, Wish{Count: 4, Offset: any}, []layout.OSTIndex{0, 2, 3}, nil},
		{"two of four do not", func(c []Candidate) { c[1].Up, c[2].Full = false, true }, Wish{Count: 4, Offset: any}, nil, status.NoSpace},
		{"all that are usable", func(c []Candidate) { c[1].Up, c[2].Full = false, true }, Wish{Count: layout.CountAll, Offset: any}, []layout.OSTIndex{0, 3}, nil},
		{"full is skipped", func(c []Candidate) { c[0].Full = true }, Wish{Offset: any}, []layout.OSTIndex{1}, nil},
		{"deactivated is skipped", func(c []Candidate) { c[0].Deactivated = true }, Wish{Offset: any}, []layout.OSTIndex{1}, nil},
		{"offset", nil, Wish{Count: 3, Offset: 2}, []layout.OSTIndex{2, 3, 0}, nil},
		{"offset on a full one", func(c []Candidate) { c[2].Full = true }, Wish{Offset: 2}, nil, status.NoSpace},
		{"offset that is not there", nil, Wish{Offset: 7}, nil, status.Invalid},
		{"wanted", nil, Wish{Count: 1, Wanted: []layout.OSTIndex{3, 1}}, []layout.OSTIndex{3, 1}, nil},
		{"wanted twice", nil, Wish{Wanted: []layout.OSTIndex{3, 3}}, nil, status.Invalid},
		{"wanted not there", nil, Wish{Wanted: []layout.OSTIndex{9}}, nil, status.Invalid},
		{"wanted full", func(c []Candidate) { c[3].Full = true }, Wish{Wanted: []layout.OSTIndex{3}}, nil, status.NoSpace},
		{"not ready", func(c []Candidate) { c[1].Ready = 0 }, Wish{Count: 4, Offset: any}, nil, errNotReady},
		{"another is ready", func(c []Candidate) { c[0].Ready = 0 }, Wish{Offset: any}, []layout.OSTIndex{1}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			cands := osts(4, 1<<40)
			if c.change != nil {
				c.change(cands)
			}
			got, err := Choose(nil, cands, c.wish)
			if !errors.Is(err, c.kind) || len(got) != len(c.want) {
				t.Fatalf("%v %v", got, err)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Fatalf("%v, want %v", got, c.want)
				}
			}
		})
	}
	if _, err := Choose(nil, nil, Wish{Offset: any}); !errors.Is(err, status.NoSpace) {
		t.Fatalf("without OSTs: %v", err)
	}
}

func TestChooseFollowsFreeSpaceWhenUneven(t *testing.T) {
	count := map[layout.OSTIndex]int{}
	for turn := range uint64(10000) {
		cands := osts(2, 100<<30)
		cands[1].AvailBytes = 900 << 30
		got, err := Choose(nil, cands, Wish{Offset: layout.OffsetAny, Turn: turn, Random: turn})
		if err != nil {
			t.Fatal(err)
		}
		count[got[0]]++
	}
	if count[1] < 8500 || count[0] < 500 {
		t.Fatalf("drawn %v, want about 1,000 and 9,000", count)
	}
}

func TestChooseProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cands := osts(rapid.IntRange(1, 12).Draw(t, "osts"), 0)
		usable := 0
		for i := range cands {
			c := &cands[i]
			c.Up, c.Full = rapid.Bool().Draw(t, "up"), rapid.IntRange(0, 3).Draw(t, "full") == 0
			c.AvailBytes = rapid.Uint64().Draw(t, "avail")
			if c.usable() {
				usable++
			}
		}
		w := Wish{
			Count:  rapid.SampledFrom([]uint32{0, 1, 2, 3, 7, 12, 2000, layout.CountAll}).Draw(t, "count"),
			Offset: layout.OffsetAny, Turn: rapid.Uint64().Draw(t, "turn"), Random: rapid.Uint64().Draw(t, "random"),
		}
		want := int(min(max(w.Count, 1), uint32(len(cands))))
		got, err := Choose(nil, append([]Candidate(nil), cands...), w)
		if err != nil {
			if !errors.Is(err, status.NoSpace) || (w.Count != layout.CountAll && 4*usable >= 3*want && usable > 0) {
				t.Fatalf("%v with %d usable of %d wanted", err, usable, want)
			}
			return
		}
		seen := map[layout.OSTIndex]bool{}
		for _, i := range got {
			if seen[i] || !cands[i].usable() {
				t.Fatalf("%v", got)
			}
			seen[i] = true
		}
		if len(got) > want && w.Count != layout.CountAll || len(got) == 0 {
			t.Fatalf("%d stripes, wanted %d", len(got), want)
		}
	})
}

func TestMergersCompose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) []byte { return rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, label) }
		a, b := draw("a"), draw("b")
		base := draw("base")
		record := append(make([]byte, stampAt), draw("stamp")...)
		for _, m := range []struct {
			merger interface {
				Combine(dst, a, b []byte) []byte
				Apply(dst, base, delta []byte) []byte
			}
			base []byte
		}{{maxMerger{}, base}, {maxMerger{}, nil}, {forgetMerger{}, record}, {forgetMerger{}, nil}} {
			one := m.merger.Apply(nil, m.base, a)
			if len(one) == 0 {
				one = nil
			}
			steps := m.merger.Apply(nil, one, b)
			joined := m.merger.Apply(nil, m.base, m.merger.Combine(nil, a, b))
			if string(steps) != string(joined) {
				t.Fatalf("%T: %x then %x on %x gives %x, combined %x", m.merger, a, b, m.base, steps, joined)
			}
		}
	})
}
