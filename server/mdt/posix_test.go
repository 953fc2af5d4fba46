package mdt

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

var user = who{uid: 1000, gid: 1000}

func TestTmpfile(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	tmp := func(flags uint32) *wirepb.EntryReply {
		r, err := cl.make(root, fid.Root, "", reg|0o600, withOpen(flags|oRdwr), func(m *wirepb.CreateRequest) { m.Tmpfile = true })
		if err != nil || r.Attr.Nlink != 0 {
			t.Fatalf("%v %v", r, err)
		}
		return r
	}
	r := tmp(0)
	l, err := cl.link(root, fidOf(r.Attr), fid.Root, "named")
	if err != nil || l.Attr.Nlink != 1 {
		t.Fatalf("link: %v %v", l, err)
	}
	if err := cl.closeFile(fidOf(r.Attr), r.Handle, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.lookup(root, fid.Root, "named"); err != nil {
		t.Fatal(err)
	}
	r = tmp(oExcl)
	_, err = cl.link(root, fidOf(r.Attr), fid.Root, "excl")
	wantKind(t, "link of O_EXCL", err, status.NotExist)
	if err := cl.closeFile(fidOf(r.Attr), r.Handle, nil); err != nil {
		t.Fatal(err)
	}
	_, err = cl.getattr(fidOf(r.Attr))
	wantKind(t, "after close", err, status.Stale)
	// A file that lost its last name is no O_TMPFILE.
	r, _ = cl.make(root, fid.Root, "x", reg|0o600, withOpen(oRdwr))
	if _, err := cl.unlink(root, fid.Root, "x", false); err != nil {
		t.Fatal(err)
	}
	_, err = cl.link(root, fidOf(r.Attr), fid.Root, "again")
	wantKind(t, "link of an unlinked file", err, status.NotExist)
	checkDevice(t, c.dev)
}

// TestImmutableAndAppend: as Linux does on ext4.
func TestImmutableAndAppend(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	f := cl.must(fid.Root, "f", reg|0o666)
	d := cl.must(fid.Root, "d", dir|0o777)
	cl.must(d, "in", reg|0o666)
	flag := func(w who, f fid.FID, v attr.Flags) error {
		_, err := cl.setattr(w, f, attr.ValidFlags, &wirepb.Attr{Flags: uint32(v)}, 0)
		return err
	}
	chown := func(f fid.FID) error {
		_, err := cl.setattr(root, f, attr.ValidUID, &wirepb.Attr{Uid: 1000}, 0)
		return err
	}
	if err := chown(f); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "chattr +i by the owner", flag(user, f, attr.FlagImmutable), status.Perm)
	wantKind(t, "chattr +d by the owner", flag(user, f, attr.FlagNoDump), status.OK)
	wantKind(t, "chattr of another", flag(who{uid: 1001}, f, 0), status.Perm)
	wantKind(t, "an unknown flag", flag(root, f, 0x1), status.NotSupport)
	if err := flag(root, f, attr.FlagImmutable); err != nil {
		t.Fatal(err)
	}
	errOf := func(_ any, err error) error { return err }
	perm := map[string]error{
		"open for write": errOf(cl.open(root, f, oWronly)), "unlink": errOf(cl.unlink(root, fid.Root, "f", false)),
		"rename": errOf(cl.rename(root, fid.Root, "f", fid.Root, "g", 0)), "link": errOf(cl.link(root, f, fid.Root, "g")),
		"chmod": errOf(cl.setattr(root, f, attr.ValidMode, &wirepb.Attr{}, 0)), "chown": chown(f),
		"truncate": errOf(cl.setattr(root, f, attr.ValidSize, &wirepb.Attr{}, 0)),
		"utimes":   errOf(cl.setattr(root, f, attr.ValidAtimeNow|attr.ValidMtimeNow, &wirepb.Attr{}, 0)),
		"setxattr": errOf(cl.xattr(wire.OpSetxattr, root, f, "user.x", nil, 0)),
	}
	for what, err := range perm {
		wantKind(t, "immutable: "+what, err, status.Perm)
	}
	wantKind(t, "open for read", errOf(cl.open(root, f, oRdonly)), status.OK)
	if err := flag(root, f, attr.FlagAppend); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "append: open for write", errOf(cl.open(root, f, oWronly)), status.Perm)
	wantKind(t, "append: open with O_APPEND", errOf(cl.open(root, f, oWronly|oAppend)), status.OK)
	wantKind(t, "append: open with O_TRUNC", errOf(cl.open(root, f, oWronly|oAppend|oTrunc)), status.Perm)
	wantKind(t, "append: truncate", errOf(cl.setattr(root, f, attr.ValidSize, &wirepb.Attr{}, 0)), status.Perm)
	wantKind(t, "append: touch", errOf(cl.setattr(root, f, attr.ValidAtimeNow|attr.ValidMtimeNow, &wirepb.Attr{}, 0)), status.OK)
	wantKind(t, "append: explicit times", errOf(cl.setattr(root, f, attr.ValidMtime, &wirepb.Attr{}, 0)), status.Perm)
	if err := flag(root, d, attr.FlagImmutable); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "create in an immutable folder", errOf(cl.make(root, d, "x", reg)), status.Perm)
	wantKind(t, "unlink in an immutable folder", errOf(cl.unlink(root, d, "in", false)), status.Perm)
	if err := flag(root, d, attr.FlagAppend); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "create in an append-only folder", errOf(cl.make(root, d, "x", reg)), status.OK)
	wantKind(t, "unlink in an append-only folder", errOf(cl.unlink(root, d, "in", false)), status.Perm)
}

