package suite

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sizeOf is what stat says.
func sizeOf(t testing.TB, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return st.Size
}

// TestSizeIsRightAtOnceAfterTruncate (case 10).
func TestSizeIsRightAtOnceAfterTruncate(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		if got := shell(t, dir, "truncate -s 52 f && stat -c %s f"); got != "52\n" {
			t.Errorf("size after truncate -s 52: %q", got)
		}
		path := filepath.Join(dir, "f")
		for range 2 {
			fd, err := unix.Open(path, unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0)
			must(t, err)
			if got := sizeOf(t, path); got != 0 {
				t.Errorf("size after O_TRUNC: %d", got)
			}
			must(t, unix.Close(fd))
		}
		for i := range size(200, 5000) { // interleaved with writes and closes
			want := int64(i * 37 % 5000)
			fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
			must(t, err)
			_, err = unix.Pwrite(fd, []byte("x"), 5000)
			must(t, err)
			if i%2 == 0 {
				must(t, unix.Ftruncate(fd, want))
				must(t, unix.Close(fd))
			} else {
				must(t, unix.Close(fd))
				must(t, unix.Truncate(path, want))
			}
			if got := sizeOf(t, path); got != want {
				t.Fatalf("round %d: size %d, want %d", i, got, want)
			}
		}
	})
}

// TestNoStaleBytesAfterShrinkAndGrow (case 11): what was cut off reads as zeros after growing again, by read and by
// mapping, over stripe boundaries, and through an O_APPEND descriptor.
func TestNoStaleBytesAfterShrinkAndGrow(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		for name, flags := range map[string]int{"plain": 0, "append": unix.O_APPEND} {
			for _, cut := range []int{0, 1, 100, 4096, 65536, 65537, 300_000} {
				path := filepath.Join(dir, fmt.Sprintf("%s%d", name, cut))
				c.setstripe(t, path, 4, "64k")
				fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|flags, 0)
				must(t, err)
				_, err = unix.Write(fd, bytes.Repeat([]byte("A"), 1<<20))
				must(t, err)
				m, err := unix.Mmap(fd, 0, 1<<20, unix.PROT_READ, unix.MAP_SHARED)
				must(t, err)
				touched := m[1<<19] // the page is in the mapping
				_ = touched
				is(t, "ftruncate down", unix.Ftruncate(fd, int64(cut)), nil)
				is(t, "ftruncate up", unix.Ftruncate(fd, 1<<20), nil)
				want := append(bytes.Repeat([]byte("A"), cut), make([]byte, 1<<20-cut)...)
				got, err := readAll(fd)
				must(t, err)
				if err := differ(got, want, 0); err != nil {
					t.Errorf("%s, cut at %d, read: %v", name, cut, err)
				}
				if err := differ(m, want, 0); err != nil {
					t.Errorf("%s, cut at %d, mapping: %v", name, cut, err)
				}
				must(t, unix.Munmap(m))
				must(t, unix.Close(fd))
			}
		}
	})
}

// TestShorterOverwriteLeavesNoTail (case 13).
func TestShorterOverwriteLeavesNoTail(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		got := shell(t, dir, `printf 01234567890123456789 > f; printf ab > f; stat -c %s f; cat f`)
		if got != "2\nab" {
			t.Errorf("got %q", got)
		}
		path := filepath.Join(dir, "g")
		must(t, os.WriteFile(path, []byte("a long text that was there before"), 0o644))
		f, err := os.Open(path)
		must(t, err)
		defer f.Close()
		must(t, os.WriteFile(path, []byte("xy"), 0o644))
		if all, err := readAll(int(f.Fd())); err != nil || string(all) != "xy" {
			t.Errorf("a reader that had it open reads %q (%v)", all, err)
		}
	})
}

