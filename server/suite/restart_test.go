package suite

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestEverythingIsAsItWasAfterARestart stops every process in order and starts them again on the same folders.
func TestEverythingIsAsItWasAfterARestart(t *testing.T) {
	for _, layout := range layouts(true) {
		t.Run(layout, func(t *testing.T) {
			c := newCluster(t, layout, clusterOptions{osts: 4})
			buildTree(t, c, c.mnt)
			want := inventory(t, c, c.mnt)
			for round := range 2 {
				must(t, c.stop())
				c.restart(t)
				compareInventory(t, round, inventory(t, c, c.mnt), want)
			}
			// The file system goes on where it was: new files, new links to old ones, old ones written and removed.
			shell(t, c.mnt, `echo new > new; ln plain/text again; test "$(stat -c %h again)" = 4; echo more >> plain/text; rm -rf plain striped sparse; echo x > striped`)
		})
	}
}

// TestCombinedRolesServeFromOneFolder: mds,oss with one base folder in one process, and a client beside it, over a restart.
func TestCombinedRolesServeFromOneFolder(t *testing.T) {
	c := newCluster(t, layoutCombined, clusterOptions{osts: 3})
	buildTree(t, c, c.mnt)
	want := inventory(t, c, c.mnt)
	must(t, c.stop())
	c.restart(t)
	compareInventory(t, 0, inventory(t, c, c.mnt), want)
	for i := range 3 {
		c.onOST(t, fmt.Sprintf("%s/on%d", c.mnt, i), i)
	}
}

// TestPlainFolderTreeIsDescribed checks the tree and its description where no cluster is.
func TestPlainFolderTreeIsDescribed(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		buildTree(t, c, dir)
		want := inventory(t, c, dir)
		compareInventory(t, 0, inventory(t, c, dir), want)
		must(t, os.WriteFile(dir+"/plain/text", []byte("other"), 0o644))
		if got := inventory(t, c, dir); slices.Equal(got, want) {
			t.Error("a changed file leaves the description as it is")
		}
	})
}

func compareInventory(t testing.TB, round int, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		var g, w string
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Errorf("restart %d:\n  got  %s\n  want %s", round+1, g, w)
		}
	}
}

