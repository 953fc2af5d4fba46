package suite

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// forgetful starts a cluster for one test whose servers' data lies on disks that lose what was not flushed.
func forgetful(t testing.TB, clients int) *mounts {
	t.Helper()
	c := newCluster(t, layoutProcesses, clusterOptions{osts: 2, clients: clients, disks: true})
	return &mounts{cluster: c, at: c.dirs()}
}

// fsyncPath flushes a file or folder.
func fsyncPath(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fsync(fd), unix.Close(fd))
}

// pattern is n bytes that tell their place and what they belong to.
func pattern(mark string, n int) []byte {
	b := make([]byte, 0, n+32)
	for len(b) < n {
		b = fmt.Appendf(b, "%s@%d ", mark, len(b))
	}
	return b[:n]
}

// TestWorkOnAFileOfALostClientIsKept: one client makes a file, another opens, writes and flushes it, and the MDS loses its
// power together with the first. The file and its data are there.
func TestWorkOnAFileOfALostClientIsKept(t *testing.T) {
	m := forgetful(t, 2)
	rnd := rand.New(rand.NewPCG(seed(t), 0))
	for round := range 3 {
		name := fmt.Sprintf("f%d", round)
		data := pattern(name, 200_000)
		must(t, os.WriteFile(filepath.Join(m.at[0], name), nil, 0o640))
		fd, err := unix.Open(filepath.Join(m.at[1], name), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, pwrite(fd, string(data), 0))
		must(t, unix.Fsync(fd))
		m.powerCut(t, rnd, "mds")
		m.killClient(t, 0)
		must(t, m.startServers("mds"))
		m.startClient(t, 0)
		must(t, pwrite(fd, "more", int64(len(data)))) // the handle lives on
		must(t, unix.Close(fd))
		for i, at := range m.at {
			got, err := os.ReadFile(filepath.Join(at, name))
			if err != nil || !bytes.Equal(got, append(bytes.Clone(data), "more"...)) {
				t.Errorf("round %d, M%d: %d bytes, %v", round, i, len(got), err)
			}
		}
	}
}

// TestFlushedFilesSurviveALossOfAllPower: what was flushed is there after everything has lost its power: name, size and data,
// of new files, of files that had an older valid size, and of names that a folder's fsync covers.
func TestFlushedFilesSurviveALossOfAllPower(t *testing.T) {
	m := forgetful(t, 1)
	rnd := rand.New(rand.NewPCG(seed(t), 0))
	dir := filepath.Join(m.at[0], "d")
	must(t, os.Mkdir(dir, 0o755))
	m.lfs(t, "setstripe", "-c", "2", "-S", "64K", dir)
	want := map[string][]byte{}
	write := func(name string, flags int, data []byte, off int64) {
		t.Helper()
		fd, err := unix.Open(filepath.Join(dir, name), unix.O_WRONLY|unix.O_CLOEXEC|flags, 0o644)
		must(t, err)
		must(t, pwrite(fd, string(data), off))
		must(t, unix.Fsync(fd))
		must(t, unix.Close(fd))
	}
	// An older size, valid on the MDT and on its disk.
	for _, name := range []string{"longer", "shorter", "same"} {
		write(name, unix.O_CREAT, pattern("old", 300_000), 0)
	}
	<-time.After(2 * time.Second) // the size is reported when the file is closed, and committed
	for _, d := range m.disks {
		must(t, d.Sync())
	}
	write("longer", 0, pattern("new", 400_000), 100_000)
	want["longer"] = append(pattern("old", 100_000), pattern("new", 400_000)...)
	must(t, os.Truncate(filepath.Join(dir, "shorter"), 70_000))
	must(t, fsyncPath(filepath.Join(dir, "shorter")))
	want["shorter"] = pattern("old", 300_000)[:70_000]
	write("same", 0, pattern("mid", 1000), 150_000)
	want["same"] = append(append(pattern("old", 150_000), pattern("mid", 1000)...), pattern("old", 300_000)[151_000:]...)
	write("new", unix.O_CREAT|unix.O_EXCL, pattern("new", 123_456), 0)
	want["new"] = pattern("new", 123_456)
	must(t, os.MkdirAll(filepath.Join(dir, "sub/sub"), 0o755))
	write("sub/sub/deep", unix.O_CREAT, pattern("deep", 10), 0)
	want["sub/sub/deep"] = pattern("deep", 10)
	write("before", unix.O_CREAT, pattern("moved", 1000), 0)
	must(t, os.Rename(filepath.Join(dir, "before"), filepath.Join(dir, "after")))
	must(t, fsyncPath(dir))
	want["after"] = pattern("moved", 1000)

	what := m.powerCut(t, rnd, "mds", "oss0", "oss1")
	m.killClient(t, 0)
	must(t, m.startServers("mds", "oss0", "oss1"))
	m.startClient(t, 0)
	for name, data := range want {
		st, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if st.Size() != int64(len(data)) {
			t.Errorf("%s: stat tells %d bytes, expected %d (%s)", name, st.Size(), len(data), what)
		}
		got, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		if !bytes.Equal(got, data) {
			t.Errorf("%s: %v (%s)", name, differ(got, data, 0), what)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "before")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old name of a renamed file: %v", err)
	}
}