// TestCopyFileRangeOverStripeEdges (case 16).
func TestCopyFileRangeOverStripeEdges(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		from, length := size(4<<20+7, 64<<20+7), size(5<<20, 70<<20)
		src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
		c.setstripe(t, src, 4, "1M")
		c.setstripe(t, dst, 2, "64k")
		data := make([]byte, from+length+11)
		fillRandom(rand.New(rand.NewPCG(seed(t), 16)), data)
		must(t, os.WriteFile(src, data, 0o644))
		a, err := unix.Open(src, unix.O_RDWR|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(a)
		b, err := unix.Open(dst, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		must(t, err)
		defer unix.Close(b)
		in, out := int64(from), int64(3)
		for left := length; left > 0; {
			n, err := unix.CopyFileRange(a, &in, b, &out, left, 0)
			if err != nil || n <= 0 {
				t.Fatalf("copy_file_range with %d bytes left: %d, %v", left, n, err)
			}
			left -= n
		}
		got, err := readAll(b)
		must(t, err)
		must(t, differ(got, append(make([]byte, 3), data[from:from+length]...), 0))
		if n, err := unix.CopyFileRange(a, &in, b, &out, 1<<20, 0); err != nil || n != 11 {
			t.Errorf("over the end of the source: %d, %v, want 11", n, err)
		}
		in, out = 0, 100
		_, err = unix.CopyFileRange(a, &in, a, &out, 1000, 0)
		is(t, "overlapping ranges of one file", err, unix.EINVAL)
	})
}

// TestExtremeOffsetsAreRefusedOrSparse (case 17): nothing of that kind ends a process or takes memory.
func TestExtremeOffsetsAreRefusedOrSparse(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		path := filepath.Join(c.folder(t), "f")
		var before int64
		if !c.plain {
			before = c.resident(t)
		}
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		must(t, err)
		defer unix.Close(fd)
		one := []byte("x")
		try := map[string]func() error{
			"truncate 1E":         func() error { return unix.Ftruncate(fd, 1<<60) },
			"truncate 2^63-1":     func() error { return unix.Ftruncate(fd, 1<<63-1) },
			"write at 2^63-2":     func() error { _, err := unix.Pwrite(fd, one, 1<<63-2); return err },
			"write at 2^62":       func() error { _, err := unix.Pwrite(fd, one, 1<<62); return err },
			"allocate 2^62":       func() error { return unix.Fallocate(fd, 0, 0, 1<<62) },
			"allocate at 2^63-10": func() error { return unix.Fallocate(fd, 0, 1<<63-10, 9) },
			"write at 2^40":       func() error { _, err := unix.Pwrite(fd, one, 1<<40); return err },
		}
		for name, f := range try {
			must(t, unix.Ftruncate(fd, 0))
			within(t, 30*time.Second, name, func() error {
				err := f()
				if err != nil && !errors.Is(err, unix.EFBIG) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EOPNOTSUPP) {
					return err
				}
				return nil
			})
			var st unix.Stat_t
			must(t, unix.Fstat(fd, &st))
			if st.Blocks > 4096 {
				t.Errorf("%s: the file takes %d blocks", name, st.Blocks)
			}
		}
		must(t, unix.Ftruncate(fd, 0))
		_, err = unix.Pwrite(fd, one, 1<<40)
		must(t, err)
		got := make([]byte, 2)
		n, err := unix.Pread(fd, got, 1<<40)
		if err != nil || n != 1 || got[0] != 'x' {
			t.Errorf("read at 2^40: %d bytes, %q, %v", n, got[:n], err)
		}
		n, err = unix.Pread(fd, got, 1<<39)
		if err != nil || n != 2 || got[0] != 0 {
			t.Errorf("read in the hole: %d bytes, %q, %v", n, got[:max(n, 0)], err)
		}
		if !c.plain {
			must(t, c.alive())
			if grown := c.resident(t) - before; grown > 128<<20 {
				t.Errorf("memory grew by %d MiB", grown>>20)
			}
		}
	})
}

