package suite

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// together runs all tasks at once and fails the test with what they return, or when not all have ended in time. Tasks
// must not use t.
func together(t testing.TB, limit time.Duration, tasks ...func() error) {
	t.Helper()
	results := make(chan error, len(tasks))
	for _, f := range tasks {
		go func() { results <- f() }()
	}
	over := time.After(limit)
	for i := range tasks {
		select {
		case err := <-results:
			if err != nil {
				t.Errorf("%v", err)
			}
		case <-over:
			t.Fatalf("%d of %d tasks have not ended after %v", len(tasks)-i, len(tasks), limit)
		}
	}
}

// until runs f until the time is over or it fails.
func until(limit time.Duration, f func(i int) error) func() error {
	return func() error {
		for began, i := time.Now(), 0; time.Since(began) < limit; i++ {
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	}
}

// appendTo is `echo text >> path`.
func appendTo(path, text string, flags int) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_CLOEXEC|flags, 0o644)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	n, err := unix.Write(fd, []byte(text))
	if err == nil && n < len(text) {
		err = io.ErrShortWrite
	}
	return err
}

// TestReplacedFileIsAlwaysFoundWholeOnOtherMounts (case 03): a file replaced by rename is there at all times, whole, and
// never older than before.
func TestReplacedFileIsAlwaysFoundWholeOnOtherMounts(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		content := func(i int) []byte {
			return bytes.Repeat(fmt.Appendf(nil, "%08d", i), 1+i*37%3000)
		}
		must(t, os.WriteFile(dirs[0]+"/target", content(0), 0o644))
		var stop atomic.Bool
		tasks := []func() error{func() error {
			defer stop.Store(true)
			for i := 1; i <= size(150, 1000); i++ {
				if err := os.WriteFile(dirs[0]+"/tmp", content(i), 0o644); err != nil {
					return err
				}
				if err := os.Rename(dirs[0]+"/tmp", dirs[0]+"/target"); err != nil {
					return err
				}
				text, err := os.ReadFile(dirs[1] + "/target") // what rename has returned is seen by a later call
				if err != nil || !bytes.Equal(text, content(i)) {
					return fmt.Errorf("after rename %d M1 reads %.8q, %d bytes: %v", i, text, len(text), err)
				}
			}
			return nil
		}}
		for n, dir := range dirs[1:] {
			tasks = append(tasks, func() error {
				for last := 0; !stop.Load(); {
					text, err := os.ReadFile(dir + "/target")
					if err != nil {
						return fmt.Errorf("M%d: %w", n+1, err)
					}
					var i int
					if _, err := fmt.Sscanf(string(text[:min(8, len(text))]), "%d", &i); err != nil || !bytes.Equal(text, content(i)) {
						return fmt.Errorf("M%d: a torn file of %d bytes: %.16q", n+1, len(text), text)
					}
					if i < last {
						return fmt.Errorf("M%d: version %d after version %d", n+1, i, last)
					}
					last = i
				}
				return nil
			})
		}
		together(t, size(60*time.Second, 10*time.Minute), tasks...)
	})
}

// TestCreateInFolderThatAnotherMountRemovedOrMoved (case 04): no entry lands in a removed folder, or in one that has
// another name by now; when a create and the rmdir meet, one of them fails.
func TestCreateInFolderThatAnotherMountRemovedOrMoved(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		m0, m1 := dirs[0], dirs[1]
		touch := func(path string) error {
			fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}
		for i := range size(20, 300) {
			must(t, os.Mkdir(m0+"/d", 0o755))
			must(t, touch(m0+"/d/warm"))
			must(t, os.Remove(m0+"/d/warm"))
			must(t, os.Remove(m1+"/d"))
			is(t, "create in a folder removed by another", touch(m0+"/d/x"), unix.ENOENT)
			is(t, "mkdir in it", unix.Mkdir(m0+"/d/x", 0o755), unix.ENOENT)

			must(t, os.Mkdir(m0+"/d", 0o755))
			must(t, touch(m0+"/d/warm"))
			must(t, os.Rename(m1+"/d", m1+"/e"))
			is(t, "create in a folder renamed by another", touch(m0+"/d/x"), unix.ENOENT)
			must(t, os.Mkdir(m1+"/d", 0o755)) // the same name, another folder
			must(t, touch(m0+"/d/x"))
			list, err := os.ReadDir(m0 + "/e")
			must(t, err)
			if len(list) != 1 || list[0].Name() != "warm" {
				t.Fatalf("round %d: the renamed folder holds %v, want warm alone", i, list)
			}
			must(t, os.RemoveAll(m1+"/e"))
			must(t, os.Remove(m1+"/d/x"))

			var made, removed error
			together(t, callLimit, func() error { made = touch(m0 + "/d/x"); return nil },
				func() error { removed = unix.Rmdir(m1 + "/d"); return nil })
			switch {
			case made == nil && errors.Is(removed, unix.ENOTEMPTY):
				must(t, os.RemoveAll(m1+"/d"))
			case removed == nil && errors.Is(made, unix.ENOENT):
			default:
				t.Fatalf("round %d: create says %v and rmdir says %v", i, made, removed)
			}
		}
	})
}

