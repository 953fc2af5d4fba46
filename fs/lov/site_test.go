package lov_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/lockd"
)

// site is OSTs with the real lock server, with their data in memory, behind a pipe; and clients with the whole data path.
type site struct {
	testing.TB
	pipe *rpc.Pipe
	addr string
	osts []*siteOST
	next atomic.Uint64
}

type siteOptions struct {
	osts    int
	timeout time.Duration
	limits  ldlm.Limits
}

func newSite(t testing.TB, o siteOptions) *site {
	s := &site{TB: t, pipe: rpc.NewPipe()}
	if o.timeout == 0 {
		o.timeout = 10 * time.Second
	}
	o.limits.LockTimeout = o.timeout
	for i := range o.osts {
		x := &siteOST{t: t, name: fmt.Sprintf("strake-OST%04x", i), limits: o.limits, sessions: map[string]*siteSession{},
			objects: map[fid.ObjectID]*fakeObject{}, calls: map[wire.Op]int{}}
		x.ctx, x.stop = context.WithCancel(context.Background())
		x.start()
		s.osts = append(s.osts, x)
	}
	l, err := s.pipe.Listen("oss")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	srv := rpc.NewServer(rpc.ServerOptions{Find: func(n string) (rpc.Target, error) {
		for _, x := range s.osts {
			if x.name == n {
				return x, nil
			}
		}
		return nil, status.NoDevice
	}})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		for _, x := range s.osts {
			x.stop()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		srv.Close(ctx)
		for _, x := range s.osts {
			x.locks.Load().Close()
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s
}

// siteOST is one OST.
type siteOST struct {
	t       testing.TB
	name    string
	limits  ldlm.Limits
	locks   atomic.Pointer[lockd.Server]
	evicted atomic.Int64
	ctx     context.Context
	stop    context.CancelFunc

	mu         sync.Mutex
	objects    map[fid.ObjectID]*fakeObject // guarded by mu
	calls      map[wire.Op]int              // guarded by mu
	lockless   int                          // guarded by mu: reads and writes without a lock
	sessions   map[string]*siteSession      // guarded by mu
	gen        uint64                       // guarded by mu
	instance   uint64                       // guarded by mu
	recovering int                          // guarded by mu: sessions that have not handed their locks back
	recovered  chan struct{}                // guarded by mu: closed when there are none
	hold       chan struct{}                // guarded by mu: writes wait while it is not nil
}

type siteSession struct {
	x      *siteOST
	uuid   string
	client atomic.Pointer[lockd.Client]
	gen    uint64
	gone   atomic.Bool
	replay bool // guarded by x.mu: locks are to be handed back
	conns  []*rpc.Conn
}

func (x *siteOST) start() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.instance++
	l := lockd.New(lockd.Options{Name: fmt.Sprintf("%s-%d", x.name, x.instance), Seed: 3 + x.instance, Limits: x.limits, Objects: x,
		Tick: 10 * time.Millisecond, Evict: func(cl *lockd.Client, why string) {
			x.t.Logf("%s: evicted %s: %s", x.name, cl.Name(), why)
			x.evicted.Add(1)
			x.evict(cl)
		}})
	x.locks.Store(l)
	x.recovered = make(chan struct{})
	for _, s := range x.sessions {
		s.client.Store(l.Join(s.uuid))
		s.replay = true
		x.recovering++
	}
	if x.recovering == 0 {
		close(x.recovered)
	}
}

// restart is a new start with the same data and exports.
func (x *siteOST) restart() {
	x.mu.Lock()
	var conns []*rpc.Conn
	for _, s := range x.sessions {
		conns = append(conns, s.conns...)
		s.conns = nil
	}
	x.mu.Unlock()
	old := x.locks.Load()
	x.start()
	for _, c := range conns {
		c.Close()
	}
	old.Close()
}

func (x *siteOST) evict(cl *lockd.Client) {
	x.mu.Lock()
	var conns []*rpc.Conn
	for uuid, s := range x.sessions {
		if s.client.Load() == cl {
			s.gone.Store(true)
			conns = s.conns
			delete(x.sessions, uuid)
		}
	}
	x.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	cl.Gone()
}

// evictClient throws a client out.
func (x *siteOST) evictClient(n *node) {
	x.mu.Lock()
	var all []*lockd.Client
	for _, s := range x.sessions {
		if cl := s.client.Load(); s.uuid[0] == byte(n.id) {
			all = append(all, cl)
		}
	}
	x.mu.Unlock()
	for _, cl := range all {
		x.evict(cl)
	}
}

func (x *siteOST) LVB(_ *env.Env, o fid.ObjectID, v *ldlm.LVB) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := x.objects[o]
	*v = ldlm.LVB{}
	if f != nil {
		*v = ldlm.LVB{Size: uint64(len(f.data)), Blocks: uint64(len(f.alloc)) * grain / 512, Mtime: 1}
	}
	return nil
}

