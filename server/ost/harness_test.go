package ost_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/memdev"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	name = "strake-OST0000"
	// Tables by their place in ost.Specs.
	tableObjects = store.Table(2)
	tableHot     = store.Table(3)
	tableUsage   = store.Table(5)
)

// node is one OST over a disk in memory, served without a network.
type node struct {
	t       testing.TB
	disk    *memdev.Disk
	device  *memdev.Device
	ost     *ost.OST
	options ost.Options
	onSync  func(memdev.Sync) error
	pipe    *rpc.Pipe
	server  *rpc.Server
	served  sync.WaitGroup
	peers   []*peer
}

func newNode(t testing.TB, o ost.Options) *node {
	n := &node{t: t, disk: memdev.NewDisk(), pipe: rpc.NewPipe(), options: o}
	if o.CommitEvery == 0 {
		n.options.CommitEvery = time.Hour // Tests say when.
	}
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

func (n *node) start() {
	n.t.Helper()
	if err := n.tryStart(); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) tryStart() (err error) {
	n.device, err = memdev.Open(n.disk, memdev.Options{Specs: ost.Specs(), CommitInterval: -1, OnSync: n.onSync})
	if err != nil {
		return err
	}
	o := n.options
	o.Name, o.FSName, o.Device = name, "strake", n.device
	if o.ReplayWindow == 0 {
		o.ReplayWindow = -1 // Tests of it set one.
	}
	if n.ost, err = ost.New(context.Background(), o); err != nil {
		return err
	}
	target := n.ost
	n.server = rpc.NewServer(rpc.ServerOptions{Find: func(string) (rpc.Target, error) { return target, nil }})
	l, err := n.pipe.Listen("oss")
	if err != nil {
		return err
	}
	server := n.server
	n.served.Go(func() { _ = server.Serve(l) })
	return nil
}

func (n *node) stop() {
	if n.ost == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, p := range n.peers {
		_ = p.i.Close(ctx)
	}
	n.peers = nil
	if err := n.server.Close(ctx); err != nil {
		n.t.Error(err)
	}
	n.served.Wait()
	if err := n.ost.Close(ctx); err != nil {
		n.t.Error(err)
	}
	n.ost = nil
	if err := n.device.Close(); err != nil {
		n.t.Error(err)
	}
}

// crash loses what is not on disk; start follows.
func (n *node) crash() {
	n.device.Crash()
	n.stop()
}

// peer is one client of the OST.
type peer struct {
	n       *node
	i       *rpc.Import
	granted uint64
}

func (n *node) connect(kind uint32, uuid byte) *peer {
	n.t.Helper()
	return must(n.tryConnect(context.Background(), kind, uuid))
}

// tryConnect tries until ctx ends.
func (n *node) tryConnect(ctx context.Context, kind uint32, uuid byte) (*peer, error) {
	p := &peer{n: n}
	i, err := rpc.NewImport(rpc.ImportOptions{
		Transport: n.pipe, Addresses: []string{"oss"}, FSName: "strake", Target: name,
		UUID: [16]byte{15: uuid}, Peer: "test", Kind: kind, Bulk: kind == rpc.KindClient,
		RetryLimit: 20 * time.Millisecond, OnConnect: func(r *wirepb.ConnectReply) { p.granted = r.Grant },
	})
	if err != nil {
		return nil, err
	}
	p.i = i
	n.peers = append(n.peers, p)
	return p, i.Connect(ctx)
}

func (p *peer) do(op wire.Op, body, reply rpc.Message, bulk []byte) (wire.Transno, error) {
	r := rpc.Request{Op: op, Body: body, Reply: reply}
	if len(bulk) > 0 {
		r.Bulk = [][]byte{bulk}
	}
	err := p.i.Do(context.Background(), &r)
	return r.Transno, err
}

func (p *peer) read(id, off uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	r := rpc.Request{Op: wire.OpRead, Body: &wirepb.ReadRequest{Object: object(id), Offset: off, Length: uint32(n)}, Into: b}
	err := p.i.Do(context.Background(), &r)
	return b[:r.N], err
}

func object(id uint64) *wirepb.Object {
	return &wirepb.Object{Id: id, OwnerSeq: 0x200000401, OwnerOid: uint32(id)}
}

func (p *peer) precreate(upto uint64) (uint64, error) {
	r := &wirepb.PrecreateReply{}
	_, err := p.do(wire.OpPrecreate, &wirepb.PrecreateRequest{Upto: upto}, r, nil)
	return r.Last, err
}

func (p *peer) write(id, off uint64, data []byte) (wire.Transno, error) {
	return p.do(wire.OpWrite, &wirepb.WriteRequest{
		Object: object(id), Offset: off, MtimeSec: 100, Uid: 1, Gid: 2, Project: 3,
	}, nil, data)
}

func (p *peer) truncate(id, size uint64) error {
	_, err := p.do(wire.OpPunch, &wirepb.PunchRequest{Object: object(id), Start: size, End: extent.EOF, MtimeSec: 101}, nil, nil)
	return err
}

func (p *peer) glimpse(id uint64) (*wirepb.ObjectReply, error) {
	r := &wirepb.ObjectReply{}
	_, err := p.do(wire.OpGlimpse, &wirepb.GlimpseRequest{Object: object(id)}, r, nil)
	return r, err
}

func (p *peer) sync(id uint64) error {
	m := &wirepb.ObjectSyncRequest{All: id == 0}
	if id != 0 {
		m.Object = object(id)
	}
	_, err := p.do(wire.OpObjectSync, m, nil, nil)
	return err
}

func (p *peer) destroy(ids ...uint64) (wire.Transno, error) {
	return p.do(wire.OpDestroy, &wirepb.DestroyRequest{Ids: ids}, nil, nil)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func wantKind(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got %v, want %v", err, kind)
	}
}

// rows counts the keys of a table.
func (n *node) rows(table store.Table) int {
	rows := 0
	_ = n.device.Scan(env.New(), table, nil, nil, func(_, _ []byte) bool { rows++; return true })
	return rows
}
