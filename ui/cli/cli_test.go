package cli_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/server/config"
	"github.com/strakefs/strake/ui/cli"
)

// fakeNode is a node without a file system behind it.
type fakeNode struct {
	ended chan error
	close func(ctx context.Context) error
}

func (n *fakeNode) Wait() error                     { return <-n.ended }
func (n *fakeNode) Close(ctx context.Context) error { return n.close(ctx) }

// result is what a run of the command line left behind.
type result struct {
	status         int
	stdout, stderr string
	cfg            config.Config
}

// call runs a command line with a node that start makes.
func call(environ []string, start func(ctx context.Context, log *slog.Logger) (cli.Node, error), args ...string) result {
	var stdout, stderr lockedBuffer
	var r result
	r.status = cli.Main(cli.Deps{
		Args: args, Environ: environ, Stdout: &stdout, Stderr: &stderr, Version: "v1.2.3",
		Start: func(ctx context.Context, cfg config.Config, log *slog.Logger) (cli.Node, error) {
			r.cfg = cfg
			return start(ctx, log)
		},
		Tools: []*cobra.Command{newTool("lfs"), newTool("bench")},
	})
	r.stdout, r.stderr = stdout.String(), stderr.String()
	return r
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// coded is an error with an exit status of its own.
type coded struct{}

func (coded) Error() string { return "no such file" }
func (coded) ExitCode() int { return 22 }

func newTool(name string) *cobra.Command {
	tool := &cobra.Command{Use: name}
	tool.AddCommand(&cobra.Command{Use: "say WORD", Args: cobra.ExactArgs(1), RunE: func(c *cobra.Command, a []string) error {
		if a[0] == "fail" {
			return coded{}
		}
		c.Println(name, "says", a[0])
		return nil
	}})
	return tool
}

// never is a start that must not happen.
func never(t *testing.T) func(context.Context, *slog.Logger) (cli.Node, error) {
	return func(context.Context, *slog.Logger) (cli.Node, error) {
		t.Error("a node was started")
		return nil, errors.New("started")
	}
}

func TestCommandLine(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	for _, tc := range []struct {
		name   string
		args   []string
		env    []string
		status int
		stdout string
		stderr string
	}{
		{name: "version", args: []string{"strake", "version"}, stdout: "strake v1.2.3 go"},
		{name: "version flag", args: []string{"strake", "--version"}, stdout: "v1.2.3"},
		{name: "help", args: []string{"strake", "--help"}, stdout: "--mgs-timeout DURATION"},
		{name: "no role", args: []string{"strake", "--config=none"}, status: 2, stderr: "strake: no role"},
		{name: "unknown flag", args: []string{"strake", "--rolle=all"}, status: 2, stderr: "strake: unknown flag: --rolle"},
		{name: "unknown command", args: []string{"strake", "mkfs"}, status: 2, stderr: `strake: unknown command "mkfs"`},
		{name: "bad value", args: []string{"strake", "--role=all", "--data=d", "--fsname=too.bad"}, status: 2,
			stderr: `strake: --fsname: file system name "too.bad"`},
		{name: "bad option", args: []string{"strake", "--role=all", "--data=d", "--mount=m", "-o", "ro,umsk=022"}, status: 2,
			stderr: `strake: -o: mount option "umsk" is unknown`},
		{name: "bad env", args: []string{"strake", "--role=all", "--data=d"}, env: []string{"STRAKE_FOO=1"}, status: 2,
			stderr: "strake: STRAKE_FOO: unknown environment variable"},
		{name: "missing file", args: []string{"strake", "--role=all", "--data=d", "--config", missing}, status: 1,
			stderr: "strake: configuration file: open " + missing},
		{name: "tool", args: []string{"/usr/bin/strake", "lfs", "say", "hi"}, stdout: "lfs says hi\n"},
		{name: "link", args: []string{"/usr/bin/lfs", "say", "hi"}, stdout: "lfs says hi\n"},
		{name: "link fails", args: []string{"lfs", "say", "fail"}, status: 22, stderr: "lfs: no such file\n"},
		{name: "link unknown", args: []string{"lfs", "shout"}, status: 2, stderr: `lfs: unknown command "shout"`},
		{name: "link without tool", args: []string{"lctl", "dl"}, status: 2, stderr: "lctl: this binary has no tool"},
		{name: "helper without words", args: []string{"mount.strake", "-o", "ro"}, status: 2, stderr: "mount.strake: usage:"},
		{name: "helper spec", args: []string{"mount.strake", "mds1", "/mnt"}, status: 2, stderr: "names no file system"},
		{name: "helper option", args: []string{"mount.strake", "127.0.0.1:/fs", "/mnt", "-o", "bogus"}, status: 2,
			stderr: `mount.strake: -o: mount option "bogus" is unknown`},
		{name: "helper address", args: []string{"mount.strake", "10.0.0.1:/fs", "/mnt", "-o", "rw"}, status: 2,
			stderr: "--insecure=any"},
		{name: "helper fake", args: []string{"mount.strake", "10.0.0.1,10.0.0.2:99:/fs/home", "/mnt", "-fv", "-o",
			"rw,_netdev,insecure=any,mgs-timeout=5s,umask=022"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := call(tc.env, never(t), tc.args...)
			if r.status != tc.status || !strings.Contains(r.stdout+" ", tc.stdout) || !strings.Contains(r.stderr, tc.stderr) {
				t.Errorf("status %d, stdout %q, stderr %q; want %d, %q, %q", r.status, r.stdout, r.stderr,
					tc.status, tc.stdout, tc.stderr)
			}
			if tc.status != 0 && strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("stderr is not one line: %q", r.stderr)
			}
		})
	}
}

