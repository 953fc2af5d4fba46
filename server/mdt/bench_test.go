package mdt

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
)

// direct calls the handler without a connection, as one worker does.
type direct struct {
	c    *cluster
	e    *env.Env
	call rpc.Call
	xid  wire.XID
	x    rpc.Session
	body []byte
}

func newDirect(c *cluster, cl *client) *direct {
	d := &direct{c: c, e: env.New(), xid: 1 << 20}
	for _, x := range c.h.Target().Exports() {
		if x.UUID == cl.uuid {
			d.x = x
		}
	}
	ctx := context.Background()
	c.h.contextOf = func(*rpc.Call) context.Context { return ctx }
	return d
}

func (d *direct) do(op wire.Op, m rpc.Message) error {
	size := m.SizeVT()
	if cap(d.body) < size {
		d.body = make([]byte, size+256)
	}
	d.body = d.body[:size]
	if _, err := m.MarshalToSizedBufferVT(d.body); err != nil {
		return err
	}
	d.xid++
	d.e.Reset()
	d.call.Header = wire.Header{Op: op, XID: d.xid, Slot: 200, Generation: d.x.Generation()}
	d.call.Body, d.call.Session = d.body, d.x
	return d.x.Serve(d.e, &d.call)
}

// onBolt puts the cluster on a device of a local file system.
func onBolt(b *testing.B) func(*cluster) {
	return func(c *cluster) {
		c.open = func() store.Device {
			d, err := boltdev.Open(boltdev.Options{Dir: filepath.Join(b.TempDir(), "dev"), Specs: testSpecs(), Label: store.Label{FSName: testFS, Kind: store.KindMDT}})
			if err != nil {
				b.Fatal(err)
			}
			return d
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	b.Run("memdev", func(b *testing.B) { benchCreate(b, func(c *cluster) { c.ivl = -1 }) })
	b.Run("boltdev", func(b *testing.B) { benchCreate(b, onBolt(b)) })
}

func benchCreate(b *testing.B, opt func(*cluster)) {
	c := newCluster(b, opt)
	cl := c.client()
	p := cl.must(fid.Root, "p", dir|0o755)
	cl.must(p, "warm", reg|0o644)
	d := newDirect(c, cl)
	m := &wirepb.CreateRequest{Caller: who{uid: 1000, groups: []uint32{1, 2, 3}, umask: 0o22}.pb(), ParentSeq: uint64(p.Seq), ParentOid: p.OID, Mode: reg | 0o644}
	m.Caller.Uid = 0
	f := cl.next()
	m.Seq = uint64(f.Seq)
	oid := f.OID
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		oid++
		if oid == fid.Width {
			b.StopTimer()
			cl.seq = 0
			f = cl.next()
			m.Seq, oid = uint64(f.Seq), f.OID
			b.StartTimer()
		}
		m.Oid = oid
		m.Name = fmt.Appendf(m.Name[:0], "file%08d", i)
		if err := d.do(wire.OpCreate, m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	c := newCluster(b, onBolt(b))
	cl := c.client()
	p := cl.must(fid.Root, "p", dir|0o755)
	for i := range 1000 {
		cl.must(p, fmt.Sprintf("file%d", i), reg|0o644)
	}
	d := newDirect(c, cl)
	m := &wirepb.LookupRequest{Caller: root.pb(), ParentSeq: uint64(p.Seq), ParentOid: p.OID}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m.Name = fmt.Appendf(m.Name[:0], "file%d", i%1000)
		if err := d.do(wire.OpLookup, m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetattr(b *testing.B) {
	c := newCluster(b, onBolt(b))
	cl := c.client()
	f := cl.must(fid.Root, "f", reg|0o644)
	d := newDirect(c, cl)
	m := &wirepb.GetattrRequest{Caller: root.pb(), Seq: uint64(f.Seq), Oid: f.OID}
	b.ReportAllocs()
	for b.Loop() {
		if err := d.do(wire.OpGetattr, m); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLookupGrant: a lookup whose answer brings a lock, and the lock's cancel.
func BenchmarkLookupGrant(b *testing.B) {
	c := newCluster(b, onBolt(b))
	cl := c.client()
	cl.must(fid.Root, "f", reg|0o644)
	d := newDirect(c, cl)
	m := &wirepb.LookupRequest{Caller: root.pb(), ParentSeq: uint64(fid.Root.Seq), ParentOid: 1, Name: []byte("f"),
		Want: &wirepb.LockWant{Mode: uint32(ldlm.PR), TryBits: uint32(allBits)}}
	cancel := &wirepb.CancelRequest{Locks: make([]uint64, 1)}
	b.ReportAllocs()
	for b.Loop() {
		if err := d.do(wire.OpLookup, m); err != nil {
			b.Fatal(err)
		}
		cancel.Locks[0] = d.call.Reply.(*wirepb.EntryReply).Locks[0].Lock
		if err := d.do(wire.OpCancel, cancel); err != nil {
			b.Fatal(err)
		}
	}
}

// takeAll returns the locks that went with answers and forgets them.
func (s *sentGrants) takeAll() (b []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.list {
		b = append(b, s.list[i].lock)
	}
	s.list, s.next = s.list[:0], 0
	return b
}

// BenchmarkReaddirPlus lists 1000 entries with attributes, without and with locks, which are cancelled outside of the time.
func BenchmarkReaddirPlus(b *testing.B) {
	for _, locks := range []bool{false, true} {
		b.Run(fmt.Sprintf("locks=%v", locks), func(b *testing.B) {
			c := newCluster(b, onBolt(b))
			cl := c.client()
			p := cl.must(fid.Root, "p", dir|0o755)
			for i := range 1000 {
				cl.must(p, fmt.Sprintf("file%d", i), reg|0o644)
			}
			e, into := env.New(), make([]byte, 1<<20)
			var r wirepb.ReaddirReply
			m := &wirepb.ReaddirRequest{Caller: root.pb(), Seq: uint64(p.Seq), Oid: p.OID, MaxBytes: 1 << 20, Plus: true}
			if locks {
				m.Want = &wirepb.LockWant{Mode: uint32(ldlm.PR), TryBits: uint32(allBits)}
			}
			x := exportOf(c, cl).State.(*export)
			b.ReportAllocs()
			for b.Loop() {
				req := rpc.Request{Op: wire.OpReaddir, Body: m, Reply: &r, Into: into}
				if err := cl.imp.Do(context.Background(), &req); err != nil {
					b.Fatal(err)
				}
				if locks {
					b.StopTimer()
					if got := c.h.ldlm.Namespace().LockCount(); got != 1000 {
						b.Fatalf("%d locks", got)
					}
					o := c.h.begin(e, exportOf(c, cl), nil)
					o.takeBack(x.sent.takeAll())
					b.StartTimer()
				}
			}
		})
	}
}

func BenchmarkUnlink(b *testing.B) {
	c := newCluster(b)
	cl := c.client()
	p := cl.must(fid.Root, "p", dir|0o755)
	d := newDirect(c, cl)
	m := &wirepb.UnlinkRequest{Caller: root.pb(), ParentSeq: uint64(p.Seq), ParentOid: p.OID}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		name := fmt.Sprintf("f%d", i)
		cl.must(p, name, attr.TypeFifo|0o644)
		m.Name = append(m.Name[:0], name...)
		b.StartTimer()
		if err := d.do(wire.OpUnlink, m); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAgree is what commit on share adds to a create whose client shares nothing, and to one whose folder another client has
// changed, on disk.
func BenchmarkAgree(b *testing.B) {
	for _, other := range []uint64{0, 1} {
		b.Run(fmt.Sprintf("other=%d", other), func(b *testing.B) {
			c := newCluster(b, seldom)
			cl := c.client()
			p := cl.must(fid.Root, "p", dir|0o755)
			d := newDirect(c, cl)
			_ = d.do(wire.OpGetattr, &wirepb.GetattrRequest{Seq: uint64(p.Seq), Oid: p.OID})
			o, s := opOf(d.e), slot{cookie: nameHash(7).cookie(0)}
			own := stamp{c.kv.Committed(), o.client + other}
			b.ReportAllocs()
			for b.Loop() {
				o.deps = o.deps[:0]
				o.depends(own)
				o.absent(p, &s)
				if err := o.agree(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
