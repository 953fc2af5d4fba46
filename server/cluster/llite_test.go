package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/strakefs/strake/fs"
	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/fusefs"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"golang.org/x/sys/unix"
)

// lister is a second client, which lists and stats what the first one writes, with its figures.
type lister struct {
	*mount
	c   *client.Client
	reg *stats.Registry
	// once ends it.
	once sync.Once
}

func (s *system) lister() *lister {
	l := &lister{mount: s.mount(true), reg: stats.NewRegistry()}
	l.c = client.New(client.Options{
		MDC: l.mdc, Data: l.data, Locks: l.locks, Owner: &l.owner, ReadOnly: true, NamesMax: 1000,
		Cache: osc.NewCache(64 << 20), Log: slog.New(slog.DiscardHandler), Stats: l.reg, StatsPrefix: "llite.fs-0.",
	})
	s.t.Cleanup(l.end)
	return l
}

// end closes the client and what is below it.
func (l *lister) end() {
	l.once.Do(func() {
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		if err := errors.Join(l.c.Close(ctx), l.close(ctx)); err != nil {
			l.t.Error(err)
		}
	})
}

// list lists the root with attributes and returns the names that came without.
func (l *lister) list() []string {
	l.t.Helper()
	d, err := l.c.OpenDir(l.t.Context(), &root, fid.Root, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	defer d.Release()
	var names []string
	for cookie := uint64(0); ; {
		n := 0
		err := d.Read(l.t.Context(), cookie, true, func(e *mdc.Dirent, whole bool) bool {
			cookie = e.Cookie
			n++
			if !whole && !strings.HasPrefix(string(e.Name), ".") {
				names = append(names, string(e.Name))
			}
			return true
		})
		if err != nil {
			l.t.Fatal(err)
		}
		if n == 0 {
			return names
		}
	}
}

func (l *lister) size(name string) uint64 {
	l.t.Helper()
	var a attr.Attr
	if err := l.c.Lookup(l.t.Context(), &root, fid.Root, name, &a); err != nil {
		l.t.Fatal(err)
	}
	return a.Size
}

// figure is a line of statahead_stats.
func (l *lister) figure(name string) int {
	l.t.Helper()
	for line := range strings.Lines(l.text("statahead_stats")) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+": "); ok {
			n, err := strconv.Atoi(v)
			if err != nil {
				l.t.Fatal(err)
			}
			return n
		}
	}
	l.t.Fatalf("no %q in statahead_stats", name)
	return 0
}

func (l *lister) text(name string) string {
	l.t.Helper()
	text := ""
	if err := l.reg.Walk("llite.fs-0."+name, func(e stats.Entry) error { text = e.Text(); return nil }); err != nil {
		l.t.Fatal(err)
	}
	return text
}

