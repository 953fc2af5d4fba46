package suite

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// listing calls got for every entry of one pass over the folder, "." and ".." left out, read with small getdents calls.
func listing(dir string, buffer int, got func(name string, kind byte) error) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, buffer)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil || n == 0 {
			return err
		}
		if err := entries(buf[:n], got); err != nil {
			return err
		}
	}
}

// entries walks struct linux_dirent64: ino 8, off 8, reclen 2, type 1, name.
func entries(b []byte, got func(name string, kind byte) error) error {
	for len(b) > 0 {
		length := int(binary.NativeEndian.Uint16(b[16:]))
		if length < 20 || length > len(b) {
			return fmt.Errorf("getdents: record of %d bytes", length)
		}
		name := unix.ByteSliceToString(b[19:length])
		if name != "." && name != ".." {
			if err := got(name, b[18]); err != nil {
				return err
			}
		}
		b = b[length:]
	}
	return nil
}

// populate creates count empty files named f000000… in dir, from four tasks.
func populate(t testing.TB, dir string, count int) {
	t.Helper()
	var group sync.WaitGroup
	failed := make(chan error, 4)
	for task := range 4 {
		group.Go(func() {
			for i := task; i < count; i += 4 {
				fd, err := unix.Open(fmt.Sprintf("%s/f%06d", dir, i), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
				if err == nil {
					err = unix.Close(fd)
				}
				if err != nil {
					failed <- fmt.Errorf("file %d: %w", i, err)
					return
				}
			}
		})
	}
	group.Wait()
	close(failed)
	for err := range failed {
		t.Fatal(err)
	}
}

// TestFolderListsWholeWhileFilesAreDeleted lists a large folder again and again while others delete every second file:
// each name that survives is seen exactly once in every pass, none twice.
func TestFolderListsWholeWhileFilesAreDeleted(t *testing.T) {
	judged(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		count := size(5_000, 200_000)
		populate(t, dir, count)
		stop := make(chan struct{})
		var group sync.WaitGroup
		failed := make(chan error, 2)
		for task := range 2 {
			group.Go(func() {
				for i := 2 * task; i < count; i += 4 { // even numbers go, odd ones stay
					if err := unix.Unlink(fmt.Sprintf("%s/f%06d", dir, i)); err != nil {
						failed <- err
						return
					}
				}
			})
		}
		go func() { group.Wait(); close(stop) }()
		for pass, last := 0, false; !last; pass++ {
			select {
			case <-stop:
				last = true // one more pass after the end
			default:
			}
			checkPass(t, dir, count, last)
		}
		select {
		case err := <-failed:
			t.Fatal(err)
		default:
		}
	})
}

func checkPass(t testing.TB, dir string, count int, after bool) {
	t.Helper()
	seen := make([]bool, count)
	must(t, listing(dir, 4096, func(name string, _ byte) error {
		var i int
		if _, err := fmt.Sscanf(name, "f%06d", &i); err != nil || i >= count {
			return fmt.Errorf("foreign name %q", name)
		}
		if seen[i] {
			return fmt.Errorf("%s is listed twice", name)
		}
		if after && i%2 == 0 {
			return fmt.Errorf("%s was deleted before", name)
		}
		seen[i] = true
		return nil
	}))
	for i := 1; i < count; i += 2 {
		if !seen[i] {
			t.Fatalf("f%06d is missing from the listing", i)
		}
	}
}

// TestHugeFolderStreams (case 33): the first entry of a large folder comes at once, the whole is listed in seconds, and
// no node's memory grows with the folder.
func TestHugeFolderStreams(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		count := size(20_000, 1_000_000)
		populate(t, dir, count)
		var before int64
		if !c.plain {
			before = c.resident(t)
		}
		began := time.Now()
		var first time.Duration
		entries := 0
		must(t, listing(dir, 64<<10, func(string, byte) error {
			if entries == 0 {
				first = time.Since(began)
			}
			entries++
			return nil
		}))
		all := time.Since(began)
		t.Logf("%d entries: first after %v, all after %v", entries, first, all)
		if entries != count {
			t.Errorf("%d entries listed, want %d", entries, count)
		}
		if first > 100*time.Millisecond {
			t.Errorf("the first entry took %v, want less than 100 ms", first)
		}
		if limit := size(5*time.Second, 60*time.Second); all > limit {
			t.Errorf("the listing took %v, want less than %v", all, limit)
		}
		if !c.plain {
			if grown := c.resident(t) - before; grown > 256<<20 {
				t.Errorf("memory grew by %d MiB while listing", grown>>20)
			}
		}
		run(t, "", "find", dir, "-type", "f", "-delete")
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("after find -delete: %d entries, error %v", len(left), err)
		}
	})
}

// TestEntryKindsAreInListings (case 54): d_type is filled in, so that overlays and find need no stat.
func TestEntryKindsAreInListings(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		p := func(name string) string { return filepath.Join(dir, name) }
		must(t, os.WriteFile(p("file"), nil, 0o644))
		must(t, os.Mkdir(p("folder"), 0o755))
		must(t, os.Symlink("file", p("link")))
		must(t, unix.Mkfifo(p("fifo"), 0o644))
		must(t, unix.Mknod(p("char"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))))
		must(t, unix.Mknod(p("block"), unix.S_IFBLK|0o644, int(unix.Mkdev(7, 0))))
		must(t, unix.Mknod(p("socket"), unix.S_IFSOCK|0o644, 0))
		want := map[string]byte{"file": unix.DT_REG, "folder": unix.DT_DIR, "link": unix.DT_LNK, "fifo": unix.DT_FIFO,
			"char": unix.DT_CHR, "block": unix.DT_BLK, "socket": unix.DT_SOCK}
		got := map[string]byte{}
		must(t, listing(dir, 4096, func(name string, kind byte) error { got[name] = kind; return nil }))
		for name, kind := range want {
			if got[name] != kind {
				t.Errorf("%s has type %d in the listing, want %d", name, got[name], kind)
			}
		}
	})
}

// TestRemoveTreeEmptiesInOneRun (case 32): rm -rf of a deep tree leaves nothing, also while another process lists it.
func TestRemoveTreeEmptiesInOneRun(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		tree := filepath.Join(dir, "tree")
		width, depth := size(4, 10), size(4, 5)
		var grow func(path string, level int)
		grow = func(path string, level int) {
			must(t, os.Mkdir(path, 0o755))
			for i := range 3 {
				must(t, os.WriteFile(filepath.Join(path, fmt.Sprintf("file%d", i)), []byte("x"), 0o644))
			}
			for i := 0; level > 0 && i < width; i++ {
				grow(filepath.Join(path, fmt.Sprintf("dir%d", i)), level-1)
			}
		}
		for round := range 2 {
			grow(tree, depth)
			stop, listed := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(listed)
				for {
					select {
					case <-stop:
						return
					default:
					}
					if round == 1 {
						_, _ = output("", "find", tree) // ENOENT on the way is right
					}
				}
			}()
			run(t, "", "rm", "-rf", tree)
			close(stop)
			<-listed
			if _, err := os.Lstat(tree); !os.IsNotExist(err) {
				t.Fatalf("round %d: %s is still there: %v", round, tree, err)
			}
		}
	})
}
