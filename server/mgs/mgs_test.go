package mgs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/mgs"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/memdev"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// registry is an MGS on a memory device, served on a pipe.
type registry struct {
	t    *testing.T
	disk *memdev.Disk
	net  *rpc.Pipe
	dev  *memdev.Device
	m    *mgs.MGS
	stop func()
}

func start(t *testing.T) *registry {
	r := &registry{t: t, disk: memdev.NewDisk(), net: rpc.NewPipe()}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *registry) start() {
	r.t.Helper()
	log := slog.New(slog.DiscardHandler)
	var err error
	r.dev, err = memdev.Open(r.disk, memdev.Options{Specs: []store.Spec{mgs.Spec()}, CommitInterval: time.Millisecond})
	if err != nil {
		r.t.Fatal(err)
	}
	if r.m, err = mgs.Open(r.t.Context(), mgs.Options{FSName: "strake", KV: r.dev, Log: log}); err != nil {
		r.t.Fatal(err)
	}
	m := r.m
	s := rpc.NewServer(rpc.ServerOptions{Find: func(name string) (rpc.Target, error) {
		if name != mgs.Name {
			return nil, status.WrongTarget
		}
		return m, nil
	}})
	l, err := r.net.Listen("mgs")
	if err != nil {
		r.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	dev := r.dev
	r.stop = func() {
		m.Close()
		if err := errors.Join(s.Close(context.Background()), <-served, dev.Close()); err != nil {
			r.t.Error(err)
		}
	}
}

// peer is a connected import, with its own uuid.
func (r *registry) peer(n byte, change func(*rpc.ImportOptions)) *rpc.Import {
	o := rpc.ImportOptions{
		Transport: r.net, Addresses: []string{"mgs"}, FSName: "strake", Target: mgs.Name, UUID: [16]byte{n},
		Peer: fmt.Sprintf("node%d", n), Kind: rpc.KindOST,
	}
	if change != nil {
		change(&o)
	}
	i, err := rpc.NewImport(o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { i.Close(context.Background()) })
	return i
}

func (r *registry) connected(n byte) *rpc.Import {
	r.t.Helper()
	i := r.peer(n, nil)
	if err := i.Connect(limit(r.t)); err != nil {
		r.t.Fatal(err)
	}
	return i
}

func limit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func request(kind uint32, index int32, uuid byte, server string) *wirepb.RegisterRequest {
	return &wirepb.RegisterRequest{
		Fsname: []byte("strake"), Kind: kind, Index: index, Uuid: bytes.Repeat([]byte{uuid}, 16),
		Addresses: [][]byte{[]byte(server + ":9880")}, Server: []byte(server),
	}
}

func register(t *testing.T, i *rpc.Import, q *wirepb.RegisterRequest) (*wirepb.RegisterReply, error) {
	reply := &wirepb.RegisterReply{}
	err := i.Do(limit(t), &rpc.Request{Op: wire.OpRegister, Body: q, Reply: reply})
	return reply, err
}

func config(t *testing.T, i *rpc.Import, known uint64, wait time.Duration) *wirepb.Config {
	t.Helper()
	c := &wirepb.Config{}
	q := &wirepb.ConfigRequest{Fsname: []byte("strake"), Known: known, WaitMsec: uint32(wait.Milliseconds())}
	if err := i.Do(limit(t), &rpc.Request{Op: wire.OpConfig, Body: q, Reply: c}); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestIndexesAreGivenOnceAndStay(t *testing.T) {
	r := start(t)
	i := r.connected(1)
	for n := range 3 {
		reply, err := register(t, i, request(mgs.KindOST, -1, byte(10+n), "oss1"))
		if err != nil || reply.Index != uint32(n) || len(reply.FsUuid) != 16 || len(reply.FsKey) != 0 {
			t.Fatalf("%v, %v", reply, err)
		}
	}
	mdt, err := register(t, i, request(mgs.KindMDT, -1, 20, "mds"))
	if err != nil || mdt.Index != 0 || len(mdt.FsKey) != 16 {
		t.Fatalf("%v, %v", mdt, err)
	}
	if reply, err := register(t, i, request(mgs.KindOST, 7, 13, "oss1")); err != nil || reply.Index != 7 {
		t.Fatalf("%v, %v", reply, err)
	}
	uuid, key := r.m.UUID(), r.m.Key()

	// The registration survives the MGS, with the identity.
	r.stop()
	r.start()
	if reply, err := register(t, i, request(mgs.KindOST, -1, 11, "oss1")); err != nil || reply.Index != 1 || !bytes.Equal(reply.FsUuid, uuid[:]) {
		t.Fatalf("%v, %v", reply, err)
	}
	if reply, err := register(t, i, request(mgs.KindOST, -1, 14, "oss1")); err != nil || reply.Index != 8 {
		t.Fatalf("%v, %v", reply, err)
	}
	if r.m.Key() != key {
		t.Error("the key of the hash of names has changed")
	}
	c := config(t, i, 0, 0)
	var names []string
	for _, tg := range c.Targets {
		names = append(names, string(tg.Name))
	}
	if got := strings.Join(names, " "); got != "strake-MDT0000 strake-OST0000 strake-OST0001 strake-OST0002 strake-OST0007 strake-OST0008" {
		t.Error(got)
	}
}

func TestRegisterRefusals(t *testing.T) {
	r := start(t)
	i, other := r.connected(1), r.connected(2)
	if _, err := register(t, i, request(mgs.KindOST, 3, 10, "oss1")); err != nil {
		t.Fatal(err)
	}
	if _, err := register(t, i, request(mgs.KindMDT, -1, 20, "mds")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change func(q *wirepb.RegisterRequest)
		kind   status.Kind
		text   string
	}{
		{"other file system's name", func(q *wirepb.RegisterRequest) { q.Fsname = []byte("other") }, status.Refused, `"strake", not "other"`},
		{"other file system's folder", func(q *wirepb.RegisterRequest) { q.FsUuid = make([]byte, 16) }, status.Refused, "another file system"},
		{"index of another folder", func(q *wirepb.RegisterRequest) { q.Index = 3 }, status.Refused, "index 3 is taken"},
		{"known folder under another index", func(q *wirepb.RegisterRequest) {
			q.Uuid = bytes.Repeat([]byte{10}, 16)
			q.Index = 4
			q.Server = []byte("oss1")
		}, status.Refused, "OST0003, not index 4"},
		{"copy of a folder that is served", func(q *wirepb.RegisterRequest) { q.Uuid = bytes.Repeat([]byte{10}, 16); q.Index = 3 }, status.Refused, "served already by oss1"},
		{"second MDT", func(q *wirepb.RegisterRequest) { q.Kind = mgs.KindMDT }, status.Refused, "has its MDT already"},
		{"kind", func(q *wirepb.RegisterRequest) { q.Kind = 9 }, status.Protocol, "kind 9"},
		{"uuid", func(q *wirepb.RegisterRequest) { q.Uuid = q.Uuid[1:] }, status.Protocol, "15 bytes"},
		{"addresses", func(q *wirepb.RegisterRequest) { q.Addresses = make([][]byte, 1000) }, status.Protocol, "1000 addresses"},
		{"index too high", func(q *wirepb.RegisterRequest) { q.Index = 1 << 16 }, status.Refused, "65535"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := config(t, i, 0, 0)
			q := request(mgs.KindOST, -1, 99, "oss2")
			tt.change(q)
			_, err := register(t, other, q)
			if status.Of(err) != tt.kind || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v", err)
			}
			if after := config(t, i, 0, 0); after.Version != before.Version || len(after.Targets) != len(before.Targets) {
				t.Error("a refused target changed the configuration")
			}
		})
	}
}

