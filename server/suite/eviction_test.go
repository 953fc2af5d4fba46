package suite

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// shortTimeout is the lock timeout that tests set which wait for one: above the ping interval (5 s), or a client that
	// is only idle would count as gone.
	shortTimeout = 8 * time.Second
	// graceLimit is what others may have to wait for a client whose process is gone: reconnect_grace (5 s) and some.
	graceLimit = 15 * time.Second
)

// setParam sets a parameter in the servers of this cluster that have it, and in no other process of the host.
func (m *mounts) setParam(t testing.TB, assignment string) {
	t.Helper()
	args := []string{"set_param"}
	for _, n := range m.nodes {
		if n.mnt != "" && n.name != "all" {
			continue
		}
		socks, err := filepath.Glob(fmt.Sprintf("/run/strake/*-%d.sock", n.cmd.Process.Pid))
		must(t, err)
		if len(socks) != 1 {
			t.Fatalf("%s has the parameter sockets %v", n.name, socks)
		}
		args = append(args, "--sock", socks[0])
	}
	if out, err := m.lctl(append(args, assignment)...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// quitAfterFailure ends the clients of a failed test, so that what hangs on their mounts ends too, and reports where most of
// their goroutines stood.
func (m *mounts) quitAfterFailure(t testing.TB) {
	if !t.Failed() {
		return
	}
	for i := range m.at {
		n := m.client(t, i)
		n.signal(t, syscall.SIGQUIT)
		select {
		case <-n.done:
		case <-time.After(3 * time.Second): // a thread of it waits in the kernel for the mount: the mount goes first
			_ = unix.Unmount(n.mnt, unix.MNT_FORCE|unix.MNT_DETACH)
			n.signal(t, syscall.SIGKILL)
			select {
			case <-n.done:
			case <-time.After(3 * time.Second):
				t.Errorf("%s cannot be killed", n.name)
			}
		}
		n.cmd = nil
		_ = unix.Unmount(n.mnt, unix.MNT_FORCE|unix.MNT_DETACH)
		t.Logf("%s stood in:\n%s", n.name, stacks(string(n.lastRun())))
	}
}

// stacks counts the goroutines of a dump by the first lines of this module in their stacks.
func stacks(dump string) string {
	counts := map[string]int{}
	for _, g := range strings.Split(dump, "\n\n") {
		if !strings.HasPrefix(g, "goroutine ") {
			continue
		}
		var frames []string
		for line := range strings.SplitSeq(g, "\n") {
			if _, call, ok := strings.Cut(line, "github.com/strakefs/strake/"); ok && !strings.HasPrefix(line, "\t") && len(frames) < 7 {
				call, _, _ = strings.Cut(call, "({")
				call, _, _ = strings.Cut(call, "(0x")
				frames = append(frames, call)
			}
		}
		counts[strings.Join(frames, " < ")]++
	}
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return counts[b] - counts[a] })
	var b strings.Builder
	for _, k := range keys[:min(14, len(keys))] {
		fmt.Fprintf(&b, "    %d: %s\n", counts[k], k)
	}
	return b.String()
}

// evictions is how many clients the servers have evicted.
func (m *mounts) evictions(t testing.TB) int {
	t.Helper()
	sum, found := 0.0, false
	for _, name := range []string{"strake_mdt_evictions_total", "strake_obdfilter_evictions_total"} {
		v, ok := m.gauge(t, name)
		sum, found = sum+v, found || ok
	}
	if !found {
		t.Fatal("no server exports a count of evictions")
	}
	return int(sum)
}

// lockWith takes a whole-file lock, flock or fcntl, waiting for it.
func lockWith(kind string, fd int) error {
	if kind == "flock" {
		return unix.Flock(fd, unix.LOCK_EX)
	}
	return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLKW, whole(unix.F_WRLCK))
}

