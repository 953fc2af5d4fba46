package suite

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Restarts with work that was acknowledged and not on disk: the clients have it, and give it back.

// work is what one mount did and was told to be done: names, and the content of files.
type work struct {
	dir   string
	files map[string]string // content; guarded by the one goroutine that works
	gone  []string
	dirs  []string
}

// some does n rounds of work below dir, which exists. Each round is some operations that depend on one another.
func (w *work) some(n int) error {
	if w.files == nil {
		w.files = map[string]string{}
	}
	first := len(w.dirs)
	for i := first; i < first+n; i++ {
		d := fmt.Sprintf("d%d", i)
		p := func(name string) string { return w.dir + "/" + d + "/" + name }
		text := fmt.Sprintf("content %d", i)
		err := firstOf(
			func() error { return os.Mkdir(w.dir+"/"+d, 0o755) },
			func() error { return os.WriteFile(p("a"), []byte(text), 0o644) },
			func() error { return os.Link(p("a"), p("b")) },
			func() error { return os.Rename(p("a"), p("c")) },
			func() error { return os.WriteFile(p("e"), []byte("e"), 0o600) },
			func() error { return os.Remove(p("e")) },
			func() error { return os.Symlink("b", p("s")) },
			func() error { return unix.Setxattr(p("c"), "user.round", []byte(text), 0) },
			func() error { return os.Chmod(p("c"), 0o640) },
		)
		if err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		w.dirs = append(w.dirs, d)
		w.files[d+"/b"], w.files[d+"/c"] = text, text
		w.gone = append(w.gone, d+"/a", d+"/e")
	}
	return nil
}

