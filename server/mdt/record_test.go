package mdt

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"reflect"
	"testing"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
	"pgregory.net/rapid"
)

// TestSipHash checks the vectors of the reference implementation (key 00…0f, input 00, 00 01, …).
func TestSipHash(t *testing.T) {
	key := make([]byte, 16)
	for i := range key {
		key[i] = byte(i)
	}
	in := make([]byte, 64)
	for i := range in {
		in[i] = byte(i)
	}
	for n, want := range map[int]string{
		0: "310e0edd47db6f72", 1: "fd67dc93c539f874", 7: "37d1018bf50002ab", 8: "6224939a79f5f593", 15: "e545be4961ca29a1", 63: "724506eb4c328a95",
	} {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], hashKeyOf(key).sum(in[:n]))
		if got := hex.EncodeToString(b[:]); got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}
}

func genInode(t *rapid.T) inode {
	tm := func(s string) attr.Time {
		return attr.Time{Sec: rapid.Int64().Draw(t, s), Nsec: rapid.Uint32Range(0, 999999999).Draw(t, s+"n")}
	}
	u := func(s string) uint32 { return rapid.Uint32().Draw(t, s) }
	n := inode{flags: uint8(rapid.IntRange(0, 15).Draw(t, "flags") << 1)}
	n.FID = fid.FID{Seq: fid.SeqFirst, OID: 7}
	n.Mode = attr.TypeFile | u("mode")&0o7777
	n.UID, n.GID, n.ProjID, n.Nlink, n.Rdev = u("uid"), u("gid"), u("proj"), u("nlink"), u("rdev")
	n.Flags, n.SetattrGen = attr.Flags(u("fl")), u("gen")
	n.Size, n.Blocks = rapid.Uint64().Draw(t, "size"), rapid.Uint64().Draw(t, "blocks")
	n.Atime, n.Mtime, n.Ctime, n.Btime = tm("a"), tm("m"), tm("c"), tm("b")
	n.SizeValid = rapid.Bool().Draw(t, "valid")
	n.own = stamp{store.Transno(rapid.Uint64().Draw(t, "own")), rapid.Uint64().Draw(t, "client")}
	n.content = stamp{store.Transno(rapid.Uint64().Draw(t, "cont")), rapid.Uint64().Draw(t, "cclient")}
	for i := range n.sec {
		if b := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "sec"); len(b) > 0 {
			n.sec[i] = b
		}
	}
	n.HasACL = len(n.sec[secACL]) > 0
	return n
}

func TestInodeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := genInode(t)
		b := n.appendTo(nil)
		if len(b) > n.encodedSize() {
			t.Fatalf("%d bytes, at most %d expected", len(b), n.encodedSize())
		}
		var m inode
		if err := m.decode(n.FID, b); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(n, m) {
			t.Fatalf("\n%+v\n%+v", n, m)
		}
	})
}

// TestInodeGolden holds the format: it changes with recordVersion only.
func TestInodeGolden(t *testing.T) {
	n := inode{flags: recWritten, own: stamp{1, 2}, content: stamp{3, 4}}
	n.Mode, n.UID, n.GID, n.ProjID, n.Nlink, n.Rdev = attr.TypeFile|0o644, 5, 6, 7, 8, 9
	n.Flags, n.SetattrGen, n.Size, n.Blocks, n.SizeValid = attr.FlagAppend, 10, 11, 12, true
	n.Atime, n.Mtime, n.Ctime, n.Btime = attr.Time{Sec: 13, Nsec: 14}, attr.Time{Sec: 15, Nsec: 16}, attr.Time{Sec: 17, Nsec: 18}, attr.Time{Sec: -1, Nsec: 20}
	n.sec[secLayout], n.sec[secXattrs] = []byte("ab"), []byte("c")
	got := hex.EncodeToString(n.appendTo(nil))
	full := "011181a4" + "00000005" + "00000006" + "00000007" + "00000008" + "00000009" + "00000020" + "0000000a" +
		"000000000000000b" + "000000000000000c" + "000000000000000d0000000e" + "000000000000000f00000010" +
		"000000000000001100000012" + "ffffffffffffffff00000014" +
		"0000000000000001" + "0000000000000002" + "0000000000000003" + "0000000000000004" + "00026162" + "060163"
	if got != full {
		t.Errorf("got  %s\nwant %s", got, full)
	}
	d := dirent{kind: 8, child: fid.FID{Seq: 1, OID: 2}, stamp: stamp{3, 4}, name: []byte("n")}
	if got := hex.EncodeToString(d.appendTo(nil)); got != "0108"+"00000000000000010000000200000000"+"0000000000000003"+"0000000000000004"+"6e" {
		t.Errorf("dirent %s", got)
	}
}