// TestWriterGoesOnAfterAnotherMountRemovedItsFile (case 07): the writer keeps its file until it closes it; then the space
// is free again.
func TestWriterGoesOnAfterAnotherMountRemovedItsFile(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		fd, err := unix.Open(dirs[0]+"/f", unix.O_CREAT|unix.O_RDWR|unix.O_APPEND|unix.O_CLOEXEC, 0o644)
		must(t, err)
		block := bytes.Repeat([]byte("0123456789abcdef"), 4096)
		written := 0
		write := until(size(time.Second, 30*time.Second), func(int) error {
			n, err := unix.Write(fd, block)
			written += max(n, 0)
			if err == nil && written > 256<<20 {
				err = unix.Ftruncate(fd, 0)
				written = 0
			}
			return err
		})
		together(t, size(30*time.Second, 2*time.Minute), write, func() error {
			<-time.After(size(300*time.Millisecond, 10*time.Second))
			return os.Remove(dirs[1] + "/f")
		})
		var st unix.Stat_t
		must(t, unix.Fstat(fd, &st))
		if st.Nlink != 0 || st.Size != int64(written) {
			t.Errorf("the removed file has %d links and %d bytes, want 0 and %d", st.Nlink, st.Size, written)
		}
		text, err := readAll(fd)
		must(t, err)
		if len(text) != written || !bytes.HasSuffix(text, block[:min(written, len(block))]) {
			t.Errorf("%d bytes are read back, %d were written", len(text), written)
		}
		_, err = os.Stat(dirs[1] + "/f")
		is(t, "stat of the removed name", err, unix.ENOENT)
		must(t, unix.Fsync(fd))
		if m.plain {
			unix.Close(fd)
			return
		}
		full := m.stored(t)
		must(t, unix.Close(fd))
		must(t, poll(30*time.Second, func() error {
			if now := m.stored(t); now > full-int64(written)/2 {
				return retry("the servers hold %d bytes after the close, %d before, of a file of %d", now, full, written)
			}
			return nil
		}))
	})
}

// TestAppendsOfAllMountsArrive (case 08): `>>` in turn and at once, from every mount; each line is there once, whole, and
// each writer's in its order.
func TestAppendsOfAllMountsArrive(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		lines := size(60, 2000)
		for i := range lines {
			for w, dir := range dirs[:2] {
				must(t, appendTo(dir+"/turns", fmt.Sprintf("%c%d\n", 'A'+w, i), 0))
			}
		}
		checkLines(t, dirs, "turns", 2, lines)
		for _, stripes := range []int{1, 2} {
			name := fmt.Sprintf("atonce%d", stripes)
			m.setstripe(t, dirs[0]+"/"+name, stripes, "64K")
			var tasks []func() error
			for w, dir := range dirs {
				tasks = append(tasks, func() error {
					for i := range lines {
						text := fmt.Sprintf("%c%d%s\n", 'A'+w, i, strings.Repeat(" .", i%400))
						if err := appendTo(dir+"/"+name, text, 0); err != nil {
							return err
						}
					}
					return nil
				})
			}
			together(t, size(time.Minute, 10*time.Minute), tasks...)
			checkLines(t, dirs, name, len(dirs), lines)
		}
	})
}

// checkLines checks a file of appended lines on every mount.
func checkLines(t testing.TB, dirs []string, name string, writers, lines int) {
	t.Helper()
	for n, dir := range dirs {
		text, err := os.ReadFile(dir + "/" + name)
		must(t, err)
		next := make([]int, writers)
		all := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		for i, l := range all {
			var who rune
			var number int
			if _, err := fmt.Sscanf(l, "%c%d", &who, &number); err != nil || int(who-'A') >= writers || number != next[who-'A'] {
				t.Errorf("M%d: line %d of %s is %.60q, after %.60q; next of each writer were %v", n, i, name, l, all[max(0, i-1)], next)
				return
			}
			next[who-'A']++
		}
		if len(all) != writers*lines {
			t.Errorf("M%d: %s has %d lines, want %d", n, name, len(all), writers*lines)
		}
	}
}

