package suite

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestServersAwayUnderLoad (case 49): an OSS, then the MDS, is away for a while, with ls, df, dd and rm running. Everything
// ends when they are back; a process that waits can be killed; a mount's process answers for its health; umount -l works.
func TestServersAwayUnderLoad(t *testing.T) {
	t.Parallel()
	m := newMounts(t, 2)
	dirs := m.folders(t)
	away := size(12*time.Second, 3*time.Minute)
	var done, failed atomic.Int64
	var stop atomic.Bool
	load := func(name string, args ...string) func() error {
		return func() error {
			for i := 0; !stop.Load(); i++ {
				cmd := exec.Command("sh", "-euc", strings.ReplaceAll(strings.Join(args, " "), "NUMBER", fmt.Sprint(i)))
				cmd.Dir = dirs[0]
				if out, err := cmd.CombinedOutput(); err != nil {
					failed.Add(1)
					return fmt.Errorf("%s %d: %w: %s", name, i, err, out)
				}
				done.Add(1)
			}
			return nil
		}
	}
	m.setstripe(t, dirs[0]+"/wide", 2, "64K")
	must(t, os.Mkdir(dirs[0]+"/own", 0o755))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		together(t, 2*away+10*time.Minute, load("ls", "ls . >/dev/null; ls -l wide >/dev/null"), load("df", "df . >/dev/null"),
			load("dd", "dd if=/dev/zero of=wide bs=64k count=20 conv=notrunc status=none"), load("rm", "echo x > rNUMBER; rm rNUMBER"),
			load("create", "mkdir dNUMBER; echo y > dNUMBER/f; rm -r dNUMBER"))
	}()
	more := func(what string) {
		t.Helper()
		n := done.Load()
		must(t, poll(90*time.Second, func() error {
			if failed.Load() == 0 && done.Load() < n+20 {
				return retry("%s: %d commands more", what, done.Load()-n)
			}
			return nil
		}))
	}
	more("at first")
	for _, name := range []string{"oss1", "mds"} {
		m.node(t, name).kill(t)
		began := time.Now()
		stuck := exec.Command("dd", "if="+dirs[0]+"/wide", "of=/dev/null", "bs=64k", "iflag=direct", "status=none")
		if name == "mds" { // not in the folder of the load, whose lock the kernel waits for without hearing signals
			stuck = exec.Command("mkdir", dirs[0]+"/own/stuck")
		}
		must(t, stuck.Start())
		select {
		case <-ended:
			t.Fatalf("the load ended while %s was away", name)
		case <-time.After(away / 2):
		}
		must(t, stuck.Process.Kill())
		within(t, 5*time.Second, "SIGKILL of a process that waits for "+name, func() error { _ = stuck.Wait(); return nil })
		client := http.Client{Timeout: 5 * time.Second}
		if r, err := client.Get("http://" + m.client(t, 0).http + "/healthz"); err != nil {
			t.Errorf("health of the mount's process while %s is away: %v", name, err)
		} else {
			r.Body.Close()
		}
		<-time.After(time.Until(began.Add(away)))
		m.node(t, name).again(t)
		more(name + " is back")
	}
	stop.Store(true)
	<-ended
	t.Logf("%d commands", done.Load())

	m.node(t, "oss1").kill(t) // and a mount can go while a server is away, with a process that waits on it
	path := dirs[1] + "/wide"
	cmd := exec.Command("dd", "if="+path, "of=/dev/null", "bs=64k", "iflag=direct", "status=none")
	must(t, cmd.Start())
	within(t, 10*time.Second, "umount -l", func() error { return unix.Unmount(m.at[1], unix.MNT_DETACH) })
	must(t, cmd.Process.Kill())
	within(t, 10*time.Second, "SIGKILL", func() error { _ = cmd.Wait(); return nil })
	m.node(t, "oss1").again(t)
	n := m.client(t, 1)
	select {
	case <-n.done:
		n.cmd = nil
	case <-time.After(stopTimeout):
		t.Error("the process of the detached mount stays")
	}
}

