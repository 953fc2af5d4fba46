package suite

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// change is one thing that a mount does in the folder of pairFixture. What it opens and leaves open is closed by undo.
type change struct {
	name string
	do   func(root string) (undo func(), err error)
}

// observer is one way of looking at that folder. It is readied on each mount before the change, so that all caches are
// warm and what it holds open is from before.
type observer struct {
	name  string
	ready func(root string) (look func() string, done func())
}

// simple is an observer that holds nothing.
func simple(name string, f func(root string) string) observer {
	return observer{name, func(root string) (func() string, func()) {
		return func() string { return f(root) }, func() {}
	}}
}

func pairFixture(root string) error {
	return firstOf(
		func() error { return os.WriteFile(root+"/f", bytes.Repeat([]byte("0123456789"), 15_000), 0o644) }, // several stripes
		func() error { return os.WriteFile(root+"/g", []byte("the other"), 0o600) },
		func() error { return os.Mkdir(root+"/d", 0o755) },
		func() error { return os.Mkdir(root+"/full", 0o755) },
		func() error { return os.WriteFile(root+"/full/x", []byte("x"), 0o644) },
		func() error { return os.Symlink("f", root+"/s") },
		func() error { return unix.Lsetxattr(root+"/f", "user.a", []byte("one"), 0) },
		func() error {
			return unix.Lsetxattr(root+"/g", accessACL, aclState{true, 6, 4, 0, 4, 0}.encode(), 0)
		},
	)
}

func firstOf(list ...func() error) error {
	for _, f := range list {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// act is a change that leaves nothing open.
func act(name string, f func(root string) error) change {
	return change{name, func(root string) (func(), error) { return func() {}, f(root) }}
}

// held is a change made through a descriptor that stays open until after the looks.
func held(name string, flags int, f func(fd int) error) change {
	return change{name, func(root string) (func(), error) {
		fd, err := unix.Open(root+"/f", flags|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return func() {}, err
		}
		return func() { unix.Close(fd) }, f(fd)
	}}
}

func pwrite(fd int, text string, off int64) error {
	n, err := unix.Pwrite(fd, []byte(text), off)
	if err == nil && n < len(text) {
		err = fmt.Errorf("%d of %d bytes written", n, len(text))
	}
	return err
}

func pairChanges() []change {
	acl := aclState{true, 6, 7, 4, 5, 0}
	old := []unix.Timespec{{Sec: 1_000_000_000, Nsec: 5}, {Sec: 1_000_000_001, Nsec: 7}}
	return []change{
		act("create", func(r string) error { return os.WriteFile(r+"/new", nil, 0o640) }),
		act("create and write", func(r string) error { return os.WriteFile(r+"/new", []byte("new content"), 0o640) }),
		act("create in a folder", func(r string) error { return os.WriteFile(r+"/d/new", []byte("deep"), 0o644) }),
		act("mkdir", func(r string) error { return os.Mkdir(r+"/new", 0o700) }),
		act("mknod", func(r string) error { return unix.Mkfifo(r+"/new", 0o600) }),
		act("symlink", func(r string) error { return os.Symlink("g", r+"/new") }),
		act("link", func(r string) error { return os.Link(r+"/f", r+"/new") }),
		act("link across folders", func(r string) error { return os.Link(r+"/f", r+"/d/new") }),
		act("unlink", func(r string) error { return os.Remove(r + "/f") }),
		act("unlink of a symlink", func(r string) error { return os.Remove(r + "/s") }),
		act("unlink and create again", func(r string) error {
			return firstOf(func() error { return os.Remove(r + "/f") }, func() error { return os.WriteFile(r+"/f", []byte("second"), 0o600) })
		}),
		act("rmdir", func(r string) error { return os.Remove(r + "/d") }),
		act("rmdir and file of that name", func(r string) error {
			return firstOf(func() error { return os.Remove(r + "/d") }, func() error { return os.WriteFile(r+"/d", []byte("no folder"), 0o644) })
		}),
		act("rename", func(r string) error { return unix.Rename(r+"/f", r+"/new") }),
		act("rename over a file", func(r string) error { return unix.Rename(r+"/g", r+"/f") }),
		act("rename across folders", func(r string) error { return unix.Rename(r+"/f", r+"/d/new") }),
		act("rename of a folder", func(r string) error { return unix.Rename(r+"/full", r+"/new") }),
		act("rename of a folder over one", func(r string) error { return unix.Rename(r+"/full", r+"/d") }),
		act("rename of a folder into one", func(r string) error { return unix.Rename(r+"/full", r+"/d/new") }),
		act("exchange", func(r string) error {
			return unix.Renameat2(unix.AT_FDCWD, r+"/f", unix.AT_FDCWD, r+"/full", unix.RENAME_EXCHANGE)
		}),
		act("chmod", func(r string) error { return os.Chmod(r+"/f", 0o604) }),
		act("chmod that takes rights", func(r string) error { return os.Chmod(r+"/f", 0o600) }),
		act("chmod of a folder", func(r string) error { return os.Chmod(r+"/full", 0o700) }),
		act("chown", func(r string) error { return os.Lchown(r+"/g", 1001, 1002) }),
		act("utimes", func(r string) error { return unix.UtimesNanoAt(unix.AT_FDCWD, r+"/f", old, 0) }),
		act("truncate", func(r string) error { return os.Truncate(r+"/f", 77) }),
		act("truncate to nothing", func(r string) error { return os.Truncate(r+"/f", 0) }),
		act("truncate that grows", func(r string) error { return os.Truncate(r+"/f", 230_000) }),
		act("O_TRUNC and write", func(r string) error { return os.WriteFile(r+"/f", []byte("short"), 0o644) }),
		held("append", unix.O_WRONLY|unix.O_APPEND, func(fd int) error { return pwrite(fd, "tail", 0) }),
		held("overwrite, still open", unix.O_RDWR, func(fd int) error { return pwrite(fd, strings.Repeat("X", 500), 100) }),
		held("overwrite across a stripe boundary", unix.O_RDWR, func(fd int) error { return pwrite(fd, strings.Repeat("Y", 500), stripeBytes-250) }),
		held("write past the end", unix.O_WRONLY, func(fd int) error { return pwrite(fd, "far", 210_000) }),
		held("direct write", unix.O_WRONLY|unix.O_DIRECT, func(fd int) error { return pwrite(fd, strings.Repeat("Z", 4096), 4096) }),
		held("mapped write and msync", unix.O_RDWR, func(fd int) error {
			return onMapping(fd, 0, func(b []byte) error {
				copy(b[20:], "through a mapping")
				return unix.Msync(b, unix.MS_SYNC)
			})
		}),
		held("punch", unix.O_RDWR, func(fd int) error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096, 2*stripeBytes)
		}),
		act("setxattr", func(r string) error { return unix.Lsetxattr(r+"/f", "user.b", []byte("two"), 0) }),
		act("setxattr that replaces", func(r string) error { return unix.Lsetxattr(r+"/f", "user.a", []byte("another"), 0) }),
		act("removexattr", func(r string) error { return unix.Lremovexattr(r+"/f", "user.a") }),
		act("ACL", func(r string) error { return unix.Lsetxattr(r+"/f", accessACL, acl.encode(), 0) }),
		act("ACL removed", func(r string) error { return unix.Lremovexattr(r+"/g", accessACL) }),
		act("default ACL", func(r string) error { return unix.Lsetxattr(r+"/d", "system.posix_acl_default", acl.encode(), 0) }),
	}
}

