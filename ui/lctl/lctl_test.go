package lctl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"gopkg.in/yaml.v3"

	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/ui/lctl"
	"github.com/strakefs/strake/ui/param"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cell is a parameter that holds a number from 1 to 999.
type cell struct {
	mu    sync.Mutex
	value string // guarded by mu
}

func (c *cell) get() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value
}

func (c *cell) set(s string) error {
	if s == "" || len(s) > 3 || strings.Trim(s, "0123456789") != "" {
		return fmt.Errorf("%q is no number from 1 to 999", s)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value = s
	return nil
}

// fakeHost is the parameter sockets of a host's processes.
type fakeHost struct {
	t    *testing.T
	dir  string
	kept map[string]string
}

func newHost(t *testing.T) *fakeHost {
	t.Helper()
	dir, err := os.MkdirTemp("", "strake-lctl-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &fakeHost{t: t, dir: dir, kept: map[string]string{}}
}

// process starts a process's socket and returns its tree.
func (h *fakeHost) process(role, fsname string, mgs bool) (*stats.Registry, *param.Server) {
	h.t.Helper()
	o := param.Options{Registry: stats.NewRegistry(), Role: role, FSName: fsname, Version: "test", Folders: []string{h.dir}, Log: slog.New(slog.DiscardHandler)}
	if mgs {
		o.Permanent = func(_ context.Context, name, value string) error {
			if strings.Contains(name, "[") {
				return status.Errorf(status.Invalid, "bad parameter pattern")
			}
			h.kept[name] = value
			return nil
		}
	}
	s, err := param.Listen(o)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			h.t.Error(err)
		}
	})
	return o.Registry, s
}

// call runs lctl on the host and returns its output, error output and exit status.
func (h *fakeHost) call(args ...string) (stdout, stderr string, code int) {
	return h.callAt([]string{"--sock", h.dir}, args...)
}

func (h *fakeHost) callAt(where []string, args ...string) (stdout, stderr string, code int) {
	h.t.Helper()
	c := lctl.NewCommand("v1.2.3")
	var out, err bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&err)
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(append(where, args...))
	if failed := c.Execute(); failed != nil {
		var coded interface{ ExitCode() int }
		if !errors.As(failed, &coded) || failed.Error() != "" {
			h.t.Fatalf("lctl %q: %v", args, failed)
		}
		code = coded.ExitCode()
	}
	return out.String(), err.String(), code
}

// expect runs lctl and compares all three.
func (h *fakeHost) expect(code int, stdout, stderr string, args ...string) {
	h.t.Helper()
	out, err, got := h.call(args...)
	if out != stdout || err != stderr || got != code {
		h.t.Errorf("lctl %q: status %d, want %d\nstdout:\n%s\nwant:\n%s\nstderr:\n%s\nwant:\n%s", args, got, code, out, stdout, err, stderr)
	}
}

// twoProcesses is a host with a server and a client that share some names.
func twoProcesses(t *testing.T) (h *fakeHost, max *cell) {
	h = newHost(t)
	mds, _ := h.process("mds", "strake", true)
	client, _ := h.process("client", "strake", false)
	max = &cell{value: "64"}
	client.Param("osc.strake-OST0001-osc.max_dirty_mb", "", max.get, max.set)
	client.Param("osc.strake-OST0000-osc.max_dirty_mb", "", max.get, max.set)
	client.Counter("osc.strake-OST0000-osc.rpcs", "").Add(7)
	client.Text("osc.strake-OST0000-osc.import", "", func() string { return "import:\n    name: x\x1b[2J" })
	client.Text("llite.strake-0.empty", "", func() string { return "" })
	mds.Counter("mdt.strake-MDT0000.num_exports", "").Add(1)
	mds.Gauge("process.goroutines", "").Set(100)
	client.Gauge("process.goroutines", "").Set(9)
	mds.Gauge("process.max_procs", "").Set(2)
	client.Gauge("process.max_procs", "").Set(2)
	return h, max
}

