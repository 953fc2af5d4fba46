package faultdev_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/faultdev"
	"github.com/strakefs/strake/store/memdev"
	"github.com/strakefs/strake/store/storetest"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// disk implements storetest.Disk: no rules, so the suite must pass.
type disk struct {
	disk *memdev.Disk
	dev  *memdev.Device
}

func (s *disk) Open(t testing.TB, specs []store.Spec, interval time.Duration) store.Device {
	d, err := memdev.Open(s.disk, memdev.Options{Specs: specs, CommitInterval: interval})
	if err != nil {
		t.Fatal(err)
	}
	s.dev = d
	return faultdev.New(d, &faultdev.Script{})
}

func (s *disk) Crash(testing.TB) { s.dev.Crash() }

func TestSuite(t *testing.T) {
	storetest.Run(t, func(testing.TB) storetest.Disk { return &disk{disk: memdev.NewDisk()} })
}

func open(t *testing.T, on *memdev.Disk, script *faultdev.Script) *faultdev.Device {
	t.Helper()
	below, err := memdev.Open(on, memdev.Options{
		Specs: storetest.Specs(), CommitInterval: storetest.Never,
		OnSync: func(s memdev.Sync) error { return script.Fault(s.What) },
	})
	if err != nil {
		t.Fatal(err)
	}
	script.OnStop(below.Crash)
	d := faultdev.New(below, script)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// TestStopAtEverySync stops a device at each sync of some work in turn; what was reported durable is there after it.
func TestStopAtEverySync(t *testing.T) {
	for at := 1; ; at++ {
		on, e := memdev.NewDisk(), env.New()
		d := open(t, on, faultdev.MustParse(fmt.Sprintf("any %d stop", at)))
		var keys, objects int
		work := func(i int) error {
			tx := d.Begin(e)
			tx.Put(storetest.Plain, fmt.Append(nil, i), []byte("v"))
			n, err := d.Publish(tx)
			if err == nil {
				err = d.WaitCommitted(t.Context(), n)
			}
			if err != nil {
				return err
			}
			keys++
			id := fid.ObjectID{ID: uint64(i)}
			if err := errors.Join(d.Objects().Create([]fid.ObjectID{id}), d.Objects().Flush(t.Context())); err != nil {
				return err
			}
			objects++
			return nil
		}
		var err error
		for i := 0; i < 5 && err == nil; i++ {
			err = work(i)
		}
		if err != nil && (!errors.Is(err, store.ErrStopped) || d.Err() == nil) {
			t.Fatalf("at %d: %v, %v", at, err, d.Err())
		}
		_ = d.Close()
		after := open(t, on, &faultdev.Script{})
		for i := range keys {
			if _, err := after.Get(e, storetest.Plain, fmt.Append(nil, i)); err != nil {
				t.Fatalf("at %d: key %d of %d: %v", at, i, keys, err)
			}
		}
		for i := range objects {
			o, err := after.Objects().Open(fid.ObjectID{ID: uint64(i)})
			if err != nil {
				t.Fatalf("at %d: object %d of %d: %v", at, i, objects, err)
			}
			_ = o.Close()
		}
		if err == nil {
			t.Logf("%d syncs and calls", at-1)
			return
		}
	}
}

func TestRules(t *testing.T) {
	script := faultdev.MustParse("write 2 error ENOSPC; write 3 torn\nread 1-2 error EIO; publish * delay 5ms")
	d := open(t, memdev.NewDisk(), script)
	id := fid.ObjectID{ID: 1}
	if err := d.Objects().Create([]fid.ObjectID{id}); err != nil {
		t.Fatal(err)
	}
	o, err := d.Objects().Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	b := make([]byte, 10)
	if err := o.WriteAt([]byte("one"), 0); err != nil {
		t.Fatal(err)
	}
	if err := o.WriteAt([]byte("two"), 0); !errors.Is(err, store.ErrNoSpace) || !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := o.WriteAt([]byte("THREE+"), 0); !errors.Is(err, faultdev.ErrFault) {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := o.ReadAt(b, 0); !errors.Is(err, unix.EIO) {
			t.Fatal(err)
		}
	}
	if n, err := o.ReadAt(b, 0); err != nil || string(b[:n]) != "THR" {
		t.Fatalf("%q %v", b[:n], err)
	}
	if script.Count(faultdev.Write) != 3 || script.Count(faultdev.Read) != 3 {
		t.Fatal("counts")
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, memdev.NewDisk(), faultdev.MustParse("publish * delay 1h"))
		begin := time.Now()
		if _, err := d.Publish(d.Begin(env.New())); err != nil || time.Since(begin) != time.Hour {
			t.Fatal(time.Since(begin), err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestParseRefuses(t *testing.T) {
	for _, s := range []string{"write", "write 1", "jump 1 stop", "write 0 stop", "write 5-2 stop", "write x stop", "write 1 stop now", "write 1 delay", "write 1 delay x", "write 1 error E"} {
		if r, err := faultdev.Parse(s); err == nil {
			t.Errorf("%q gave %+v", s, r)
		}
	}
}