// ostRequests is how many requests of an operation the OST has served.
func ostRequests(t *testing.T, reg *stats.Registry, op string) uint64 {
	t.Helper()
	var n uint64
	if err := reg.Walk("obdfilter.*.stats."+op, func(e stats.Entry) error {
		h, _ := e.Histogram()
		n += h.Count
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestListingSparesStatsTheOSTs: files that another client has open for writing, and does not write, are glimpsed while they
// are listed; the locks that come with that spare the stats all requests to the OSTs, and go when the client writes.
func TestListingSparesStatsTheOSTs(t *testing.T) {
	s := newSystem(t)
	s.stopOSS()
	s.oss.Stats = stats.NewRegistry()
	s.startOSS()
	w, l := s.mount(false), s.lister()
	const files = 12
	handles := make([]*client.Handle, files)
	for i := range handles {
		name := fmt.Sprint("f", i)
		h := w.create(name, syscall.O_RDWR)
		w.write(h, make([]byte, 1000+i), 0)
		if err := h.Fsync(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.Release()
	}
	// Another client than the writer of the data, so that no write lock is in the way.
	if err := w.close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w = s.mount(false)
	for i := range handles {
		var a attr.Attr
		if err := w.Lookup(t.Context(), &root, fid.Root, fmt.Sprint("f", i), &a); err != nil {
			t.Fatal(err)
		}
		handles[i] = w.open(a.FID, syscall.O_RDWR)
		defer handles[i].Release()
	}
	names := l.list()
	if len(names) != files {
		t.Fatalf("%d of %d files came without a size: %v", len(names), files, names)
	}
	stat := func() {
		t.Helper()
		for _, n := range names {
			i, _ := strconv.Atoi(n[1:])
			if got := l.size(n); got != uint64(1000+i) {
				t.Errorf("%s has %d bytes, want %d", n, got, 1000+i)
			}
		}
	}
	stat()
	for what, want := range map[string]int{"statahead total": 1, "statahead wrong": 0, "agl total": files, "hit_total": files, "miss_total": 0} {
		if got := l.figure(what); got != want {
			t.Errorf("%s is %d, want %d", what, got, want)
		}
	}
	before := ostRequests(t, s.oss.Stats, "ldlm_enqueue")
	if before < files {
		t.Fatalf("premise: %d enqueues", before)
	}
	stat()
	if n := ostRequests(t, s.oss.Stats, "ldlm_enqueue") - before; n != 0 {
		t.Errorf("%d requests to the OST for sizes under locks", n)
	}
	w.write(handles[3], make([]byte, 5000), 0)
	if got := l.size("f3"); got != 5000 {
		t.Errorf("%d bytes after a write of the other client", got)
	}
}

// TestStatsDuringWrites: sizes that statahead brings are never older than the stat that shows them.
func TestStatsDuringWrites(t *testing.T) {
	s := newSystem(t)
	w, l := s.mount(false), s.lister()
	const files = 24
	var done, begun [files]atomic.Uint64
	handles := make([]*client.Handle, files)
	for i := range handles {
		handles[i] = w.create(fmt.Sprint("f", i), syscall.O_RDWR)
		defer handles[i].Release()
		w.write(handles[i], []byte{1}, 0)
		done[i].Store(1)
		begun[i].Store(1)
	}
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for part := range 2 {
		writers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				i := (n*2 + part) % files
				end := done[i].Load()
				begun[i].Store(end + 100)
				if _, err := handles[i].Write(bg, &client.Write{Data: [][]byte{make([]byte, 100)}, Offset: end}); err != nil {
					t.Error(err)
					return
				}
				done[i].Store(end + 100)
			}
		})
	}
	halt := sync.OnceFunc(func() {
		close(stop)
		writers.Wait()
	})
	defer halt()
	stats := 0
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); {
		for _, n := range l.list() {
			i, _ := strconv.Atoi(n[1:])
			least := done[i].Load()
			got := l.size(n)
			if most := begun[i].Load(); got < least || got > most {
				t.Fatalf("%s: a stat showed %d bytes; %d were written before it, %d when it ended", n, got, least, most)
			}
			stats++
		}
	}
	halt()
	if stats == 0 || l.figure("agl total") == 0 {
		t.Errorf("premise: %d stats; %s", stats, l.text("statahead_stats"))
	}
	t.Logf("%d stats; %s", stats, strings.ReplaceAll(l.text("statahead_stats"), "\n", ", "))
}