func TestGetParam(t *testing.T) {
	h, _ := twoProcesses(t)
	h.expect(0, "osc.strake-OST0000-osc.max_dirty_mb=64\nosc.strake-OST0001-osc.max_dirty_mb=64\n", "", "get_param", "osc.*.max_dirty_mb")
	h.expect(0, "64\n64\n", "", "get_param", "-n", "osc/*/max_dirty_mb")
	h.expect(0, "osc.strake-OST0000-osc.max_dirty_mb\n", "", "get_param", "-N", "osc.*0000*.max_*")
	h.expect(0, "osc.strake-OST0000-osc.max_dirty_mb==64\n", "", "get_param", "-F", "osc.*0000*.max_*")
	h.expect(0, "osc.strake-OST0000-osc.import=\nimport:\n    name: x?[2J\n", "", "get_param", "osc.*.import")
	h.expect(0, "osc.strake-OST0000-osc.import=import:\nosc.strake-OST0000-osc.import=    name: x?[2J\n", "", "get_param", "-H", "osc.*.import")
	h.expect(0, "llite.strake-0.empty=\n", "", "get_param", "llite.*.empty")
	// A folder has no value; below it there are some.
	h.expect(0, "", "", "get_param", "mdt.*")
	h.expect(0, "mdt.strake-MDT0000.num_exports=1\n", "", "get_param", "-R", "mdt")
	// Two processes, one name: the same value once, different ones both, by size.
	h.expect(0, "process.goroutines=9\nprocess.goroutines=100\nprocess.max_procs=2\n", "", "get_param", "process.*")
	// Patterns in the order in which they were given; an absent one does not hide the others.
	h.expect(2, "mdt.strake-MDT0000.num_exports=1\nosc.strake-OST0000-osc.rpcs=7\n",
		"error: get_param: param_path 'x': No such file or directory\n", "get_param", "mdt.*.num_exports", "x", "osc.*.rpcs")
	h.expect(22, "", "error: get_param: bad parameter pattern: \"osc.[\"\n", "get_param", "osc.[")
	h.expect(22, "", "error: get_param: no pattern given; see lctl get_param --help\n", "get_param")
}