// pairNames are the names that any change touches.
var pairNames = []string{"f", "g", "d", "full", "s", "new", "d/new", "full/x", "new/x", "d/x", "d/new/x"}

func eachName(f func(root, name string) string) func(root string) string {
	return func(root string) string {
		var b strings.Builder
		for _, n := range pairNames {
			fmt.Fprintf(&b, "%s: %s\n", n, f(root, n))
		}
		return b.String()
	}
}

func errText(err error) string { return name(errno(err)) }

func statText(st *unix.Stat_t) string {
	text := fmt.Sprintf("%o %d:%d links %d", st.Mode, st.Uid, st.Gid, st.Nlink)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		text += fmt.Sprintf(" size %d", st.Size)
	}
	if st.Mtim.Sec < 1_500_000_000 {
		text += fmt.Sprintf(" times %v %v", st.Atim, st.Mtim)
	}
	return text
}

func pairObservers() []observer {
	return []observer{
		simple("stat", eachName(func(r, n string) string {
			var st unix.Stat_t
			if err := unix.Lstat(r+"/"+n, &st); err != nil {
				return errText(err)
			}
			return statText(&st)
		})),
		simple("readdir", func(r string) string {
			var lines []string
			for _, d := range []string{"", "/d", "/full", "/new"} {
				err := listing(r+d, 512, func(name string, kind byte) error {
					lines = append(lines, fmt.Sprintf("%s/%s %d", d, name, kind))
					return nil
				})
				lines = append(lines, d+": "+errText(err))
			}
			slices.Sort(lines)
			return strings.Join(lines, "\n")
		}),
		simple("open and read", eachName(func(r, n string) string { return readText(r+"/"+n, 0) })),
		simple("direct read", eachName(func(r, n string) string { return readText(r+"/"+n, unix.O_DIRECT) })),
		simple("mapped read", func(r string) string {
			fd, err := unix.Open(r+"/f", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			if err != nil {
				return errText(err)
			}
			defer unix.Close(fd)
			return mappedText(fd)
		}),
		simple("getxattr", func(r string) string {
			var lines []string
			for _, n := range []string{"f", "g", "d", "new"} {
				for _, a := range []string{"user.a", "user.b", accessACL, "system.posix_acl_default"} {
					buf := make([]byte, 200)
					k, err := unix.Lgetxattr(r+"/"+n, a, buf)
					lines = append(lines, fmt.Sprintf("%s %s % x %s", n, a, buf[:max(k, 0)], errText(err)))
				}
			}
			return strings.Join(lines, "\n")
		}),
		simple("listxattr", eachName(func(r, n string) string {
			return strings.Join(slices.DeleteFunc(attributeNames(r+"/"+n), func(a string) bool { return !strings.HasPrefix(a, "user.") }), " ")
		})),
		simple("readlink", eachName(func(r, n string) string {
			to, err := os.Readlink(r + "/" + n)
			return to + " " + errText(err)
		})),
		simple("faccessat", eachName(func(r, n string) string {
			return errText(unix.Faccessat(unix.AT_FDCWD, r+"/"+n, unix.X_OK, 0))
		})),
		simple("create of the same names", eachName(func(r, n string) string {
			fd, err := unix.Open(r+"/"+n, unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
			if err == nil {
				unix.Close(fd)
				err = unix.Unlink(r + "/" + n)
			}
			return errText(err)
		})),
		heldObserver("fstat", "f", unix.O_RDONLY, func(fd int) string {
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil {
				return errText(err)
			}
			return statText(&st)
		}),
		heldObserver("pread", "f", unix.O_RDONLY, func(fd int) string {
			buf := make([]byte, 512<<10)
			n, err := unix.Pread(fd, buf, 0)
			return brief(buf[:max(n, 0)]) + " " + errText(err)
		}),
		heldObserver("seek to the end", "f", unix.O_RDONLY, func(fd int) string {
			n, err := unix.Seek(fd, 0, unix.SEEK_END)
			return fmt.Sprint(n, " ", errText(err))
		}),
		heldObserver("mapping made now", "f", unix.O_RDONLY, mappedText),
		mappingObserver(),
		heldObserver("readdir of an open folder", ".", unix.O_RDONLY|unix.O_DIRECTORY, folderText),
		heldObserver("readdir of an open subfolder", "d", unix.O_RDONLY|unix.O_DIRECTORY, folderText),
		heldObserver("openat in an open subfolder", "d", unix.O_RDONLY|unix.O_DIRECTORY, func(fd int) string {
			child, err := unix.Openat(fd, "made", unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
			if err == nil {
				unix.Close(child)
				err = unix.Unlinkat(fd, "made", 0)
			}
			return errText(err)
		}),
	}
}

func readText(path string, flags int) string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW|flags, 0)
	if err != nil {
		return errText(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "not read " + errText(err)
	}
	buf := make([]byte, 512<<10) // one call: a direct read of many small pieces takes long
	n, err := unix.Pread(fd, buf, 0)
	return brief(buf[:max(n, 0)]) + " " + errText(err)
}

// brief describes bytes by runs of one value, or by the pattern of the fixture.
func brief(b []byte) string {
	if len(b) < 100 {
		return fmt.Sprintf("%q", b)
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%d bytes", len(b))
	runs := 0
	for i := 0; i < len(b) && runs < 12; {
		j := i
		for pattern := b[i] == '0'+byte(i%10); j < len(b) && (b[j] == '0'+byte(j%10)) == pattern && (pattern || b[j] == b[i]); {
			j++
		}
		if b[i] == '0'+byte(i%10) {
			fmt.Fprintf(&s, ", as made to %d", j)
		} else {
			fmt.Fprintf(&s, ", %q to %d", b[i:i+1], j)
		}
		i = j
		runs++
	}
	return s.String()
}

func heldObserver(what, file string, flags int, f func(fd int) string) observer {
	return observer{what + " of what was opened before", func(root string) (func() string, func()) {
		fd, err := unix.Open(filepath.Join(root, file), flags|unix.O_CLOEXEC, 0)
		if err != nil {
			return func() string { return "open: " + errText(err) }, func() {}
		}
		return func() string { return f(fd) }, func() { unix.Close(fd) }
	}}
}

func folderText(fd int) string {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return errText(err)
	}
	var lines []string
	buf := make([]byte, 1024)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil && err != unix.ENOENT { // a removed folder is empty, or says that it is gone
			return errText(err)
		}
		if n <= 0 {
			break
		}
		if err := entries(buf[:n], func(name string, kind byte) error { lines = append(lines, name); return nil }); err != nil {
			return err.Error()
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

// mappedText reads the first pages of a file through a mapping, as far as it reaches.
func mappedText(fd int) string {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return errText(err)
	}
	n := min(st.Size, 3*stripeBytes)
	if n == 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "nothing"
	}
	b, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return errText(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	return mappingText(b)
}

func mappingText(b []byte) (text string) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		if recover() != nil {
			text = "fault"
		}
	}()
	return brief(b)
}

// mappingObserver reads through a mapping that was there, and read, before the change.
func mappingObserver() observer {
	return observer{"mapping made before", func(root string) (func() string, func()) {
		fd, err := unix.Open(root+"/f", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return func() string { return errText(err) }, func() {}
		}
		defer unix.Close(fd)
		b, err := unix.Mmap(fd, 0, 2*stripeBytes, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return func() string { return errText(err) }, func() {}
		}
		return func() string { return mappingText(b) }, func() { _ = unix.Munmap(b) }
	}}
}

// TestEveryChangeIsSeenByEveryCallOnOtherMountsAtOnce makes each change on one mount while another has everything cached,
// and then makes one call there, each in turn, and compares its answer with what a local file system answers.
func TestEveryChangeIsSeenByEveryCallOnOtherMountsAtOnce(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		roots, ref := m.folders(t), memoryFolder(t)
		if !m.plain {
			m.lfs(t, "setstripe", "-c", "2", "-S", "64K", roots[0]) // what is made in it has stripes
		}
		type pair struct {
			c        change
			o        observer
			from, to int
			got      string
			want     string
			err      error
		}
		var pairs []*pair
		for _, c := range pairChanges() {
			for _, o := range pairObservers() {
				n, from := len(pairs), len(pairs)%len(m.at)
				pairs = append(pairs, &pair{c: c, o: o, from: from, to: (from + 1 + n/len(m.at)%(len(m.at)-1)) % len(m.at)})
			}
		}
		var tasks []func() error
		for first := range 4 {
			tasks = append(tasks, func() error {
				for i := first; i < len(pairs); i += 4 {
					p, sub := pairs[i], fmt.Sprintf("/p%d", i)
					if p.got, p.err = onePair(roots[p.from]+sub, roots[p.to]+sub, p.c, p.o); p.err == nil {
						p.want, p.err = onePair(ref+sub, ref+sub, p.c, p.o)
					}
				}
				return nil
			})
		}
		together(t, 10*time.Minute, tasks...)
		wrong := 0
		for _, p := range pairs {
			if p.err == nil && (p.got == p.want || p.want == "fault" && strings.HasSuffix(p.got, `"\x00" to 131072`)) {
				continue // a mapping of another mount past a new end reads zeros where the kernel has no signal to give
			}
			if wrong++; wrong <= 25 {
				t.Errorf("%s on M%d, then %s on M%d: %v\n%s", p.c.name, p.from, p.o.name, p.to, p.err, unlike(p.got, p.want))
			}
		}
		if wrong > 0 {
			t.Errorf("%d of %d pairs are wrong", wrong, len(pairs))
		}
	})
}

