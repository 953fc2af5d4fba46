package suite

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// whole is a lock over the whole file.
func whole(kind int16) *unix.Flock_t { return &unix.Flock_t{Type: kind, Whence: io.SeekStart} }

// helperMain is what this test binary does when a test starts it as a child process.
func helperMain(mode string) int {
	path := os.Getenv("STRAKE_SUITE_FILE")
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err == nil {
		switch mode {
		case "fcntl":
			err = unix.FcntlFlock(uintptr(fd), unix.F_SETLKW, whole(unix.F_WRLCK))
		case "flock":
			err = unix.Flock(fd, unix.LOCK_EX)
		default:
			err = fmt.Errorf("no helper %q", mode)
		}
	}
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	fmt.Println("locked")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it
	return 0                             // without unlocking
}

// child is a process that locks a file and holds the lock until release.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	said  chan string // "locked", or what went wrong
}

func startChild(t testing.TB, mode, path string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "STRAKE_SUITE_HELPER="+mode, "STRAKE_SUITE_FILE="+path)
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	h := &child{cmd: cmd, stdin: stdin, said: make(chan string, 1)}
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		h.said <- line
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return h
}

// locked waits until the child has its lock.
func (h *child) locked(t testing.TB, limit time.Duration) {
	t.Helper()
	select {
	case line := <-h.said:
		if line != "locked\n" {
			t.Fatalf("the other process says %q", line)
		}
	case <-time.After(limit):
		t.Fatalf("the other process has no lock after %v", limit)
	}
}

// waits checks that the child has no lock yet.
func (h *child) waits(t testing.TB) {
	t.Helper()
	select {
	case line := <-h.said:
		t.Fatalf("the other process should wait, but says %q", line)
	case <-time.After(200 * time.Millisecond):
	}
}

// leave lets the child exit with its lock held.
func (h *child) leave(t testing.TB) {
	t.Helper()
	must(t, h.stdin.Close())
	must(t, h.cmd.Wait())
}

// holder says what a descriptor of another owner sees in its way: F_UNLCK for nothing.
func holder(t testing.TB, fd int) int16 {
	t.Helper()
	l := whole(unix.F_WRLCK)
	must(t, unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, l))
	return l.Type
}

func openLockFile(t testing.TB, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	must(t, err)
	return fd
}

// TestFcntlLocksGoAtTheFirstClose (case 26): all POSIX locks of a process on a file go when it closes any descriptor of
// that file, a duplicate too.
func TestFcntlLocksGoAtTheFirstClose(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		path := filepath.Join(c.folder(t), "f")
		fd, watch := openLockFile(t, path), openLockFile(t, path)
		must(t, unix.FcntlFlock(uintptr(fd), unix.F_SETLK, whole(unix.F_WRLCK)))
		if got := holder(t, watch); got != unix.F_WRLCK {
			t.Fatalf("another owner sees type %d, want a write lock", got)
		}
		second, err := unix.Dup(fd)
		must(t, err)
		must(t, unix.Close(second))
		if got := holder(t, watch); got != unix.F_UNLCK {
			t.Errorf("after close of a duplicate another owner sees type %d, want none", got)
		}
		must(t, unix.Close(fd))
		must(t, unix.Close(watch))
	})
}

// TestFcntlLocksGoWithTheirProcess (case 26): a process that ends, or is killed, frees its locks, and who waits gets them.
func TestFcntlLocksGoWithTheirProcess(t *testing.T) { locksGoWithProcess(t, "fcntl") }

// TestFlocksGoWithTheirProcess (case 26).
func TestFlocksGoWithTheirProcess(t *testing.T) { locksGoWithProcess(t, "flock") }

func locksGoWithProcess(t *testing.T, mode string) {
	small(t, func(t *testing.T, c *cluster) {
		path := filepath.Join(c.folder(t), "f")
		must(t, os.WriteFile(path, nil, 0o644))
		first := startChild(t, mode, path)
		first.locked(t, 10*time.Second)
		second := startChild(t, mode, path)
		second.waits(t)
		first.leave(t)
		second.locked(t, 5*time.Second)

		third, fourth := startChild(t, mode, path), startChild(t, mode, path)
		third.waits(t)
		fourth.waits(t)
		must(t, third.cmd.Process.Kill()) // a waiter that dies must not be given the lock
		_ = third.cmd.Wait()
		must(t, second.cmd.Process.Kill())
		_ = second.cmd.Wait()
		fourth.locked(t, 5*time.Second)
		fourth.leave(t)
	})
}