// TestTimes: which times an operation moves, and that ctime never goes back.
func TestTimes(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	now := time.Unix(1000, 5)
	clock := func() time.Time { return now }
	c.now.Store(&clock)
	f := cl.must(fid.Root, "f", reg|0o644)
	d := cl.must(fid.Root, "d", dir|0o755)
	at := func(f fid.FID) (a, m, ct, b int64) {
		r, err := cl.getattr(f)
		if err != nil {
			t.Fatal(err)
		}
		return r.Attr.AtimeSec, r.Attr.MtimeSec, r.Attr.CtimeSec, r.Attr.BtimeSec
	}
	expect := func(what string, f fid.FID, wa, wm, wc, wb int64) {
		t.Helper()
		if a, m, ct, b := at(f); a != wa || m != wm || ct != wc || b != wb {
			t.Errorf("%s: atime %d mtime %d ctime %d btime %d, want %d %d %d %d", what, a, m, ct, b, wa, wm, wc, wb)
		}
	}
	set := func(sec int64, fn func() error) {
		t.Helper()
		now = time.Unix(sec, 0)
		if err := fn(); err != nil {
			t.Fatal(err)
		}
	}
	set(1001, func() error { _, err := cl.setattr(root, f, attr.ValidMode, &wirepb.Attr{Mode: 0o600}, 0); return err })
	expect("chmod", f, 1000, 1000, 1001, 1000)
	set(1002, func() error { _, err := cl.link(root, f, d, "l"); return err })
	expect("link, file", f, 1000, 1000, 1002, 1000)
	expect("link, folder", d, 1000, 1002, 1002, 1000)
	set(1003, func() error { _, err := cl.rename(root, d, "l", fid.Root, "l2", 0); return err })
	expect("rename, file", f, 1000, 1000, 1003, 1000)
	expect("rename, from", d, 1000, 1003, 1003, 1000)
	if _, m, _, _ := at(fid.Root); m != 1003 {
		t.Errorf("rename, to: mtime %d", m)
	}
	set(1004, func() error { _, err := cl.unlink(root, fid.Root, "l2", false); return err })
	expect("unlink", f, 1000, 1000, 1004, 1000)
	set(1005, func() error {
		_, err := cl.setattr(root, f, attr.ValidAtime|attr.ValidMtime, &wirepb.Attr{AtimeSec: -5, MtimeSec: 9999}, 0)
		return err
	})
	expect("utimes", f, -5, 9999, 1005, 1000)
	set(900, func() error { _, err := cl.setattr(root, f, attr.ValidMode, &wirepb.Attr{Mode: 0o640}, 0); return err })
	expect("chmod with the clock set back", f, -5, 9999, 1005, 1000)
	set(900, func() error { _, err := cl.make(root, d, "x", reg|0o644); return err })
	expect("create with the clock set back", d, 1000, 900, 1003, 1000)
	set(1010, func() error {
		_, err := cl.setattr(root, d, attr.ValidMtime, &wirepb.Attr{MtimeSec: 5000}, 0)
		return err
	})
	set(1011, func() error { _, err := cl.make(root, d, "y", reg|0o644); return err })
	expect("create after utimes ahead", d, 1000, 1011, 1011, 1000)
	_, err := cl.setattr(root, f, attr.ValidMtime, &wirepb.Attr{MtimeNsec: 1e9}, 0)
	wantKind(t, "nanoseconds", err, status.Invalid)
}

