package stats_test

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

// TestRowsText holds the form of Lustre's stats files.
func TestRowsText(t *testing.T) {
	r := stats.NewRegistry()
	rows := r.Rows("llite.strake-0.stats", "Operations.")
	rows.Row("read", stats.Microseconds).Observe(20)
	rows.Row("read", stats.Microseconds).Observe(10)
	rows.Row("read_bytes", stats.Bytes).Observe(4096)
	rows.Row("open", stats.Requests).Inc()
	rows.Row("never", stats.Requests)
	head := regexp.MustCompile(`^snapshot_time {13}\d+\.\d{9} secs\.nsecs
start_time {16}\d+\.\d{9} secs\.nsecs
elapsed_time {14}\d+\.\d{9} secs\.nsecs
`)
	text := textOfPath(t, r, "llite.strake-0.stats")
	if !head.MatchString(text) {
		t.Fatalf("head of\n%s", text)
	}
	want := `open                      1 samples [reqs]
read                      2 samples [usecs] 10 20 30 500
read_bytes                1 samples [bytes] 4096 4096 4096 16777216`
	if got := head.ReplaceAllString(text, ""); got != want {
		t.Errorf("rows\n%s\nwant\n%s", got, want)
	}
	e := entry(t, r, "llite.strake-0.stats")
	var figures []string
	for _, f := range e.Figures() {
		figures = append(figures, f.Name+" "+f.Labels[0].Value)
	}
	if want := []string{"samples_total open", "samples_total read", "sum_total read", "samples_total read_bytes", "sum_total read_bytes"}; !slices.Equal(figures, want) {
		t.Errorf("figures %q, want %q", figures, want)
	}
	if !e.Writable() || e.Set("clear") != nil || len(rows.Read()) != 0 {
		t.Errorf("not cleared: %v", rows.Read())
	}
	rows.Row("read", stats.Microseconds).Observe(7)
	if got := rows.Read(); len(got) != 1 || got[0].Min != 7 || got[0].Max != 7 || got[0].Count != 1 || got[0].SumSq != 49 {
		t.Errorf("after clearing: %+v", got)
	}
	if r.Rows("llite.strake-0.stats", "Operations.") != rows {
		t.Error("a second registration made other rows")
	}
}

func textOfPath(t *testing.T, r *stats.Registry, path string) string {
	t.Helper()
	e := entry(t, r, path)
	return e.Text()
}

func TestRowsPanics(t *testing.T) {
	r := stats.NewRegistry()
	rows := r.Rows("a.b.stats", "")
	rows.Row("read", stats.Bytes)
	r.TextFigures("a.b.rpc_stats", "", func() string { return "" }, func() []stats.Figure { return nil })
	for name, f := range map[string]func(){
		"another unit":   func() { rows.Row("read", stats.Pages) },
		"malformed":      func() { rows.Row("re ad", stats.Pages) },
		"rows for text":  func() { r.Rows("a.b.rpc_stats", "") },
		"rows for count": func() { r.Counter("a.b.stats", "") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestTallyConcurrent(t *testing.T) {
	var tally stats.Tally
	rows := stats.NewRegistry().Rows("a.b.stats", "")
	shared := rows.Row("x", stats.Bytes)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 1000 {
				tally.Inc()
				shared.Observe(int64(g*1000 + i + 5))
			}
		})
	}
	wg.Wait()
	got := rows.Read()[0]
	if tally.Count() != 4000 || got.Count != 4000 || got.Min != 5 || got.Max != 4004 || got.Sum != 4000*4009/2 {
		t.Errorf("%d, %+v", tally.Count(), got)
	}
	start := time.Now().Add(-time.Second)
	if n := testing.AllocsPerRun(100, func() { shared.Observe(3); shared.Since(start) }); n != 0 {
		t.Errorf("%v allocations per sample", n)
	}
}

