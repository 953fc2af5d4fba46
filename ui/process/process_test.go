package process_test

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
	"golang.org/x/sys/unix"

	"github.com/strakefs/strake/server/config"
	"github.com/strakefs/strake/ui/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mountPoint is a folder to mount on, which the test leaves clean.
func mountPoint(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	}
	dir, err := os.MkdirTemp("", "strake-process-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func all(base string, mounts ...string) config.Config {
	c := config.Config{
		Roles: config.RoleAll, FSName: "strake", HostMGS: true, MGSTimeout: 20 * time.Second, HTTP: "127.0.0.1:0",
		Targets: []config.Target{
			{Kind: config.MDT, Dir: filepath.Join(base, "mdt0")},
			{Kind: config.OST, Dir: filepath.Join(base, "ost0")}, {Kind: config.OST, Dir: filepath.Join(base, "ost1")},
		},
	}
	for _, dir := range mounts {
		c.Mounts = append(c.Mounts, config.Mount{Dir: dir})
	}
	return c
}

func closed(t *testing.T, p *process.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
}

// mounted reports whether something is mounted on dir, from the kernel's list.
func mounted(t *testing.T, dir string) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(b), " "+dir+" ")
}

// TestEverythingInOneProcess starts and stops all roles twice on the same data; goleak looks at what stays.
func TestEverythingInOneProcess(t *testing.T) {
	base, dir := t.TempDir(), mountPoint(t)
	for range 2 {
		p, err := process.Start(t.Context(), all(base, dir), "test", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if !mounted(t, dir) {
			t.Error("not mounted")
		}
		closed(t, p)
		if mounted(t, dir) {
			t.Error("still mounted")
		}
	}
}

// TestSecondMountFails: what had started is stopped, the first mount too.
func TestSecondMountFails(t *testing.T) {
	base, dir := t.TempDir(), mountPoint(t)
	_, err := process.Start(t.Context(), all(base, dir, filepath.Join(base, "absent")), "test", slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "mkdir -p") {
		t.Fatalf("a mount point that is not there: %v", err)
	}
	if mounted(t, dir) {
		t.Error("the first mount has stayed")
	}
}

// TestDashboardPortInUse: a start that cannot show itself changes nothing on disk.
func TestDashboardPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	base := filepath.Join(t.TempDir(), "base")
	c := all(base)
	c.HTTP = l.Addr().String()
	if _, err := process.Start(t.Context(), c, "test", slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("two dashboards on one port")
	}
	if _, err := os.Lstat(base); err == nil {
		t.Error("data folders were made")
	}
}

// TestMountTakenAwayFromOutside: a process with targets goes on, and closes as ever.
func TestMountTakenAwayFromOutside(t *testing.T) {
	dir := mountPoint(t)
	p, err := process.Start(t.Context(), all(t.TempDir(), dir), "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Error(err)
	}
	closed(t, p)
}
