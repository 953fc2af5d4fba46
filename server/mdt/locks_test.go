package mdt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/target"
)

// pair is the tree that one operation of TestWhatAnOperationCallsBack works in.
type pair struct {
	t        *testing.T
	a        *client
	p, q     fid.FID // folders
	f, d     fid.FID // file "f", which is "g" in q too, and folder "d", in p
	s        fid.FID // file "s" in p, its only name
	handle   uint64  // of f, open for what the case says
	template []byte
}

func (x *pair) must(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

const (
	lu  = ldlm.Lookup | ldlm.Update
	up  = ldlm.Update
	per = ldlm.Perm | ldlm.Update
	xa  = ldlm.Xattr | ldlm.Update
)

// TestWhatAnOperationCallsBack: for each kind of change, what another client holds of what is changed is called back, and
// nothing else; what the client itself holds is not.
func TestWhatAnOperationCallsBack(t *testing.T) {
	attrs := func(x *pair, f fid.FID, v attr.Valid, a *wirepb.Attr) {
		_, err := x.a.setattr(root, f, v, a, 0)
		x.must(err)
	}
	type bits = map[string]ldlm.Bits
	for _, c := range []struct {
		name   string
		before func(x *pair)
		do     func(x *pair)
		want   bits // by the names of pair's fields
	}{
		{"create", nil, func(x *pair) { x.a.must(x.p, "new", reg|0o644) }, bits{"p": up}},
		{"create and open", nil, func(x *pair) { x.a.must(x.p, "new", reg|0o644, withOpen(oRdwr)) }, bits{"p": up}},
		{"mkdir", nil, func(x *pair) { x.a.must(x.p, "new", dir|0o755) }, bits{"p": up}},
		{"symlink", nil, func(x *pair) { x.a.must(x.p, "new", slnk|0o777, withLink("f")) }, bits{"p": up}},
		{"mknod", nil, func(x *pair) { x.a.must(x.p, "new", attr.TypeFifo|0o644) }, bits{"p": up}},
		{"tmpfile", nil, func(x *pair) {
			x.a.must(x.p, "", reg|0o644, func(m *wirepb.CreateRequest) { m.Tmpfile = true })
		}, bits{}},
		{"link", nil, func(x *pair) { _, err := x.a.link(root, x.s, x.q, "l"); x.must(err) }, bits{"q": up, "s": up}},
		{"unlink of one of two", nil, func(x *pair) { _, err := x.a.unlink(root, x.p, "f", false); x.must(err) }, bits{"p": up, "f": lu}},
		{"unlink of the last", nil, func(x *pair) { _, err := x.a.unlink(root, x.p, "s", false); x.must(err) }, bits{"p": up, "s": allBits}},
		{"rmdir", nil, func(x *pair) { _, err := x.a.unlink(root, x.p, "d", true); x.must(err) }, bits{"p": up, "d": allBits}},
		{"rename", nil, func(x *pair) { _, err := x.a.rename(root, x.p, "s", x.p, "n", 0); x.must(err) }, bits{"p": up, "s": lu}},
		{"rename across", nil, func(x *pair) { _, err := x.a.rename(root, x.p, "s", x.q, "n", 0); x.must(err) }, bits{"p": up, "q": up, "s": lu}},
		{"rename of a folder", nil, func(x *pair) { _, err := x.a.rename(root, x.p, "d", x.q, "n", 0); x.must(err) }, bits{"p": up, "q": up, "d": lu}},
		{"rename over", nil, func(x *pair) { _, err := x.a.rename(root, x.p, "f", x.p, "s", 0); x.must(err) }, bits{"p": up, "f": lu, "s": allBits}},
		{"exchange", nil, func(x *pair) { _, err := x.a.rename(root, x.p, "d", x.p, "s", renameExchange); x.must(err) }, bits{"p": up, "d": lu, "s": lu}},
		{"chmod", nil, func(x *pair) { attrs(x, x.s, attr.ValidMode, &wirepb.Attr{Mode: 0o600}) }, bits{"s": per}},
		{"chmod of a folder", nil, func(x *pair) { attrs(x, x.p, attr.ValidMode, &wirepb.Attr{Mode: 0o700}) }, bits{"p": per}},
		{"chmod with an ACL", func(x *pair) {
			_, err := x.a.xattr(wire.OpSetxattr, root, x.s, attr.XattrACLAccess, testACLs()[1], 0)
			x.must(err)
		}, func(x *pair) { attrs(x, x.s, attr.ValidMode, &wirepb.Attr{Mode: 0o600}) }, bits{"s": per | xa}},
		{"chown", nil, func(x *pair) { attrs(x, x.s, attr.ValidUID, &wirepb.Attr{Uid: 7}) }, bits{"s": per}},
		{"utimes", nil, func(x *pair) { attrs(x, x.s, attr.ValidMtime, &wirepb.Attr{MtimeSec: 7}) }, bits{"s": up}},
		{"truncate", nil, func(x *pair) { attrs(x, x.s, attr.ValidSize, &wirepb.Attr{Size: 7}) }, bits{"s": up}},
		{"truncate of set-uid", func(x *pair) { attrs(x, x.s, attr.ValidMode, &wirepb.Attr{Mode: 0o4755}) },
			func(x *pair) { attrs(x, x.s, attr.ValidSize, &wirepb.Attr{Size: 7}) }, bits{"s": per}},
		{"setxattr", nil, func(x *pair) { _, err := x.a.xattr(wire.OpSetxattr, root, x.s, "user.a", []byte("b"), 0); x.must(err) }, bits{"s": xa}},
		{"removexattr", func(x *pair) { _, err := x.a.xattr(wire.OpSetxattr, root, x.s, "user.a", []byte("b"), 0); x.must(err) },
			func(x *pair) { _, err := x.a.xattr(wire.OpRemovexattr, root, x.s, "user.a", nil, 0); x.must(err) }, bits{"s": xa}},
		{"ACL", nil, func(x *pair) {
			_, err := x.a.xattr(wire.OpSetxattr, root, x.s, attr.XattrACLAccess, testACLs()[1], 0)
			x.must(err)
		}, bits{"s": xa | per}},
		{"default layout", nil, func(x *pair) {
			x.must(x.a.do(wire.OpSetLayout, &wirepb.LayoutRequest{Caller: root.pb(), Seq: uint64(x.d.Seq), Oid: x.d.OID, Layout: x.template}, nil))
		}, bits{"d": ldlm.Layout | up}},
		{"other objects", nil, func(x *pair) {
			x.must(x.a.do(wire.OpSetLayout, &wirepb.LayoutRequest{Caller: root.pb(), Seq: uint64(x.s.Seq), Oid: x.s.OID, Layout: x.template}, nil))
		}, bits{"s": ldlm.Layout | up}},
		{"open to read", nil, func(x *pair) { _, err := x.a.open(root, x.s, oRdonly); x.must(err) }, bits{}},
		{"open to write", nil, func(x *pair) { _, err := x.a.open(root, x.s, oWronly); x.must(err) }, bits{"s": up}},
		{"open to write once more", func(x *pair) { _, err := x.a.open(root, x.s, oWronly); x.must(err) },
			func(x *pair) { _, err := x.a.open(root, x.s, oRdwr); x.must(err) }, bits{}},
		{"open with O_TRUNC", nil, func(x *pair) { _, err := x.a.open(root, x.s, oWronly|oTrunc); x.must(err) }, bits{"s": up}},
		{"close after reading", func(x *pair) { r, err := x.a.open(root, x.s, oRdonly); x.must(err); x.handle = r.Handle },
			func(x *pair) { x.must(x.a.closeFile(x.s, x.handle, nil)) }, bits{}},
		{"lookup, getattr, readdir", nil, func(x *pair) {
			_, err := x.a.lookup(root, x.p, "s")
			x.must(err)
			_, err = x.a.getattr(x.s)
			x.must(err)
			_, err = x.a.list(x.p, 1<<16, true, nil)
			x.must(err)
		}, bits{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := newCluster(t)
			cl.h.ctimeAge.Store(0)
			x := &pair{t: t, a: cl.holding(), template: oneStripe()}
			b := cl.holding()
			x.p, x.q = x.a.must(fid.Root, "p", dir|0o755), x.a.must(fid.Root, "q", dir|0o755)
			x.f, x.s, x.d = x.a.must(x.p, "f", reg|0o644), x.a.must(x.p, "s", reg|0o644), x.a.must(x.p, "d", dir|0o755)
			_, err := x.a.link(root, x.f, x.q, "g")
			x.must(err)
			if c.before != nil {
				c.before(x)
			}
			all := map[string]fid.FID{"p": x.p, "q": x.q, "f": x.f, "s": x.s, "d": x.d}
			where := map[string]fid.FID{"p": fid.Root, "q": fid.Root, "f": x.p, "s": x.p, "d": x.p}
			for _, who := range []*client{x.a, b} {
				for n, f := range all {
					_, err := who.lookup(root, where[n], n)
					x.must(err)
					_, writing := cl.h.opens.writers(f, nil)
					if got := who.h.holds(f); got != allBits && !writing {
						t.Fatalf("of %s only %v is granted", n, got)
					}
				}
			}
			x.a.h.recalled()
			b.h.recalled()
			c.do(x)
			if own := x.a.h.recalled(); len(own) > 0 {
				t.Errorf("its own locks were called back: %v", own)
			}
			got := b.h.recalled()
			for n, f := range all {
				if got[ldlm.InodeRes(f)] != c.want[n] {
					t.Errorf("of %s %v was called back, want %v", n, got[ldlm.InodeRes(f)], c.want[n])
				}
				delete(got, ldlm.InodeRes(f))
			}
			if len(got) > 0 {
				t.Errorf("called back besides: %v", got)
			}
		})
	}
}

// oneStripe is a layout template.
func oneStripe() []byte {
	l := layout.Plain(1, 1<<20)
	return l.Append(nil)
}

// TestSizeLocks: UPDATE of a file goes to who knows its size: anybody while nobody writes it, its only writer, else nobody.
func TestSizeLocks(t *testing.T) {
	c := newCluster(t)
	c.h.ctimeAge.Store(0)
	a, b := c.holding(), c.holding()
	r, err := a.make(root, fid.Root, "f", reg|0o644, withOpen(oWronly))
	if err != nil {
		t.Fatal(err)
	}
	f := fidOf(r.Attr)
	if got := a.h.holds(f); got != allBits {
		t.Errorf("the creator holds %v", got)
	}
	if _, err := b.lookup(root, fid.Root, "f"); err != nil {
		t.Fatal(err)
	}
	if got := b.h.holds(f); got != allBits&^ldlm.Update {
		t.Errorf("while another writes: %v", got)
	}
	rb, err := b.open(root, f, oWronly)
	if err != nil {
		t.Fatal(err)
	}
	if a.h.holds(f)&ldlm.Update != 0 || b.h.holds(f)&ldlm.Update != 0 {
		t.Errorf("two writers hold %v and %v", a.h.holds(f), b.h.holds(f))
	}
	if err := a.closeFile(f, r.Handle, report(3, 6000000000, 0, true)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.getattr(f); err != nil || b.h.holds(f)&ldlm.Update == 0 {
		t.Errorf("the only writer left holds %v (%v)", b.h.holds(f), err)
	}
	if _, err := a.getattr(f); err != nil || a.h.holds(f)&ldlm.Update != 0 {
		t.Errorf("who writes no more holds %v (%v)", a.h.holds(f), err)
	}
	if err := b.closeFile(f, rb.Handle, report(5, 6000000000, 0, true)); err != nil {
		t.Fatal(err)
	}
	if n := b.h.recalled()[ldlm.InodeRes(f)]; n != 0 {
		t.Errorf("its own report cost the last writer %v", n)
	}
	g, err := a.getattr(f)
	if err != nil || !g.Attr.SizeValid || g.Attr.Size != 5 || a.h.holds(f)&ldlm.Update == 0 {
		t.Errorf("after the last report: %v, holds %v (%v)", g.Attr, a.h.holds(f), err)
	}
}

// TestHotFolder: entries of a folder that another client has just changed are not worth a lock.
func TestHotFolder(t *testing.T) {
	c := newCluster(t, func(c *cluster) { c.stats = stats.NewRegistry() })
	now := time.Now()
	clock := func(d time.Duration) {
		f := func() time.Time { return now.Add(d) }
		c.now.Store(&f)
	}
	clock(0)
	c.h.ctimeAge.Store(int64(10 * time.Second))
	a, b := c.holding(), c.holding()
	p := a.must(fid.Root, "p", dir|0o755)
	a.must(p, "x", reg|0o644)
	for _, k := range []struct {
		who  *client
		at   time.Duration
		want bool
	}{{a, 0, true}, {b, 0, false}, {b, 9 * time.Second, false}, {b, 10 * time.Second, true}} {
		clock(k.at)
		if _, err := k.who.getattr(p); err != nil {
			t.Fatal(err)
		}
		if got := k.who.h.holds(p)&ldlm.Update != 0; got != k.want {
			t.Errorf("after %v: %v, want %v", k.at, got, k.want)
		}
	}
	limit := "ldlm.namespaces." + stats.Element(Namespace(testMDT)) + ".ctime_age_limit"
	q := a.must(fid.Root, "q", dir|0o755)
	set := func(text string) error {
		err := errors.New("there is no such parameter")
		_ = c.stats.Walk(limit, func(e stats.Entry) error { err = e.Set(text); return nil })
		return err
	}
	for _, bad := range []string{"", "-1", "3601", "soon"} {
		if set(bad) == nil {
			t.Errorf("ctime_age_limit takes %q", bad)
		}
	}
	if err := set("0"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.getattr(q); err != nil || b.h.holds(q)&ldlm.Update == 0 {
		t.Errorf("with ctime_age_limit 0 it holds %v (%v)", b.h.holds(q), err)
	}
}

// TestReadsNeverWait: while a change waits for a lock that its holder keeps, lookup, getattr and readdir of others are
// answered, without the bits that are wanted.
func TestReadsNeverWait(t *testing.T) {
	c := newCluster(t)
	c.h.ctimeAge.Store(0)
	a, b, d := c.holding(), c.holding(func(h *holder) { h.never = true }), c.holding()
	p := a.must(fid.Root, "p", dir|0o755)
	f := a.must(p, "f", reg|0o644)
	if _, err := b.lookup(root, p, "f"); err != nil {
		t.Fatal(err)
	}
	called := b.h.next()
	done := make(chan error, 1)
	go func() { _, err := a.unlink(root, p, "f", false); done <- err }()
	<-called
	r, err := d.lookup(root, p, "f")
	if err != nil || fidOf(r.Attr) != f || d.h.holds(f) != 0 {
		t.Errorf("lookup: %v, holds %v", err, d.h.holds(f))
	}
	if _, err := d.getattr(f); err != nil || d.h.holds(f) != 0 {
		t.Errorf("getattr: %v, holds %v", err, d.h.holds(f))
	}
	if ds, err := d.list(p, 1<<16, true, nil); err != nil || len(ds) != 3 || ds[2].Lock != nil {
		t.Errorf("readdir: %v, %v", err, ds)
	}
	select {
	case err := <-done:
		t.Fatalf("the unlink did not wait: %v", err)
	default:
	}
	b.h.giveBack(b.h.lockOf(f, ldlm.Lookup))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	_, err = d.lookup(root, p, "f")
	wantKind(t, "lookup after it", err, status.NotExist)
}

// TestReaddirGrants: each entry with attributes comes with a lock, the folder with one of its own, and nothing stays granted
// that was not sent.
func TestReaddirGrants(t *testing.T) {
	c := newCluster(t)
	c.h.ctimeAge.Store(0)
	a, b := c.client(), c.holding()
	p := a.must(fid.Root, "p", dir|0o755)
	const n = 300
	for i := range n {
		a.must(p, fmt.Sprintf("f%d", i), reg|0o644)
	}
	ds, err := b.list(p, 16<<10, true, nil)
	if err != nil || len(ds) != n+2 {
		t.Fatalf("%d entries: %v", len(ds), err)
	}
	for _, e := range ds[2:] {
		if e.Lock == nil {
			t.Fatalf("%s comes without a lock", e.Name)
		}
		if f := (fid.FID{Seq: fid.Seq(e.Seq), OID: e.Oid}); b.h.holds(f) != allBits {
			t.Fatalf("%s: %v", e.Name, b.h.holds(f))
		}
	}
	if got := b.h.holds(p); got != allBits&^ldlm.Lookup {
		t.Errorf("of the folder it holds %v", got)
	}
	b.h.mu.Lock()
	known := len(b.h.locks)
	b.h.mu.Unlock()
	if got := c.h.ldlm.Namespace().LockCount(); got != int64(known) {
		t.Errorf("%d locks are granted, the client knows %d", got, known)
	}
}

// TestEarlyCancels: what a request gives up itself is not called back.
func TestEarlyCancels(t *testing.T) {
	c := newCluster(t)
	c.h.ctimeAge.Store(0)
	a, b := c.holding(), c.holding()
	p := a.must(fid.Root, "p", dir|0o755)
	f := a.must(p, "f", reg|0o644)
	lock := a.h.lockOf(f, ldlm.Lookup)
	m := &wirepb.UnlinkRequest{Caller: root.pb(), ParentSeq: uint64(p.Seq), ParentOid: p.OID, Name: []byte("f"), Cancels: []uint64{lock, 1 << 60}}
	if err := a.do(wire.OpUnlink, m, &wirepb.UnlinkReply{}); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.h.ldlm.Namespace().Lock(1, ldlm.Handle(lock)); ok {
		t.Error("the lock is still there")
	}
	g := a.must(p, "g", reg|0o644)
	if _, err := b.lookup(root, p, "g"); err != nil {
		t.Fatal(err)
	}
	foreign := b.h.lockOf(g, ldlm.Lookup)
	m.Name, m.Cancels = []byte("g"), []uint64{foreign}
	if err := a.do(wire.OpUnlink, m, &wirepb.UnlinkReply{}); err != nil {
		t.Fatal(err)
	}
	if b.h.recalled()[ldlm.InodeRes(g)] == 0 {
		t.Error("a client cancelled another one's lock")
	}
	m.Cancels = make([]uint64, wire.CancelsMax+1)
	wantKind(t, "too many cancels", a.do(wire.OpUnlink, m, &wirepb.UnlinkReply{}), status.Protocol)
}

// TestNoXattr: an answer says whether there is anything to ask for.
func TestNoXattr(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	f, d := cl.must(fid.Root, "f", reg|0o644), cl.must(fid.Root, "d", dir|0o755)
	check := func(what string, f fid.FID, want bool) {
		t.Helper()
		r, err := cl.getattr(f)
		if err != nil || r.Attr.NoXattr != want {
			t.Errorf("%s: no_xattr %v, want %v (%v)", what, r.Attr.NoXattr, want, err)
		}
	}
	set := func(op wire.Op, f fid.FID, name string, value []byte) {
		t.Helper()
		if _, err := cl.xattr(op, root, f, name, value, 0); err != nil {
			t.Fatal(err)
		}
	}
	check("new", f, true)
	for _, size := range []int{1, attr.XattrInlineMax + 1} {
		set(wire.OpSetxattr, f, "user.a", make([]byte, size))
		check(fmt.Sprintf("%d bytes", size), f, false)
		set(wire.OpRemovexattr, f, "user.a", nil)
		check("removed", f, true)
	}
	set(wire.OpSetxattr, f, attr.XattrACLAccess, testACLs()[1])
	check("ACL", f, false)
	set(wire.OpSetxattr, d, attr.XattrACLDefault, testACLs()[1])
	check("default ACL", d, false)
	check("inherited ACL", cl.must(d, "x", reg|0o666), false)
	ds, err := cl.list(fid.Root, 1<<16, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ds {
		if string(e.Name) == "f" && e.Attr.NoXattr {
			t.Error("readdir says no_xattr of f")
		}
	}
}

// TestResentRequests: an answer that was lost with a connection leaves no lock behind, and the one from the slot brings none.
func TestResentRequests(t *testing.T) {
	c := newCluster(t)
	c.h.ctimeAge.Store(0)
	cl := c.client()
	p := cl.must(fid.Root, "p", dir|0o755)
	cl.must(p, "f", reg|0o644)
	d := newDirect(c, cl)
	count := c.h.ldlm.Namespace().LockCount
	wish := &wirepb.LockWant{Mode: uint32(ldlm.PR), TryBits: uint32(allBits)}
	again := func() error {
		d.e.Reset()
		h := d.call.Header
		h.Flags |= wire.FlagResent
		d.call = rpc.Call{Header: h, Body: d.body, Session: d.x}
		return d.x.Serve(d.e, &d.call)
	}
	for op, m := range map[wire.Op]rpc.Message{
		wire.OpLookup:  &wirepb.LookupRequest{Caller: root.pb(), ParentSeq: uint64(p.Seq), ParentOid: p.OID, Name: []byte("f"), Want: wish},
		wire.OpGetattr: &wirepb.GetattrRequest{Seq: uint64(p.Seq), Oid: p.OID, Want: wish},
	} {
		before := count()
		if err := d.do(op, m); err != nil || count() != before+1 {
			t.Fatalf("%v: %d locks, %v", op, count()-before, err)
		}
		for range 3 {
			if err := again(); err != nil || count() != before+1 {
				t.Fatalf("%v again: %d locks, %v", op, count()-before, err)
			}
		}
	}
	before := count()
	f := cl.next()
	m := &wirepb.CreateRequest{Caller: root.pb(), ParentSeq: uint64(p.Seq), ParentOid: p.OID, Name: []byte("new"), Seq: uint64(f.Seq), Oid: f.OID, Mode: reg | 0o644, Want: wish}
	if err := d.do(wire.OpCreate, m); err != nil || count() != before+1 {
		t.Fatalf("create: %d locks, %v", count()-before, err)
	}
	r := &wirepb.EntryReply{}
	if err := r.UnmarshalVT(d.call.RawReply); err != nil || len(r.Locks) != 1 {
		t.Fatalf("create: %v, %v", r, err)
	}
	if err := again(); err != nil { // From the slot: the target does that.
		t.Fatal(err)
	}
	r = &wirepb.EntryReply{}
	if err := r.UnmarshalVT(d.call.RawReply); err != nil || len(r.Locks) != 0 || fidOf(r.Attr) != f || r.Parent == nil {
		t.Errorf("create again: %v, %v", r, err)
	}
}

// TestReconnectFreesUnknownLocks: after a lost connection nobody but the client knows whether the last answers came. Their
// locks are called back: one that the client never had is freed, one that it has it gives back.
func TestReconnectFreesUnknownLocks(t *testing.T) {
	c := newCluster(t)
	c.h.ctimeAge.Store(0)
	a := c.holding()
	for _, known := range []bool{false, true} {
		f := a.must(fid.Root, fmt.Sprint(known), reg|0o644)
		if !known {
			a.h.forget(f)
		}
		called := a.h.next()
		a.imp.Reconnect()
		if _, err := a.getattr(fid.Root); err != nil {
			t.Fatal(err)
		}
		inTime(t, 10*time.Second, func() {
			<-called
			for {
				a.h.mu.Lock()
				known := len(a.h.locks)
				a.h.mu.Unlock()
				if c.h.ldlm.Namespace().LockCount() == int64(known) {
					return
				}
				runtime.Gosched()
			}
		})
	}
}

// enqueue asks for a lock by itself.
func (cl *client) enqueue(m *wirepb.EnqueueRequest) (*wirepb.EnqueueReply, error) {
	r := &wirepb.EnqueueReply{}
	return r, cl.do(wire.OpEnqueue, m, r)
}

func flockOf(f fid.FID, own uint64, flags ldlm.Flags) *wirepb.EnqueueRequest {
	id := ldlm.FlockRes(f)
	return &wirepb.EnqueueRequest{Own: own, ResSeq: id.Seq, ResOid: id.OID, ResType: uint32(id.Type), Mode: uint32(ldlm.PW),
		Start: 0, End: 1 << 62, FlockClass: 1, FlockOwner: own, Flags: uint32(flags)}
}

// TestWhatClientsMayLock: application locks, and bits of inodes to read.
func TestWhatClientsMayLock(t *testing.T) {
	c := newCluster(t)
	c.h.ctimeAge.Store(0)
	a := c.holding()
	p := a.must(fid.Root, "p", dir|0o755)
	f := a.must(p, "f", reg|0o644)
	ask := func(id ldlm.ResID, m ldlm.Mode, b ldlm.Bits) *wirepb.EnqueueRequest {
		return &wirepb.EnqueueRequest{Own: 77, ResSeq: id.Seq, ResOid: id.OID, ResHash: id.Hash, ResType: uint32(id.Type), Mode: uint32(m), Bits: uint32(b)}
	}
	for _, k := range []struct {
		name string
		m    *wirepb.EnqueueRequest
		want status.Kind
	}{
		{"layout", ask(ldlm.InodeRes(f), ldlm.PR, ldlm.Layout), status.OK},
		{"a folder's entries", ask(ldlm.InodeRes(p), ldlm.PR, ldlm.Update), status.OK},
		{"a file's size", ask(ldlm.InodeRes(f), ldlm.PR, ldlm.Update), status.Invalid},
		{"to change", ask(ldlm.InodeRes(p), ldlm.EX, ldlm.Perm), status.Invalid},
		{"OPEN", ask(ldlm.InodeRes(p), ldlm.PR, ldlm.Open), status.Invalid},
		{"a name", ask(ldlm.NameRes(p, 5), ldlm.PR, ldlm.Update), status.Invalid},
		{"the rename lock", ask(renameRes(), ldlm.PR, 0), status.Invalid},
		{"what is not there", ask(ldlm.InodeRes(fid.FID{Seq: f.Seq, OID: 99}), ldlm.PR, ldlm.Layout), status.Stale},
	} {
		_, err := a.enqueue(k.m)
		wantKind(t, k.name, err, k.want)
	}
	tool := c.client(func(o *rpc.ImportOptions) { o.Kind = rpc.KindTool })
	_, err := tool.enqueue(flockOf(f, 1, 0))
	wantKind(t, "a tool", err, status.NotSupport)
}

// TestFlock: application locks of two clients; what waits for a file that dies ends.
func TestFlock(t *testing.T) {
	c := newCluster(t)
	a, b := c.holding(), c.holding()
	f := a.must(fid.Root, "f", reg|0o644)
	if _, err := a.enqueue(flockOf(f, 1, 0)); err != nil {
		t.Fatal(err)
	}
	_, err := b.enqueue(flockOf(f, 2, ldlm.NoWait))
	wantKind(t, "taken", err, status.Again)
	waits := make(chan error, 1)
	go func() { _, err := b.enqueue(flockOf(f, 3, 0)); waits <- err }()
	for c.h.ldlm.Namespace().Counts().Waited == 0 {
		select {
		case err := <-waits:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
	}
	if _, err := a.unlink(root, fid.Root, "f", false); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "the file died", <-waits, status.Stale)
}

// TestEviction: a client that does not give a lock back is evicted, with its locks, opens and application locks, and what
// waited goes on.
func TestEviction(t *testing.T) {
	c := newCluster(t, func(c *cluster) { c.limits.LockTimeout = 300 * time.Millisecond })
	c.h.ctimeAge.Store(0)
	a, b := c.holding(), c.holding(func(h *holder) { h.never = true })
	p := a.must(fid.Root, "p", dir|0o755)
	f, g := a.must(p, "f", reg|0o644), a.must(p, "g", reg|0o644)
	if _, err := b.open(root, g, oWronly); err != nil {
		t.Fatal(err)
	}
	if _, err := b.enqueue(flockOf(g, 1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.lookup(root, p, "f"); err != nil {
		t.Fatal(err)
	}
	was := exportOf(c, b)
	inTime(t, 20*time.Second, func() {
		if _, err := a.unlink(root, p, "f", false); err != nil {
			t.Error(err)
		}
		if _, err := a.enqueue(flockOf(g, 1, 0)); err != nil {
			t.Error(err)
		}
	})
	if _, err := a.getattr(f); status.Of(err) != status.Stale {
		t.Errorf("f: %v", err)
	}
	inTime(t, 10*time.Second, func() { // Its locks go first.
		for c.h.opens.count(g) != 0 {
			runtime.Gosched()
		}
	})
	if mine, others := c.h.opens.writers(g, nil); mine || others {
		t.Error("g is still written")
	}
	if r, err := a.getattr(g); err != nil || r.Attr.SizeValid || a.h.holds(g)&ldlm.Update != 0 {
		t.Errorf("g, whose writer was evicted: %v, holds %v, %v", r.Attr, a.h.holds(g), err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := b.imp.Do(ctx, &rpc.Request{Op: wire.OpStatfs, Reply: &wirepb.StatfsReply{}})
	if status.Of(err) == status.IO { // It went out before the client had noticed.
		err = b.imp.Do(ctx, &rpc.Request{Op: wire.OpStatfs, Reply: &wirepb.StatfsReply{}})
	}
	if err != nil {
		t.Errorf("the evicted client does not come back: %v", err)
	}
	if now := exportOf(c, b); now == nil || now == was {
		t.Error("the client has its old export")
	}
}

// cutWire is a network that lets nobody through while away is set.
type cutWire struct {
	rpc.Transport
	away atomic.Bool
}

func (w *cutWire) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if w.away.Load() {
		return nil, errors.New("the network is down")
	}
	return w.Transport.Dial(ctx, addr)
}

// TestWantedAndAway: a client that holds a lock and has gone without a word is waited for no longer than the grace, once somebody
// wants the lock.
func TestWantedAndAway(t *testing.T) {
	const grace = 300 * time.Millisecond
	c := newCluster(t, func(c *cluster) { c.grace = grace })
	c.h.ctimeAge.Store(0)
	wire := &cutWire{Transport: c.net}
	a := c.holding()
	b := c.holding(func(h *holder) { h.transport = wire })
	f := a.must(fid.Root, "f", reg|0o644)
	if _, err := b.lookup(root, fid.Root, "f"); err != nil {
		t.Fatal(err)
	}
	wire.away.Store(true)
	b.imp.Reconnect()
	start := time.Now()
	inTime(t, 15*time.Second, func() {
		if _, err := a.setattr(root, f, attr.ValidMode, &wirepb.Attr{Mode: 0o600}, 0); err != nil {
			t.Error(err)
		}
	})
	if d := time.Since(start); d < grace/2 {
		t.Errorf("after %v it has not had its grace", d)
	}
	if exportOf(c, b) != nil {
		t.Error("the client was not evicted")
	}
}

func exportOf(c *cluster, cl *client) *target.Export {
	for _, x := range c.h.Target().Exports() {
		if x.UUID == cl.uuid {
			return x
		}
	}
	return nil
}

// TestFightsEnd: clients that give their locks back late, and take them again with all that they do, rename, remove and make
// the same few names in folders that are moved into each other. All end.
func TestFightsEnd(t *testing.T) {
	c := newCluster(t, yielding)
	c.h.ctimeAge.Store(0)
	var all []*client
	for i := range 3 {
		all = append(all, c.holding(func(h *holder) { h.late = time.Duration(i) * time.Millisecond }))
	}
	var dirs []fid.FID
	var exports []*target.Export
	for i := range 3 {
		exports = append(exports, exportOf(c, all[i]))
		dirs = append(dirs, all[i].must(fid.Root, fmt.Sprintf("top%d", i), dir|0o777))
	}
	n := 150
	if testing.Short() {
		n = 40
	}
	inTime(t, 2*time.Minute, func() {
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() { storm(c, all[i%3], uint64(time.Now().UnixNano())+uint64(i), n, dirs) })
		}
		wg.Wait()
	})
	checkDevice(t, c.dev)
	for i, cl := range all {
		if exportOf(c, cl) != exports[i] {
			t.Error("a client that gives back was evicted")
		}
	}
}

// TestEverySlotFull: two clients whose every request waits for the other one's locks. What gives them back has slots and
// workers of its own, so all end, and none by a timeout.
func TestEverySlotFull(t *testing.T) {
	c := newCluster(t)
	c.h.ctimeAge.Store(0)
	ks := []*client{c.holding(), c.holding()}
	const n = 64
	var dirs []fid.FID
	for i, cl := range ks {
		dirs = append(dirs, cl.must(fid.Root, fmt.Sprint(i), dir|0o777))
		for j := range n {
			cl.must(dirs[i], fmt.Sprint(j), reg|0o644)
		}
	}
	was := []*target.Export{exportOf(c, ks[0]), exportOf(c, ks[1])}
	inTime(t, 15*time.Second, func() {
		var wg sync.WaitGroup
		for i, cl := range ks {
			for j := range n {
				wg.Go(func() {
					if _, err := cl.unlink(root, dirs[1-i], fmt.Sprint(j), false); err != nil {
						t.Errorf("client %d, %d: %v", i, j, err)
					}
				})
			}
		}
		wg.Wait()
	})
	for i, cl := range ks {
		if len(cl.h.recalled()) < n {
			t.Error("the locks were not wanted: the test says nothing")
		}
		if exportOf(c, cl) != was[i] {
			t.Errorf("client %d was evicted", i)
		}
	}
}

// TestRemoveAgainstLister: a folder is emptied and removed while another client lists it and takes locks all the time.
func TestRemoveAgainstLister(t *testing.T) {
	c := newCluster(t)
	c.h.ctimeAge.Store(0)
	a, b := c.holding(), c.holding()
	p := a.must(fid.Root, "p", dir|0o755)
	const n = 60
	for i := range n {
		a.must(p, fmt.Sprintf("f%d", i), reg|0o644)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, _ = b.list(p, 1<<16, true, nil)
				_, _ = b.lookup(root, fid.Root, "p")
				_, _ = b.getattr(p)
			}
		})
	}
	inTime(t, time.Minute, func() {
		for i := range n {
			if _, err := a.unlink(root, p, fmt.Sprintf("f%d", i), false); err != nil {
				t.Errorf("unlink f%d: %v", i, err)
			}
		}
		if _, err := a.unlink(root, fid.Root, "p", true); err != nil {
			t.Errorf("rmdir: %v", err)
		}
	})
	close(stop)
	wg.Wait()
}
