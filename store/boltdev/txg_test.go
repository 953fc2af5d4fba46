package boltdev_test

import (
	"encoding/binary"
	"errors"
	"runtime"
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
	"github.com/strakefs/strake/store/storetest"
)

// TestSteadyGetDoesNotAllocate covers a value and a sum of deltas in the overlay and on disk, and keys that are nowhere.
func TestSteadyGetDoesNotAllocate(t *testing.T) {
	d, e := mustOpen(t, options(tempDir(t))), env.New()
	defer mustClose(t, d)
	publish := func(keys ...string) {
		for _, k := range keys {
			tx := d.Begin(e)
			tx.Put(storetest.Plain, []byte(k), make([]byte, 200))
			tx.Delta(storetest.Sums, []byte("sum"), storetest.Number(1))
			if _, err := d.Publish(tx); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish("disk")
	if err := d.WaitCommitted(t.Context(), d.Last()); err != nil {
		t.Fatal(err)
	}
	publish("overlay")
	for _, c := range []struct {
		table store.Table
		key   string
	}{{storetest.Plain, "disk"}, {storetest.Plain, "overlay"}, {storetest.Plain, "none"}, {storetest.Sums, "sum"}} {
		key := []byte(c.key)
		if n := testing.AllocsPerRun(1000, func() { e.Reset(); _, _ = d.Get(e, c.table, key) }); n != 0 {
			t.Errorf("get of %q: %v allocations", c.key, n)
		}
	}
	n := 0
	fn := func(_, _ []byte) bool { n++; return true }
	if a := testing.AllocsPerRun(1000, func() { e.Reset(); _ = d.Scan(e, storetest.Plain, nil, nil, fn) }); a != 0 || n == 0 {
		t.Errorf("scan of %d keys: %v allocations", n, a)
	}
}

// TestSteadyPublishAllocatesOnlyPieces: a publish takes its memory from pieces of the txg's arena, some hundred
// operations each, and from hash tables that double.
func TestSteadyPublishAllocatesOnlyPieces(t *testing.T) {
	o := options(tempDir(t))
	o.TxgMaxOps = 1 << 30
	d, e := mustOpen(t, o), env.New()
	defer mustClose(t, d)
	var key, other [16]byte
	value := make([]byte, 200)
	delta := storetest.Number(1)
	parent := []byte("parent")
	n := uint64(0)
	publish := func() {
		n++
		binary.BigEndian.PutUint64(key[:], n)
		binary.BigEndian.PutUint64(other[:], n*0x9e3779b97f4a7c15)
		tx := d.Begin(e)
		tx.Put(storetest.Plain, key[:], value, 0)
		tx.Put(storetest.Tails, other[:], value[:60])
		tx.Delta(storetest.Sums, parent, delta)
		if _, err := d.Publish(tx); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	const runs = 5000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		publish()
	}
	runtime.ReadMemStats(&after)
	if per := float64(after.Mallocs-before.Mallocs) / runs; per > 0.1 {
		t.Errorf("%v allocations per publish", per)
	}
	t.Logf("%d bytes per publish", (after.TotalAlloc-before.TotalAlloc)/runs)
}

// TestThrottleBoundsMemory: with a disk that takes nothing, operations that ask first stop at three txgs.
func TestThrottleBoundsMemory(t *testing.T) {
	block := make(chan struct{})
	o := options(tempDir(t))
	o.TxgMaxOps = 100
	o.Fault = func(string) error { <-block; return nil }
	d := mustOpen(t, o)
	defer mustClose(t, d)
	e := env.New()
	ops := make(chan struct{}, 10_000)
	done := make(chan error)
	go func() {
		for range 1000 {
			if err := d.Throttle(t.Context(), false); err != nil {
				done <- err
				return
			}
			tx := d.Begin(e)
			tx.Put(storetest.Plain, []byte("k"), []byte("v"))
			if _, err := d.Publish(tx); err != nil {
				done <- err
				return
			}
			ops <- struct{}{}
		}
		done <- nil
	}()
	for range 300 {
		<-ops
	}
	select {
	case <-ops:
		t.Error("more than three txgs")
	case err := <-done:
		t.Fatal(err)
	default:
	}
	close(block)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestFailedCommitStopsTheDevice: what was not committed is refused to everyone who waits, and gone at the next start.
func TestFailedCommitStopsTheDevice(t *testing.T) {
	for _, point := range []string{"commit", "flush", "label"} {
		dir := tempDir(t)
		o := options(dir)
		o.Fault = func(p string) error {
			if p == point {
				return errPulled
			}
			return nil
		}
		d, e := mustOpen(t, o), env.New()
		tx := d.Begin(e)
		tx.Put(storetest.Plain, []byte("k"), []byte("v"))
		if _, err := d.Publish(tx); err != nil {
			t.Fatal(err)
		}
		fail(t, d, point)
		if err := d.Close(); err == nil {
			t.Fatal("Close hides the failure")
		}
		d = mustOpen(t, options(dir))
		mustClose(t, d)
	}
}

func fail(t *testing.T, d *boltdev.Device, point string) {
	t.Helper()
	var err error
	switch point {
	case "commit":
		err = d.WaitCommitted(t.Context(), d.Last())
	case "flush":
		err = makeAndFlush(t, d)
	case "label":
		err = d.SetLabel(d.Label())
	}
	for _, err := range []error{err, d.Err()} {
		if !stopped(err) {
			t.Fatalf("%s: %v", point, err)
		}
	}
	e := env.New()
	_, publishErr := d.Publish(d.Begin(e))
	if _, err := d.Get(e, storetest.Plain, []byte("k")); !stopped(err) || !stopped(publishErr) {
		t.Fatalf("%s: %v, %v", point, err, publishErr)
	}
}

func stopped(err error) bool { return errors.Is(err, store.ErrStopped) && errors.Is(err, errPulled) }

func makeAndFlush(t *testing.T, d *boltdev.Device) error {
	t.Helper()
	if err := d.Objects().Create([]fid.ObjectID{{ID: 1}}); err != nil {
		t.Fatal(err)
	}
	return d.Objects().Flush(t.Context())
}
