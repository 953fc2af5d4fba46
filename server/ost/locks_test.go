package ost_test

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/lockd"
	"github.com/strakefs/strake/server/ost"
)

// mount is a client with locks and a cache: it keeps what it has written under its locks, and writes it when one is asked back.
type mount struct {
	*peer
	t     testing.TB
	cache *lockcache.Cache
	// deaf: it never gives a lock back.
	deaf atomic.Bool
	// recovering is what the last CONNECT said.
	recovering atomic.Bool

	mu       sync.Mutex
	dirty    map[uint64][]byte // from byte 0, by object; guarded by mu
	discards int               // guarded by mu
	lost     int               // guarded by mu
}

func (n *node) mount(uuid byte) *mount {
	n.t.Helper()
	m := &mount{peer: &peer{n: n}, t: n.t, dirty: map[uint64][]byte{}}
	i, err := rpc.NewImport(rpc.ImportOptions{
		Transport: n.pipe, Addresses: []string{"oss"}, FSName: "strake", Target: name, UUID: [16]byte{15: uuid},
		Peer: "mount", Kind: rpc.KindClient, Bulk: true,
		Callback: func(e *env.Env, c *rpc.Call) error {
			if m.deaf.Load() && c.Header.Op == wire.OpBlockingAST {
				return nil
			}
			return m.cache.Callback(e, c)
		},
		OnConnect: func(r *wirepb.ConnectReply) {
			m.recovering.Store(r.Recovering)
			m.cache.Connected(r)
		},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	m.i = i
	m.cache = lockcache.New(lockcache.Options{Name: "test", Import: i, Owner: m, Seed: uint64(uuid), Replay: true})
	if err := i.Connect(context.Background()); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(m.close)
	return m
}

func (m *mount) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	m.cache.Close()
	_ = m.i.Close(ctx)
}

// Revoke implements lockcache.Owner.
func (m *mount) Revoke(_ context.Context, r *lockcache.Revocation) {
	id := r.Res.Object().ID
	m.mu.Lock()
	data := m.dirty[id]
	delete(m.dirty, id)
	if r.Discard {
		m.discards++
	}
	m.mu.Unlock()
	if remote, ok := m.cache.Remote(r.Lock); ok && len(data) > 0 && !r.Discard && r.Why != lockcache.WhyEvicted {
		if err := m.writeUnder(remote, id, data); err != nil {
			m.t.Errorf("writing back: %v", err)
		}
	}
}

// Glimpse implements lockcache.Owner.
func (m *mount) Glimpse(res ldlm.ResID, _ any, v *ldlm.LVB) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	data := m.dirty[res.Object().ID]
	*v = ldlm.LVB{Size: uint64(len(data))}
	return len(data) > 0
}

// Lost implements lockcache.Owner.
func (m *mount) Lost() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.dirty)
	m.lost++
}

// Silent implements lockcache.Owner.
func (m *mount) Silent(context.Context) {}

func (m *mount) writeUnder(remote ldlm.Handle, id uint64, data []byte) error {
	_, err := m.do(wire.OpWrite, &wirepb.WriteRequest{Object: object(id), Lock: uint64(remote), Uid: 1}, nil, data)
	return err
}

func res(id uint64) ldlm.ResID { return ldlm.ObjectRes(fid.ObjectID{ID: id}) }

// acquire takes a lock; it returns the target's handle too.
func (m *mount) acquire(id uint64, mode ldlm.Mode, end uint64) (lockcache.Grant, ldlm.Handle) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	g, err := m.cache.Acquire(ctx, &lockcache.Request{Res: res(id), Mode: mode, Extent: extent.Extent{End: end}})
	if err != nil {
		m.t.Fatalf("lock on object %d: %v", id, err)
	}
	remote, _ := m.cache.Remote(g.Handle)
	return g, remote
}

// keep caches what is written under a lock.
func (m *mount) keep(id uint64, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dirty[id] = data
}

func (m *mount) kept(id uint64) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dirty[id]
}

