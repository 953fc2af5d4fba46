package lockcache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// keeper is an owner with something in its cache under each lock: a lock whose Revoke has begun must not be in use here.
type keeper struct {
	node    int
	u       *uses
	revokes atomic.Int64
}

func (k *keeper) Revoke(_ context.Context, r *lockcache.Revocation) {
	k.revokes.Add(1)
	// What is revoked is still held: who uses it elsewhere already uses it too early.
	x := &use{node: k.node, desc: r.Desc}
	if r.Bits != 0 {
		x.desc.Bits = r.Bits
	}
	if r.Why == lockcache.WhyEvicted {
		return
	}
	k.u.begin(r.Res, x)
	for range x.desc.Extent.Start / 4096 % 8 * 2 {
		runtime.Gosched()
	}
	k.u.end(r.Res, x)
}
func (k *keeper) Glimpse(ldlm.ResID, any, *ldlm.LVB) bool { return false }
func (k *keeper) Lost()                                   {}
func (k *keeper) Silent(context.Context)                  {}

func randomRequest(r *rand.Rand, resources int) lockcache.Request {
	n := uint64(r.IntN(resources))
	if r.IntN(3) == 0 {
		n = uint64(r.IntN(3)) // a few that all fight over
	}
	q := lockcache.Request{Mode: []ldlm.Mode{ldlm.PR, ldlm.PR, ldlm.PR, ldlm.CR, ldlm.PW, ldlm.CW, ldlm.EX}[r.IntN(7)]}
	q.Leaving = r.IntN(3) == 0
	if r.IntN(2) == 0 {
		q.Res = object(n)
		q.Extent.Start = uint64(r.IntN(8)) * 4096
		q.Extent.End = q.Extent.Start + uint64(1+r.IntN(4))*4096
	} else {
		q.Res = inode(n + 2)
		q.Bits, q.TryBits = ldlm.Bits(1+r.IntN(127)), ldlm.Bits(r.IntN(128))
	}
	return q
}

// fighter works under random locks, one at a time.
func fighter(t *testing.T, n *node, k *keeper, seed uint64, rounds int, resources int) {
	r := rand.New(rand.NewPCG(seed, uint64(k.node)))
	for i := range rounds {
		q := randomRequest(r, resources)
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		if i%17 == 16 { // somebody is interrupted
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), time.Duration(r.IntN(300))*time.Microsecond)
		}
		var g lockcache.Grant
		var err error
		if q.Bits != 0 && q.Mode == ldlm.PR && r.IntN(3) == 0 {
			g, err = adoptOne(ctx, n, &q)
		} else {
			g, err = n.Acquire(ctx, &q)
		}
		late := ctx.Err() != nil
		cancel()
		if err != nil {
			if !late {
				t.Errorf("seed %d, node %d: %v in %v: %v", seed, k.node, q.Res, q.Mode, err)
				return
			}
			continue
		}
		if g.Handle == 0 {
			continue
		}
		x := &use{node: k.node, desc: g.Desc}
		if q.Bits != 0 {
			x.desc.Bits = q.Bits // others may be on their way back
		}
		k.u.begin(q.Res, x)
		for range r.IntN(20) {
			runtime.Gosched()
		}
		k.u.end(q.Res, x)
		n.Unpin(g.Handle)
	}
}

// adoptOne gets a lock with the answer to a GETATTR.
func adoptOne(ctx context.Context, n *node, q *lockcache.Request) (lockcache.Grant, error) {
	var w lockcache.Window
	n.Expect(&w)
	defer n.Done(&w)
	var reply wirepb.EntryReply
	f := q.Res.FID()
	err := n.imp.Do(ctx, &rpc.Request{Op: wire.OpGetattr, Reply: &reply, Body: &wirepb.GetattrRequest{Seq: uint64(f.Seq), Oid: f.OID,
		Want: &wirepb.LockWant{Mode: uint32(q.Mode), Bits: uint32(q.Bits)}}})
	if err != nil || len(reply.Locks) == 0 {
		return lockcache.Grant{}, err
	}
	g, _ := n.Adopt(&w, reply.Locks[0], nil)
	return g, nil
}

// TestFight lets clients fight over resources: no two use incompatible locks at once, nobody starves, and in the end
// nothing is left. In "blips" connections break all the time, so that messages are lost and come twice.
func TestFight(t *testing.T) {
	for name, f := range map[string]fight{
		"thousands": {nodes: 2, workers: 4, resources: 3000, rounds: 500, lru: 200},
		"few":       {nodes: 3, workers: 3, resources: 5, rounds: 200, lru: 3},
		"blips":     {nodes: 2, workers: 4, resources: 50, rounds: 300, lru: 20, blips: true},
	} {
		t.Run(name, func(t *testing.T) {
			if raceEnabled || testing.Short() {
				f.rounds /= 4
			}
			if soak() {
				f.rounds *= 50
			}
			f.run(t)
		})
	}
}