// TestAppendWithoutReadRightFromTwoMounts (case 09): write-only and direct appends by turns.
func TestAppendWithoutReadRightFromTwoMounts(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		for _, flags := range []int{0, unix.O_DIRECT, unix.O_DSYNC} {
			if m.local && flags == unix.O_DIRECT {
				continue
			}
			name := fmt.Sprintf("/t%x", flags)
			want := ""
			for i := range 8 {
				text := fmt.Sprintf("line %d\n", i)
				must(t, appendTo(dirs[i%len(dirs)]+name, text, flags))
				want += text
				got, err := os.ReadFile(dirs[(i+1)%len(dirs)] + name)
				must(t, err)
				if string(got) != want {
					t.Fatalf("flags %x, after append %d the next mount reads %q, want %q", flags, i, got, want)
				}
			}
		}
	})
}

// TestSizeIsRightOnBothMountsAfterTruncate (case 10).
func TestSizeIsRightOnBothMountsAfterTruncate(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		must(t, os.WriteFile(dirs[0]+"/f", make([]byte, 5000), 0o644))
		check := func(what string, want int64) {
			t.Helper()
			for n, dir := range dirs {
				if got := sizeOf(t, dir+"/f"); got != want {
					t.Errorf("after %s M%d sees %d bytes, want %d", what, n, got, want)
				}
			}
		}
		check("write", 5000)
		for i := range size(10, 200) {
			a, b := dirs[i%len(dirs)], dirs[(i+1)%len(dirs)]
			must(t, os.Truncate(a+"/f", 52))
			check("truncate", 52)
			must(t, openClose(a+"/f", unix.O_WRONLY|unix.O_TRUNC))
			check("O_TRUNC", 0)
			must(t, openClose(b+"/f", unix.O_WRONLY|unix.O_TRUNC))
			check("a second O_TRUNC", 0)
			must(t, os.Truncate(b+"/f", 300_000))
			check("growing", 300_000)
			fd, err := unix.Open(a+"/f", unix.O_RDWR|unix.O_CLOEXEC, 0)
			must(t, err)
			must(t, pwrite(fd, "end", 400_000))
			check("a write past the end", 400_003)
			must(t, unix.Ftruncate(fd, 200_000))
			check("ftruncate", 200_000)
			must(t, unix.Close(fd))
		}
	})
}

// TestReaderOfAGrowingFileNeverSeesZeros (case 12): records appended on one mount and followed on others.
func TestReaderOfAGrowingFileNeverSeesZeros(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		const record = 200
		make200 := func(i int) []byte {
			return append(bytes.Repeat(fmt.Appendf(nil, "%09d ", i), record/10)[:record-1], '\n')
		}
		m.setstripe(t, dirs[0]+"/f", 2, "64K")
		var wrote atomic.Int64
		var stop atomic.Bool
		writer := func() error {
			defer stop.Store(true)
			f, err := os.OpenFile(dirs[0]+"/f", os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			return until(size(2*time.Second, time.Minute), func(i int) error {
				_, err := f.Write(make200(i))
				wrote.Add(1)
				return err
			})()
		}
		follow := func(n int, reopen bool) func() error {
			return func() error {
				f, err := os.Open(dirs[n] + "/f")
				if err != nil {
					return err
				}
				defer func() { f.Close() }()
				buf := make([]byte, 50*record)
				for next, last := 0, false; ; {
					last = stop.Load()
					k, err := f.ReadAt(buf, int64(next)*record)
					if err != nil && err != io.EOF {
						return err
					}
					for i := range k / record {
						if got := buf[i*record:][:record]; !bytes.Equal(got, make200(next)) {
							return fmt.Errorf("M%d: record %d reads as %.40q", n, next, got)
						}
						next++
					}
					if k%record != 0 && !m.local {
						return fmt.Errorf("M%d: record %d has %d bytes", n, next, k%record)
					}
					if last && k == 0 {
						if int64(next) != wrote.Load() {
							return fmt.Errorf("M%d: %d records at the end, %d were written", n, next, wrote.Load())
						}
						return nil
					}
					if reopen {
						f.Close()
						if f, err = os.Open(dirs[n] + "/f"); err != nil {
							return err
						}
					}
				}
			}
		}
		together(t, size(time.Minute, 5*time.Minute), writer, follow(1, false), follow(2, true), follow(3, false))
	})
}

