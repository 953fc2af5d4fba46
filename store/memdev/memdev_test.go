package memdev_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/memdev"
)

var specs = []store.Spec{{Name: "a"}, {Name: "b"}}

func open(t *testing.T, disk *memdev.Disk, o memdev.Options) *memdev.Device {
	t.Helper()
	o.Specs = specs
	d, err := memdev.Open(disk, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func put(t *testing.T, d store.Device, e *env.Env, key, value string) store.Transno {
	t.Helper()
	tx := d.Begin(e)
	tx.Put(0, []byte(key), []byte(value))
	n, err := d.Publish(tx)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCrashForgetsWhatIsNotOnDisk(t *testing.T) {
	disk, e := memdev.NewDisk(), env.New()
	d := open(t, disk, memdev.Options{CommitInterval: -1})
	n := put(t, d, e, "k1", "v1")
	if err := d.WaitCommitted(context.Background(), n); err != nil {
		t.Fatal(err)
	}
	put(t, d, e, "k2", "v2")
	id := fid.ObjectID{ID: 7}
	if err := d.Objects().Create([]fid.ObjectID{id}); err != nil {
		t.Fatal(err)
	}
	d.Crash()
	if _, err := d.Get(e, 0, []byte("k1")); !errors.Is(err, memdev.ErrCrashed) || !errors.Is(err, store.ErrStopped) {
		t.Fatal(err)
	}
	d = open(t, disk, memdev.Options{CommitInterval: -1})
	if v, err := d.Get(e, 0, []byte("k1")); string(v) != "v1" || err != nil {
		t.Fatalf("%q %v", v, err)
	}
	if _, err := d.Get(e, 0, []byte("k2")); !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	if _, err := d.Objects().Open(id); !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	if m := put(t, d, e, "k3", "v3"); m>>store.CountBits != n>>store.CountBits+1 {
		t.Fatalf("start count: %#x after %#x", m, n)
	}
}

func TestEverySyncCanFail(t *testing.T) {
	broken := errors.New("broken disk")
	for at := 1; at <= 5; at++ {
		disk, e := memdev.NewDisk(), env.New()
		d := open(t, disk, memdev.Options{CommitInterval: -1, OnSync: func(s memdev.Sync) error {
			if s.N == at {
				return broken
			}
			return nil
		}})
		done := 0
		for i := range 5 {
			if d.WaitCommitted(context.Background(), put(t, d, e, fmt.Sprint(i), "v")) != nil {
				break
			}
			done++
		}
		if done != at-1 || !errors.Is(d.Err(), broken) {
			t.Fatalf("at %d: %d done, %v", at, done, d.Err())
		}
		// A device that has failed gives its disk back like any other.
		if err := d.Close(); !errors.Is(err, broken) && err != nil {
			t.Fatal(err)
		}
		d = open(t, disk, memdev.Options{})
		for i := range 5 {
			if _, err := d.Get(e, 0, fmt.Append(nil, i)); (err == nil) != (i < done) {
				t.Fatalf("at %d: key %d: %v", at, i, err)
			}
		}
	}
}

func TestCommitsOnTheTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := memdev.Open(memdev.NewDisk(), memdev.Options{Specs: specs})
		if err != nil {
			t.Fatal(err)
		}
		e := env.New()
		n := put(t, d, e, "k", "v")
		time.Sleep(499 * time.Millisecond)
		synctest.Wait()
		if d.Committed() >= n {
			t.Fatal("committed before its time")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if d.Committed() != n {
			t.Fatalf("%#x of %#x", d.Committed(), n)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