func (x *siteOST) Connect(_ context.Context, conn *rpc.Conn, r *wirepb.ConnectRequest) (rpc.Session, *wirepb.ConnectReply, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.sessions[string(r.Uuid)]
	again := s != nil && s.gen == r.Generation
	if !again {
		x.gen++
		s = &siteSession{x: x, uuid: string(r.Uuid), gen: x.gen}
		s.client.Store(x.locks.Load().Join(string(r.Peer)))
		x.sessions[s.uuid] = s
	}
	s.conns = append(s.conns, conn)
	if !r.Bulk {
		s.client.Load().Connected(conn)
	}
	return s, &wirepb.ConnectReply{Version: wire.Version, Generation: s.gen, Instance: x.instance, MaxRpcsInFlight: 8,
		Recovered: again, Grant: 1 << 30, BrwSize: 4 << 20, Recovering: x.recovering > 0,
		LockTimeoutMsec: uint32(x.limits.LockTimeout / time.Millisecond)}, nil
}

func (s *siteSession) LastCommitted() wire.Transno { return 0 }

func (s *siteSession) Generation() uint64 {
	if s.gone.Load() {
		return 0
	}
	return s.gen
}

func (s *siteSession) Disconnected(conn *rpc.Conn) { s.client.Load().Disconnected(conn) }

func (s *siteSession) Serve(e *env.Env, c *rpc.Call) error {
	x := s.x
	x.mu.Lock()
	wait := x.recovered
	x.calls[c.Header.Op]++
	x.mu.Unlock()
	locks, cl := x.locks.Load(), s.client.Load()
	switch c.Header.Op {
	case wire.OpDisconnect:
		x.mu.Lock()
		delete(x.sessions, s.uuid)
		x.mu.Unlock()
		cl.Gone()
		return nil
	case wire.OpPing:
		return nil
	case wire.OpReplayDone:
		var m wirepb.ReplayDoneRequest
		if err := c.Decode(&m); err != nil || m.Stage == 1 {
			return err
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if s.replay {
			s.replay = false
			if x.recovering--; x.recovering == 0 {
				close(x.recovered)
			}
		}
		return nil
	case wire.OpCancel, wire.OpConvert, wire.OpProlong:
		return locks.Serve(e, cl, c)
	case wire.OpEnqueue:
		var m wirepb.EnqueueRequest
		if err := c.Decode(&m); err != nil {
			return err
		}
		if ldlm.Flags(m.Flags)&ldlm.Replay == 0 {
			if err := x.await(wait); err != nil {
				return err
			}
		}
		return locks.Serve(e, cl, c)
	}
	if err := x.await(wait); err != nil {
		return err
	}
	return x.data(e, locks, cl, c)
}

func (x *siteOST) await(ch chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-x.ctx.Done():
		return status.Stopping
	}
}

