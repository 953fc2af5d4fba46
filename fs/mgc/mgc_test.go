package mgc_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/mgc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/mgs"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/memdev"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// registry is an MGS that can go away.
type registry struct {
	t    *testing.T
	disk *memdev.Disk
	net  *rpc.Pipe
	mgs  *mgs.MGS
	stop func()
}

func newRegistry(t *testing.T) *registry {
	return &registry{t: t, disk: memdev.NewDisk(), net: rpc.NewPipe()}
}

func (r *registry) start() {
	r.t.Helper()
	dev, err := memdev.Open(r.disk, memdev.Options{Specs: []store.Spec{mgs.Spec()}, CommitInterval: time.Millisecond})
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := mgs.Open(r.t.Context(), mgs.Options{FSName: "strake", KV: dev, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.mgs = m
	s := rpc.NewServer(rpc.ServerOptions{Find: func(string) (rpc.Target, error) { return m, nil }})
	l, err := r.net.Listen("mgs")
	if err != nil {
		r.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	var stopped bool
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		m.Close()
		if err := errors.Join(s.Close(context.Background()), <-served, dev.Close()); err != nil {
			r.t.Error(err)
		}
	}
	r.t.Cleanup(r.stop)
}

// client is a configuration client of its own process.
func (r *registry) client(n byte, path string) (*mgc.MGC, *rpc.Import) {
	return r.clientOf(n, path, "strake", nil)
}

func (r *registry) clientOf(n byte, path, fsname string, tree *stats.Registry) (*mgc.MGC, *rpc.Import) {
	r.t.Helper()
	i, err := rpc.NewImport(rpc.ImportOptions{
		Transport: r.net, Addresses: []string{"mgs"}, FSName: fsname, Target: mgs.Name, UUID: [16]byte{n}, Kind: rpc.KindOST,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	m := mgc.New(mgc.Options{Import: i, FSName: fsname, SavePath: path, Log: slog.New(slog.DiscardHandler), Stats: tree})
	r.t.Cleanup(func() {
		m.Close()
		i.Close(context.Background())
	})
	return m, i
}

func limit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func always(*wirepb.Config) bool { return true }

func ost(address string) *wirepb.RegisterRequest {
	return &wirepb.RegisterRequest{
		Fsname: []byte("strake"), Kind: mgc.KindOST, Index: -1, Uuid: make([]byte, 16), Addresses: [][]byte{[]byte(address)},
	}
}

func TestRegisterReportAndWatch(t *testing.T) {
	r := newRegistry(t)
	r.start()
	server, _ := r.client(1, "")
	watcher, _ := r.client(2, "")
	if _, err := server.First(limit(t), always); err != nil {
		t.Fatal(err)
	}
	if _, err := watcher.First(limit(t), always); err != nil {
		t.Fatal(err)
	}
	news := make(chan *wirepb.Config, 10)
	watcher.Watch(func(c *wirepb.Config) { news <- c })
	if reply, err := server.Register(limit(t), ost("oss1:9880")); err != nil || reply.Index != 0 {
		t.Fatal(reply, err)
	}
	if c := <-news; len(c.Targets) != 1 || watcher.Last() != c {
		t.Fatal(c)
	}
	if err := server.Report(limit(t), []*wirepb.Target{{Kind: mgc.KindOST, State: []byte("full")}}); err != nil {
		t.Fatal(err)
	}
	if c, err := watcher.Fetch(limit(t)); err != nil || string(c.Targets[0].State) != "full" {
		t.Fatal(c, err)
	}

	// The watch goes on over a restart of the MGS.
	r.stop()
	r.start()
	if _, err := server.Register(limit(t), ost("oss1:1")); err != nil {
		t.Fatal(err)
	}
	for {
		if c := <-news; string(c.Targets[0].Addresses[0]) == "oss1:1" {
			return
		}
	}
}

func TestStartsFromTheKeptConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "config")
	r := newRegistry(t)
	r.start()
	m, i := r.client(1, path)
	if _, err := m.First(limit(t), always); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Register(limit(t), ost("oss1:9880")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("kept before it was told to: %v", err)
	}
	m.Keep()
	c, err := m.Fetch(limit(t))
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatal(fi, err)
	}
	i.Close(limit(t))

	// The MGS is there and has nothing newer: its answer, at once.
	again, _ := r.client(2, path)
	before := time.Now()
	if got, err := again.First(limit(t), always); err != nil || got.Version != c.Version || time.Since(before) > 2*time.Second {
		t.Fatalf("%v after %v, %v", got, time.Since(before), err)
	}

	// The MGS is silent: the one kept, after a moment.
	r.stop()
	alone, _ := r.client(3, path)
	got, err := alone.First(limit(t), always)
	if err != nil || len(got.Targets) != 1 || string(got.Targets[0].Name) != "strake-OST0000" {
		t.Fatal(got, err)
	}
	// Nothing kept, or not enough: ctx ends the waiting.
	for _, m := range []*mgc.MGC{first(r.client(4, "")), first(r.client(5, path))} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := m.First(ctx, func(c *wirepb.Config) bool { return len(c.Targets) > 1 }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
}

func first(m *mgc.MGC, _ *rpc.Import) *mgc.MGC { return m }

func TestRefusalIsNotHiddenByTheKeptConfiguration(t *testing.T) {
	r := newRegistry(t)
	r.start()
	path := filepath.Join(t.TempDir(), "config")
	b, err := (&wirepb.Config{Fsname: []byte("other"), Version: 3}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	m, _ := r.clientOf(1, path, "other", nil)
	if _, err := m.First(limit(t), always); !errors.Is(err, status.Refused) || !strings.Contains(err.Error(), `"strake", not "other"`) {
		t.Fatal(err)
	}
}

func TestSavedRefusesWhatIsNoConfiguration(t *testing.T) {
	r := newRegistry(t)
	path := filepath.Join(t.TempDir(), "config")
	other, _ := (&wirepb.Config{Fsname: []byte("other")}).MarshalVT()
	for name, b := range map[string][]byte{
		"garbage": {0xff, 0xff}, "other file system": other, "empty": {}, "huge": make([]byte, 1<<20),
	} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		m, _ := r.client(1, path)
		if c, err := m.Saved(); err == nil || m.Last() != nil {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}

// Permanent parameters reach the process's tree: from the MGS, whether it has something newer than what is kept or not, from
// what is kept, and when they change.
func TestPermanentParametersAreApplied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	r := newRegistry(t)
	r.start()
	set := func(value string) {
		t.Helper()
		if err := r.mgs.SetParam(t.Context(), env.New(), "osc.*.max_dirty_mb", value); err != nil {
			t.Fatal(err)
		}
	}
	n := byte(0)
	process := func() (*mgc.MGC, <-chan string) {
		n++
		tree := stats.NewRegistry()
		m, _ := r.clientOf(n, path, "strake", tree)
		got := make(chan string, 8)
		tree.Param("osc.x.max_dirty_mb", "", func() string { return "" }, func(s string) error {
			got <- s
			if s == "bad" {
				return errors.New("a number is wanted")
			}
			return nil
		})
		if _, err := m.First(limit(t), always); err != nil {
			t.Fatal(err)
		}
		return m, got
	}
	set("64")
	m, got := process()
	m.Keep()
	if v := <-got; v != "64" {
		t.Fatal(v)
	}
	m.Watch(func(*wirepb.Config) {})
	set("bad")
	if v := <-got; v != "bad" {
		t.Fatal(v)
	}
	set("32")
	if v := <-got; v != "32" {
		t.Fatal(v)
	}
	m.Close() // now the newest one is kept
	if _, got = process(); <-got != "32" {
		t.Error("a start with the newest configuration kept")
	}
	r.stop()
	if _, got = process(); <-got != "32" {
		t.Error("a start without the MGS")
	}
}
