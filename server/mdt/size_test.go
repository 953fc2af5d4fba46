package mdt

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store/memdev"
)

const sizeAndTimes = uint32(attr.ValidSize | attr.ValidMtime)

func report(size uint64, mtime int64, gen uint32, done bool) *wirepb.SizeReport {
	return &wirepb.SizeReport{Size: size, Blocks: (size + 511) / 512, MtimeSec: mtime, SetattrGen: gen, Valid: sizeAndTimes, Done: done}
}

// TestSizeValid: it is cleared by the first open for write, and set by the last writer's report.
func TestSizeValid(t *testing.T) {
	c := newCluster(t)
	a, b := c.client(), c.client()
	f := a.must(fid.Root, "f", reg|0o644)
	attrs := func() *wirepb.Attr {
		r, err := a.getattr(f)
		if err != nil {
			t.Fatal(err)
		}
		return r.Attr
	}
	if !attrs().SizeValid {
		t.Fatal("a new file that nobody writes has no valid size")
	}
	ra, _ := a.open(root, f, oWronly)
	rb, _ := b.open(root, f, oRdwr)
	if attrs().SizeValid {
		t.Fatal("valid while two write")
	}
	if !ra.Attr.SizeValid || rb.Attr.SizeValid {
		t.Fatalf("the first writer is told what was true before its open: %v; the second: %v", ra.Attr, rb.Attr)
	}
	if err := a.closeFile(f, ra.Handle, report(100, 5000000000, 0, true)); err != nil {
		t.Fatal(err)
	}
	if attrs().SizeValid {
		t.Fatal("valid while one writes")
	}
	// fsync of a writer: not done.
	r := report(150, 5000000001, 0, false)
	r.Seq, r.Oid = uint64(f.Seq), f.OID
	if err := b.do(wire.OpReportSizes, &wirepb.ReportSizesRequest{Reports: []*wirepb.SizeReport{r}}, nil); err != nil {
		t.Fatal(err)
	}
	if x := attrs(); x.SizeValid || x.Size != 150 {
		t.Fatalf("after fsync: %v", x)
	}
	if err := b.closeFile(f, rb.Handle, report(200, 4999999999, 0, true)); err != nil {
		t.Fatal(err)
	}
	if x := attrs(); !x.SizeValid || x.Size != 200 || x.MtimeSec != 5000000001 {
		t.Fatalf("after the last report: %v", x)
	}
	// A size from a writer that this target does not know (its open was lost in a crash) is not believed, and not ignored.
	stranger := report(777, 0, 0, false)
	stranger.Seq, stranger.Oid = uint64(f.Seq), f.OID
	if err := b.do(wire.OpReportSizes, &wirepb.ReportSizesRequest{Reports: []*wirepb.SizeReport{stranger}}, nil); err != nil {
		t.Fatal(err)
	}
	if x := attrs(); x.SizeValid {
		t.Fatalf("after a stranger's report: %v", x)
	}
	// utimes opens a generation: a report that follows an older one does not move mtime.
	ra, _ = a.open(root, f, oWronly)
	if _, err := a.setattr(root, f, attr.ValidMtime|attr.ValidAtime, &wirepb.Attr{MtimeSec: 1000}, 0); err != nil {
		t.Fatal(err)
	}
	if err := a.closeFile(f, ra.Handle, report(300, 6000000000, 0, true)); err != nil {
		t.Fatal(err)
	}
	if x := attrs(); !x.SizeValid || x.Size != 300 || x.MtimeSec != 1000 {
		t.Fatalf("after an old report: %v", x)
	}
	// Truncate makes a writer.
	if r, err := a.setattr(root, f, attr.ValidSize, &wirepb.Attr{Size: 10}, 0); err != nil || r.Attr.SizeValid || len(r.Layout) == 0 || r.Attr.SetattrGen != 2 {
		t.Fatalf("truncate: %v %v", r, err)
	}
	r = report(10, 7000000000, 2, true)
	r.Seq, r.Oid = uint64(f.Seq), f.OID
	if err := a.do(wire.OpReportSizes, &wirepb.ReportSizesRequest{Reports: []*wirepb.SizeReport{r}}, nil); err != nil {
		t.Fatal(err)
	}
	if x := attrs(); !x.SizeValid || x.Size != 10 {
		t.Fatalf("after truncate: %v", x)
	}
}