// fast are short times.
func fast() lockd.Options {
	return lockd.Options{Limits: ldlm.Limits{LockTimeout: 200 * time.Millisecond}, Tick: 5 * time.Millisecond, ReconnectGrace: 50 * time.Millisecond}
}

// Clients that add one to the same number in turn, each in its own cache, lose nothing; reads without a lock see the newest.
func TestClientsFightOverAnObject(t *testing.T) {
	n, _, _ := pair(t, ost.Options{})
	const rounds = 60
	var wg sync.WaitGroup
	for k := range byte(3) {
		m := n.mount(10 + k)
		wg.Go(func() {
			for range rounds {
				g, remote := m.acquire(1, ldlm.PW, 8)
				at := m.kept(1)
				if at == nil {
					at = make([]byte, 8)
					r := rpc.Request{Op: wire.OpRead, Body: &wirepb.ReadRequest{Object: object(1), Length: 8, Lock: uint64(remote)}, Into: at}
					if err := m.i.Do(context.Background(), &r); err != nil {
						t.Error(err)
					}
				}
				m.keep(1, binary.BigEndian.AppendUint64(nil, binary.BigEndian.Uint64(at)+1))
				m.cache.Unpin(g.Handle)
			}
		})
	}
	plain := n.connect(rpc.KindClient, 30)
	last := uint64(0)
	wg.Go(func() {
		for range rounds {
			b := must(plain.read(1, 0, 8))
			now := binary.BigEndian.Uint64(append(b, make([]byte, 8-len(b))...))
			if now < last {
				t.Errorf("a read without a lock went back from %d to %d", last, now)
			}
			last = now
		}
	})
	wg.Wait()
	if b := must(plain.read(1, 0, 8)); len(b) != 8 || binary.BigEndian.Uint64(b) != 3*rounds {
		t.Errorf("%d lost: %x", 3*rounds, b)
	}
}

// A client's request without a lock leaves its own locks alone, and calls those of others back.
func TestLocklessRequests(t *testing.T) {
	n, mdt, _ := pair(t, ost.Options{})
	a, b := n.mount(10), n.mount(11)
	g, _ := a.acquire(1, ldlm.PW, extent.EOF)
	a.keep(1, []byte("dirty"))
	a.cache.Unpin(g.Handle)
	must(a.write(1, 100, []byte("x")))
	if string(a.kept(1)) != "dirty" {
		t.Error("a's own write took its lock")
	}
	if r := must(mdt.glimpse(1)); r.Size != 101 {
		t.Errorf("size %d", r.Size)
	}
	if got := must(b.read(1, 0, 5)); string(got) != "dirty" || a.kept(1) != nil {
		t.Errorf("b read %q", got)
	}
	for op, f := range map[string]func() error{
		"truncate": func() error { return b.truncate(1, 3) },
		"write":    func() error { _, err := b.write(1, 0, []byte("y")); return err },
		"fallocate": func() error {
			_, err := b.do(wire.OpFallocate, &wirepb.FallocateRequest{Object: object(1), Length: 10, Mode: 0}, nil, nil)
			return err
		},
		"seek": func() error {
			_, err := b.do(wire.OpSeek, &wirepb.SeekRequest{Object: object(1)}, &wirepb.ObjectReply{}, nil)
			return err
		},
	} {
		g, _ := a.acquire(1, ldlm.PW, extent.EOF)
		a.keep(1, []byte("again"))
		a.cache.Unpin(g.Handle)
		if err := f(); err != nil || a.kept(1) != nil {
			t.Errorf("%s: %v, a keeps %q", op, err, a.kept(1))
		}
	}
}

