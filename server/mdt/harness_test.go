package mdt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
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
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/memdev"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testFS  = "strake"
	testMDT = "strake-MDT0000"
)

// fakeOST answers what an MDT asks of an OST.
type fakeOST struct {
	mu        sync.Mutex
	last      uint64
	transno   wire.Transno
	destroyed map[uint64]bool
	owners    map[uint64]*wirepb.ObjectSetattrRequest
	committed func(wire.Transno)
}

func newFakeOST() *fakeOST {
	return &fakeOST{destroyed: map[uint64]bool{}, owners: map[uint64]*wirepb.ObjectSetattrRequest{}}
}

func (f *fakeOST) Do(ctx context.Context, r *rpc.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch r.Op {
	case wire.OpStatfs:
		*r.Reply.(*wirepb.StatfsReply) = wirepb.StatfsReply{TotalBytes: 1 << 40, FreeBytes: 1 << 40, AvailBytes: 1 << 40, Inodes: 1 << 30, FreeInodes: 1 << 30}
		return nil
	case wire.OpPrecreate:
		m := r.Body.(*wirepb.PrecreateRequest)
		f.last = max(f.last, m.Upto)
		r.Reply.(*wirepb.PrecreateReply).Last = f.last
	case wire.OpDestroy:
		for _, id := range r.Body.(*wirepb.DestroyRequest).Ids {
			f.destroyed[id] = true
		}
	case wire.OpObjectSetattr:
		m := r.Body.(*wirepb.ObjectSetattrRequest)
		f.owners[m.Object.Id] = proto.Clone(m).(*wirepb.ObjectSetattrRequest)
	}
	f.transno++
	r.Transno = f.transno
	if f.committed != nil {
		go f.committed(f.transno)
	}
	return nil
}

func (f *fakeOST) LastCommitted() wire.Transno {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.transno
}
func (f *fakeOST) Instance() uint64            { return 1 }
func (f *fakeOST) SetAddresses([]string)       {}
func (f *fakeOST) Close(context.Context) error { return nil }

func (f *fakeOST) isDestroyed(id uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.destroyed[id]
}

// cluster is one MDT over a memory disk, reached over a pipe.
type cluster struct {
	t      testing.TB
	disk   *memdev.Disk
	dev    *memdev.Device
	kv     store.Device
	osts   []*fakeOST
	set    *osp.Set
	h      *Handler
	srv    *rpc.Server
	net    *rpc.Pipe
	l      net.Listener
	ivl    time.Duration
	wrap   func(store.Device) store.Device
	open   func() store.Device
	onSync func(memdev.Sync) error
	now    atomic.Pointer[func() time.Time]
	limits ldlm.Limits
	grace  time.Duration
	stats  *stats.Registry
	down   bool
	window time.Duration
	shares bool // commit on share, in an MDT with a window
	log    *slog.Logger
}

func testSpecs() []store.Spec {
	return append(append(target.Specs(), Specs()...), osp.Specs()...)
}

func newCluster(t testing.TB, opts ...func(*cluster)) *cluster {
	c := &cluster{t: t, disk: memdev.NewDisk(), osts: []*fakeOST{newFakeOST(), newFakeOST()}, ivl: 5 * time.Millisecond}
	for _, o := range opts {
		o(c)
	}
	c.start()
	t.Cleanup(c.stop)
	return c
}

