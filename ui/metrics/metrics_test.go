package metrics_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/ui/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scrape returns the samples of /metrics: the series as printed -> value.
func scrape(t *testing.T, r *stats.Registry) map[string]float64 {
	t.Helper()
	rec := httptest.NewRecorder()
	metrics.Handler(r, slog.New(slog.DiscardHandler)).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if rec.Code != 200 {
		t.Fatalf("status %d: %s", rec.Code, rec.Body)
	}
	got := map[string]float64{}
	for line := range strings.Lines(rec.Body.String()) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		cut := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[cut+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		got[line[:cut]] = v
	}
	return got
}

// series returns an entry's name as the text format prints it.
func series(e *stats.Entry, suffix string) string {
	if len(e.Labels) == 0 {
		return e.Metric + suffix
	}
	var l []string
	for _, label := range e.Labels {
		l = append(l, fmt.Sprintf("%s=%q", label.Name, label.Value))
	}
	sort.Strings(l)
	return e.Metric + suffix + "{" + strings.Join(l, ",") + "}"
}

// What /metrics prints is the registry, figure by figure, and nothing else.
func TestScrapeAgreesWithRegistry(t *testing.T) {
	r := stats.NewRegistry()
	r.Counter("obdfilter.strake-OST0000.read_bytes", "Bytes read.", stats.Metric("lustre_read_bytes_total")).Add(1 << 40)
	r.Counter("obdfilter.strake-OST0001.read_bytes", "Bytes read.", stats.Metric("lustre_read_bytes_total")).Add(7)
	r.Gauge("a.b.c", "Below zero.", stats.Label{Name: "job", Value: "a\"b\n"}).Set(-3)
	r.Func("x.y", "Measured.", func() int64 { return 12 })
	r.Text("mdt.strake-MDT0000.recovery_status", "Status.", func() string { return "status: COMPLETE" })
	h := r.Histogram("ldlm.strake-MDT0000.wait", "Wait.")
	for _, d := range []time.Duration{1, time.Microsecond, time.Second, time.Hour} {
		h.Observe(d)
	}
	s, err := metrics.StartSampler(metrics.SamplerOptions{Registry: r, Log: slog.New(slog.DiscardHandler), DataDirs: []string{t.TempDir()}, Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, n := scrape(t, r), 0
	if err := r.Walk("", func(e stats.Entry) error {
		want := map[string]float64{}
		if v, ok := e.Value(); ok {
			want[series(&e, "")] = float64(v)
		}
		if s, ok := e.Histogram(); ok {
			want[series(&e, "_count")] = float64(s.Count)
			want[series(&e, "_sum")] = float64(s.SumNs) / 1e9
		}
		for name, v := range want {
			n++
			if g, ok := got[name]; !ok || g != v {
				t.Errorf("%s: registry %v, scrape %v (%v)", name, v, g, ok)
			}
			delete(got, name)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n < 20 {
		t.Errorf("only %d figures compared", n)
	}
	for name := range got {
		if !strings.HasPrefix(name, "strake_ldlm_wait_seconds_bucket{") {
			t.Errorf("%s is in the scrape and not in the registry", name)
		}
	}
	if v := got[`strake_ldlm_wait_seconds_bucket{target="strake-MDT0000",le="1.024e-06"}`]; v != 2 {
		t.Errorf("first bucket %v, want 2", v)
	}
	if v := got[`strake_ldlm_wait_seconds_bucket{target="strake-MDT0000",le="+Inf"}`]; v != 4 {
		t.Errorf("last bucket %v, want 4", v)
	}
}

func TestSamplerMeasuresHost(t *testing.T) {
	r := stats.NewRegistry()
	dir := t.TempDir()
	s, err := metrics.StartSampler(metrics.SamplerOptions{
		Registry: r, Log: slog.New(slog.DiscardHandler), DataDirs: []string{dir, dir + "/missing"}, Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	got := scrape(t, r)
	for _, name := range []string{
		"strake_host_memory_total_bytes", "strake_host_memory_available_bytes", "strake_host_load1_milli",
		"strake_host_uptime_seconds", "strake_host_cpu_count", `strake_host_cpu_milliseconds_total{mode="user"}`,
		fmt.Sprintf("strake_host_data_total_bytes{path=%q}", dir),
	} {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is not measured", name)
		}
	}
	if _, ok := got["strake_host_cpu_busy_permille"]; ok {
		t.Error("a share of CPU is shown after one sample")
	}
	for name := range got {
		if strings.Contains(name, "missing") {
			t.Errorf("%s: a figure of a folder that is not there", name)
		}
	}
	s.Close()
	s.Close()
	if left := scrape(t, r); len(left) != 0 {
		t.Errorf("%d host figures left after Close", len(left))
	}
}

// A figure that can no longer be measured is taken out.
func TestSamplerDropsWhatIsGone(t *testing.T) {
	r := stats.NewRegistry()
	dir := t.TempDir()
	s, err := metrics.StartSampler(metrics.SamplerOptions{
		Registry: r, Log: slog.New(slog.DiscardHandler), DataDirs: []string{dir}, Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	metrics.ForgetDataDirs(s)
	s.Sample(context.Background())
	if err := r.Walk("host.data.**", func(e stats.Entry) error { t.Errorf("%s is still there", e.Path); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestRegisterProcess(t *testing.T) {
	r := stats.NewRegistry()
	metrics.RegisterProcess(r, time.Now().Add(-time.Minute))
	got := scrape(t, r)
	if got["strake_process_goroutines"] < 1 || got["strake_process_heap_bytes"] < 1 || got["strake_process_uptime_seconds"] < 60 {
		t.Errorf("%v", got)
	}
}

func BenchmarkSample(b *testing.B) {
	b.ReportAllocs()
	s, err := metrics.StartSampler(metrics.SamplerOptions{
		Registry: stats.NewRegistry(), Log: slog.New(slog.DiscardHandler), DataDirs: []string{b.TempDir()}, Interval: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for b.Loop() {
		s.Sample(context.Background())
	}
}

// A hash table's figures are exported by name, those that its owner does not measure not at all.
func TestTables(t *testing.T) {
	r := stats.NewRegistry()
	r.Table("mdt.strake-MDT0000", "Objects.", func(s *stats.TableStats) {
		s.Buckets, s.Entries, s.Longest, s.Hits, s.Bytes = 8, 6, 2, 0, 512
		s.Chains = [stats.ChainClasses]int64{3, 4, 1}
	})
	r.Table("mdt.strake-MDT0000.exports", "Exports.", func(s *stats.TableStats) { s.Entries = 1 })
	got := scrape(t, r)
	for name, want := range map[string]float64{
		`strake_hash_buckets{table="mdt.strake-MDT0000"}`: 8, `strake_hash_entries{table="mdt.strake-MDT0000"}`: 6,
		`strake_hash_theta{table="mdt.strake-MDT0000"}`: 0.75, `strake_hash_longest_chain{table="mdt.strake-MDT0000"}`: 2,
		`strake_cache_hits_total{table="mdt.strake-MDT0000"}`: 0, `strake_hash_bytes{table="mdt.strake-MDT0000"}`: 512,
		`strake_hash_chains{length="2-3",table="mdt.strake-MDT0000"}`: 1, `strake_hash_chains{length="64+",table="mdt.strake-MDT0000"}`: 0,
		`strake_hash_entries{table="mdt.strake-MDT0000.exports"}`: 1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
	for name := range got {
		if strings.Contains(name, "misses") || strings.Contains(name, "exports") && !strings.HasPrefix(name, "strake_hash_entries") {
			t.Errorf("%s was not measured", name)
		}
	}
}

// TestScrapeOfRows: each number of a stats file is a sample of its own, and a text's figures are.
func TestScrapeOfRows(t *testing.T) {
	r := stats.NewRegistry()
	rows := r.Rows("llite.strake-0.stats", "Operations.")
	rows.Row("read", stats.Microseconds).Observe(20)
	rows.Row("read", stats.Microseconds).Observe(22)
	rows.Row("open", stats.Requests).Inc()
	r.TextFigures("osc.strake-OST0000-osc.rpc_stats", "RPCs.", func() string { return "read RPCs in flight: 3" }, func() []stats.Figure {
		return []stats.Figure{{Name: "in_flight", Labels: []stats.Label{{Name: "op", Value: "read"}}, Value: 3}}
	})
	got := scrape(t, r)
	want := map[string]float64{
		`strake_llite_stats_samples_total{op="read",target="strake-0"}`:          2,
		`strake_llite_stats_sum_total{op="read",target="strake-0",unit="usecs"}`: 42,
		`strake_llite_stats_samples_total{op="open",target="strake-0"}`:          1,
		`strake_osc_rpc_stats_in_flight{op="read",target="strake-OST0000-osc"}`:  3,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v\nwant\n%v", got, want)
	}
}
