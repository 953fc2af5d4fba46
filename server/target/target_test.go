package target_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
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
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/memdev"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	name      = "strake-MDT0000"
	tableData = store.Table(2)
)

func specs() []store.Spec { return append(target.Specs(), store.Spec{Name: "data"}) }

// counter is a handler that counts in the table data: an OpCreate adds one to the key of its name, and answers with the
// sum. OpOpen changes nothing that lasts. OpSync waits for release.
type counter struct {
	t       *target.Target
	device  store.Device
	runs    atomic.Int64
	gone    atomic.Int64
	running atomic.Int64
	entered chan struct{}
	release chan struct{}
	mu      sync.Mutex
	again   []wire.Transno // replays, in the order they ran; guarded by mu
}

func (h *counter) Serve(e *env.Env, x *target.Export, c *rpc.Call) error {
	h.runs.Add(1)
	h.running.Add(1)
	defer h.running.Add(-1)
	switch c.Header.Op {
	case wire.OpSync:
		h.entered <- struct{}{}
		select {
		case <-h.release:
		case <-c.Context().Done():
			return c.Context().Err()
		}
		return nil
	case wire.OpGetattr:
		return nil
	case wire.OpOpen:
		return h.t.Commit(e, c, h.t.Begin(e), &wirepb.EntryReply{Handle: uint64(h.runs.Load())})
	case wire.OpCreate:
		return h.create(e, c)
	}
	return status.NotSupport
}

func (h *counter) create(e *env.Env, c *rpc.Call) error {
	var m wirepb.CreateRequest
	if err := c.Decode(&m); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, again := h.t.Replayed(c); again {
		h.again = append(h.again, c.Header.Transno)
		if m.Name[0] == '!' {
			return status.Stale
		}
	}
	n := byte(0)
	if v, err := h.device.Get(e, tableData, m.Name); err == nil {
		n = v[0]
	}
	tx := h.t.Begin(e)
	tx.Put(tableData, m.Name, []byte{n + 1})
	return h.t.Commit(e, c, tx, &wirepb.EntryReply{Handle: uint64(n) + 1})
}

func (h *counter) ExportGone(*target.Export) { h.gone.Add(1) }

// fixture is one target behind one server on a pipe.
type fixture struct {
	t        *testing.T
	disk     *memdev.Disk
	device   *memdev.Device
	handler  *counter
	target   *target.Target
	server   *rpc.Server
	pipe     *rpc.Pipe
	options  target.Options
	registry *stats.Registry
	served   sync.WaitGroup
}

func newFixture(t *testing.T, o target.Options) *fixture {
	f := &fixture{t: t, disk: memdev.NewDisk(), pipe: rpc.NewPipe(), options: o}
	f.start()
	t.Cleanup(f.stop)
	return f
}

func (f *fixture) start() {
	f.t.Helper()
	device, err := memdev.Open(f.disk, memdev.Options{Specs: specs(), CommitInterval: -1})
	if err != nil {
		f.t.Fatal(err)
	}
	f.device = device
	f.handler = &counter{device: device, entered: make(chan struct{}, 16), release: make(chan struct{})}
	o := f.options
	o.Name, o.FSName, o.Device, o.Clients, o.Slots, o.Handler = name, "strake", device, 0, 1, f.handler
	f.registry = stats.NewRegistry()
	o.Stats, o.Prefix = f.registry, "mdt"
	if f.target, err = target.New(o); err != nil {
		f.t.Fatal(err)
	}
	f.handler.t = f.target
	f.server = rpc.NewServer(rpc.ServerOptions{Find: func(string) (rpc.Target, error) { return f.target, nil }})
	l, err := f.pipe.Listen("mds")
	if err != nil {
		f.t.Fatal(err)
	}
	server := f.server
	f.served.Go(func() { _ = server.Serve(l) })
}

func (f *fixture) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := f.server.Close(ctx); err != nil {
		f.t.Error(err)
	}
	f.served.Wait()
	if err := f.target.Close(ctx); err != nil {
		f.t.Error(err)
	}
	if err := f.device.Close(); err != nil {
		f.t.Error(err)
	}
}

