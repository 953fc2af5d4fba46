package suite

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSpecialFilesAndSockets (case 42).
func TestSpecialFilesAndSockets(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		p := func(name string) string { return filepath.Join(dir, name) }
		must(t, unix.Mkfifo(p("fifo"), 0o600))
		within(t, 20*time.Second, "a line through a fifo", func() error {
			out, err := output(dir, "sh", "-c", "echo line > fifo & cat fifo; wait")
			if err == nil && out != "line\n" {
				err = fmt.Errorf("got %q", out)
			}
			return err
		})
		must(t, unix.Mknod(p("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		must(t, unix.Mknod(p("loop"), unix.S_IFBLK|0o660, int(unix.Mkdev(7, 250))))
		for name, want := range map[string]uint64{"null": unix.Mkdev(1, 3), "loop": unix.Mkdev(7, 250)} {
			var st unix.Stat_t
			must(t, unix.Lstat(p(name), &st))
			if st.Rdev != want {
				t.Errorf("%s has device %#x, want %#x", name, st.Rdev, want)
			}
		}
		t.Chdir(dir) // socket paths are short
		l, err := net.Listen("unix", "socket")
		must(t, err)
		defer l.Close()
		go func() {
			if conn, err := l.Accept(); err == nil {
				_, _ = conn.Write([]byte("hello"))
				conn.Close()
			}
		}()
		conn, err := net.DialTimeout("unix", "socket", 5*time.Second)
		must(t, err)
		defer conn.Close()
		buf := make([]byte, 5)
		if _, err := conn.Read(buf); err != nil || string(buf) != "hello" {
			t.Errorf("through the socket: %q, %v", buf, err)
		}
		_, err = net.Listen("unix", "socket")
		is(t, "a second bind", err, unix.EADDRINUSE)
	})
}

// TestWorkingFolderRemovedByAnother (case 42): ENOENT, no hang and no ghost.
func TestWorkingFolderRemovedByAnother(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		got := shell(t, dir, `mkdir w; cd w; rmdir ../w; ls -A 2>/dev/null || true; touch x 2>/dev/null && echo touched; mkdir y 2>/dev/null && echo made; echo end`)
		if got != "end\n" {
			t.Errorf("inside the removed folder: %q", got)
		}
		if _, err := os.Lstat(filepath.Join(dir, "w")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the folder is back: %v", err)
		}
	})
}

// TestNamelessFilesGetANameByLink (case 42): O_TMPFILE, linked or not, and O_EXCL that forbids it.
func TestNamelessFilesGetANameByLink(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
		must(t, err)
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte("text"))
		must(t, err)
		var st unix.Stat_t
		must(t, unix.Fstat(fd, &st))
		if st.Nlink != 0 || st.Size != 4 || st.Mode != unix.S_IFREG|0o640 {
			t.Errorf("nlink %d size %d mode %o", st.Nlink, st.Size, st.Mode)
		}
		must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, dir+"/f", unix.AT_SYMLINK_FOLLOW))
		if got, err := os.ReadFile(dir + "/f"); err != nil || string(got) != "text" {
			t.Errorf("the linked file holds %q (%v)", got, err)
		}
		excl, err := unix.Open(dir, unix.O_TMPFILE|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		must(t, err)
		defer unix.Close(excl)
		is(t, "link of one opened with O_EXCL", unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", excl), unix.AT_FDCWD,
			dir+"/g", unix.AT_SYMLINK_FOLLOW), unix.ENOENT)
	})
}

// TestRenameFlags (case 42): NOREPLACE, EXCHANGE and WHITEOUT.
func TestRenameFlags(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		p := func(name string) string { return filepath.Join(dir, name) }
		rename := func(a, b string, flags uint) error {
			return unix.Renameat2(unix.AT_FDCWD, p(a), unix.AT_FDCWD, p(b), flags)
		}
		must(t, os.WriteFile(p("a"), []byte("a"), 0o644))
		must(t, os.Mkdir(p("d"), 0o755))
		must(t, os.Mkdir(p("e"), 0o755))
		must(t, os.WriteFile(p("d/x"), []byte("x"), 0o644))
		is(t, "no replace", rename("a", "d", unix.RENAME_NOREPLACE), unix.EEXIST)
		is(t, "no replace, free", rename("a", "b", unix.RENAME_NOREPLACE), nil)
		is(t, "exchange of a file and a folder", rename("b", "d", unix.RENAME_EXCHANGE), nil)
		if got, err := os.ReadFile(p("b/x")); err != nil || string(got) != "x" {
			t.Errorf("b/x holds %q (%v)", got, err)
		}
		is(t, "exchange over folders", rename("b/x", "e", unix.RENAME_EXCHANGE), nil)
		is(t, "exchange with nothing", rename("d", "none", unix.RENAME_EXCHANGE), unix.ENOENT)
		is(t, "exchange with an ancestor", rename("b", "b/x", unix.RENAME_EXCHANGE), unix.EINVAL)
		is(t, "both flags", rename("b", "d", unix.RENAME_EXCHANGE|unix.RENAME_NOREPLACE), unix.EINVAL)
		is(t, "whiteout", rename("d", "gone", unix.RENAME_WHITEOUT), nil)
		var st unix.Stat_t
		must(t, unix.Lstat(p("d"), &st))
		if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
			t.Errorf("the whiteout has mode %o, device %#x", st.Mode, st.Rdev)
		}
		for name, want := range map[string]uint64{"b": 3, "": 3} { // b holds one folder; the top holds b
			must(t, unix.Lstat(p(name), &st))
			if st.Nlink != want && st.Nlink != 1 {
				t.Errorf("folder %q has %d links, want %d", name, st.Nlink, want)
			}
		}
	})
}

