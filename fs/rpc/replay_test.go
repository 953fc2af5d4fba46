package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// ledger is a target for recovery tests: each SETATTR adds the number in its body to a list. What is committed survives a
// restart, with the slots of then. A restart opens a window for its one client.
type ledger struct {
	t testing.TB

	mu        sync.Mutex
	instance  uint64               // guarded by mu
	transno   wire.Transno         // of this instance; guarded by mu
	list      []uint32             // guarded by mu
	numbers   []wire.Transno       // those of list; guarded by mu
	durable   int                  // of list; guarded by mu
	slots     map[uint32]slotReply // guarded by mu
	onDisk    map[uint32]slotReply // guarded by mu
	acked     map[uint32]wire.Transno
	committed wire.Transno // guarded by mu
	window    bool         // guarded by mu
	known     bool         // the client; guarded by mu
	lastRun   wire.Transno // of the replays of this instance; guarded by mu
	stages    []uint32     // the REPLAY_DONEs of this instance; guarded by mu
	refuse    func(id uint32) error
	conns     []*rpc.Conn // guarded by mu
	gen       uint64      // guarded by mu
	syncs     atomic.Int64
	restored  atomic.Int64
}

func newLedger(t testing.TB) *ledger {
	return &ledger{t: t, instance: 1, slots: map[uint32]slotReply{}, onDisk: map[uint32]slotReply{}, acked: map[uint32]wire.Transno{}}
}

// restart is a crash and a new start: what is not durable is gone.
func (g *ledger) restart() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.instance++
	g.transno, g.lastRun, g.stages = 0, 0, nil
	g.list, g.numbers = g.list[:g.durable], g.numbers[:g.durable]
	g.slots = map[uint32]slotReply{}
	for k, v := range g.onDisk {
		g.slots[k] = v
	}
	g.window = g.known
}

func (g *ledger) commit() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.window {
		g.commitLocked()
	}
}

func (g *ledger) commitLocked() {
	g.durable = len(g.list)
	for k, v := range g.slots {
		g.onDisk[k] = v
	}
	for _, n := range g.numbers {
		g.committed = max(g.committed, n)
	}
}

