package dash_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/ui/dash"
	"github.com/strakefs/strake/ui/metrics"
)

var testAssets = fstest.MapFS{
	"index.html":      {Data: []byte("<title>page</title>")},
	"assets/x-1.js":   {Data: []byte("1")},
	"assets/notes.md": {Data: []byte("not served")},
}

// startServer serves on a free loopback port until the test ends.
func startServer(t *testing.T, opts dash.Options) (*dash.Server, string) {
	t.Helper()
	opts.Log, opts.Listen = testLog(t), "127.0.0.1:0"
	if opts.Registry == nil {
		opts.Registry = stats.NewRegistry()
	}
	if opts.Assets == nil {
		opts.Assets = testAssets
	}
	opts.Metrics = metrics.Handler(opts.Registry, opts.Log)
	s, err := dash.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeServer(t, s) })
	return s, "http://" + s.Addr().String()
}

// client keeps no connection, so that none outlives a test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func get(t *testing.T, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := client.Do(req.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func request(t *testing.T, method, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestRoutes(t *testing.T) {
	_, base := startServer(t, dash.Options{})
	tests := []struct {
		method, path string
		status       int
		contains     string
	}{
		{"GET", "/", 200, "<title>page"},
		{"GET", "/assets/x-1.js", 200, "1"},
		{"GET", "/assets/notes.md", 404, ""},
		{"GET", "/assets/missing.js", 404, ""},
		{"GET", "/assets/..%2findex.js", 404, ""},
		{"GET", "/healthz", 200, "ok"},
		{"GET", "/metrics", 200, "strake_dash_pages_dropped_total 0"},
		{"GET", "/api/v1/overview", 200, `"targets":[]`},
		{"GET", "/api/v1/host", 200, `"history"`},
		{"GET", "/api/v1/stats?pattern=dash.*", 200, `"dash.pages_dropped"`},
		{"GET", "/api/v1/stats?pattern=%5B", 400, "bad parameter pattern"},
		{"GET", "/debug/pprof/", 404, ""},
		{"GET", "/nothing", 404, ""},
		{"POST", "/api/v1/overview", 405, ""},
		{"DELETE", "/", 405, ""},
		{"OPTIONS", "/api/v1/stats", 405, ""},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			resp, body := get(t, request(t, tt.method, base+tt.path))
			if resp.StatusCode != tt.status || !strings.Contains(body, tt.contains) {
				t.Errorf("%d %q, want %d and %q", resp.StatusCode, body, tt.status, tt.contains)
			}
			if csp := resp.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") {
				t.Errorf("Content-Security-Policy: %q", csp)
			}
		})
	}
}

func TestPlaceholderWithoutBundle(t *testing.T) {
	_, base := startServer(t, dash.Options{Assets: fstest.MapFS{"placeholder.html": {Data: []byte("make build")}}})
	if resp, body := get(t, request(t, "GET", base)); resp.StatusCode != 200 || body != "make build" {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
}

// A foreign name that resolves to loopback (DNS rebinding) reaches nothing.
func TestForeignHostRefused(t *testing.T) {
	s, base := startServer(t, dash.Options{})
	port := strconv.Itoa(int(netip.MustParseAddrPort(s.Addr().String()).Port()))
	for host, status := range map[string]int{
		"localhost:" + port: 200, "LOCALHOST": 200, "127.0.0.1:" + port: 200, "127.0.0.9": 200, "[::1]:" + port: 200, "[::1]": 200,
		"evil.example": 421, "evil.example:" + port: 421, "127.0.0.1.evil.example": 421, "localhost.evil.example": 421,
		"10.0.0.1": 421, "0.0.0.0": 421, "localhost:x:y": 421,
	} {
		for _, path := range []string{"/", "/api/v1/overview", "/api/v1/events", "/metrics", "/nothing"} {
			if path == "/api/v1/events" && status == 200 || path == "/nothing" && status == 200 {
				continue
			}
			req := request(t, "GET", base+path)
			req.Host = host
			if resp, _ := get(t, req); resp.StatusCode != status {
				t.Errorf("%s with Host %q: %d, want %d", path, host, resp.StatusCode, status)
			}
		}
	}
}

func TestStartRefusesOtherAddresses(t *testing.T) {
	opts := dash.Options{Registry: stats.NewRegistry(), Log: testLog(t), Listen: "0.0.0.0:0"}
	s, err := dash.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); !errors.Is(err, dash.ErrNotLoopback) {
		t.Fatalf("Start on 0.0.0.0: %v", err)
	}
	closeServer(t, s)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	opts.Listen = taken.Addr().String()
	if s, err = dash.New(opts); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err == nil || !strings.Contains(err.Error(), opts.Listen) {
		t.Fatalf("Start on a port in use: %v", err)
	}
}

// statsEntry is the part of /api/v1/stats that the tests read.
type statsEntry struct {
	Path      string
	Value     *int64
	Text      *string
	Histogram *struct{ Count, SumNs int64 }
	Metric    string
	Labels    map[string]string
}