// TestKilledClientFreesAllThatItHeld (case 27): kill -9 of a client that holds flock and fcntl locks, cached entries and
// dirty data. Others get its locks, its files and its folders after the grace for a lost connection; what it had not
// written never comes over what others wrote since; the eviction is logged and counted; a killed waiter gets nothing.
func TestKilledClientFreesAllThatItHeld(t *testing.T) {
	t.Parallel() // waits most of the time, on a cluster of its own
	m := newMounts(t, 3)
	dirs := m.folders(t)
	for _, name := range []string{"flock", "fcntl", "data", "other"} {
		must(t, os.WriteFile(dirs[0]+"/"+name, []byte("old"), 0o644))
	}
	must(t, os.Mkdir(dirs[0]+"/d", 0o755))
	held := map[string]int{}
	for _, kind := range []string{"flock", "fcntl"} {
		held[kind] = openLockFile(t, dirs[1]+"/"+kind)
		must(t, lockWith(kind, held[kind]))
	}
	dirty := openLockFile(t, dirs[1]+"/data")
	defer unix.Close(dirty)
	must(t, pwrite(dirty, strings.Repeat("dirty", 20_000), 0))
	for i := range 50 {
		must(t, os.WriteFile(fmt.Sprintf("%s/d/f%d", dirs[1], i), []byte("x"), 0o644))
	}
	evicted, logged := m.evictions(t), m.logged("evicted")

	waiting := make(chan error, 2)
	var granted atomic.Int64
	for kind := range held {
		waiter := openLockFile(t, dirs[2]+"/"+kind) // of a client that is killed too, below
		go func() { _ = lockWith(kind, waiter) }()
		fd := openLockFile(t, dirs[0]+"/"+kind)
		defer unix.Close(fd)
		go func() {
			err := lockWith(kind, fd)
			granted.Add(1)
			waiting <- err
		}()
	}
	select {
	case err := <-waiting:
		t.Fatalf("a lock that another mount holds is granted: %v", err)
	case <-time.After(time.Second):
	}
	m.killClient(t, 2) // a waiter that dies is given nothing
	if n := granted.Load(); n != 0 {
		t.Errorf("%d locks are granted when a waiter dies", n)
	}
	began := time.Now()
	m.killClient(t, 1)
	together(t, graceLimit,
		func() error { return <-waiting }, func() error { return <-waiting },
		func() error { return os.WriteFile(dirs[0]+"/data", []byte("of the other"), 0o644) },
		func() error { return os.Chmod(dirs[0]+"/d", 0o700) },
		func() error {
			list, err := os.ReadDir(dirs[0] + "/d")
			if err == nil && len(list) != 50 {
				err = fmt.Errorf("%d entries, want 50", len(list))
			}
			return err
		})
	t.Logf("all was free %v after the kill", time.Since(began).Round(time.Millisecond))
	must(t, os.RemoveAll(dirs[0]+"/d"))

	m.startClient(t, 1)
	text, err := os.ReadFile(dirs[1] + "/data")
	if err != nil || string(text) != "of the other" {
		t.Errorf("the file reads %.40q after all that: %v", text, err)
	}
	if n := m.evictions(t) - evicted; n < 1 {
		t.Errorf("%d evictions are counted", n)
	}
	if n := m.logged("evicted") - logged; n < 1 {
		t.Errorf("%d evictions are logged", n)
	}
	must(t, os.WriteFile(dirs[1]+"/flock", []byte("in use again"), 0o644))
}

