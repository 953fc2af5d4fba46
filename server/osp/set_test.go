package osp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/memdev"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is an MDT's device with its set of OSTs, each over a disk in memory, on one pipe.
type cluster struct {
	t      testing.TB
	pipe   *rpc.Pipe
	disk   *memdev.Disk
	device *memdev.Device
	set    *osp.Set
	osts   []*oss
	o      osp.Options
	env    *env.Env
	// replays runs before recovery ends.
	replays func()
}

type oss struct {
	disk   *memdev.Disk
	device *memdev.Device
	ost    *ost.OST
	server *rpc.Server
	served sync.WaitGroup
	every  time.Duration
}

func newCluster(t testing.TB, count int, o osp.Options) *cluster {
	return newClusterOn(t, rpc.NewPipe(), count, o)
}

func newClusterOn(t testing.TB, pipe *rpc.Pipe, count int, o osp.Options) *cluster {
	c := &cluster{t: t, pipe: pipe, disk: memdev.NewDisk(), o: o, env: env.New()}
	for i := range count {
		c.osts = append(c.osts, &oss{disk: memdev.NewDisk(), every: 5 * time.Millisecond})
		c.startOST(i)
	}
	c.startMDT()
	t.Cleanup(func() {
		c.stopMDT()
		for i := range c.osts {
			c.stopOST(i)
		}
	})
	return c
}