// memoryFolder is a folder of a file system in memory, which takes direct reads of any size, or STRAKE_SUITE_REF.
func memoryFolder(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("/dev/shm"); err == nil && os.Getenv("STRAKE_SUITE_REF") == "" {
		t.Setenv("STRAKE_SUITE_REF", "/dev/shm")
	}
	return reference(t)
}

// onePair makes the fixture and the change through one root and looks through the other.
func onePair(from, to string, c change, o observer) (string, error) {
	if err := os.Mkdir(from, 0o755); err != nil {
		return "", err
	}
	defer os.RemoveAll(from)
	if err := pairFixture(from); err != nil {
		return "", fmt.Errorf("fixture: %w", err)
	}
	warm := pairObservers()[:size(2, 7)] // the observer itself looks once too
	for _, w := range warm {
		look, done := w.ready(to)
		look()
		done()
	}
	look, done := o.ready(to)
	defer done()
	look()
	undo, err := c.do(from)
	defer undo()
	if err != nil {
		return "", fmt.Errorf("%s in %s: %w", c.name, from, err)
	}
	return look(), nil
}

// unlike prints the lines of got and want that differ.
func unlike(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	var b strings.Builder
	for _, l := range g {
		if !slices.Contains(w, l) {
			fmt.Fprintf(&b, "    got  %.300s\n", l)
		}
	}
	for _, l := range w {
		if !slices.Contains(g, l) {
			fmt.Fprintf(&b, "    want %.300s\n", l)
		}
	}
	return b.String()
}