// TestSourcesInOrder holds that flags win over the environment and the environment over the file.
func TestSourcesInOrder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "strake.yaml")
	text := "role: mds\nfsname: file\nlog-level: error\ndata: /file\nmgs-timeout: 1s\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := func(context.Context, *slog.Logger) (cli.Node, error) { return nil, errors.New("enough") }
	r := call([]string{"STRAKE_CONFIG=" + file, "STRAKE_FSNAME=env", "STRAKE_LOG_LEVEL=warn"}, stop, "strake",
		"--log-level=info", "--listen=127.0.0.1:0", "--http=none")
	if r.cfg.FSName != "env" || r.cfg.LogLevel != slog.LevelInfo || r.cfg.MGSTimeout.Seconds() != 1 ||
		r.cfg.Targets[0].Dir != "/file" {
		t.Errorf("%+v", r.cfg)
	}
}

// TestFailedStartIsOneLine holds that the reason is all that stderr carries, whatever was logged on the way.
func TestFailedStartIsOneLine(t *testing.T) {
	start := func(_ context.Context, log *slog.Logger) (cli.Node, error) {
		log.Info("on the way")
		return nil, errors.New("data folder /d: read-only file system\nremount it")
	}
	r := call(nil, start, "strake", "--role=mds", "--data=/d", "--listen=127.0.0.1:0", "--http=none", "--config=none")
	want := "strake: cannot start: data folder /d: read-only file system remount it\n"
	if r.status != 1 || r.stderr != want {
		t.Errorf("status %d, stderr %q", r.status, r.stderr)
	}
}

// run starts a node whose Start calls up once it runs, and returns the result of the run.
func run(t *testing.T, node *fakeNode, up func()) result {
	t.Helper()
	start := func(_ context.Context, log *slog.Logger) (cli.Node, error) {
		log.Info("registered")
		go up()
		return node, nil
	}
	return call(nil, start, "strake", "--role=mds", "--data=/d", "--listen=127.0.0.1:0", "--http=none", "--config=none")
}

func kill(t *testing.T) {
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

func TestSignalStops(t *testing.T) {
	node := &fakeNode{ended: make(chan error)}
	node.close = func(ctx context.Context) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("Close has no deadline")
		}
		return nil
	}
	r := run(t, node, func() { kill(t) })
	if r.status != 0 || !strings.Contains(r.stderr, "registered") || !strings.Contains(r.stderr, `"msg":"stopped"`) {
		t.Errorf("status %d, stderr %s", r.status, r.stderr)
	}
}

func TestSecondSignalForces(t *testing.T) {
	node := &fakeNode{ended: make(chan error)}
	block := make(chan struct{})
	defer close(block)
	node.close = func(context.Context) error { kill(t); <-block; return nil }
	r := run(t, node, func() { kill(t) })
	if r.status != 1 || !strings.Contains(r.stderr, "strake: forced to stop") {
		t.Errorf("status %d, stderr %s", r.status, r.stderr)
	}
}

func TestSignalDuringStart(t *testing.T) {
	start := func(ctx context.Context, _ *slog.Logger) (cli.Node, error) {
		kill(t)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	r := call(nil, start, "strake", "--role=mds", "--data=/d", "--listen=127.0.0.1:0", "--http=none", "--config=none")
	if r.status != 0 {
		t.Errorf("status %d, stderr %s", r.status, r.stderr)
	}
}

func TestNodeFails(t *testing.T) {
	node := &fakeNode{ended: make(chan error, 1)}
	closed := false
	node.close = func(context.Context) error { closed = true; return nil }
	r := run(t, node, func() { node.ended <- errors.New("strake-MDT0000: commit: no space left on device") })
	if r.status != 1 || !closed || !strings.Contains(r.stderr, "strake: strake-MDT0000: commit: no space left") {
		t.Errorf("status %d, closed %v, stderr %s", r.status, closed, r.stderr)
	}
}