func ctx10(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func (c *cluster) startOST(i int) {
	c.t.Helper()
	s := c.osts[i]
	var err error
	if s.device, err = memdev.Open(s.disk, memdev.Options{Specs: ost.Specs(), CommitInterval: -1}); err != nil {
		c.t.Fatal(err)
	}
	s.ost, err = ost.New(ctx10(c.t), ost.Options{
		Name: fmt.Sprintf("strake-OST%04x", i), FSName: "strake", Device: s.device, CommitEvery: s.every,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	target := s.ost
	s.server = rpc.NewServer(rpc.ServerOptions{Find: func(string) (rpc.Target, error) { return target, nil }})
	l, err := c.pipe.Listen(fmt.Sprint("oss", i))
	if err != nil {
		c.t.Fatal(err)
	}
	s.served.Go(func() { _ = s.server.Serve(l) })
}

func (c *cluster) stopOST(i int) {
	s := c.osts[i]
	if s.ost == nil {
		return
	}
	ctx := ctx10(c.t)
	if err := s.server.Close(ctx); err != nil {
		c.t.Error(err)
	}
	s.served.Wait()
	if err := s.ost.Close(ctx); err != nil {
		c.t.Error(err)
	}
	_ = s.device.Close()
	s.ost = nil
}

func (c *cluster) startMDT() {
	c.t.Helper()
	c.openMDT()
	if err := c.set.Ready(ctx10(c.t)); err != nil {
		c.t.Fatal(err)
	}
}

// openMDT is startMDT without waiting for OSTs.
func (c *cluster) openMDT() {
	c.t.Helper()
	var err error
	if c.device, err = memdev.Open(c.disk, memdev.Options{Specs: osp.Specs(), CommitInterval: -1}); err != nil {
		c.t.Fatal(err)
	}
	o := c.o
	o.Device, o.Tables, o.FSName, o.Name, o.Transport = c.device, osp.TablesAt(0), "strake", "strake-MDT0000", c.pipe
	o.UUID, o.Peer, o.Stats, o.StatfsEvery = [16]byte{1}, "mds", stats.NewRegistry(), 20*time.Millisecond
	c.o.Stats = o.Stats
	c.set = osp.New(o)
	for i := range c.osts {
		if err := c.set.SetOST(layout.OSTIndex(i), []string{fmt.Sprint("oss", i)}, true); err != nil {
			c.t.Fatal(err)
		}
	}
	if c.replays != nil {
		c.replays()
	}
	c.set.RecoveryEnded()
}

func (c *cluster) stopMDT() {
	if c.set == nil {
		return
	}
	if err := c.set.Close(ctx10(c.t)); err != nil {
		c.t.Error(err)
	}
	_ = c.device.Close()
	c.set = nil
}

// create makes a layout as a create does, in a published transaction.
func (c *cluster) create(tmpl layout.Layout) layout.Layout {
	c.t.Helper()
	a, err := c.set.Allocate(ctx10(c.t), &tmpl, fid.Root)
	if err != nil {
		c.t.Fatal(err)
	}
	defer a.Release()
	var l layout.Layout
	c.publish(func(tx *store.Tx, e *env.Env) { a.Fill(&l, tx, e) })
	if err := l.Check(); err != nil {
		c.t.Fatal(err)
	}
	return l
}

func (c *cluster) publish(build func(tx *store.Tx, e *env.Env)) {
	c.t.Helper()
	c.env.Reset()
	tx := c.device.Begin(c.env)
	build(tx, c.env)
	if _, err := c.device.Publish(tx); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) commit() {
	c.t.Helper()
	if err := c.device.Commit(); err != nil {
		c.t.Fatal(err)
	}
}

// there reports whether a stripe's object has a file on its OST.
func (c *cluster) there(s layout.Stripe) bool {
	h, err := c.osts[s.OST].device.Objects().Open(s.Object)
	if err == nil {
		_ = h.Close()
	}
	return err == nil
}

func (c *cluster) rows(t store.Table) int {
	rows := 0
	_ = c.device.Scan(env.New(), t, nil, nil, func(_, _ []byte) bool { rows++; return true })
	return rows
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestEveryObjectIsGivenOnce(t *testing.T) {
	c := newCluster(t, 3, osp.Options{})
	seen := map[layout.Stripe]bool{}
	perOST := map[layout.OSTIndex]int{}
	for range 3000 {
		l := c.create(layout.Layout{})
		s := l.Components[0].Stripes[0]
		if seen[s] {
			t.Fatalf("object %v given twice", s)
		}
		seen[s] = true
		perOST[s.OST]++
		if !c.there(s) {
			t.Fatalf("object %v was given before it was made", s)
		}
	}
	for i, n := range perOST {
		if n < 500 {
			t.Errorf("OST %d got %d of 3,000 objects", i, n)
		}
	}
	wide := c.create(layout.Plain(layout.CountAll, 1<<20))
	if len(wide.Components[0].Stripes) != 3 {
		t.Fatalf("%d stripes", len(wide.Components[0].Stripes))
	}
}

func TestReleaseGivesBack(t *testing.T) {
	c := newCluster(t, 1, osp.Options{})
	tmpl := layout.Plain(1, 0)
	a, err := c.set.Allocate(t.Context(), &tmpl, fid.Root)
	if err != nil {
		t.Fatal(err)
	}
	id := a.Stripes()[0]
	a.Release()
	if l := c.create(tmpl); l.Components[0].Stripes[0] != id {
		t.Fatalf("got %v, %v was free", l.Components[0].Stripes[0], id)
	}
}

func TestOrphansAreDestroyedAndIDsNotReused(t *testing.T) {
	c := newCluster(t, 1, osp.Options{})
	kept := c.create(layout.Plain(1, 0)).Components[0].Stripes[0]
	c.commit()
	lost := c.create(layout.Plain(1, 0)).Components[0].Stripes[0]
	c.device.Crash()
	c.stopMDT()
	c.startMDT()
	if !c.there(kept) || c.there(lost) {
		t.Fatalf("kept there %v, lost there %v", c.there(kept), c.there(lost))
	}
	if next := c.create(layout.Plain(1, 0)).Components[0].Stripes[0]; next.Object.ID <= lost.Object.ID {
		t.Fatalf("id %d given after %d", next.Object.ID, lost.Object.ID)
	}
}

// TestReplayTakesTheObjectsOfThen cites DESIGN §4, "Objects": a create's replay takes exactly the objects of then; orphan cleanup runs when
// recovery has ended, above the last used ids, committed or replayed; and nothing is destroyed before.
func TestReplayTakesTheObjectsOfThen(t *testing.T) {
	c := newCluster(t, 1, osp.Options{})
	old := c.create(layout.Plain(1, 0))
	c.commit()
	replayed, lost := c.create(layout.Plain(1, 0)), c.create(layout.Plain(1, 0))
	number := c.device.Last()
	there := func(l layout.Layout) bool { return c.there(l.Components[0].Stripes[0]) }
	c.device.Crash()
	c.stopMDT()
	c.replays = func() {
		c.publish(func(tx *store.Tx, e *env.Env) {
			if err := c.set.Replay(tx, e, &replayed); err != nil {
				t.Fatal(err)
			}
		})
		c.commit()
		c.publish(func(tx *store.Tx, e *env.Env) {
			c.set.Destroy(tx, e, &old)
			tx.Replay = number // A stamp of the earlier start looks as if it were committed.
		})
		for _, change := range []func(*layout.Stripe){func(s *layout.Stripe) { s.Object.Group++ }, func(s *layout.Stripe) { s.Object.ID = 0 }} {
			bad := replayed
			bad.Components = slices.Clone(bad.Components)
			bad.Components[0].Stripes = slices.Clone(bad.Components[0].Stripes)
			change(&bad.Components[0].Stripes[0])
			if err := c.set.Replay(store.BeginTx(env.New()), env.New(), &bad); status.Of(err) != status.Protocol {
				t.Errorf("objects %v: %v", bad.Components[0].Stripes, err)
			}
		}
		eventually(t, "the OST is up", func() bool { _, told := c.set.OSTs()[0].Space(); return told })
		time.Sleep(50 * time.Millisecond) // Several rounds of the statfs and log loops.
		if !there(old) || !there(replayed) || !there(lost) {
			t.Error("objects were destroyed before the end of recovery")
		}
		c.commit()
	}
	c.startMDT()
	eventually(t, "orphans and destroyed ones are gone", func() bool { return !there(old) && !there(lost) })
	if !there(replayed) {
		t.Error("a replayed create has lost its object")
	}
	if next := c.create(layout.Plain(1, 0)).Components[0].Stripes[0]; next.Object.ID <= lost.Components[0].Stripes[0].Object.ID {
		t.Errorf("id %d was given again", next.Object.ID)
	}
}

// TestReplayDestroysTheObjectsOfCreatesThatDoNotCome: objects between those of replayed creates, which a lost client's creates had, are
// destroyed when recovery has ended; one that comes later, out of order, keeps its object.
func TestReplayDestroysTheObjectsOfCreatesThatDoNotCome(t *testing.T) {
	c := newCluster(t, 1, osp.Options{})
	c.create(layout.Plain(1, 0))
	c.commit()
	var all []layout.Layout
	for range 5 {
		all = append(all, c.create(layout.Plain(1, 0)))
	}
	there := func(l layout.Layout) bool { return c.there(l.Components[0].Stripes[0]) }
	c.device.Crash()
	c.stopMDT()
	c.replays = func() {
		for _, i := range []int{3, 1} { // 0, 2 and 4 were of a client that is lost
			c.publish(func(tx *store.Tx, e *env.Env) {
				if err := c.set.Replay(tx, e, &all[i]); err != nil {
					t.Fatal(err)
				}
			})
		}
		c.commit()
		for i := range all {
			if !there(all[i]) {
				t.Errorf("object %d is destroyed before the end of recovery", i)
			}
		}
	}
	c.startMDT()
	eventually(t, "objects of lost creates are gone", func() bool { return !there(all[0]) && !there(all[2]) && !there(all[4]) })
	if !there(all[1]) || !there(all[3]) {
		t.Error("a replayed create has lost its object")
	}
}

// TestDestroyWaitsForTheCommit cites DESIGN §4: objects are destroyed only after the txg that dropped the last reference is
// on disk, and the record goes when the OST has committed the destroy.
func TestDestroyWaitsForTheCommit(t *testing.T) {
	c := newCluster(t, 2, osp.Options{})
	l := c.create(layout.Plain(2, 0))
	c.commit()
	c.publish(func(tx *store.Tx, e *env.Env) { c.set.Destroy(tx, e, &l) })
	time.Sleep(50 * time.Millisecond) // Several rounds of the statfs and log loops.
	for _, s := range l.Components[0].Stripes {
		if !c.there(s) {
			t.Fatal("destroyed before the commit")
		}
	}
	c.device.Crash() // The unlink is lost: the file is there again.
	c.stopMDT()
	c.startMDT()
	for _, s := range l.Components[0].Stripes {
		if !c.there(s) {
			t.Fatal("an undone unlink lost an object")
		}
	}
	c.publish(func(tx *store.Tx, e *env.Env) { c.set.Destroy(tx, e, &l) })
	c.commit()
	eventually(t, "objects destroyed", func() bool {
		return !c.there(l.Components[0].Stripes[0]) && !c.there(l.Components[0].Stripes[1])
	})
	eventually(t, "the log is empty", func() bool { return c.rows(0) == 0 })
}

func TestLogIsResumedAndResent(t *testing.T) {
	c := newCluster(t, 1, osp.Options{})
	c.stopMDT()
	c.stopOST(0)
	c.osts[0].every = time.Hour // The OST does not commit by itself.
	c.startOST(0)
	c.startMDT()
	l := c.create(layout.Plain(1, 0))
	s := l.Components[0].Stripes[0]
	c.publish(func(tx *store.Tx, e *env.Env) { c.set.Destroy(tx, e, &l) })
	c.commit()
	eventually(t, "destroyed", func() bool { return !c.there(s) })
	c.osts[0].device.Crash() // What it has destroyed is back.
	c.stopOST(0)
	c.osts[0].every = time.Millisecond
	c.startOST(0)
	eventually(t, "destroyed again", func() bool { return !c.there(s) })
	eventually(t, "the log is empty", func() bool { return c.rows(0) == 0 })

	// A record that was on disk when the MDT stopped is sent after its start.
	l = c.create(layout.Plain(1, 0))
	c.stopOST(0)
	c.publish(func(tx *store.Tx, e *env.Env) { c.set.Destroy(tx, e, &l) })
	c.commit()
	c.device.Crash()
	_ = c.set.Close(ctx10(t))
	c.startOST(0)
	c.startMDT()
	eventually(t, "destroyed after the MDT's start", func() bool { return !c.there(l.Components[0].Stripes[0]) })
}

func TestChownReachesTheObject(t *testing.T) {
	c := newCluster(t, 1, osp.Options{})
	l := c.create(layout.Plain(1, 0))
	chown := func(uid uint32) {
		c.publish(func(tx *store.Tx, e *env.Env) { c.set.Chown(tx, e, &l, osp.Owner{UID: uid, GID: 5, Project: 6}) })
	}
	chown(3)
	chown(4)
	c.commit()
	record := func() uint32 {
		v, err := c.osts[0].device.Get(env.New(), 2, l.Components[0].Stripes[0].Object.AppendKey(nil))
		if err != nil {
			return 0
		}
		return binary.BigEndian.Uint32(v[4:])
	}
	eventually(t, "uid 4", func() bool { return record() == 4 })
	eventually(t, "the log is empty", func() bool { return c.rows(1) == 0 })
}

func TestDownAndDeactivatedOSTsAreAvoided(t *testing.T) {
	c := newCluster(t, 2, osp.Options{})
	if err := c.set.SetOST(0, []string{"oss0"}, false); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if s := c.create(layout.Plain(1, 0)).Components[0].Stripes[0]; s.OST != 1 {
			t.Fatal("a deactivated OST was chosen")
		}
	}
	if err := c.set.SetOST(0, []string{"oss0"}, true); err != nil {
		t.Fatal(err)
	}
	c.stopOST(1)
	eventually(t, "OST 1 is down", func() bool { return c.set.OSTs()[1].State() == "down" })
	for range 10 {
		if s := c.create(layout.Plain(1, 0)).Components[0].Stripes[0]; s.OST != 0 {
			t.Fatal("an OST that is down was chosen")
		}
	}
	c.startOST(1)
	eventually(t, "OST 1 is up", func() bool { return c.set.OSTs()[1].State() == "up" })
	if sp := c.set.Statfs(); sp.TotalBytes != 2<<40 {
		t.Fatalf("space %+v", sp)
	}
}

// watched is an import that tells when it is asked to try again.
type watched struct {
	*rpc.Import
	hurried func()
}

func (w *watched) Reconnect() {
	w.hurried()
	w.Import.Reconnect()
}

// TestCreateReachesForAnOSTThatIsAway: a create that names an OST which was away for long does not wait for the next try that
// its connection would make by itself.
func TestCreateReachesForAnOSTThatIsAway(t *testing.T) {
	var hurried atomic.Int32
	came := make(chan struct{})
	pipe := rpc.NewPipe()
	c := newClusterOn(t, pipe, 2, osp.Options{Connect: func(i layout.OSTIndex, addresses []string, ev osp.Events) (osp.Remote, error) {
		imp, err := rpc.NewImport(rpc.ImportOptions{
			Transport: pipe, Addresses: addresses, FSName: "strake", Target: fmt.Sprintf("strake-OST%04x", i), UUID: [16]byte{1},
			Kind: rpc.KindMDT, OnConnect: ev.Connected, OnCommitted: ev.Committed,
		})
		return &watched{imp, func() {
			if i != 1 {
				t.Errorf("OST %d is told to reconnect", i)
			}
			if hurried.Add(1) == 3 {
				close(came)
			}
		}}, err
	}})
	c.stopOST(1)
	eventually(t, "OST 1 is down", func() bool { return c.set.OSTs()[1].State() == "down" })
	made := make(chan error, 1)
	go func() {
		tmpl := layout.Plain(1, 0)
		tmpl.Components[0].StripeOffset = 1
		a, err := c.set.Allocate(ctx10(t), &tmpl, fid.Root)
		a.Release()
		made <- err
	}()
	select {
	case <-came: // again and again
		c.startOST(1)
	case err := <-made:
		t.Fatalf("%v after %d tries", err, hurried.Load())
	}
	if err := <-made; err != nil {
		t.Fatal(err)
	}
}

func TestFullOSTIsAvoided(t *testing.T) {
	c := newCluster(t, 2, osp.Options{})
	c.osts[0].device.SetFull(true)
	eventually(t, "OST 0 is full", func() bool { return c.set.OSTs()[0].State() == "full" })
	for range 10 {
		if s := c.create(layout.Plain(1, 0)).Components[0].Stripes[0]; s.OST != 0 {
			continue
		}
		t.Fatal("a full OST was chosen")
	}
	c.osts[1].device.SetFull(true)
	eventually(t, "OST 1 is full", func() bool { return c.set.OSTs()[1].State() == "full" })
	tmpl := layout.Plain(1, 0)
	if _, err := c.set.Allocate(t.Context(), &tmpl, fid.Root); !errors.Is(err, status.NoSpace) {
		t.Fatalf("with every OST full: %v", err)
	}
	c.osts[0].device.SetFull(false)
	eventually(t, "OST 0 has room", func() bool { return c.set.OSTs()[0].State() == "up" })
	c.create(tmpl)
}

func TestAllocateDoesNotAllocateMemory(t *testing.T) {
	c := newCluster(t, 2, osp.Options{CreateCount: 20000})
	tmpl := layout.Plain(1, 1<<20)
	var l layout.Layout
	e := env.New()
	tx := store.BeginTx(e)
	ctx := context.Background()
	n := testing.AllocsPerRun(1000, func() {
		e.Reset()
		tx.Reset()
		a, err := c.set.Allocate(ctx, &tmpl, fid.Root)
		if err != nil {
			t.Fatal(err)
		}
		a.Fill(&l, tx, e)
		a.Release()
	})
	if n > poolAllocs {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkAllocate(b *testing.B) {
	c := newCluster(b, 2, osp.Options{})
	tmpl := layout.Plain(1, 1<<20)
	var l layout.Layout
	e := env.New()
	tx := store.BeginTx(e)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		e.Reset()
		tx.Reset()
		a, err := c.set.Allocate(ctx, &tmpl, fid.Root)
		if err != nil {
			b.Fatal(err)
		}
		a.Fill(&l, tx, e)
		a.Cancel() // The devices in memory copy all objects at each flush: do not let them grow.
	}
}