// A request under a lock is refused where the lock is not the sender's, on another object, elsewhere, or too weak.
func TestLockOfARequestIsChecked(t *testing.T) {
	n, mdt, _ := pair(t, ost.Options{})
	a, b := n.mount(10), n.mount(11)
	w, held := a.acquire(1, ldlm.PW, 4096)
	r, weak := a.acquire(2, ldlm.PR, 4096)
	defer a.cache.Unpin(w.Handle)
	defer a.cache.Unpin(r.Handle)
	if err := a.writeUnder(held, 1, []byte("good")); err != nil {
		t.Fatal(err)
	}
	wantKind(t, a.writeUnder(held, 2, []byte("x")), status.BadHandle)
	wantKind(t, a.writeUnder(held+1<<40, 1, []byte("x")), status.BadHandle)
	wantKind(t, b.writeUnder(held, 1, []byte("x")), status.BadHandle)
	wantKind(t, a.writeUnder(weak, 2, []byte("x")), status.Invalid)
	_, err := mdt.do(wire.OpSeek, &wirepb.SeekRequest{Object: object(1), Lock: uint64(held)}, nil, nil)
	wantKind(t, err, status.Protocol)
	_, err = mdt.do(wire.OpEnqueue, &wirepb.EnqueueRequest{Own: 1}, nil, nil)
	wantKind(t, err, status.Perm)
	if got := must(a.read(1, 0, 9)); string(got) != "good" {
		t.Errorf("%q", got)
	}
}

// A read lock that is called back lets what a mapping has changed be written, and other readers are called back.
func TestWriteUnderACalledBackReadLock(t *testing.T) {
	n, _, _ := pair(t, ost.Options{})
	a, b := n.mount(10), n.mount(11)
	a.deaf.Store(true)
	g, remote := a.acquire(1, ldlm.PR, 4096)
	h, _ := b.acquire(1, ldlm.PR, 4096)
	b.cache.Unpin(h.Handle)
	wantKind(t, a.writeUnder(remote, 1, []byte("early")), status.Invalid)
	var fx ldlm.Effects
	ns := n.ost.Locks().Namespace()
	if k := ns.Reclaim(0, 1, &fx); k != 1 || fx.List[0].Handle != remote { // The memory guard takes the oldest.
		t.Fatalf("%d called back: %+v", k, fx.List)
	}
	if err := a.writeUnder(remote, 1, []byte("mapped")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b has given its lock back", func() bool { i, _ := ns.Resource(0, res(1)); return i.Granted == 1 })
	a.cache.Unpin(g.Handle)
	if got := must(b.read(1, 0, 6)); string(got) != "mapped" {
		t.Errorf("%q", got)
	}
}

// Size: from the store, from who writes, and smaller again after a truncate.
func TestGlimpseAsksTheWriter(t *testing.T) {
	n, mdt, _ := pair(t, ost.Options{})
	a, b := n.mount(10), n.mount(11)
	must(a.write(1, 0, make([]byte, 100)))
	size := func(want uint64, locked bool) {
		t.Helper()
		if r := must(mdt.glimpse(1)); r.Size != want || !r.Exists {
			t.Errorf("the MDT is told %v, want %d", r, want)
		}
		g, err := b.cache.Acquire(t.Context(), &lockcache.Request{Res: res(1), Mode: ldlm.PR, Extent: extent.Extent{End: extent.EOF}, Flags: ldlm.Glimpse, Fresh: true})
		if err != nil || !g.HasLVB || g.LVB.Size != want || (g.Handle != 0) != locked {
			t.Errorf("%+v, %v; want size %d, a lock %v", g, err, want, locked)
		}
		if g.Handle != 0 {
			b.cache.Unpin(g.Handle)
		}
	}
	size(100, true)
	g, _ := a.acquire(1, ldlm.PW, extent.EOF)
	a.keep(1, make([]byte, 5000))
	a.cache.Unpin(g.Handle)
	size(5000, false)
	if a.kept(1) == nil {
		t.Error("the glimpse took a's lock")
	}
	if err := b.truncate(1, 10); err != nil {
		t.Fatal(err)
	}
	size(10, true)
	if r := must(mdt.glimpse(2)); r.Size != 0 || !r.Exists {
		t.Errorf("untouched: %v", r)
	}
}

// A destroyed object: its locks are called back with nothing to write, who waits for one is told, writes do nothing.
func TestDestroyDiscards(t *testing.T) {
	n, mdt, _ := pair(t, ost.Options{})
	a, b := n.mount(10), n.mount(11)
	g, remote := a.acquire(1, ldlm.PW, extent.EOF)
	a.keep(1, []byte("dirty"))
	waits := make(chan error, 1)
	go func() {
		_, err := b.cache.Acquire(context.Background(), &lockcache.Request{Res: res(1), Mode: ldlm.PW, Extent: extent.Extent{End: 10}})
		waits <- err
	}()
	eventually(t, "b waits", func() bool { return n.waiting(1) == 1 })
	if _, err := mdt.destroy(1); err != nil {
		t.Fatal(err)
	}
	if err := a.writeUnder(remote, 1, []byte("late")); err != nil {
		t.Errorf("a write to what was destroyed: %v", err)
	}
	if err := <-waits; !errors.Is(err, status.NotExist) {
		t.Errorf("who waited: %v", err)
	}
	a.cache.Unpin(g.Handle)
	deadline := time.After(10 * time.Second)
	for a.kept(1) != nil {
		select {
		case <-deadline:
			t.Fatal("not called back")
		case <-time.After(time.Millisecond):
		}
	}
	if r := must(mdt.glimpse(1)); r.Exists {
		t.Errorf("%v", r)
	}
}

// A client that does not give its lock back is evicted though it writes all the time; what it writes afterwards never arrives.
func TestEvictedClientIsFenced(t *testing.T) {
	o := fast()
	o.Limits.LockTimeout = 40 * time.Millisecond
	n, _, _ := pair(t, ost.Options{Locks: o})
	a, b := n.mount(10), n.mount(11)
	a.deaf.Store(true)
	_, remote := a.acquire(1, ldlm.PW, extent.EOF)
	var refused atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := a.writeUnder(remote, 1, []byte("stale")); err != nil {
					refused.Add(1)
				}
			}
		})
	}
	g, _ := b.acquire(1, ldlm.PW, extent.EOF)
	for range 50 {
		if err := b.writeUnder(must2(b.cache.Remote(g.Handle)), 1, []byte("fresh")); err != nil {
			t.Fatal(err)
		}
		if got := must(b.read(1, 0, 5)); string(got) != "fresh" {
			t.Fatalf("%q after the eviction", got)
		}
	}
	eventually(t, "the evicted client is refused", func() bool { return refused.Load() > 0 })
	close(stop)
	wg.Wait()
	b.cache.Unpin(g.Handle)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lost != 1 {
		t.Errorf("the client was told %d times", a.lost)
	}
}

