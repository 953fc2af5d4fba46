package suite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNamesHaveUpTo255Bytes (case 36): bytes, not characters, in every operation that takes a name.
func TestNamesHaveUpTo255Bytes(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		p := func(name string) string { return filepath.Join(dir, name) }
		must(t, os.WriteFile(p("f"), nil, 0o644))
		for _, good := range []string{strings.Repeat("a", 255), strings.Repeat("\u98de", 85), strings.Repeat("\xff", 255),
			"new\nline", " ", "-rf", "\x01\x7f", `back\slash`, "..."} {
			must(t, os.WriteFile(p(good), []byte(good), 0o644))
			if got, err := os.ReadFile(p(good)); err != nil || string(got) != good {
				t.Errorf("%.20q: read %.20q, %v", good, got, err)
			}
			found := false
			must(t, listing(dir, 4096, func(name string, _ byte) error { found = found || name == good; return nil }))
			if !found {
				t.Errorf("%.20q is not listed", good)
			}
			must(t, os.Remove(p(good)))
		}
		for _, long := range []string{strings.Repeat("a", 256), strings.Repeat("\u98de", 85) + "x", strings.Repeat("b", 1024)} {
			var st unix.Stat_t
			_, err := unix.Open(p(long), unix.O_CREAT|unix.O_WRONLY, 0o644)
			for what, err := range map[string]error{
				"open": err, "stat": unix.Lstat(p(long), &st), "mkdir": unix.Mkdir(p(long), 0o755), "rmdir": unix.Rmdir(p(long)),
				"unlink": unix.Unlink(p(long)), "rename": unix.Rename(p("f"), p(long)), "rename from": unix.Rename(p(long), p("g")),
				"symlink": unix.Symlink("x", p(long)), "link": unix.Link(p("f"), p(long)), "mknod": unix.Mkfifo(p(long), 0o644),
			} {
				is(t, what, err, unix.ENAMETOOLONG)
			}
		}
		is(t, "a path of 4096 bytes", unix.Access(dir+"/"+strings.Repeat("./", 2048), unix.F_OK), unix.ENAMETOOLONG)
		var fs unix.Statfs_t
		must(t, unix.Statfs(dir, &fs))
		if fs.Namelen != 255 {
			t.Errorf("statfs gives names of %d bytes", fs.Namelen)
		}
		if got := shell(t, dir, "getconf NAME_MAX ."); got != "255\n" {
			t.Errorf("getconf NAME_MAX: %q", got)
		}
	})
}

// TestSymbolicLinks (case 37): loops, lengths of targets, sizes, replacement by rename.
func TestSymbolicLinks(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		p := func(name string) string { return filepath.Join(dir, name) }
		must(t, os.Symlink("loop2", p("loop1")))
		must(t, os.Symlink("loop1", p("loop2")))
		is(t, "open of a loop", openClose(p("loop1"), unix.O_RDONLY), unix.ELOOP)
		for _, n := range []int{1, 59, 60, 61, 255, 1023, 1024, 4000, 4095} {
			target := strings.Repeat("t", n)
			must(t, unix.Symlink(target, p("link")))
			got, err := os.Readlink(p("link"))
			if err != nil || got != target {
				t.Errorf("target of %d bytes: %d bytes read, %v", n, len(got), err)
			}
			var st unix.Stat_t
			must(t, unix.Lstat(p("link"), &st))
			if st.Size != int64(n) || st.Mode != unix.S_IFLNK|0o777 {
				t.Errorf("target of %d bytes: size %d mode %o", n, st.Size, st.Mode)
			}
			must(t, os.Remove(p("link")))
		}
		is(t, "target of 4096 bytes", unix.Symlink(strings.Repeat("t", 4096), p("link")), unix.ENAMETOOLONG)
		is(t, "empty target", unix.Symlink("", p("link")), unix.ENOENT)
		must(t, os.Symlink("a", p("link")))
		must(t, os.Symlink("b", p("new")))
		if got, _ := os.Readlink(p("link")); got != "a" {
			t.Errorf("link points to %q", got)
		}
		must(t, os.Rename(p("new"), p("link")))
		if got, err := os.Readlink(p("link")); got != "b" {
			t.Errorf("link points to %q after a rename over it (%v)", got, err)
		}
		outside := t.TempDir()
		must(t, os.WriteFile(filepath.Join(outside, "f"), []byte("outside"), 0o644))
		must(t, os.Symlink(outside, p("out")))
		if got, err := os.ReadFile(p("out/f")); err != nil || string(got) != "outside" {
			t.Errorf("through an absolute target: %q, %v", got, err)
		}
		is(t, "O_NOFOLLOW", openClose(p("out"), unix.O_RDONLY|unix.O_NOFOLLOW), unix.ELOOP)
		is(t, "create over a dangling link with O_EXCL", openClose(p("link"), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY), unix.EEXIST)
		must(t, openClose(p("link"), unix.O_CREAT|unix.O_WRONLY))
		must(t, unix.Access(p("b"), unix.F_OK)) // created through the link
	})
}
