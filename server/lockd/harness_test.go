package lockd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/lockd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const targetName = "strake-TEST0000"

// gaveUp is the handle of requests that a client forgets as soon as they wait.
const gaveUp ldlm.Handle = 1 << 40

// store is the objects of the test target.
type store struct {
	mu   sync.Mutex
	size map[fid.ObjectID]uint64 // guarded by mu
}

func (s *store) LVB(_ *env.Env, o fid.ObjectID, v *ldlm.LVB) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	*v = ldlm.LVB{Size: s.size[o], Mtime: 1}
	return nil
}

func (s *store) set(o fid.ObjectID, size uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size[o] = size
}

// cluster is one target with a namespace, and its clients.
type cluster struct {
	t      testing.TB
	locks  *lockd.Server
	store  *store
	pipe   *rpc.Pipe
	server *rpc.Server

	mu       sync.Mutex
	sessions map[[16]byte]*session // guarded by mu
	evicted  map[string]string     // why, by name; guarded by mu
	last     uint64                // generation; guarded by mu
}

// session is an export of the test target.
type session struct {
	c    *cluster
	uuid [16]byte
	lock *lockd.Client
	gate sync.RWMutex
	gone bool // guarded by gate
	mu   sync.Mutex
	gen  uint64    // guarded by mu
	conn *rpc.Conn // guarded by mu
}

func newCluster(t testing.TB, o lockd.Options) *cluster {
	t.Helper()
	c := &cluster{t: t, store: &store{size: map[fid.ObjectID]uint64{}}, pipe: rpc.NewPipe(), sessions: map[[16]byte]*session{},
		evicted: map[string]string{}}
	o.Name, o.Seed = "test", 7
	o.Objects = c.store
	o.Evict = c.evict
	if o.Tick == 0 {
		o.Tick = 20 * time.Millisecond
	}
	c.locks = lockd.New(o)
	c.server = rpc.NewServer(rpc.ServerOptions{Find: func(string) (rpc.Target, error) { return c, nil }})
	l, err := c.pipe.Listen("pipe:t")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		c.server.Serve(l)
		close(done)
	}()
	t.Cleanup(func() {
		c.server.Close(context.Background())
		<-done
		c.locks.Close()
	})
	return c
}

// Connect implements rpc.Target.
func (c *cluster) Connect(_ context.Context, conn *rpc.Conn, r *wirepb.ConnectRequest) (rpc.Session, *wirepb.ConnectReply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	uuid := [16]byte(r.Uuid)
	x := c.sessions[uuid]
	known := x != nil
	if !known {
		x = &session{c: c, uuid: uuid, lock: c.locks.Join(string(r.Peer))}
		c.sessions[uuid] = x
	}
	if known {
		x.mu.Lock()
		x.conn.Close()
		x.mu.Unlock()
	}
	x.gate.Lock() // nothing of the generation before runs any more
	defer x.gate.Unlock()
	c.last++
	x.mu.Lock()
	x.gen, x.conn = c.last, conn
	x.mu.Unlock()
	x.lock.Connected(conn)
	return x, &wirepb.ConnectReply{Generation: c.last, Instance: 1, Recovered: known}, nil
}

// evict ends an export, as a target does it.
func (c *cluster) evict(cl *lockd.Client, why string) {
	c.mu.Lock()
	var x *session
	for u, s := range c.sessions {
		if s.lock == cl {
			x = s
			delete(c.sessions, u)
		}
	}
	c.evicted[cl.Name()] = why
	c.mu.Unlock()
	if x != nil {
		x.end()
	}
}

func (c *cluster) sessionsOf(name string) []*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*session
	for _, x := range c.sessions {
		if x.lock.Name() == name {
			all = append(all, x)
		}
	}
	return all
}

func (c *cluster) wasEvicted(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.evicted[name]
}

func (x *session) end() {
	x.mu.Lock()
	conn := x.conn
	x.mu.Unlock()
	conn.Close()
	x.gate.Lock()
	x.gone = true
	x.gate.Unlock()
	x.lock.Gone()
}

// Serve implements rpc.Session.
func (x *session) Serve(e *env.Env, c *rpc.Call) error {
	x.gate.RLock()
	defer x.gate.RUnlock()
	if x.gone || c.Header.Generation != x.Generation() {
		return status.NotConnected
	}
	if c.Header.Op == wire.OpDisconnect {
		go func() {
			x.c.mu.Lock()
			delete(x.c.sessions, x.uuid)
			x.c.mu.Unlock()
			x.end()
		}()
		return nil
	}
	return x.c.locks.Serve(e, x.lock, c)
}