// TestShorterOverwriteLeavesNoTailOnOtherMounts (case 13).
func TestShorterOverwriteLeavesNoTailOnOtherMounts(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		for i := range size(20, 500) {
			a, b := dirs[i%len(dirs)], dirs[(i+1)%len(dirs)]
			must(t, os.WriteFile(a+"/f", []byte("twenty bytes of text"), 0o644))
			open, err := os.Open(b + "/f") // the reader has it open, and its pages
			must(t, err)
			text, err := io.ReadAll(open)
			must(t, err)
			if len(text) != 20 {
				t.Fatalf("%q of the long text", text)
			}
			must(t, os.WriteFile(a+"/f", []byte("2!"), 0o644))
			for n, dir := range dirs {
				text, err := os.ReadFile(dir + "/f")
				must(t, err)
				if string(text) != "2!" || sizeOf(t, dir+"/f") != 2 {
					t.Fatalf("M%d reads %q, %d bytes", n, text, sizeOf(t, dir+"/f"))
				}
			}
			text, err = readAll(int(open.Fd()))
			must(t, err)
			if string(text) != "2!" {
				t.Fatalf("what was open reads %q", text)
			}
			must(t, open.Close())
		}
	})
}

// TestGitWorksFromTwoMountsInTurn (cases 13, 21): commit on one mount, amend on the other; nothing is left of the longer
// message.
func TestGitWorksFromTwoMountsInTurn(t *testing.T) {
	need(t, "git")
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		git(t, dirs[0], "init", "-q", "r")
		for i := range size(4, 40) {
			a, b := dirs[i%2]+"/r", dirs[(i+1)%2]+"/r"
			must(t, os.WriteFile(a+"/file", bytes.Repeat(fmt.Appendf(nil, "%d\n", i), 5000-i*100), 0o644))
			git(t, a, "add", "file")
			git(t, a, "commit", "-q", "-m", "a long message of the first try, number "+fmt.Sprint(i))
			git(t, b, "commit", "-q", "--amend", "-m", fmt.Sprint("m", i))
			if out := strings.TrimSpace(git(t, a, "log", "-1", "--format=%B")); out != fmt.Sprint("m", i) {
				t.Fatalf("the message is %q", out)
			}
			if out := git(t, b, "status", "--porcelain"); out != "" {
				t.Fatalf("status on the other mount: %q", out)
			}
		}
		git(t, dirs[1]+"/r", "gc", "-q")
		git(t, dirs[0]+"/r", "fsck", "--full")
	})
}

// TestRandomFileOperationsOnTwoMountsMatchAShadowCopy (case 14): the file exerciser changes its mount at every step.
func TestRandomFileOperationsOnTwoMountsMatchAShadowCopy(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		for _, stripes := range []int{1, 4} {
			dirs := m.folders(t)
			m.setstripe(t, dirs[0]+"/fsx", stripes, "64k")
			s := seed(t)
			a, b := newExerciser(t, dirs[0]+"/fsx", s), newExerciser(t, dirs[1]+"/fsx", s+1)
			defer a.close()
			defer b.close()
			a.sync, b.sync = true, true
			rng := rand.New(rand.NewPCG(s, 9))
			for range size(1500, 100_000) {
				x, y := a, b
				if rng.IntN(2) == 0 {
					x, y = b, a
				}
				if err := x.step(); err != nil {
					t.Fatalf("stripes=%d on %s: %v\nits last operations:\n%s\nthose of the other mount:\n%s", stripes, x.path, err,
						strings.Join(x.trace, "\n"), strings.Join(y.trace, "\n"))
				}
				y.want, y.count = x.want, x.count
			}
			for _, x := range []*exerciser{a, b} {
				if err := x.verify(); err != nil {
					t.Fatalf("stripes=%d, at the end, on %s: %v\nlast operations there:\n%s\nand there:\n%s", stripes, x.path, err,
						strings.Join(a.trace, "\n"), strings.Join(b.trace, "\n"))
				}
			}
		}
	})
}

// TestSyncedMappingIsReadOnOtherMounts (case 14): 8 MiB written through a mapping and synced.
func TestSyncedMappingIsReadOnOtherMounts(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		const length = 8 << 20
		must(t, os.WriteFile(dirs[0]+"/f", nil, 0o644))
		must(t, os.Truncate(dirs[0]+"/f", length))
		for round := range size(3, 30) {
			dir := dirs[round%len(dirs)]
			fd, err := unix.Open(dir+"/f", unix.O_RDWR|unix.O_CLOEXEC, 0)
			must(t, err)
			b, err := unix.Mmap(fd, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, err)
			for i := 0; i < length; i += 8 {
				binary.LittleEndian.PutUint64(b[i:], uint64(i+round))
			}
			must(t, unix.Msync(b, unix.MS_SYNC))
			for n, dir := range dirs {
				text, err := os.ReadFile(dir + "/f")
				must(t, err)
				if len(text) != length {
					t.Fatalf("M%d: %d bytes", n, len(text))
				}
				for i := 0; i < length; i += 8 {
					if got := binary.LittleEndian.Uint64(text[i:]); got != uint64(i+round) {
						t.Fatalf("round %d, M%d at %d: %d, want %d", round, n, i, got, i+round)
					}
				}
			}
			must(t, unix.Munmap(b))
			must(t, unix.Close(fd))
		}
	})
}

