package process_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/strakefs/strake/server/config"
	"github.com/strakefs/strake/ui/lctl"
	"github.com/strakefs/strake/ui/param"
	"github.com/strakefs/strake/ui/process"
)

// freePort is an address that a server can listen on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// pair is an MDS with the MGS and an OSS, two processes but for their memory.
type pair struct {
	t        *testing.T
	mdsC     config.Config
	ossC     config.Config
	mds, oss *process.Process
}

func newPair(t *testing.T) *pair {
	base, address := t.TempDir(), freePort(t)
	return &pair{
		t: t,
		mdsC: config.Config{
			Roles: config.RoleMDS, FSName: "strake", HostMGS: true, MGSTimeout: 20 * time.Second, Listen: address,
			Targets: []config.Target{{Kind: config.MDT, Dir: filepath.Join(base, "mdt0")}},
		},
		ossC: config.Config{
			Roles: config.RoleOSS, FSName: "strake", MGS: []string{address}, MGSTimeout: 20 * time.Second, Listen: "127.0.0.1:0",
			Targets: []config.Target{{Kind: config.OST, Dir: filepath.Join(base, "ost0")}},
		},
	}
}

func (p *pair) start() {
	p.t.Helper()
	var err error
	if p.mds, err = process.Start(p.t.Context(), p.mdsC, "test", slog.New(slog.DiscardHandler)); err != nil {
		p.t.Fatal(err)
	}
	if p.oss, err = process.Start(p.t.Context(), p.ossC, "test", slog.New(slog.DiscardHandler)); err != nil {
		closed(p.t, p.mds)
		p.t.Fatal(err)
	}
}

func (p *pair) stop() {
	p.t.Helper()
	closed(p.t, p.oss)
	closed(p.t, p.mds)
}

// lctl asks both processes.
func (p *pair) lctl(args ...string) (string, error) {
	p.t.Helper()
	c := lctl.NewCommand("test")
	var out, errs bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&errs)
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(append([]string{"--sock", p.mds.ParamSocket(), "--sock", p.oss.ParamSocket()}, args...))
	if err := c.Execute(); err != nil {
		return out.String(), errors.Join(err, errors.New(errs.String()))
	}
	return out.String(), nil
}

func (p *pair) must(args ...string) string {
	p.t.Helper()
	out, err := p.lctl(args...)
	if err != nil {
		p.t.Fatalf("lctl %q: %v", args, err)
	}
	return out
}

// enter registers a parameter with a process, as a part that starts does, and returns the values that it gets.
func enter(p *process.Process, path string) <-chan string {
	got := make(chan string, 16)
	p.Registry().Param(path, "For the test.", func() string { return "" }, func(s string) error { got <- s; return nil })
	return got
}

