package mdt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/memdev"
)

// checkDevice checks the invariants of doc.go over all records of a device.
func checkDevice(t *testing.T, dev store.Device) {
	t.Helper()
	checkDeviceAt(t, dev, TablesAt(2))
}

func checkDeviceAt(t *testing.T, dev store.Device, tables Tables) {
	t.Helper()
	for _, p := range problemsOf(t, dev, tables, nil) {
		t.Errorf("%s: inode %v, entry %q of %v: %s", p.Kind, p.FID, p.Name, p.Folder, p.Detail)
		if !p.Settled {
			t.Errorf("of a device that nobody uses, it says that it has changed")
		}
	}
}

func problemsOf(t *testing.T, dev store.Device, tables Tables, key []byte) []*Problem {
	t.Helper()
	problems, err := NewChecker(CheckOptions{Records: target.DeviceRecords{KV: dev}, Tables: tables, Key: key}).Check(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return problems
}

// yieldDevice lets others run in the middle of operations.
type yieldDevice struct{ store.Device }

func yielding(c *cluster) {
	c.wrap = func(d store.Device) store.Device { return yieldDevice{d} }
}

func (d yieldDevice) Get(e *env.Env, t store.Table, key []byte) ([]byte, error) {
	if rand.IntN(3) == 0 {
		runtime.Gosched()
	}
	return d.Device.Get(e, t, key)
}

// storm runs random operations of many tasks in a small tree, until n have been done or stop is closed.
func storm(c *cluster, cl *client, seed uint64, n int, dirs []fid.FID) {
	rnd := rand.New(rand.NewPCG(seed, 9))
	name := func() string { return string(rune('a' + rnd.IntN(5))) }
	folder := func() fid.FID { return dirs[rnd.IntN(len(dirs))] }
	big := bytes.Repeat([]byte("x"), 2000)
	for range n {
		p, q, a, b := folder(), folder(), name(), name()
		switch rnd.IntN(13) {
		case 0:
			_, _ = cl.make(root, p, a, dir|0o755)
		case 1, 2:
			_, _ = cl.make(root, p, a, attr.TypeFifo|0o644)
		case 3:
			if r, err := cl.make(root, p, a, reg|0o644, withOpen(oRdwr)); err == nil {
				_, _ = cl.unlink(root, p, a, false)
				_ = cl.closeFile(fidOf(r.Attr), r.Handle, &wirepb.SizeReport{Done: true, Valid: uint32(attr.ValidSize)})
			}
		case 4:
			_, _ = cl.unlink(root, p, a, false)
		case 5:
			_, _ = cl.unlink(root, p, a, true)
		case 6:
			if r, err := cl.lookup(root, p, a); err == nil {
				_, _ = cl.link(root, fidOf(r.Attr), q, b)
			}
		case 7, 8:
			_, _ = cl.rename(root, p, a, q, b, 0)
		case 9:
			_, _ = cl.rename(root, p, a, q, b, renameExchange)
		case 10:
			_, _ = cl.rename(root, p, a, q, b, renameWhiteout)
		case 11:
			if r, err := cl.lookup(root, p, a); err == nil {
				_, _ = cl.setattr(root, fidOf(r.Attr), attr.ValidMode, &wirepb.Attr{Mode: 0o700 + uint32(rnd.IntN(64))}, 0)
				_, _ = cl.xattr(wire.OpSetxattr, root, fidOf(r.Attr), "trusted.x", big[:rnd.IntN(len(big))], 0)
			}
		default:
			_, _ = cl.list(p, 4096, true, nil)
		}
	}
}

// tree makes folders inside each other for a storm.
func stormTree(cl *client) []fid.FID {
	dirs := []fid.FID{fid.Root}
	for i := range 6 {
		dirs = append(dirs, cl.must(dirs[i/2], fmt.Sprintf("d%d", i), dir|0o777))
	}
	// Names that the storm moves, too.
	for i := range 4 {
		dirs = append(dirs, cl.must(dirs[1+i], string(rune('a'+i)), dir|0o777))
	}
	return dirs
}

func inTime(t *testing.T, d time.Duration, fn func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	done := make(chan struct{})
	go func() { fn(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		panic("operations wait for each other")
	}
}

func TestParallelOperations(t *testing.T) {
	c := newCluster(t, yielding)
	a, b := c.client(), c.client()
	dirs := stormTree(a)
	n := 3000
	if testing.Short() {
		n = 800
	}
	inTime(t, time.Minute, func() {
		var wg sync.WaitGroup
		for i := range 8 {
			cl := a
			if i%2 == 1 {
				cl = b
			}
			wg.Go(func() { storm(c, cl, uint64(time.Now().UnixNano())+uint64(i), n, dirs) })
		}
		wg.Wait()
	})
	checkDevice(t, c.dev)
}

// TestCrossRenamesDoNotDeadlock moves folders into each other from all sides.
func TestCrossRenamesDoNotDeadlock(t *testing.T) {
	c := newCluster(t, yielding)
	cl := c.client()
	var dirs []fid.FID
	for i := range 4 {
		d := cl.must(fid.Root, fmt.Sprintf("top%d", i), dir|0o777)
		dirs = append(dirs, d)
		cl.must(d, "x", dir|0o777)
	}
	dirs = append(dirs, fid.Root)
	var moved atomic.Int64
	inTime(t, time.Minute, func() {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano())))
				names := []string{"x", "y", "top0", "top1", "top2", "top3"}
				for range 1500 {
					_, err := cl.rename(root, dirs[rnd.IntN(5)], names[rnd.IntN(6)], dirs[rnd.IntN(5)], names[rnd.IntN(6)], uint32(rnd.IntN(2))*renameExchange)
					if err == nil {
						moved.Add(1)
					}
					if rnd.IntN(4) == 0 {
						_, _ = cl.unlink(root, dirs[rnd.IntN(5)], names[rnd.IntN(2)], true)
						_, _ = cl.make(root, dirs[rnd.IntN(5)], names[rnd.IntN(2)], dir|0o755)
					}
				}
			})
		}
		wg.Wait()
	})
	if moved.Load() < 100 {
		t.Errorf("only %d renames succeeded", moved.Load())
	}
	checkDevice(t, c.dev)
}