// TestWritesOverStripeBoundariesAreWhole (case 15): two mounts write the same two stripes; what a third reads in one call
// is one's or the other's, never a mix.
func TestWritesOverStripeBoundariesAreWhole(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		if m.local {
			t.Skip("a local file system shows a write page by page")
		}
		dirs := m.folders(t)
		m.setstripe(t, dirs[0]+"/f", 4, "64K")
		const length = 2 * stripeBytes
		for _, off := range []int64{0, stripeBytes / 2, 1000} {
			how := 0
			if off%4096 != 0 {
				how = unix.O_DIRECT // the kernel makes two requests of a buffered write that begins inside a page it has not read
			}
			whole := func(dir string, flags int) error {
				fd, err := unix.Open(dir+"/f", unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				buf := make([]byte, length)
				n, err := unix.Pread(fd, buf, off)
				if err != nil {
					return err
				}
				if n != length || bytes.Count(buf, buf[:1]) != length {
					return fmt.Errorf("%d bytes at %d: %d of %q, %d of %q", n, off, bytes.Count(buf[:max(n, 0)], []byte("A")), "A", bytes.Count(buf[:max(n, 0)], []byte("B")), "B")
				}
				return nil
			}
			fds := [2]int{}
			for i := range fds {
				fd, err := unix.Open(dirs[i]+"/f", unix.O_RDWR|unix.O_CLOEXEC|how, 0)
				must(t, err)
				defer unix.Close(fd)
				fds[i] = fd
			}
			must(t, pwrite(fds[0], strings.Repeat("A", length), off))
			for range size(4, 40) {
				writer := func(i int) func() error {
					text := strings.Repeat(string(rune('A'+i)), length)
					return until(size(100*time.Millisecond, time.Second), func(int) error { return pwrite(fds[i], text, off) })
				}
				together(t, 30*time.Second, writer(0), writer(1),
					until(size(100*time.Millisecond, time.Second), func(int) error { return whole(dirs[2], unix.O_DIRECT) }))
				for _, dir := range dirs { // quiet now: the same through the kernel's pages
					must(t, whole(dir, 0))
				}
			}
		}
	})
}

// TestDirectAndBufferedWritersAgree (case 20): buffered writes of one mount and direct ones of another on the same pages.
func TestDirectAndBufferedWritersAgree(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		if m.local {
			t.Skip("a local file system may want direct writes aligned")
		}
		dirs := m.folders(t)
		m.setstripe(t, dirs[0]+"/f", 2, "64K")
		rng := rand.New(rand.NewPCG(seed(t), 0))
		want := make([]byte, 3*stripeBytes)
		buffered, err := unix.Open(dirs[0]+"/f", unix.O_RDWR|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(buffered)
		direct, err := unix.Open(dirs[1]+"/f", unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(direct)
		must(t, pwrite(buffered, string(want), 0))
		refused := 0
		for i := range size(300, 5000) {
			fd, unit := buffered, 1
			if i%2 == 1 {
				fd, unit = direct, pick(rng, 1, 512, 4096)
			}
			n := (1 + rng.IntN(20_000)) / unit * unit
			off := rng.IntN(len(want)-n) / unit * unit
			text := bytes.Repeat([]byte{byte(1 + i%255)}, n)
			err := pwrite(fd, string(text), int64(off))
			if err == unix.EINVAL && fd == direct && unit == 1 {
				refused++
				continue
			}
			must(t, err)
			copy(want[off:], text)
			for what, fd := range map[string]int{"buffered": buffered, "direct": direct} {
				got := make([]byte, len(want))
				n, err := unix.Pread(fd, got, 0)
				if err != nil || n != len(want) {
					t.Fatalf("write %d: the %s read gives %d bytes, want %d: %v", i, what, n, len(want), err)
				}
				if err := differ(got, want, 0); err != nil {
					t.Fatalf("write %d (%s, %d at %d), %s read: %v", i, map[bool]string{true: "direct", false: "buffered"}[i%2 == 1], len(text), off, what, err)
				}
			}
		}
		if refused > 0 {
			t.Logf("%d direct writes that were not aligned: EINVAL", refused)
		}
	})
}