// TestMergersAreAssociative: Apply(Apply(v, a), b) is Apply(v, Combine(a, b)), and Combine is associative.
func TestMergersAreAssociative(t *testing.T) {
	delta := func(t *rapid.T) []byte {
		b := make([]byte, deltaSize)
		putDelta(b, rapid.Int32Range(-2, 2).Draw(t, "nlink"), rapid.Int64Range(-2, 2).Draw(t, "entries"),
			attr.Time{Sec: rapid.Int64Range(0, 9).Draw(t, "t")}, stamp{client: rapid.Uint64Range(0, 3).Draw(t, "client")})
		return b
	}
	useOf := func(t *rapid.T) []byte {
		var u use
		for range rapid.IntRange(1, 3).Draw(t, "ids") {
			u.add(rapid.Uint32Range(1, 3*useWindow).Draw(t, "id"))
		}
		return u.appendTo(nil)
	}
	base := inode{}
	base.Mode = attr.TypeDir
	base.content = stamp{8, 2}
	folder := base.appendTo(nil)
	seq := append(make([]byte, seqAtUse), make([]byte, useMin)...)
	check := func(t *rapid.T, m store.Merger, v, a, b, c []byte) {
		if l, r := m.Combine(nil, m.Combine(nil, a, b), c), m.Combine(nil, a, m.Combine(nil, b, c)); !bytes.Equal(l, r) {
			t.Fatalf("%T: (ab)c %x, a(bc) %x", m, l, r)
		}
		if l, r := m.Apply(nil, m.Apply(nil, v, a), b), m.Apply(nil, v, m.Combine(nil, a, b)); !bytes.Equal(l, r) {
			t.Fatalf("%T: one by one %x, at once %x", m, l, r)
		}
		if got := m.Apply(nil, nil, a); len(got) != 0 {
			t.Fatalf("%T: a delta of an absent key gives %x", m, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		// Content stamps are given in the order of publishing, so equal ones do not meet.
		a, b, c := delta(t), delta(t), delta(t)
		for i, d := range [][]byte{a, b, c} {
			binary.BigEndian.PutUint64(d[deltaAtContent:], uint64(10+i))
			binary.BigEndian.PutUint64(d[deltaAtHorizon:], rapid.Uint64Range(7, uint64(9+i)).Draw(t, "on disk"))
		}
		check(t, inodeMerger{}, folder, a, b, c)
		check(t, useMerger{}, seq, useOf(t), useOf(t), useOf(t))
	})
}

// TestUseRefusesUsedIDs: an id can be used once, out of order within the window.
func TestUseRefusesUsedIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var u use
		used := map[uint32]bool{}
		for range 200 {
			id := rapid.Uint32Range(1, 3*useWindow).Draw(t, "id")
			want := used[id] || u.high >= useWindow && id <= u.high-useWindow
			if u.has(id) != want {
				t.Fatalf("id %d with high %d: has %v, want %v", id, u.high, u.has(id), want)
			}
			if !want {
				u.add(id)
				used[id] = true
			}
			var v use
			if b := u.appendTo(nil); len(b) > useMax {
				t.Fatalf("%d bytes", len(b))
			} else if v.decode(b); v != u {
				t.Fatalf("%v became %v", u, v)
			}
		}
	})
}

func FuzzInode(f *testing.F) {
	n := inode{}
	n.sec[secLinks] = appendLink(nil, parentLink{fid.Root, []byte("name")})
	n.sec[secXattrs] = appendXattr(nil, &xattr{name: []byte("user.x"), size: 1, value: []byte("v")})
	f.Add(n.appendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var n inode
		if n.decode(fid.Root, b) != nil {
			return
		}
		if b2 := n.appendTo(nil); !bytes.Equal(b2, b) && n.IsFile() {
			// Lengths may be encoded longer than they need; what was read is the same.
			var m inode
			if err := m.decode(fid.Root, b2); err != nil || !reflect.DeepEqual(n, m) {
				t.Fatalf("%v\n%+v\n%+v", err, n, m)
			}
		}
		for rest, ok := n.sec[secLinks], true; ok; {
			var err error
			if _, rest, ok, err = nextLink(rest); err != nil {
				break
			}
		}
		if _, err := tallyXattrs(n.sec[secXattrs]); err == nil {
			_, _, _, _ = findXattr(n.sec[secXattrs], []byte("user.x"))
		}
	})
}

func FuzzDirent(f *testing.F) {
	d := dirent{kind: 8, child: fid.Root, name: []byte("name")}
	f.Add(d.appendTo(nil))
	key := appendDirentKey(nil, fid.Root, 128)
	f.Fuzz(func(t *testing.T, b []byte) {
		var d dirent
		if d.decode(key, b) == nil && !bytes.Equal(d.appendTo(nil), b) {
			t.Fatalf("%x is %+v", b, d)
		}
	})
}

// FuzzACL: what passes the checks can be worked with, and its mode survives chmod and inheritance.
func FuzzACL(f *testing.F) {
	for _, a := range testACLs() {
		f.Add(a, uint32(0o754))
	}
	f.Fuzz(func(t *testing.T, b []byte, mode uint32) {
		a, err := parseACL(b)
		if err != nil || a == nil || a.check() != nil {
			return
		}
		mode &= 0o777
		c := attr.Cred{UID: 1000, GID: 1000, Groups: []uint32{1, 2}}
		a.allows(&c, 1000, 5, 7)
		a = bytes.Clone(a)
		a.chmod(mode)
		if got, _ := a.mode(); got != mode {
			t.Fatalf("mode %o after chmod %o of %x", got, mode, a)
		}
		got, _ := a.inherit(0o700)
		if got&^0o700 != 0 || a.check() != nil {
			t.Fatalf("inherited %o, %x", got, a)
		}
	})
}

func TestLinks(t *testing.T) {
	o := &op{e: env.New()}
	n := &inode{}
	for i := range 100 {
		o.addLink(n, parentLink{fid.FID{Seq: fid.SeqFirst, OID: uint32(i + 1)}, bytes.Repeat([]byte{byte('a' + i%26)}, 100)})
	}
	if len(n.sec[secLinks]) > linksMax {
		t.Fatalf("%d bytes of links", len(n.sec[secLinks]))
	}
	for i := range 100 {
		if err := o.dropLink(n, parentLink{fid.FID{Seq: fid.SeqFirst, OID: uint32(i + 1)}, bytes.Repeat([]byte{byte('a' + i%26)}, 100)}); err != nil {
			t.Fatal(err)
		}
	}
	if len(n.sec[secLinks]) != 0 {
		t.Fatalf("%d bytes left", len(n.sec[secLinks]))
	}
}