func must2[T any](v T, ok bool) T {
	if !ok {
		panic("no lock")
	}
	return v
}

// A wait for a local lock ends with its connection, and holds up nothing that gives locks back.
func TestLocklessWaitEndsWithItsConnection(t *testing.T) {
	n, _, _ := pair(t, ost.Options{})
	a, b := n.mount(10), n.mount(11)
	g, _ := a.acquire(1, ldlm.PW, extent.EOF) // pinned: it does not go back
	h, _ := b.acquire(2, ldlm.PW, extent.EOF)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			r := rpc.Request{Op: wire.OpRead, Body: &wirepb.ReadRequest{Object: object(1), Length: 4}, Into: make([]byte, 4)}
			if err := b.i.Do(ctx, &r); err == nil {
				t.Error("read beside a writer's lock")
			}
		})
	}
	waiting := func() int { return n.waiting(1) }
	eventually(t, "reads wait", func() bool { return waiting() > 0 })
	b.cache.Unpin(h.Handle)
	if _, err := b.cache.Clear(ctx); err != nil { // CANCEL passes by them
		t.Errorf("giving a lock back: %v", err)
	}
	cancel()
	wg.Wait()
	b.close()
	eventually(t, "no read waits", func() bool { return waiting() == 0 })
	a.cache.Unpin(g.Handle)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("never: " + what)
		}
	}
}

// waiting is the number of requests that wait for a lock on an object.
func (n *node) waiting(id uint64) int {
	i, _ := n.ost.Locks().Namespace().Resource(0, res(id))
	return i.Waiting
}