// LastCommitted implements rpc.Session.
func (x *session) LastCommitted() wire.Transno { return 0 }

// Generation implements rpc.Session.
func (x *session) Generation() uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.gen
}

// Disconnected implements rpc.Session.
func (x *session) Disconnected(conn *rpc.Conn) { x.lock.Disconnected(conn) }

// client is a hand-written client: it keeps locks until it is told otherwise.
type client struct {
	t      testing.TB
	c      *cluster
	name   string
	imp    *rpc.Import
	net    *network
	closed chan struct{}
	once   sync.Once

	// onBlocking answers blocking ASTs; nil gives the lock back at once.
	onBlocking func(a wire.AST, r ldlm.Recall) error
	onGlimpse  func(a wire.AST) (ldlm.LVB, error)

	mu      sync.Mutex
	next    ldlm.Handle                 // guarded by mu
	held    map[ldlm.Handle]ldlm.Answer // by own handle; guarded by mu
	early   map[ldlm.Handle]bool        // own handles called back before their answer was there; guarded by mu
	done    map[ldlm.Handle]chan ended  // completions awaited; guarded by mu
	asts    map[wire.Op]int             // guarded by mu
	dropped map[ldlm.Handle]bool        // own handles given back; guarded by mu
}

type ended struct {
	a ldlm.Answer
	k status.Kind
}

func (c *cluster) client(name string) *client {
	c.t.Helper()
	k := &client{t: c.t, c: c, name: name, held: map[ldlm.Handle]ldlm.Answer{}, early: map[ldlm.Handle]bool{},
		done: map[ldlm.Handle]chan ended{}, asts: map[wire.Op]int{},
		dropped: map[ldlm.Handle]bool{}, closed: make(chan struct{})}
	var uuid [16]byte
	copy(uuid[:], name)
	var err error
	k.net = &network{Transport: c.pipe}
	k.imp, err = rpc.NewImport(rpc.ImportOptions{Transport: k.net, Addresses: []string{"pipe:t"}, Target: targetName, UUID: uuid,
		Peer: name, Kind: rpc.KindClient, Callback: k.callback})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		k.close(ctx)
	})
	if err := k.imp.Connect(context.Background()); err != nil {
		c.t.Fatal(err)
	}
	return k
}

// network is a client's, which can be cut.
type network struct {
	rpc.Transport
	dead atomic.Bool
}

func (n *network) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if n.dead.Load() {
		return nil, status.TimedOut
	}
	return n.Transport.Dial(ctx, addr)
}

// cut ends the client's connection; with dead it never comes back.
func (k *client) cut(dead bool) {
	k.net.dead.Store(dead)
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	for _, x := range k.c.sessions {
		if x.lock.Name() == k.name {
			x.mu.Lock()
			x.conn.Close()
			x.mu.Unlock()
		}
	}
}

func (k *client) close(ctx context.Context) {
	k.once.Do(func() { close(k.closed) })
	k.imp.Close(ctx)
}

func (k *client) count(op wire.Op) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asts[op]
}

func (k *client) callback(_ *env.Env, c *rpc.Call) error {
	k.mu.Lock()
	k.asts[c.Header.Op]++
	k.mu.Unlock()
	switch c.Header.Op {
	case wire.OpBlockingAST:
		var m wirepb.BlockingAST
		if err := c.Decode(&m); err != nil {
			return err
		}
		a, r, _, err := wire.Blocking(&m)
		if err != nil {
			return err
		}
		if k.onBlocking != nil {
			return k.onBlocking(a, r)
		}
		return k.recalled(a.Own)
	case wire.OpCompletionAST:
		var m wirepb.CompletionAST
		if err := c.Decode(&m); err != nil {
			return err
		}
		var a ldlm.Answer
		x, kind, err := wire.Completion(&m, &a)
		if err != nil {
			return err
		}
		if x.Own == gaveUp {
			return status.BadHandle
		}
		k.mu.Lock()
		ch := k.waitedLocked(x.Own)
		k.mu.Unlock()
		select {
		case ch <- ended{a, kind}:
		default: // told before, and the answer was lost
		}
		return nil
	case wire.OpGlimpseAST:
		var m wirepb.GlimpseAST
		if err := c.Decode(&m); err != nil {
			return err
		}
		if k.onGlimpse == nil {
			return status.BadHandle
		}
		v, err := k.onGlimpse(wire.Glimpse(&m))
		reply := &wirepb.GlimpseReply{Lvb: &wirepb.LVB{}}
		wire.PutLVB(reply.Lvb, &v)
		c.Reply = reply
		return err
	}
	return status.NotSystem
}