// TestStoppedClientIsFenced (case 28): a client that is stopped while it writes under a lock is evicted and its lock given
// to another; when it goes on, nothing of it reaches the file, its program is told by an error, and the mount recovers.
func TestStoppedClientIsFenced(t *testing.T) {
	t.Parallel() // waits most of the time, on a cluster of its own
	m := newMounts(t, 2)
	m.setParam(t, fmt.Sprintf("ldlm.lock_timeout=%d", int(shortTimeout.Seconds())))
	dirs := m.folders(t)
	const length = 300_000
	fd := openLockFile(t, dirs[1]+"/f")
	defer unix.Close(fd)
	must(t, unix.Flock(fd, unix.LOCK_EX))
	evicted := m.evictions(t)
	var failed atomic.Value
	var rounds, after atomic.Int64
	var resumed, stop atomic.Bool
	writer := make(chan struct{})
	go func() { // the program on the stopped mount
		defer close(writer)
		for !stop.Load() {
			late := resumed.Load()
			err := pwrite(fd, strings.Repeat("A", length), 0)
			if err == nil && rounds.Add(1)%5 == 0 {
				err = unix.Fsync(fd)
			}
			if err != nil {
				failed.Store(err)
				return
			}
			if late {
				after.Add(1)
			}
		}
	}()
	must(t, poll(10*time.Second, func() error {
		if rounds.Load() < 10 {
			return retry("%d writes", rounds.Load())
		}
		return nil
	}))
	m.client(t, 1).signal(t, syscall.SIGSTOP)
	defer m.client(t, 1).signal(t, syscall.SIGCONT)
	began := time.Now()
	together(t, 4*shortTimeout, func() error {
		other, err := unix.Open(dirs[0]+"/f", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(other)
		return firstOf(func() error { return unix.Flock(other, unix.LOCK_EX) },
			func() error { return pwrite(other, strings.Repeat("B", length), 0) },
			func() error { return unix.Fsync(other) })
	})
	t.Logf("the other mount had the lock and had written %v after the stop", time.Since(began).Round(time.Millisecond))
	resumed.Store(true)
	m.client(t, 1).signal(t, syscall.SIGCONT)
	select {
	case <-writer:
	case <-time.After(30 * time.Second):
		stop.Store(true)
		t.Errorf("the evicted program made %d more writes and no error in 30 s", after.Load())
	}
	if err, _ := failed.Load().(error); err != nil {
		is(t, "write of the evicted program", err, unix.EIO, unix.ESTALE)
	}
	is(t, "a later write on that handle", pwrite(fd, "A", 0), unix.EIO, unix.ESTALE, unix.EBADF)
	all := bytes.Repeat([]byte("B"), length)
	must(t, poll(30*time.Second, func() error { // the mount recovers by itself
		text, err := os.ReadFile(dirs[1] + "/f")
		if err != nil {
			return retry("the evicted mount opens again: %v", err)
		}
		return differ(text, all, 0)
	}))
	text, err := os.ReadFile(dirs[0] + "/f")
	must(t, err)
	must(t, differ(text, all, 0))
	must(t, os.WriteFile(dirs[1]+"/new", []byte("works"), 0o644))
	if text, err = os.ReadFile(dirs[0] + "/new"); string(text) != "works" {
		t.Errorf("a new file of the recovered mount reads %q: %v", text, err)
	}
	if n := m.evictions(t) - evicted; n < 1 {
		t.Errorf("%d evictions are counted", n)
	}
	if m.logged("evicted") == 0 {
		t.Error("no eviction is logged")
	}
}

// TestInodeNumbersAreTheSameEverywhereAndAfterRestarts (case 31): on every mount, after a remount, after a restart of the
// servers.
func TestInodeNumbersAreTheSameEverywhereAndAfterRestarts(t *testing.T) {
	m := newMounts(t, 2)
	dirs := m.folders(t)
	names := []string{"f", "d", "s", "d/g"}
	must(t, os.WriteFile(dirs[0]+"/f", []byte("x"), 0o644))
	must(t, os.Mkdir(dirs[1]+"/d", 0o755))
	must(t, os.Symlink("f", dirs[0]+"/s"))
	must(t, os.WriteFile(dirs[1]+"/d/g", []byte("y"), 0o644))
	numbers := func(dir string) (text string) {
		for _, n := range names {
			var st unix.Stat_t
			must(t, unix.Lstat(dir+"/"+n, &st))
			text += fmt.Sprint(n, " ", st.Ino, "\n")
		}
		return text
	}
	want := numbers(dirs[0])
	check := func(when string) {
		t.Helper()
		for i, dir := range dirs {
			if got := numbers(dir); got != want {
				t.Errorf("%s M%d: %s, want %s", when, i, got, want)
			}
		}
	}
	check("at first")
	m.client(t, 1).terminate(t)
	m.startClient(t, 1)
	check("after a remount")
	m.node(t, "mds").terminate(t)
	m.node(t, "mds").again(t)
	check("after a restart of the MDS")
	must(t, os.Rename(dirs[0]+"/d", dirs[0]+"/e"))
	names[1], names[3] = "e", "e/g"
	want = numbers(dirs[1])
	check("after a rename")
}

// TestLockIsKeptWhileItsHolderWaitsElsewhere: a lock in use is called back while the call that uses it waits for a server
// that does not answer. The holder keeps it alive for longer than the lock timeout; nobody is evicted, and both end when
// the server goes on.
func TestLockIsKeptWhileItsHolderWaitsElsewhere(t *testing.T) {
	t.Parallel() // waits most of the time, on a cluster of its own
	m := newMounts(t, 2)
	m.setParam(t, fmt.Sprintf("ldlm.lock_timeout=%d", int(shortTimeout.Seconds())))
	dirs := m.folders(t)
	m.setstripe(t, dirs[0]+"/f", 2, "64K")
	fd := openLockFile(t, dirs[0]+"/f")
	defer unix.Close(fd)
	must(t, pwrite(fd, strings.Repeat("0", 4*stripeBytes), 0))
	other := openLockFile(t, dirs[1]+"/f")
	defer unix.Close(other)
	text, err := readAll(other)
	must(t, err)
	if len(text) != 4*stripeBytes {
		t.Fatalf("%d bytes", len(text))
	}
	evicted := m.evictions(t)
	stopped := m.node(t, "oss1")
	stopped.signal(t, syscall.SIGSTOP)
	defer stopped.signal(t, syscall.SIGCONT)
	done := make(chan error, 2)
	go func() { done <- pwrite(fd, strings.Repeat("1", 4*stripeBytes), 0) }() // gets the first stripe's lock, waits for the second's
	go func() {
		buf := make([]byte, 100)
		_, err := unix.Pread(other, buf, 0)
		if err == nil && !bytes.Equal(buf, bytes.Repeat([]byte("0"), 100)) && !bytes.Equal(buf, bytes.Repeat([]byte("1"), 100)) {
			err = errors.New("a torn read")
		}
		done <- err
	}()
	<-time.After(shortTimeout + 4*time.Second)
	stopped.signal(t, syscall.SIGCONT)
	together(t, 20*time.Second, func() error { return <-done }, func() error { return <-done })
	if n := m.evictions(t) - evicted; n != 0 {
		t.Errorf("%d clients are evicted", n)
	}
	for i, fd := range []int{fd, other} {
		text, err := readAll(fd)
		must(t, err)
		if !bytes.Equal(text, bytes.Repeat([]byte("1"), 4*stripeBytes)) {
			t.Errorf("M%d reads %s", i, brief(text))
		}
	}
}