func TestWrongFileSystemIsRefusedAtConnect(t *testing.T) {
	r := start(t)
	i := r.peer(1, func(o *rpc.ImportOptions) { o.FSName = "other" })
	if err := i.Connect(limit(t)); !errors.Is(err, status.Refused) || !strings.Contains(err.Error(), "--fsname") {
		t.Fatal(err)
	}
}

// A copied data folder may come up once its original is gone.
func TestFolderMovesToAnotherServer(t *testing.T) {
	r := start(t)
	first := r.connected(1)
	if _, err := register(t, first, request(mgs.KindOST, -1, 10, "oss1")); err != nil {
		t.Fatal(err)
	}
	first.Close(limit(t))
	i := r.connected(2)
	deadline := time.Now().Add(5 * time.Second)
	for { // the server hears of the end of a connection a moment later
		reply, err := register(t, i, request(mgs.KindOST, 0, 10, "oss2"))
		if err == nil {
			if reply.Index != 0 {
				t.Fatal(reply)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	c := config(t, i, 0, 0)
	if len(c.Targets) != 1 || string(c.Targets[0].Addresses[0]) != "oss2:9880" {
		t.Error(c.Targets)
	}
}

func TestHeldConfigIsAnsweredAtAChange(t *testing.T) {
	r := start(t)
	i, watcher := r.connected(1), r.connected(2)
	seen := config(t, watcher, 0, 0)
	news := make(chan *wirepb.Config, 1)
	go func() { news <- config(t, watcher, seen.Version, 30*time.Second) }()
	select {
	case c := <-news:
		t.Fatalf("answered without a change: %v", c)
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := register(t, i, request(mgs.KindOST, -1, 10, "oss1")); err != nil {
		t.Fatal(err)
	}
	if c := <-news; c.Version == seen.Version || len(c.Targets) != 1 {
		t.Error(c)
	}
	// The same target with the same addresses is no news; with another address it is.
	seen = config(t, watcher, 0, 0)
	if _, err := register(t, i, request(mgs.KindOST, -1, 10, "oss1")); err != nil {
		t.Fatal(err)
	}
	if c := config(t, watcher, seen.Version, 10*time.Millisecond); c.Version != seen.Version {
		t.Error("a target that came back as it was is news")
	}
}

// A watcher that has a version of an earlier life of the MGS is told of what is now.
func TestVersionsOfTwoLivesDiffer(t *testing.T) {
	r := start(t)
	i := r.connected(1)
	seen := config(t, i, 0, 0)
	r.stop()
	r.start()
	if c := config(t, i, seen.Version, 10*time.Second); c.Version == seen.Version {
		t.Error("the same version")
	}
}

func TestReports(t *testing.T) {
	r := start(t)
	i, other := r.connected(1), r.connected(2)
	if _, err := register(t, i, request(mgs.KindOST, -1, 10, "oss1")); err != nil {
		t.Fatal(err)
	}
	report := &rpc.Request{Op: wire.OpReport, Body: &wirepb.ReportRequest{Fsname: []byte("strake"), Targets: []*wirepb.Target{{
		Kind: mgs.KindOST, Index: 0, State: []byte("serving"), Statfs: &wirepb.StatfsReply{TotalBytes: 100, FreeBytes: 60, AvailBytes: 50},
	}}}}
	before := config(t, other, 0, 0).Version
	if err := i.Do(limit(t), report); err != nil {
		t.Fatal(err)
	}
	c := config(t, other, 0, 0)
	tg := c.Targets[0]
	if string(tg.State) != "serving" || tg.Statfs.FreeBytes != 60 || tg.AgeMsec > 10_000 {
		t.Error(tg)
	}
	if c.Version != before {
		t.Error("a report changed the version")
	}
	if err := other.Do(limit(t), report); !errors.Is(err, status.Refused) {
		t.Errorf("a report from somebody else: %v", err)
	}
	// The target moves to another process of the same server: the one before is told with its next report.
	if _, err := register(t, other, request(mgs.KindOST, -1, 10, "oss1")); err != nil {
		t.Fatal(err)
	}
	if err := i.Do(limit(t), report); !errors.Is(err, status.Refused) {
		t.Errorf("a report from who had the target before: %v", err)
	}
	if err := other.Do(limit(t), report); err != nil {
		t.Error(err)
	}
}

// TestANewInstanceIsNews: who waits for a configuration hears of a target that serves again, once.
func TestANewInstanceIsNews(t *testing.T) {
	r := start(t)
	i, watcher := r.connected(1), r.connected(2)
	if _, err := register(t, i, request(mgs.KindOST, -1, 10, "oss1")); err != nil {
		t.Fatal(err)
	}
	report := func(instance uint64) {
		t.Helper()
		q := &wirepb.ReportRequest{Fsname: []byte("strake"), Targets: []*wirepb.Target{{Kind: mgs.KindOST, State: []byte("serving"), Instance: instance}}}
		if err := i.Do(limit(t), &rpc.Request{Op: wire.OpReport, Body: q}); err != nil {
			t.Fatal(err)
		}
	}
	seen := config(t, watcher, 0, 0)
	for _, instance := range []uint64{7, 8} {
		news := make(chan *wirepb.Config, 1)
		go func() { news <- config(t, watcher, seen.Version, 30*time.Second) }()
		report(instance)
		c := <-news
		if c.Version == seen.Version || c.Targets[0].Instance != instance {
			t.Errorf("after a start as %d: %v", instance, c)
		}
		seen = c
		report(instance)
		report(0) // a server of a version before
		if c := config(t, watcher, 0, 0); c.Version != seen.Version || c.Targets[0].Instance != instance {
			t.Errorf("the same instance again: %v", c)
		}
	}
}

func TestPermanentParams(t *testing.T) {
	r := start(t)
	i := r.connected(1)
	e := env.New()
	seen := config(t, i, 0, 0)
	for _, p := range [][2]string{{"osc.*.max_dirty_mb", "64"}, {"mdt.*.commit_on_sharing", "2"}, {"a.b", "1"}, {"a.b", ""}} {
		if err := r.m.SetParam(t.Context(), e, p[0], p[1]); err != nil {
			t.Fatal(err)
		}
	}
	check := func() {
		t.Helper()
		c := config(t, i, seen.Version, 0)
		if len(c.Params) != 2 || string(c.Params[0].Name) != "mdt.*.commit_on_sharing" || string(c.Params[1].Value) != "64" {
			t.Error(c.Params)
		}
	}
	check()
	r.stop()
	r.start()
	check()
	for _, bad := range [][2]string{{"", "1"}, {"a", "b\n"}, {strings.Repeat("n", 200), "1"}, {"n", strings.Repeat("v", 300)}} {
		if err := r.m.SetParam(t.Context(), e, bad[0], bad[1]); !errors.Is(err, status.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for n := range 300 {
		err := r.m.SetParam(t.Context(), e, fmt.Sprint("p", n), "1")
		if n >= 198 != errors.Is(err, status.NoSpace) {
			t.Fatalf("parameter %d: %v", n, err)
		}
	}
}

// A registration that was answered is there after a crash.
func TestAnsweredRegistrationSurvivesACrash(t *testing.T) {
	r := start(t)
	i := r.connected(1)
	if _, err := register(t, i, request(mgs.KindOST, 5, 10, "oss1")); err != nil {
		t.Fatal(err)
	}
	r.dev.Crash()
	r.stop()
	r.start()
	if reply, err := register(t, i, request(mgs.KindOST, -1, 10, "oss1")); err != nil || reply.Index != 5 {
		t.Fatalf("%v, %v", reply, err)
	}
}

// What the MGS shows of itself: targets, permanent parameters; a pattern that is none is refused.
func TestLive(t *testing.T) {
	r := start(t)
	i := r.connected(1)
	if _, err := register(t, i, request(mgs.KindOST, 5, 10, "oss1")); err != nil {
		t.Fatal(err)
	}
	for _, p := range [][2]string{{"osc.*.max_dirty_mb", "64"}, {"a.b", "1 2"}} {
		if err := r.m.SetParam(t.Context(), env.New(), p[0], p[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.m.SetParam(t.Context(), env.New(), "osc.[", "64"); !errors.Is(err, status.Invalid) {
		t.Error(err)
	}
	reg := stats.NewRegistry()
	r.m.Register(reg)
	texts := map[string]string{}
	if err := reg.Walk("mgs.MGS.live.*", func(e stats.Entry) error { texts[e.Path] = e.Text(); return nil }); err != nil {
		t.Fatal(err)
	}
	if got, want := texts["mgs.MGS.live.params"], "a.b=1 2\nosc.*.max_dirty_mb=64"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := texts["mgs.MGS.live.strake"]; !strings.HasPrefix(got, "fsname: strake\nuuid: ") || !strings.Contains(got, "\nstrake-OST0005 starting oss1") {
		t.Errorf("%q", got)
	}
}
