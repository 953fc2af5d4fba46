package ost

import (
	"encoding/hex"
	"testing"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"pgregory.net/rapid"
)

func TestRecordGolden(t *testing.T) {
	r := record{
		charge: charge{owned: true, uid: 1, gid: 2, project: 3, blocks: 9},
		owner:  fid.FID{Seq: 0x200000401, OID: 5}, stripe: 6, version: 7, size: 8, upTo: 15,
		mtime: attr.Time{Sec: 10, Nsec: 11}, atime: attr.Time{Sec: 12, Nsec: 13}, ctime: attr.Time{Sec: -1, Nsec: 14},
	}
	b := make([]byte, recordSize)
	r.put(b)
	const want = "02010000" + "00000001" + "00000002" + "00000003" + "0000000200000401" + "00000005" + "00000000" +
		"00000006" + "00000000" + "0000000000000007" + "0000000000000008" + "0000000000000009" + "000000000000000a" +
		"000000000000000c" + "ffffffffffffffff" + "0000000b" + "0000000d" + "0000000e" + "00000000" + "0000000000000000" +
		"000000000000000f"
	if got := hex.EncodeToString(b); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	var back record
	if err := back.parse(b); err != nil || back != r {
		t.Fatalf("%+v %v", back, err)
	}
	b[0], r.upTo = 1, 0
	if err := back.parse(b[:recordSize1]); err != nil || back != r {
		t.Fatalf("version 1: %+v %v", back, err)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(append([]byte{recordVersion}, make([]byte, recordSize)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again record
		if r.parse(b) != nil {
			return
		}
		c := make([]byte, recordSize)
		r.put(c)
		if err := again.parse(c); err != nil || again != r {
			t.Fatalf("%+v, again %+v: %v", r, again, err)
		}
	})
}

func TestSumMergerComposes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) []byte { return rapid.SliceOfN(rapid.Byte(), usageSize, usageSize).Draw(t, label) }
		var m sumMerger
		a, b := draw("a"), draw("b")
		base := draw("base")
		if rapid.Bool().Draw(t, "absent") {
			base = nil
		}
		one := m.Apply(nil, base, a)
		if len(one) == 0 {
			one = nil
		}
		if steps, joined := m.Apply(nil, one, b), m.Apply(nil, base, m.Combine(nil, a, b)); string(steps) != string(joined) {
			t.Fatalf("%x, combined %x", steps, joined)
		}
	})
}
