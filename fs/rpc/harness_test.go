package rpc_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

const targetName = "strake-TEST0000"

// disk is what of a fake target survives a restart of its server: the last xid and reply of each client's slot, and how
// often each xid was executed.
type disk struct {
	mu       sync.Mutex
	slots    map[slotKey]slotReply // guarded by mu
	executed map[wire.XID]int      // guarded by mu
	known    map[[16]byte]uint64   // generation by client; guarded by mu
	transno  wire.Transno          // guarded by mu
	lastGen  uint64                // guarded by mu
}

type slotKey struct {
	client [16]byte
	slot   uint32
}

type slotReply struct {
	xid     wire.XID
	transno wire.Transno
}

func newDisk() *disk {
	return &disk{slots: map[slotKey]slotReply{}, executed: map[wire.XID]int{}, known: map[[16]byte]uint64{}}
}

// target is a fake: what its sessions do is set by the test.
type target struct {
	t           testing.TB
	disk        *disk
	instance    uint64
	maxInFlight uint32
	brwSize     uint32
	serve       func(e *env.Env, c *rpc.Call) error
	recovering  func(instance uint64) bool // nil: there is no recovery window
	refuse      atomic.Pointer[status.Error]
	committed   atomic.Uint64
	sessions    sync.Map // *session -> struct{}
	gone        atomic.Int64
}

type session struct {
	t      *target
	client [16]byte
	gen    atomic.Uint64
	conn   *rpc.Conn
}

func (t *target) Connect(_ context.Context, conn *rpc.Conn, r *wirepb.ConnectRequest) (rpc.Session, *wirepb.ConnectReply, error) {
	if e := t.refuse.Load(); e != nil {
		return nil, nil, e
	}
	s := &session{t: t, client: [16]byte(r.Uuid), conn: conn}
	t.disk.mu.Lock()
	defer t.disk.mu.Unlock()
	gen, known := t.disk.known[s.client]
	if !known {
		t.disk.lastGen++
		gen = t.disk.lastGen
		t.disk.known[s.client] = gen
	}
	s.gen.Store(gen)
	t.sessions.Store(s, struct{}{})
	return s, &wirepb.ConnectReply{
		Version: wire.Version, Generation: gen, Instance: t.instance, Recovered: known && r.Generation == gen,
		MaxRpcsInFlight: t.maxInFlight, BrwSize: t.brwSize, Recovering: t.recovering != nil && t.recovering(t.instance),
	}, nil
}

// evict makes the target forget its clients.
func (t *target) evict() {
	t.disk.mu.Lock()
	clear(t.disk.known)
	t.disk.mu.Unlock()
	t.sessions.Range(func(k, _ any) bool {
		k.(*session).gen.Store(0)
		return true
	})
}

func (s *session) Serve(e *env.Env, c *rpc.Call) error {
	if c.Header.Op == wire.OpDisconnect {
		return nil
	}
	if s.t.serve != nil {
		return s.t.serve(e, c)
	}
	return serveEcho(e, c)
}

func (s *session) LastCommitted() wire.Transno { return wire.Transno(s.t.committed.Load()) }
func (s *session) Generation() uint64          { return s.gen.Load() }
func (s *session) Disconnected(*rpc.Conn)      { s.t.sessions.Delete(s); s.t.gone.Add(1) }

// modify runs a modifying request once, whatever the number of its copies that come.
func (d *disk) modify(client [16]byte, c *rpc.Call) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := slotKey{client, c.Header.Slot}
	if last := d.slots[k]; last.xid == c.Header.XID {
		c.Transno = last.transno
		return nil
	}
	d.transno++
	d.executed[c.Header.XID]++
	d.slots[k] = slotReply{c.Header.XID, d.transno}
	c.Transno = d.transno
	return nil
}

// serveEcho answers LISTXATTR with its name as the value, READ with a pattern, WRITE with its size, and a modifying
// operation with a transno.
func serveEcho(e *env.Env, c *rpc.Call) error {
	switch c.Header.Op {
	case wire.OpGetxattr:
		s := scratchOf(e)
		s.xattr.Name, s.xattr.Flags = s.xattr.Name[:0], 0
		if err := c.Decode(&s.xattr); err != nil {
			return err
		}
		s.value.Value = append(s.value.Value[:0], s.xattr.Name...)
		c.Reply = &s.value
	case wire.OpRead:
		s := scratchOf(e)
		s.read.Object, s.read.Offset, s.read.Length = nil, 0, 0
		if err := c.Decode(&s.read); err != nil {
			return err
		}
		c.ReplyBulk = c.BulkBuffer(int(s.read.Length))
		pattern(c.ReplyBulk, s.read.Offset)
	case wire.OpWrite:
		s := scratchOf(e)
		want := e.Alloc(len(c.Bulk))
		pattern(want, 7)
		if string(want) != string(c.Bulk) {
			return status.Errorf(status.Invalid, "the bulk is not what was sent")
		}
		s.object.Size = uint64(len(c.Bulk))
		c.Reply = &s.object
	case wire.OpSetattr, wire.OpClose, wire.OpCreate:
		return c.Session.(*session).t.disk.modify(c.Session.(*session).client, c)
	default:
		return status.NotSystem
	}
	return nil
}