// TestSparseFilesTakeLittleAndHideNoData (case 18): blocks, SEEK_HOLE before and after a flush, and cp --sparse.
func TestSparseFilesTakeLittleAndHideNoData(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		path := filepath.Join(dir, "f")
		c.setstripe(t, path, 2, "64k")
		far := int64(size(32<<20, 1<<30))
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		must(t, err)
		defer unix.Close(fd)
		want := make([]byte, far+4096)
		for _, off := range []int64{0, far / 2, far} {
			copy(want[off:], bytes.Repeat([]byte("d"), 4096))
			_, err = unix.Pwrite(fd, want[off:off+4096], off)
			must(t, err)
		}
		must(t, holes(fd, want))
		must(t, unix.Fsync(fd))
		must(t, holes(fd, want))
		var st unix.Stat_t
		must(t, unix.Fstat(fd, &st))
		if st.Blocks < 3*8 || st.Blocks > 2048 {
			t.Errorf("%d blocks for three pages of data", st.Blocks)
		}
		if _, err := unix.Seek(fd, far+4096, unix.SEEK_DATA); !errors.Is(err, unix.ENXIO) {
			t.Errorf("SEEK_DATA at the end: %v, want ENXIO", err)
		}
		shell(t, dir, "cp --sparse=always f g; cmp f g; cp --sparse=auto f h; cmp f h; tar cSf t.tar f; rm g h; tar xOf t.tar f | cmp f -")
	})
}

// TestFallocateModes (case 19): punch over a stripe edge, keep size, zero range; blocks go down; what is not supported
// says so.
func TestFallocateModes(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		path := filepath.Join(c.folder(t), "f")
		c.setstripe(t, path, 4, "1M")
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		must(t, err)
		defer unix.Close(fd)
		want := bytes.Repeat([]byte("B"), 6<<20)
		_, err = unix.Pwrite(fd, want, 0)
		must(t, err)
		must(t, unix.Fsync(fd))
		check := func(what string, err error, zeroFrom, zeroTo, length int) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", what, err)
				return
			}
			if length > len(want) {
				want = append(want, make([]byte, length-len(want))...)
			}
			clear(want[min(zeroFrom, len(want)):min(zeroTo, len(want))])
			got, err := readAll(fd)
			must(t, err)
			if err := differ(got, want, 0); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		blocks := func() int64 {
			var st unix.Stat_t
			must(t, unix.Fsync(fd))
			must(t, unix.Fstat(fd, &st))
			return st.Blocks
		}
		before := blocks()
		const keep, punch = unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE
		check("punch", unix.Fallocate(fd, punch|keep, 512<<10, 2<<20), 512<<10, 512<<10+2<<20, 0)
		if after := blocks(); after > before-4000 {
			t.Errorf("blocks %d before the punch of 4096, %d after", before, after)
		}
		check("punch of a part of a page", unix.Fallocate(fd, punch|keep, 5000, 10), 5000, 5010, 0)
		check("keep size", unix.Fallocate(fd, keep, 6<<20, 1<<20), 0, 0, 0)
		check("punch past the end", unix.Fallocate(fd, punch|keep, 6<<20, 1<<20), 0, 0, 0)
		check("allocate past the end", unix.Fallocate(fd, 0, 6<<20, 4096), 0, 0, 6<<20+4096)
		err = unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, 3<<20-100, 200)
		if !errors.Is(err, unix.EOPNOTSUPP) {
			check("zero range", err, 3<<20-100, 3<<20+100, 0)
		}
		is(t, "punch without keep size", unix.Fallocate(fd, punch, 0, 4096), unix.EOPNOTSUPP)
		is(t, "length 0", unix.Fallocate(fd, 0, 0, 0), unix.EINVAL)
		is(t, "negative offset", unix.Fallocate(fd, 0, -1, 10), unix.EINVAL)
		is(t, "insert range", unix.Fallocate(fd, unix.FALLOC_FL_INSERT_RANGE, 4096, 4096), unix.EOPNOTSUPP, nil)
		ro, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(ro)
		is(t, "on a read-only descriptor", unix.Fallocate(ro, 0, 0, 10), unix.EBADF)
	})
}