func (k *client) waitedLocked(own ldlm.Handle) chan ended {
	ch := k.done[own]
	if ch == nil {
		ch = make(chan ended, 1)
		k.done[own] = ch
	}
	return ch
}

// recalled gives a lock back in a goroutine of its own, or as soon as its answer is there.
func (k *client) recalled(own ldlm.Handle) error {
	k.mu.Lock()
	a, ok := k.held[own]
	if !ok {
		k.early[own] = true
		k.mu.Unlock()
		return nil
	}
	delete(k.held, own)
	k.mu.Unlock()
	go k.cancel(a.Remote)
	return nil
}

func (k *client) do(op wire.Op, body, reply rpc.Message) error {
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	return k.imp.Do(ctx, &rpc.Request{Op: op, Body: body, Reply: reply})
}

func (k *client) cancel(handles ...ldlm.Handle) error {
	return k.do(wire.OpCancel, &wirepb.CancelRequest{Locks: wire.PutHandles(nil, handles)}, nil)
}

func (k *client) handle() ldlm.Handle {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next++
	return k.next
}

// lock asks for a lock and waits for it; it returns the client's handle.
func (k *client) lock(r ldlm.Request) (ldlm.Handle, ldlm.Answer, error) {
	own := k.handle()
	var m wirepb.EnqueueRequest
	wire.PutEnqueue(&m, &r, own)
	a, err := k.ask(&m)
	return own, a, err
}

// ask sends an enqueue and waits until it has ended.
func (k *client) ask(m *wirepb.EnqueueRequest) (ldlm.Answer, error) {
	var reply wirepb.EnqueueReply
	if err := k.do(wire.OpEnqueue, m, &reply); err != nil {
		return ldlm.Answer{}, err
	}
	own := ldlm.Handle(m.Own)
	var a ldlm.Answer
	if reply.Waiting {
		k.mu.Lock()
		ch := k.waitedLocked(own)
		k.mu.Unlock()
		select {
		case e := <-ch:
			if e.k != status.OK {
				return a, e.k
			}
			a = e.a
		case <-time.After(20 * time.Second):
			return a, fmt.Errorf("no completion AST for %v", own)
		case <-k.closed:
			return a, errors.New("the client is closed")
		}
	} else if err := wire.EnqueueReply(&reply, &a); err != nil {
		return a, err
	}
	if a.Remote == 0 {
		return a, nil
	}
	k.mu.Lock()
	back := k.early[own] || a.Blocked && k.onBlocking == nil
	delete(k.early, own)
	if !back {
		k.held[own] = a
	}
	k.mu.Unlock()
	if back {
		go k.cancel(a.Remote)
	}
	return a, nil
}

// drop gives a lock back, if the client has it still.
func (k *client) drop(own ldlm.Handle) {
	k.mu.Lock()
	a, ok := k.held[own]
	delete(k.held, own)
	k.dropped[own] = true
	k.mu.Unlock()
	if ok {
		k.cancel(a.Remote)
	}
}

func object(n uint64) ldlm.ResID { return ldlm.ObjectRes(fid.ObjectID{Group: 1, ID: n}) }

func inode(n uint32) ldlm.ResID { return ldlm.InodeRes(fid.FID{Seq: 0x200000401, OID: n}) }

func file(n uint32) ldlm.ResID { return ldlm.FlockRes(fid.FID{Seq: 0x200000401, OID: n}) }

func write(n, start, end uint64) ldlm.Request {
	return ldlm.Request{Res: object(n), Mode: ldlm.PW, Extent: extent.Extent{Start: start, End: end}}
}

func bits(n uint32, m ldlm.Mode, b ldlm.Bits) ldlm.Request {
	return ldlm.Request{Res: inode(n), Mode: m, Bits: b}
}

// until waits for a condition that something else brings about.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(15 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}

func (c *cluster) waiting(id ldlm.ResID) int {
	i, _ := c.locks.Namespace().Resource(0, id)
	return i.Waiting
}

// later runs f in a goroutine and returns where its error comes.
func later(f func() error) chan error {
	ch := make(chan error, 1)
	go func() { ch <- f() }()
	return ch
}

// errAny stands for any error.
var errAny = errors.New("any error")

func within(t testing.TB, what string, ch chan error, want error) {
	t.Helper()
	select {
	case err := <-ch:
		if want == nil && err != nil || want != nil && want != errAny && !errors.Is(err, want) || want == errAny && err == nil {
			t.Fatalf("%s: %v, want %v", what, err, want)
		}
	case <-time.After(15 * time.Second):
		t.Fatalf("%s: nothing came", what)
	}
}
