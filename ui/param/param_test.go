package param

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tempFolder is a folder with a short path: a socket's has 107 bytes at most.
func tempFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "strake-param-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func registry() *stats.Registry {
	r := stats.NewRegistry()
	r.Counter("osc.strake-OST0000-osc.rpcs", "").Add(7)
	value := "64"
	var mu sync.Mutex
	r.Param("osc.strake-OST0000-osc.max_dirty_mb", "", func() string {
		mu.Lock()
		defer mu.Unlock()
		return value
	}, func(s string) error {
		if s == "" || len(s) > 3 {
			return errors.New("a number from 1 to 999 is wanted")
		}
		mu.Lock()
		defer mu.Unlock()
		value = s
		return nil
	})
	r.Text("osc.strake-OST0000-osc.import", "", func() string { return "a: 1\nb: 2 <&> \x1b" })
	return r
}

func serve(t *testing.T, o Options) *Server {
	t.Helper()
	if o.Registry == nil {
		o.Registry = registry()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Role == "" {
		o.Role = "oss"
	}
	o.FSName, o.Version = "strake", "test"
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func dial(t *testing.T, path string) *Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	p, err := Dial(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestConversation(t *testing.T) {
	kept := map[string]string{}
	s := serve(t, Options{Folders: []string{filepath.Join(tempFolder(t), "run")}, Role: "mds,oss",
		Permanent: func(_ context.Context, name, value string) error {
			if name == "bad" {
				return status.Errorf(status.NoSpace, "no room")
			}
			kept[name] = value
			return nil
		}})
	p := dial(t, s.Path())
	if want := fmt.Sprintf("mds+oss-%d.sock", os.Getpid()); filepath.Base(p.Path) != want {
		t.Errorf("socket %s, want %s", p.Path, want)
	}
	if p.Role != "mds,oss" || p.PID != os.Getpid() || p.FSName != "strake" || p.Version != "test" || !p.MGS {
		t.Errorf("%+v", p)
	}
	nodes, err := p.Get("osc.*.*", false)
	if err != nil || len(nodes) != 3 {
		t.Fatal(nodes, err)
	}
	for i, want := range []Node{
		{Name: "osc.strake-OST0000-osc.import", Text: "a: 1\nb: 2 <&> \x1b", HasText: true},
		{Name: "osc.strake-OST0000-osc.max_dirty_mb", Text: "64", HasText: true, Writable: true},
		{Name: "osc.strake-OST0000-osc.rpcs", Text: "7", HasText: true},
	} {
		if nodes[i] != want {
			t.Errorf("%+v, want %+v", nodes[i], want)
		}
	}
	if nodes, err = p.List("osc", true); err != nil || len(nodes) != 5 || !nodes[0].Folder || nodes[2].HasText {
		t.Error(nodes, err)
	}
	if nodes, err = p.Set("osc.*.max_dirty_mb", "32"); err != nil || len(nodes) != 1 || nodes[0].Err != nil {
		t.Error(nodes, err)
	}
	nodes, err = p.Set("osc.*.*", "12345")
	if err != nil || len(nodes) != 3 || status.Of(nodes[0].Err) != status.Access || status.Of(nodes[1].Err) != status.Invalid ||
		!strings.Contains(nodes[1].Err.Error(), "from 1 to 999") {
		t.Error(nodes, err)
	}
	if nodes, err = p.Set("osc.*", "1"); err != nil || len(nodes) != 0 {
		t.Errorf("a folder was set: %v %v", nodes, err)
	}
	if _, err = p.Get("osc.[", false); status.Of(err) != status.Invalid {
		t.Error(err)
	}
	if err := p.SetPermanent("osc/*/max_dirty_mb", "16"); err != nil || kept["osc.*.max_dirty_mb"] != "16" {
		t.Error(err, kept)
	}
	if err := p.SetPermanent("bad", "16"); status.Of(err) != status.NoSpace || !strings.Contains(err.Error(), "no room") {
		t.Error(err)
	}
	other := serve(t, Options{Folders: []string{filepath.Dir(s.Path())}})
	if err := dial(t, other.Path()).SetPermanent("a.b", "1"); status.Of(err) != status.WrongTarget {
		t.Error(err)
	}
}

// TestModes: the folder is 0755, the socket 0600, whatever the umask; nothing stays after Close.
func TestModes(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	dir := filepath.Join(tempFolder(t), "run")
	s := serve(t, Options{Folders: []string{dir}})
	for path, want := range map[string]os.FileMode{dir: os.ModeDir | 0o755, s.Path(): os.ModeSocket | 0o600} {
		if fi, err := os.Lstat(path); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, want %v (%v)", path, fi.Mode(), want, err)
		}
	}
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Error(names, err)
	}
}

// TestTwoOfOneName: two servers of a process have sockets of their own, and each is found.
func TestTwoOfOneName(t *testing.T) {
	dir := tempFolder(t)
	a, b := serve(t, Options{Folders: []string{dir}}), serve(t, Options{Folders: []string{dir}})
	if a.Path() == b.Path() {
		t.Fatal(a.Path())
	}
	if got := Sockets([]string{dir, dir, filepath.Join(dir, "absent")}); len(got) != 2 {
		t.Error(got)
	}
	dial(t, a.Path())
	dial(t, b.Path())
}

// abandoned leaves a socket that nobody listens on, as a process that is killed does.
func abandoned(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestStaleSocket: what a killed process left is removed, what a live one serves or may be making, and what is none of
// ours, stays.
func TestStaleSocket(t *testing.T) {
	dir := tempFolder(t)
	live := serve(t, Options{Folders: []string{dir}, Role: "mds"})
	child := exec.Command("true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	socket := func(role string, pid int) string { return filepath.Join(dir, fmt.Sprintf("%s-%d.sock", role, pid)) }
	old, file := socket("client", os.Getppid()), filepath.Join(dir, "notes.sock")
	leftovers := map[string]bool{ // path -> goes
		socket("oss", child.ProcessState.Pid()): true, socket("oss", os.Getpid()): true, old: true,
		filepath.Join(dir, "odd.sock"): true, socket("oss", os.Getppid()): false, filepath.Join(dir, "other"): false,
	}
	for path := range leftovers {
		abandoned(t, path)
	}
	hour := time.Now().Add(-time.Hour)
	if err := errors.Join(os.Chtimes(old, hour, hour), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	leftovers[file] = false
	again := serve(t, Options{Folders: []string{dir}})
	if again.Path() != socket("oss", os.Getpid()) {
		t.Errorf("%s: the socket of an earlier process of this number was not replaced", again.Path())
	}
	delete(leftovers, again.Path())
	for path, goes := range leftovers {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) != goes {
			t.Errorf("%s: %v, goes: %v", path, err, goes)
		}
	}
	dial(t, live.Path())
	dial(t, again.Path())
}

// TestSilentProcess: one that is stopped costs a moment, not for ever; and who asks can end the wait.
func TestSilentProcess(t *testing.T) {
	path := filepath.Join(tempFolder(t), "oss-1.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	began := time.Now()
	if _, err := Dial(t.Context(), path); status.Of(err) != status.TimedOut || Gone(err) || !strings.Contains(err.Error(), "does not answer") {
		t.Error(err)
	}
	if d := time.Since(began); d < greetTime || d > 3*greetTime {
		t.Errorf("waited %v", d)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dial(ctx, path); err == nil || time.Since(began) > 4*greetTime {
		t.Error(err)
	}
}

// TestFallback: a folder that cannot be used is passed over with a word; without any there is no server.
func TestFallback(t *testing.T) {
	base := tempFolder(t)
	open := filepath.Join(base, "open")
	if err := errors.Join(os.Mkdir(open, 0o777), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(base, link); err != nil {
		t.Fatal(err)
	}
	absent := filepath.Join(base, "absent", "run")
	var log bytes.Buffer
	s := serve(t, Options{Folders: []string{open, link, absent, filepath.Join(base, "good")}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if filepath.Dir(s.Path()) != filepath.Join(base, "good") {
		t.Error(s.Path())
	}
	for _, want := range []string{"not where it should be", open, link, absent} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q: %s", want, log.String())
		}
	}
	if _, err := Listen(Options{Folders: []string{open, absent}, Log: slog.New(slog.DiscardHandler)}); err == nil ||
		!strings.Contains(err.Error(), open) || !strings.Contains(err.Error(), absent) {
		t.Error(err)
	}
	if got := Sockets([]string{open, link}); got != nil {
		t.Errorf("sockets of folders that others may write to: %v", got)
	}
}

// TestWhoMayTalk holds the rule; as root it is tried with the kernel's word on a peer of another user.
func TestWhoMayTalk(t *testing.T) {
	for _, tt := range []struct {
		peer uint32
		own  int
		want bool
	}{{0, 0, true}, {0, 1000, true}, {1000, 1000, true}, {1000, 0, false}, {1001, 1000, false}, {1<<32 - 1, 0, false}} {
		if got := mayTalk(tt.peer, tt.own); got != tt.want {
			t.Errorf("mayTalk(%d, %d) = %v", tt.peer, tt.own, got)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("a peer of another user needs root")
	}
	s := serve(t, Options{Folders: []string{tempFolder(t)}})
	if err := errors.Join(os.Chmod(s.Path(), 0o666), os.Chmod(filepath.Dir(s.Path()), 0o755)); err != nil {
		t.Fatal(err)
	}
	answer := askAs(t, 65534, s.Path())
	if !strings.Contains(answer, "only root and uid 0") || strings.Contains(answer, "rpcs") {
		t.Errorf("uid 65534 got %q", answer)
	}
}

// rawDial is a peer that does as it likes. Its first line, the greeting, is read.
func rawDial(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestHostileInput: what is no request gets a reason and the end of the connection; the server goes on.
func TestHostileInput(t *testing.T) {
	s := serve(t, Options{Folders: []string{tempFolder(t)}})
	for name, tt := range map[string]struct{ in, want string }{
		"huge line":  {strings.Repeat("x", 1<<20), "more than 65536 bytes"},
		"garbage":    {"\x00\xff{]\n", "no request"},
		"deep":       {strings.Repeat("[", 30000) + "\n", "no request"},
		"version":    {`{"v":9,"op":"get","pattern":"*"}` + "\n", "version 9"},
		"operation":  {`{"v":1,"op":"rm","pattern":"*"}` + "\n", "unknown operation"},
		"no op":      {"{}\n", "version 0"},
		"other type": {`{"v":1,"op":"get","pattern":7}` + "\n", "no request"},
	} {
		c := rawDial(t, s.Path())
		// The server may close while a huge line is still being sent.
		if _, err := io.WriteString(c, tt.in); err != nil && name != "huge line" {
			t.Errorf("%s: %v", name, err)
		}
		dec := json.NewDecoder(c)
		var g greeting
		var a answer
		if err := dec.Decode(&g); err != nil || g.Strake != 1 {
			t.Errorf("%s: greeting %+v, %v", name, g, err)
		}
		if err := dec.Decode(&a); err != nil || !a.End || !strings.Contains(a.Error, tt.want) {
			t.Errorf("%s: answer %+v, %v", name, a, err)
		}
		if _, err := dec.Token(); err == nil {
			t.Errorf("%s: the connection goes on", name)
		}
	}
	// A pattern that would be costly is refused, and the conversation goes on.
	p := dial(t, s.Path())
	if _, err := p.Get(strings.Repeat("{a,b}", 60), false); status.Of(err) != status.Invalid {
		t.Error(err)
	}
	if nodes, err := p.Get(strings.Repeat("*", 1000), false); err != nil || len(nodes) != 1 {
		t.Error(nodes, err)
	}
}

// TestManyConnections: more peers than are served at once wait, and all are served when the idle ones leave.
func TestManyConnections(t *testing.T) {
	s := serve(t, Options{Folders: []string{tempFolder(t)}})
	var idle []*net.UnixConn
	for range connsMax {
		c := rawDial(t, s.Path())
		if _, err := c.Read(make([]byte, 1)); err != nil { // it is being served
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	c := rawDial(t, s.Path())
	if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("more than %d are served: %v", connsMax, err)
	}
	s.mu.Lock()
	if n := len(s.conns); n > connsMax {
		t.Errorf("%d connections", n)
	}
	s.mu.Unlock()
	for _, c := range idle {
		c.Close()
	}
	c.Close()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			p, err := Dial(ctx, s.Path())
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			if nodes, err := p.Get("osc.*.rpcs", false); err != nil || len(nodes) != 1 {
				t.Error(nodes, err)
			}
		})
	}
	wg.Wait()
}

// TestCloseCutsOff: a stop does not wait for peers that are connected.
func TestCloseCutsOff(t *testing.T) {
	s := serve(t, Options{Folders: []string{tempFolder(t)}})
	p := dial(t, s.Path())
	began := time.Now()
	if err := s.Close(context.Background()); err != nil || time.Since(began) > idleTime/2 {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	if _, err := p.Get("*", false); err == nil {
		t.Error("a closed server answers")
	}
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestCloseIsBounded: a parameter that hangs does not keep the process from stopping.
func TestCloseIsBounded(t *testing.T) {
	r := registry()
	reading, release := make(chan struct{}), make(chan struct{})
	r.Text("a.b.hangs", "", func() string { close(reading); <-release; return "" })
	s := serve(t, Options{Folders: []string{tempFolder(t)}, Registry: r})
	p := dial(t, s.Path())
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _ = p.Get("a.b.hangs", false) // it is cut off
	}()
	<-reading
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, err := os.Lstat(s.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	close(release)
	<-asked
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"v":1,"op":"get","pattern":"osc.*"}` + "\n"))
	f.Add([]byte(`{"v":1,"op":"set","pattern":"**","value":"1"}` + "\n{}\n"))
	dir, err := os.MkdirTemp("", "strake-param-")
	if err != nil {
		f.Fatal(err)
	}
	s, err := Listen(Options{Registry: registry(), Folders: []string{dir}, Log: slog.New(slog.DiscardHandler), Role: "fuzz"})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := errors.Join(s.Close(context.Background()), os.RemoveAll(dir)); err != nil {
			f.Error(err)
		}
	})
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.Path(), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write(in)
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		// Every line that comes back is one of the protocol.
		dec := json.NewDecoder(c)
		dec.DisallowUnknownFields()
		var g greeting
		if err := dec.Decode(&g); err != nil {
			t.Fatal(err)
		}
		for {
			var a answer
			if err := dec.Decode(&a); err != nil {
				// A peer that is cut off with unread input gets a reset.
				if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
					t.Fatal(err)
				}
				return
			}
		}
	})
}