// cut ends the connections.
func (g *ledger) cut() {
	g.mu.Lock()
	conns := g.conns
	g.conns = nil
	g.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

func (g *ledger) evict() {
	g.mu.Lock()
	g.known = false
	g.gen++
	g.mu.Unlock()
}

type ledgerSession struct {
	g        *ledger
	gen      uint64
	instance uint64
}

func (g *ledger) Connect(_ context.Context, conn *rpc.Conn, r *wirepb.ConnectRequest) (rpc.Session, *wirepb.ConnectReply, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	recovered := g.known
	if !g.known {
		g.window = false
	}
	g.known = true
	g.gen++
	g.conns = append(g.conns, conn)
	return &ledgerSession{g, g.gen, g.instance}, &wirepb.ConnectReply{
		Version: wire.Version, Generation: g.gen, Instance: g.instance, Recovered: recovered, Recovering: g.window,
		LastCommitted: uint64(g.committed), MaxRpcsInFlight: 16, BrwSize: wire.BulkMax,
	}, nil
}

func (s *ledgerSession) LastCommitted() wire.Transno {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	return s.g.committed
}
func (s *ledgerSession) Generation() uint64 { return s.gen }
func (s *ledgerSession) Disconnected(*rpc.Conn) {
}

func (s *ledgerSession) Serve(_ *env.Env, c *rpc.Call) error {
	g := s.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.instance != g.instance || s.gen != g.gen {
		return status.NotConnected
	}
	switch c.Header.Op {
	case wire.OpDisconnect, wire.OpPing:
		return nil
	case wire.OpSync:
		g.syncs.Add(1)
		g.commitLocked()
		return nil
	case wire.OpSetattr:
		return g.setattrLocked(c)
	case wire.OpReplay:
		return g.replayLocked(c)
	case wire.OpReopen:
		if !g.window || !slices.Equal(g.stages, []uint32{1}) {
			g.t.Errorf("a reopen in the wrong stage: %v, window %v", g.stages, g.window)
		}
		g.restored.Add(1)
		return nil
	case wire.OpReplayDone:
		return g.doneLocked(c)
	}
	return status.NotSystem
}

func (g *ledger) setattrLocked(c *rpc.Call) error {
	var q wirepb.SetattrRequest
	if err := c.Decode(&q); err != nil {
		return err
	}
	if g.window {
		g.t.Errorf("a new request in the window")
	}
	s := g.slots[c.Header.Slot]
	if s.xid != c.Header.XID {
		g.transno++
		s = slotReply{c.Header.XID, wire.Transno(g.instance<<44) | g.transno}
		g.slots[c.Header.Slot] = s
		g.list, g.numbers = append(g.list, q.Oid), append(g.numbers, s.transno)
	}
	c.Transno = s.transno
	c.Reply = &wirepb.EntryReply{Handle: uint64(q.Oid), Layout: make([]byte, q.Oid%700)}
	return nil
}

func (g *ledger) replayLocked(c *rpc.Call) error {
	var m wirepb.ReplayRequest
	if err := c.Decode(&m); err != nil {
		return err
	}
	var q wirepb.SetattrRequest
	var p wirepb.EntryReply
	if err := errors.Join(q.UnmarshalVT(m.Request), p.UnmarshalVT(m.Reply)); err != nil {
		g.t.Error(err)
	}
	n := wire.Transno(m.Transno)
	g.t.Helper()
	switch {
	case !g.window || len(g.stages) > 0:
		g.t.Errorf("a replay after stage %v, window %v", g.stages, g.window)
	case wire.Op(m.Op) != wire.OpSetattr || p.Handle != uint64(q.Oid) || len(p.Layout) != int(q.Oid%700):
		g.t.Errorf("request %d has become %v with handle %d", q.Oid, wire.Op(m.Op), p.Handle)
	case n <= g.committed:
		g.t.Errorf("%#x is replayed, %#x is committed", n, g.committed)
	}
	if slices.Contains(g.numbers, n) {
		return nil // again, after a lost connection
	}
	if g.refuse != nil {
		if err := g.refuse(q.Oid); err != nil {
			return err
		}
	}
	if n <= g.lastRun {
		g.t.Errorf("%#x is replayed after %#x", n, g.lastRun)
	}
	g.lastRun = n
	g.slots[m.Slot] = slotReply{wire.XID(m.Xid), n}
	g.list, g.numbers = append(g.list, q.Oid), append(g.numbers, n)
	return nil
}

// doneLocked ends a stage. After the first one everything that was acknowledged is there.
func (g *ledger) doneLocked(c *rpc.Call) error {
	var m wirepb.ReplayDoneRequest
	if err := c.Decode(&m); err != nil {
		return err
	}
	if m.Stage == 1 {
		g.checkLocked()
	}
	if m.Stage == 2 {
		g.commitLocked()
		g.window = false
	}
	g.stages = append(g.stages, m.Stage)
	return nil
}

// ack notes that a request was acknowledged.
func (g *ledger) ack(id uint32, n wire.Transno) {
	g.mu.Lock()
	g.acked[id] = n
	g.mu.Unlock()
}

func (g *ledger) checkLocked() {
	seen := map[uint32]int{}
	for _, id := range g.list {
		if seen[id]++; seen[id] > 1 {
			g.t.Errorf("request %d was executed twice", id)
		}
	}
	for id, n := range g.acked {
		if seen[id] != 1 {
			g.t.Errorf("request %d with transno %#x was acknowledged and is gone; committed %#x", id, n, g.committed)
		}
	}
}

// ledgerCluster is a server with a ledger.
type ledgerCluster struct {
	t      testing.TB
	g      *ledger
	net    rpc.Transport
	addr   string
	server *rpc.Server
	served chan error
}

func newLedgerCluster(t testing.TB, transport string) *ledgerCluster {
	tr, addr := transports[transport]()
	c := &ledgerCluster{t: t, g: newLedger(t), net: tr, addr: addr}
	c.start()
	t.Cleanup(func() {
		if c.server != nil {
			c.stop()
		}
	})
	return c
}

func (c *ledgerCluster) start() {
	c.t.Helper()
	l, err := c.net.Listen(c.addr)
	if err != nil {
		c.t.Fatal(err)
	}
	c.addr = l.Addr().String()
	c.server = rpc.NewServer(rpc.ServerOptions{Find: func(string) (rpc.Target, error) { return c.g, nil }})
	served, s := make(chan error, 1), c.server
	c.served = served
	go func() { served <- s.Serve(l) }()
}

// stop ends the server without its requests.
func (c *ledgerCluster) stop() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.server.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
		c.t.Error(err)
	}
	<-c.served
	c.server = nil
}