// TestCrashAtEverySync crashes at each commit of a storm in turn and checks what is on disk then: a consistent tree, which
// holds exactly the creates up to the committed transno.
func TestCrashAtEverySync(t *testing.T) {
	crashes := 25
	if testing.Short() {
		crashes = 6
	}
	for at := 2; at < crashes+2; at++ {
		crashOnce(t, at)
	}
}

func crashOnce(t *testing.T, at int) {
	failed := make(chan struct{})
	c := newCluster(t, func(c *cluster) {
		c.ivl = 2 * time.Millisecond
		c.onSync = func(s memdev.Sync) error {
			if s.N == at {
				close(failed)
				return errors.New("power cut")
			}
			return nil
		}
	})
	type made struct {
		name    string
		transno wire.Transno
	}
	var mu sync.Mutex
	var all []made
	cl := c.clientMay()
	if cl == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	go func() {
		select {
		case <-failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := 0; ctx.Err() == nil; j++ {
				f, ok := cl.nextMay(ctx)
				if !ok {
					return
				}
				name := fmt.Sprintf("%d-%d", i, j)
				r := rpc.Request{Op: wire.OpCreate, Body: &wirepb.CreateRequest{
					Caller: root.pb(), ParentSeq: uint64(fid.Root.Seq), ParentOid: fid.Root.OID, Name: []byte(name),
					Seq: uint64(f.Seq), Oid: f.OID, Mode: []uint32{dir, reg}[j%2] | 0o755,
				}, Reply: &wirepb.EntryReply{}}
				if cl.imp.Do(ctx, &r) == nil {
					mu.Lock()
					all = append(all, made{name, r.Transno})
					mu.Unlock()
				}
				if j%3 == 2 {
					m := &wirepb.RenameRequest{Caller: root.pb(), FromSeq: uint64(fid.Root.Seq), FromOid: 1, ToSeq: uint64(fid.Root.Seq), ToOid: 1,
						FromName: []byte(name), ToName: []byte(name + "r")}
					_ = cl.imp.Do(ctx, &rpc.Request{Op: wire.OpRename, Body: m, Reply: &wirepb.RenameReply{}})
				}
			}
		})
	}
	wg.Wait()
	c.halt(true)
	dev, err := memdev.Open(c.disk, memdev.Options{Specs: testSpecs(), CommitInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	checkDevice(t, dev)
	c.kv, c.h.dev = dev, dev
	o := c.h.begin(env.New(), nil, nil)
	for _, m := range all {
		_, _, err := o.find(fid.Root, []byte(m.name))
		if err != nil {
			_, _, err = o.find(fid.Root, []byte(m.name+"r"))
		}
		if there := err == nil; there != (store.Transno(m.transno) <= dev.Committed()) {
			t.Errorf("crash at %d: %s of transno %x is there: %v; committed %x", at, m.name, m.transno, there, dev.Committed())
		}
	}
}

// clientMay connects, or returns nil if the device fails first.
func (c *cluster) clientMay() *client {
	cl := &client{t: c.t, c: c, uuid: [16]byte{9}}
	var err error
	if cl.imp, err = rpc.NewImport(rpc.ImportOptions{
		Transport: c.net, Addresses: []string{"mdt"}, FSName: testFS, Target: testMDT, UUID: cl.uuid, Peer: "test",
		Kind: rpc.KindClient, RetryLimit: 500 * time.Millisecond,
	}); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(cl.close)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if cl.imp.Connect(ctx) != nil {
		return nil
	}
	return cl
}

func (cl *client) nextMay(ctx context.Context) (fid.FID, bool) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.seq == 0 {
		var r wirepb.SeqReply
		if err := cl.imp.Do(ctx, &rpc.Request{Op: wire.OpSeq, Reply: &r}); err != nil {
			return fid.FID{}, false
		}
		cl.seq = r.First
	}
	cl.oid++
	return fid.FID{Seq: fid.Seq(cl.seq), OID: cl.oid}, true
}

// TestRestartKeepsEverything compares all that is in a tree before and after a clean restart and a crash.
func TestRestartKeepsEverything(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprintf("crash %v", crash), func(t *testing.T) {
			c := newCluster(t)
			cl := c.client()
			dirs := stormTree(cl)
			storm(c, cl, 5, 500, dirs)
			r, err := cl.make(root, fid.Root, "open", reg|0o644, withOpen(oRdwr))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := cl.unlink(root, fid.Root, "open", false); err != nil {
				t.Fatal(err)
			}
			if err := cl.do(wire.OpSync, &wirepb.SyncRequest{All: true}, nil); err != nil {
				t.Fatal(err)
			}
			before := shim{cl}.tree(t)
			cl.close()
			c.restart(crash)
			after := shim{c.client()}.tree(t)
			for p, v := range before {
				if after[p] != v {
					t.Errorf("%s was %s, is %s", p, v, after[p])
				}
			}
			if len(after) != len(before) {
				t.Errorf("%d inodes, were %d", len(after), len(before))
			}
			if _, err := c.client().getattr(fidOf(r.Attr)); status.Of(err) != status.Stale {
				t.Errorf("orphan after a restart: %v", err)
			}
			checkDevice(t, c.dev)
		})
	}
}