// TestWritersAreNotHeldToASizeOfBefore: two writers, of whom one truncates, leave a size that is not valid; of the next two
// the greatest report counts, though it is less.
func TestWritersAreNotHeldToASizeOfBefore(t *testing.T) {
	c := newCluster(t)
	a, b := c.client(), c.client()
	f := a.must(fid.Root, "f", reg|0o644)
	both := func(size, other uint64, gen uint32, between func()) *wirepb.Attr {
		ra, _ := a.open(root, f, oWronly)
		rb, _ := b.open(root, f, oWronly)
		between()
		if err := a.closeFile(f, ra.Handle, report(size, 5000000000, gen, true)); err != nil {
			t.Fatal(err)
		}
		if err := b.closeFile(f, rb.Handle, report(other, 5000000001, gen, true)); err != nil {
			t.Fatal(err)
		}
		r, err := a.getattr(f)
		if err != nil {
			t.Fatal(err)
		}
		return r.Attr
	}
	cut := func() {
		if _, err := a.setattr(root, f, attr.ValidSize, &wirepb.Attr{Size: 10}, 0); err != nil {
			t.Fatal(err)
		}
	}
	if x := both(10, 200, 1, cut); x.SizeValid {
		t.Fatalf("after a truncate among two writers: %v", x)
	}
	if x := both(60, 50, 1, func() {}); !x.SizeValid || x.Size != 60 {
		t.Fatalf("two writers report 60 and 50 bytes: %v", x)
	}
}

// TestEvictedWriterLeavesSizeUnknown: nobody can say what it had written.
func TestEvictedWriterLeavesSizeUnknown(t *testing.T) {
	c := newCluster(t)
	a, b := c.client(), c.client()
	f := a.must(fid.Root, "f", reg|0o644)
	rb, _ := b.open(root, f, oWronly)
	if _, err := a.open(root, f, oWronly); err != nil {
		t.Fatal(err)
	}
	unlinked := a.must(fid.Root, "g", reg|0o644, withOpen(oRdwr))
	if _, err := a.unlink(root, fid.Root, "g", false); err != nil {
		t.Fatal(err)
	}
	a.close() // Its export ends, with its opens.
	if _, err := b.getattr(unlinked); status.Of(err) != status.Stale {
		t.Errorf("an unlinked file outlived its last opener: %v", err)
	}
	if err := b.closeFile(f, rb.Handle, report(5, 6000000000, 0, true)); err != nil {
		t.Fatal(err)
	}
	if r, _ := b.getattr(f); r.Attr.SizeValid {
		t.Error("the size is valid although a writer was evicted")
	}
	rb, _ = b.open(root, f, oWronly)
	if err := b.closeFile(f, rb.Handle, report(5, 6000000000, 0, true)); err != nil {
		t.Fatal(err)
	}
	if r, _ := b.getattr(f); !r.Attr.SizeValid {
		t.Error("the next writer's report does not make it valid")
	}
}

// TestSyncWaitsForTheNewestChange: and holds no worker.
func TestSyncWaitsForTheNewestChange(t *testing.T) {
	c := newCluster(t, func(c *cluster) { c.ivl = -1 })
	cl := c.client()
	f := cl.must(fid.Root, "f", reg|0o644)
	for _, who := range []fid.FID{f, fid.Root} {
		if _, err := cl.setattr(root, f, attr.ValidMode, &wirepb.Attr{Mode: 0o600}, 0); err != nil {
			t.Fatal(err)
		}
		cl.must(fid.Root, "g"+who.String(), attr.TypeFifo|0o644)
		want := c.dev.Last()
		if who == f {
			want--
		}
		if c.dev.Committed() >= want {
			t.Fatal("committed already")
		}
		if err := cl.do(wire.OpSync, &wirepb.SyncRequest{Seq: uint64(who.Seq), Oid: who.OID}, nil); err != nil {
			t.Fatal(err)
		}
		if c.dev.Committed() < want {
			t.Errorf("sync of %v returned at %x, want %x", who, c.dev.Committed(), want)
		}
	}
}