// crash loses what is not on disk and starts anew.
func (f *fixture) crash() {
	f.device.Crash()
	f.stop()
	f.start()
}

func (f *fixture) dial(o rpc.ImportOptions) *rpc.Import {
	f.t.Helper()
	o.Transport, o.Addresses, o.FSName, o.Target = f.pipe, []string{"mds"}, "strake", name
	if o.UUID == ([16]byte{}) {
		_, _ = rand.Read(o.UUID[:])
	}
	if o.Kind == 0 {
		o.Kind = rpc.KindClient
	}
	i, err := rpc.NewImport(o)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { f.close(i) })
	return i
}

func (f *fixture) close(i *rpc.Import) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = i.Close(ctx)
}

func create(t *testing.T, i *rpc.Import, key string) uint64 {
	t.Helper()
	r := rpc.Request{Op: wire.OpCreate, Body: &wirepb.CreateRequest{Name: []byte(key)}, Reply: &wirepb.EntryReply{}}
	if err := i.Do(t.Context(), &r); err != nil {
		t.Fatal(err)
	}
	return r.Reply.(*wirepb.EntryReply).Handle
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestModifyGetsTransnoAndCommit(t *testing.T) {
	f := newFixture(t, target.Options{})
	i := f.dial(rpc.ImportOptions{Peer: "a"})
	if err := i.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := create(t, i, "x"); n != 1 {
		t.Fatalf("first create says %d", n)
	}
	r := rpc.Request{Op: wire.OpCreate, Body: &wirepb.CreateRequest{Name: []byte("x")}}
	if err := i.Do(t.Context(), &r); err != nil || r.Transno == 0 || r.LastCommitted >= r.Transno {
		t.Fatalf("%v transno %d committed %d", err, r.Transno, r.LastCommitted)
	}
	if err := f.device.WaitCommitted(t.Context(), store.Transno(r.Transno)); err != nil {
		t.Fatal(err)
	}
	ping := rpc.Request{Op: wire.OpGetattr}
	if err := i.Do(t.Context(), &ping); err != nil || ping.LastCommitted < r.Transno {
		t.Fatalf("%v committed %d of %d", err, ping.LastCommitted, r.Transno)
	}
}

// session serves calls as rpc does, without a connection, so that a test can send what no import would.
type session struct {
	s   rpc.Session
	env *env.Env
	gen uint64
}

func connect(t *testing.T, tg *target.Target, uuid byte, kind uint32) (*session, *wirepb.ConnectReply, error) {
	t.Helper()
	s, reply, err := tg.Connect(t.Context(), nil, &wirepb.ConnectRequest{
		Version: wire.Version, Uuid: append(make([]byte, 15), uuid), Kind: kind, Peer: []byte("node" + string('0'+rune(uuid))),
	})
	if err != nil {
		return nil, nil, err
	}
	return &session{s: s, env: env.New(), gen: reply.Generation}, reply, nil
}

func (s *session) call(op wire.Op, xid wire.XID, slot uint32, body rpc.Message) (*rpc.Call, error) {
	s.env.Reset()
	c := &rpc.Call{Header: wire.Header{Op: op, XID: xid, Slot: slot, Generation: s.gen}, Session: s.s}
	if body != nil {
		c.Body = make([]byte, body.SizeVT())
		_, _ = body.MarshalToSizedBufferVT(c.Body)
	}
	err := s.s.Serve(s.env, c)
	return c, err
}

func (s *session) create(xid wire.XID, slot uint32, key string) (uint64, *rpc.Call, error) {
	c, err := s.call(wire.OpCreate, xid, slot, &wirepb.CreateRequest{Name: []byte(key)})
	var r wirepb.EntryReply
	if err == nil {
		err = r.UnmarshalVT(c.RawReply)
	}
	return r.Handle, c, err
}

func TestResentRequestIsAnsweredOnce(t *testing.T) {
	f := newFixture(t, target.Options{})
	s, _, err := connect(t, f.target, 1, rpc.KindClient)
	if err != nil {
		t.Fatal(err)
	}
	_, first, err := s.create(10, 3, "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.call(wire.OpOpen, 11, 4, nil); err != nil {
		t.Fatal(err)
	}
	runs := f.handler.runs.Load()
	n, again, err := s.create(10, 3, "x")
	if err != nil || n != 1 || again.Transno != first.Transno {
		t.Fatalf("again: %d %v transno %d, first %d", n, err, again.Transno, first.Transno)
	}
	if c, err := s.call(wire.OpOpen, 11, 4, nil); err != nil || c.RawReply == nil || c.Transno != 0 {
		t.Fatalf("open again: %v %v", err, c)
	}
	if f.handler.runs.Load() != runs {
		t.Fatal("the handler ran again")
	}
	if _, _, err := s.create(9, 3, "x"); status.Of(err) != status.Protocol {
		t.Fatalf("an older xid in the slot: %v", err)
	}
	for _, slot := range []uint32{0, target.MaxSlots + 1, 1 << 31} {
		if _, _, err := s.create(20, slot, "x"); status.Of(err) != status.Protocol {
			t.Fatalf("slot %d: %v", slot, err)
		}
	}
}

// TestReplySurvivesCrash cites the invariant that a slot's record and its change are in one transaction: at every sync
// point a resent request is answered from the slot if its change is there, and run if it is not.
func TestReplySurvivesCrash(t *testing.T) {
	for _, commit := range []bool{false, true} {
		t.Run(fmt.Sprint("committed=", commit), func(t *testing.T) {
			f := newFixture(t, target.Options{})
			s, _, err := connect(t, f.target, 1, rpc.KindClient)
			if err != nil {
				t.Fatal(err)
			}
			_, first, err := s.create(10, 300-44, "x")
			if err != nil {
				t.Fatal(err)
			}
			if commit {
				if err := f.device.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			f.crash()
			s, reply, err := connect(t, f.target, 1, rpc.KindClient)
			if err != nil || !reply.Recovered { // It was on disk before its connect was answered.
				t.Fatalf("recovered %v: %v", reply.GetRecovered(), err)
			}
			n, again, err := s.create(10, 300-44, "x")
			if err != nil || n != 1 || (again.Transno == first.Transno) != commit {
				t.Fatalf("after the crash: %d %v transno %d, first %d", n, err, again.Transno, first.Transno)
			}
			if (f.handler.runs.Load() == 0) != commit {
				t.Fatalf("%d runs", f.handler.runs.Load())
			}
		})
	}
}

// TestEvictionIsOnDisk before what the client held goes to others: a crash does not bring it back.
func TestEvictionIsOnDisk(t *testing.T) {
	f := newFixture(t, target.Options{})
	if _, _, err := connect(t, f.target, 1, rpc.KindClient); err != nil {
		t.Fatal(err)
	}
	f.target.Evict(f.target.Exports()[0], "the test says so")
	f.crash()
	if _, reply, err := connect(t, f.target, 1, rpc.KindClient); err != nil || reply.Recovered {
		t.Fatalf("recovered %v: %v", reply.GetRecovered(), err)
	}
}

func TestReconnectFencesTheOldGeneration(t *testing.T) {
	f := newFixture(t, target.Options{})
	old, _, err := connect(t, f.target, 1, rpc.KindClient)
	if err != nil {
		t.Fatal(err)
	}
	_, reply, err := connect(t, f.target, 1, rpc.KindClient)
	if err != nil || !reply.Recovered || reply.Generation <= old.gen {
		t.Fatalf("%v %v", reply, err)
	}
	if _, _, err := old.create(10, 3, "x"); !errors.Is(err, status.NotConnected) {
		t.Fatalf("old generation: %v", err)
	}
	if f.target.Count() != 1 {
		t.Fatalf("%d exports", f.target.Count())
	}
}

func TestReconnectWaitsForWhatRuns(t *testing.T) {
	f := newFixture(t, target.Options{})
	i := f.dial(rpc.ImportOptions{})
	if err := i.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- i.Do(t.Context(), &rpc.Request{Op: wire.OpSync}) }()
	<-f.handler.entered
	i.Reconnect() // The first run ends by its connection's context; the request comes again.
	<-f.handler.entered
	if n := f.handler.running.Load(); n != 1 {
		t.Fatalf("%d requests run: the old generation was not waited for", n)
	}
	close(f.handler.release)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// TestManyWriters: several read-write clients have exports at once, and none is told that it is alone.
func TestManyWriters(t *testing.T) {
	f := newFixture(t, target.Options{LockTimeout: func() time.Duration { return 7 * time.Second }, EvictAfter: time.Minute})
	for n := range byte(3) {
		s, reply, err := connect(t, f.target, n+1, rpc.KindClient)
		if err != nil || reply.Recovering || reply.LockTimeoutMsec != 7000 || reply.EvictAfterMsec != 60000 {
			t.Fatalf("client %d: %v %v", n, reply, err)
		}
		if _, _, err := s.create(10, 3, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if f.target.Count() != 3 || f.handler.gone.Load() != 0 {
		t.Fatalf("%d exports, %d gone", f.target.Count(), f.handler.gone.Load())
	}
}

// TestSuccessorEndsItsPredecessor: a process that was killed and started again does not wait for what its predecessor held,
// not even for the replay window after its target has been started again too.
func TestSuccessorEndsItsPredecessor(t *testing.T) {
	f := newFixture(t, target.Options{ReplayWindow: time.Hour})
	a := f.dial(rpc.ImportOptions{Peer: "host:/mnt (pid 1)"})
	if err := a.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.device.Commit(); err != nil {
		t.Fatal(err)
	}
	f.device.Crash()
	f.close(a)
	f.stop()
	f.start()
	if f.target.Count() != 1 {
		t.Fatalf("%d exports restored", f.target.Count())
	}
	b := f.dial(rpc.ImportOptions{Peer: "host:/mnt (pid 2)"})
	if err := b.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.target.Count() != 1 || f.handler.gone.Load() != 1 {
		t.Fatalf("%d exports, %d gone", f.target.Count(), f.handler.gone.Load())
	}
	if err := b.Do(t.Context(), &rpc.Request{Op: wire.OpGetattr}); err != nil {
		t.Fatal(err)
	}
}

func TestSilentClientIsEvicted(t *testing.T) {
	f := newFixture(t, target.Options{EvictAfter: 50 * time.Millisecond})
	s, _, err := connect(t, f.target, 1, rpc.KindClient)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.create(10, 3, "x"); err != nil {
		t.Fatal(err)
	}
	s.s.Disconnected(nil)
	eventually(t, "evicted", func() bool { return f.handler.gone.Load() == 1 })
	records := 0
	for _, table := range []store.Table{0, 1} {
		_ = f.device.Scan(env.New(), table, nil, nil, func(k, _ []byte) bool {
			if len(k) >= 16 {
				records++
			}
			return true
		})
	}
	if records != 0 {
		t.Fatalf("%d records left of the evicted client", records)
	}
}

// TestSilentConnectionIsEvicted: a client that says nothing goes, though its connection stands.
func TestSilentConnectionIsEvicted(t *testing.T) {
	f := newFixture(t, target.Options{EvictAfter: 100 * time.Millisecond}) // An import pings every 5 s.
	i := f.dial(rpc.ImportOptions{Peer: "a"})
	if err := i.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "evicted", func() bool { return f.handler.gone.Load() >= 1 })
}

func TestStoppedDeviceAnswersStopping(t *testing.T) {
	f := newFixture(t, target.Options{})
	s, _, err := connect(t, f.target, 1, rpc.KindClient)
	if err != nil {
		t.Fatal(err)
	}
	f.device.Crash()
	if _, _, err := s.create(10, 3, "x"); !errors.Is(err, status.Stopping) {
		t.Fatalf("create: %v", err)
	}
	if _, _, err := connect(t, f.target, 2, rpc.KindClient); !errors.Is(err, status.Stopping) {
		t.Fatalf("connect: %v", err)
	}
}

func TestRestartTellsWhatTheOldInstanceHadCommitted(t *testing.T) {
	f := newFixture(t, target.Options{})
	s, reply, err := connect(t, f.target, 1, rpc.KindClient)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.device.Commit(); err != nil {
		t.Fatal(err)
	}
	_, lost, err := s.create(10, 3, "x")
	if err != nil {
		t.Fatal(err)
	}
	f.crash()
	other, _, err := connect(t, f.target, 2, rpc.KindClient)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.create(1, 1, "y"); err != nil {
		t.Fatal(err)
	}
	if err := f.device.Commit(); err != nil {
		t.Fatal(err)
	}
	_, again, err := f.target.Connect(t.Context(), nil, &wirepb.ConnectRequest{
		Version: wire.Version, Uuid: append(make([]byte, 15), 1), Kind: rpc.KindClient, Instance: reply.Instance,
	})
	if err != nil {
		t.Fatal(err)
	}
	if again.GetLastCommitted() >= uint64(lost.Transno) {
		t.Fatalf("last_committed %d covers the lost %d", again.GetLastCommitted(), lost.Transno)
	}
}

func TestCommitDoesNotAllocate(t *testing.T) {
	device := &nullDevice{}
	pass := passHandler{reply: &wirepb.EntryReply{Handle: 7, Layout: make([]byte, 64)}}
	tg, err := target.New(target.Options{Name: name, FSName: "strake", Device: device, Clients: 0, Slots: 1, Handler: &pass})
	if err != nil {
		t.Fatal(err)
	}
	defer tg.Close(context.Background())
	pass.t = tg
	s, _, err := connect(t, tg, 1, rpc.KindClient)
	if err != nil {
		t.Fatal(err)
	}
	c := &rpc.Call{Session: s.s}
	xid := wire.XID(1)
	n := testing.AllocsPerRun(1000, func() {
		xid++
		s.env.Reset()
		c.Header = wire.Header{Op: wire.OpCreate, XID: xid, Slot: 1, Generation: s.gen}
		if err := s.s.Serve(s.env, c); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Fatalf("%v allocations per modifying request", n)
	}
}

type passHandler struct {
	t     *target.Target
	reply *wirepb.EntryReply
}

func (h *passHandler) Serve(e *env.Env, _ *target.Export, c *rpc.Call) error {
	tx := h.t.Begin(e)
	tx.Put(tableData, e.Alloc(8), e.Alloc(64))
	return h.t.Commit(e, c, tx, h.reply)
}

func (h *passHandler) ExportGone(*target.Export) {}

// nullDevice keeps nothing: the rest of the path is measured.
type nullDevice struct {
	store.Device
	n store.Transno
}

func (d *nullDevice) Err() error               { return nil }
func (d *nullDevice) Committed() store.Transno { return 0 }
func (d *nullDevice) WaitCommitted(context.Context, store.Transno) error {
	return nil
}
func (d *nullDevice) Begin(e *env.Env) *store.Tx {
	return store.BeginTx(e)
}
func (d *nullDevice) Publish(tx *store.Tx) (store.Transno, error) {
	d.n++
	tx.WriteStamps(d.n)
	return d.n, nil
}
func (d *nullDevice) Scan(*env.Env, store.Table, []byte, []byte, func(k, v []byte) bool) error {
	return nil
}

func FuzzSlotAndClientRecords(f *testing.F) {
	f.Add(make([]byte, 18), make([]byte, 24))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		disk := memdev.NewDisk()
		d, err := memdev.Open(disk, memdev.Options{Specs: specs(), CommitInterval: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if len(key) == 0 || len(value) == 0 {
			return
		}
		for table := store.Table(0); table < 2; table++ {
			tx := d.Begin(env.New())
			tx.Put(table, key, value)
			if _, err := d.Publish(tx); err != nil {
				t.Fatal(err)
			}
		}
		tg, err := target.New(target.Options{Name: name, FSName: "strake", Device: d, Slots: 1, Handler: &counter{}})
		if err == nil {
			_ = tg.Close(context.Background())
		}
	})
}
