package fid_test

import (
	"bytes"
	"testing"

	"github.com/strakefs/strake/fs/fid"
	"pgregory.net/rapid"
)

func TestRootIsInodeOne(t *testing.T) {
	if fid.Root.Ino() != 1 || fid.FromIno(1) != fid.Root {
		t.Fatalf("root ino %d, back %v", fid.Root.Ino(), fid.FromIno(1))
	}
}

func genFID(t *rapid.T, label string) fid.FID {
	return fid.FID{
		Seq: fid.SeqFirst + fid.Seq(rapid.Uint64Range(0, 1<<44).Draw(t, label+" seq")),
		OID: rapid.Uint32Range(1, fid.Width-1).Draw(t, label+" oid"),
	}
}

func TestInoIsOneToOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := genFID(t, "f")
		if !f.IsFile() {
			t.Fatalf("%v is no file", f)
		}
		if g := fid.FromIno(f.Ino()); g != f {
			t.Fatalf("%v -> %d -> %v", f, f.Ino(), g)
		}
	})
}

func TestKeyAndTextRoundTripAndKeepOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := genFID(t, "a"), genFID(t, "b")
		ka, kb := a.AppendKey(nil), b.AppendKey(nil)
		if bytes.Compare(ka, kb) != a.Compare(b) {
			t.Fatalf("order of %v %v", a, b)
		}
		if g, err := fid.FromKey(ka); err != nil || g != a {
			t.Fatalf("key of %v: %v %v", a, g, err)
		}
		if g, err := fid.Parse(a.String()); err != nil || g != a {
			t.Fatalf("text of %v: %v %v", a, g, err)
		}
	})
}

func TestParseRefuses(t *testing.T) {
	for _, s := range []string{"", "[", "[1:2]", "1:2:3:4", "[1:2:3", "x:1:1", "0x1:0x100000000:0x0", "[-1:0:0]"} {
		if f, err := fid.Parse(s); err == nil {
			t.Errorf("%q gave %v", s, f)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("[0x200000401:0x5:0x0]")
	f.Fuzz(func(t *testing.T, s string) {
		if a, err := fid.Parse(s); err == nil {
			if b, err := fid.Parse(a.String()); err != nil || a != b {
				t.Fatalf("%q: %v %v %v", s, a, b, err)
			}
		}
	})
}