func (c *cluster) start() {
	c.t.Helper()
	var err error
	if c.open != nil {
		c.kv = c.open()
	} else {
		if c.dev, err = memdev.Open(c.disk, memdev.Options{Specs: testSpecs(), CommitInterval: c.ivl, OnSync: c.onSync}); err != nil {
			c.t.Fatal(err)
		}
		c.kv = c.dev
	}
	if c.wrap != nil {
		c.kv = c.wrap(c.dev)
	}
	c.set = osp.New(osp.Options{
		Device: c.kv, Tables: osp.TablesAt(7), FSName: testFS, Name: testMDT, StatfsEvery: time.Hour,
		Connect: func(i layout.OSTIndex, _ []string, ev osp.Events) (osp.Remote, error) {
			go ev.Connected(&wirepb.ConnectReply{})
			return c.osts[i], nil
		},
	})
	clock := func() time.Time {
		if f := c.now.Load(); f != nil {
			return (*f)()
		}
		return time.Now()
	}
	c.h, err = New(Options{
		Name: testMDT, FSName: testFS, Device: c.kv, Tables: TablesAt(2), Clients: 0, Slots: 1,
		Key: []byte("0123456789abcdef"), Objects: c.set, Clock: clock, LockLimits: c.limits, ReconnectGrace: c.grace, Stats: c.stats,
		ReplayWindow: c.window, Recovered: c.set.RecoveryEnded, Log: c.log,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range c.osts {
		if err := c.set.SetOST(layout.OSTIndex(i), nil, true); err != nil {
			c.t.Fatal(err)
		}
	}
	if c.window != 0 && !c.shares {
		c.h.sharing.level.Store(shareNothing) // So that something is left to be replayed, and to be refused.
	}
	for i := 0; ; i++ {
		if c.h.Target().Recovering() {
			break // Objects are made when it is over.
		}
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		err := c.set.Ready(ctx)
		cancel()
		if err == nil {
			break
		}
		if i == 200 {
			c.t.Fatal(err)
		}
	}
	c.net = rpc.NewPipe()
	c.srv = rpc.NewServer(rpc.ServerOptions{Stats: c.stats, Find: func(string) (rpc.Target, error) { return c.h.Target(), nil }})
	if c.l, err = c.net.Listen("mdt"); err != nil {
		c.t.Fatal(err)
	}
	go func() { _ = c.srv.Serve(c.l) }()
	c.down = false
}

// halt ends everything over the device, which is closed, or crashed if crash is set.
func (c *cluster) halt(crash bool) {
	if c.down {
		return
	}
	c.down = true
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if crash {
		c.dev.Crash()
	}
	err := errors.Join(c.h.Close(ctx), c.srv.Close(ctx), c.set.Close(ctx))
	if !crash {
		err = errors.Join(err, c.kv.Close())
	} else {
		_ = c.dev.Close()
	}
	if err != nil && !crash {
		c.t.Errorf("stopping: %v", err)
	}
}

func (c *cluster) stop() { c.halt(false) }

func (c *cluster) restart(crash bool) {
	c.t.Helper()
	c.halt(crash)
	c.start()
}

// client is one mount's import, with typed calls. Its methods take who asks.
type client struct {
	t    testing.TB
	c    *cluster
	imp  *rpc.Import
	mu   sync.Mutex
	seq  uint64
	oid  uint32
	uuid [16]byte
	h    *holder // asks for locks with all that it does; nil: asks for none
	// keeps has the client without an import: a test replays what it has kept.
	keeps *keeper
}

var clientNumber atomic.Uint32

func (c *cluster) client(opts ...func(*rpc.ImportOptions)) *client {
	c.t.Helper()
	n := clientNumber.Add(1)
	cl := &client{t: c.t, c: c, uuid: [16]byte{byte(n >> 8), byte(n), 7}}
	o := rpc.ImportOptions{
		Transport: c.net, Addresses: []string{"mdt"}, FSName: testFS, Target: testMDT, UUID: cl.uuid,
		Peer: "test", Kind: rpc.KindClient, RetryLimit: 5 * time.Second,
	}
	for _, f := range opts {
		f(&o)
	}
	var err error
	if cl.imp, err = rpc.NewImport(o); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := cl.imp.Connect(ctx); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { cl.close() })
	return cl
}

func (cl *client) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_ = cl.imp.Close(ctx)
}

func (cl *client) do(op wire.Op, body, reply rpc.Message) error {
	r := rpc.Request{Op: op, Body: body, Reply: reply}
	return cl.send(&r)
}

// send sends a request by the import, or as who keeps what was answered.
func (cl *client) send(r *rpc.Request) error {
	if cl.keeps != nil {
		return cl.keeps.send(r)
	}
	return cl.imp.Do(context.Background(), r)
}