func (c *ledgerCluster) crash() {
	c.stop()
	c.g.restart()
	c.start()
}

func (c *ledgerCluster) connect(change func(*rpc.ImportOptions)) *rpc.Import {
	c.t.Helper()
	o := rpc.ImportOptions{
		Transport: c.net, Addresses: []string{c.addr}, FSName: "strake", Target: targetName, UUID: [16]byte{1}, Kind: rpc.KindClient, Replay: true,
	}
	if change != nil {
		change(&o)
	}
	i, err := rpc.NewImport(o)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { closeImport(c.t, i) })
	if err := i.Connect(testContext(c.t)); err != nil {
		c.t.Fatal(err)
	}
	return i
}

// set sends one request.
func (c *ledgerCluster) set(ctx context.Context, i *rpc.Import, id uint32) error {
	r := &rpc.Request{Op: wire.OpSetattr, Body: &wirepb.SetattrRequest{Oid: id}}
	r.Answered = func(r *rpc.Request) { c.g.ack(id, r.Transno) }
	return i.Do(ctx, r)
}

// TestReplayLosesNothing: four callers change things while the target is killed, cut off and commits, at random. Whatever the
// order, all that was acknowledged is replayed once, in the order of transnos, before the first stage ends.
func TestReplayLosesNothing(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for n := range rounds {
		for name := range transports {
			seed := uint64(time.Now().UnixNano())
			t.Run(fmt.Sprintf("%s-%d-%d", name, n, seed), func(t *testing.T) { replayRound(t, name, seed) })
		}
	}
}

