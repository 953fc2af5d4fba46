package lockd_test

import (
	"context"
	"strings"
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/lockd"
)

func set(t *testing.T, reg *stats.Registry, path, value string) {
	t.Helper()
	found := false
	if err := reg.Walk(path, func(e stats.Entry) error { found = true; return e.Set(value) }); err != nil || !found {
		t.Fatalf("%s: %v", path, err)
	}
}

func get(t *testing.T, reg *stats.Registry, path string) string {
	t.Helper()
	text := ""
	if err := reg.Walk(path, func(e stats.Entry) error { text = e.Text(); return nil }); err != nil {
		t.Fatal(err)
	}
	return text
}

// Above its bounds of memory a server calls the oldest locks back and lets new requests wait, and goes on when it can.
func TestMemoryGuard(t *testing.T) {
	reg := stats.NewRegistry()
	shared := lockd.NewShared(1 << 30)
	shared.Register(reg)
	c := newCluster(t, lockd.Options{Shared: shared, Stats: reg})
	a := c.client("a")
	const many = 2500
	for n := range many {
		if _, _, err := a.lock(bits(uint32(n+1), ldlm.PR, ldlm.Update)); err != nil {
			t.Fatal(err)
		}
	}
	set(t, reg, "ldlm.lock_limit_mb", "1") // all these locks take more than a MiB
	until(t, "the memory was measured", func() bool { return get(t, reg, "ldlm.lock_bytes") > "1" && len(get(t, reg, "ldlm.lock_bytes")) >= 7 })
	got := later(func() error { _, _, err := a.lock(bits(many+1, ldlm.PR, ldlm.Update)); return err })
	until(t, "a request is parked", func() bool { return get(t, reg, "ldlm.namespaces.test.parked") == "1" })
	set(t, reg, "ldlm.lock_reclaim_threshold_mb", "1")
	within(t, "the parked request", got, nil)
	if n := c.locks.Namespace().LockCount(); n >= many {
		t.Errorf("%d locks are left", n)
	}
	// A parked request ends with its connection.
	shared.SetBounds(0, 1)
	got = later(func() error {
		var m wirepb.EnqueueRequest
		r := bits(many+2, ldlm.PR, ldlm.Update)
		wire.PutEnqueue(&m, &r, 1<<40)
		return a.imp.Do(context.Background(), &rpc.Request{Op: wire.OpEnqueue, Body: &m})
	})
	until(t, "another is parked", func() bool { return get(t, reg, "ldlm.namespaces.test.parked") == "2" })
	a.cut(false)
	set(t, reg, "ldlm.lock_limit_mb", "0")
	within(t, "the parked request after a reconnect", got, nil)
}

// Parameters and figures stand where administrators look for them.
func TestRegistry(t *testing.T) {
	reg := stats.NewRegistry()
	shared := lockd.NewShared(0)
	shared.Register(reg)
	c := newCluster(t, lockd.Options{Shared: shared, Stats: reg})
	set(t, reg, "ldlm.lock_timeout", "7")
	if v := get(t, reg, "ldlm.namespaces.test.lock_timeout"); v != "7" {
		t.Errorf("lock_timeout of the namespace: %q", v)
	}
	if reg.Walk("ldlm.lock_timeout", func(e stats.Entry) error { return e.Set("0") }) == nil {
		t.Error("a timeout of 0 is taken")
	}
	a := c.client("a")
	if _, _, err := a.lock(bits(1, ldlm.PR, ldlm.Update)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"lock_count": "1", "resource_count": "1", "pool.granted": "1", "clients": "1", "max_parallel_ast": "1024",
		"pool.limit": "51200", "granted": "1", "evictions": "0",
	} {
		if v := get(t, reg, "ldlm.namespaces.test."+path); v != want {
			t.Errorf("%s: %q, want %s", path, v, want)
		}
	}
	until(t, "a server lock volume", func() bool { return get(t, reg, "ldlm.namespaces.test.pool.server_lock_volume") != "0" })
	var reply wirepb.CancelReply
	if err := a.do(wire.OpCancel, &wirepb.CancelRequest{}, &reply); err != nil || reply.Slv == 0 || reply.LockLimit != 51200 {
		t.Errorf("%v, %v", &reply, err)
	}
}

func TestContended(t *testing.T) {
	c := newCluster(t, lockd.Options{})
	a, b := c.client("a"), c.client("b")
	a.onBlocking = func(wire.AST, ldlm.Recall) error { return nil }
	own, _, err := a.lock(write(1, 0, 10))
	if err != nil {
		t.Fatal(err)
	}
	got := later(func() error { _, _, err := b.lock(write(1, 0, 10)); return err })
	until(t, "b waits", func() bool { return c.waiting(object(1)) == 1 })
	top := c.locks.Contended(5)
	if len(top) != 1 || top[0].Res != object(1) || len(top[0].Holders) != 1 || top[0].Holders[0].Client != "a" ||
		!top[0].Holders[0].Blocked || len(top[0].Waiters) != 1 || top[0].Waiters[0].Client != "b" {
		t.Errorf("%+v", top)
	}
	a.drop(own)
	within(t, "the lock", got, nil)
}