// guard checks the lock that a request names, or takes one. The returned function ends it.
func (x *siteOST) guard(e *env.Env, locks *lockd.Server, cl *lockd.Client, g *guarded) (func(), error) {
	id := fid.ObjectID{Group: g.obj.Group, ID: g.obj.Id}
	if g.lock != 0 {
		l, ok := locks.Namespace().Lock(cl.ID(), ldlm.Handle(g.lock))
		if !ok || !l.Granted || l.Res != ldlm.ObjectRes(id) || !l.Desc.Extent.Overlaps(g.e) {
			return nil, status.BadHandle
		}
		locks.Prolong(cl, ldlm.Handle(g.lock))
		return func() {}, nil
	}
	x.mu.Lock()
	x.lockless++
	x.mu.Unlock()
	l := &lockd.LocalLock{Res: ldlm.ObjectRes(id), Mode: g.mode, Extent: g.e, Cause: cl.ID(), Own: true}
	if err := locks.Lock(x.ctx, e, l); err != nil {
		return nil, err
	}
	return func() { locks.Unlock(e, l) }, nil
}

type guarded struct {
	obj  *wirepb.Object
	lock uint64
	mode ldlm.Mode
	e    extent.Extent
}

func (x *siteOST) data(e *env.Env, locks *lockd.Server, cl *lockd.Client, c *rpc.Call) error {
	var g guarded
	var body rpc.Message
	shrink := true
	switch c.Header.Op {
	case wire.OpRead:
		m := new(wirepb.ReadRequest)
		if err := c.Decode(m); err != nil {
			return err
		}
		body, g = m, guarded{m.Object, m.Lock, ldlm.PR, extent.Extent{Start: m.Offset, End: m.Offset + uint64(m.Length)}}
	case wire.OpWrite:
		m := new(wirepb.WriteRequest)
		if err := c.Decode(m); err != nil {
			return err
		}
		body, g = m, guarded{m.Object, m.Lock, ldlm.PW, extent.Extent{Start: m.Offset, End: m.Offset + uint64(len(c.Bulk))}}
		shrink = false
		x.mu.Lock()
		hold := x.hold
		x.mu.Unlock()
		if hold != nil {
			if err := x.await(hold); err != nil {
				return err
			}
		}
	case wire.OpPunch:
		m := new(wirepb.PunchRequest)
		if err := c.Decode(m); err != nil {
			return err
		}
		body, g = m, guarded{m.Object, m.Lock, ldlm.PW, extent.Extent{Start: m.Start, End: m.End}}
	case wire.OpFallocate:
		m := new(wirepb.FallocateRequest)
		if err := c.Decode(m); err != nil {
			return err
		}
		body, g = m, guarded{m.Object, m.Lock, ldlm.PW, extent.Extent{Start: m.Offset, End: m.Offset + m.Length}}
	case wire.OpSeek:
		m := new(wirepb.SeekRequest)
		if err := c.Decode(m); err != nil {
			return err
		}
		body, g = m, guarded{m.Object, m.Lock, ldlm.PR, extent.Extent{Start: m.Offset, End: extent.EOF}}
	case wire.OpGlimpse:
		m := new(wirepb.GlimpseRequest)
		if err := c.Decode(m); err != nil {
			return err
		}
		reply := new(wirepb.ObjectReply)
		x.mu.Lock()
		defer x.mu.Unlock()
		x.object(m.Object).tell(reply)
		c.Reply = reply
		return nil
	case wire.OpObjectSync:
		c.Reply = new(wirepb.ObjectReply)
		return nil
	default:
		return status.NotSystem
	}
	end, err := x.guard(e, locks, cl, &g)
	if err != nil {
		return err
	}
	defer end()
	if err := x.run(body, c); err != nil {
		return err
	}
	if g.mode == ldlm.PW {
		return locks.Changed(e, fid.ObjectID{Group: g.obj.Group, ID: g.obj.Id}, shrink)
	}
	return nil
}

func (x *siteOST) object(m *wirepb.Object) *fakeObject {
	id := fid.ObjectID{Group: m.Group, ID: m.Id}
	o := x.objects[id]
	if o == nil {
		o = &fakeObject{alloc: map[uint64]bool{}}
		x.objects[id] = o
	}
	return o
}

