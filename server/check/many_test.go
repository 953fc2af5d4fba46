package check_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/server/check"
	"github.com/strakefs/strake/server/mdt"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var key = []byte("0123456789abcdef")

// fill makes the folders of an MDT and an OST with n files of one stripe each, in /lost+found, straight in the store.
func fill(t testing.TB, base string, n int) {
	t.Helper()
	ctx := context.Background()
	open := func(name string, kind store.TargetKind, specs []store.Spec) *boltdev.Device {
		d, err := boltdev.Open(boltdev.Options{Dir: filepath.Join(base, name), Specs: specs,
			Label: store.Label{FSName: "strake", Kind: kind, UUID: name, FSKey: key}})
		must(t, err)
		return d
	}
	m, o := open("mdt0", store.KindMDT, check.MDTSpecs()), open("ost0", store.KindOST, ost.Specs())
	rm, err := mdt.NewRepairer(m, mdt.TablesAt(0), key)
	must(t, err)
	must(t, rm.Prepare(nil))
	_, err = rm.Fix(ctx, &mdt.Problem{Kind: mdt.ProblemRoot, FID: fid.Root})
	must(t, err)
	ro := ost.NewRepairer(o)
	ids := make([]fid.ObjectID, 0, 4096)
	for i := 1; i <= n; i++ {
		id := fid.ObjectID{ID: uint64(i)}
		ids = append(ids, id)
		if len(ids) == cap(ids) || i == n {
			must(t, o.Objects().Create(ids))
			ids = ids[:0]
		}
		f, err := rm.Adopt(ctx, fmt.Sprintf("f%d", i), layout.Stripe{Object: id}, mdt.File{UID: uint32(i % 10)})
		must(t, err)
		must(t, ro.SetObject(ctx, ost.Object{ID: id, Owner: f, Owned: true, UID: uint32(i % 10)}))
	}
	must(t, ro.SetLast(ctx, 0, uint64(n)))
	k, v := osp.PutLastUsed(0, uint64(n))
	for i, s := range check.MDTSpecs() {
		if s.Name == "ost_last_used" {
			must(t, rm.Put(ctx, store.Table(i), k, v))
		}
	}
	for _, d := range []*boltdev.Device{m, o} {
		l := d.Label()
		l.Index = 0
		must(t, d.SetLabel(l))
		must(t, d.Close())
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestManyFiles checks a file system made in the store: 3,000 files, a million with STRAKE_SOAK. The memory that it takes at most
// is bounded by what doc.go says.
func TestManyFiles(t *testing.T) {
	n := 3000
	if os.Getenv("STRAKE_SOAK") != "" {
		n = 1_000_000
	}
	base := t.TempDir()
	begin := time.Now()
	fill(t, base, n)
	t.Logf("%d files made in %v", n, time.Since(begin))
	set, err := check.Open([]string{base}, false)
	must(t, err)
	before := heap()
	stop, most := make(chan struct{}), make(chan uint64)
	go func() {
		peak := uint64(0)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
			select {
			case <-tick.C:
			case <-stop:
				most <- peak
				return
			}
		}
	}()
	begin = time.Now()
	sum, err := set.Check(t.Context(), check.Options{Report: func(f check.Finding) { t.Errorf("%+v", f) }})
	took := time.Since(begin)
	close(stop)
	peak := <-most
	must(t, errors.Join(err, set.Close()))
	t.Logf("%d files checked in %v, %d bytes of heap a file at most, garbage included", n, took, (peak-min(before, peak))/uint64(n))
	if sum.Files != uint64(n) || sum.Inodes != uint64(n)+2 || sum.Objects != uint64(n) {
		t.Errorf("%+v", sum)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// FuzzDump: whatever stands in a table, it is shown.
func FuzzDump(f *testing.F) {
	f.Add(byte(0), fid.Root.AppendKey(nil), []byte{1})
	f.Add(byte(6), []byte("0123456789abcdef01"), make([]byte, 40))
	base := f.TempDir()
	fill(f, base, 1)
	f.Fuzz(func(t *testing.T, table byte, key, value []byte) {
		if len(key) == 0 || len(key) > 1000 {
			return
		}
		for name, specs := range map[string][]store.Spec{"mdt0": check.MDTSpecs(), "ost0": ost.Specs()} {
			dir := filepath.Join(base, name)
			d, err := boltdev.Open(boltdev.Options{Dir: dir, Specs: specs})
			must(t, err)
			at := store.Table(int(table) % len(specs))
			tx := d.Begin(env.New())
			tx.Put(at, key, value)
			_, err = d.Publish(tx)
			must(t, errors.Join(err, d.Close()))
			set, err := check.Open([]string{dir}, false)
			must(t, err)
			for _, dump := range set.Dumps() {
				if _, err := dump.Head(t.Context()); err != nil {
					t.Error(err)
				}
				must(t, dump.Table(t.Context(), specs[at].Name, func(f check.Fields) bool {
					_, err := f.MarshalJSON()
					must(t, err)
					return true
				}))
			}
			must(t, set.Close())
		}
	})
}