func await(t *testing.T, got <-chan string, want string) {
	t.Helper()
	select {
	case s := <-got:
		if s != want {
			t.Fatalf("set to %q, want %q", s, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("%q has not come", want)
	}
}

// TestPermanentParameters: what is set at the MGS reaches every process that runs, and those that start again, with and
// without the MGS, until it is removed.
func TestPermanentParameters(t *testing.T) {
	p := newPair(t)
	p.start()
	mds, oss := enter(p.mds, "test.x.value"), enter(p.oss, "test.x.value")
	if out := p.must("get_param", "mgs.MGS.live.params"); out != "mgs.MGS.live.params=\n" {
		t.Error(out)
	}
	p.must("set_param", "-P", "test.*.value=5")
	await(t, mds, "5")
	await(t, oss, "5")
	if out := p.must("get_param", "-n", "mgs.MGS.live.params"); out != "test.*.value=5\n" {
		t.Error(out)
	}
	p.stop()

	p.start()
	await(t, enter(p.mds, "test.x.value"), "5")
	await(t, enter(p.oss, "test.x.value"), "5")
	p.stop()

	// An OSS that starts while the MGS is away goes by what it was told last.
	var err error
	if p.oss, err = process.Start(t.Context(), p.ossC, "test", slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	oss = enter(p.oss, "test.x.value")
	await(t, oss, "5")
	if p.mds, err = process.Start(t.Context(), p.mdsC, "test", slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	p.must("set_param", "-P", "test.x.value=6")
	await(t, oss, "6")
	p.must("set_param", "-P", "-d", "test.x.value")
	await(t, oss, "5") // the pattern is still there
	p.must("set_param", "-P", "-d", "test.*.value")
	p.stop()

	p.start()
	defer p.stop()
	p.must("set_param", "-P", "test.y.value=1") // a configuration after the one without
	oss = enter(p.oss, "test.y.value")
	await(t, oss, "1")
	select {
	case s := <-enter(p.oss, "test.x.value"):
		t.Errorf("a removed value is set: %q", s)
	default:
	}
}

// refusals is a log that makes a permanent value that a parameter does not take a failure.
type refusals struct{ t *testing.T }

func (r *refusals) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("permanent parameter refused")) {
		r.t.Errorf("a value that was shown is not taken: %s", line)
	}
	return len(line), nil
}

// TestEveryParameterCanBePermanent sets every parameter that can be set to what it is, for good, and starts again: a part
// that registers before it is ready, or with a lock held, hangs or panics here. Each is in docs/parameters.md.
func TestEveryParameterCanBePermanent(t *testing.T) {
	base, dir := t.TempDir(), mountPoint(t)
	start := func() *process.Process {
		t.Helper()
		log := &refusals{t: t}
		p, err := process.Start(t.Context(), all(base, dir), "test", slog.New(slog.NewTextHandler(log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := start()
	h := &pair{t: t, mds: p, oss: p}
	docs, err := os.ReadFile("../../docs/parameters.md")
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for line := range strings.Lines(h.must("get_param", "-F", "**")) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "==")
		if !ok || value == "" {
			continue
		}
		if last := name[max(strings.LastIndexByte(name, '.'), 0):]; !bytes.Contains(docs, []byte(last+"`")) {
			t.Errorf("%s can be set and is not in docs/parameters.md", name)
		}
		e := strings.Split(name, ".")
		if len(e) > 2 {
			e[len(e)-2] = "*" // what is true of one target is true of all; the MGS keeps 200 at most
		}
		if pattern := strings.Join(e, "."); !set[pattern] {
			set[pattern] = true
			h.must("set_param", "-P", pattern+"="+value)
		}
	}
	closed(t, p)
	if len(set) < 10 {
		t.Errorf("only %d parameters can be set: %v", len(set), set)
	}
	p = start()
	defer closed(t, p)
	h.mds, h.oss = p, p
	for pattern := range set {
		h.must("get_param", pattern)
	}
}

// TestParamSocket: two processes have a socket each, their answers are one, and the sockets go when they do.
func TestParamSocket(t *testing.T) {
	p := newPair(t)
	p.start()
	sockets := []string{p.mds.ParamSocket(), p.oss.ParamSocket()}
	for i, role := range []string{"mds", "oss"} {
		if want := fmt.Sprintf("%s-%d", role, os.Getpid()); !strings.HasPrefix(filepath.Base(sockets[i]), want) {
			t.Errorf("%s, want %s...", sockets[i], want)
		}
		if fi, err := os.Stat(sockets[i]); err != nil || fi.Mode().Perm() != 0o600 {
			t.Error(fi, err)
		}
		if !slices.Contains(param.Sockets(param.Folders()), sockets[i]) {
			t.Errorf("%s is not found", sockets[i])
		}
	}
	out := p.must("list_param", "mdt.*", "obdfilter.*", "osd-strake.*", "mgc.*")
	if out != "mdt.strake-MDT0000\nobdfilter.strake-OST0000\nosd-strake.strake-MDT0000\nosd-strake.strake-OST0000\nmgc.MGS\n" {
		t.Error(out)
	}
	out = p.must("dl")
	for _, want := range []string{" UP mgs MGS ", " UP mdt strake-MDT0000 ", " UP obdfilter strake-OST0000 ", " UP osp strake-OST0000-osc-MDT0000 "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if out = p.must("get_param", "-n", "obdfilter.*.stats"); !strings.Contains(out, "snapshot_time ") {
		t.Error(out)
	}
	p.stop()
	for _, s := range sockets {
		if _, err := os.Lstat(s); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s stays: %v", s, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := param.Dial(ctx, sockets[0]); !param.Gone(err) {
		t.Error(err)
	}
}