// TestSyncOnAFailingDevice: what waits for a commit that never comes is answered.
func TestSyncOnAFailingDevice(t *testing.T) {
	var fail atomic.Bool
	c := newCluster(t, func(c *cluster) {
		c.ivl = -1
		c.onSync = func(memdev.Sync) error {
			if fail.Load() {
				return errors.New("disk failed")
			}
			return nil
		}
	})
	cl := c.client(func(o *rpc.ImportOptions) { o.RetryLimit = 200 * time.Millisecond })
	f := cl.must(fid.Root, "f", attr.TypeFifo|0o644)
	fail.Store(true)
	err := cl.do(wire.OpSync, &wirepb.SyncRequest{Seq: uint64(f.Seq), Oid: f.OID}, nil)
	if err == nil {
		t.Error("fsync succeeded without a commit")
	}
	c.halt(true)
}

// TestSequences: FIDs outside the client's sequences, and used ones, are refused, after a restart too.
func TestSequences(t *testing.T) {
	c := newCluster(t)
	a, b := c.client(), c.client()
	f := a.must(fid.Root, "f", attr.TypeFifo|0o644)
	b.must(fid.Root, "g", attr.TypeFifo|0o644)
	try := func(cl *client, f fid.FID) error {
		return cl.do(wire.OpCreate, &wirepb.CreateRequest{
			Caller: root.pb(), ParentSeq: uint64(fid.Root.Seq), ParentOid: 1, Name: []byte("new" + f.String()), Mode: attr.TypeFifo,
			Seq: uint64(f.Seq), Oid: f.OID,
		}, nil)
	}
	wantKind(t, "used", try(a, f), status.Protocol)
	wantKind(t, "another client's", try(b, fid.FID{Seq: f.Seq, OID: 100}), status.Protocol)
	if err := try(a, fid.FID{Seq: f.Seq, OID: 200}); err != nil {
		t.Fatal(err)
	}
	if err := try(a, fid.FID{Seq: f.Seq, OID: 150}); err != nil {
		t.Fatalf("a lower one that was overtaken: %v", err)
	}
	if err := try(b, fid.FID{Seq: f.Seq + 1, OID: 5000}); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "far behind", try(b, fid.FID{Seq: f.Seq + 1, OID: 2000}), status.Overtaken)
	if err := a.do(wire.OpSync, &wirepb.SyncRequest{All: true}, nil); err != nil {
		t.Fatal(err)
	}
	c.halt(false)
	uuid := a.uuid
	c.start()
	a2 := c.client(func(o *rpc.ImportOptions) { o.UUID = uuid })
	wantKind(t, "used before the restart", try(a2, fid.FID{Seq: f.Seq, OID: 150}), status.Protocol)
	if err := try(a2, fid.FID{Seq: f.Seq, OID: 151}); err != nil {
		t.Fatalf("the sequence did not survive: %v", err)
	}
	var r wirepb.SeqReply
	if err := a2.do(wire.OpSeq, nil, &r); err != nil || fid.Seq(r.First) <= f.Seq+1 {
		t.Fatalf("%v %v", r.First, err)
	}
}