// TestFioVerifiesOnAnotherMount (case 20).
func TestFioVerifiesOnAnotherMount(t *testing.T) {
	need(t, "fio")
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		for i, how := range []string{"--direct=1 --ioengine=libaio --iodepth=8", "--direct=0 --ioengine=psync", "--direct=0 --ioengine=mmap --end_fsync=1"} {
			if m.local && i == 0 {
				continue
			}
			job := fmt.Sprintf("--name=j --filename=fio%d --bs=4k --size=%s --rw=randwrite --verify=crc32c --verify_state_save=0 --randseed=7 --thread ", i, size("4m", "256m"))
			shell(t, dirs[0], "fio "+job+how+" --do_verify=0 >/dev/null")
			shell(t, dirs[1], "fio "+job+how+" --verify_only >/dev/null")
		}
	})
}

// TestRunningBinaryAndOtherMounts (case 25): what runs cannot be opened for writing on its own mount; a program copied on
// one mount runs straight away on the others, whole.
func TestRunningBinaryAndOtherMounts(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		sleep, err := exec.LookPath("sleep")
		must(t, err)
		run(t, "", "cp", sleep, dirs[0]+"/s")
		cmd := exec.Command(dirs[1]+"/s", "60")
		must(t, cmd.Start())
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		is(t, "open for write of what runs", openClose(dirs[1]+"/s", unix.O_WRONLY), unix.ETXTBSY)
		is(t, "truncate of what runs", unix.Truncate(dirs[1]+"/s", 0), unix.ETXTBSY)
		is(t, "chmod of what runs, elsewhere", unix.Chmod(dirs[0]+"/s", 0o700), nil)
		err = openClose(dirs[0]+"/s", unix.O_WRONLY)
		is(t, "open for write of what another mount runs", err, nil, unix.ETXTBSY)
		t.Logf("open for write of what another mount runs: %v", err)
		for i := range size(40, 1000) {
			a, b := dirs[i%len(dirs)], dirs[(i+1)%len(dirs)]
			shell(t, "", fmt.Sprintf("rm -f %s/x; cp /bin/true %s/x; chmod +x %s/x; %s/x; %s/x", a, a, a, b, a))
		}
	})
}

// TestCounterUnderLocksOfAllMountsIsExact (case 30): lock, read, add one, write, unlock, by many tasks on all mounts.
func TestCounterUnderLocksOfAllMountsIsExact(t *testing.T) {
	locks := map[string][2]func(fd int) error{
		"flock": {func(fd int) error { return unix.Flock(fd, unix.LOCK_EX) }, func(fd int) error { return unix.Flock(fd, unix.LOCK_UN) }},
		"fcntl": {func(fd int) error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLKW, whole(unix.F_WRLCK)) },
			func(fd int) error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, whole(unix.F_UNLCK)) }},
	}
	for kind, lock := range locks {
		t.Run(kind, func(t *testing.T) {
			coherent(t, func(t *testing.T, m *mounts) {
				dirs := m.folders(t)
				must(t, os.WriteFile(dirs[0]+"/counter", []byte("0"), 0o644))
				const each = 4 // tasks per mount
				rounds := size(15, 100)
				var tasks []func() error
				for task := range each * len(dirs) {
					dir := dirs[task%len(dirs)]
					tasks = append(tasks, func() error {
						fd, err := unix.Open(dir+"/counter", unix.O_RDWR|unix.O_CLOEXEC, 0)
						if err != nil {
							return err
						}
						defer unix.Close(fd)
						for range rounds {
							if err := lock[0](fd); err != nil {
								return fmt.Errorf("lock: %w", err)
							}
							if err := increment(dir + "/counter"); err != nil {
								return err
							}
							if err := lock[1](fd); err != nil {
								return fmt.Errorf("unlock: %w", err)
							}
						}
						return nil
					})
				}
				together(t, size(time.Minute, 10*time.Minute), tasks...)
				for n, dir := range dirs {
					if text, err := os.ReadFile(dir + "/counter"); err != nil || string(text) != fmt.Sprint(each*len(dirs)*rounds) {
						t.Errorf("M%d: the counter is %q, want %d: %v", n, text, each*len(dirs)*rounds, err)
					}
				}
				fd, err := unix.Open(dirs[0]+"/counter", unix.O_RDWR|unix.O_CLOEXEC, 0)
				must(t, err)
				must(t, lock[0](fd))
				must(t, os.Remove(dirs[1]+"/counter"))
				is(t, "unlock of a file just removed", lock[1](fd), nil)
				must(t, unix.Close(fd))
			})
		})
	}
}

