package boltdev_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
	"github.com/strakefs/strake/store/storetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if childRuns() {
		return
	}
	goleak.VerifyTestMain(m)
}

var errPulled = errors.New("plug pulled")

// suiteDisk implements storetest.Disk. A crash lets every commit and flush fail from then on: what bbolt has not been
// given is gone. The crash test with a killed process does the rest.
type suiteDisk struct {
	dir  string
	dev  *boltdev.Device
	dead *atomic.Bool
}

func (s *suiteDisk) Open(t testing.TB, specs []store.Spec, interval time.Duration) store.Device {
	if interval < 0 {
		interval = time.Hour
	}
	dead := &atomic.Bool{}
	d, err := boltdev.Open(boltdev.Options{
		Dir: s.dir, Specs: specs, CommitInterval: interval, Reserve: 1 << 20,
		Label: store.Label{FSName: "strake", Kind: store.KindMDT, Index: -1},
		Fault: func(string) error {
			if dead.Load() {
				return errPulled
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.dev, s.dead = d, dead
	return d
}

func (s *suiteDisk) Crash(t testing.TB) {
	s.dead.Store(true)
	if err := s.dev.Close(); err != nil && !errors.Is(err, errPulled) {
		t.Fatal(err)
	}
}

func maker(t testing.TB) storetest.Disk { return &suiteDisk{dir: tempDir(t)} }

func TestSuite(t *testing.T) { storetest.Run(t, maker) }