// TestFolderOfManyFolders (case 42): the link count of a folder counts its folders, or is 1.
func TestFolderOfManyFolders(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		count := size(300, 66_000)
		for i := range count {
			must(t, os.Mkdir(fmt.Sprintf("%s/%d", dir, i), 0o755))
		}
		var st unix.Stat_t
		must(t, unix.Lstat(dir, &st))
		if st.Nlink != uint64(count+2) && st.Nlink != 1 {
			t.Errorf("%d links with %d folders", st.Nlink, count)
		}
	})
}

// TestRunningBinaryCannotBeWritten (case 25).
func TestRunningBinaryCannotBeWritten(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		path := filepath.Join(dir, "sleep")
		sleep, err := exec.LookPath("sleep")
		must(t, err)
		run(t, "", "cp", sleep, path)
		cmd := exec.Command(path, "60")
		must(t, cmd.Start())
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		is(t, "open for write", openClose(path, unix.O_WRONLY), unix.ETXTBSY)
		is(t, "truncate", unix.Truncate(path, 0), unix.ETXTBSY)
		is(t, "chmod", unix.Chmod(path, 0o700), nil)
		is(t, "rename", os.Rename(path, path+"2"), nil)
		is(t, "unlink", os.Remove(path+"2"), nil)
	})
}

// TestProgramRunsStraightAfterItsLastClose (case 25): close returns when the last write handle is gone.
func TestProgramRunsStraightAfterItsLastClose(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		shell(t, c.folder(t), fmt.Sprintf(
			`i=0; while [ $i -lt %d ]; do rm -f x; cp /bin/true x; chmod +x x; ./x; i=$((i+1)); done`, size(100, 1000)))
	})
}

// TestMemberOfManyGroupsMayWrite (case 41): access through the 39th supplementary group.
func TestMemberOfManyGroupsMayWrite(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		needMount(t)
		path := filepath.Join(c.folder(t), "f")
		must(t, os.WriteFile(path, []byte("x"), 0o644))
		must(t, os.Chown(path, 0, 3039))
		must(t, unix.Chmod(path, 0o660))
		var groups []int
		for i := range 40 {
			groups = append(groups, 3001+i)
		}
		var with, without, again error
		as(t, 1001, 1001, groups, func() { with = openClose(path, unix.O_RDWR) })
		as(t, 1001, 1001, groups[:38], func() { without = openClose(path, unix.O_RDWR) })
		is(t, "open as a member", with, nil)
		is(t, "open as no member", without, unix.EACCES)
		must(t, unix.Chmod(path, 0o606)) // the group's bits count, not the others'
		as(t, 1001, 1001, groups, func() { again = openClose(path, unix.O_RDWR) })
		is(t, "open as a member whose group has no bits", again, unix.EACCES)
	})
}

// TestFreeSpaceIsConsistent (case 43).
func TestFreeSpaceIsConsistent(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		var fs unix.Statfs_t
		within(t, 10*time.Second, "statfs", func() error { return unix.Statfs(c.mnt, &fs) })
		if fs.Bavail > fs.Bfree || fs.Bfree > fs.Blocks || fs.Ffree > fs.Files || fs.Blocks == 0 || fs.Files == 0 {
			t.Errorf("statfs: %+v", fs)
		}
		if fs.Bsize <= 0 || fs.Frsize <= 0 || fs.Frsize&(fs.Frsize-1) != 0 {
			t.Errorf("block size %d, fragment size %d", fs.Bsize, fs.Frsize)
		}
		run(t, "", "df", "-h", c.mnt)
		run(t, "", "df", "-i", c.mnt)
		if c.plain {
			return
		}
		var disk unix.Statfs_t
		must(t, unix.Statfs(c.base, &disk))
		got, one := fs.Blocks*uint64(fs.Frsize), disk.Blocks*uint64(disk.Frsize)
		if got > one*uint64(c.osts) || got < one/2 {
			t.Errorf("%d bytes in all, with %d OSTs on a disk of %d", got, c.osts, one)
		}
	})
}