func readStats(t *testing.T, base, pattern string) map[string]statsEntry {
	t.Helper()
	resp, body := get(t, request(t, "GET", base+"/api/v1/stats?pattern="+pattern))
	var answer struct{ Entries []statsEntry }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%d %v: %s", resp.StatusCode, err, body)
	}
	got := map[string]statsEntry{}
	for _, e := range answer.Entries {
		got[e.Path] = e
	}
	return got
}

// For every figure: registry, /metrics and /api/v1/stats say the same.
func TestFiguresAgree(t *testing.T) {
	r := stats.NewRegistry()
	r.Counter("obdfilter.strake-OST0000.read_bytes", "Bytes read.", stats.Metric("lustre_read_bytes_total")).Add(1 << 50)
	r.Counter("obdfilter.strake-OST0001.read_bytes", "Bytes read.", stats.Metric("lustre_read_bytes_total")).Add(3)
	r.Gauge("mdt.strake-MDT0000.num_exports", "Exports.", stats.Metric("lustre_exports_total")).Set(5)
	r.Func("osd.strake-OST0000.kbytesfree", "Free.", func() int64 { return 77 }, stats.Metric("lustre_free_kilobytes"))
	h := r.Histogram("ldlm.strake-MDT0000.wait", "Wait.", stats.Metric("strake_lock_wait_seconds"))
	h.Observe(time.Millisecond)
	h.Observe(time.Minute)
	r.Param("mdt.strake-MDT0000.commit_on_sharing", "COS.", func() string { return "1" }, nil)
	sampler, err := metrics.StartSampler(metrics.SamplerOptions{Registry: r, Log: testLog(t), DataDirs: []string{t.TempDir()}, Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer sampler.Close()
	_, base := startServer(t, dash.Options{Registry: r})
	_, text := get(t, request(t, "GET", base+"/metrics"))
	scraped := map[string]string{}
	for line := range strings.Lines(text) {
		if cut := strings.LastIndexByte(line, ' '); cut > 0 && line[0] != '#' {
			scraped[line[:cut]] = strings.TrimSpace(line[cut:])
		}
	}
	answered, n := readStats(t, base, ""), 0
	if err := r.Walk("", func(e stats.Entry) error {
		a, ok := answered[e.Path]
		if !ok {
			t.Errorf("%s is not in /api/v1/stats", e.Path)
			return nil
		}
		name, suffix, want := "", "", int64(0)
		if v, ok := e.Value(); ok {
			if want = v; a.Value == nil || *a.Value != v {
				t.Errorf("%s: registry %d, stats %v", e.Path, v, a.Value)
			}
		} else if s, ok := e.Histogram(); ok {
			if want, suffix = int64(s.Count), "_count"; a.Histogram == nil || a.Histogram.Count != want || a.Histogram.SumNs != s.SumNs {
				t.Errorf("%s: registry %d, stats %+v", e.Path, want, a.Histogram)
			}
		} else if a.Text == nil || *a.Text != e.Text() {
			t.Errorf("%s: registry %q, stats %v", e.Path, e.Text(), a.Text)
		}
		if e.Metric == "" {
			return nil
		}
		var labels []string
		for _, l := range e.Labels {
			labels = append(labels, l.Name+"="+strconv.Quote(l.Value))
		}
		if name = e.Metric + suffix; len(labels) > 0 {
			name += "{" + strings.Join(labels, ",") + "}"
		}
		v, err := strconv.ParseFloat(scraped[name], 64)
		if n++; err != nil || v != float64(want) {
			t.Errorf("%s: registry %d, /metrics %q", name, want, scraped[name])
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n < 25 {
		t.Errorf("only %d figures compared", n)
	}
}

// nextEvent reads one server-sent event.
func nextEvent(t *testing.T, lines *bufio.Scanner) (name string, data []byte) {
	t.Helper()
	for lines.Scan() {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "event: "):
			name = line[7:]
		case strings.HasPrefix(line, "data: "):
			data = []byte(line[6:])
		case line == "" && name != "":
			return name, data
		}
	}
	t.Fatalf("the feed ended: %v", lines.Err())
	return "", nil
}

func openFeed(t *testing.T, ctx context.Context, base string) (*http.Response, *bufio.Scanner) {
	t.Helper()
	resp, err := client.Do(request(t, "GET", base+"/api/v1/events").WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	return resp, lines
}

type tickJSON struct {
	Point    *struct{ V []*float64 }
	Overview struct {
		FSName  string
		Problem string
		Health  struct{ Tone, Title string }
		Targets []struct {
			Name       string
			Stale      bool
			AgeMs      int64
			ReadPerSec *float64
			Space      *struct{ TotalBytes int64 }
		}
	}
}

func TestEventsCarryLiveFigures(t *testing.T) {
	r := stats.NewRegistry()
	read := r.Counter("obdfilter.strake-OST0000.read_bytes", "Bytes read.")
	view := dash.ClusterView{FSName: "strake", Targets: []dash.Target{
		{Name: "strake-OST0000", Kind: "OST", State: dash.StateActive, TotalBytes: 100, FreeBytes: 60, AvailBytes: 50},
		{Name: "strake-MDT0000", Kind: "MDT", State: dash.StateActive, Age: time.Minute},
	}}
	_, base := startServer(t, dash.Options{Registry: r, Interval: 20 * time.Millisecond,
		Cluster: func(context.Context) (dash.ClusterView, error) { return view, nil }})
	resp, lines := openFeed(t, t.Context(), base)
	if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream" {
		t.Fatalf("Content-Type %q", ct)
	}
	name, data := nextEvent(t, lines)
	var past struct {
		Keys []string
		T    []int64
		V    [][]*float64
	}
	if err := json.Unmarshal(data, &past); err != nil || name != "past" || len(past.V) != len(past.Keys) {
		t.Fatalf("%s %v: %s", name, err, data)
	}
	cpu, sawRate := -1, false
	for i, k := range past.Keys {
		if k == "cpu" {
			cpu = i
		}
	}
	for i := 0; i < 50 && !sawRate; i++ {
		read.Add(1000)
		var tick tickJSON
		if name, data = nextEvent(t, lines); name != "tick" {
			t.Fatalf("event %q", name)
		}
		if err := json.Unmarshal(data, &tick); err != nil {
			t.Fatal(err)
		}
		o := tick.Overview
		if o.FSName != "strake" || len(o.Targets) != 2 || o.Targets[0].Name != "strake-MDT0000" {
			t.Fatalf("overview: %s", data)
		}
		if m, s := o.Targets[0], o.Targets[1]; !m.Stale || m.AgeMs < 60_000 || m.Space != nil || s.Stale || s.Space == nil || s.Space.TotalBytes != 100 {
			t.Fatalf("targets: %s", data)
		}
		if o.Health.Tone != "bad" || !strings.Contains(o.Health.Title, "has not reported for 60 s") {
			t.Fatalf("health: %+v", o.Health)
		}
		if tick.Point != nil && tick.Point.V[cpu] != nil {
			t.Fatalf("a CPU figure without a sampler: %s", data)
		}
		sawRate = o.Targets[1].ReadPerSec != nil && *o.Targets[1].ReadPerSec > 0
	}
	if !sawRate {
		t.Error("the counter grew and no tick says so")
	}
}

func TestEventsAreBounded(t *testing.T) {
	_, base := startServer(t, dash.Options{Interval: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range dash.MaxSubscribers {
		if resp, lines := openFeed(t, ctx, base); resp.StatusCode != 200 {
			t.Fatalf("status %d", resp.StatusCode)
		} else {
			nextEvent(t, lines)
		}
	}
	if resp, body := get(t, request(t, "GET", base+"/api/v1/events")); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one page too many: %d %s", resp.StatusCode, body)
	}
	if resp, _ := get(t, request(t, "GET", base+"/healthz")); resp.StatusCode != 200 {
		t.Errorf("healthz: %d", resp.StatusCode)
	}
}

// Close ends open feeds at once and leaves no goroutine (see TestMain).
func TestCloseEndsFeeds(t *testing.T) {
	s, base := startServer(t, dash.Options{Interval: 10 * time.Millisecond})
	_, lines := openFeed(t, t.Context(), base)
	nextEvent(t, lines)
	began := time.Now()
	closeServer(t, s)
	for lines.Scan() {
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("Close took %v", took)
	}
}

// A cluster that does not answer is said in words, with the last view and its age.
func TestOverviewOfSilentCluster(t *testing.T) {
	ok, calls := true, 0
	_, base := startServer(t, dash.Options{Interval: time.Nanosecond * 2, Cluster: func(context.Context) (dash.ClusterView, error) {
		calls++
		if !ok {
			return dash.ClusterView{}, errors.New("MGS 127.0.0.1:9880: connection refused")
		}
		return dash.ClusterView{FSName: "strake", Targets: []dash.Target{{Name: "strake-OST0000", Kind: "OST", State: dash.StateActive}}}, nil
	}})
	read := func() (o struct {
		Problem string
		Health  struct{ Tone, Title string }
		Targets []struct{ Name string }
	}) {
		_, body := get(t, request(t, "GET", base+"/api/v1/overview"))
		if err := json.Unmarshal([]byte(body), &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	if o := read(); o.Health.Tone != "ok" || o.Problem != "" || len(o.Targets) != 1 {
		t.Fatalf("%+v", o)
	}
	ok = false
	if o := read(); o.Health.Tone != "warn" || !strings.Contains(o.Problem, "connection refused") || len(o.Targets) != 1 {
		t.Fatalf("%+v", o)
	}
}
