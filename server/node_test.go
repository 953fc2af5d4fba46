package server_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/strakefs/strake/fs/mgc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server"
	"github.com/strakefs/strake/server/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options(c config.Config) server.Options {
	c.FSName = "strake"
	if c.MGSTimeout == 0 {
		c.MGSTimeout = 20 * time.Second
	}
	return server.Options{Config: c, Log: slog.New(slog.DiscardHandler), Stats: stats.NewRegistry()}
}

func targets(base string, kinds ...config.TargetKind) (list []config.Target) {
	for i, k := range kinds {
		list = append(list, config.Target{Kind: k, Dir: filepath.Join(base, strings.ToLower(k.String())+string(rune('a'+i)))})
	}
	return list
}

// start starts a node and stops it with the test; stop may be called before.
func start(t *testing.T, o server.Options) (n *server.Node, stop func()) {
	t.Helper()
	n, err := server.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return n, stop
}

// view waits until the MGS knows n targets that have said how they are.
func view(t *testing.T, n *server.Node, count int) *wirepb.Config {
	t.Helper()
	for {
		c, err := n.View(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Targets) == count {
			return c
		}
		select {
		case <-t.Context().Done():
			t.Fatal("targets do not come")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// freePort is a TCP address that nobody listened on a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestLayouts starts and stops a file system in each way to spread its roles, twice on the same data: indices and
// identity stay, and no goroutine is left.
func TestLayouts(t *testing.T) {
	const mdt, ost = config.MDT, config.OST
	for name, nodes := range map[string][][]config.TargetKind{
		"all":           {{mdt, ost, ost}},
		"mds and oss":   {{mdt}, {ost, ost}},
		"combined":      {{mdt, ost}, {ost}},
		"mds, oss, oss": {{mdt}, {ost}, {ost, ost}},
		"mds alone":     {{mdt}},
	} {
		t.Run(name, func(t *testing.T) {
			base, addr, total := t.TempDir(), freePort(t), 0
			var uuids [2]string
			var names [2]map[string]string
			for life := range 2 {
				var stops []func()
				var first *server.Node
				total = 0
				for i, kinds := range nodes {
					c := config.Config{Targets: targets(filepath.Join(base, string(rune('0'+i))), kinds...), Listen: "127.0.0.1:0"}
					if i == 0 {
						c.HostMGS, c.Listen = true, addr
					} else {
						c.MGS = []string{addr}
					}
					n, stop := start(t, options(c))
					if i == 0 {
						first = n
					}
					stops = append(stops, stop)
					total += len(kinds)
				}
				c := view(t, first, total)
				uuids[life], names[life] = string(c.FsUuid), map[string]string{}
				for _, v := range c.Targets {
					names[life][string(v.Name)] = string(v.Uuid)
				}
				for i := len(stops) - 1; i >= 0; i-- {
					stops[i]()
				}
			}
			if uuids[0] != uuids[1] || len(names[0]) != total {
				t.Fatalf("the second life is another file system, or a target is missing: %v", names)
			}
			for k, v := range names[0] {
				if names[1][k] != v {
					t.Fatalf("%s changed its data folder", k)
				}
			}
		})
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestPortInUse: the error says which and what to do, and no data folder is made.
func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	base := filepath.Join(t.TempDir(), "base")
	_, err = server.Start(t.Context(), options(config.Config{
		Targets: targets(base, config.MDT, config.OST), HostMGS: true, Listen: l.Addr().String(),
	}))
	if err == nil || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), "--listen") {
		t.Fatalf("a port in use: %v", err)
	}
	if exists(base) {
		t.Fatal("a start that could not listen has left data folders")
	}
}

// TestSecondMDTIsRefused: one MDT is all that a file system has.
func TestSecondMDTIsRefused(t *testing.T) {
	addr := freePort(t)
	start(t, options(config.Config{Targets: targets(t.TempDir(), config.MDT), HostMGS: true, Listen: addr}))
	_, err := server.Start(t.Context(), options(config.Config{
		Targets: targets(t.TempDir(), config.MDT), MGS: []string{addr}, Listen: "127.0.0.1:0",
	}))
	if err == nil || !strings.Contains(err.Error(), "has its MDT already") {
		t.Fatalf("a second MDT: %v", err)
	}
}

func TestWrongName(t *testing.T) {
	addr := freePort(t)
	start(t, options(config.Config{Targets: targets(t.TempDir(), config.MDT), HostMGS: true, Listen: addr}))
	base := filepath.Join(t.TempDir(), "base")
	o := options(config.Config{Targets: targets(base, config.OST), MGS: []string{addr}, Listen: "127.0.0.1:0"})
	o.Config.FSName = "other"
	_, err := server.Start(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), `"strake"`) || !strings.Contains(err.Error(), "--fsname") {
		t.Fatalf("a wrong name: %v", err)
	}
	if exists(base) {
		t.Fatal("a refused start has left a data folder")
	}
}

func TestSilentMGS(t *testing.T) {
	addr, data := freePort(t), filepath.Join(t.TempDir(), "base")
	oss := options(config.Config{
		Targets: targets(data, config.OST), MGS: []string{addr}, Listen: "127.0.0.1:0", MGSTimeout: 300 * time.Millisecond,
	})
	_, err := server.Start(t.Context(), oss)
	if err == nil || !strings.Contains(err.Error(), "did not answer") || !strings.Contains(err.Error(), addr) {
		t.Fatalf("an MGS that is not there: %v", err)
	}
	if exists(data) {
		t.Fatal("a start without an MGS has left a data folder")
	}

	mds := options(config.Config{Targets: targets(t.TempDir(), config.MDT), HostMGS: true, Listen: addr})
	_, stopMDS := start(t, mds)
	oss.Config.MGSTimeout = 20 * time.Second
	_, stopOSS := start(t, oss)
	stopOSS()
	stopMDS()

	// Now it has its place and the configuration: it starts alone, and is seen when the MGS is back.
	start(t, oss)
	n, _ := start(t, mds)
	for {
		for _, v := range view(t, n, 2).Targets {
			if v.Kind == mgc.KindOST && string(v.State) == "serving" {
				return
			}
		}
		select {
		case <-t.Context().Done():
			t.Fatal("the OST does not report")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestCancelledStart leaves nothing running.
func TestCancelledStart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	n, err := server.Start(ctx, options(config.Config{
		Targets: targets(t.TempDir(), config.OST), MGS: []string{freePort(t)}, Listen: "127.0.0.1:0",
	}))
	if err == nil {
		_ = n.Close(context.Background())
		t.Fatal("a start without an MGS and with its context ended has succeeded")
	}
}
