package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/mgc"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server"
	"github.com/strakefs/strake/server/config"
)

// system is a file system of one MDS and one OSS process, which can go away each, in this process.
type system struct {
	t        *testing.T
	mds, oss server.Options
	stats    *stats.Registry // the MDS's
	stopMDS  func()
	stopOSS  func()
	config   *wirepb.Config
}

func newSystem(t *testing.T) *system {
	base := t.TempDir()
	s := &system{t: t, stats: stats.NewRegistry()}
	log := slog.New(slog.DiscardHandler)
	s.mds = server.Options{Log: log, Stats: s.stats, Config: config.Config{
		FSName: "strake", HostMGS: true, Listen: "127.0.0.1:0", MGSTimeout: 20 * time.Second,
		Targets: []config.Target{{Kind: config.MDT, Dir: filepath.Join(base, "mdt0")}},
	}}
	n := s.startMDS()
	s.oss = server.Options{Log: log, Config: config.Config{
		FSName: "strake", MGS: []string{s.mds.Config.Listen}, Listen: "127.0.0.1:0", MGSTimeout: 20 * time.Second,
		Targets: []config.Target{{Kind: config.OST, Dir: filepath.Join(base, "ost0")}},
	}}
	s.startOSS()
	for s.config == nil || len(s.config.Targets) < 2 {
		var err error
		if s.config, err = n.View(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *system) start(o server.Options) (*server.Node, func()) {
	s.t.Helper()
	n, err := server.Start(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		ctx, cancel := context.WithTimeout(bg, 20*time.Second)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			s.t.Error(err)
		}
	}
	s.t.Cleanup(stop)
	return n, stop
}

func (s *system) startMDS() *server.Node {
	n, stop := s.start(s.mds)
	s.stopMDS = stop
	if s.mds.Config.Listen == "127.0.0.1:0" {
		c, err := n.View(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		for _, a := range c.Targets[0].Addresses {
			if a := string(a); !bytes.HasPrefix([]byte(a), []byte(rpc.PipePrefix)) {
				s.mds.Config.Listen = a
			}
		}
	}
	return n
}

func (s *system) startOSS() {
	n, stop := s.start(s.oss)
	s.stopOSS = stop
	if s.oss.Config.Listen == "127.0.0.1:0" {
		for {
			c, err := n.View(s.t.Context())
			if err != nil {
				s.t.Fatal(err)
			}
			for _, t := range c.Targets {
				if t.Kind == mgc.KindOST {
					s.oss.Config.Listen = string(t.Addresses[len(t.Addresses)-1])
					return
				}
			}
		}
	}
}

// mount is a client's state without a kernel.
type mount struct {
	*client.Client
	t     *testing.T
	mdc   *mdc.MDC
	locks *lockcache.Cache
	owner client.Owner
	data  *lov.Set
	close func(context.Context) error
}

func (s *system) mount(readOnly bool) *mount {
	t := s.t
	t.Helper()
	m := &mount{t: t, data: lov.NewSet()}
	tr, id := rpc.NewTCP(), [16]byte{9}
	if readOnly {
		id[1] = 1
	}
	log := slog.New(slog.DiscardHandler)
	type callback = func(*env.Env, *rpc.Call) error
	dial := func(v *wirepb.Target, bulk bool, on func(*wirepb.ConnectReply), cb callback) *rpc.Import {
		i, err := rpc.NewImport(rpc.ImportOptions{
			Callback:  cb,
			Transport: tr, Addresses: []string{string(v.Addresses[len(v.Addresses)-1])}, FSName: "strake",
			Target: string(v.Name), UUID: id, Peer: "test", Kind: rpc.KindClient, ReadOnly: readOnly, Bulk: bulk, OnConnect: on,
		})
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	var imports []*rpc.Import
	var oscs []*osc.OSC
	for _, v := range s.config.Targets {
		if v.Kind == mgc.KindMDT {
			i := dial(v, false, func(r *wirepb.ConnectReply) { m.locks.Connected(r) },
				func(e *env.Env, c *rpc.Call) error { return m.locks.Callback(e, c) })
			m.locks = lockcache.New(lockcache.Options{Name: "mdc", Import: i, Owner: &m.owner, Seed: 1})
			m.mdc = mdc.New(mdc.Options{Import: i, Locks: m.locks, Log: log})
			imports = append(imports, i)
			continue
		}
		var c *osc.OSC
		i := dial(v, true, func(r *wirepb.ConnectReply) { c.Connected(r) },
			func(e *env.Env, call *rpc.Call) error { return c.Callback(e, call) })
		c = osc.New(osc.Options{Import: i, Index: layout.OSTIndex(v.Index), Cache: osc.NewCache(32 << 20), MaxAge: 50 * time.Millisecond,
			Locks: &osc.LockOptions{Seed: 2}})
		m.data.Add(c)
		imports, oscs = append(imports, i), append(oscs, c)
	}
	for _, i := range imports {
		if err := i.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	m.Client = client.New(client.Options{
		MDC: m.mdc, Data: m.data, Locks: m.locks, Owner: &m.owner, ReadOnly: readOnly, NamesMax: 1000, Log: log,
	})
	closed := false
	m.close = func(ctx context.Context) error {
		if closed {
			return nil
		}
		closed = true
		errs := []error{m.Client.Close(ctx), m.mdc.Close(ctx)}
		m.locks.Close()
		for _, c := range oscs {
			errs = append(errs, c.Close(ctx))
		}
		errs = append(errs, m.data.Close(ctx))
		for _, i := range imports {
			errs = append(errs, i.Close(ctx))
		}
		return errors.Join(errs...)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		if err := m.close(ctx); err != nil {
			t.Error(err)
		}
	})
	return m
}

var root mdc.Caller

func (m *mount) create(name string, flags uint32) *client.Handle {
	m.t.Helper()
	var a attr.Attr
	h, err := m.Create(m.t.Context(), &root, fid.Root, name, &mdc.Creation{Mode: attr.TypeFile | 0o666, Open: true, Flags: flags}, &a)
	if err != nil {
		m.t.Fatal(err)
	}
	return h
}

func (m *mount) open(f fid.FID, flags uint32) *client.Handle {
	m.t.Helper()
	var a attr.Attr
	h, err := m.Open(m.t.Context(), &root, f, flags, &a)
	if err != nil {
		m.t.Fatal(err)
	}
	return h
}

func (m *mount) write(h *client.Handle, b []byte, off uint64) {
	m.t.Helper()
	if n, err := h.Write(m.t.Context(), &client.Write{Data: [][]byte{b}, Offset: off}); n != len(b) || err != nil {
		m.t.Fatalf("wrote %d of %d: %v", n, len(b), err)
	}
}

func (m *mount) read(h *client.Handle, n int) []byte {
	m.t.Helper()
	b := make([]byte, n)
	n, err := h.Read(m.t.Context(), b, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	return b[:n]
}

func (m *mount) stat(f fid.FID) attr.Attr {
	m.t.Helper()
	var a attr.Attr
	if err := m.Getattr(m.t.Context(), &root, f, &a); err != nil {
		m.t.Fatal(err)
	}
	return a
}

// atMDT is what the MDT knows of a file by itself.
func (m *mount) atMDT(f fid.FID) attr.Attr {
	m.t.Helper()
	var e mdc.Entry
	if err := m.mdc.Getattr(m.t.Context(), &root, f, &e); err != nil {
		m.t.Fatal(err)
	}
	return e.Attr
}

// until waits for something that is to become true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("does not come: " + what)
		}
	}
}

// TestClosedAgainWhileWrittenBack: a file that was opened, written and closed again while it was being written back is
// reported when that data too is on the OST.
func TestClosedAgainWhileWrittenBack(t *testing.T) {
	s := newSystem(t)
	m := s.mount(false)
	for range 20 {
		h := m.create("f", syscall.O_RDWR)
		f := h.FID()
		const size = 1 << 20
		m.write(h, bytes.Repeat([]byte{1}, size), 0)
		h.Release()
		for i := byte(2); i < 6; i++ {
			h = m.open(f, syscall.O_WRONLY)
			m.write(h, bytes.Repeat([]byte{i}, size+int(i)), 0)
			h.Release()
		}
		until(t, "size at the MDT", func() bool { return m.atMDT(f).SizeValid })
		if a := m.atMDT(f); a.Size != size+5 {
			t.Fatalf("the MDT has size %d, want %d", a.Size, size+5)
		}
		// Done means that the OST has it all: a client without anything in its cache sees it.
		var e mdc.Entry
		if err := m.mdc.Getattr(t.Context(), &root, f, &e); err != nil {
			t.Fatal(err)
		}
		var l layout.Layout
		if err := l.Decode(e.Layout); err != nil {
			t.Fatal(err)
		}
		cold, err := m.data.Open(f, &l, lov.Owner{})
		if err != nil {
			t.Fatal(err)
		}
		cold.SetKnown(size+5, 0)
		b := make([]byte, size+5)
		if n, err := cold.ReadAt(t.Context(), b, 0); err != nil || !bytes.Equal(b[:n], bytes.Repeat([]byte{5}, size+5)) {
			t.Fatalf("the file was reported as done, and the OST has old data: %v", err)
		}
		if err := m.Unlink(t.Context(), &root, fid.Root, "f", false); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTruncatedByAReader: O_RDONLY|O_TRUNC makes a writer too, which reports.
func TestTruncatedByAReader(t *testing.T) {
	m := newSystem(t).mount(false)
	h := m.create("f", syscall.O_WRONLY)
	m.write(h, []byte("data"), 0)
	h.Release()
	until(t, "size at the MDT", func() bool { return m.atMDT(h.FID()).SizeValid })
	m.open(h.FID(), syscall.O_RDONLY|syscall.O_TRUNC).Release()
	until(t, "size at the MDT after O_TRUNC", func() bool { a := m.atMDT(h.FID()); return a.SizeValid && a.Size == 0 })
}

// openFiles is the MDT's figure.
func (s *system) openFiles() (n int64) {
	_ = s.stats.Walk("mdt.*.open_files", func(e stats.Entry) error {
		n, _ = e.Value()
		return nil
	})
	return n
}

// TestReadOnlyMountBesideAWriter sees what the writer has reported, through handles that are open already, and its closes
// reach the MDT.
func TestReadOnlyMountBesideAWriter(t *testing.T) {
	s := newSystem(t)
	w, r := s.mount(false), s.mount(true)
	h := w.create("f", syscall.O_WRONLY)
	f := h.FID()
	w.write(h, []byte("first"), 0)
	h.Release()
	until(t, "size at the MDT", func() bool { return w.atMDT(f).SizeValid })
	held := r.open(f, syscall.O_RDONLY)
	if b := r.read(held, 100); string(b) != "first" {
		t.Fatalf("read %q", b)
	}
	h = w.open(f, syscall.O_WRONLY)
	w.write(h, []byte("first and second"), 0)
	if err := h.Fsync(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // while the writer has it open, and after
		if a := r.stat(f); a.Size != 16 {
			t.Fatalf("the reader sees %d bytes", a.Size)
		}
		if b := r.read(held, 100); string(b) != "first and second" {
			t.Fatalf("read %q", b)
		}
		h.Release()
		until(t, "size at the MDT", func() bool { return w.atMDT(f).SizeValid })
		h = w.open(f, syscall.O_RDONLY)
	}
	h.Release()
	w.open(f, syscall.O_WRONLY|syscall.O_TRUNC).Release()
	until(t, "truncate at the MDT", func() bool { a := w.atMDT(f); return a.SizeValid && a.Size == 0 })
	if a := r.stat(f); a.Size != 0 {
		t.Fatalf("the reader sees %d bytes of a truncated file", a.Size)
	}
	if b := r.read(held, 100); len(b) != 0 {
		t.Fatalf("read %q of a truncated file", b)
	}
	held.Release()
	until(t, "closes at the MDT", func() bool { return s.openFiles() == 0 })
}

// TestClosingWithAnOSTAway never waits, keeps no other file from the MDT, and bounds the unmount.
func TestClosingWithAnOSTAway(t *testing.T) {
	s := newSystem(t)
	m := s.mount(false)
	var files []fid.FID
	var open []*client.Handle
	for i := range 1500 {
		h := m.create("f"+string(rune('0'+i%10))+string(rune('a'+i/10%26))+string(rune(0x4e00+i)), syscall.O_WRONLY)
		open, files = append(open, h), append(files, h.FID())
	}
	for _, h := range open[1:] { // a first write needs the OST's lock
		m.write(h, []byte("x"), 0)
	}
	s.stopOSS()
	for _, h := range open[1:] {
		m.write(h, []byte("y"), 0)
	}
	start := time.Now()
	for _, h := range open[1:] {
		h.Release()
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Fatalf("closing took %v", d)
	}
	t.Logf("closed in %v", time.Since(start))
	open[0].Release() // nothing to write: it is behind those that wait
	until(t, "size of an empty file", func() bool { return m.atMDT(files[0]).SizeValid })
	t.Logf("reported after %v", time.Since(start))
	ctx, cancel := context.WithTimeout(bg, 500*time.Millisecond)
	defer cancel()
	start = time.Now()
	if err := m.close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("lost data at an unmount: %v", err)
	}
	t.Logf("unmounted in %v", time.Since(start))
	if d := time.Since(start); d > 5*time.Second {
		t.Fatalf("the unmount took %v", d)
	}
}

// TestWaitBehindAnotherEnds: who waits behind another one's wait for an OST can be killed.
func TestWaitBehindAnotherEnds(t *testing.T) {
	s := newSystem(t)
	m := s.mount(false)
	h := m.create("f", syscall.O_WRONLY)
	s.stopOSS()
	const waiters = 3
	errs := make(chan error, waiters)
	var cancels []context.CancelFunc
	for range waiters {
		ctx, cancel := context.WithCancel(bg)
		cancels = append(cancels, cancel)
		go func() {
			set, a := client.Setting{Valid: attr.ValidSize, Attr: attr.Attr{Size: 10}}, attr.Attr{}
			errs <- m.Setattr(ctx, &root, h.FID(), &set, &a)
		}()
	}
	time.Sleep(100 * time.Millisecond) // one waits for the OST, the others for it
	for _, cancel := range cancels {   // each ends alone, whoever it is
		cancel()
		select {
		case err := <-errs:
			if err == nil {
				t.Error("truncated without an OST")
			}
		case <-time.After(10 * time.Second):
			t.Fatal("a cancelled truncate waits on")
		}
	}
	s.startOSS()
	h.Release()
}

// TestCapabilitiesGoWithAnyWrite: appends and copies pass the kernel's own removal by.
func TestCapabilitiesGoWithAnyWrite(t *testing.T) {
	m := newSystem(t).mount(false)
	const name = "security.capability"
	src := m.create("src", syscall.O_RDWR)
	defer src.Release()
	m.write(src, []byte("data"), 0)
	for what, change := range map[string]func(h *client.Handle) error{
		"append":   func(h *client.Handle) error { m.write(h, []byte("x"), 0); return nil },
		"copy":     func(h *client.Handle) error { _, err := src.CopyTo(bg, &root, h, 0, 0, 4); return err },
		"allocate": func(h *client.Handle) error { return h.Fallocate(bg, &root, 0, 0, 100) },
	} {
		h := m.create(what, syscall.O_WRONLY|syscall.O_APPEND)
		if err := m.Setxattr(bg, &root, h.FID(), mdc.Xattr{Name: name, Value: []byte("caps")}); err != nil {
			t.Fatal(err)
		}
		if err := change(h); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Getxattr(bg, &root, h.FID(), name, nil); status.Of(err) != status.NoData {
			t.Errorf("capabilities survive: %s: %v", what, err)
		}
		h.Release()
	}
}

// TestTouchedAtimeStays: a read before utimes does not move what it set, neither while the file is open nor by its close.
func TestTouchedAtimeStays(t *testing.T) {
	m := newSystem(t).mount(false)
	h := m.create("f", syscall.O_RDWR)
	f := h.FID()
	m.write(h, []byte("data"), 0)
	h.Release()
	set := client.Setting{Valid: attr.ValidAtime, Attr: attr.Attr{Atime: attr.Time{Sec: 1e9, Nsec: 7}}}
	for _, closed := range []bool{false, true} {
		h = m.open(f, syscall.O_RDONLY)
		m.read(h, 10)
		if closed {
			h.Release()
		}
		var a attr.Attr
		if err := m.Setattr(bg, &root, f, &set, &a); err != nil || a.Atime != set.Attr.Atime {
			t.Fatalf("closed %v: atime %v after setting it: %v", closed, a.Atime, err)
		}
		if !closed {
			h.Release()
		}
		if err := m.mdc.DrainReports(bg); err != nil {
			t.Fatal(err)
		}
		if a := m.atMDT(f); a.Atime != set.Attr.Atime {
			t.Fatalf("closed %v: the close moved atime to %v", closed, a.Atime)
		}
	}
}

// TestForgottenMountGoesOn: what is believed goes, and creates go on under new identifiers.
func TestForgottenMountGoesOn(t *testing.T) {
	m := newSystem(t).mount(false)
	var dir, a attr.Attr
	if err := m.Make(bg, &root, fid.Root, "d", &mdc.Creation{Mode: attr.TypeDir | 0o755}, &dir); err != nil {
		t.Fatal(err)
	}
	// Another client's doing: the mount believes that the folder is empty.
	var e mdc.Entry
	if err := m.mdc.Create(bg, &root, dir.FID, "x", &mdc.Creation{Mode: attr.TypeFile | 0o644}, &e); err != nil {
		t.Fatal(err)
	}
	if err := m.Lookup(bg, &root, dir.FID, "x", &a); status.Of(err) != status.NotExist {
		t.Fatalf("the premise does not hold: %v", err)
	}
	m.Forget()
	if err := m.Lookup(bg, &root, dir.FID, "x", &a); err != nil {
		t.Fatal(err)
	}
	h := m.create("y", syscall.O_WRONLY)
	defer h.Release()
	if h.FID().Seq == e.Attr.FID.Seq {
		t.Fatal("the sequence of the lost export is used on")
	}
}