func TestNamesAndSymlinks(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	for _, k := range []struct {
		name string
		want status.Kind
	}{
		{"", status.NotExist}, {".", status.Invalid}, {"..", status.Invalid}, {"a/b", status.Invalid}, {"a\x00", status.Invalid},
		{strings.Repeat("n", 255), status.OK}, {strings.Repeat("n", 256), status.NameTooLong}, {"\xff\xfe\n\"", status.OK},
	} {
		_, err := cl.make(root, fid.Root, k.name, attr.TypeFifo|0o644)
		wantKind(t, fmt.Sprintf("create %q", k.name), err, k.want)
		if k.want == status.OK {
			_, err = cl.lookup(root, fid.Root, k.name)
			wantKind(t, "lookup", err, status.OK)
		}
	}
	for n, want := range map[int]status.Kind{0: status.NotExist, 1: status.OK, 4095: status.OK, 4096: status.NameTooLong} {
		r, err := cl.make(root, fid.Root, fmt.Sprint("l", n), slnk|0o777, withLink(strings.Repeat("t", n)))
		wantKind(t, fmt.Sprintf("symlink of %d", n), err, want)
		if err == nil && (r.Attr.Size != uint64(n) || len(r.Symlink) != n || r.Attr.Mode != slnk|0o777) {
			t.Errorf("symlink of %d: %v", n, r.Attr)
		}
	}
	_, err := cl.make(user, fid.Root, "dev", attr.TypeChar|0o644, func(m *wirepb.CreateRequest) { m.Rdev = 5 })
	wantKind(t, "device in a folder of root", err, status.Access)
	_, err = cl.make(root, fid.Root, "bad", 0o644)
	wantKind(t, "no type", err, status.Invalid)
}