func increment(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var n int
	if _, err := fmt.Sscan(string(text), &n); err != nil {
		return fmt.Errorf("the counter reads %q: %w", text, err)
	}
	return os.WriteFile(path, fmt.Append(nil, n+1), 0o644)
}

// TestListingWithAttributesCostsFewRequests (case 34): cold it takes pages of entries with attributes, warm about nothing,
// and what another mount changes is seen at once for little.
func TestListingWithAttributesCostsFewRequests(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		m.real(t)
		dirs := m.folders(t)
		files := size(1000, 10_000)
		populate(t, dirs[0], files)
		for i := range 20 {
			must(t, os.WriteFile(fmt.Sprintf("%s/f%06d", dirs[0], i), []byte("text"), 0o644))
		}
		if !soak() { // a folder that was just changed is no more cached for a while: 10 s by default
			m.setParam(t, "ldlm.namespaces.mdt-*.ctime_age_limit=1")
			defer m.setParam(t, "ldlm.namespaces.mdt-*.ctime_age_limit=10")
		}
		<-time.After(size(2500*time.Millisecond, 12*time.Second)) // and the reports of sizes come a little later
		count := func(what string, most int64, f func()) {
			t.Helper()
			before, kinds := m.requests(t, ""), m.requestKinds(t)
			f()
			n := m.requests(t, "") - before
			t.Logf("%s of %d files: %d requests:%s", what, files, n, since(kinds, m.requestKinds(t)))
			if n > most {
				t.Errorf("%s of %d files takes %d requests, want at most %d", what, files, n, most)
			}
		}
		list := func() { run(t, dirs[1], "ls", "-l") }
		stat := func() {
			for i := range files {
				sizeOf(t, fmt.Sprintf("%s/f%06d", dirs[1], i))
			}
		}
		count("ls -l cold", int64(files)/5, list)
		count("ls -l warm", 40, list)
		count("stat of all", 40, stat)
		must(t, os.WriteFile(dirs[0]+"/f000500", []byte("changed"), 0o644))
		count("stat of all after one change", 60, func() {
			stat()
			if n := sizeOf(t, dirs[1]+"/f000500"); n != 7 {
				t.Errorf("the changed file has %d bytes, want 7", n)
			}
		})
	})
}

// requestKinds is how many requests of each kind the servers have served.
func (m *mounts) requestKinds(t testing.TB) map[string]int64 {
	t.Helper()
	kinds := map[string]int64{}
	for _, n := range m.nodes {
		if n.http == "" || n.cmd == nil {
			continue
		}
		for line := range strings.SplitSeq(scrape(t, n.http), "\n") {
			if found := statsMetric.FindStringSubmatch(line); found != nil {
				_, rest, _ := strings.Cut(found[1], `op="`)
				op, _, _ := strings.Cut(rest, `"`)
				v, err := strconv.ParseFloat(found[2], 64)
				must(t, err)
				kinds[op] += int64(v)
			}
		}
	}
	return kinds
}

func since(before, after map[string]int64) string {
	var b strings.Builder
	for _, op := range slices.Sorted(maps.Keys(after)) {
		if n := after[op] - before[op]; n > 0 {
			fmt.Fprintf(&b, " %s %d", op, n)
		}
	}
	return b.String()
}

// TestANameThatIsReplacedAllTheTimeCanBeOpened: a file is written beside it and renamed over it, as editors and daemons
// do, on one mount and then on two; whoever opens the name meanwhile, on any mount, gets one of the versions, whole.
func TestANameThatIsReplacedAllTheTimeCanBeOpened(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		for writers := range 2 {
			var list []func() error
			var opens atomic.Int64
			must(t, os.WriteFile(dirs[0]+"/f", bytes.Repeat([]byte{'-'}, 100), 0o644))
			for n, dir := range dirs {
				if n <= writers {
					list = append(list, until(size(2*time.Second, 20*time.Second), func(i int) error {
						next := fmt.Sprintf("%s/next%d", dir, n)
						err := os.WriteFile(next, bytes.Repeat([]byte{byte('a' + i%26)}, 100), 0o644)
						if err == nil {
							err = os.Rename(next, dir+"/f")
						}
						return err
					}))
				}
				list = append(list, until(size(2*time.Second, 20*time.Second), func(int) error {
					opens.Add(1)
					b, err := os.ReadFile(dir + "/f")
					if err == nil && (len(b) != 100 || bytes.Count(b, b[:1]) != 100) {
						err = fmt.Errorf("read %q", b)
					}
					return err
				}))
			}
			together(t, size(2*time.Second, 20*time.Second)+callLimit, list...)
			t.Logf("%d opens while %d mounts replaced the file", opens.Load(), writers+1)
		}
	})
}