func replayRound(t *testing.T, transport string, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	c := newLedgerCluster(t, transport)
	i := c.connect(func(o *rpc.ImportOptions) {
		o.Restore = func(ctx context.Context, r *rpc.Recovery) error { return r.Do(ctx, &rpc.Request{Op: wire.OpReopen}) }
	})
	ctx := testContext(t)
	const perCaller = 150
	var wg sync.WaitGroup
	var next atomic.Uint32
	for range 4 {
		wg.Go(func() {
			for range perCaller {
				if err := c.set(ctx, i, next.Add(1)); err != nil {
					t.Errorf("seed %d: %v", seed, err)
					return
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	for faults := 0; ; faults++ {
		select {
		case <-finished:
		case <-time.After(time.Duration(rnd.IntN(3000)) * time.Microsecond):
			if faults < 25 {
				switch rnd.IntN(4) {
				case 0:
					c.crash()
				case 1:
					c.g.cut()
				default:
					c.g.commit()
				}
			}
			continue
		}
		break
	}
	if err := c.set(ctx, i, next.Add(1)); err != nil { // the last fault may have come after all others
		t.Fatal(err)
	}
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	c.g.checkLocked()
	if n := 4*perCaller + 1; len(c.g.acked) != n || len(c.g.list) != n {
		t.Errorf("%d acknowledged, %d in the list, want %d", len(c.g.acked), len(c.g.list), n)
	}
}

// TestReplayIsRefused: what the target cannot repeat is told of, dropped, and keeps nothing else out.
func TestReplayIsRefused(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			c := newLedgerCluster(t, name)
			var mu sync.Mutex
			var refused []uint32
			reg := stats.NewRegistry()
			i := c.connect(func(o *rpc.ImportOptions) {
				o.Stats = reg
				o.OnRefused = func(op wire.Op, body []byte, err error) {
					var q wirepb.SetattrRequest
					if q.UnmarshalVT(body) != nil || op != wire.OpSetattr || !errors.Is(err, status.Stale) {
						t.Errorf("%v: %v", op, err)
					}
					mu.Lock()
					refused = append(refused, q.Oid)
					mu.Unlock()
				}
			})
			ctx := testContext(t)
			for id := range uint32(20) {
				if err := c.set(ctx, i, id+1); err != nil {
					t.Fatal(err)
				}
			}
			c.g.mu.Lock()
			delete(c.g.acked, 7)
			c.g.mu.Unlock()
			c.g.refuse = func(id uint32) error {
				if id == 7 {
					return status.Stale
				}
				return nil
			}
			c.crash()
			if err := c.set(ctx, i, 100); err != nil {
				t.Fatal(err)
			}
			if len(refused) != 1 || refused[0] != 7 {
				t.Errorf("refused %v", refused)
			}
			if n := figure(t, reg, "rpc.*.replays_refused"); n != 1 {
				t.Errorf("%d refused, says the figure", n)
			}
			if n := figure(t, reg, "rpc.*.replay_requests"); n != 1 { // 100 is not committed
				t.Errorf("%d in the log", n)
			}
			c.g.mu.Lock()
			defer c.g.mu.Unlock()
			c.g.checkLocked()
		})
	}
}

func figure(t *testing.T, reg *stats.Registry, pattern string) (n int64) {
	t.Helper()
	found := 0
	if err := reg.Walk(pattern, func(e stats.Entry) error { n, _ = e.Value(); found++; return nil }); err != nil || found != 1 {
		t.Fatalf("%s: %d figures, %v", pattern, found, err)
	}
	return n
}

// TestEvictedClientReplaysNothing: a new instance that does not know the client gets nothing of before.
func TestEvictedClientReplaysNothing(t *testing.T) {
	c := newLedgerCluster(t, "pipe")
	reg := stats.NewRegistry()
	i := c.connect(func(o *rpc.ImportOptions) { o.Stats = reg })
	ctx := testContext(t)
	if err := c.set(ctx, i, 1); err != nil {
		t.Fatal(err)
	}
	c.g.evict()
	c.crash()
	for errors.Is(c.set(ctx, i, 2), status.IO) { // it may have left before the loss was noticed
	}
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	if !slices.Equal(c.g.list, []uint32{2}) || figure(t, reg, "rpc.*.evictions") != 1 || figure(t, reg, "rpc.*.replays") != 0 {
		t.Errorf("%v", c.g.list)
	}
}

// TestReplayLogIsBounded: at the half of its bound the import asks for commits, so nothing ever waits here; and where the target
// commits nothing, requests wait at the bound until it does.
func TestReplayLogIsBounded(t *testing.T) {
	c := newLedgerCluster(t, "pipe")
	reg := stats.NewRegistry()
	const most = 2 << 20
	i := c.connect(func(o *rpc.ImportOptions) { o.ReplayMax, o.Stats = most, reg })
	ctx := testContext(t)
	for id := range uint32(20_000) {
		if err := c.set(ctx, i, id+1); err != nil {
			t.Fatal(err)
		}
		if id%1000 == 0 {
			if n := figure(t, reg, "rpc.*.replay_bytes"); n > most+(128<<10) {
				t.Fatalf("%d bytes of %d", n, most)
			}
		}
	}
	if c.g.syncs.Load() == 0 {
		t.Error("no commit was asked for")
	}
	c.g.commit()
	if err := i.Do(ctx, &rpc.Request{Op: wire.OpSync}); err != nil {
		t.Fatal(err)
	}
	if n := figure(t, reg, "rpc.*.replay_requests"); n != 0 {
		t.Errorf("%d requests are kept and committed", n)
	}
}

// TestRecoveryDoEndsWithItsConnection: a hook's request is not sent again; its next try does all once more.
func TestRecoveryDoEndsWithItsConnection(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			c := newLedgerCluster(t, name)
			var tries atomic.Int64
			i := c.connect(func(o *rpc.ImportOptions) {
				o.Restore = func(ctx context.Context, r *rpc.Recovery) error {
					err := r.Do(ctx, &rpc.Request{Op: wire.OpReopen})
					if err != nil || tries.Add(1) > 1 {
						return err
					}
					c.g.cut()
					for err == nil {
						err = r.Do(ctx, &rpc.Request{Op: wire.OpReopen})
					}
					if !errors.Is(err, status.NotConnected) && !errors.Is(err, context.Canceled) {
						t.Errorf("on a lost connection: %v", err)
					}
					if err := r.Do(context.Background(), &rpc.Request{Op: wire.OpReopen}); !errors.Is(err, status.NotConnected) {
						t.Errorf("on a lost connection: %v", err)
					}
					if err := r.Do(ctx, &rpc.Request{Op: wire.OpSetattr}); !errors.Is(err, status.Invalid) {
						t.Errorf("a change in a recovery: %v", err)
					}
					return err
				}
			})
			ctx := testContext(t)
			if err := c.set(ctx, i, 1); err != nil {
				t.Fatal(err)
			}
			c.crash()
			if err := c.set(ctx, i, 2); err != nil {
				t.Fatal(err)
			}
			if tries.Load() != 2 {
				t.Errorf("%d tries", tries.Load())
			}
			c.g.mu.Lock()
			defer c.g.mu.Unlock()
			if !slices.Equal(c.g.list, []uint32{1, 2}) {
				t.Errorf("%v", c.g.list)
			}
		})
	}
}