func TestQuotingHint(t *testing.T) {
	h, _ := twoProcesses(t)
	t.Chdir(t.TempDir())
	if err := os.WriteFile("notes", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := h.call("get_param", "notes")
	if code != 2 || !strings.Contains(stderr, "\nhint: 'notes' is a file here; quote patterns") {
		t.Errorf("%d %s", code, stderr)
	}
}

func TestGetParamYAML(t *testing.T) {
	h, _ := twoProcesses(t)
	out, stderr, code := h.call("get_param", "-y", "osc.*.*", "process.*", "llite.*.*")
	if code != 0 || stderr != "" {
		t.Fatal(code, stderr)
	}
	var got map[string]any
	if err := yaml.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	want := map[string]any{
		"osc.strake-OST0000-osc.max_dirty_mb": 64, "osc.strake-OST0001-osc.max_dirty_mb": 64, "osc.strake-OST0000-osc.rpcs": 7,
		"osc.strake-OST0000-osc.import": "import:\n    name: x?[2J", "process.goroutines": []any{9, 100}, "process.max_procs": 2,
		"llite.strake-0.empty": "",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v\nwant\n%v", got, want)
	}
}

func TestListParam(t *testing.T) {
	h, _ := twoProcesses(t)
	h.expect(0, "llite\nmdt\nosc\nprocess\n", "", "list_param", "*")
	h.expect(0, "osc.strake-OST0000-osc.import\nosc.strake-OST0000-osc.max_dirty_mb=\nosc.strake-OST0000-osc.rpcs\n", "", "list_param", "-F", "osc.*0000*.*")
	h.expect(0, "mdt/\nmdt.strake-MDT0000/\nmdt.strake-MDT0000.num_exports\n", "", "list_param", "-RF", "mdt")
	h.expect(0, "mdt\nmdt.strake-MDT0000\n", "", "list_param", "-RD", "mdt")
	h.expect(2, "process.max_procs\n", "error: list_param: param_path 'ost.*': No such file or directory\n", "list_param", "ost.*", "process.max*")
}

func TestSetParam(t *testing.T) {
	h, max := twoProcesses(t)
	h.expect(0, "osc.strake-OST0000-osc.max_dirty_mb=32\nosc.strake-OST0001-osc.max_dirty_mb=32\n", "", "set_param", "osc.*.max_dirty_mb=32")
	h.expect(0, "", "", "set_param", "-n", "osc.*0000*.max_dirty_mb=33")
	if max.get() != "33" {
		t.Error(max.get())
	}
	// Several at once: what can be set is, and the first error is the status.
	h.expect(13, "osc.strake-OST0001-osc.max_dirty_mb=5\n",
		"error: set_param: setting mdt.strake-MDT0000.num_exports=4: Permission denied: parameter is read-only\n"+
			"error: set_param: param_path 'osc.*.x': No such file or directory\n",
		"set_param", "mdt.*.num_exports=4", "osc.*1*.max_dirty_mb=5", "osc.*.x=1")
	h.expect(22, "", "error: set_param: setting osc.strake-OST0000-osc.max_dirty_mb=4096: Invalid argument: \"4096\" is no number from 1 to 999\n",
		"set_param", "osc.*OST0000-osc.max_dirty_mb=4096")
}

func TestSetParamUsage(t *testing.T) {
	h, max := twoProcesses(t)
	for _, args := range [][]string{
		{}, {"osc.*.max_dirty_mb"}, {"=5"}, {"-d", "osc.*.max_dirty_mb"}, {"-P", "a.b"}, {"-P", "a.b="}, {"-P", "-d", "a.b=1"},
		{"osc.*.max_dirty_mb=1", "oops"},
	} {
		out, stderr, code := h.call(append([]string{"set_param"}, args...)...)
		if code != 22 || out != "" || !strings.HasPrefix(stderr, "error: set_param: ") {
			t.Errorf("%q: %d %q %q", args, code, out, stderr)
		}
	}
	if max.get() != "64" || len(h.kept) != 0 {
		t.Error("a wrong command line has set something", max.get(), h.kept)
	}
}

func TestSetParamPermanent(t *testing.T) {
	h, _ := twoProcesses(t)
	h.expect(0, "", "", "set_param", "-P", "osc/*/max_dirty_mb=16")
	h.expect(0, "", "note: 'osc.*.absent' is kept, but no process of this host has such a parameter that can be set\n", "set_param", "-P", "osc.*.absent=1")
	if h.kept["osc.*.max_dirty_mb"] != "16" || h.kept["osc.*.absent"] != "1" {
		t.Error(h.kept)
	}
	h.expect(0, "", "", "set_param", "-P", "-d", "osc.*.max_dirty_mb")
	if h.kept["osc.*.max_dirty_mb"] != "" {
		t.Error(h.kept)
	}
	h.expect(22, "", "error: set_param: param_path 'osc.[': bad parameter pattern\n", "set_param", "-P", "osc.[=1")
	h.process("mds", "other", true)
	_, stderr, code := h.call("set_param", "-P", "a.b=1")
	if code != 22 || !strings.Contains(stderr, "choose one with --fsname") {
		t.Error(code, stderr)
	}
	if _, stderr, code = h.call("--fsname", "other", "set_param", "-P", "a.b=7"); code != 0 || h.kept["a.b"] != "7" {
		t.Error(code, stderr)
	}
}

func TestNarrowing(t *testing.T) {
	h, _ := twoProcesses(t)
	other, s := h.process("oss", "scratch", false)
	other.Gauge("process.goroutines", "").Set(50)
	h.expect(0, "process.goroutines=9\nprocess.goroutines=50\nprocess.goroutines=100\n", "", "get_param", "process.goroutines")
	h.expect(0, "process.goroutines=50\n", "", "--fsname", "scratch", "get_param", "process.goroutines")
	h.expect(6, "", "error: get_param: no process of this host belongs to file system \"none\"\n", "--fsname", "none", "get_param", "x")
	if out, _, code := h.callAt([]string{"--sock", s.Path()}, "get_param", "process.goroutines"); code != 0 || out != "process.goroutines=50\n" {
		t.Error(code, out)
	}
	// A socket that is named twice, once by its folder, is asked once.
	if out, stderr, code := h.call("--sock", s.Path(), "--sock", s.Path(), "set_param", "process.goroutines=1"); out != "" || code != 13 ||
		strings.Count(stderr, "\n") != 1 {
		t.Error(code, out, stderr)
	}
	if out, _, code := h.call("--sock", s.Path(), "dl"); code != 0 || strings.Count(out, " mdt ") != 1 {
		t.Error(code, out)
	}
	_, stderr, code := h.callAt([]string{"--sock", filepath.Join(h.dir, "absent.sock")}, "get_param", "x")
	if code != 2 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "absent.sock") {
		t.Error(code, stderr)
	}
	_, stderr, code = h.callAt([]string{"--sock", h.dir}, "set_param", "-P", "x.y=1", "--fsname", "scratch")
	if code != 6 || !strings.Contains(stderr, "on the MGS's node") {
		t.Error(code, stderr)
	}
}