// TestFileHandlesOutliveTheCaches (case 53): what an NFS server holds is a handle; it opens the file after the kernel
// forgot it, after a rename, and not after the removal.
func TestFileHandlesOutliveTheCaches(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		path := filepath.Join(dir, "f")
		must(t, os.WriteFile(path, []byte("text"), 0o644))
		handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
		must(t, err)
		top, err := unix.Open(c.mnt, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(top)
		open := func() (string, error) {
			fd, err := unix.OpenByHandleAt(top, handle, unix.O_RDONLY|unix.O_CLOEXEC)
			if err != nil {
				return "", err
			}
			defer unix.Close(fd)
			text, err := readAll(fd)
			return string(text), err
		}
		must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0))
		if got, err := open(); err != nil || got != "text" {
			t.Errorf("after the caches were dropped: %q, %v", got, err)
		}
		must(t, os.Mkdir(dir+"/d", 0o755))
		must(t, os.Rename(path, dir+"/d/g"))
		must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0))
		if got, err := open(); err != nil || got != "text" {
			t.Errorf("after a rename: %q, %v", got, err)
		}
		must(t, os.Remove(dir+"/d/g"))
		must(t, os.WriteFile(path, []byte("another"), 0o644))
		must(t, poll(10*time.Second, func() error { // the last close is told to the file system later
			if _, err := open(); !errors.Is(err, unix.ESTALE) {
				return retry("after the removal: %v, want ESTALE", err)
			}
			return nil
		}))
	})
}

// TestNfsExport (case 53): where the kernel has an NFS server.
func TestNfsExport(t *testing.T) {
	need(t, "exportfs", "rpc.nfsd", "mount.nfs")
	_, _ = output("", "modprobe", "nfsd")
	if out, err := output("", "grep", "-w", "nfsd", "/proc/filesystems"); err != nil {
		t.Skipf("no NFS server in this kernel: %s", out)
	}
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		populate(t, dir, size(1000, 20_000))
		_, _ = output("", "mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd")
		run(t, "", "rpc.nfsd", "2")
		run(t, "", "exportfs", "-o", "rw,no_root_squash,insecure,no_subtree_check,fsid=77", "127.0.0.1:"+c.mnt)
		defer output("", "exportfs", "-u", "127.0.0.1:"+c.mnt)
		there := t.TempDir()
		run(t, "", "mount", "-t", "nfs4", "127.0.0.1:"+c.mnt, there)
		defer unix.Unmount(there, unix.MNT_DETACH)
		list, err := os.ReadDir(filepath.Join(there, filepath.Base(dir)))
		if err != nil || len(list) != size(1000, 20_000) {
			t.Errorf("%d entries over NFS, %v", len(list), err)
		}
		shell(t, filepath.Join(there, filepath.Base(dir)), "mkfifo p; echo x > y; mv y z; test $(cat z) = x; rm z p")
	})
}

// TestOverlayOnTop (case 54): as the lower folder it works; as the upper one it works or fails with EINVAL, because the
// kernel refuses upper folders whose dentries are revalidated (docs/design.md).
func TestOverlayOnTop(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		needMount(t)
		dir := c.folder(t)
		merged, local := t.TempDir(), t.TempDir()
		must(t, os.MkdirAll(dir+"/lower/d", 0o755))
		must(t, os.WriteFile(dir+"/lower/d/f", []byte("low"), 0o644))
		must(t, os.MkdirAll(local+"/upper", 0o755))
		must(t, os.MkdirAll(local+"/work", 0o755))
		err := unix.Mount("overlay", merged, "overlay", 0, fmt.Sprintf("lowerdir=%s/lower,upperdir=%s/upper,workdir=%s/work", dir, local, local))
		if errors.Is(err, unix.ENODEV) {
			t.Skip("no overlay in this kernel")
		}
		must(t, err)
		shell(t, merged, "test $(cat d/f) = low; echo up > d/f; test $(cat d/f) = up; rm d/f; test ! -e d/f; ls -la d >/dev/null")
		must(t, unix.Unmount(merged, 0))
		if got, err := os.ReadFile(dir + "/lower/d/f"); err != nil || string(got) != "low" {
			t.Errorf("the lower file holds %q (%v)", got, err)
		}

		must(t, os.Mkdir(dir+"/upper", 0o755))
		must(t, os.Mkdir(dir+"/work", 0o755))
		err = unix.Mount("overlay", merged, "overlay", 0, fmt.Sprintf("lowerdir=%s/upper,upperdir=%s/upper,workdir=%s/work", local, dir, dir))
		if err != nil {
			is(t, "overlay with the upper folder here", err, unix.EINVAL)
			return
		}
		shell(t, merged, "mkdir x; echo y > x/y; mv x z; test $(cat z/y) = y; rm -r z")
		must(t, unix.Unmount(merged, 0))
	})
}