// TestReplayMoreAndItsBulk: what the caller keeps itself follows the log, with bulk, in order, and is told of one by one.
func TestReplayMoreAndItsBulk(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, name)
			var mu sync.Mutex
			var got []uint64
			recovering := func(instance uint64) bool { return instance > 1 }
			c.target.recovering = recovering
			c.target.serve = func(_ *env.Env, call *rpc.Call) error {
				if call.Header.Op != wire.OpReplay {
					return nil
				}
				var m wirepb.ReplayRequest
				if err := call.Decode(&m); err != nil {
					return err
				}
				want := bytes.Repeat([]byte{byte(m.Transno)}, 1000*int(m.Transno))
				if wire.Op(m.Op) != wire.OpWrite || !bytes.Equal(call.Bulk, want) || !call.Conn.Bulk() {
					t.Errorf("%d: %v with %d bytes", m.Transno, wire.Op(m.Op), len(call.Bulk))
				}
				mu.Lock()
				got = append(got, m.Transno)
				mu.Unlock()
				if m.Transno == 3 {
					return status.Stale
				}
				return nil
			}
			c.start()
			var refused atomic.Int64
			ended := make(chan error, 1)
			c.connect(func(o *rpc.ImportOptions) {
				o.Bulk = true
				o.ReplayMore = func(ctx context.Context, r *rpc.Recovery, after wire.Transno) error {
					n := uint64(after)
					err := r.Replay(ctx, func(q *rpc.Replay) bool {
						n++
						q.Msg = wirepb.ReplayRequest{Op: uint32(wire.OpWrite), Transno: n}
						q.Bulk = pieces(bytes.Repeat([]byte{byte(n)}, 1000*int(n)))
						return n <= 100
					}, func(q *rpc.Replay, err error) {
						if errors.Is(err, status.Stale) && q.Msg.Transno == 3 {
							refused.Add(1)
						} else if err != nil {
							t.Errorf("%d: %v", q.Msg.Transno, err)
						}
					})
					ended <- err
					return err
				}
			})
			c.crash()
			c.restart()
			select {
			case err := <-ended:
				if err != nil {
					t.Fatal(err)
				}
			case <-testContext(t).Done():
				t.Fatal("nothing was replayed")
			}
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(got) // workers of the server may overtake each other
			if len(got) != 100 || got[0] != 1 || got[99] != 100 || refused.Load() != 1 {
				t.Errorf("%v, %d refused", got, refused.Load())
			}
		})
	}
}