func list(t *testing.T, r *stats.Registry, pattern string, recursive bool) string {
	t.Helper()
	nodes, err := r.List(pattern, recursive)
	if err != nil {
		t.Fatalf("List(%q): %v", pattern, err)
	}
	var out []string
	for _, n := range nodes {
		s := n.Path
		if n.Folder {
			s += "/"
		}
		if n.Writable {
			s += "="
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func TestList(t *testing.T) {
	r := stats.NewRegistry()
	r.Counter("osc.strake-OST0000-osc.rpcs", "")
	r.Histogram("osc.strake-OST0000-osc.stats.read", "")
	r.Param("osc.strake-OST0000-osc.max_dirty_mb", "", func() string { return "1" }, func(string) error { return nil })
	r.Counter("osc.strake-OST0001-osc.rpcs", "")
	r.Text("ldlm.namespaces.strake-MDT0000.pool", "", func() string { return "" })
	r.Counter("ldlm.namespaces.strake-MDT0000.pool.granted", "")
	for _, tt := range []struct {
		pattern   string
		recursive bool
		want      string
	}{
		{"osc", false, "osc/"},
		{"*", false, "ldlm/ osc/"},
		{"osc.*", false, "osc.strake-OST0000-osc/ osc.strake-OST0001-osc/"},
		{"osc/*/max*", false, "osc.strake-OST0000-osc.max_dirty_mb="},
		{"osc.*0.*", false, ""},
		{"osc.*OST0000*.*", false, "osc.strake-OST0000-osc.max_dirty_mb= osc.strake-OST0000-osc.rpcs osc.strake-OST0000-osc.stats/"},
		{"osc.*OST0000*", true, "osc.strake-OST0000-osc/ osc.strake-OST0000-osc.max_dirty_mb= osc.strake-OST0000-osc.rpcs " +
			"osc.strake-OST0000-osc.stats/ osc.strake-OST0000-osc.stats.read"},
		{"osc.*{0001,0002}-osc", true, "osc.strake-OST0001-osc/ osc.strake-OST0001-osc.rpcs"},
		{"ldlm.namespaces.*.pool", false, "ldlm.namespaces.strake-MDT0000.pool/"},
		{"ldlm.namespaces.*.pool", true, "ldlm.namespaces.strake-MDT0000.pool/ ldlm.namespaces.strake-MDT0000.pool.granted"},
		{"ldlm.**", false, "ldlm.namespaces/ ldlm.namespaces.strake-MDT0000/ ldlm.namespaces.strake-MDT0000.pool/ ldlm.namespaces.strake-MDT0000.pool.granted"},
		{"absent.*", true, ""},
	} {
		if got := list(t, r, tt.pattern, tt.recursive); got != tt.want {
			t.Errorf("List(%q, %v) =\n%s, want\n%s", tt.pattern, tt.recursive, got, tt.want)
		}
	}
	if _, err := r.List("a.[", false); err == nil {
		t.Error("a malformed pattern is listed")
	}
}

// TestFolderAsStatsFile: figures in a folder named stats are shown as Lustre shows a file of that name.
func TestFolderAsStatsFile(t *testing.T) {
	r := stats.NewRegistry()
	h := r.Histogram("mdt.strake-MDT0000.stats.getattr", "")
	h.Observe(3 * time.Microsecond)
	h.Observe(5 * time.Microsecond)
	r.Histogram("mdt.strake-MDT0000.stats.open", "")
	r.Counter("mdt.strake-MDT0000.stats.errors", "").Add(4)
	r.Gauge("mdt.strake-MDT0000.stats.now", "").Set(-3)
	nodes, err := r.List("mdt.*.*", false)
	if err != nil || len(nodes) != 1 {
		t.Fatal(nodes, err)
	}
	text, ok := nodes[0].Text()
	lines := strings.Split(text, "\n")
	want := []string{
		"getattr                   2 samples [usecs] 3 5 8 34",
		"errors                    4 samples [reqs]",
		"now                       -3",
	}
	slices.Sort(lines[3:])
	slices.Sort(want)
	if !ok || !slices.Equal(lines[3:], want) || !strings.HasPrefix(lines[0], "snapshot_time ") {
		t.Errorf("%v\n%s", ok, text)
	}
	if err := nodes[0].Set("0"); err == nil {
		t.Error("a folder was set")
	}
	if nodes, _ = r.List("mdt.*", false); len(nodes) != 1 {
		t.Fatal(nodes)
	}
	if text, ok := nodes[0].Text(); ok {
		t.Errorf("a folder has the text %q", text)
	}
}