// TestHeldLockOutlivesRestartsOfTheServers (case 29): one lock, replayed; F_GETLK of another mount finds it, one unlock frees
// it.
func TestHeldLockOutlivesRestartsOfTheServers(t *testing.T) {
	t.Parallel()
	m := newMounts(t, 2)
	dirs := m.folders(t)
	must(t, os.WriteFile(dirs[0]+"/f", []byte("text"), 0o644))
	must(t, touch(dirs[0]+"/g"))
	fd, other := openLockFile(t, dirs[0]+"/f"), openLockFile(t, dirs[1]+"/f")
	flocked, second := openLockFile(t, dirs[0]+"/g"), openLockFile(t, dirs[1]+"/g")
	must(t, lockWith("fcntl", fd))
	must(t, unix.Flock(flocked, unix.LOCK_EX))
	for range 2 {
		for _, name := range []string{"mds", "oss0", "oss1"} {
			m.node(t, name).kill(t)
		}
		for _, name := range []string{"mds", "oss0", "oss1"} {
			m.node(t, name).again(t)
		}
		within(t, 60*time.Second, "a call after the restart", func() error { return os.Mkdir(filepath.Join(dirs[1], "d"), 0o755) })
		must(t, os.Remove(dirs[1]+"/d"))
		if got := holder(t, other); got != unix.F_WRLCK {
			t.Errorf("another mount sees lock type %d, want a write lock", got)
		}
		is(t, "flock of another mount", unix.Flock(second, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	}
	must(t, unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, whole(unix.F_UNLCK)))
	must(t, unix.Flock(flocked, unix.LOCK_UN))
	within(t, 10*time.Second, "the lock after the unlock", func() error { return lockWith("fcntl", other) })
	within(t, 10*time.Second, "the flock after the unlock", func() error { return unix.Flock(second, unix.LOCK_EX) })
	for _, fd := range []int{fd, other, flocked, second} {
		must(t, unix.Close(fd))
	}
}

// TestDependentWorkOutlivesALostClient (case 48): one mount makes a folder, another a file in it; the MDS dies before its next
// commit, and the first client never comes back. The file is there. Work that depends on nobody forces no commit.
func TestDependentWorkOutlivesALostClient(t *testing.T) {
	t.Parallel()
	m := faulty(t, 2)
	m.set(t, "mds", "-P", "mdt.*.recovery_time_soft=5")
	dirs := m.folders(t)
	must(t, os.Mkdir(dirs[0]+"/one", 0o755))
	must(t, os.Mkdir(dirs[1]+"/two", 0o755))
	m.waitCommitted(t)
	forced := m.number(t, "mds", "mdt.*.async_commit_count")
	for i := range 50 { // independent, in two folders and in one
		must(t, os.Mkdir(fmt.Sprintf("%s/one/a%d", dirs[0], i), 0o755))
		must(t, os.Mkdir(fmt.Sprintf("%s/two/b%d", dirs[1], i), 0o755))
		must(t, touch(fmt.Sprintf("%s/one/c%d", dirs[0], i)))
		must(t, touch(fmt.Sprintf("%s/one/e%d", dirs[1], i)))
	}
	if n := m.number(t, "mds", "mdt.*.async_commit_count") - forced; n != 0 {
		t.Errorf("independent work forced %d commits", n)
	}
	m.waitCommitted(t)
	must(t, os.Mkdir(dirs[0]+"/d", 0o755))
	must(t, os.Mkdir(dirs[1]+"/d/x", 0o755))
	must(t, touch(dirs[0]+"/d/y"))
	must(t, os.Rename(dirs[1]+"/d/y", dirs[1]+"/d/z"))
	must(t, os.Link(dirs[1]+"/d/z", dirs[1]+"/d/w"))
	if n := m.number(t, "mds", "mdt.*.async_commit_count") - forced; n < 1 {
		t.Errorf("dependent work forced %d commits", n)
	}
	m.client(t, 0).signal(t, syscall.SIGSTOP)
	m.node(t, "mds").kill(t)
	m.killClient(t, 0)
	m.node(t, "mds").again(t)
	within(t, 60*time.Second, "the second mount", func() error { return os.Mkdir(dirs[1]+"/after", 0o755) })
	for _, name := range []string{"/d/x", "/d/z", "/d/w"} {
		if _, err := os.Lstat(dirs[1] + name); err != nil {
			t.Error(err)
		}
	}
	m.startClient(t, 0)
	for _, name := range []string{"/d/x", "/d/z", "/d/w"} {
		if _, err := os.Lstat(dirs[0] + name); err != nil {
			t.Errorf("the first mount, new: %v", err)
		}
	}
}
