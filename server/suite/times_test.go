package suite

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTimesSetByHandStay (case 23): a delayed write-back does not move a time that was set after the write.
func TestTimesSetByHandStay(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		path := filepath.Join(dir, "f")
		shell(t, dir, "echo x > f; touch -m -d 2020-01-15T12:34:56.123456789Z f")
		f, err := os.OpenFile(filepath.Join(dir, "g"), os.O_CREATE|os.O_WRONLY, 0o644) // set while it is open
		must(t, err)
		_, err = f.WriteString("data")
		must(t, err)
		shell(t, dir, "touch -m -d 2020-01-15T12:34:56.123456789Z g")
		must(t, f.Close())
		want := time.Date(2020, 1, 15, 12, 34, 56, 123456789, time.UTC)
		end := time.After(size(2*time.Second, 6*time.Second))
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for watching := true; watching; {
			for _, p := range []string{path, f.Name()} {
				st, err := os.Stat(p)
				must(t, err)
				if !st.ModTime().Equal(want) {
					t.Fatalf("%s: mtime %v, want %v", filepath.Base(p), st.ModTime().UTC(), want)
				}
			}
			select {
			case <-tick.C:
			case <-end:
				watching = false
			}
		}
	})
}

// TestRsyncFindsNothingToDoTheSecondTime (case 23).
func TestRsyncFindsNothingToDoTheSecondTime(t *testing.T) {
	need(t, "rsync")
	src := t.TempDir()
	shell(t, src, `mkdir -p a/b; for i in $(seq 50); do head -c $((i*300)) /dev/urandom > a/b/f$i; done; ln -s b a/link; ln a/b/f1 a/hard; chmod 4711 a/b/f2; touch -d 2001-02-03T04:05:06.7 a/b/f3`)
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		run(t, "", "rsync", "-aHX", src+"/", dir+"/")
		out := run(t, "", "rsync", "-aHXi", "--checksum", src+"/", dir+"/")
		if strings.TrimSpace(out) != "" {
			t.Errorf("the second run transfers:\n%s", out)
		}
	})
}

// atimeAfterRead sets atime to at, mtime to m, reads the file with more open flags and returns the atime then.
func atimeAfterRead(t testing.TB, path string, at, m time.Time, flags int) time.Time {
	t.Helper()
	must(t, os.Chtimes(path, at, m))
	return readAtime(t, path, flags)
}

// readAtime reads a file past the kernel's pages and returns its atime then.
func readAtime(t testing.TB, path string, flags int) time.Time {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
	must(t, err)
	must(t, unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED))
	_, err = unix.Read(fd, make([]byte, 100))
	must(t, err)
	must(t, unix.Close(fd))
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return time.Unix(st.Atim.Unix())
}

// TestAccessTimePolicies (case 24): noatime, relatime and O_NOATIME do as they say.
func TestAccessTimePolicies(t *testing.T) {
	needCluster(t)
	old := time.Now().Add(-72 * time.Hour).Truncate(time.Second)
	for option, updates := range map[string]bool{"noatime": false, "relatime": true} {
		t.Run(option, func(t *testing.T) {
			c := newCluster(t, layoutAll, clusterOptions{mount: option})
			path := filepath.Join(c.mnt, "f")
			must(t, os.WriteFile(path, []byte("some text"), 0o644))
			if got := atimeAfterRead(t, path, old, old.Add(-time.Hour), 0); got.Equal(old) == updates {
				t.Errorf("atime of three days ago after a read: %v, want updated: %v", got, updates)
			}
			first := readAtime(t, path, 0) // now past mtime and ctime, or never moved
			nextTick(t, unix.NsecToTimespec(time.Now().UnixNano()))
			if second := readAtime(t, path, 0); !second.Equal(first) {
				t.Errorf("a second read moved the atime from %v to %v", first, second)
			}
			if got := atimeAfterRead(t, path, old, old.Add(-time.Hour), unix.O_NOATIME); !got.Equal(old) {
				t.Errorf("O_NOATIME moved the atime to %v", got)
			}
		})
	}
}

// TestReadsOfCachedPagesAskNobody (case 24): no request per read.
func TestReadsOfCachedPagesAskNobody(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		c.real(t)
		path := filepath.Join(c.folder(t), "f")
		must(t, os.WriteFile(path, make([]byte, 64<<10), 0o644))
		f, err := os.Open(path)
		must(t, err)
		defer f.Close()
		buf := make([]byte, 4096)
		_, err = f.ReadAt(buf, 0)
		must(t, err)
		before := c.requests(t, "")
		for range 1000 {
			_, err := f.ReadAt(buf, 0)
			must(t, err)
		}
		if n := c.requests(t, "") - before; n > 100 {
			t.Errorf("%d requests for 1000 reads of one cached page", n)
		}
	})
}