// there checks, on a mount where the folder of the work is at dir, that everything is as the work left it.
func (w *work) there(dir string) error {
	var errs []error
	for name, text := range w.files {
		got, err := os.ReadFile(dir + "/" + name)
		if err != nil || string(got) != text {
			errs = append(errs, fmt.Errorf("%s holds %.60q, want %q: %w", name, got, text, err))
		}
	}
	for _, name := range w.gone {
		errs = append(errs, absent(dir+"/"+name))
	}
	for _, d := range w.dirs {
		c := dir + "/" + d + "/c"
		value := make([]byte, 100)
		n, err := unix.Getxattr(c, "user.round", value)
		if err != nil || string(value[:n]) != w.files[d+"/c"] {
			errs = append(errs, fmt.Errorf("user.round of %s is %q: %w", c, value[:max(n, 0)], err))
		}
		var st unix.Stat_t
		if err := unix.Stat(c, &st); err != nil || st.Mode&0o7777 != 0o640 || st.Nlink != 2 {
			errs = append(errs, fmt.Errorf("%s: mode %o, %d links: %w", c, st.Mode, st.Nlink, err))
		}
		if target, err := os.Readlink(dir + "/" + d + "/s"); err != nil || target != "b" {
			errs = append(errs, fmt.Errorf("link of %s: %q: %w", d, target, err))
		}
		if list, err := os.ReadDir(dir + "/" + d); err != nil || len(list) != 3 {
			errs = append(errs, fmt.Errorf("%s has %d entries, want 3: %w", d, len(list), err))
		}
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != len(w.dirs) {
		errs = append(errs, fmt.Errorf("%s has %d entries, want %d: %w", dir, len(list), len(w.dirs), err))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%d faults: %.2000s", len(errs), err.Error())
	}
	return nil
}

// works starts work on every mount, in folders that are on disk; from then on nothing of the MDT reaches its disk.
func (m *mounts) works(t testing.TB, dirs []string) []*work {
	t.Helper()
	all := make([]*work, len(dirs))
	for i := range dirs {
		all[i] = &work{dir: fmt.Sprintf("%s/m%d", dirs[i], i)}
		must(t, os.Mkdir(all[i].dir, 0o755))
	}
	m.pauseCommits(t)
	return all
}

// do lets all of them work at once.
func do(t testing.TB, all []*work, rounds int) {
	t.Helper()
	tasks := make([]func() error, len(all))
	for i, w := range all {
		tasks[i] = func() error { return w.some(rounds) }
	}
	together(t, 120*time.Second, tasks...)
}

// check compares every mount's view of every work.
func (m *mounts) check(t testing.TB, when string, dirs []string, all []*work, skip ...int) {
	t.Helper()
	for k := range dirs {
		if slices.Contains(skip, k) {
			continue
		}
		for i, w := range all {
			err := w.there(fmt.Sprintf("%s/m%d", dirs[k], i))
			if err != nil {
				t.Errorf("%s: work of M%d seen from M%d: %v", when, i, k, err)
			}
		}
	}
}

// TestAcknowledgedWorkOutlivesTheMds: nothing of what three mounts did had reached the MDT's disk when it was killed.
func TestAcknowledgedWorkOutlivesTheMds(t *testing.T) {
	t.Parallel()
	m := faulty(t, 3)
	dirs := m.folders(t)
	all := m.works(t, dirs)
	do(t, all, size(20, 500))
	m.crash(t, "mds")
	do(t, all, 5)
	m.check(t, "after the restart", dirs, all)
	if n, err := strconv.Atoi(m.recovery(t, "mds", "evicted_clients")); err != nil || n != 0 {
		t.Errorf("%d clients are evicted: %v", n, err)
	}
	if n, err := strconv.Atoi(m.recovery(t, "mds", "replayed_requests")); err != nil || n < 3*20*8 {
		t.Errorf("%d requests were replayed: %v", n, err)
	}
	m.crash(t, "mds") // what was replayed is on disk
	m.check(t, "after one more", dirs, all)
}

// TestClientDiesInTheRecoveryWindow: a client that had work to replay never comes back; it is evicted when the window ends, and the
// others' work, which does not depend on its, is there.
func TestClientDiesInTheRecoveryWindow(t *testing.T) {
	t.Parallel()
	m := faulty(t, 3)
	m.set(t, "mds", "-P", "mdt.*.recovery_time_soft=6")
	dirs := m.folders(t)
	all := m.works(t, dirs)
	do(t, all, 10)
	m.client(t, 2).signal(t, syscall.SIGSTOP)
	m.crash(t, "mds")
	must(t, poll(20*time.Second, func() error {
		if s := m.recovery(t, "mds", "status"); s != "RECOVERING" && s != "WAITING_FOR_CLIENTS" {
			return retry("recovery is %q", s)
		}
		return nil
	}))
	m.killClient(t, 2)
	began := time.Now()
	do(t, all[:2], 5)
	t.Logf("work went on %v after the client's death", time.Since(began).Round(time.Millisecond))
	if n, err := strconv.Atoi(m.recovery(t, "mds", "evicted_clients")); err != nil || n != 1 {
		t.Errorf("%d clients are evicted: %v", n, err)
	}
	m.check(t, "after the window", dirs, all[:2], 2)
	m.startClient(t, 2)
	m.check(t, "with a new client", dirs, all[:2])
	must(t, os.WriteFile(dirs[2]+"/new", []byte("works"), 0o644))
}

// TestTwoRestartsInARow: the MDS dies again while its clients replay.
func TestTwoRestartsInARow(t *testing.T) {
	t.Parallel()
	m := faulty(t, 3)
	dirs := m.folders(t)
	all := m.works(t, dirs)
	do(t, all, size(20, 500))
	m.client(t, 2).signal(t, syscall.SIGSTOP) // keeps the first window open
	m.crash(t, "mds")
	must(t, poll(20*time.Second, func() error {
		if n, _, _ := strings.Cut(m.recovery(t, "mds", "connected_clients"), "/"); n != "2" {
			return retry("%s clients are back", n)
		}
		return nil
	}))
	m.node(t, "mds").kill(t)
	m.client(t, 2).signal(t, syscall.SIGCONT)
	m.node(t, "mds").again(t)
	do(t, all, 5)
	m.check(t, "after both", dirs, all)

	if n, err := strconv.Atoi(m.recovery(t, "mds", "evicted_clients")); err != nil || n != 0 {
		t.Errorf("%d clients are evicted: %v", n, err)
	}
	m.pauseCommits(t)
	do(t, all, 5)
	for range size(3, 10) { // and at any moment of its start
		m.node(t, "mds").kill(t)
		must(t, m.node(t, "mds").start())
		<-time.After(time.Duration(rand.IntN(400)) * time.Millisecond)
	}
	do(t, all, 5)
	m.check(t, "after many", dirs, all)
}

// TestRestartIntoAnEmptyNetwork: no client comes back; the window ends, all are evicted, and new ones are served.
func TestRestartIntoAnEmptyNetwork(t *testing.T) {
	t.Parallel()
	m := faulty(t, 2)
	m.set(t, "mds", "-P", "mdt.*.recovery_time_soft=4")
	dirs := m.folders(t)
	all := m.works(t, dirs)
	do(t, all, 5)
	for i := range m.at {
		m.client(t, i).signal(t, syscall.SIGSTOP)
	}
	m.node(t, "mds").kill(t)
	for i := range m.at {
		m.killClient(t, i)
	}
	m.node(t, "mds").again(t)
	began := time.Now()
	must(t, poll(20*time.Second, func() error {
		if s := m.recovery(t, "mds", "status"); s != "COMPLETE" {
			return retry("recovery is %q", s)
		}
		return nil
	}))
	t.Logf("the window ended %v after the start", time.Since(began).Round(time.Millisecond))
	if n, err := strconv.Atoi(m.recovery(t, "mds", "evicted_clients")); err != nil || n != 2 {
		t.Errorf("%d clients are evicted: %v", n, err)
	}
	for i := range m.at {
		m.startClient(t, i)
	}
	for i := range dirs {
		all[i] = &work{dir: fmt.Sprintf("%s/n%d", dirs[i], i)}
		must(t, os.Mkdir(all[i].dir, 0o755))
		must(t, all[i].some(5))
		must(t, all[i].there(fmt.Sprintf("%s/n%d", dirs[1-i], i)))
	}
}

// TestMdsAndOssDownTogether: metadata and data of several mounts, under load, with an MDS and an OSS killed at the same
// moment.
func TestMdsAndOssDownTogether(t *testing.T) {
	t.Parallel()
	m := faulty(t, 3)
	dirs := m.folders(t)
	all := make([]*work, len(dirs))
	for i := range dirs {
		all[i] = &work{dir: fmt.Sprintf("%s/m%d", dirs[i], i)}
		must(t, os.Mkdir(all[i].dir, 0o755))
	}
	var stop atomic.Bool
	tasks := make([]func() error, 0, len(all)+1)
	var rounds atomic.Int64
	for _, w := range all {
		tasks = append(tasks, func() error {
			for !stop.Load() {
				if err := w.some(1); err != nil {
					return err
				}
				rounds.Add(1)
			}
			return nil
		})
	}
	big := make([]byte, 8<<20)
	fillRandom(rand.New(rand.NewPCG(seed(t), 0)), big)
	m.setstripe(t, dirs[0]+"/big", 2, "64K")
	var writes atomic.Int64
	tasks = append(tasks, func() error { // all over the two OSTs, never synced
		f, err := os.OpenFile(dirs[0]+"/big", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		for !stop.Load() {
			if _, err := f.WriteAt(big, 0); err != nil {
				return err
			}
			writes.Add(1)
		}
		return nil
	})
	done := make(chan struct{})
	go func() { defer close(done); together(t, 180*time.Second, tasks...) }()
	for range size(2, 6) {
		r, w := rounds.Load(), writes.Load()
		must(t, poll(60*time.Second, func() error {
			if rounds.Load() < r+20 || writes.Load() < w+2 {
				return retry("%d rounds and %d writes", rounds.Load()-r, writes.Load()-w)
			}
			return nil
		}))
		var wg sync.WaitGroup
		for _, name := range []string{"mds", "oss1"} {
			n := m.node(t, name)
			wg.Go(func() { _ = n.stop(syscall.SIGKILL, stopTimeout) })
		}
		wg.Wait()
		m.node(t, "mds").again(t)
		m.node(t, "oss1").again(t)
	}
	stop.Store(true)
	<-done
	m.check(t, "after the restarts", dirs, all)
	for i := range dirs {
		got, err := os.ReadFile(dirs[i] + "/big")
		if err != nil || !bytes.Equal(got, big) {
			t.Errorf("M%d: the large file: %v, %v", i, err, differ(got, big, 0))
		}
	}
}

// TestCommitErrorStopsTheTarget: the disk fails a commit. The MDT stops and says so; nothing is answered that it cannot keep: an
// fsync does not succeed; when the disk is mended and the target started again, everything acknowledged is there.
func TestCommitErrorStopsTheTarget(t *testing.T) { commitFails(t, "EIO") }

// TestDiskFullDuringCommit: as above, with a disk that is full.
func TestDiskFullDuringCommit(t *testing.T) { commitFails(t, "ENOSPC") }

func commitFails(t *testing.T, how string) {
	t.Parallel()
	m := faulty(t, 2)
	dirs := m.folders(t)
	all := m.works(t, dirs)
	m.fail(t, "mds", "pause_commit,fail_commit", "0,"+how, "target:*-MDT0000,target:*-MDT0000")
	do(t, all, 10)
	dir, err := unix.Open(dirs[0]+"/m0", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(dir)
	synced := make(chan error, 1)
	go func() { synced <- unix.Fsync(dir) }()
	m.waitFailed(t, "mds", 0)
	m.set(t, "mds", "fail_when=skip:1+target:*-MDT0000,target:*-MDT0000") // ends the pause, and the commit goes on to its failure
	must(t, poll(20*time.Second, func() error {
		if m.logged("device stopped") == 0 {
			return retry("the log does not say that the device has stopped")
		}
		return nil
	}))
	later := make(chan error, 1)
	go func() { later <- os.Mkdir(dirs[1]+"/later", 0o755) }()
	select {
	case err := <-synced:
		if err == nil {
			t.Error("fsync succeeds after the commit failed")
		}
	case err := <-later:
		t.Errorf("a later call is answered by a target that has stopped: %v", err)
	case <-time.After(3 * time.Second):
	}
	n := m.node(t, "mds")
	_ = n.stop(syscall.SIGKILL, stopTimeout) // it may have left by itself
	n.again(t)
	within(t, 60*time.Second, "the call that waited", func() error { return <-later })
	if err := unix.Fsync(dir); err != nil {
		t.Errorf("fsync after the restart: %v", err)
	}
	m.check(t, "after the restart", dirs, all)
}

// TestBackInServiceSoonAfterARestart: how long an MDS is away from the start of its process until every mount can create, with nothing to
// replay and with many operations of eight clients that had not reached its disk.
func TestBackInServiceSoonAfterARestart(t *testing.T) {
	m := faulty(t, 8)
	defer m.quitAfterFailure(t)
	dirs := m.folders(t)
	service := func(name string) time.Duration {
		t.Helper()
		n := m.node(t, "mds")
		n.kill(t)
		began := time.Now()
		must(t, n.start())
		tasks := make([]func() error, len(dirs))
		for i, dir := range dirs {
			tasks[i] = func() error { return os.Mkdir(fmt.Sprintf("%s/%s%d", dir, name, i), 0o755) }
		}
		together(t, 120*time.Second, tasks...)
		return time.Since(began)
	}
	must(t, touch(dirs[0]+"/x"))
	m.waitCommitted(t)
	idle := service("idle")
	each := size(250, 5200) // with the reports of their closes about 50,000 requests, which is what three txgs may hold
	for i, dir := range dirs {
		must(t, os.Mkdir(fmt.Sprintf("%s/many%d", dir, i), 0o755))
	}
	m.waitCommitted(t)
	m.fail(t, "mds", "hold_txg,pause_commit", "0", "target:*-MDT0000,target:*-MDT0000") // three whole txgs
	tasks := make([]func() error, len(dirs))
	for i, dir := range dirs {
		tasks[i] = func() error {
			for k := range each {
				if err := exclusive(fmt.Sprintf("%s/many%d/f%d", dir, i, k)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	together(t, 10*time.Minute, tasks...)
	busy := service("busy")
	replayed := m.recovery(t, "mds", "replayed_requests")
	t.Logf("back in service after %.2f s idle, after %.2f s with %s requests to replay", idle.Seconds(), busy.Seconds(), replayed)
	if n, err := strconv.Atoi(replayed); err != nil || n < size(each*len(dirs), 50_000) {
		t.Errorf("%s requests were replayed, want %d", replayed, size(each*len(dirs), 50_000))
	}
	if limit := 2 * time.Second; idle > limit && !t.Failed() {
		t.Errorf("idle: %v, at most %v", idle, limit)
	}
	if limit := 10 * time.Second; busy > limit {
		t.Errorf("busy: %v, at most %v", busy, limit)
	}
	for i := range dirs {
		list, err := os.ReadDir(fmt.Sprintf("%s/many%d", dirs[(i+1)%len(dirs)], i))
		if err != nil || len(list) != each {
			t.Errorf("many%d has %d files, want %d: %v", i, len(list), each, err)
		}
	}
}