// A peer's nonsense is refused and harms nobody.
func TestHostileRequests(t *testing.T) {
	c := newCluster(t, lockd.Options{})
	a, b := c.client("a"), c.client("b")
	_, lock, err := a.lock(bits(1, ldlm.EX, ldlm.Full))
	if err != nil {
		t.Fatal(err)
	}
	remote := uint64(lock.Remote)
	for name, req := range map[string]rpc.Request{
		"no handle":     {Op: wire.OpEnqueue, Body: &wirepb.EnqueueRequest{ResType: 13, Mode: 1, Bits: 1}},
		"bad mode":      {Op: wire.OpEnqueue, Body: &wirepb.EnqueueRequest{Own: 1, ResType: 13, Mode: 128, Bits: 1}},
		"intent":        {Op: wire.OpEnqueue, Body: &wirepb.EnqueueRequest{Own: 1, ResType: 13, Mode: 1, Bits: 1, Intent: uint32(wire.OpCreate)}},
		"many cancels":  {Op: wire.OpCancel, Body: &wirepb.CancelRequest{Locks: make([]uint64, wire.CancelsMax+1)}},
		"many waits":    {Op: wire.OpCancel, Body: &wirepb.CancelRequest{Waiting: make([]uint64, wire.CancelsMax+1)}},
		"many prolongs": {Op: wire.OpProlong, Body: &wirepb.ProlongRequest{Locks: make([]uint64, wire.CancelsMax+1)}},
		"not its own":   {Op: wire.OpConvert, Body: &wirepb.ConvertRequest{Lock: remote, Bits: 1}},
		"flock class":   {Op: wire.OpFlock, Body: &wirepb.FlockRequest{Class: 9, End: 1}},
		"empty flock":   {Op: wire.OpFlock, Body: &wirepb.FlockRequest{}},
		"other op":      {Op: wire.OpRead, Body: &wirepb.ReadRequest{}},
	} {
		if err := b.do(req.Op, req.Body, nil); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if err := b.cancel(lock.Remote); err != nil {
		t.Error(err) // skipped
	}
	if err := a.do(wire.OpConvert, &wirepb.ConvertRequest{Lock: remote, Mode: uint32(ldlm.PR), Bits: uint32(ldlm.Full)}, nil); err != nil {
		t.Error(err)
	}
	if err := a.do(wire.OpConvert, &wirepb.ConvertRequest{Lock: remote, Mode: uint32(ldlm.EX)}, nil); status.Of(err) != status.Invalid {
		t.Errorf("to a stronger mode: %v", err)
	}
}

// direct serves requests without a connection, as a worker would.
type direct struct {
	s    *lockd.Server
	cl   *lockd.Client
	e    *env.Env
	call rpc.Call
	enq  wirepb.EnqueueRequest
	can  wirepb.CancelRequest
	buf  []byte
}

func newDirect(t testing.TB, o lockd.Options) *direct {
	o.Name = "direct"
	s := lockd.New(o)
	t.Cleanup(s.Close)
	return &direct{s: s, cl: s.Join("a"), e: env.New()}
}

func (d *direct) serve(t testing.TB, op wire.Op, m rpc.Message) {
	n := m.SizeVT()
	if cap(d.buf) < n {
		d.buf = make([]byte, 2*n)
	}
	d.buf = d.buf[:n]
	m.MarshalToSizedBufferVT(d.buf)
	d.call.Header.Op, d.call.Body, d.call.Reply = op, d.buf, nil
	if err := d.s.Serve(d.e, d.cl, &d.call); err != nil {
		t.Fatal(err)
	}
	d.e.Reset()
}

// pair is an uncontended enqueue and its cancel.
func (d *direct) pair(t testing.TB, r *ldlm.Request) {
	wire.PutEnqueue(&d.enq, r, 5)
	d.serve(t, wire.OpEnqueue, &d.enq)
	lock := d.call.Reply.(*wirepb.EnqueueReply).Lock
	if lock == 0 {
		t.Fatal("no lock")
	}
	d.can.Locks = append(d.can.Locks[:0], lock)
	d.serve(t, wire.OpCancel, &d.can)
}

func allocs(t *testing.T, what string, f func()) {
	t.Helper()
	for range 100 {
		f()
	}
	if n := testing.AllocsPerRun(500, f); n > 0 {
		t.Errorf("%s: %v allocations", what, n)
	}
}

func TestSteadyStateAllocs(t *testing.T) {
	if raceOn {
		t.Skip("the race detector allocates")
	}
	st := &store{size: map[fid.ObjectID]uint64{}}
	d := newDirect(t, lockd.Options{Objects: st})
	ibits, ext := bits(1, ldlm.PR, ldlm.Update), write(1, 0, 4096)
	allocs(t, "inode bits", func() { d.pair(t, &ibits) })
	allocs(t, "extent with LVB", func() { d.pair(t, &ext) })

	l := lockd.LocalLock{Res: inode(9), Mode: ldlm.EX, Bits: ldlm.Update}
	allocs(t, "local lock", func() {
		if err := d.s.Lock(context.Background(), d.e, &l); err != nil {
			t.Fatal(err)
		}
		d.s.Unlock(d.e, &l)
	})
	// A glimpse that finds a reader's lock, or nobody to ask: the LVB path.
	g := ext
	g.Mode, g.Flags = ldlm.PR, ldlm.Glimpse
	own := lockd.LocalLock{Res: ext.Res, Mode: ldlm.PW, Extent: ext.Extent}
	if err := d.s.Lock(context.Background(), d.e, &own); err != nil {
		t.Fatal(err)
	}
	defer d.s.Unlock(d.e, &own)
	allocs(t, "glimpse", func() {
		wire.PutEnqueue(&d.enq, &g, 5)
		d.serve(t, wire.OpEnqueue, &d.enq)
		if r := d.call.Reply.(*wirepb.EnqueueReply); r.Lock != 0 || len(r.Lvb) == 0 {
			t.Fatalf("%v", r)
		}
	})
	want := wirepb.LockWant{Own: 3, Mode: uint32(ldlm.PR), Bits: uint32(ldlm.Lookup)}
	var grant wirepb.LockGrant
	handle := make([]uint64, 1)
	allocs(t, "a lock with another answer", func() {
		if !d.s.Grant(d.e, d.cl, inode(3), &want, &grant) {
			t.Fatal("not granted")
		}
		handle[0] = grant.Lock
		if err := d.s.CancelEarly(d.e, d.cl, handle); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkEnqueueCancel(b *testing.B) {
	for _, r := range []struct {
		name string
		req  ldlm.Request
	}{{"ibits", bits(1, ldlm.PR, ldlm.Update)}, {"extent", write(1, 0, 4096)}} {
		b.Run(r.name, func(b *testing.B) {
			d := newDirect(b, lockd.Options{Objects: &store{size: map[fid.ObjectID]uint64{}}})
			b.ReportAllocs()
			for b.Loop() {
				d.pair(b, &r.req)
			}
		})
	}
}

// BenchmarkGlimpse is the LVB path with the worker's env, and as a control with one made per call.
func BenchmarkGlimpse(b *testing.B) {
	for _, fresh := range []bool{false, true} {
		b.Run(map[bool]string{false: "env kept", true: "env per call"}[fresh], func(b *testing.B) {
			d := newDirect(b, lockd.Options{Objects: &store{size: map[fid.ObjectID]uint64{}}})
			own := lockd.LocalLock{Res: object(1), Mode: ldlm.PW}
			own.Extent.End = 4096
			if err := d.s.Lock(context.Background(), d.e, &own); err != nil {
				b.Fatal(err)
			}
			g := write(1, 0, ^uint64(0))
			g.Mode, g.Flags = ldlm.PR, ldlm.Glimpse
			wire.PutEnqueue(&d.enq, &g, 5)
			b.ReportAllocs()
			for b.Loop() {
				if fresh {
					d.e = env.New()
				}
				d.serve(b, wire.OpEnqueue, &d.enq)
			}
		})
	}
}

// BenchmarkHandOver is a lock that two clients take from each other over the pipe.
func BenchmarkHandOver(b *testing.B) {
	c := newCluster(b, lockd.Options{})
	pair := [2]*client{c.client("a"), c.client("b")}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := pair[n%2].lock(write(1, 0, 10)); err != nil {
			b.Fatal(err)
		}
		n++
	}
}

func TestNames(t *testing.T) {
	for _, op := range []wire.Op{wire.OpEnqueue, wire.OpConvert, wire.OpCancel, wire.OpProlong, wire.OpFlock} {
		if !strings.HasPrefix(op.String(), "ldlm_") || op.Modifies() || op.Bulk() || op.Prior() == (op == wire.OpEnqueue) {
			t.Errorf("%v: modifies %v, bulk %v, prior %v", op, op.Modifies(), op.Bulk(), op.Prior())
		}
	}
}