func TestXattrLimits(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	f := cl.must(fid.Root, "f", reg|0o644)
	set := func(name string, v []byte, flags uint32) error {
		_, err := cl.xattr(wire.OpSetxattr, root, f, name, v, flags)
		return err
	}
	get := func(name string) []byte {
		v, err := cl.xattr(wire.OpGetxattr, root, f, name, nil, 0)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return v
	}
	big := bytes.Repeat([]byte("v"), attr.XattrValueMax)
	for what, k := range map[string]struct {
		err  error
		want status.Kind
	}{
		"long name":      {set("user."+strings.Repeat("n", 251), nil, 0), status.Range},
		"longest name":   {set("user."+strings.Repeat("n", 250), nil, 0), status.OK},
		"bare prefix":    {set("user.", nil, 0), status.Invalid},
		"no namespace":   {set("foo.x", nil, 0), status.NotSupport},
		"system":         {set("system.x", nil, 0), status.NotSupport},
		"largest value":  {set("user.big", big, 0), status.OK},
		"too large":      {set("user.huge", append(big, 'x'), 0), status.TooBig},
		"replace absent": {set("user.none", nil, attr.XattrFlagReplace), status.NoData},
		"create there":   {set("user.big", nil, attr.XattrFlagCreate), status.Exist},
		"bad flags":      {set("user.z", nil, 4), status.Invalid},
	} {
		wantKind(t, what, k.err, k.want)
	}
	if !bytes.Equal(get("user.big"), big) {
		t.Error("a large value came back changed")
	}
	if err := set("user.big", []byte("small"), attr.XattrFlagReplace); err != nil || string(get("user.big")) != "small" {
		t.Errorf("large to small: %v", err)
	}
	checkDevice(t, c.dev)
	n := 0
	for ; n < 40; n++ {
		if err := set(fmt.Sprintf("user.%d", n), big, 0); err != nil {
			wantKind(t, "full", err, status.NoSpace)
			break
		}
	}
	if n != attr.XattrPerInodeMax/attr.XattrValueMax-1 {
		t.Errorf("%d values of 64 KiB fit", n)
	}
	if _, err := cl.unlink(root, fid.Root, "f", false); err != nil {
		t.Fatal(err)
	}
	checkDevice(t, c.dev)
	// Namespaces by caller.
	f = cl.must(fid.Root, "g", reg|0o604)
	_ = set("trusted.t", []byte("1"), 0)
	_ = set("security.s", []byte("2"), 0)
	_ = set("user.u", []byte("3"), 0)
	list, err := cl.xattr(wire.OpListxattr, user, f, "", nil, 0)
	if got := strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00"); err != nil || !slices.Equal(got, []string{"security.s", "user.u"}) {
		t.Errorf("list for a user: %q %v", got, err)
	}
	_, err = cl.xattr(wire.OpGetxattr, user, f, "trusted.t", nil, 0)
	wantKind(t, "get trusted", err, status.NoData)
	_, err = cl.xattr(wire.OpSetxattr, user, f, "trusted.t", nil, 0)
	wantKind(t, "set trusted", err, status.Perm)
	_, err = cl.xattr(wire.OpGetxattr, user, f, "security.s", nil, 0)
	wantKind(t, "get security", err, status.OK)
	_, err = cl.xattr(wire.OpSetxattr, user, f, "security.s", nil, 0)
	wantKind(t, "set security", err, status.Perm)
	_, err = cl.xattr(wire.OpSetxattr, user, f, "user.u", nil, 0)
	wantKind(t, "set user without write permission", err, status.Access)
}