// TestObjects: a file's objects follow its template, and are destroyed and given away when the MDT's disk says so.
func TestObjects(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	var l layout.Layout
	decode := func(b []byte) *layout.Component {
		t.Helper()
		if err := l.Decode(b); err != nil || len(l.Components) != 1 {
			t.Fatalf("%v %v", l, err)
		}
		return &l.Components[0]
	}
	d := cl.must(fid.Root, "d", dir|0o755)
	r, err := cl.make(root, d, "f", reg|0o644)
	if err != nil {
		t.Fatal(err)
	}
	if k := decode(r.Layout); len(k.Stripes) != 1 || k.StripeSize != layout.StripeSizeDefault {
		t.Fatalf("default layout %+v", k)
	}
	wide := layout.Plain(layout.CountAll, 1<<20)
	set := func(f fid.FID, b []byte) error {
		return cl.do(wire.OpSetLayout, &wirepb.LayoutRequest{Caller: root.pb(), Seq: uint64(f.Seq), Oid: f.OID, Layout: b}, nil)
	}
	if err := set(d, wide.Append(nil)); err != nil {
		t.Fatal(err)
	}
	sub := cl.must(d, "sub", dir|0o755)
	r, _ = cl.make(root, sub, "f", reg|0o644)
	if k := decode(r.Layout); len(k.Stripes) != 2 || k.StripeSize != 1<<20 {
		t.Fatalf("inherited layout %+v", k)
	}
	wantKind(t, "objects in a template", set(d, r.Layout), status.Invalid)
	// An empty file's layout can change, a written one's cannot.
	f := fidOf(r.Attr)
	narrow := layout.Plain(1, 2<<20)
	old := l.Clone()
	if err := set(f, narrow.Append(nil)); err != nil {
		t.Fatal(err)
	}
	r, _ = cl.getattr(f)
	if k := decode(r.Layout); len(k.Stripes) != 1 || l.Gen != old.Gen+1 {
		t.Fatalf("new layout %+v", l)
	}
	o, _ := cl.open(root, f, oWronly)
	_ = cl.closeFile(f, o.Handle, nil)
	wantKind(t, "layout of a written file", set(f, narrow.Append(nil)), status.Exist)
	if _, err := cl.setattr(root, f, attr.ValidUID, &wirepb.Attr{Uid: 42}, 0); err != nil {
		t.Fatal(err)
	}
	stripe := l.Components[0].Stripes[0]
	ost := c.osts[stripe.OST]
	eventually(t, "the object's owner", func() bool {
		ost.mu.Lock()
		defer ost.mu.Unlock()
		m := ost.owners[stripe.Object.ID]
		return m != nil && m.Uid == 42
	})
	if _, err := cl.unlink(root, sub, "f", false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the object's end", func() bool { return ost.isDestroyed(stripe.Object.ID) })
	for _, s := range old.Components[0].Stripes {
		eventually(t, "the replaced object's end", func() bool { return c.osts[s.OST].isDestroyed(s.Object.ID) })
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, errors.New("not in time"))
		}
	}
}

// TestOvertakenReport: a report of "done" that an open or a truncate of the same client has overtaken ends nothing.
func TestOvertakenReport(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	r, err := cl.make(root, fid.Root, "f", reg|0o644, withOpen(oWronly))
	if err != nil {
		t.Fatal(err)
	}
	f := fidOf(r.Attr)
	valid := func() bool {
		r, err := cl.getattr(f)
		if err != nil {
			t.Fatal(err)
		}
		return r.Attr.SizeValid
	}
	again, _ := cl.open(root, f, oWronly)
	if err := cl.closeFile(f, r.Handle, report(10, 1, 0, true)); err != nil || valid() {
		t.Errorf("valid with a handle open for write: %v", err)
	}
	if err := cl.closeFile(f, again.Handle, nil); err != nil || valid() {
		t.Errorf("valid without a report: %v", err)
	}
	if _, err := cl.setattr(root, f, attr.ValidSize, &wirepb.Attr{Size: 5}, 0); err != nil {
		t.Fatal(err)
	}
	if err := cl.closeFile(f, 0, report(10, 1, 0, true)); err != nil || valid() {
		t.Errorf("valid by a report from before the truncate: %v", err)
	}
	if err := cl.closeFile(f, 0, report(5, 1, 1, true)); err != nil || !valid() {
		t.Errorf("not valid after the last report: %v", err)
	}
}
