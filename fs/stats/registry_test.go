package stats_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/strakefs/strake/fs/stats"
)

func paths(t *testing.T, r *stats.Registry, pattern string) []string {
	t.Helper()
	var got []string
	if err := r.Walk(pattern, func(e stats.Entry) error { got = append(got, e.Path); return nil }); err != nil {
		t.Fatalf("Walk(%q): %v", pattern, err)
	}
	return got
}

func entry(t *testing.T, r *stats.Registry, path string) stats.Entry {
	t.Helper()
	var got *stats.Entry
	if err := r.Walk(path, func(e stats.Entry) error { got = &e; return nil }); err != nil || got == nil {
		t.Fatalf("no entry at %s (%v)", path, err)
	}
	return *got
}

func TestRegistrySameKindReturnsExisting(t *testing.T) {
	r := stats.NewRegistry()
	a, b := r.Counter("x.y.z", "Things."), r.Counter("x.y.z", "Things.")
	if a != b {
		t.Fatal("second registration made another counter")
	}
	a.Add(41)
	b.Inc()
	if v, ok := func() (int64, bool) { e := entry(t, r, "x.y.z"); return e.Value() }(); !ok || v != 42 {
		t.Fatalf("value %d %v, want 42 true", v, ok)
	}
	n := int64(1)
	r.Func("f.f", "F.", func() int64 { return n })
	r.Func("f.f", "F.", func() int64 { return n + 6 })
	e := entry(t, r, "f.f")
	if v, _ := e.Value(); v != 7 {
		t.Fatalf("func registered again reads %d, want the new one's 7", v)
	}
}

func TestRegistryPanics(t *testing.T) {
	tests := map[string]func(r *stats.Registry){
		"other kind":      func(r *stats.Registry) { r.Gauge("a.b", ""); r.Counter("a.b", "") },
		"empty path":      func(r *stats.Registry) { r.Gauge("", "") },
		"empty element":   func(r *stats.Registry) { r.Gauge("a..b", "") },
		"glob in path":    func(r *stats.Registry) { r.Gauge("a.*.b", "") },
		"bad metric name": func(r *stats.Registry) { r.Gauge("a.b", "", stats.Metric("1x")) },
		"bad label":       func(r *stats.Registry) { r.Gauge("a.b", "", stats.Label{"a-b", ""}) },
		"repeated label":  func(r *stats.Registry) { r.Gauge("a.b", "", stats.Label{"l", "1"}, stats.Label{"l", "2"}) },
		"same series":     func(r *stats.Registry) { r.Gauge("a.b", "", stats.Metric("m")); r.Gauge("a.c", "", stats.Metric("m")) },
		"metric two kinds": func(r *stats.Registry) {
			r.Gauge("a.b", "", stats.Metric("m"))
			r.Counter("a.c", "", stats.Metric("m"))
		},
	}
	for name, f := range tests {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f(stats.NewRegistry())
		})
	}
}

func TestRegistryMetricNames(t *testing.T) {
	r := stats.NewRegistry()
	r.Counter("obdfilter.strake-OST0000.read_bytes", "")
	r.Counter("obdfilter.strake-OST0000.write_bytes", "", stats.Metric("lustre_write_bytes_total"))
	r.Histogram("ldlm.services.enqueue.wait", "")
	r.Gauge("ldlm.namespaces.strake-MDT0000.pool.granted", "")
	r.Gauge("process.goroutines", "")
	r.Gauge("a.b.c", "", stats.Label{"z", "1"}, stats.Label{"b", "\xff"})
	r.Text("mdt.strake-MDT0000.recovery_status", "", func() string { return "status: COMPLETE" })
	want := map[string]string{
		"obdfilter.strake-OST0000.read_bytes":         "strake_obdfilter_read_bytes_total[{target strake-OST0000}]",
		"obdfilter.strake-OST0000.write_bytes":        "lustre_write_bytes_total[{target strake-OST0000}]",
		"ldlm.services.enqueue.wait":                  "strake_ldlm_enqueue_wait_seconds[{target services}]",
		"ldlm.namespaces.strake-MDT0000.pool.granted": "strake_ldlm_pool_granted[{target strake-MDT0000}]",
		"process.goroutines":                          "strake_process_goroutines[]",
		"a.b.c":                                       "strake_a_c[{b _} {z 1}]",
		"mdt.strake-MDT0000.recovery_status":          "[]",
	}
	for path, metric := range want {
		e := entry(t, r, path)
		if got := fmt.Sprint(e.Metric, e.Labels); got != metric {
			t.Errorf("%s: %s, want %s", path, got, metric)
		}
	}
}

func TestWalkPatterns(t *testing.T) {
	r := stats.NewRegistry()
	for _, p := range []string{
		"obdfilter.strake-OST0000.read_bytes", "obdfilter.strake-OST0001.read_bytes",
		"mdt.strake-MDT0000.read_bytes", "mdt.strake-MDT0000.exports.h1.stats", "version",
	} {
		r.Gauge(p, "", stats.Metric("m_"+strings.NewReplacer(".", "_", "-", "_").Replace(p)))
	}
	tests := []struct {
		pattern string
		want    int
	}{
		{"", 5}, {"**", 5}, {"*", 1}, {"version", 1}, {"*.*.read_bytes", 3}, {"*/*/read_bytes", 3},
		{"obdfilter.*.read_bytes", 2}, {"obdfilter.*000[1-9].*", 1}, {"obdfilter.*000[!1-9].*", 1},
		{"obdfilter.strake-OST000?.read_bytes", 2}, {"{mdt,obdfilter}.*.read_bytes", 3},
		{"{mdt,obd{filter,x}}.*.read_bytes", 3}, {"mdt.**", 2}, {"mdt.*.exports.**", 1},
		{"mdt.*", 0}, {"nothing.*", 0}, {"version.**", 0},
	}
	for _, tt := range tests {
		t.Run(tt.pattern, func(t *testing.T) {
			got := paths(t, r, tt.pattern)
			if len(got) != tt.want {
				t.Errorf("%d paths %v, want %d", len(got), got, tt.want)
			}
			if !slices.IsSorted(got) {
				t.Errorf("not sorted: %v", got)
			}
		})
	}
	for _, bad := range []string{"[", "a.{b", "a}", strings.Repeat("a", 2000), strings.Repeat("{a,b}", 10)} {
		if err := r.Walk(bad, func(stats.Entry) error { return nil }); !errors.Is(err, stats.ErrPattern) {
			t.Errorf("Walk(%.20q): %v, want ErrPattern", bad, err)
		}
	}
}