// soak reports whether a long run was asked for.
func soak() bool { return os.Getenv("STRAKE_SOAK") != "" }

type fight struct {
	nodes, workers, resources, rounds, lru int
	blips                                  bool
}

func (f fight) run(t *testing.T) {
	seed := rand.Uint64()
	c := newCluster(t, 20*time.Second)
	u := newUses()
	var all []*node
	var keepers []*keeper
	var wg, breakers sync.WaitGroup
	for i := range f.nodes {
		k := &keeper{node: i, u: u}
		n := c.join(k, func(o *lockcache.Options) { o.LRUSize = f.lru })
		all, keepers = append(all, n), append(keepers, k)
	}
	over := make(chan struct{})
	for i, n := range all {
		for w := range f.workers {
			wg.Go(func() { fighter(t, n, keepers[i], seed+uint64(w), f.rounds, f.resources) })
		}
		if f.blips {
			breakers.Go(func() { breaker(n, over) })
		}
	}
	wg.Wait()
	close(over)
	breakers.Wait()
	if u.violated != "" {
		t.Errorf("seed %d: %s", seed, u.violated)
	}
	for i, n := range all {
		s := n.Stats()
		t.Logf("node %d: %d revokes, %d enqueued, %d matched, %d locks", i, keepers[i].revokes.Load(), s.Counts.Enqueued, s.Counts.Matched, s.Locks)
		if s.Unused > int64(f.lru)+1000 {
			t.Errorf("%d unused locks, at most %d wanted", s.Unused, f.lru)
		}
		settled(t, c, n)
	}
	if n := c.evicted.Load(); n != 0 {
		t.Errorf("seed %d: %d evictions", seed, n)
	}
}

// breaker breaks a node's connection again and again.
func breaker(n *node, over chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(5 * time.Millisecond):
			n.imp.Reconnect()
		}
	}
}

// settled waits until a node has given all back.
func settled(t *testing.T, c *cluster, n *node) {
	t.Helper()
	limit := time.Now().Add(20 * time.Second)
	for {
		if _, err := n.Clear(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n.Stats().Locks == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("left: %+v", n.Held(nil))
		}
		<-time.After(time.Millisecond)
	}
}

// TestFullSlots has every slot of two clients full of requests that wait for each other's locks, while what those locks
// cover needs requests itself to be given back.
func TestFullSlots(t *testing.T) {
	c := newCluster(t, 20*time.Second)
	const locks = 16 // four times the slots
	var nodes [2]*node
	for i := range nodes {
		nodes[i] = c.join(&writer{n: &nodes[i]}, nil)
	}
	for round := range 3 {
		for i, n := range nodes {
			for k := range uint64(locks) {
				g, err := n.Acquire(t.Context(), &lockcache.Request{Res: inode(100 + uint64(i)*locks + k), Mode: ldlm.EX, Bits: ldlm.Update})
				if err != nil {
					t.Fatal(err)
				}
				n.Unpin(g.Handle)
			}
		}
		start := time.Now()
		var wg sync.WaitGroup
		for i, n := range nodes {
			for k := range uint64(locks) {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
					defer cancel()
					other := 1 - uint64(i)
					g, err := n.Acquire(ctx, &lockcache.Request{Res: inode(100 + other*locks + k), Mode: ldlm.EX, Bits: ldlm.Update})
					if err != nil {
						t.Errorf("round %d: %v", round, err)
						return
					}
					n.Unpin(g.Handle)
				})
			}
		}
		wg.Wait()
		t.Logf("round %d: %v", round, time.Since(start))
	}
}

// writer is an owner that has to send a request of the ordinary kind before a lock can go back.
type writer struct{ n **node }

func (w *writer) Revoke(ctx context.Context, _ *lockcache.Revocation) {
	(*w.n).imp.Do(ctx, &rpc.Request{Op: wire.OpStatfs, Reply: &wirepb.StatfsReply{}})
}
func (w *writer) Glimpse(ldlm.ResID, any, *ldlm.LVB) bool { return false }
func (w *writer) Lost()                                   {}
func (w *writer) Silent(context.Context)                  {}

// TestPinnedLockIsKeptAlive pins a lock that is called back for several lock timeouts: nobody is evicted.
func TestPinnedLockIsKeptAlive(t *testing.T) {
	c := newCluster(t, time.Second)
	a, b := c.join(newOwner(), nil), c.join(newOwner(), nil)
	g, err := a.Acquire(t.Context(), &lockcache.Request{Res: inode(5), Mode: ldlm.PR, Bits: ldlm.Update})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		h, err := b.Acquire(t.Context(), &lockcache.Request{Res: inode(5), Mode: ldlm.EX, Bits: ldlm.Update})
		if err == nil {
			b.Unpin(h.Handle)
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("granted while the other is pinned: %v", err)
	case <-time.After(2500 * time.Millisecond):
	}
	a.Unpin(g.Handle)
	if err := <-got; err != nil {
		t.Error(err)
	}
	if n := c.evicted.Load(); n != 0 {
		t.Errorf("%d evictions", n)
	}
}

