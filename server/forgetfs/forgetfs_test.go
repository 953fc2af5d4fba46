package forgetfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/strakefs/strake/server/forgetfs"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if forgetfs.Helper() || storeChild() {
		return
	}
	os.Exit(m.Run())
}

// newDisk starts a disk for one test.
func newDisk(t *testing.T) *forgetfs.Disk {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: FUSE mounts")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse here")
	}
	base := t.TempDir()
	d, err := forgetfs.Start(filepath.Join(base, "backing"), filepath.Join(base, "disk"), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put writes a file from its start, and flushes it if sync is set.
func put(t *testing.T, path, text string, sync bool) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	must(t, err)
	_, err = f.WriteString(text)
	must(t, err)
	if sync {
		must(t, f.Sync())
	}
	must(t, f.Close())
}

// fsync flushes a file or folder.
func fsync(t *testing.T, path string) {
	t.Helper()
	must(t, fsyncErr(path))
}

func fsyncErr(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// tree is every path below dir with its content; folders end with a slash.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if e.IsDir() {
			all[name+"/"] = ""
			return nil
		}
		b, err := os.ReadFile(path)
		all[name] = string(b)
		return err
	}))
	return all
}

// brief describes a tree in one line.
func brief(all map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		text := all[name]
		if len(text) > 20 {
			text = fmt.Sprintf("%.8s…(%d)", text, len(text))
		}
		parts = append(parts, strings.TrimSuffix(name+"="+text, "/="))
	}
	return strings.Join(parts, " ")
}

// TestForgetKeepsWhatWasFlushed: after a cut there is exactly what the package's comment promises.
func TestForgetKeepsWhatWasFlushed(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	for _, c := range []struct {
		name string
		do   func(t *testing.T, d string)
		want string
	}{
		{"nothing was flushed", func(t *testing.T, d string) { put(t, d+"/f", "1", false) }, ""},
		{"the fsync of a new file keeps its name", func(t *testing.T, d string) { put(t, d+"/f", "1", true) }, "f=1"},
		{"and the folders above", func(t *testing.T, d string) {
			must(t, os.MkdirAll(d+"/a/b", 0o700))
			must(t, os.Mkdir(d+"/a/other", 0o700))
			put(t, d+"/a/b/f", "1", true)
		}, "a a/b a/b/f=1"},
		{"later bytes go", func(t *testing.T, d string) {
			put(t, d+"/f", long, true)
			put(t, d+"/f", "new", false)
			must(t, os.Truncate(d+"/f", 5))
		}, "f=xxxxxxxx…(10000)"},
		{"the fsync of a folder keeps names, not bytes", func(t *testing.T, d string) {
			put(t, d+"/f", "1", false)
			fsync(t, d)
		}, "f="},
		{"a rename is pending until the folder's fsync", func(t *testing.T, d string) {
			put(t, d+"/f", "1", true)
			must(t, os.Rename(d+"/f", d+"/g"))
			fsync(t, d+"/g")
		}, "f=1"},
		{"and durable after it", func(t *testing.T, d string) {
			put(t, d+"/f", "1", true)
			put(t, d+"/g", "2", true)
			must(t, os.Rename(d+"/f", d+"/g"))
			fsync(t, d)
		}, "g=1"},
		{"across folders too, whichever is flushed", func(t *testing.T, d string) {
			must(t, os.Mkdir(d+"/a", 0o700))
			put(t, d+"/a/f", "1", true)
			must(t, os.Rename(d+"/a/f", d+"/g"))
			fsync(t, d+"/a")
		}, "a g=1"},
		{"an unlink is pending", func(t *testing.T, d string) {
			put(t, d+"/f", "1", true)
			must(t, os.Remove(d+"/f"))
		}, "f=1"},
		{"an unlink that is flushed", func(t *testing.T, d string) {
			put(t, d+"/f", "1", true)
			must(t, os.Remove(d+"/f"))
			fsync(t, d)
		}, ""},
		{"a link is pending", func(t *testing.T, d string) {
			put(t, d+"/f", "1", true)
			must(t, os.Link(d+"/f", d+"/g"))
		}, "f=1"},
		{"a symbolic link", func(t *testing.T, d string) {
			put(t, d+"/f", "1", true)
			must(t, os.Symlink("f", d+"/s"))
			must(t, os.Symlink("f", d+"/t"))
			fsync(t, d)
		}, "f=1 s=1 t=1"},
		{"a size is kept by fdatasync", func(t *testing.T, d string) {
			put(t, d+"/f", "1", true)
			f, err := os.OpenFile(d+"/f", os.O_RDWR, 0)
			must(t, err)
			must(t, f.Truncate(3))
			must(t, unix.Fdatasync(int(f.Fd())))
			must(t, f.Truncate(1))
			must(t, f.Close())
		}, "f=1\x00\x00"},
		{"a file made and removed between", func(t *testing.T, d string) {
			put(t, d+"/f", "1", false)
			must(t, os.Remove(d+"/f"))
			put(t, d+"/f", "2", true)
		}, "f=2"},
		{"syncfs keeps nothing", func(t *testing.T, d string) {
			put(t, d+"/f", "1", false)
			f, err := os.Open(d)
			must(t, err)
			must(t, unix.Syncfs(int(f.Fd())))
			must(t, f.Close())
		}, ""},
		{"a folder moved below another", func(t *testing.T, d string) {
			must(t, os.MkdirAll(d+"/a/b/c", 0o700))
			must(t, os.Rename(d+"/a/b", d+"/b"))
			must(t, os.Rename(d+"/a", d+"/b/c/a"))
			fsync(t, d)
		}, "b b/c b/c/a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDisk(t)
			c.do(t, d.Dir)
			must(t, d.Forget())
			if got := brief(tree(t, d.Dir)); got != c.want {
				t.Errorf("the mount has %q, want %q", got, c.want)
			}
			if got := brief(tree(t, d.Backing)); got != c.want {
				t.Errorf("the backing folder has %q, want %q", got, c.want)
			}
		})
	}
}