// TestCapabilitiesGo: a write, truncate or chown ends security.capability; set-uid stays when root writes.
func TestCapabilitiesGo(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	for _, k := range []struct {
		what  string
		w     who
		valid attr.Valid
		mode  uint32
	}{
		{"write by a user", user, attr.ValidKillSuid, 0o777}, {"write by root", root, attr.ValidKillSuid, 0o6777},
		{"truncate by a user", user, attr.ValidSize, 0o777}, {"truncate by root", root, attr.ValidSize, 0o6777},
		{"chown by root", root, attr.ValidUID | attr.ValidGID, 0o777},
	} {
		f := cl.must(fid.Root, k.what, reg|0o6777)
		if _, err := cl.setattr(root, f, attr.ValidMode, &wirepb.Attr{Mode: 0o6777}, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := cl.xattr(wire.OpSetxattr, root, f, attr.XattrCapability, []byte("cap"), 0); err != nil {
			t.Fatal(err)
		}
		r, err := cl.setattr(k.w, f, k.valid, &wirepb.Attr{Uid: 5, Gid: 6}, 0)
		if err != nil || r.Attr.Mode&0o7777 != k.mode {
			t.Errorf("%s: mode %o, %v", k.what, r.Attr.GetMode(), err)
		}
		_, err = cl.xattr(wire.OpGetxattr, root, f, attr.XattrCapability, nil, 0)
		wantKind(t, k.what, err, status.NoData)
	}
}

// TestKillSuidNeedsAWriter: clearing set-uid as a write does is for those who write.
func TestKillSuidNeedsAWriter(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	f := cl.must(fid.Root, "f", reg|0o4755)
	_, err := cl.setattr(user, f, attr.ValidKillSuid, nil, 0)
	wantKind(t, "without write permission", err, status.Access)
	if _, err := cl.open(root, f, oWronly); err != nil {
		t.Fatal(err)
	}
	r, err := cl.setattr(user, f, attr.ValidKillSuid, nil, 0)
	if err != nil || r.Attr.Mode&0o7777 != 0o755 {
		t.Errorf("through an open handle of the client: %v %v", r, err)
	}
}

// TestManyOrphans: a start removes all that was unlinked while open, in several transactions.
func TestManyOrphans(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	var last *wirepb.EntryReply
	for range 2*orphanBatch + 10 {
		r, err := cl.make(root, fid.Root, "", reg|0o600, withOpen(oRdwr), func(m *wirepb.CreateRequest) { m.Tmpfile = true })
		if err != nil {
			t.Fatal(err)
		}
		last = r
	}
	if err := cl.do(wire.OpSync, &wirepb.SyncRequest{All: true}, nil); err != nil {
		t.Fatal(err)
	}
	cl.close()
	c.restart(true)
	var l layout.Layout
	if err := l.Decode(last.Layout); err != nil {
		t.Fatal(err)
	}
	s := l.Components[0].Stripes[0]
	eventually(t, "the last object's end", func() bool { return c.osts[s.OST].isDestroyed(s.Object.ID) })
	checkDevice(t, c.dev)
	e, n := env.New(), 0
	if err := c.dev.Scan(e, TablesAt(2).Inode, nil, nil, func(_, _ []byte) bool { n++; return true }); err != nil || n != 1 {
		t.Errorf("%d inodes left, %v", n, err)
	}
}

func TestPathsAndParents(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	d := cl.must(fid.Root, "d", dir|0o700)
	e := cl.must(d, "e", dir|0o755)
	f := cl.must(e, "f", reg|0o644)
	if _, err := cl.link(root, f, fid.Root, "g"); err != nil {
		t.Fatal(err)
	}
	paths := func(w who, f fid.FID) ([]string, error) {
		var r wirepb.PathReply
		err := cl.do(wire.OpPath, &wirepb.PathRequest{Caller: w.pb(), Seq: uint64(f.Seq), Oid: f.OID}, &r)
		var out []string
		for _, p := range r.Paths {
			out = append(out, string(p))
		}
		return out, err
	}
	if got, err := paths(root, f); err != nil || !slices.Equal(got, []string{"d/e/f", "g"}) {
		t.Errorf("paths %q %v", got, err)
	}
	if got, err := paths(root, fid.Root); err != nil || !slices.Equal(got, []string{"/"}) {
		t.Errorf("root %q %v", got, err)
	}
	_, err := paths(user, f)
	wantKind(t, "a path that the caller may not walk", err, status.Access)
	if _, err := cl.rename(root, d, "e", fid.Root, "moved", 0); err != nil {
		t.Fatal(err)
	}
	if got, err := paths(root, f); err != nil || !slices.Equal(got, []string{"moved/f", "g"}) {
		t.Errorf("paths after rename %q %v", got, err)
	}
	ds, err := cl.list(e, 4096, false, nil)
	if err != nil || fidOfDirent(ds[1]) != fid.Root {
		t.Errorf("'..' of a moved folder: %v %v", ds, err)
	}
	var r wirepb.ParentsReply
	if err := cl.do(wire.OpParents, &wirepb.GetattrRequest{Caller: root.pb(), Seq: uint64(f.Seq), Oid: f.OID}, &r); err != nil || len(r.Links) != 2 {
		t.Errorf("parents %v %v", r.Links, err)
	}
}

func fidOfDirent(d *wirepb.Dirent) fid.FID { return fid.FID{Seq: fid.Seq(d.Seq), OID: d.Oid} }

// TestRemovedFolder: an open folder outlives its name; nothing can be made in it (case 02).
func TestRemovedFolder(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	d := cl.must(fid.Root, "d", dir|0o755)
	o, err := cl.open(root, d, oRdonly|oDirectory)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cl.unlink(root, fid.Root, "d", true); err != nil {
		t.Fatal(err)
	}
	if r, err := cl.setattr(root, d, attr.ValidMode, &wirepb.Attr{Mode: 0o700}, 0); err != nil || r.Attr.Nlink != 0 {
		t.Errorf("fchmod: %v %v", r, err)
	}
	_, err = cl.make(root, d, "x", reg|0o644)
	wantKind(t, "create in it", err, status.NotExist)
	if ds, err := cl.list(d, 4096, false, nil); err != nil || len(ds) != 0 {
		t.Errorf("list: %v %v", ds, err)
	}
	if err := cl.closeFile(d, o.Handle, nil); err != nil {
		t.Fatal(err)
	}
	_, err = cl.getattr(d)
	wantKind(t, "after close", err, status.Stale)
}

// TestReadOnlyExport: reads work, changes are refused.
func TestReadOnlyExport(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	f := cl.must(fid.Root, "f", reg|0o644)
	ro := c.client(func(o *rpc.ImportOptions) { o.ReadOnly = true })
	if _, err := ro.lookup(root, fid.Root, "f"); err != nil {
		t.Error(err)
	}
	if _, err := ro.open(root, f, oRdonly); err != nil {
		t.Error(err)
	}
	_, err := ro.open(root, f, oWronly)
	wantKind(t, "open for write", err, status.ReadOnly)
	_, err = ro.unlink(root, fid.Root, "f", false)
	wantKind(t, "unlink", err, status.ReadOnly)
}

// TestFullDevice: creates say ENOSPC, deletes work.
func TestFullDevice(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	cl.must(fid.Root, "f", reg|0o644)
	c.dev.SetFull(true)
	_, err := cl.make(root, fid.Root, "g", reg|0o644)
	wantKind(t, "create", err, status.NoSpace)
	_, err = cl.unlink(root, fid.Root, "f", false)
	wantKind(t, "unlink", err, status.OK)
	c.dev.SetFull(false)
}

// TestHashRuns: names with one hash live side by side up to 128.
func TestHashRuns(t *testing.T) {
	c := newCluster(t)
	c.h.key.mask = 1
	cl := c.client()
	d := cl.must(fid.Root, "d", dir|0o755)
	for i := range ordinals {
		cl.must(d, fmt.Sprint(i), attr.TypeFifo|0o644)
	}
	_, err := cl.make(root, d, "one more", attr.TypeFifo|0o644)
	wantKind(t, "129th", err, status.NoSpace)
	if n := c.h.stats.hashRunsFull.Load(); n != 1 {
		t.Errorf("counted %d", n)
	}
	ds, _ := cl.list(d, 1<<20, false, nil)
	cookie := ds[len(ds)-1].Cookie
	for _, i := range []int{0, 64} {
		if _, err := cl.unlink(root, d, fmt.Sprint(i), false); err != nil {
			t.Fatal(err)
		}
	}
	for i := 1; i < ordinals; i++ {
		_, err := cl.lookup(root, d, fmt.Sprint(i))
		if want := i != 64; (err == nil) != want {
			t.Errorf("%d: %v", i, err)
		}
	}
	if after, _ := cl.list(d, 1<<20, false, nil); len(after) != ordinals || after[len(after)-1].Cookie != cookie {
		t.Errorf("%d entries, last cookie %d, was %d", len(after), after[len(after)-1].Cookie, cookie)
	}
	cl.must(d, "again", attr.TypeFifo|0o644)
	checkDevice(t, c.dev)
}

// FuzzRequests: whatever bytes come as a request, the target answers and stays consistent.
func FuzzRequests(f *testing.F) {
	seed := &wirepb.RenameRequest{Caller: root.pb(), FromSeq: uint64(fid.Root.Seq), FromOid: 1, FromName: []byte("a"), ToSeq: uint64(fid.Root.Seq), ToOid: 1, ToName: []byte("b")}
	b, _ := seed.MarshalVT()
	for op := wire.OpLookup; op <= wire.OpParents; op++ {
		f.Add(uint16(op), b)
	}
	c := newCluster(f)
	cl := c.client()
	cl.must(fid.Root, "a", reg|0o644)
	d := newDirect(c, cl)
	f.Fuzz(func(t *testing.T, op uint16, body []byte) {
		if wire.Op(op) == wire.OpSeq || wire.Op(op) == wire.OpReaddir || wire.Op(op) == wire.OpDisconnect {
			return // The first waits for a commit, the second needs a connection's buffers.
		}
		_ = d.do(wire.Op(op), rawMessage(body))
	})
}

// rawMessage is a body as it is.
type rawMessage []byte

func (m rawMessage) SizeVT() int                                  { return len(m) }
func (m rawMessage) MarshalToSizedBufferVT(b []byte) (int, error) { return copy(b, m), nil }
func (m rawMessage) UnmarshalVT([]byte) error                     { return nil }
