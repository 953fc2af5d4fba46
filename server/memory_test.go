package server_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shirou/gopsutil/v4/mem"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/server/config"
)

// TestTablesOfANode: every target's tables are there with their figures, and the object caches of all OSTs are under one
// lu_cache_percent, which can be set while they run.
func TestTablesOfANode(t *testing.T) {
	reg := stats.NewRegistry()
	o := options(config.Config{HostMGS: true, Targets: targets(t.TempDir(), config.MDT, config.OST, config.OST)})
	o.Stats = reg
	n, stop := start(t, o)
	defer stop()
	view(t, n, 3)
	m, err := mem.VirtualMemory()
	if err != nil {
		t.Fatal(err)
	}
	limit := func(percent uint64) {
		t.Helper()
		want, found := int64(m.Total/100*percent), 0
		if err := reg.Walk("lu_cache.limit_bytes", func(e stats.Entry) error {
			found++
			if v, _ := e.Value(); v != want {
				t.Errorf("limit %d bytes, want %d", v, want)
			}
			return nil
		}); err != nil || found != 1 {
			t.Errorf("lu_cache.limit_bytes: %d, %v", found, err)
		}
	}
	limit(20)
	tables := map[string]stats.TableStats{}
	if err := reg.Walk("*.*.hash_stats", func(e stats.Entry) error { tables[e.TablePath()], _ = e.Table(); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := reg.Walk("*.*.exports.hash_stats", func(e stats.Entry) error { tables[e.TablePath()], _ = e.Table(); return nil }); err != nil {
		t.Fatal(err)
	}
	for _, ost := range []string{"OST0000", "OST0001"} {
		s, ok := tables["obdfilter.strake-"+ost]
		if want := fmt.Sprintf("lu_cache_percent: 20 %% of %d MiB of memory, shared by the targets of the process", m.Total>>20); !ok || s.Rule != want {
			t.Errorf("objects of %s: %v, rule %q, want %q", ost, ok, s.Rule, want)
		}
	}
	for _, path := range []string{"mdt.strake-MDT0000.exports", "obdfilter.strake-OST0000.exports"} {
		s, ok := tables[path]
		if !ok || s.Name != "EXPORT" || s.Entries < 0 || s.Bytes < 0 || !s.HasChains() || s.LimitEntries <= 0 || s.Hits == stats.NotMeasured {
			t.Errorf("%s: %v %+v", path, ok, s)
		}
	}
	set := false
	if err := reg.Walk("lu_cache_percent", func(e stats.Entry) error { set = true; return e.Set("7") }); err != nil || !set {
		t.Fatalf("lu_cache_percent: found %v, %v", set, err)
	}
	limit(7)
	if err := reg.Walk("obdfilter.strake-OST0000.site_stats", func(e stats.Entry) error {
		if text := e.Text(); strings.Count(text, "/") != 2 {
			t.Errorf("site_stats %q", text)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
