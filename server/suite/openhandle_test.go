package suite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// futimens sets the times of an open file as futimens(3) does: by descriptor alone.
func futimens(fd int, atime, mtime unix.Timespec) error {
	times := [2]unix.Timespec{atime, mtime}
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// TestDescriptorWorksAfterAnotherFileTookItsName (case 01): what is done through a descriptor reaches the nameless inode,
// and the file that has its name now stays as it is.
func TestDescriptorWorksAfterAnotherFileTookItsName(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		f1, f2 := filepath.Join(dir, "f1"), filepath.Join(dir, "f2")
		must(t, os.WriteFile(f1, []byte("one"), 0o644))
		must(t, os.WriteFile(f2, []byte("two"), 0o640))
		fd, err := unix.Open(f1, unix.O_RDWR|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		must(t, os.Rename(f2, f1))
		var before, after, st unix.Stat_t
		must(t, unix.Lstat(f1, &before))
		is(t, "fchmod", unix.Fchmod(fd, 0o600), nil)
		is(t, "fchown", unix.Fchown(fd, 7, 8), nil)
		is(t, "futimens", futimens(fd, unix.Timespec{Sec: 5, Nsec: 6}, unix.Timespec{Sec: 7, Nsec: 8}), nil)
		is(t, "fsetxattr", unix.Fsetxattr(fd, "user.x", []byte("1"), 0), nil)
		is(t, "ftruncate", unix.Ftruncate(fd, 1), nil)
		_, err = unix.Pwrite(fd, []byte("abc"), 1)
		is(t, "pwrite", err, nil)
		is(t, "fstat", unix.Fstat(fd, &st), nil)
		if st.Nlink != 0 || st.Mode&0o7777 != 0o600 || st.Uid != 7 || st.Gid != 8 || st.Size != 4 {
			t.Errorf("the nameless inode: nlink %d mode %o uid %d gid %d size %d", st.Nlink, st.Mode, st.Uid, st.Gid, st.Size)
		}
		must(t, unix.Lstat(f1, &after))
		if before.Ino != after.Ino || before.Mode != after.Mode || before.Mtim != after.Mtim || before.Size != after.Size {
			t.Errorf("the file that has the name now changed: %+v, before %+v", after, before)
		}
		if got, err := os.ReadFile(f1); err != nil || string(got) != "two" {
			t.Errorf("%s holds %q (%v)", f1, got, err)
		}
	})
}

// TestOpenFolderWorksAfterItsRemoval (case 02).
func TestOpenFolderWorksAfterItsRemoval(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := filepath.Join(c.folder(t), "d")
		must(t, os.Mkdir(dir, 0o755))
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		must(t, os.Remove(dir))
		var st unix.Stat_t
		is(t, "fchmod", unix.Fchmod(fd, 0o700), nil)
		is(t, "futimens", futimens(fd, unix.Timespec{Sec: 5}, unix.Timespec{Sec: 7}), nil)
		is(t, "fstat", unix.Fstat(fd, &st), nil)
		if st.Nlink != 0 || st.Mode&0o7777 != 0o700 || st.Mtim.Sec != 7 {
			t.Errorf("nlink %d mode %o mtime %d", st.Nlink, st.Mode, st.Mtim.Sec)
		}
		for name, flags := range map[string]int{"create": unix.O_CREAT | unix.O_WRONLY, "open": unix.O_RDONLY} {
			_, err := unix.Openat(fd, "x", flags, 0o644)
			is(t, name, err, unix.ENOENT)
		}
		is(t, "mkdirat", unix.Mkdirat(fd, "x", 0o755), unix.ENOENT)
		is(t, "symlinkat", unix.Symlinkat("y", fd, "x"), unix.ENOENT)
		n, err := unix.Getdents(fd, make([]byte, 4096))
		is(t, "getdents", err, nil, unix.ENOENT)
		if n > 0 {
			t.Errorf("getdents gives %d bytes", n)
		}
	})
}

// TestHandleFollowsItsFileThroughRenames (case 05): the old path does not come back at close.
func TestHandleFollowsItsFileThroughRenames(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		p := func(name string) string { return filepath.Join(dir, name) }
		must(t, os.Mkdir(p("d"), 0o755))
		f, err := os.Create(p("d/f"))
		must(t, err)
		_, err = f.WriteString("before ")
		must(t, err)
		must(t, os.Rename(p("d"), p("e")))
		_, err = f.WriteString("after")
		must(t, err)
		must(t, f.Close())
		if _, err := os.Lstat(p("d")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the old folder is back: %v", err)
		}
		if got, err := os.ReadFile(p("e/f")); err != nil || string(got) != "before after" {
			t.Errorf("e/f holds %q (%v)", got, err)
		}
		shell(t, dir, `mkdir a; cd a; mv ../a ../b; mkdir inner; touch x; echo y > inner/y; test "$(cat ../b/inner/y)" = y; test -e ../b/x; test ! -e ../a`)
	})
}

// TestWriterGoesOnAfterItsFileIsRemoved (case 07): an appending writer neither hangs nor fails, and the space is free
// when it closes.
func TestWriterGoesOnAfterItsFileIsRemoved(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		path := filepath.Join(c.folder(t), "f")
		var before int64
		if !c.plain {
			before = c.stored(t)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
		must(t, err)
		const total = 48 << 20
		chunk := make([]byte, 1<<20)
		for i := range chunk {
			chunk[i] = byte(i%255 + 1)
		}
		within(t, 60*time.Second, "appending to a removed file", func() error {
			for n := 0; n < total; n += len(chunk) {
				if n == total/2 {
					if err := os.Remove(path); err != nil {
						return err
					}
				}
				if _, err := f.Write(chunk); err != nil {
					return fmt.Errorf("at %d: %w", n, err)
				}
			}
			return f.Sync()
		})
		var st unix.Stat_t
		must(t, unix.Fstat(int(f.Fd()), &st))
		if st.Nlink != 0 || st.Size != total {
			t.Errorf("nlink %d size %d", st.Nlink, st.Size)
		}
		got := make([]byte, len(chunk))
		_, err = f.ReadAt(got, total-int64(len(got)))
		must(t, err)
		must(t, differ(got, chunk, total-len(got)))
		if !c.plain && c.stored(t)-before < total/2 {
			t.Errorf("the data folders grew by %d bytes for %d written", c.stored(t)-before, total)
		}
		within(t, 30*time.Second, "close", f.Close)
		if !c.plain {
			must(t, poll(40*time.Second, func() error {
				if grown := c.stored(t) - before; grown > total/2 {
					return retry("the data folders still hold %d bytes more than before", grown)
				}
				return nil
			}))
		}
	})
}