func FuzzWalkPattern(f *testing.F) {
	for _, s := range []string{"*.*.read_bytes", "{a,{b,c}}.**", "[!a-z]?", "a.**", "}{", "\\"} {
		f.Add(s)
	}
	r := stats.NewRegistry()
	r.Gauge("obdfilter.strake-OST0000.read_bytes", "")
	r.Gauge("version", "")
	f.Fuzz(func(t *testing.T, s string) {
		if err := r.Walk(s, func(stats.Entry) error { return nil }); err != nil && !errors.Is(err, stats.ErrPattern) {
			t.Fatal(err)
		}
	})
}

func TestWalkStopsAtError(t *testing.T) {
	r := stats.NewRegistry()
	r.Gauge("a", "")
	r.Gauge("b", "")
	stop, n := errors.New("stop"), 0
	if err := r.Walk("", func(stats.Entry) error { n++; return stop }); !errors.Is(err, stop) || n != 1 {
		t.Fatalf("%v after %d", err, n)
	}
}

func TestUnregister(t *testing.T) {
	r := stats.NewRegistry()
	r.Gauge("ost.T1.a", "", stats.Metric("m"))
	r.Gauge("ost.T1.b.c", "")
	r.Gauge("ost.T10.a", "", stats.Metric("m"))
	r.Unregister("")
	r.Unregister("ost.T1")
	if got := paths(t, r, ""); !slices.Equal(got, []string{"ost.T10.a"}) {
		t.Fatalf("left: %v", got)
	}
	r.Gauge("ost.T1.a", "", stats.Metric("m")) // its series is free again
}

func TestParam(t *testing.T) {
	r := stats.NewRegistry()
	value, refuse := "1", errors.New("0 to 2")
	r.Param("mdt.T.commit_on_sharing", "", func() string { return value }, func(s string) error {
		if s > "2" {
			return refuse
		}
		value = s
		return nil
	})
	r.Gauge("mdt.T.n", "")
	e := entry(t, r, "mdt.T.commit_on_sharing")
	if err := e.Set("2"); err != nil || e.Text() != "2" || !e.Writable() {
		t.Fatalf("%v %q", err, e.Text())
	}
	if err := e.Set("9"); !errors.Is(err, refuse) {
		t.Fatalf("Set(9): %v", err)
	}
	g := entry(t, r, "mdt.T.n")
	if err := g.Set("1"); !errors.Is(err, stats.ErrReadOnly) || g.Text() != "0" {
		t.Fatalf("%v %q", err, g.Text())
	}
}

func TestElement(t *testing.T) {
	for in, want := range map[string]string{"": "_", "10.0.0.1@tcp": "10_0_0_1@tcp", "a*b c/\n": "a_b_c__", "é": "_"} {
		if got := stats.Element(in); got != want {
			t.Errorf("Element(%q) = %q, want %q", in, got, want)
		}
	}
}

// Registration, update, Walk and Unregister at once; run with -race.
func TestRegistryConcurrent(t *testing.T) {
	r := stats.NewRegistry()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				r.Counter(fmt.Sprintf("a.t%d.n%d", g, i%7), "").Inc()
				_ = r.Walk("a.**", func(e stats.Entry) error { _ = e.Text(); return nil })
				if i%50 == 0 {
					r.Unregister(fmt.Sprintf("a.t%d", (g+1)%4))
				}
			}
		})
	}
	wg.Wait()
}

func TestRenameMovesPathsAndLabels(t *testing.T) {
	r := stats.NewRegistry()
	c := r.Counter("osd.abc.commits", "Commits.", stats.Metric("osd_commits_total"), stats.Label{Name: "target", Value: "abc"})
	c.Add(3)
	r.Counter("osd.abcd.commits", "Commits.", stats.Metric("osd_commits_total"), stats.Label{Name: "target", Value: "abcd"})
	r.Rename("osd.abc.", "osd.strake-OST0000.")
	got := map[string]string{}
	if err := r.Walk("", func(e stats.Entry) error {
		got[e.Path] = e.Labels[0].Value
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"osd.strake-OST0000.commits": "strake-OST0000", "osd.abcd.commits": "abcd"}
	if len(got) != 2 || got["osd.strake-OST0000.commits"] != want["osd.strake-OST0000.commits"] || got["osd.abcd.commits"] != "abcd" {
		t.Fatalf("%v", got)
	}
	// The name that was left is free again, and the counter handed out is the one that moved.
	r.Counter("osd.abc.commits", "Commits.", stats.Metric("osd_commits_total"), stats.Label{Name: "target", Value: "abc"})
	c.Add(1)
	if r.Counter("osd.strake-OST0000.commits", "Commits.", stats.Metric("osd_commits_total")).Load() != 4 {
		t.Fatal("the counter that moved does not count")
	}
}
