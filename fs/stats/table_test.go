package stats_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

// textOf is what get_param prints for a path.
func textOf(t *testing.T, r *stats.Registry, path string) string {
	t.Helper()
	text, found := "", false
	if err := r.Walk(path, func(e stats.Entry) error {
		text, found = e.Text(), true
		return nil
	}); err != nil || !found {
		t.Fatalf("%s: found %v, %v", path, found, err)
	}
	return text
}

// TestTableText holds the forms of hash_stats and site_stats: every column present, what was not measured a dash.
func TestTableText(t *testing.T) {
	r := stats.NewRegistry()
	r.Table("mdt.strake-MDT0000", "The object table.", func(s *stats.TableStats) {
		s.Name = "OBJECTS"
		s.Buckets, s.MinBuckets, s.MaxBuckets, s.Entries, s.Busy, s.Longest, s.Empty = 16, 8, 1024, 9, 2, 3, 10
		s.Grows, s.Shrinks, s.Created, s.Hits, s.Misses, s.Evictions = 2, 1, 40, 100, 50, 31
		s.Bytes, s.LimitEntries, s.LimitBytes, s.Rule = 4096, 1000, 1<<20, "lu_cache_percent: 20 %"
		s.ShrinkTheta, s.GrowTheta = 0.3, 0.75
		s.Chains = [stats.ChainClasses]int64{10, 4, 2}
	})
	r.Table("mdt.strake-MDT0000.exports", "The exports.", func(s *stats.TableStats) { s.Entries = 3 })
	for path, want := range map[string][]string{
		"mdt.strake-MDT0000.hash_stats": {
			"name cur min max theta t-min t-max flags rehash count maxdep distribution empty grows shrinks hits misses bytes",
			"OBJECTS 16 8 1024 0.562 0.300 0.750 - 3 9 3 10/4/2/0/0/0/0/0 10 2 1 100 50 4096",
			"limit: 1000 entries, 1048576 bytes (lu_cache_percent: 20 %)",
		},
		"mdt.strake-MDT0000.site_stats": {"2/9 6/16 3 40 100 50 - - 31"},
		"mdt.strake-MDT0000.exports.hash_stats": {
			"name cur min max theta t-min t-max flags rehash count maxdep distribution empty grows shrinks hits misses bytes",
			"exports - - - - - - - - 3 - - - - - - - -",
		},
		"mdt.strake-MDT0000.exports.site_stats": {"-/3 -/- - - - - - - -"},
	} {
		lines := strings.Split(textOf(t, r, path), "\n")
		for i := range lines {
			lines[i] = strings.Join(strings.Fields(lines[i]), " ")
		}
		if got, want := strings.Join(lines, "\n"), strings.Join(want, "\n"); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", path, got, want)
		}
	}
}

// TestTableEntries: a table is found once, by its hash_stats, and by no other path.
func TestTableEntries(t *testing.T) {
	r := stats.NewRegistry()
	r.Counter("a.b.c", "A counter.")
	r.Text("a.b.hash_stats", "A text by hand.", func() string { return "" })
	r.Table("a.b", "Replaces it.", func(s *stats.TableStats) { s.Entries = 1 })
	r.Table("a.b", "Replaces itself.", func(s *stats.TableStats) { s.Entries = 2 })
	var found []string
	if err := r.Walk("", func(e stats.Entry) error {
		s, ok := e.Table()
		if !ok {
			return nil
		}
		found = append(found, e.TablePath())
		if s.Entries != 2 || s.Hits != stats.NotMeasured || s.HasChains() || s.Name != "b" {
			t.Errorf("%+v", s)
		}
		if _, ok := s.Theta(); ok || s.Rehash() != stats.NotMeasured {
			t.Errorf("a load or a rehash out of nothing: %+v", s)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0] != "a.b" {
		t.Errorf("found %q", found)
	}
	r.Unregister("a.b")
	if err := r.Walk("", func(e stats.Entry) error { t.Errorf("%s stays", e.Path); return nil }); err != nil {
		t.Fatal(err)
	}
}

// TestTableIsReadSeldom: figures are kept for a second, and a fiftieth of the time is the most that reading takes.
func TestTableIsReadSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := stats.NewRegistry()
		var reads atomic.Int64
		took := time.Duration(0)
		r.Table("x.y", "A table.", func(s *stats.TableStats) {
			s.Entries = reads.Add(1)
			if took > 0 {
				<-time.After(took) // stands for a walk that takes long, in the test's own time
			}
		})
		readFor := func(d time.Duration) int64 {
			before := reads.Load()
			for end := time.Now().Add(d); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
				textOf(t, r, "x.y.site_stats")
			}
			return reads.Load() - before
		}
		if n := readFor(10 * time.Second); n != 10 {
			t.Errorf("%d reads in 10 s", n)
		}
		took = time.Second
		if n := readFor(100 * time.Second); n < 1 || n > 3 {
			t.Errorf("%d reads of a second each in 100 s", n)
		}
	})
}

// TestChainClass holds the classes of the distribution.
func TestChainClass(t *testing.T) {
	for length, want := range map[int]string{0: "0", 1: "1", 2: "2-3", 3: "2-3", 4: "4-7", 15: "8-15", 16: "16-31", 63: "32-63",
		64: "64+", 1 << 20: "64+"} {
		if got := stats.ChainClassName(stats.ChainClass(length)); got != want {
			t.Errorf("a chain of %d is in %q, want %q", length, got, want)
		}
	}
}
