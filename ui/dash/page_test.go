package dash_test

import (
	"bufio"
	"context"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/assets"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/ui/dash"
	"github.com/strakefs/strake/ui/metrics"
)

// TestPageInBrowser opens the page in Chromium; assets/test/page.mjs says what is checked.
// With STRAKE_SCREENSHOTS=DIR it also saves pictures there.
func TestPageInBrowser(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	if _, err := fs.Stat(assets.FS(), "index.html"); err != nil {
		t.Fatal("the page is not built: run `npm ci && npm run build` in assets")
	}
	if _, err := os.Stat("../../assets/node_modules/playwright-core"); err != nil {
		t.Fatal("the page's tools are not installed: run `npm ci` in assets")
	}

	w := newWorld(t)
	server := w.start(t, "127.0.0.1:0")
	addr := server.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	args := []string{"test/page.mjs", "http://" + addr + "/", filepath.Join(t.TempDir(), "profile")}
	if shots := os.Getenv("STRAKE_SCREENSHOTS"); shots != "" {
		args = append(args, shots)
	}
	cmd := exec.CommandContext(ctx, node, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = "../../assets", append(os.Environ(), "CHROMIUM="+chromium), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch lines.Text() {
		case "trouble":
			w.trouble.Store(true)
		case "stop":
			closeServer(t, server)
		case "start":
			server = w.start(t, addr)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("page.mjs: %v", err)
	}
	closeServer(t, server)
}

// world is a registry whose counters grow and a view of three targets.
type world struct {
	registry *stats.Registry
	locks    *locking
	cache    *lruTable
	trouble  atomic.Bool
	began    time.Time
}

func newWorld(t *testing.T) *world {
	w := &world{registry: stats.NewRegistry(), began: time.Now()}
	sampler, err := metrics.StartSampler(metrics.SamplerOptions{Registry: w.registry, Log: testLog(t), DataDirs: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	metrics.RegisterProcess(w.registry, w.began)
	t.Cleanup(sampler.Close)
	w.cache = &lruTable{}
	w.registry.Table("llite.strake-1.inodes", "Inodes that the mount knows.", w.cache.read)
	w.registerRecovery()
	locks, stopLocks := startLocks(t, w.registry)
	w.locks = locks
	t.Cleanup(stopLocks)
	stop, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-done })
	go func() {
		defer close(done)
		w.work(stop)
	}()
	return w
}

// work moves the counters until stop is closed: what it counts is what it copied.
func (w *world) work(stop chan struct{}) {
	read := [2]*stats.Counter{
		w.registry.Counter("obdfilter.strake-OST0000.read_bytes", "Bytes read.", stats.Metric("lustre_read_bytes_total")),
		w.registry.Counter("obdfilter.strake-OST0001.read_bytes", "Bytes read.", stats.Metric("lustre_read_bytes_total")),
	}
	written := [2]*stats.Counter{
		w.registry.Counter("obdfilter.strake-OST0000.write_bytes", "Bytes written.", stats.Metric("lustre_write_bytes_total")),
		w.registry.Counter("obdfilter.strake-OST0001.write_bytes", "Bytes written.", stats.Metric("lustre_write_bytes_total")),
	}
	took := w.registry.Histogram("mdt.strake-MDT0000.copy_time", "Time of one copy.")
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	from, to := make([]byte, 1<<20), make([]byte, 1<<20)
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-tick.C:
			start := time.Now()
			n := copy(to[:(1+i/50%5)<<17], from)
			took.Observe(time.Since(start))
			for key := range 20 {
				w.cache.touch(uint64(i%7*key + i/9))
			}
			read[i%2].Add(int64(n))
			if i%3 == 0 {
				written[i/3%2].Add(int64(n))
			}
		}
	}
}

func (w *world) view(context.Context) (dash.ClusterView, error) {
	since := w.began.Add(-3 * time.Hour)
	ost := func(i int, used uint64) dash.Target {
		total := uint64(40 << 30)
		return dash.Target{Name: []string{"strake-OST0000", "strake-OST0001"}[i], Kind: "OST", Index: i, State: dash.StateActive,
			Address: "127.0.0.1:9880", Since: since, TotalBytes: total, FreeBytes: total - used, AvailBytes: total - used - 1<<28,
			Inodes: 2 << 20, FreeInodes: 2<<20 - used>>18}
	}
	v := dash.ClusterView{FSName: "strake", Targets: []dash.Target{
		{Name: "strake-MDT0000", Kind: "MDT", State: dash.StateActive, Address: "127.0.0.1:9880", Since: since,
			TotalBytes: 20 << 30, FreeBytes: 18 << 30, AvailBytes: 17 << 30, Inodes: 8 << 20, FreeInodes: 8<<20 - 412_345},
		ost(0, 17<<30), ost(1, 12<<30),
	}, Nodes: []dash.Node{
		{Host: "node-a", Address: "127.0.0.1:9880", Roles: []string{"mgs", "mds"}, Version: "0.1.0", Since: since},
		{Host: "node-b", Address: "127.0.0.2:9880", Roles: []string{"oss", "client"}, Version: "0.1.0", Since: since},
	}}
	if w.trouble.Load() {
		v.Targets[0].State = dash.StateRecovering
		v.Targets[0].Reason = "2 of 3 clients have come back, 21 s left"
		v.Targets[1].Age = 95 * time.Second
		v.Targets[2].State = dash.StateUnreachable
		v.Targets[2].FreeBytes = 5 << 30
		v.Targets[2].AvailBytes = 5<<30 - 1<<28
	}
	return v, nil
}

func (w *world) start(t *testing.T, listen string) *dash.Server {
	t.Helper()
	s, err := dash.New(dash.Options{Registry: w.registry, Log: testLog(t), Listen: listen, Cluster: w.view,
		Locks: w.locks.resources, Paths: w.locks.paths, Recovery: w.recovery,
		Metrics: metrics.Handler(w.registry, testLog(t))})
	if err != nil {
		t.Fatal(err)
	}
	// The port was free a moment ago; another process may hold it for one.
	for range 50 {
		if err = s.Start(); err == nil {
			return s
		}
		if _, ok := err.(net.Error); ok {
			break
		}
	}
	t.Fatal(err)
	return nil
}

func closeServer(t *testing.T, s *dash.Server) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
