package mdt

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/memdev"
)

// slowDisk is a device that commits nothing while it is held.
type slowDisk struct {
	store.Device
	mu   sync.Mutex
	gate chan struct{} // closed when it goes on; nil when it is not held; guarded by mu
	want store.Transno // guarded by mu
}

// hold stops commits until the function that it returns is called.
func (d *slowDisk) hold() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := make(chan struct{})
	d.gate = gate
	return sync.OnceFunc(func() {
		d.mu.Lock()
		want := d.want
		d.gate = nil
		d.mu.Unlock()
		close(gate)
		d.Device.Hasten(want)
	})
}

func (d *slowDisk) Hasten(n store.Transno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gate != nil {
		d.want = max(d.want, n)
		return
	}
	d.Device.Hasten(n)
}

func (d *slowDisk) WaitCommitted(ctx context.Context, n store.Transno) error {
	d.mu.Lock()
	gate := d.gate
	d.mu.Unlock()
	if gate != nil && n > d.Committed() {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return d.Device.WaitCommitted(ctx, n)
}

// onSlowDisk puts a cluster on one.
func onSlowDisk(d *slowDisk) func(*cluster) {
	return func(c *cluster) {
		c.ivl, c.stats = -1, stats.NewRegistry()
		c.wrap = func(dev store.Device) store.Device {
			d.Device = dev
			return d
		}
	}
}

// until runs until a condition holds; inTime bounds it.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(limit) {
			t.Fatalf("%s did not come", what)
		}
		runtime.Gosched()
	}
}

func (c *cluster) sharersWaiting() int {
	c.h.sharing.mu.Lock()
	defer c.h.sharing.mu.Unlock()
	return len(c.h.sharing.waiters)
}

// TestSharersHoldNothing: operations in every slot of a client wait for a commit, and hold no worker and no lock: the files
// that they would change, their folder and the client's other requests are free (DESIGN §3, "No waiting request may keep out
// what it waits for").
func TestSharersHoldNothing(t *testing.T) {
	disk := &slowDisk{}
	c := newCluster(t, onSlowDisk(disk))
	s := &sharers{t: t, c: c, a: c.client(), b: c.client()}
	var files []fid.FID
	for i := range rpc.DefaultInFlightMetadata {
		files = append(files, s.a.must(fid.Root, fmt.Sprint("f", i), reg|0o644))
	}
	r, err := s.b.open(root, files[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	s.settle()
	release := disk.hold()
	defer release()
	change := func(cl *client, mode uint32) {
		for _, f := range files {
			if err := s.chmod(cl, f, mode); err != nil {
				t.Error(err)
			}
		}
	}
	change(s.a, 0o600)
	var wg sync.WaitGroup
	var done atomic.Int32
	for _, f := range files {
		wg.Go(func() {
			if err := s.chmod(s.b, f, 0o640); err != nil {
				t.Error(err)
			}
			done.Add(1)
		})
	}
	until(t, "the waits", func() bool { return c.sharersWaiting() == len(files) })
	until(t, "the workers' end", func() bool { return c.stats.Gauge("rpc.server.req_active", "").Load() == 0 })
	if n := c.stats.Gauge("rpc.server.req_held", "").Load(); n != int64(len(files)) {
		t.Errorf("%d calls are held, want %d", n, len(files))
	}
	if n := c.h.ldlm.Namespace().LockCount(); n != 0 {
		t.Errorf("%d locks are held", n)
	}
	inTime(t, 10*time.Second, func() {
		change(s.a, 0o644) // its own change: waits for nothing, and nobody has the files locked
		if err := s.create(s.a, fid.Root, "new"); err != nil {
			t.Error(err)
		}
		if err := s.b.closeFile(files[0], r.Handle, nil); err != nil {
			t.Error(err)
		}
		if _, err := s.b.getattr(files[1]); err != nil {
			t.Error(err)
		}
	})
	if done.Load() != 0 {
		t.Errorf("%d operations did not wait", done.Load())
	}
	release()
	inTime(t, 10*time.Second, wg.Wait)
	for _, f := range files {
		if r, err := s.b.getattr(f); err != nil || r.Attr.Mode != reg|0o640 {
			t.Errorf("%v: %v, mode %o", f, err, r.Attr.Mode)
		}
	}
}

// TestSharersAreNotStarved: a client that goes on changing a file does not keep another one from it.
func TestSharersAreNotStarved(t *testing.T) {
	s := newSharers(t, "1")
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
				if err := s.chmod(s.a, s.f, 0o600); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	inTime(t, 20*time.Second, func() {
		for range 50 {
			if err := s.chmod(s.b, s.f, 0o640); err != nil {
				t.Error(err)
			}
		}
	})
	close(stop)
	wg.Wait()
}

// TestSharedOperationRunsOnce: an operation that waited runs once, and its slot answers it from then on; in between its client
// may lose its connection.
func TestSharedOperationRunsOnce(t *testing.T) {
	disk := &slowDisk{}
	c := newCluster(t, onSlowDisk(disk))
	s := &sharers{t: t, c: c, a: c.client(), b: c.client()}
	p := s.a.must(fid.Root, "p", dir|0o777)
	s.settle()
	release := disk.hold()
	defer release()
	if err := s.create(s.a, p, "f"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.rename(s.b, p, "f", p, "g") }()
	until(t, "the wait", func() bool { return c.sharersWaiting() == 1 })
	s.b.imp.Reconnect()
	until(t, "the wait of the request that came again", func() bool { return c.sharersWaiting() == 2 })
	release()
	inTime(t, 10*time.Second, func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if _, err := s.a.lookup(root, p, "g"); err != nil {
		t.Error(err)
	}
}

// TestSharersEndWithTheTarget: what waits for a commit ends when the target closes, or its device fails.
func TestSharersEndWithTheTarget(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprint("device fails: ", fails), func(t *testing.T) {
			disk := &slowDisk{}
			broken := errors.New("broken")
			var bad atomic.Bool
			c := newCluster(t, onSlowDisk(disk), func(c *cluster) {
				c.onSync = func(memdev.Sync) error {
					if bad.Load() {
						return broken
					}
					return nil
				}
			})
			s := &sharers{t: t, c: c, a: c.client(), b: c.client(func(o *rpc.ImportOptions) { o.RetryLimit = 300 * time.Millisecond })}
			f := s.a.must(fid.Root, "f", reg|0o644)
			s.settle()
			release := disk.hold()
			defer release()
			if err := s.chmod(s.a, f, 0o600); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- s.chmod(s.b, f, 0o640) }()
			until(t, "the wait", func() bool { return c.sharersWaiting() == 1 })
			if fails {
				bad.Store(true)
				release()
			} else {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				if err := c.h.Close(ctx); err != nil {
					t.Error(err)
				}
				release()
			}
			inTime(t, 10*time.Second, func() {
				if err := <-done; err == nil {
					t.Error("an operation that depends on what was lost has succeeded")
				}
			})
			c.halt(fails)
		})
	}
}