// TestOpenFileDescriptionLocksLiveUntilTheLastClose (case 26): OFD locks belong to the open, not to the process.
func TestOpenFileDescriptionLocksLiveUntilTheLastClose(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		path := filepath.Join(c.folder(t), "f")
		fd, watch := openLockFile(t, path), openLockFile(t, path)
		must(t, unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, whole(unix.F_WRLCK)))
		is(t, "the same lock through another open", unix.FcntlFlock(uintptr(watch), unix.F_OFD_SETLK, whole(unix.F_RDLCK)), unix.EAGAIN, unix.EACCES)
		second, err := unix.Dup(fd)
		must(t, err)
		third := openLockFile(t, path)
		must(t, unix.Close(third)) // another open of this process: its close takes nothing along
		must(t, unix.Close(fd))
		if got := holder(t, watch); got != unix.F_WRLCK {
			t.Errorf("with a duplicate open another owner sees type %d, want a write lock", got)
		}
		must(t, unix.Close(second))
		must(t, poll(5*time.Second, func() error { // the release of the last close is asynchronous
			if got := holder(t, watch); got != unix.F_UNLCK {
				return retry("after the last close another owner sees type %d, want none", got)
			}
			return nil
		}))
		must(t, unix.Close(watch))
	})
}

// TestFlockLivesUntilTheLastClose (case 26).
func TestFlockLivesUntilTheLastClose(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		path := filepath.Join(c.folder(t), "f")
		fd, other := openLockFile(t, path), openLockFile(t, path)
		must(t, unix.Flock(fd, unix.LOCK_EX))
		is(t, "a second lock", unix.Flock(other, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
		second, err := unix.Dup(fd)
		must(t, err)
		must(t, unix.Close(fd))
		is(t, "a second lock with a duplicate open", unix.Flock(other, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
		must(t, unix.Close(second))
		must(t, poll(5*time.Second, func() error {
			if err := unix.Flock(other, unix.LOCK_SH|unix.LOCK_NB); err != nil {
				return retry("after the last close: %v", err)
			}
			return nil
		}))
		must(t, unix.Flock(other, unix.LOCK_EX)) // convert
		must(t, unix.Flock(other, unix.LOCK_UN))
		must(t, unix.Close(other))
	})
}

// TestFcntlRangesSplitAndMerge: lock ranges of one owner split at an unlock in the middle, and two owners share the file.
func TestFcntlRangesSplitAndMerge(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		path := filepath.Join(c.folder(t), "f")
		a, b := openLockFile(t, path), openLockFile(t, path)
		set := func(fd int, kind int16, start, length int64) error {
			return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: start, Len: length})
		}
		must(t, set(a, unix.F_WRLCK, 0, 100))
		must(t, set(a, unix.F_UNLCK, 40, 20))
		must(t, set(b, unix.F_WRLCK, 40, 20))
		is(t, "left of the gap", set(b, unix.F_RDLCK, 39, 1), unix.EAGAIN, unix.EACCES)
		is(t, "right of the gap", set(b, unix.F_RDLCK, 60, 1), unix.EAGAIN, unix.EACCES)
		must(t, set(b, unix.F_RDLCK, 100, 0)) // to the end of the file, for ever
		must(t, set(a, unix.F_RDLCK, 1<<40, 10))
		is(t, "write over a shared range", set(a, unix.F_WRLCK, 1<<40, 10), unix.EAGAIN, unix.EACCES)
		l := &unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 0}
		must(t, unix.FcntlFlock(uintptr(b), unix.F_OFD_GETLK, l))
		if l.Type != unix.F_WRLCK || l.Start != 0 || l.Len != 40 {
			t.Errorf("the first conflict is type %d at %d+%d, want a write lock at 0+40", l.Type, l.Start, l.Len)
		}
		must(t, unix.Close(a))
		must(t, unix.Close(b))
	})
}

// TestQemuImageIsOpenedTwiceInTurn (case 26): the second run must find the first one's locks gone.
func TestQemuImageIsOpenedTwiceInTurn(t *testing.T) {
	need(t, "qemu-img")
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		for range 2 {
			shell(t, dir, "qemu-img create -q -f qcow2 base 8M; qemu-img create -q -f qcow2 -b base -F qcow2 top; qemu-img commit -q top")
		}
	})
}
