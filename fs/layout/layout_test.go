package layout_test

import (
	"reflect"
	"testing"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"pgregory.net/rapid"
)

func striped(count int, size uint64) layout.Layout {
	l := layout.Plain(uint32(count), size)
	c := &l.Components[0]
	c.Flags |= layout.FlagInit
	for i := range count {
		c.Stripes = append(c.Stripes, layout.Stripe{OST: layout.OSTIndex(i), Object: fid.ObjectID{ID: uint64(100 + i)}})
	}
	return l
}

func genStriped(t *rapid.T) layout.Layout {
	return striped(rapid.IntRange(1, 9).Draw(t, "count"), uint64(rapid.IntRange(1, 8).Draw(t, "size"))*layout.MinStripeSize)
}

func TestLocateAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := genStriped(t)
		c := &l.Components[0]
		off := rapid.Uint64Range(0, 1<<50).Draw(t, "off")
		s, obj := c.Locate(off)
		if back := c.FileOffset(s, obj); back != off {
			t.Fatalf("%d -> stripe %d offset %d -> %d", off, s, obj, back)
		}
	})
}

func TestChunksCoverEveryByteOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := genStriped(t)
		off := rapid.Uint64Range(0, 1<<40).Draw(t, "off")
		n := rapid.Uint64Range(0, 4<<20).Draw(t, "n")
		pos := off
		got := l.Chunks(off, n, func(c layout.Chunk) bool {
			if c.FileOffset != pos || c.Len == 0 {
				t.Fatalf("chunk %+v at %d", c, pos)
			}
			for _, at := range []uint64{0, c.Len - 1} {
				s, obj := c.Component.Locate(c.FileOffset + at)
				if s != c.Stripe || obj != c.ObjectOffset+at {
					t.Fatalf("byte %d of chunk %+v is on stripe %d at %d", at, c, s, obj)
				}
			}
			pos += c.Len
			return true
		})
		if got != n || pos != off+n {
			t.Fatalf("covered %d of %d", got, n)
		}
	})
}

func TestSizes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := genStriped(t)
		c := &l.Components[0]
		size := rapid.Uint64Range(0, 1<<45).Draw(t, "size")
		var file, sum uint64
		for s := range c.Stripes {
			o := c.ObjectSize(layout.StripeIndex(s), size)
			file = max(file, c.FileSize(layout.StripeIndex(s), o))
			sum += o
		}
		if file != size || sum != size {
			t.Fatalf("file of %d bytes: stripes tell %d, hold %d", size, file, sum)
		}
	})
}

func TestEncodeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := genStriped(t)
		l.Gen = rapid.Uint32().Draw(t, "gen")
		l.Components[0].Pool = rapid.StringMatching(`[a-z]{0,15}`).Draw(t, "pool")
		l.Components[0].Wanted = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) layout.OSTIndex {
			return layout.OSTIndex(rapid.Uint32().Draw(t, "o"))
		}), 1, 5).Draw(t, "wanted")
		b := l.Append(nil)
		var m layout.Layout
		if err := m.Decode(b); err != nil || !reflect.DeepEqual(l, m) {
			t.Fatalf("%v\n%+v\n%+v", err, l, m)
		}
		cut := rapid.IntRange(1, len(b)-1).Draw(t, "cut")
		if err := m.Decode(b[:cut]); err == nil {
			t.Fatalf("decoded %d of %d bytes", cut, len(b))
		}
	})
}

func TestObjectExtentHoldsTheRange(t *testing.T) {
	l := striped(2, 64<<10)
	c := &l.Components[0]
	if e := c.ObjectExtent(1, extent.Extent{Start: 0, End: 64 << 10}); !e.Empty() {
		t.Fatalf("first stripe's bytes touch the second: %+v", e)
	}
	if e := c.ObjectExtent(1, extent.Extent{Start: 70 << 10, End: extent.EOF}); e != (extent.Extent{Start: 6 << 10, End: extent.EOF}) {
		t.Fatalf("%+v", e)
	}
}

func FuzzDecode(f *testing.F) {
	l := striped(3, 1<<20)
	f.Add(l.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m layout.Layout
		if m.Decode(b) != nil {
			return
		}
		var n layout.Layout
		if err := n.Decode(m.Append(nil)); err != nil {
			t.Fatalf("decoded, but not after encoding again: %v", err)
		}
	})
}