// TestAnOldHandleReadsToTheNewEnd: a file is cut on one mount, some time passes, and a handle of before on another mount
// reads it in small pieces: what the kernel reads ahead, up to the end that it knew, shows nothing behind the new one.
func TestAnOldHandleReadsToTheNewEnd(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		s := seed(t)
		var list []func() error
		var rounds atomic.Int64
		for task := range 4 {
			rng := rand.New(rand.NewPCG(s, uint64(task)))
			list = append(list, until(size(3*time.Second, time.Minute), func(i int) error {
				rounds.Add(1)
				name := fmt.Sprintf("/f%d-%d", task, i)
				here, there := dirs[rng.IntN(len(dirs))], dirs[rng.IntN(len(dirs))]
				long := 1 + rng.IntN(300_000)
				short := rng.IntN(long)
				if err := os.WriteFile(here+name, bytes.Repeat([]byte{'x'}, long), 0o644); err != nil {
					return err
				}
				fd, err := unix.Open(there+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				if err := os.Truncate(here+name, int64(short)); err != nil {
					return err
				}
				if rng.IntN(4) == 0 {
					time.Sleep(300 * time.Millisecond)
				}
				got, err := readAll(fd)
				if err == nil && len(got) != short {
					err = fmt.Errorf("%s: read %d bytes of %d, there were %d", name, len(got), short, long)
				}
				return err
			}))
		}
		together(t, size(3*time.Second, time.Minute)+callLimit, list...)
		t.Logf("%d rounds", rounds.Load())
	})
}

// TestMountsThatFightOverNamesNeverStall (case 51): create, unlink and rename of the same hundred names from all mounts,
// with stat and readdir storms; no call stalls, and what one removed is gone for the others at once.
func TestMountsThatFightOverNamesNeverStall(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		duration := size(3*time.Second, 10*time.Minute)
		s := seed(t)
		var slowest atomic.Int64
		var mu sync.Mutex
		slowWhat := "" // guarded by mu
		timed := func(what string, f func() error) error {
			began := time.Now()
			err := f()
			took := time.Since(began)
			mu.Lock()
			if int64(took) > slowest.Load() {
				slowest.Store(int64(took))
				slowWhat = what
			}
			mu.Unlock()
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) {
				err = nil
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", what, err)
			}
			return err
		}
		var calls atomic.Int64
		var tasks []func() error
		for n, dir := range dirs {
			other := dirs[(n+1)%len(dirs)]
			rng := rand.New(rand.NewPCG(s, uint64(n)))
			mine := fmt.Sprintf("mine%d", n)
			tasks = append(tasks, until(duration, func(i int) error {
				calls.Add(1)
				a, b := fmt.Sprintf("%s/n%d", dir, rng.IntN(100)), fmt.Sprintf("%s/n%d", dir, rng.IntN(100))
				switch rng.IntN(4) {
				case 0:
					return timed("create", func() error { return openClose(a, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY) })
				case 1:
					return timed("unlink", func() error { return unix.Unlink(a) })
				case 2:
					return timed("rename", func() error { return unix.Rename(a, b) })
				}
				if err := timed("create", func() error { return openClose(filepath.Join(dir, mine), unix.O_CREAT|unix.O_WRONLY) }); err != nil {
					return err
				}
				if _, err := os.Lstat(filepath.Join(other, mine)); err != nil {
					return fmt.Errorf("round %d of M%d: what it created: %w", i, n, err)
				}
				if err := timed("unlink", func() error { return unix.Unlink(filepath.Join(dir, mine)) }); err != nil {
					return err
				}
				if _, err := os.Lstat(filepath.Join(other, mine)); !errors.Is(err, unix.ENOENT) {
					return fmt.Errorf("round %d of M%d: what it removed: %v", i, n, err)
				}
				return nil
			}), until(duration, func(int) error {
				calls.Add(1)
				if rng := rand.IntN(20); rng == 0 {
					return timed("readdir", func() error { return listing(dir, 4096, func(string, byte) error { return nil }) })
				}
				var st unix.Stat_t
				return timed("stat", func() error { return unix.Lstat(fmt.Sprintf("%s/n%d", dir, rand.IntN(100)), &st) })
			}))
		}
		together(t, duration+30*time.Second, tasks...)
		t.Logf("%d calls in %v, the slowest a %s of %v", calls.Load(), duration, slowWhat, time.Duration(slowest.Load()))
		if limit := size(3*time.Second, time.Second); time.Duration(slowest.Load()) > limit {
			t.Errorf("a %s took %v, limit %v", slowWhat, time.Duration(slowest.Load()), limit)
		}
	})
}