// TestOtherProcesses: the socket of a dead process is passed over, unless the user named it; one that says something else
// is reported. The answers of the good ones are shown all the same.
func TestOtherProcesses(t *testing.T) {
	h, _ := twoProcesses(t)
	path := filepath.Join(h.dir, "oss-1.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	h.expect(0, "mdt.strake-MDT0000.num_exports=1\n", "", "get_param", "mdt.*.*")
	out, stderr, code := h.call("--sock", path, "get_param", "mdt.*.*")
	if code != 111 || out != "mdt.strake-MDT0000.num_exports=1\n" || !strings.Contains(stderr, path) || !strings.Contains(stderr, "connection refused") {
		t.Error(code, out, stderr)
	}
	odd, err := net.Listen("unix", filepath.Join(h.dir, "odd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer odd.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := odd.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write([]byte("220 smtp\x1b[2J\n"))
		_ = c.Close()
	}()
	out, stderr, code = h.call("get_param", "mdt.*.*")
	if code == 0 || out != "mdt.strake-MDT0000.num_exports=1\n" || !strings.Contains(stderr, "odd.sock") || strings.Contains(stderr, "\x1b") {
		t.Error(code, out, stderr)
	}
	<-served
}

// TestStoppedProcess: one that does not answer is reported, and the others are asked as ever.
func TestStoppedProcess(t *testing.T) {
	h, max := twoProcesses(t)
	path := filepath.Join(h.dir, "client-1.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h.expect(110, "osc.strake-OST0000-osc.max_dirty_mb=9\nosc.strake-OST0001-osc.max_dirty_mb=9\n",
		"error: set_param: "+path+": the process does not answer: it is stopped, or hangs\n"+
			"error: set_param: param_path 'absent': No such file or directory\n",
		"set_param", "osc.*.max_dirty_mb=9", "absent=1")
	if max.get() != "9" {
		t.Error(max.get())
	}
}

func TestDeviceList(t *testing.T) {
	h := newHost(t)
	oss, _ := h.process("oss", "strake", false)
	client, _ := h.process("client", "strake", false)
	oss.Gauge("obdfilter.strake-OST0000.num_exports", "").Set(2)
	oss.Gauge("obdfilter.strake-OST0000.stats.errors", "").Set(2)
	oss.Text("mgc.MGS.state", "", func() string { return "FULL" })
	client.Text("mgc.MGS.state", "", func() string { return "FULL" })
	client.Text("osc.strake-OST0000-osc.state", "", func() string { return "deactivated" })
	for _, verb := range []string{"device_list", "dl"} {
		h.expect(0, "  0 UP mgc MGS MGS_UUID 1\n  1 UP mgc MGS MGS_UUID 1\n"+
			"  2 UP obdfilter strake-OST0000 strake-OST0000_UUID 3\n  3 IN osc strake-OST0000-osc strake-OST0000-osc_UUID 1\n", "", verb)
	}
}

func TestVersion(t *testing.T) {
	h := newHost(t)
	h.expect(0, "lctl v1.2.3\n", "", "--version")
	h.expect(0, "strake version: v1.2.3\n", "", "lustre_build_version")
	h.expect(6, "", "error: get_param: no strake process runs on this host: start one, or name its socket with --sock\n", "get_param", "x")
}