// TestAttributesComeWithTheFlush: mode, owner, times and extended attributes are pending until fsync.
func TestAttributesComeWithTheFlush(t *testing.T) {
	d := newDisk(t)
	path := d.Dir + "/f"
	put(t, path, "1", true)
	change := func(mode os.FileMode, value string) {
		must(t, os.Chmod(path, mode))
		must(t, os.Chown(path, 7, 8))
		must(t, unix.Setxattr(path, "user.a", []byte(value), 0))
	}
	see := func() string {
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		value := make([]byte, 100)
		k, err := unix.Getxattr(path, "user.a", value)
		return fmt.Sprintf("%o %d %s %v", st.Mode&0o777, st.Uid, value[:max(k, 0)], err)
	}
	change(0o640, "x")
	must(t, d.Forget())
	if got := see(); got != "600 0  no data available" {
		t.Errorf("not flushed: %s", got)
	}
	change(0o640, "x")
	fsync(t, path)
	change(0o644, "y")
	must(t, d.Forget())
	if got := see(); got != "640 7 x <nil>" {
		t.Errorf("flushed: %s", got)
	}
}

// TestMapSeesWrites: a shared map of a file shows what pwrite wrote, as bbolt needs it, before a flush and after.
func TestMapSeesWrites(t *testing.T) {
	d := newDisk(t)
	f, err := os.OpenFile(d.Dir+"/f", os.O_CREATE|os.O_RDWR, 0o600)
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(64<<10))
	m, err := unix.Mmap(int(f.Fd()), 0, 1<<30, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	defer func() { must(t, unix.Munmap(m)) }()
	for i := range 64 {
		text := fmt.Appendf(nil, "%8d", i)
		at := int64(i*977) % (60 << 10)
		_, err := f.WriteAt(text, at)
		must(t, err)
		if !bytes.Equal(m[at:at+8], text) {
			t.Fatalf("write %d at %d: the map has %q", i, at, m[at:at+8])
		}
		if i%10 == 0 {
			must(t, f.Sync())
		}
	}
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	g, err := os.Open(d.Dir + "/f")
	must(t, err)
	defer g.Close()
	if err := unix.Flock(int(g.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("a second lock: %v", err)
	}
}

// TestFailedFsyncLosesTheBytes: they stay readable while the file is open, and no later fsync writes them.
func TestFailedFsyncLosesTheBytes(t *testing.T) {
	d := newDisk(t)
	path := d.Dir + "/f"
	put(t, path, "old", true)
	f, err := os.OpenFile(path, os.O_RDWR, 0) // while somebody has it open
	must(t, err)
	defer f.Close()
	put(t, path, "new", false)
	must(t, d.Fail("fsync", "f", 0, 1))
	if err := fsyncErr(path); !errors.Is(err, unix.EIO) {
		t.Fatalf("fsync: %v", err)
	}
	fsync(t, path)
	if got := brief(tree(t, d.Dir)); got != "f=new" {
		t.Errorf("before the cut: %s", got)
	}
	must(t, d.Forget())
	if got := brief(tree(t, d.Dir)); got != "f=old" {
		t.Errorf("after the cut: %s", got)
	}
}

// TestOffFailsEverything: with the power off nothing is answered and nothing is kept.
func TestOffFailsEverything(t *testing.T) {
	d := newDisk(t)
	f, err := os.Create(d.Dir + "/f")
	must(t, err)
	defer f.Close()
	_, err = f.WriteString("1")
	must(t, err)
	must(t, d.Off())
	if err := f.Sync(); !errors.Is(err, unix.EIO) {
		t.Errorf("fsync: %v", err)
	}
	must(t, d.Forget())
	if err := f.Sync(); err == nil {
		t.Error("a file of the old mount can be flushed")
	}
	if got := brief(tree(t, d.Dir)); got != "" {
		t.Errorf("after the cut: %s", got)
	}
}

// TestRoomEnds: a bounded disk is full at its bound, and has room again when something goes.
func TestRoomEnds(t *testing.T) {
	d := newDisk(t)
	put(t, d.Dir+"/f", strings.Repeat("a", 8192), true)
	must(t, d.Room(64<<10))
	var st unix.Statfs_t
	must(t, unix.Statfs(d.Dir, &st))
	if got := int64(st.Bavail) * st.Frsize; got != 64<<10 {
		t.Errorf("statfs tells %d bytes", got)
	}
	f, err := os.Create(d.Dir + "/g")
	must(t, err)
	defer f.Close()
	k, err := f.Write(make([]byte, 1<<20))
	if k != 64<<10 || !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("%d bytes written, %v", k, err)
	}
	put(t, d.Dir+"/f", "over", true) // has its place
	must(t, os.Remove(d.Dir+"/f"))
	k, err = f.Write(make([]byte, 8192))
	if k != 8192 || err != nil {
		t.Fatalf("after a removal: %d bytes, %v", k, err)
	}
}