// next draws a FID.
func (cl *client) next() fid.FID {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.seq == 0 || cl.oid == fid.Width-1 {
		var r wirepb.SeqReply
		if err := cl.do(wire.OpSeq, nil, &r); err != nil {
			cl.t.Fatalf("seq: %v", err)
		}
		cl.seq, cl.oid = r.First, 0
	}
	cl.oid++
	return fid.FID{Seq: fid.Seq(cl.seq), OID: cl.oid}
}

// who is a caller.
type who struct {
	uid, gid uint32
	groups   []uint32
	umask    uint32
	project  uint32
}

var root = who{}

func (w who) pb() *wirepb.Caller {
	return &wirepb.Caller{Uid: w.uid, Gid: w.gid, Groups: w.groups, Umask: w.umask, Project: w.project}
}

func fidOf(a *wirepb.Attr) fid.FID { return fid.FID{Seq: fid.Seq(a.Seq), OID: a.Oid} }

func (cl *client) lookup(w who, p fid.FID, name string) (*wirepb.EntryReply, error) {
	r := &wirepb.EntryReply{}
	err := cl.do(wire.OpLookup, &wirepb.LookupRequest{Caller: w.pb(), ParentSeq: uint64(p.Seq), ParentOid: p.OID, Name: []byte(name), Want: cl.h.wish()}, r)
	cl.h.take(r.Locks)
	return r, err
}

func (cl *client) getattr(f fid.FID) (*wirepb.EntryReply, error) {
	r := &wirepb.EntryReply{}
	err := cl.do(wire.OpGetattr, &wirepb.GetattrRequest{Seq: uint64(f.Seq), Oid: f.OID, Want: cl.h.wish()}, r)
	cl.h.take(r.Locks)
	return r, err
}

func (cl *client) make(w who, p fid.FID, name string, mode uint32, more ...func(*wirepb.CreateRequest)) (*wirepb.EntryReply, error) {
	f := cl.next()
	m := &wirepb.CreateRequest{Caller: w.pb(), ParentSeq: uint64(p.Seq), ParentOid: p.OID, Name: []byte(name), Seq: uint64(f.Seq), Oid: f.OID, Mode: mode, Want: cl.h.wish()}
	for _, fn := range more {
		fn(m)
	}
	r := &wirepb.EntryReply{}
	err := cl.do(wire.OpCreate, m, r)
	cl.h.take(r.Locks)
	return r, err
}

func withOpen(flags uint32) func(*wirepb.CreateRequest) {
	return func(m *wirepb.CreateRequest) { m.Open, m.Flags = true, flags }
}

func withLink(target string) func(*wirepb.CreateRequest) {
	return func(m *wirepb.CreateRequest) { m.Symlink = []byte(target) }
}

// must makes and fails the test if it cannot.
func (cl *client) must(p fid.FID, name string, mode uint32, more ...func(*wirepb.CreateRequest)) fid.FID {
	cl.t.Helper()
	r, err := cl.make(root, p, name, mode, more...)
	if err != nil {
		cl.t.Fatalf("create %s: %v", name, err)
	}
	return fidOf(r.Attr)
}

func (cl *client) open(w who, f fid.FID, flags uint32) (*wirepb.EntryReply, error) {
	r := &wirepb.EntryReply{}
	err := cl.do(wire.OpOpen, &wirepb.OpenRequest{Caller: w.pb(), Seq: uint64(f.Seq), Oid: f.OID, Flags: flags, Want: cl.h.wish()}, r)
	cl.h.take(r.Locks)
	return r, err
}

func (cl *client) closeFile(f fid.FID, handle uint64, report *wirepb.SizeReport) error {
	return cl.do(wire.OpClose, &wirepb.CloseRequest{Seq: uint64(f.Seq), Oid: f.OID, Handle: handle, Report: report}, nil)
}

func (cl *client) unlink(w who, p fid.FID, name string, rmdir bool) (*wirepb.UnlinkReply, error) {
	r := &wirepb.UnlinkReply{}
	return r, cl.do(wire.OpUnlink, &wirepb.UnlinkRequest{Caller: w.pb(), ParentSeq: uint64(p.Seq), ParentOid: p.OID, Name: []byte(name), Rmdir: rmdir}, r)
}

