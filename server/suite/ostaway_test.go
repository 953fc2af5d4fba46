package suite

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// onOST makes a file with one stripe on the OST given, or skips the placement on a plain folder.
func (c *cluster) onOST(t testing.TB, path string, ost int) {
	t.Helper()
	c.lfs(t, "setstripe", "-c", "1", "-i", strconv.Itoa(ost), path)
}

// reader compares a file with what it must hold, again and again, past the kernel's pages, until stop is closed, and
// counts its passes.
func reader(path string, want []byte, stop <-chan struct{}, passes *atomic.Int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	got := make([]byte, len(want))
	for n := 1; ; n++ {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return err
		}
		for off := 0; off < len(got); off += 256 << 10 {
			end := min(off+256<<10, len(got))
			if _, err := f.ReadAt(got[off:end], int64(off)); err != nil {
				return fmt.Errorf("pass %d at %d: %w", n, off, err)
			}
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("pass %d: %w", n, differ(got, want, 0))
		}
		passes.Add(1)
		select {
		case <-stop:
			return nil
		default:
		}
	}
}

// TestReadsAndWritesWaitForAnOstThatIsAway: an OSS is restarted, in order and by kill -9, in the middle of a loop of reads
// and one of writes: they wait and go on. What is not on its OSTs goes on meanwhile.
func TestReadsAndWritesWaitForAnOstThatIsAway(t *testing.T) {
	for _, layout := range layouts(true) {
		if layout == layoutAll {
			continue // there no target goes away alone
		}
		t.Run(layout, func(t *testing.T) {
			c := newCluster(t, layout, clusterOptions{})
			for _, how := range []string{"terminated", "killed"} {
				t.Run(how, func(t *testing.T) { ostGoesAway(t, c, how == "killed") })
			}
		})
	}
}

