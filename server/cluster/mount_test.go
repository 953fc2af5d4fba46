package cluster_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/strakefs/strake/fs"
	"github.com/strakefs/strake/fs/fusefs"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/rpc"
)

// kernelMount mounts s in a new folder. The test must not touch the mount from this process: helpers do.
func (s *system) kernelMount() *fs.Mount {
	t := s.t
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	}
	dir, err := os.MkdirTemp("", "strake-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	m, err := fs.New(t.Context(), fs.Options{
		Network: rpc.NewNetwork(), MGS: []string{s.mds.Config.Listen}, FSName: "strake", Timeout: 20 * time.Second,
		Cache: osc.NewCache(32 << 20), Log: slog.New(slog.DiscardHandler),
		Kernel: fusefs.MountOptions{Dir: dir, AllowOther: true, Options: fusefs.Options{ACL: true, UserXattr: true}},
	})
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
	return m
}

// inside is a shell that goes into the mount and runs a script there. It must not be started there: the folder is entered
// between fork and exec, while this process cannot serve it.
func inside(dir, script string) *exec.Cmd {
	return exec.Command("sh", "-ec", `cd "$0"; `+script, dir)
}

// run runs a script in the mount as a user.
func run(t *testing.T, uid uint32, dir, script string) (string, error) {
	t.Helper()
	c := inside(dir, script)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := c.CombinedOutput()
	return string(out), err
}

// unmount must end soon.
func unmount(t *testing.T, m *fs.Mount) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, 6*time.Second)
	defer cancel()
	start := time.Now()
	err := m.Unmount(ctx)
	if d := time.Since(start); d > 12*time.Second {
		t.Errorf("the unmount took %v", d)
	}
	return err
}

// TestUnmountWithRequestsUnderWay: with the MDT away and callers that wait for it, a mount ends.
func TestUnmountWithRequestsUnderWay(t *testing.T) {
	s := newSystem(t)
	m := s.kernelMount()
	s.stopMDS()
	c := exec.Command("sh", "-c", "exec cat "+filepath.Join(m.Dir(), "absent"))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // its lookup is at the client
	if err := unmount(t, m); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	select {
	case <-m.Done():
	default:
		t.Error("the mount is not gone")
	}
	if err := c.Wait(); err == nil {
		t.Error("a file that is not there was read")
	}
}

// TestUnmountOfADetachedMount: one that was taken out of the tree (umount -l) and is in use ends too, and what stands in
// its place stays.
func TestUnmountOfADetachedMount(t *testing.T) {
	s := newSystem(t)
	m := s.kernelMount()
	c := inside(m.Dir(), "exec 3> f; read line || true")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // it has its file open
	if err := unix.Unmount(m.Dir(), unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := unmount(t, m); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	_ = c.Wait()

	// Gone from outside, and another file system in its place.
	m = s.kernelMount()
	if err := unix.Unmount(m.Dir(), 0); err != nil {
		t.Fatal(err)
	}
	<-m.Done()
	if err := unix.Mount("none", m.Dir(), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := unmount(t, m); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(m.Dir(), 0); err != nil {
		t.Errorf("the other file system was unmounted: %v", err)
	}
}

// TestWritesTakePrivileges: what an unprivileged user writes loses set-uid, set-gid and capabilities, by whatever way,
// and the kernel knows it at once; the write itself succeeds.
func TestWritesTakePrivileges(t *testing.T) {
	s := newSystem(t)
	m := s.kernelMount()
	defer func() {
		if err := unmount(t, m); err != nil {
			t.Error(err)
		}
	}()
	if _, err := exec.LookPath("setfattr"); err != nil {
		t.Skip("needs setfattr")
	}
	const caps = "0sAQAAAgAEAAAAAAAAAAAAAAAAAAA=" // cap_net_bind_service
	for name, write := range map[string]string{
		"append":    "echo x >> f",
		"overwrite": "printf y | dd of=f conv=notrunc status=none",
		"truncate":  "truncate -s 1 f",
		"direct":    "dd if=/dev/zero of=f bs=4096 count=1 oflag=direct conv=notrunc status=none",
	} {
		for _, uid := range []uint32{1000, 0} {
			out, err := run(t, 0, m.Dir(), "rm -f f; echo data > f; chmod 6777 f; setfattr -n security.capability -v "+caps+" f; stat -c %a f")
			if err != nil || out != "6777\n" {
				t.Fatalf("%s: premise: %q: %v", name, out, err)
			}
			if out, err := run(t, uid, m.Dir(), write); err != nil {
				t.Errorf("%s by %d: %v: %s", name, uid, err, out)
				continue
			}
			if out, _ := run(t, 0, m.Dir(), "stat -c %a f"); uid != 0 && out != "777\n" {
				t.Errorf("%s by %d: mode %q", name, uid, out)
			}
			if out, err := run(t, 0, m.Dir(), "getfattr -n security.capability f"); err == nil {
				t.Errorf("%s by %d: capabilities stay: %s", name, uid, out)
			}
			if out, err := run(t, 0, m.Dir(), "chmod 6777 f; "+write+"; stat -c %a f"); err != nil || out != "6777\n" {
				t.Errorf("%s by root of a file without capabilities: mode %q: %v", name, out, err)
			}
		}
	}
}