// TestNoAnsweredWriteIsLostWhenAllOSTsLosePower: two clients write without a flush while all OSSs lose their power at once,
// again and again. Every write that was answered is there.
func TestNoAnsweredWriteIsLostWhenAllOSTsLosePower(t *testing.T) {
	m := forgetful(t, 2)
	rnd := rand.New(rand.NewPCG(seed(t), 0))
	dirs := m.folders(t)
	m.lfs(t, "setstripe", "-c", "2", "-S", "64K", dirs[0])
	stop := make(chan struct{})
	var wait sync.WaitGroup
	var passes atomic.Int64
	const files, fileBytes, block = 4, 2 << 20, 48 << 10
	shadows := make([][]byte, len(dirs)*files)
	errs := make([]error, len(shadows))
	for i := range shadows {
		shadows[i] = make([]byte, fileBytes)
		wait.Go(func() {
			path := filepath.Join(dirs[i%len(dirs)], fmt.Sprintf("f%d", i))
			errs[i] = overwrite(path, shadows[i], block, uint64(i), stop, &passes)
		})
	}
	rounds := size(3, 20)
	for range rounds {
		from := passes.Load()
		must(t, poll(time.Minute, func() error {
			if n := passes.Load() - from; n < 100 {
				return retry("%d writes", n)
			}
			return nil
		}))
		m.powerCut(t, rnd, "oss0", "oss1")
		must(t, m.startServers("oss0", "oss1"))
	}
	close(stop)
	within(t, 2*time.Minute, "the end of the writers", func() error { wait.Wait(); return nil })
	t.Logf("%d writes", passes.Load())
	for i, want := range shadows {
		must(t, errs[i])
		for k, dir := range dirs {
			got, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("f%d", i)))
			must(t, err)
			if !bytes.Equal(got, want[:len(got)]) || !bytes.Equal(want[len(got):], make([]byte, len(want)-len(got))) {
				t.Errorf("file %d on M%d: %d bytes, %v", i, k, len(got), differ(got, want[:len(got)], 0))
			}
		}
	}
}

// overwrite writes blocks at random places until stop is closed, into a file and its shadow.
func overwrite(path string, shadow []byte, block int, number uint64, stop <-chan struct{}, passes *atomic.Int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	rnd := rand.New(rand.NewPCG(number, 7))
	for n := 0; ; n++ {
		select {
		case <-stop:
			return nil
		default:
		}
		off := rnd.IntN(len(shadow) - block)
		data := pattern(fmt.Sprintf("%d.%d", number, n), block)
		if _, err := f.WriteAt(data, int64(off)); err != nil {
			return fmt.Errorf("write %d: %w", n, err)
		}
		copy(shadow[off:], data)
		passes.Add(1)
	}
}