func ostGoesAway(t *testing.T, c *cluster, kill bool) {
	dir := c.folder(t)
	p := func(n string) string { return filepath.Join(dir, n) }
	want := make([]byte, 4<<20)
	fillRandom(rand.New(rand.NewPCG(seed(t), 0)), want)
	for i, n := range []string{"here", "away", "written"} { // on OST 0, 1 and 1
		c.onOST(t, p(n), min(i, 1))
		must(t, os.WriteFile(p(n), want, 0o644))
	}
	f, err := os.OpenFile(p("written"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	must(t, f.Sync())

	stop, done := make(chan struct{}), make(chan error, 2)
	var passes, writes atomic.Int64
	go func() { done <- reader(p("away"), want, stop, &passes) }()
	go func() { done <- rewriter(f, stop, &writes) }()
	running := func(what string, limit time.Duration) { // both loops get three rounds further
		t.Helper()
		r, w := passes.Load(), writes.Load()
		must(t, poll(limit, func() error {
			select {
			case err := <-done:
				return fmt.Errorf("%s: a loop ended: %w", what, err)
			default:
			}
			if passes.Load() < r+3 || writes.Load() < w+3 {
				return retry("%s: %d reads and %d writes, at first %d and %d", what, passes.Load(), writes.Load(), r, w)
			}
			return nil
		}))
	}
	running("before", 20*time.Second)
	node := c.server(t, 1)
	if kill {
		node.kill(t)
	} else {
		node.terminate(t)
	}
	// The rest of the namespace, and files on the other OST, stay usable.
	within(t, 30*time.Second, "work beside the OST that is away", func() error {
		if err := errors.Join(os.Mkdir(p("d"), 0o755), os.Rename(p("d"), p("e")), os.Symlink("x", p("e/l")), os.Chmod(p("here"), 0o600)); err != nil {
			return err
		}
		if _, err := os.ReadDir(dir); err != nil {
			return err
		}
		if got, err := os.ReadFile(p("here")); err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("read of a file on OST 0: %w", err)
		}
		var fs unix.Statfs_t
		return unix.Statfs(c.mnt, &fs) // case 43: no hang with a target down
	})
	select { // nothing fails meanwhile
	case err := <-done:
		t.Fatalf("a loop ended while the OST was away: %v", err)
	case <-time.After(time.Second):
	}
	node.again(t)
	running("after the restart", 60*time.Second)
	last := writes.Load()
	close(stop)
	for range 2 {
		select {
		case err := <-done:
			must(t, err)
		case <-time.After(60 * time.Second):
			t.Fatal("a loop does not end")
		}
	}
	must(t, f.Sync())
	got := make([]byte, 8)
	_, err = f.ReadAt(got, 0)
	must(t, err)
	if n, err := strconv.ParseInt(strings.TrimSpace(string(got)), 10, 64); err != nil || n < last {
		t.Errorf("the file holds %q after write %d was answered", got, last)
	}
}

// rewriter writes a rising number at the start of a file and pages behind it until stop is closed.
func rewriter(f *os.File, stop <-chan struct{}, writes *atomic.Int64) error {
	page := bytes.Repeat([]byte("w"), 64<<10)
	for n := 1; ; n++ {
		copy(page, fmt.Sprintf("%8d", n))
		if _, err := f.WriteAt(page, 0); err != nil {
			return fmt.Errorf("write %d: %w", n, err)
		}
		if n%50 == 0 {
			if err := f.Sync(); err != nil {
				return fmt.Errorf("fsync after write %d: %w", n, err)
			}
		}
		writes.Store(int64(n))
		select {
		case <-stop:
			return nil
		default:
		}
	}
}

// TestWaitingProcessCanBeKilled (case 49's one-mount part): SIGKILL ends a process that waits.
func TestWaitingProcessCanBeKilled(t *testing.T) {
	list := layouts(true)
	if list[len(list)-1] == layoutAll {
		t.Skip("needs a layout of several processes")
	}
	c := newCluster(t, list[len(list)-1], clusterOptions{})
	path := filepath.Join(c.mnt, "f")
	c.onOST(t, path, 1)
	must(t, os.WriteFile(path, make([]byte, 1<<20), 0o644))
	f, err := os.Open(path)
	must(t, err)
	must(t, errors.Join(f.Sync(), f.Close())) // what this mount has not written back it can read
	node := c.server(t, 1)
	node.terminate(t)
	within(t, 20*time.Second, "timeout -s KILL 2 on a read that waits", func() error {
		out, err := output("", "timeout", "-s", "KILL", "2", "dd", "if="+path, "of=/dev/null", "bs=4k", "iflag=direct", "count=1")
		if err == nil {
			return fmt.Errorf("the read was answered: %s", out)
		}
		return nil
	})
	node.again(t)
	if got, err := os.ReadFile(path); err != nil || len(got) != 1<<20 {
		t.Errorf("read after the restart: %d bytes, %v", len(got), err)
	}
}

var stripeOST = regexp.MustCompile(`(?m)l_ost_idx:\s*(\d+)|lmm_stripe_offset:\s*(\d+)`)

// TestFullOstGivesNoSpaceAndIsAvoided: ENOSPC to who writes to it, at write, fsync or close; new files go elsewhere; and
// deleting makes room again.
func TestFullOstGivesNoSpaceAndIsAvoided(t *testing.T) {
	needCluster(t)
	full := filepath.Join(t.TempDir(), "full")
	tmpfs(t, full, fmt.Sprintf("size=%dm", 512), 0)
	c := newCluster(t, layoutProcesses, clusterOptions{ostData: map[int]string{1: filepath.Join(full, "ost1")}})
	dir := filepath.Join(c.mnt, "d")
	must(t, os.Mkdir(dir, 0o755))
	path := filepath.Join(dir, "big")
	c.onOST(t, path, 1)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	chunk := bytes.Repeat([]byte("z"), 1<<20)
	var written int64
	within(t, 120*time.Second, "filling the OST", func() error {
		for err == nil && written < 1<<30 {
			var n int
			n, err = f.Write(chunk)
			written += int64(n)
		}
		return nil
	})
	if err == nil {
		err = f.Sync()
	}
	is(t, "write to a full OST", err, unix.ENOSPC)
	_ = f.Close()
	t.Logf("%d MiB written before ENOSPC", written>>20)

	must(t, poll(30*time.Second, func() error { // the MDT learns of it
		probe := filepath.Join(dir, "probe")
		defer os.Remove(probe)
		if err := os.WriteFile(probe, chunk, 0o644); err != nil {
			return retry("a new file: %v", err)
		}
		return nil
	}))
	for i := range 10 {
		small := filepath.Join(dir, fmt.Sprintf("small%d", i))
		if err := os.WriteFile(small, chunk, 0o644); err != nil {
			t.Errorf("new file %d: %v", i, err)
		}
		m := stripeOST.FindStringSubmatch(c.lfs(t, "getstripe", "-y", small))
		if m == nil {
			t.Fatal("getstripe -y names no OST")
		}
		if m[1]+m[2] == "1" {
			t.Errorf("new file %d is on the full OST", i)
		}
	}
	must(t, os.Remove(path))
	again := filepath.Join(dir, "again")
	c.onOST(t, again, 1)
	must(t, poll(60*time.Second, func() error { // the objects go after the commit
		if err := os.WriteFile(again, chunk, 0o644); err != nil {
			return retry("a write after the removal: %v", err)
		}
		return nil
	}))
}