// TestNewsOfAnInstance: an import that hears of another instance than its own connects anew, once for each piece of news.
func TestNewsOfAnInstance(t *testing.T) {
	c := newLedgerCluster(t, "pipe")
	reg := stats.NewRegistry()
	i := c.connect(func(o *rpc.ImportOptions) { o.Stats = reg })
	ctx := testContext(t)
	reconnects := func(want int64) {
		t.Helper()
		for n := figure(t, reg, "rpc.*.reconnects"); n != want; n = figure(t, reg, "rpc.*.reconnects") {
			if ctx.Err() != nil || n > want {
				t.Fatalf("%d reconnects, want %d", n, want)
			}
			if err := i.Do(ctx, &rpc.Request{Op: wire.OpSync}); err != nil {
				t.Fatal(err)
			}
		}
	}
	i.NewInstance(0)
	i.NewInstance(1)
	reconnects(0)
	i.NewInstance(2) // what it says has come and gone before it was heard
	reconnects(1)
	i.NewInstance(2)
	c.crash()
	reconnects(2)
	i.NewInstance(2)
	if err := c.set(ctx, i, 1); err != nil {
		t.Fatal(err)
	}
	reconnects(2)
}

// TestAdaptiveTimeout: a slow answer makes the import wait longer before it gives a connection up, for as long as it is remembered; the
// parameters bound that. The texts have Lustre's layout.
func TestAdaptiveTimeout(t *testing.T) {
	c := newCluster(t, "pipe")
	slow := 30 * time.Millisecond
	c.target.serve = func(_ *env.Env, call *rpc.Call) error {
		if call.Header.Op == wire.OpGetattr {
			<-time.After(slow)
		}
		return nil
	}
	c.start()
	reg := stats.NewRegistry()
	i := c.connect(func(o *rpc.ImportOptions) { o.Stats = reg })
	ctx := testContext(t)
	param := func(name string) *stats.Entry {
		t.Helper()
		var p stats.Entry
		if err := reg.Walk("rpc.*."+name, func(e stats.Entry) error { p = e; return nil }); err != nil || p.Path == "" {
			t.Fatalf("%s: %v", name, err)
		}
		return &p
	}
	if err := i.Do(ctx, &rpc.Request{Op: wire.OpGetattr}); err != nil {
		t.Fatal(err)
	}
	text := param("timeouts").Text()
	for _, want := range []string{"last reply : ", "\nnetwork    : cur   0  worst   0", "\nservice    : cur   1  worst   1 (at ", "   1   0   0   0\nsilence    : cur   5  from 5 to 40"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for name, bad := range map[string]string{"at_min": "0", "at_max": "601", "at_history": "x"} {
		if param(name).Set(bad) == nil {
			t.Errorf("%s takes %q", name, bad)
		}
	}
	if err := param("at_min").Set("7\n"); err != nil || param("at_min").Text() != "7" || !strings.Contains(param("timeouts").Text(), "silence    : cur   7") {
		t.Errorf("%v, at_min is %s\n%s", err, param("at_min").Text(), param("timeouts").Text())
	}
	state := param("state").Text()
	if !strings.HasPrefix(state, "current_state: FULL\nstate_history:\n - [ ") || !strings.HasSuffix(state, ", FULL ]") || !strings.Contains(state, ", CONNECTING ]") {
		t.Errorf("%s", state)
	}
}
