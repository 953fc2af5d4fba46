package memdev_test

import (
	"testing"
	"time"

	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/memdev"
	"github.com/strakefs/strake/store/storetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// suiteDisk implements storetest.Disk.
type suiteDisk struct {
	disk *memdev.Disk
	dev  *memdev.Device
}

func (s *suiteDisk) Open(t testing.TB, specs []store.Spec, interval time.Duration) store.Device {
	d, err := memdev.Open(s.disk, memdev.Options{Specs: specs, CommitInterval: interval})
	if err != nil {
		t.Fatal(err)
	}
	s.dev = d
	return d
}

func (s *suiteDisk) Crash(testing.TB) { s.dev.Crash() }

func maker(testing.TB) storetest.Disk { return &suiteDisk{disk: memdev.NewDisk()} }

func TestSuite(t *testing.T) { storetest.Run(t, maker) }