func (cl *client) link(w who, f, p fid.FID, name string) (*wirepb.EntryReply, error) {
	r := &wirepb.EntryReply{}
	return r, cl.do(wire.OpLink, &wirepb.LinkRequest{Caller: w.pb(), Seq: uint64(f.Seq), Oid: f.OID, ParentSeq: uint64(p.Seq), ParentOid: p.OID, Name: []byte(name)}, r)
}

func (cl *client) rename(w who, p fid.FID, name string, q fid.FID, to string, flags uint32) (*wirepb.RenameReply, error) {
	m := &wirepb.RenameRequest{
		Caller: w.pb(), FromSeq: uint64(p.Seq), FromOid: p.OID, FromName: []byte(name), ToSeq: uint64(q.Seq), ToOid: q.OID, ToName: []byte(to), Flags: flags,
	}
	if flags&renameWhiteout != 0 {
		f := cl.next()
		m.WhiteoutSeq, m.WhiteoutOid = uint64(f.Seq), f.OID
	}
	r := &wirepb.RenameReply{}
	return r, cl.do(wire.OpRename, m, r)
}

func (cl *client) setattr(w who, f fid.FID, valid attr.Valid, a *wirepb.Attr, handle uint64) (*wirepb.EntryReply, error) {
	r := &wirepb.EntryReply{}
	err := cl.do(wire.OpSetattr, &wirepb.SetattrRequest{Caller: w.pb(), Seq: uint64(f.Seq), Oid: f.OID, Valid: uint32(valid), Attr: a, Handle: handle, Want: cl.h.wish()}, r)
	cl.h.take(r.Locks)
	return r, err
}

func (cl *client) xattr(op wire.Op, w who, f fid.FID, name string, value []byte, flags uint32) ([]byte, error) {
	r := &wirepb.XattrReply{}
	err := cl.do(op, &wirepb.XattrRequest{Caller: w.pb(), Seq: uint64(f.Seq), Oid: f.OID, Name: []byte(name), Value: value, Flags: flags, Want: cl.h.wish()}, r)
	cl.h.take(r.Locks)
	return r.Value, err
}

// list reads a folder whole, in pages of size bytes.
func (cl *client) list(f fid.FID, size uint32, plus bool, each func()) ([]*wirepb.Dirent, error) {
	var all []*wirepb.Dirent
	cookie := uint64(0)
	for {
		var r wirepb.ReaddirReply
		req := rpc.Request{
			Op:    wire.OpReaddir,
			Body:  &wirepb.ReaddirRequest{Caller: root.pb(), Seq: uint64(f.Seq), Oid: f.OID, Cookie: cookie, MaxBytes: size, Plus: plus, Want: cl.h.wish(), WantFolder: cl.h.wish()},
			Reply: &r, Into: make([]byte, 1<<20),
		}
		if err := cl.send(&req); err != nil {
			return all, err
		}
		locks := r.Locks
		b := req.Into[:req.N]
		for len(b) > 0 {
			n, k := uvarint(b)
			d := &wirepb.Dirent{}
			if err := d.UnmarshalVT(b[k : k+n]); err != nil {
				return all, err
			}
			all = append(all, d)
			if d.Lock != nil {
				locks = append(locks, d.Lock)
			}
			cookie = d.Cookie
			b = b[k+n:]
		}
		cl.h.take(locks)
		if r.Eof {
			return all, nil
		}
		if each != nil {
			each()
		}
	}
}

func uvarint(b []byte) (int, int) {
	v, s := 0, 0
	for i, c := range b {
		v |= int(c&0x7f) << s
		if c < 0x80 {
			return v, i + 1
		}
		s += 7
	}
	panic("short")
}

// wantKind fails the test unless err has the kind.
func wantKind(t testing.TB, what string, err error, k status.Kind) {
	t.Helper()
	if status.Of(err) != k {
		t.Errorf("%s: %v, want %v", what, err, k)
	}
}

func names(ds []*wirepb.Dirent) (out []string) {
	for _, d := range ds {
		out = append(out, string(d.Name))
	}
	return out
}

const (
	reg  = attr.TypeFile
	dir  = attr.TypeDir
	slnk = attr.TypeLink
)

var _ = fmt.Sprint
