package cli_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/strakefs/strake/server/config"
	"github.com/strakefs/strake/ui/cli"
)

// clientEnv makes this test binary act as the strake binary; its value says what the client it starts does.
const clientEnv = "STRAKE_TEST_CLIENT"

func TestMain(m *testing.M) {
	if mode := os.Getenv(clientEnv); mode != "" {
		os.Exit(actAsClient(mode))
	}
	os.Exit(m.Run())
}

// actAsClient is a client whose mount is up at once, for a moment, or never.
func actAsClient(mode string) int {
	return cli.Main(cli.Deps{
		Args: os.Args, Environ: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr,
		Start: func(_ context.Context, cfg config.Config, log *slog.Logger) (cli.Node, error) {
			log.Info("on the way")
			if mode == "fails" {
				return nil, errors.New("mgs " + cfg.MGS[0] + ": no answer")
			}
			if cfg.FSName != "fs" || cfg.Mounts[0].Options.Fileset != "/home" || !cfg.Mounts[0].Options.ReadOnly {
				return nil, errors.New("wrong configuration")
			}
			node := &fakeNode{ended: make(chan error, 1), close: func(context.Context) error { return nil }}
			time.AfterFunc(100*time.Millisecond, func() { node.ended <- nil }) // as if it was unmounted
			return node, nil
		},
	})
}

func TestMountHelperStartsAClient(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: the log of a client is in /var/log")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse here")
	}
	for _, tc := range []struct {
		mode   string
		status int
		stderr string
	}{
		{mode: "works"},
		{mode: "fails", status: 1, stderr: "mount.strake: cannot start: mgs 127.0.0.1:9880: no answer\n"},
	} {
		t.Run(tc.mode, func(t *testing.T) {
			dir := t.TempDir()
			logName := filepath.Join("/var/log", "strake"+strings.ReplaceAll(dir, "/", "-")+".log")
			t.Cleanup(func() { os.Remove(logName) })
			r := call(append(os.Environ(), clientEnv+"="+tc.mode), never(t), "mount.strake", "127.0.0.1:/fs/home", dir,
				"-o", "ro,_netdev,log-level=warn")
			if r.status != tc.status || r.stderr != tc.stderr {
				text, _ := os.ReadFile(logName)
				t.Errorf("status %d, stderr %q, log %s", r.status, r.stderr, text)
			}
		})
	}
}