// Two clients hold each other's objects and ask for them without locks, many times at once: what is given back passes by.
func TestLocklessRequestsOfTwoClientsCross(t *testing.T) {
	n, _, _ := pair(t, ost.Options{})
	m := [2]*mount{n.mount(10), n.mount(11)}
	var held [2]lockcache.Grant
	for k := range m {
		held[k], _ = m[k].acquire(uint64(k+1), ldlm.PW, extent.EOF)
		m[k].keep(uint64(k+1), []byte("dirty"))
	}
	const each = 4 // of 8 slots: the rest is for what is written back
	var wg sync.WaitGroup
	for k := range m {
		for range each {
			wg.Go(func() {
				if _, err := m[k].write(uint64(2-k), 5, []byte("x")); err != nil {
					t.Error(err)
				}
			})
		}
	}
	eventually(t, "all wait", func() bool { return n.waiting(1) == each && n.waiting(2) == each })
	start := time.Now()
	for k := range m {
		m[k].cache.Unpin(held[k].Handle)
	}
	wg.Wait()
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("it took %v: somebody was evicted", d)
	}
	for id := uint64(1); id <= 2; id++ {
		if got := must(m[0].read(id, 0, 10)); string(got) != "dirtyx" {
			t.Errorf("object %d: %q", id, got)
		}
	}
}

// handBack does what a client does after its target has been started again.
func (m *mount) handBack() int {
	m.t.Helper()
	locks := m.cache.Held(nil)
	for _, l := range locks {
		var q wirepb.EnqueueRequest
		wire.PutEnqueue(&q, &ldlm.Request{Res: l.Res, Mode: l.Desc.Mode, Extent: l.Desc.Extent, Flags: ldlm.Replay}, l.Handle)
		var r wirepb.EnqueueReply
		_, err := m.do(wire.OpEnqueue, &q, &r, nil)
		if err != nil {
			m.t.Errorf("handing %v back: %v", l.Desc, err)
		}
		m.cache.Restored(l.Handle, ldlm.Handle(r.Lock), err)
	}
	if _, err := m.do(wire.OpReplayDone, nil, nil, nil); err != nil {
		m.t.Error(err)
	}
	return len(locks)
}

// After a crash a client that comes back keeps its locks and what it has under them; one that does not is evicted, and nobody is served
// before.
func TestReplayWindow(t *testing.T) {
	reg := stats.NewRegistry()
	n, _, _ := pair(t, ost.Options{ReplayWindow: time.Hour, Stats: reg})
	a, b := n.mount(10), n.mount(11)
	for k, m := range []*mount{a, b} {
		g, _ := m.acquire(uint64(k+1), ldlm.PW, extent.EOF)
		m.keep(uint64(k+1), []byte("dirty"))
		m.cache.Unpin(g.Handle)
	}
	if err := n.device.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, p := range n.peers { // The clients of the harness hand nothing back.
		_ = p.i.Close(t.Context())
	}
	n.peers = nil
	if err := n.device.Commit(); err != nil {
		t.Fatal(err)
	}
	n.device.Crash()
	b.close()
	n.stop()
	n.start()
	c := n.mount(12)
	if !c.recovering.Load() {
		t.Error("a new client is not told that the target recovers")
	}
	got := make(chan string, 2)
	for k := range uint64(2) {
		go func() {
			d, err := c.read(k+1, 0, 5)
			if err != nil {
				t.Error(err)
			}
			got <- string(d)
		}()
	}
	eventually(t, "a is back", func() bool { return a.recovering.Load() })
	if k := a.handBack(); k != 1 {
		t.Errorf("%d locks handed back", k)
	}
	select {
	case d := <-got:
		t.Errorf("read %q with a client absent", d)
	case <-time.After(30 * time.Millisecond):
	}
	if err := reg.Walk("obdfilter."+name+".recovery_time_hard", func(e stats.Entry) error { return e.Set("1") }); err != nil {
		t.Fatal(err)
	}
	// Object 1 is read when a has written back under the lock that it kept; object 2 when b is evicted, and what it had is lost.
	if x, y := <-got, <-got; x+y != "dirty" {
		t.Errorf("read %q and %q", x, y)
	}
	if l := a.lost; l != 0 {
		t.Errorf("a lost its locks %d times", l)
	}
}