// TestListingDoesNotWaitForAnOST: with the OST away a listing ends, few glimpses wait, and stats get the sizes when it is back.
func TestListingDoesNotWaitForAnOST(t *testing.T) {
	s := newSystem(t)
	w, l := s.mount(false), s.lister()
	const files = 40
	for i := range files {
		h := w.create(fmt.Sprint("f", i), syscall.O_RDWR)
		w.write(h, make([]byte, 1000+i), 0)
		if err := h.Fsync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.stopOSS()
	names := l.list()
	if len(names) != files {
		t.Fatalf("%d of %d files came without a size", len(names), files)
	}
	if n := l.figure("agl total"); n != 16 {
		t.Errorf("%d glimpses under way, want 16", n)
	}
	sizes := make([]uint64, files)
	var stats sync.WaitGroup
	for i := range files {
		stats.Go(func() {
			var a attr.Attr
			if err := l.c.Lookup(bg, &root, fid.Root, fmt.Sprint("f", i), &a); err != nil {
				t.Error(err)
			}
			sizes[i] = a.Size
		})
	}
	s.startOSS()
	stats.Wait()
	for i, n := range sizes {
		if n != uint64(1000+i) {
			t.Errorf("f%d has %d bytes", i, n)
		}
	}
	// Cleanups run in reverse: the OSS that was started last would go before who uses it.
	l.end()
	if err := w.close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestCloseEndsGlimpses: those that wait for an OST that is away keep nobody from leaving.
func TestCloseEndsGlimpses(t *testing.T) {
	s := newSystem(t)
	w, l := s.mount(false), s.lister()
	for i := range 40 {
		h := w.create(fmt.Sprint("f", i), syscall.O_RDWR)
		w.write(h, make([]byte, 10), 0)
		if err := h.Fsync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.stopOSS()
	if l.list(); l.figure("agl total") == 0 {
		t.Error("premise: no glimpse is under way")
	}
	over := make(chan error, 1)
	go func() { over <- l.c.Close(bg) }()
	select {
	case err := <-over:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("glimpses do not end with their client")
	}
	s.startOSS()
	if err := errors.Join(l.close(bg), w.close(bg)); err != nil {
		t.Error(err)
	}
}

// TestLliteParameters: read-ahead and the dirty cache are told of and set under Lustre's names.
func TestLliteParameters(t *testing.T) {
	s := newSystem(t)
	l := s.lister()
	set := func(name, value string) error {
		var err error
		if walk := l.reg.Walk("llite.fs-0."+name, func(e stats.Entry) error { err = e.Set(value); return nil }); walk != nil {
			t.Fatal(walk)
		}
		return err
	}
	expect := func(name, want string) {
		t.Helper()
		if got := l.text(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	expect("max_read_ahead_mb", "16")
	expect("max_read_ahead_per_file_mb", "4")
	expect("max_cached_mb", "users: 1\nmax_cached_mb: 64\nused_mb: 0\nunused_mb: 64\nmax_read_ahead_mb: 16\nused_read_ahead_mb: 0")
	for _, x := range []struct {
		name, value string
		ok          bool
	}{
		{"max_read_ahead_mb", "65", false}, {"max_read_ahead_mb", "-1", false}, {"max_read_ahead_mb", "many", false},
		{"max_read_ahead_per_file_mb", "17", false}, {"max_read_ahead_per_file_mb", "16", true}, {"max_read_ahead_mb", "8", true},
		{"max_cached_mb", "31", false}, {"max_cached_mb", "99999999", false}, {"max_cached_mb", "128", true},
		{"max_read_ahead_mb", "65", true}, {"statahead_max", "2049", false}, {"statahead_max", "-1", false}, {"statahead_max", "0", true},
	} {
		if err := set(x.name, x.value); (err == nil) != x.ok {
			t.Errorf("%s=%s: %v", x.name, x.value, err)
		}
	}
	expect("max_read_ahead_mb", "65")
	expect("max_read_ahead_per_file_mb", "8")
	expect("statahead_max", "0")
	if text := l.text("max_cached_mb"); !strings.Contains(text, "max_cached_mb: 128\n") {
		t.Errorf("after the change: %s", text)
	}
	if text := l.text("read_ahead_stats"); !strings.Contains(text, "hits ") || strings.HasSuffix(text, "\n") {
		t.Errorf("read_ahead_stats is %q", text)
	}
}

// TestLliteStats: what programs do in a mount is in its stats file.
func TestLliteStats(t *testing.T) {
	s := newSystem(t)
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	}
	dir, err := os.MkdirTemp("", "strake-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_FORCE)
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	reg := stats.NewRegistry()
	m, err := fs.New(t.Context(), fs.Options{
		Network: rpc.NewNetwork(), MGS: []string{s.mds.Config.Listen}, FSName: "strake", Timeout: 20 * time.Second,
		Cache: osc.NewCache(32 << 20), Log: slog.New(slog.DiscardHandler), Stats: reg,
		Kernel: fusefs.MountOptions{Dir: dir, AllowOther: true, Options: fusefs.Options{UserXattr: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	script := "mkdir d; dd if=/dev/zero of=d/f bs=4096 count=3 oflag=direct status=none; dd if=d/f of=/dev/null bs=4096 iflag=direct status=none; " +
		"truncate -s 100 d/f; chmod 600 d/f; ln d/f d/g; ln -s f d/s; readlink d/s >/dev/null; mv d/g d/h; ls -l d >/dev/null; " +
		"mkfifo d/p; stat -f d >/dev/null; sync d/f; rm d/h d/f d/s d/p; rmdir d"
	if out, err := run(t, 0, dir, script); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := unmount(t, m); err != nil {
		t.Error(err)
	}
	rows := map[string]stats.Row{}
	for _, r := range reg.Rows("llite.strake-0.stats", "").Read() {
		rows[r.Name] = r
	}
	for name, least := range map[string]int64{
		"mkdir": 1, "create": 1, "write": 3, "write_bytes": 3, "read": 3, "read_bytes": 3, "truncate": 1, "setattr": 1, "link": 1, "symlink": 1,
		"readlink": 1, "rename": 1, "readdir": 1, "mknod": 1, "statfs": 1, "fsync": 1, "unlink": 4, "rmdir": 1, "lookup": 1, "getattr": 1,
		"open": 1, "close": 2, "flush": 2,
	} {
		if r := rows[name]; r.Count < least {
			t.Errorf("%s has %d samples, want %d at least", name, r.Count, least)
		}
	}
	if r := rows["write_bytes"]; r.Sum != 3*4096 || r.Max != 4096 {
		t.Errorf("write_bytes: %v", r)
	}
	if r := rows["unlink"]; r.Count != 4 || r.Unit != stats.Microseconds {
		t.Errorf("unlink: %v", r)
	}
}
