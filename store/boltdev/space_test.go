package boltdev_test

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/storetest"
	"golang.org/x/sys/unix"
)

// TestReserve: with only the reserve left, new space is refused to creates and writes; deletes, and writes into what is
// allocated, go on.
func TestReserve(t *testing.T) {
	dir := tempDir(t)
	d := mustOpen(t, options(dir))
	ids := []fid.ObjectID{{ID: 1}, {ID: 2}}
	if err := d.Objects().Create(ids); err != nil {
		t.Fatal(err)
	}
	o, err := d.Objects().Open(ids[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := o.WriteAt(make([]byte, 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	if err := o.Fallocate(0, 1<<20, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(o.Sync(), o.Close()); err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)

	full := options(dir)
	full.Reserve = 1 << 60
	d = mustOpen(t, full)
	defer mustClose(t, d)
	o, err = d.Objects().Open(ids[0])
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for what, err := range map[string]error{
		"throttle": d.Throttle(t.Context(), false), "create": d.Objects().Create([]fid.ObjectID{{ID: 3}}),
		"write": o.WriteAt([]byte("x"), 2<<20), "fallocate": o.Fallocate(0, 4<<20, 4096),
	} {
		if !errors.Is(err, store.ErrNoSpace) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := o.WriteAt([]byte("x"), 2<<20); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("errno: %v", err)
	}
	for what, err := range map[string]error{
		"throttle with reserve": d.Throttle(t.Context(), true), "overwrite": o.WriteAt([]byte("x"), 100),
		"write into allocated space": o.WriteAt([]byte("x"), 3<<19), "punch": o.Fallocate(3, 0, 4096),
		"remove": d.Objects().Remove(ids[1]), "truncate": o.Truncate(10),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if s, err := d.Statfs(); err != nil || s.Avail != 0 || s.Free == 0 {
		t.Errorf("%+v %v", s, err)
	}
}

// TestFullDiskNeverStopsTheDevice fills a small disk with random keys and large transactions, empties it through the
// reserve and fills it again: every call is refused or kept, no commit fails.
func TestFullDiskNeverStopsTheDevice(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	mount := tempDir(t)
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=48m"); err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	o := options(mount + "/d")
	o.Reserve = 8 << 20
	o.CommitInterval = 20 * time.Millisecond
	d, e := mustOpen(t, o), env.New()
	key := func(i int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(i)*0x9e3779b97f4a7c15) }
	for round := range 2 {
		n := 0
		var err error
		for ; err == nil; n++ {
			if err = d.Throttle(t.Context(), false); err != nil {
				break
			}
			tx := d.Begin(e)
			tx.Put(storetest.Plain, key(n), make([]byte, 500))
			_, err = d.Publish(tx)
		}
		if !errors.Is(err, store.ErrNoSpace) || d.Err() != nil {
			t.Fatalf("round %d, %d puts: %v; %v", round, n, err, d.Err())
		}
		for i := range n {
			if err := d.Throttle(t.Context(), true); err != nil {
				t.Fatalf("round %d, delete %d of %d: %v", round, i, n, err)
			}
			tx := d.Begin(e)
			tx.Delete(storetest.Plain, key(i))
			if _, err := d.Publish(tx); err != nil {
				t.Fatalf("round %d, delete %d of %d: %v", round, i, n, err)
			}
		}
		if err := d.WaitCommitted(t.Context(), d.Last()); err != nil {
			t.Fatal(err)
		}
		t.Logf("round %d: %d puts", round, n)
	}
	mustClose(t, d)
}
