package fusefs

import (
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/stats"
)

// TestEveryRequestHasItsRow: a request is counted when its context is freed, under its own name, once.
func TestEveryRequestHasItsRow(t *testing.T) {
	reg := stats.NewRegistry()
	f := newFS(Options{Stats: reg, StatsPrefix: "llite.fs-0."}, &kernel{fd: -1})
	defer f.close()
	cancel := make(chan struct{})
	for op := range opTimed {
		f.requests.free(f.begin(cancel, 1, op))
	}
	f.requests.free(f.requests.begin(cancel, 1)) // the context that is taken from the pool has no row
	f.counts[opReadBytes].Observe(4096)
	f.counts[opClose].Inc()
	rows := map[string]stats.Row{}
	for _, r := range reg.Rows("llite.fs-0.stats", "").Read() {
		rows[r.Name] = r
	}
	if len(rows) != int(opTimed)+2 {
		t.Errorf("%d rows of %d have a sample", len(rows), opTimed+2)
	}
	for name, r := range rows {
		if r.Count != 1 {
			t.Errorf("%s has %d samples", name, r.Count)
		}
	}
	for name, unit := range map[string]stats.Unit{"lookup": "usecs", "removexattr": "usecs", "close": "reqs", "read_bytes": "bytes"} {
		if got := rows[name].Unit; got != unit {
			t.Errorf("%s is in %q, want %q", name, got, unit)
		}
	}
	if rows["read_bytes"].Sum != 4096 {
		t.Errorf("read_bytes sums up to %d", rows["read_bytes"].Sum)
	}
}

func TestRowOfAnInodeMade(t *testing.T) {
	for mode, want := range map[uint32]operation{
		attr.TypeDir | 0o755: opMkdir, attr.TypeLink | 0o777: opSymlink, attr.TypeFifo: opMknod, attr.TypeFile | 0o644: opMknod,
	} {
		m := making{what: mdc.Creation{Mode: mode}}
		if got := m.op(); got != want {
			t.Errorf("mode %o is counted as %s", mode, operationNames[got])
		}
	}
}

// TestAnsweredRequestsAreCounted: through the methods that the kernel's requests arrive at.
func TestAnsweredRequestsAreCounted(t *testing.T) {
	f := newFS(Options{}, &kernel{fd: -1})
	defer f.close()
	f.ReleaseDir(&fuse.ReleaseIn{Fh: 7}) // nobody's handle
	if n := f.counts[opClose].Count(); n != 0 {
		t.Errorf("a close of no handle was counted %d times", n)
	}
	in := &fuse.IoctlIn{Cmd: 1}
	if code := f.Ioctl(nil, in, nil, nil, nil); code == fuse.OK {
		t.Error("an unknown ioctl succeeds")
	}
	if n := f.counts[opIoctl].Count(); n != 1 {
		t.Errorf("a refused ioctl was counted %d times", n)
	}
}

func TestCountedRequestDoesNotAllocate(t *testing.T) {
	f := newFS(Options{Stats: stats.NewRegistry(), StatsPrefix: "llite.fs-0."}, &kernel{fd: -1})
	defer f.close()
	cancel := make(chan struct{})
	f.requests.free(f.begin(cancel, 1, opRead))
	if n := testing.AllocsPerRun(1000, func() {
		c := f.begin(cancel, 1, opRead)
		f.counts[opReadBytes].Observe(4096)
		f.requests.free(c)
	}); n > 0.1 {
		t.Fatalf("%v allocations per request", n)
	}
}

func BenchmarkCountedRequest(b *testing.B) {
	f := newFS(Options{Stats: stats.NewRegistry(), StatsPrefix: "llite.fs-0."}, &kernel{fd: -1})
	defer f.close()
	cancel := make(chan struct{})
	b.Run("counted", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f.requests.free(f.begin(cancel, 1, opRead))
		}
	})
	b.Run("control", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f.requests.free(f.requests.begin(cancel, 1))
		}
	})
}