// buildTree makes a file of every kind and whatever else a file system must keep.
func buildTree(t testing.TB, c *cluster, dir string) {
	t.Helper()
	p := func(n string) string { return filepath.Join(dir, n) }
	rng := rand.New(rand.NewPCG(3, 3))
	data := func(n int) []byte {
		b := make([]byte, n)
		fillRandom(rng, b)
		return b
	}
	must(t, os.Mkdir(p("plain"), 0o755))
	must(t, os.WriteFile(p("plain/text"), []byte("some text\n"), 0o640))
	must(t, os.Link(p("plain/text"), p("plain/second")))
	must(t, os.Link(p("plain/text"), p("third")))
	must(t, os.Symlink("plain/text", p("symlink")))
	must(t, os.Symlink(strings.Repeat("long/", 200), p("long symlink")))
	must(t, unix.Mkfifo(p("fifo"), 0o620))
	must(t, unix.Mknod(p("char"), unix.S_IFCHR|0o600, int(unix.Mkdev(5, 261))))
	must(t, unix.Mknod(p("block"), unix.S_IFBLK|0o660, int(unix.Mkdev(259, 70000))))
	must(t, unix.Mknod(p("socket"), unix.S_IFSOCK|0o600, 0))
	must(t, os.WriteFile(p(strings.Repeat("n", 255)), nil, 0o600))
	must(t, os.WriteFile(p("odd\nname\xff"), data(3), 0o600))
	must(t, os.WriteFile(p("program"), data(100), 0o755))
	must(t, os.Chown(p("program"), 1001, 2001))
	must(t, unix.Chmod(p("program"), 0o6755))
	must(t, os.Mkdir(p("shared"), 0o777))
	must(t, unix.Chmod(p("shared"), 0o3777))
	for i := range 300 {
		must(t, os.WriteFile(p(fmt.Sprintf("plain/f%d", i)), data(i*7), 0o644))
	}

	for n, layout := range map[string][2]string{"striped": {"4", "64k"}, "two": {"2", "1M"}, "one": {"1", "256k"}} {
		c.setstripe(t, p(n), min(int(layout[0][0]-'0'), max(c.osts, 1)), layout[1])
		must(t, os.WriteFile(p(n), data(1<<20+77), 0o644))
	}
	must(t, os.Mkdir(p("folder layout"), 0o755))
	if !c.plain {
		c.lfs(t, "setstripe", "-c", "2", "-S", "128k", p("folder layout"))
	}
	must(t, os.MkdirAll(p("folder layout/sub"), 0o755))
	must(t, os.WriteFile(p("folder layout/sub/file"), data(500_000), 0o644))

	f, err := os.Create(p("sparse"))
	must(t, err)
	for _, off := range []int64{0, 5 << 20, 1 << 30} {
		_, err = f.WriteAt(data(5000), off)
		must(t, err)
	}
	must(t, f.Truncate(3<<30))
	must(t, f.Sync()) // blocks are what the OSTs' disks say once they have it
	must(t, f.Close())

	for _, n := range []string{"user.small", "trusted.t", "security.s"} {
		must(t, unix.Lsetxattr(p("program"), n, []byte("value of "+n), 0))
		must(t, unix.Lsetxattr(p("plain"), n, data(64), 0))
	}
	must(t, unix.Lsetxattr(p("program"), "user.large", data(2500), 0))
	must(t, unix.Lsetxattr(p("symlink"), "trusted.link", []byte("l"), 0))
	must(t, unix.Lsetxattr(p("plain/f1"), "user.empty", nil, 0))
	acl := []byte{2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 6, 0, 0xe9, 3, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255,
		0x10, 0, 7, 0, 255, 255, 255, 255, 0x20, 0, 0, 0, 255, 255, 255, 255}
	must(t, unix.Setxattr(p("plain/f2"), "system.posix_acl_access", acl, 0))
	must(t, os.Mkdir(p("acl"), 0o755))
	must(t, unix.Setxattr(p("acl"), "system.posix_acl_default", acl, 0))
	must(t, os.Mkdir(p("acl/inherits"), 0o755))
	must(t, os.WriteFile(p("acl/inherits/file"), []byte("x"), 0o666))

	must(t, os.WriteFile(p("gone"), data(1000), 0o644)) // what was removed stays away
	must(t, os.Remove(p("gone")))
	must(t, os.Rename(p("plain/f3"), p("acl/renamed")))
	for i, n := range []string{"plain/f5", "symlink", "fifo", "plain", "striped"} {
		at := unix.Timespec{Sec: 1_000_000_000 + int64(i), Nsec: 123_456_789 + int64(i)}
		mt := unix.Timespec{Sec: -5_000 - int64(i), Nsec: 987_654_321 - int64(i)}
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, p(n), []unix.Timespec{at, mt}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

// inventory is one line per file: kind, mode, owner, links, size, blocks, device, inode number, times to the
// nanosecond, birth time, extended attributes, content's checksum or target, and layout.
func inventory(t testing.TB, c *cluster, root string) []string {
	t.Helper()
	var lines []string
	must(t, filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%q mode %o %d:%d links %d size %d blocks %d device %#x inode %d mtime %d.%09d ctime %d.%09d",
			rel, st.Mode, st.Uid, st.Gid, st.Nlink, st.Size, st.Blocks, st.Rdev, st.Ino, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec)
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			line += fmt.Sprintf(" atime %d.%09d", st.Atim.Sec, st.Atim.Nsec)
		}
		if b, err := birth(path); err == nil {
			line += fmt.Sprintf(" birth %d", b.UnixNano())
		} else if !c.plain {
			return err
		}
		for _, n := range attributeNames(path) {
			value := make([]byte, 65536)
			k, err := unix.Lgetxattr(path, n, value)
			if err != nil {
				return fmt.Errorf("%s of %s: %w", n, rel, err)
			}
			line += fmt.Sprintf(" %s=%.40x", n, sha256.Sum256(value[:k]))
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			sum, err := checksum(path)
			if err != nil {
				return err
			}
			line += " content " + sum
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" target %q", target)
		}
		if kind := st.Mode & unix.S_IFMT; !c.plain && !strings.Contains(rel, "\n") && interesting(rel) &&
			(kind == unix.S_IFREG || kind == unix.S_IFDIR) {
			flags := []string{"getstripe", "-y"}
			if kind == unix.S_IFDIR {
				flags = append(flags, "-d")
			}
			line += " layout " + c.lfs(t, append(flags, path)...)
		}
		lines = append(lines, line)
		return nil
	}))
	return lines
}

// interesting leaves the layouts of the many like files out: each costs a process.
func interesting(rel string) bool { return !strings.HasPrefix(rel, "plain/f") || len(rel) <= 8 }

// checksum reads the data of a file, skipping holes, and sums it; O_NOATIME keeps its atime.
func checksum(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	sum := sha256.New()
	end, err := unix.Seek(fd, 0, unix.SEEK_END)
	if err != nil {
		return "", err
	}
	buf, zero := make([]byte, 64<<10), make([]byte, 64<<10)
	for off := int64(0); off < end; {
		data, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if err != nil {
			break // ENXIO: a hole to the end
		}
		off = data &^ (64<<10 - 1) // the same pieces, however the holes are told
		n, err := pread(fd).ReadAt(buf, off)
		if n == 0 {
			return "", fmt.Errorf("read at %d: %w", off, err)
		}
		if !bytes.Equal(buf[:n], zero[:n]) {
			fmt.Fprintf(sum, "%d:", off)
			sum.Write(buf[:n])
		}
		off += 64 << 10
	}
	return fmt.Sprintf("%.16x", sum.Sum(nil)), nil
}