func (x *siteOST) run(body rpc.Message, c *rpc.Call) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	reply := new(wirepb.ObjectReply)
	c.Reply = reply
	switch m := body.(type) {
	case *wirepb.ReadRequest:
		o := x.object(m.Object)
		c.Reply = &wirepb.ReadReply{Size: uint64(len(o.data))}
		if m.Offset < uint64(len(o.data)) {
			b := o.data[m.Offset:min(uint64(len(o.data)), m.Offset+uint64(m.Length))]
			c.ReplyBulk = append([]byte(nil), b...)
		}
	case *wirepb.WriteRequest:
		o := x.object(m.Object)
		o.write(m.Offset, c.Bulk)
		reply.Grant = m.GrantWant
		o.tell(reply)
	case *wirepb.PunchRequest:
		o := x.object(m.Object)
		o.punch(m.Start, m.End)
		o.tell(reply)
	case *wirepb.FallocateRequest:
		o := x.object(m.Object)
		if m.Mode&1 == 0 {
			o.resize(max(uint64(len(o.data)), m.Offset+m.Length))
		}
		if m.Mode&0x12 != 0 {
			o.zero(m.Offset, min(m.Offset+m.Length, uint64(len(o.data))))
		}
		o.tell(reply)
	case *wirepb.SeekRequest:
		pos, ok := x.object(m.Object).seek(m.Offset, m.Hole)
		if !ok {
			return status.NoDevice
		}
		reply.Offset = pos
	}
	return nil
}

func (x *siteOST) count(op wire.Op) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.calls[op]
}

func (s *site) evictions() (n int64) {
	for _, x := range s.osts {
		n += x.evicted.Load()
	}
	return n
}

// node is one client.
type node struct {
	*site
	id   uint64
	set  *lov.Set
	oscs []*osc.OSC
	imps []*rpc.Import
}

func (s *site) join(opt osc.Options) *node {
	s.Helper()
	n := &node{site: s, id: s.next.Add(1), set: lov.NewSet()}
	cache := osc.NewCache(64 << 20)
	for i, x := range s.osts {
		var c atomic.Pointer[osc.OSC]
		imp, err := rpc.NewImport(rpc.ImportOptions{Transport: s.pipe, Addresses: []string{s.addr}, FSName: "strake", Target: x.name,
			UUID: [16]byte{byte(n.id), byte(i)}, Peer: fmt.Sprintf("client %d", n.id), Kind: rpc.KindClient, Bulk: true,
			OnConnect: func(r *wirepb.ConnectReply) { c.Load().Connected(r) },
			ReplayMore: func(ctx context.Context, r *rpc.Recovery, after wire.Transno) error {
				return c.Load().Replay(ctx, r, after)
			},
			Restore:  func(ctx context.Context, r *rpc.Recovery) error { return c.Load().Restore(ctx, r) },
			Callback: func(e *env.Env, call *rpc.Call) error { return c.Load().Callback(e, call) }})
		if err != nil {
			s.Fatal(err)
		}
		o := opt
		o.Import, o.Index, o.Cache, o.Locks = imp, layout.OSTIndex(i), cache, &osc.LockOptions{Seed: n.id}
		c.Store(osc.New(o))
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if err := imp.Connect(ctx); err != nil {
			s.Fatal(err)
		}
		cancel()
		n.set.Add(c.Load())
		n.oscs, n.imps = append(n.oscs, c.Load()), append(n.imps, imp)
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for i, c := range n.oscs {
			if err := c.Close(ctx); err != nil {
				s.Error(err)
			}
			n.imps[i].Close(ctx)
		}
		if err := n.set.Close(ctx); err != nil {
			s.Error(err)
		}
		if used := cache.Used(); used != 0 {
			s.Errorf("%d bytes of the cache never came back", used)
		}
	})
	return n
}

// open opens a file with stripes of 64 KiB on the first OSTs.
func (n *node) open(id uint64, stripes int) *lov.File {
	n.Helper()
	l := layout.Plain(uint32(stripes), layout.MinStripeSize)
	c := &l.Components[0]
	c.Flags |= layout.FlagInit
	for i := range stripes {
		c.Stripes = append(c.Stripes, layout.Stripe{OST: layout.OSTIndex(i), Object: fid.ObjectID{ID: id}})
	}
	f, err := n.set.Open(fid.FID{Seq: fid.SeqFirst, OID: uint32(id)}, &l, lov.Owner{UID: 1})
	if err != nil {
		n.Fatal(err)
	}
	return f
}