// TestUnprivilegedChangesClearSetuid (cases 19 and 38): write, truncate, fallocate and chown by a plain user clear
// setuid, and setgid where the group may execute; root's writes keep them.
func TestUnprivilegedChangesClearSetuid(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		needMount(t)
		dir := c.folder(t)
		must(t, os.Chmod(dir, 0o777))
		change := map[string]func(path string, fd int) error{
			"write":      func(_ string, fd int) error { _, err := unix.Pwrite(fd, []byte("x"), 0); return err },
			"ftruncate":  func(_ string, fd int) error { return unix.Ftruncate(fd, 1) },
			"truncate":   func(path string, _ int) error { return unix.Truncate(path, 1) },
			"fallocate":  func(_ string, fd int) error { return unix.Fallocate(fd, 0, 0, 100) },
			"open trunc": func(path string, _ int) error { return openClose(path, unix.O_WRONLY|unix.O_TRUNC) },
			"chgrp":      func(path string, _ int) error { return unix.Chown(path, -1, 2001) },
		}
		for name, f := range change {
			for _, user := range []int{0, 1001} {
				path := filepath.Join(dir, fmt.Sprintf("%s-%d", name, user))
				must(t, os.WriteFile(path, []byte("some bytes"), 0o755))
				must(t, os.Chown(path, 1001, 1001))
				must(t, unix.Chmod(path, 0o6755))
				var err error
				as(t, user, user, []int{2001}, func() {
					var fd int
					if fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
						err = errors.Join(f(path, fd), unix.Close(fd))
					}
				})
				must(t, err)
				want := uint32(0o755)
				if user == 0 && name != "chgrp" {
					want = 0o6755
				}
				var st unix.Stat_t
				must(t, unix.Stat(path, &st))
				if got := st.Mode & 0o7777; got != want {
					t.Errorf("%s by uid %d: mode %o, want %o", name, user, got, want)
				}
			}
		}
	})
}

func openClose(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// TestReportOfAnEarlierCloseDoesNotTakeTheSize: what a file's last close tells the file system, late, about its size must
// not win over what a later open has written; nor may the answer to a chmod, link or rename bring an old size back.
func TestReportOfAnEarlierCloseDoesNotTakeTheSize(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		data := bytes.Repeat([]byte("d"), 200_000)
		for i := range size(300, 10_000) {
			path := filepath.Join(dir, fmt.Sprintf("f%d", i))
			fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
			must(t, err)
			must(t, unix.Ftruncate(fd, 0))
			must(t, unix.Close(fd))
			length := 1 + i*97%len(data)
			fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
			must(t, err)
			_, err = unix.Pwrite(fd, data[:length], 0)
			must(t, err)
			if i%2 == 0 {
				must(t, unix.Close(fd))
			}
			change := [...]func() error{
				func() error { return nil },
				func() error { return os.Chmod(path, 0o600) },
				func() error { return os.Lchown(path, 5, 6) },
				func() error { return os.Link(path, path+"link") },
				func() error { return os.Rename(path, path+"new") },
				func() error { return unix.Setxattr(path, "user.a", []byte("b"), 0) },
				func() error { return os.Chtimes(path, time.Unix(1, 0), time.Unix(2, 0)) },
			}[i/2%7]
			must(t, change())
			if i/2%7 == 4 {
				path += "new"
			}
			if got := sizeOf(t, path); got != int64(length) {
				t.Fatalf("file %d: size %d after %d bytes were written", i, got, length)
			}
			if got, err := os.ReadFile(path); err != nil || len(got) != length {
				t.Fatalf("file %d: %d bytes read of %d (%v)", i, len(got), length, err)
			}
			if i%2 != 0 {
				must(t, unix.Close(fd))
			}
			must(t, os.Truncate(path, int64(length/2))) // nobody has it open
			if got, err := os.ReadFile(path); err != nil || len(got) != length/2 {
				t.Fatalf("file %d: %d bytes read after a truncate to %d (%v)", i, len(got), length/2, err)
			}
		}
	})
}

// TestTruncateOfAFileNeverOpenedGrowsIt: the new bytes read as zeros.
func TestTruncateOfAFileNeverOpenedGrowsIt(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		for i, length := range []int{1, 3, 4096, 70_000, 5 << 20} {
			path := filepath.Join(dir, fmt.Sprintf("f%d", i))
			must(t, unix.Mknod(path, unix.S_IFREG|0o644, 0))
			must(t, unix.Truncate(path, int64(length)))
			if got := sizeOf(t, path); got != int64(length) {
				t.Errorf("size %d after a truncate to %d", got, length)
			}
			got, err := os.ReadFile(path)
			must(t, err)
			if err := differ(got, make([]byte, length), 0); err != nil {
				t.Errorf("length %d: %v", length, err)
			}
			must(t, os.Chmod(path, 0o600))
			if got := sizeOf(t, path); got != int64(length) {
				t.Errorf("size %d after a chmod, want %d", got, length)
			}
		}
	})
}