// TestFlockBetweenNodes has two applications wait for each other's flock in turn.
func TestFlockBetweenNodes(t *testing.T) {
	c := newCluster(t, 20*time.Second)
	nodes := []*node{c.join(newOwner(), nil), c.join(newOwner(), nil)}
	request := func(op ldlm.FlockOp) *ldlm.FlockRequest {
		return &ldlm.FlockRequest{Res: ldlm.FlockRes(inode(5).FID()), Op: op, Wait: true,
			Range: ldlm.FlockRange{Extent: whole(), Owner: ldlm.FlockOwner{Owner: 1, Class: ldlm.BSD}}}
	}
	var inside atomic.Int64
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			for range 50 {
				if err := n.Flock(t.Context(), request(ldlm.FlockExclusive)); err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				inside.Add(-1)
				if err := n.Unflock(t.Context(), request(ldlm.FlockUnlock)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := nodes[0].Flock(t.Context(), request(ldlm.FlockExclusive)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := nodes[1].Flock(ctx, request(ldlm.FlockExclusive)); err == nil {
		t.Error("granted to two")
	}
	h, held, err := nodes[1].TestFlock(t.Context(), request(ldlm.FlockShared))
	if err != nil || !held || h.Same {
		t.Error(fmt.Sprint("in the way: ", h, held, err))
	}
}

// stuck is an owner whose Revoke does not end before its cache does, but for lost locks.
type stuck struct {
	quiet
	lost atomic.Int64
}

func (o *stuck) Revoke(ctx context.Context, r *lockcache.Revocation) {
	if r.Why != lockcache.WhyEvicted {
		<-ctx.Done()
	}
}
func (o *stuck) Lost() { o.lost.Add(1) }

// TestEvictedClientRecovers has a client that does not give a lock back: it is evicted, the other one gets the lock, and
// the evicted one goes on with new locks.
func TestEvictedClientRecovers(t *testing.T) {
	c := newCluster(t, time.Second)
	reg := stats.NewRegistry()
	o := &stuck{}
	a := c.join(o, func(o *lockcache.Options) { o.Stats = reg })
	b := c.join(quiet{}, nil)
	if err := reg.Walk("ldlm.namespaces.*.prolong_max", func(e stats.Entry) error { return e.Set("1") }); err != nil {
		t.Fatal(err)
	}
	r := &lockcache.Request{Res: inode(5), Mode: ldlm.EX, Bits: ldlm.Update}
	g, err := a.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	a.Unpin(g.Handle)
	for i, n := range []*node{b, a, a} {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		g, err := n.Acquire(ctx, r)
		cancel()
		if i == 1 && errors.Is(err, status.IO) {
			continue // the request that finds out
		}
		if err != nil {
			t.Fatal(err)
		}
		n.Unpin(g.Handle)
	}
	if e, l := c.evicted.Load(), o.lost.Load(); e != 1 || l != 1 {
		t.Errorf("%d evictions, lost %d times", e, l)
	}
}

// TestPinnedWhileWaitingElsewhere has a holder of a called-back lock wait at another target, for longer than the lock
// timeout of both: nobody is evicted, everybody gets what he wants.
func TestPinnedWhileWaitingElsewhere(t *testing.T) {
	here, there := newCluster(t, time.Second), newCluster(t, time.Second)
	r := &lockcache.Request{Res: inode(5), Mode: ldlm.EX, Bits: ldlm.Update}
	acquire := func(n *node) ldlm.Handle {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		g, err := n.Acquire(ctx, r)
		if err != nil {
			t.Error(err)
		}
		return g.Handle
	}
	a1, a2 := here.join(quiet{}, nil), there.join(quiet{}, nil)
	b2, c1 := there.join(quiet{}, nil), here.join(quiet{}, nil)
	busy := acquire(b2)
	first := acquire(a1)
	var wg sync.WaitGroup
	wg.Go(func() {
		h := acquire(a2) // waits for b2, with first pinned
		a2.Unpin(h)
		a1.Unpin(first)
	})
	wg.Go(func() { c1.Unpin(acquire(c1)) }) // calls first back
	<-time.After(2500 * time.Millisecond)
	b2.Unpin(busy)
	wg.Wait()
	if n := here.evicted.Load() + there.evicted.Load(); n != 0 {
		t.Errorf("%d evictions", n)
	}
}