type scratch struct {
	xattr  wirepb.XattrRequest
	value  wirepb.XattrReply
	read   wirepb.ReadRequest
	object wirepb.ObjectReply
}

func scratchOf(e *env.Env) *scratch {
	s, _ := e.State(env.LayerTarget).(*scratch)
	if s == nil {
		s = &scratch{}
		e.SetState(env.LayerTarget, s)
	}
	return s
}

// pattern fills b with bytes that tell where they belong.
func pattern(b []byte, offset uint64) {
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, offset*0x9e3779b97f4a7c15+uint64(len(b)))
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(offset) + byte(i)
	}
}

// cluster is one server with one target.
type cluster struct {
	t         testing.TB
	transport rpc.Transport
	addr      string
	target    *target
	server    *rpc.Server
	served    chan error
	options   rpc.ServerOptions
}

var transports = map[string]func() (rpc.Transport, string){
	"tcp":  func() (rpc.Transport, string) { return rpc.NewTCP(), "127.0.0.1:0" },
	"pipe": func() (rpc.Transport, string) { return rpc.NewPipe(), "server" },
}

// eachTransport runs the test on every transport.
func eachTransport(t *testing.T, f func(t *testing.T, c *cluster)) {
	for name := range transports {
		t.Run(name, func(t *testing.T) { f(t, newCluster(t, name)) })
	}
}

func newCluster(t testing.TB, transport string) *cluster {
	tr, addr := transports[transport]()
	c := &cluster{t: t, transport: tr, addr: addr, target: &target{t: t, disk: newDisk(), instance: 1}}
	t.Cleanup(func() {
		if c.server != nil {
			c.stop()
		}
	})
	return c
}

func (c *cluster) start() {
	c.t.Helper()
	var l net.Listener
	var err error
	if l, err = c.transport.Listen(c.addr); err != nil {
		c.t.Fatal(err)
	}
	c.addr = l.Addr().String()
	tg := c.target
	c.options.Find = func(name string) (rpc.Target, error) {
		if name != targetName {
			return nil, status.WrongTarget
		}
		return tg, nil
	}
	c.server = rpc.NewServer(c.options)
	c.served = make(chan error, 1)
	s, served := c.server, c.served
	go func() { served <- s.Serve(l) }()
}

func (c *cluster) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := c.server.Close(ctx); err != nil {
		c.t.Error(err)
	}
	if err := <-c.served; err != nil {
		c.t.Error(err)
	}
	c.server = nil
}

// crash stops the server without letting its requests end.
func (c *cluster) crash() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.server.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
		c.t.Error(err)
	}
	<-c.served
	c.server = nil
}

// restart starts a new instance of the target on the same disk.
func (c *cluster) restart() {
	old := c.target
	c.target = &target{t: c.t, disk: old.disk, instance: old.instance + 1, serve: old.serve, maxInFlight: old.maxInFlight, recovering: old.recovering}
	c.start()
}

func (c *cluster) options4(change func(*rpc.ImportOptions)) rpc.ImportOptions {
	o := rpc.ImportOptions{
		Transport: c.transport, Addresses: []string{c.addr}, FSName: "strake", Target: targetName,
		UUID: [16]byte{1}, Peer: "test", Kind: rpc.KindClient,
	}
	if change != nil {
		change(&o)
	}
	return o
}

// connect makes an import that is connected and closed with the test.
func (c *cluster) connect(change func(*rpc.ImportOptions)) *rpc.Import {
	c.t.Helper()
	i, err := rpc.NewImport(c.options4(change))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { closeImport(c.t, i) })
	if err := i.Connect(testContext(c.t)); err != nil {
		c.t.Fatal(err)
	}
	return i
}

func closeImport(t testing.TB, i *rpc.Import) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	i.Close(ctx) // its server may be gone
}

// testContext ends long before the test's own limit, so that what hangs says where.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func echo(ctx context.Context, i *rpc.Import, name string) error {
	var reply wirepb.XattrReply
	r := &rpc.Request{Op: wire.OpGetxattr, Body: &wirepb.XattrRequest{Name: []byte(name)}, Reply: &reply}
	if err := i.Do(ctx, r); err != nil {
		return err
	}
	if string(reply.Value) != name {
		return fmt.Errorf("%q came back as %q", name, reply.Value)
	}
	return nil
}