// TestSharingParameter: the values of commit_on_sharing; when it is raised, what clients share already is on disk.
func TestSharingParameter(t *testing.T) {
	reg := stats.NewRegistry()
	c := newCluster(t, seldom, func(c *cluster) { c.stats = reg })
	a := c.client()
	path := "mdt." + testMDT + ".commit_on_sharing"
	var param stats.Entry
	if err := reg.Walk(path, func(e stats.Entry) error { param = e; return nil }); err != nil || param.Path != path {
		t.Fatalf("no entry at %s: %v", path, err)
	}
	value := param.Text
	if got := value(); got != "1" {
		t.Errorf("the default is %q", got)
	}
	for _, bad := range []string{"", "3", "-1", "on"} {
		if err := param.Set(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if err := param.Set("0"); err != nil {
		t.Fatal(err)
	}
	a.must(fid.Root, "f", 0o100644)
	if c.kv.Committed() >= c.kv.Last() {
		t.Fatal("it is on disk already")
	}
	if err := param.Set(" 2\n"); err != nil || value() != "2" {
		t.Errorf("%q, %v", value(), err)
	}
	if c.kv.Committed() < c.kv.Last() {
		t.Error("what was made before is not on disk")
	}
}

// TestRemovalsForget: removals keep what is not on disk and not much more.
func TestRemovalsForget(t *testing.T) {
	var r removals
	key := func(i int) uint64 { return removalKey(fid.Root, nameHash(i).cookie(3)) }
	for i := range 10_000 {
		committed := store.Transno(i / 100 * 100)
		r.add(key(i), stamp{store.Transno(i + 1), uint64(i)}, committed)
		for _, k := range []int{i, i / 100 * 100} {
			if got, want := r.find(key(k), committed), (stamp{store.Transno(k + 1), uint64(k)}); got != want {
				t.Fatalf("after %d: %d is %v, want %v", i, k, got, want)
			}
		}
		if got := r.find(key(i), store.Transno(i+1)); got != (stamp{}) {
			t.Fatalf("%d on disk: %v", i, got)
		}
		if i >= 100 {
			if got := r.find(key(i/100*100-1), committed); got != (stamp{}) {
				t.Fatalf("what is on disk is found: %v", got)
			}
		}
	}
	kept := 0
	for i := range r.shards {
		kept += len(r.shards[i].now) + len(r.shards[i].old)
	}
	if kept > 500 {
		t.Errorf("%d removals are kept", kept)
	}
	var keys []uint64
	for i := range 1000 {
		keys = append(keys, key(i), removalKey(fid.FID{Seq: fid.Root.Seq, OID: 2}, nameHash(i).cookie(0)))
	}
	slices.Sort(keys)
	if len(slices.Compact(keys)) != 2000 {
		t.Error("keys of different names are equal")
	}
}