// TestTimesFollowOperations: which of mtime and ctime each operation moves, as in ext4.
func TestTimesFollowOperations(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		for _, dir := range []string{reference(t), c.folder(t)} {
			p := func(name string) string { return filepath.Join(dir, name) }
			type step struct {
				what         string
				watch        string
				mtime, ctime bool
				do           func() error
			}
			must(t, os.WriteFile(p("f"), []byte("text"), 0o644))
			must(t, os.Mkdir(p("d"), 0o755))
			for _, s := range []step{
				{"write", "f", true, true, func() error { return os.WriteFile(p("f"), []byte("other"), 0) }},
				{"read", "f", false, false, func() error { _, err := os.ReadFile(p("f")); return err }},
				{"chmod", "f", false, true, func() error { return os.Chmod(p("f"), 0o600) }},
				{"link", "f", false, true, func() error { return os.Link(p("f"), p("g")) }},
				{"unlink of a link", "f", false, true, func() error { return os.Remove(p("g")) }},
				{"rename", "f", false, true, func() error { return os.Rename(p("f"), p("h")) }},
				{"setxattr", "h", false, true, func() error { return unix.Lsetxattr(p("h"), "user.a", []byte("b"), 0) }},
				{"truncate", "h", true, true, func() error { return os.Truncate(p("h"), 2) }},
				{"truncate to the same size", "h", true, true, func() error { return os.Truncate(p("h"), 2) }},
				{"create in a folder", "d", true, true, func() error { return os.WriteFile(p("d/x"), nil, 0o644) }},
				{"write to a file in it", "d", false, false, func() error { return os.WriteFile(p("d/x"), []byte("y"), 0o644) }},
				{"rename inside it", "d", true, true, func() error { return os.Rename(p("d/x"), p("d/y")) }},
				{"unlink in it", "d", true, true, func() error { return os.Remove(p("d/y")) }},
				{"rename out of it", "d", true, true, func() error { return os.Rename(p("h"), p("d/h")) }},
			} {
				var before, after unix.Stat_t
				must(t, unix.Lstat(p(s.watch), &before))
				nextTick(t, before.Ctim)
				watch := p(s.watch)
				must(t, s.do())
				if unix.Lstat(watch, &after) != nil { // renamed
					for _, name := range []string{"h", "d/h"} {
						if unix.Lstat(p(name), &after) == nil {
							break
						}
					}
				}
				if got := after.Mtim != before.Mtim; got != s.mtime {
					t.Errorf("%s: %s moves mtime: %v, want %v", dir, s.what, got, s.mtime)
				}
				if got := after.Ctim != before.Ctim; got != s.ctime {
					t.Errorf("%s: %s moves ctime: %v, want %v", dir, s.what, got, s.ctime)
				}
			}
		}
	})
}

// nextTick waits until the clock's coarse tick has passed a time, so that the next stamp differs.
func nextTick(t testing.TB, after unix.Timespec) {
	t.Helper()
	must(t, poll(5*time.Second, func() error {
		if d := time.Since(time.Unix(after.Unix())); d < 12*time.Millisecond {
			return retry("the clock is %v before the last stamp", d)
		}
		return nil
	}))
}

// TestBirthTimeIsKept: statx gives the time of creation, which no later change moves.
func TestBirthTimeIsKept(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		path := filepath.Join(c.folder(t), "f")
		must(t, os.WriteFile(path, nil, 0o644))
		first, err := birth(path)
		must(t, err)
		if d := time.Since(first); d < -2*time.Second || d > time.Minute {
			t.Errorf("birth time %v", first)
		}
		must(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(2, 0)))
		must(t, os.WriteFile(path, []byte("x"), 0o644))
		must(t, os.Rename(path, path+"2"))
		second, err := birth(path + "2")
		must(t, err)
		if !first.Equal(second) {
			t.Errorf("birth time moved from %v to %v", first, second)
		}
	})
}

func birth(path string) (time.Time, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &st)
	if err == nil && st.Mask&unix.STATX_BTIME == 0 {
		err = fmt.Errorf("statx of %s gives no birth time", path)
	}
	return time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)), err
}
