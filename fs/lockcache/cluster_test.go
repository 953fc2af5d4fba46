package lockcache_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/lockd"
)

const targetName = "strake-MDT0000"

// cluster is one target with the real lock server behind a pipe.
type cluster struct {
	testing.TB
	pipe    *rpc.Pipe
	addr    string
	server  *rpc.Server
	locks   *lockd.Server
	evicted atomic.Int64
	gen     atomic.Uint64
	clients atomic.Uint64

	mu       sync.Mutex
	sessions map[string]*session // by uuid; guarded by mu
	restarts uint64              // starts that have lost all locks, with a recovery window; guarded by mu
	through  []*rpc.Call         // who has ended the stage of the window; guarded by mu
}

// session is an export with locks.
type session struct {
	c      *cluster
	locks  *lockd.Server
	client *lockd.Client
	gen    uint64
	gone   atomic.Bool
}

func newCluster(t testing.TB, timeout time.Duration) *cluster {
	c := &cluster{TB: t, pipe: rpc.NewPipe(), sessions: map[string]*session{}}
	c.locks = c.newLocks(timeout)
	l, err := c.pipe.Listen("target")
	if err != nil {
		t.Fatal(err)
	}
	c.addr = l.Addr().String()
	c.server = rpc.NewServer(rpc.ServerOptions{Find: func(string) (rpc.Target, error) { return c, nil }})
	served := make(chan error, 1)
	go func() { served <- c.server.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		c.server.Close(ctx)
		c.locks.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *cluster) newLocks(timeout time.Duration) *lockd.Server {
	return lockd.New(lockd.Options{Name: targetName, Seed: 3, Limits: ldlm.Limits{LockTimeout: timeout}, Tick: 20 * time.Millisecond,
		Evict: func(cl *lockd.Client, why string) {
			c.Logf("evicted %s: %s", cl.Name(), why)
			c.evicted.Add(1)
			c.evict(cl)
		}})
}

// evict ends a client's export.
func (c *cluster) evict(cl *lockd.Client) {
	c.mu.Lock()
	for uuid, s := range c.sessions {
		if s.client == cl {
			s.gone.Store(true)
			delete(c.sessions, uuid)
		}
	}
	c.mu.Unlock()
	cl.Gone()
}

func (c *cluster) Connect(_ context.Context, conn *rpc.Conn, r *wirepb.ConnectRequest) (rpc.Session, *wirepb.ConnectReply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[string(r.Uuid)]
	again := s != nil && s.gen == r.Generation
	if !again {
		s = &session{c: c, locks: c.locks, client: c.locks.Join(string(r.Peer)), gen: c.gen.Add(1)}
		c.sessions[string(r.Uuid)] = s
	}
	s.client.Connected(conn)
	return s, &wirepb.ConnectReply{Version: wire.Version, Generation: s.gen, Instance: 1 + c.restarts, MaxRpcsInFlight: 4,
		Recovered: again, Recovering: c.restarts > 0}, nil
}

// Serve does lock requests; GETATTR grants the lock that it wants, READ stands for a request that needs a slot.
func (s *session) Serve(e *env.Env, c *rpc.Call) error {
	switch c.Header.Op {
	case wire.OpDisconnect:
		s.client.Gone()
		return nil
	case wire.OpEnqueue, wire.OpCancel, wire.OpConvert, wire.OpProlong, wire.OpFlock:
		return s.locks.Serve(e, s.client, c)
	case wire.OpGetattr:
		var m wirepb.GetattrRequest
		if err := c.Decode(&m); err != nil {
			return err
		}
		reply := &wirepb.EntryReply{}
		var g wirepb.LockGrant
		if s.locks.Grant(e, s.client, ldlm.InodeRes(fid.FID{Seq: fid.Seq(m.Seq), OID: m.Oid}), m.Want, &g) {
			reply.Locks = append(reply.Locks, &g)
		}
		c.Reply = reply
		return nil
	case wire.OpReplayDone:
		return s.c.stage(c)
	case wire.OpStatfs:
		c.Reply = &wirepb.StatfsReply{}
		return nil
	}
	return status.NotSystem
}

func (s *session) LastCommitted() wire.Transno { return 0 }

// Generation is one that no request has when the client was evicted.
func (s *session) Generation() uint64 {
	if s.gone.Load() {
		return 0
	}
	return s.gen
}

func (s *session) Disconnected(conn *rpc.Conn) { s.client.Disconnected(conn) }

// node is one client.
type node struct {
	*lockcache.Cache
	imp  *rpc.Import
	lost atomic.Int64 // applications' locks that were not handed back
}

// restart makes the target one that was started again: it has lost all locks.
func (c *cluster) restart(nodes ...*node) {
	c.mu.Lock()
	c.restarts++
	old := c.locks
	c.Cleanup(old.Close)
	c.locks = c.newLocks(old.Namespace().Limits().LockTimeout)
	for uuid, s := range c.sessions {
		s.gone.Store(true)
		c.sessions[uuid] = &session{c: c, locks: c.locks, client: c.locks.Join(s.client.Name()), gen: s.gen}
	}
	c.mu.Unlock()
	for _, n := range nodes {
		n.imp.Reconnect()
	}
}

// stage holds the end of a stage until all clients have come to it.
func (c *cluster) stage(call *rpc.Call) error {
	c.mu.Lock()
	c.through = append(c.through, call)
	all := c.through
	if len(all) < len(c.sessions) {
		c.mu.Unlock()
		return rpc.ErrHeld
	}
	c.through = nil
	c.mu.Unlock()
	for _, k := range all[:len(all)-1] {
		k.Finish(nil)
	}
	return nil
}

// join connects a client, with MaxInFlight 4.
func (c *cluster) join(o lockcache.Owner, change func(*lockcache.Options)) *node {
	c.Helper()
	n := &node{}
	id := c.clients.Add(1)
	var cache atomic.Pointer[lockcache.Cache]
	imp, err := rpc.NewImport(rpc.ImportOptions{Transport: c.pipe, Addresses: []string{c.addr}, FSName: "strake", Target: targetName,
		UUID: [16]byte{byte(id)}, Peer: fmt.Sprintf("client %d", id), Kind: rpc.KindClient, MaxInFlight: 4,
		OnConnect: func(r *wirepb.ConnectReply) { cache.Load().Connected(r) },
		Callback:  func(e *env.Env, call *rpc.Call) error { return cache.Load().Callback(e, call) },
		Restore: func(ctx context.Context, v *rpc.Recovery) error {
			lost, err := cache.Load().RestoreFlocks(ctx, v)
			n.lost.Add(int64(lost))
			return err
		}})
	if err != nil {
		c.Fatal(err)
	}
	opts := lockcache.Options{Name: fmt.Sprintf("%s-mdc-%d", targetName, id), Import: imp, Owner: o, Seed: id,
		LockTimeout: c.locks.Namespace().Limits().LockTimeout}
	if change != nil {
		change(&opts)
	}
	n.Cache, n.imp = lockcache.New(opts), imp
	cache.Store(n.Cache)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := imp.Connect(ctx); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		n.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		imp.Close(ctx)
	})
	return n
}

// uses is the model: who uses which lock now. Two uses that share bits or bytes of a resource in incompatible modes at
// two nodes are a violation.
type uses struct {
	mu       sync.Mutex
	m        map[ldlm.ResID]map[*use]struct{}
	violated string
}

type use struct {
	node int
	desc ldlm.Desc
}

func newUses() *uses { return &uses{m: map[ldlm.ResID]map[*use]struct{}{}} }

func (u *uses) begin(res ldlm.ResID, x *use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := u.m[res]
	if all == nil {
		all = map[*use]struct{}{}
		u.m[res] = all
	}
	for o := range all {
		if o.node != x.node && (o.desc.Bits&x.desc.Bits != 0 || o.desc.Extent.Overlaps(x.desc.Extent)) &&
			!ldlm.Compatible(o.desc.Mode, x.desc.Mode) && u.violated == "" {
			u.violated = fmt.Sprintf("%v: node %d uses %+v while node %d uses %+v", res, x.node, x.desc, o.node, o.desc)
		}
	}
	all[x] = struct{}{}
}

func (u *uses) end(res ldlm.ResID, x *use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.m[res], x)
}
