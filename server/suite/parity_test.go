package suite

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// user is who does an operation.
type user struct {
	uid, gid int
	groups   []int
}

var users = []user{{0, 0, nil}, {1001, 1001, nil}, {1002, 1002, []int{1001}}, {1003, 1003, nil}}

// operation is one system call, or a few, on names below a root folder.
type operation struct {
	what  string
	who   user
	paths []string // whose attributes are compared afterwards
	do    func(root string) error
}

// errno is the number inside an error.
func errno(err error) syscall.Errno {
	var e syscall.Errno
	if err != nil && !errors.As(err, &e) {
		panic(err) // a fault of the test
	}
	return e
}

// name is an errno as people write it.
func (o operation) String() string { return fmt.Sprintf("uid %d: %s", o.who.uid, o.what) }

func name(e syscall.Errno) string {
	if e == 0 {
		return "success"
	}
	return unix.ErrnoName(e)
}

// TestErrorsMatchTheReference runs each call that must fail, and some that must not, on a folder of the reference file
// system and on one of the mount: the same errno on both.
func TestErrorsMatchTheReference(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		needMount(t)
		parent := t // fixtures outlive the subtest that made them
		var ref, dir string
		used := true // the fixture has been changed: make a new one
		for _, op := range errorTable() {
			t.Run(fmt.Sprintf("%.60s", strings.ReplaceAll(op.String(), "/", "|")), func(t *testing.T) {
				if used {
					ref, dir = fixtures(parent, c)
				}
				want, got := asUser(t, op, ref), asUser(t, op, dir)
				used = want == 0 || got == 0
				if got != want {
					t.Errorf("%s, the reference gives %s", name(got), name(want))
				}
				if d := differences(ref, dir); d != "" {
					used = true
					t.Error(d)
				}
			})
		}
	})
}

// fixtures makes the files of errorFixture in a folder of the reference and in one of the mount.
func fixtures(t testing.TB, c *cluster) (ref, dir string) {
	t.Helper()
	ref, dir = reference(t), c.folder(t)
	must(t, errorFixture(ref))
	must(t, errorFixture(dir))
	return ref, dir
}

// asUser does an operation with its user's identity.
func asUser(t testing.TB, op operation, root string) syscall.Errno {
	var err error
	as(t, op.who.uid, op.who.gid, op.who.groups, func() { err = op.do(root) })
	return errno(err)
}

// errorFixture is what the calls of errorTable find.
func errorFixture(root string) error {
	p := func(n string) string { return filepath.Join(root, n) }
	return errors.Join(os.Chmod(root, 0o777),
		os.WriteFile(p("file"), []byte("some text"), 0o644), os.Mkdir(p("empty"), 0o755), os.MkdirAll(p("full/sub"), 0o755),
		os.WriteFile(p("full/f"), []byte("x"), 0o600), os.Symlink("file", p("link")), os.Symlink("none", p("dangling")),
		os.Symlink("loop", p("loop")), unix.Mkfifo(p("fifo"), 0o644), os.Mkdir(p("sticky"), 0o777),
		unix.Chmod(p("sticky"), 0o1777), os.WriteFile(p("sticky/roots"), nil, 0o666), os.Mkdir(p("closed"), 0o700),
		os.WriteFile(p("closed/f"), nil, 0o666), os.WriteFile(p("mine"), []byte("m"), 0o600), os.Chown(p("mine"), 1001, 1001),
		os.WriteFile(p("wide"), []byte("w"), 0o666), unix.Lsetxattr(p("file"), "user.have", []byte("12345678"), 0),
		os.Mkdir(p("sgid"), 0o777), os.Chown(p("sgid"), 0, 2001), unix.Chmod(p("sgid"), 0o2777),
		os.Mkdir(p("readonly"), 0o555), os.Mkdir(p("unlisted"), 0o711), os.WriteFile(p("unlisted/f"), nil, 0o644))
}

func errorTable() []operation {
	var list []operation
	root, plain, member := users[0], users[1], users[2]
	add := func(who user, what string, do func(p func(string) string) error) {
		list = append(list, operation{what: what, who: who, do: func(root string) error {
			return do(func(n string) string {
				if n == "" || strings.HasSuffix(n, "/") || strings.HasSuffix(n, ".") {
					return root + "/" + n // Join would take the end away
				}
				return filepath.Join(root, n)
			})
		}})
	}
	open := func(who user, n string, flags int) {
		add(who, fmt.Sprintf("open %s %#x", n, flags), func(p func(string) string) error { return openClose(p(n), flags|unix.O_NONBLOCK) })
	}
	for _, n := range []string{"file", "empty", "full", "link", "dangling", "loop", "none", "file/x", "none/x", "closed/f",
		"mine", "fifo", "file/", "none/", "empty/", "link/", "full/.", "unlisted", "readonly/x", strings.Repeat("n", 256)} {
		for _, flags := range []int{unix.O_RDONLY, unix.O_RDWR, unix.O_WRONLY | unix.O_TRUNC, unix.O_CREAT | unix.O_WRONLY,
			unix.O_CREAT | unix.O_EXCL | unix.O_RDWR, unix.O_DIRECTORY, unix.O_NOFOLLOW, unix.O_CREAT | unix.O_DIRECTORY,
			unix.O_TMPFILE | unix.O_RDWR, unix.O_PATH, unix.O_WRONLY | unix.O_APPEND | unix.O_NOATIME} {
			open(plain, n, flags)
		}
		open(root, n, unix.O_CREAT|unix.O_RDWR)
		for _, who := range []user{root, plain} {
			add(who, "mkdir "+n, func(p func(string) string) error { return unix.Mkdir(p(n), 0o755) })
			add(who, "rmdir "+n, func(p func(string) string) error { return unix.Rmdir(p(n)) })
			add(who, "unlink "+n, func(p func(string) string) error { return unix.Unlink(p(n)) })
			add(who, "truncate "+n, func(p func(string) string) error { return unix.Truncate(p(n), 3) })
			add(who, "chmod "+n, func(p func(string) string) error { return unix.Chmod(p(n), 0o711) })
			add(who, "chown "+n, func(p func(string) string) error { return unix.Lchown(p(n), 1003, -1) })
			add(who, "readlink "+n, func(p func(string) string) error { _, err := unix.Readlink(p(n), make([]byte, 9)); return err })
			add(who, "link to it "+n, func(p func(string) string) error { return unix.Link(p(n), p("new")) })
			add(who, "link over it "+n, func(p func(string) string) error { return unix.Link(p("wide"), p(n)) })
			add(who, "symlink over it "+n, func(p func(string) string) error { return unix.Symlink("x", p(n)) })
			add(who, "setxattr "+n, func(p func(string) string) error { return unix.Lsetxattr(p(n), "user.a", []byte("b"), 0) })
			add(who, "utimes now "+n, func(p func(string) string) error { return unix.Utimes(p(n), nil) })
			add(who, "utimes set "+n, func(p func(string) string) error {
				return unix.Utimes(p(n), []unix.Timeval{{Sec: 1}, {Sec: 2}})
			})
			for _, flags := range []uint{0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE} {
				for _, to := range []string{"file", "empty", "full", "new", "full/sub/x", "none/x", "sticky/roots", "file/x"} {
					add(who, fmt.Sprintf("rename %s to %s flags %d", n, to, flags), func(p func(string) string) error {
						return unix.Renameat2(unix.AT_FDCWD, p(n), unix.AT_FDCWD, p(to), flags)
					})
				}
			}
		}
	}
	for _, who := range []user{root, plain, member} {
		add(who, "unlink in a sticky folder", func(p func(string) string) error { return unix.Unlink(p("sticky/roots")) })
		add(who, "rename in a sticky folder", func(p func(string) string) error { return unix.Rename(p("sticky/roots"), p("sticky/x")) })
		add(who, "create in a setgid folder", func(p func(string) string) error { return openClose(p("sgid/f"), unix.O_CREAT|unix.O_WRONLY) })
		add(who, "mkdir in a setgid folder", func(p func(string) string) error { return unix.Mkdir(p("sgid/d"), 0o755) })
		add(who, "setgid of a foreign group", func(p func(string) string) error {
			return errors.Join(unix.Chown(p("mine"), -1, 1002), unix.Chmod(p("mine"), 0o2755))
		})
		add(who, "setgid chmod of an own file", func(p func(string) string) error { return unix.Chmod(p("mine"), 0o2755) })
		add(who, "chgrp to an own group", func(p func(string) string) error { return unix.Chown(p("mine"), -1, 1001) })
		add(who, "mknod char", func(p func(string) string) error {
			return unix.Mknod(p("new"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
		})
		add(who, "mknod 0:0", func(p func(string) string) error { return unix.Mknod(p("new"), unix.S_IFCHR|0o600, 0) })
		add(who, "mknod of a folder", func(p func(string) string) error { return unix.Mknod(p("new"), unix.S_IFDIR|0o600, 0) })
		add(who, "trusted xattr", func(p func(string) string) error { return unix.Setxattr(p("wide"), "trusted.a", []byte("b"), 0) })
		add(who, "security xattr", func(p func(string) string) error { return unix.Setxattr(p("wide"), "security.a", []byte("b"), 0) })
		add(who, "chroot like dotdot", func(p func(string) string) error { return unix.Rmdir(p("full/..")) })
		add(who, "rename of dot", func(p func(string) string) error { return unix.Rename(p("full/."), p("x")) })
		add(who, "rename to dotdot", func(p func(string) string) error { return unix.Rename(p("empty"), p("full/..")) })
	}
	for what, do := range descriptorCalls {
		add(root, what, func(p func(string) string) error {
			fd, err := unix.Open(p("file"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			dir, err := unix.Open(p("full"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			wo, err := unix.Open(p("wide"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			err = do(fd, dir, wo)
			unix.Close(fd)
			unix.Close(dir)
			unix.Close(wo)
			return err
		})
	}
	return list
}

// descriptorCalls get "file" opened for reading, a folder, and "wide" opened for writing.
var descriptorCalls = map[string]func(file, dir, wo int) error{
	"write on a reader":         func(file, _, _ int) error { _, err := unix.Write(file, []byte("x")); return err },
	"read on a writer":          func(_, _, wo int) error { _, err := unix.Read(wo, make([]byte, 1)); return err },
	"read on a folder":          func(_, dir, _ int) error { _, err := unix.Read(dir, make([]byte, 1)); return err },
	"pread at -1":               func(file, _, _ int) error { _, err := unix.Pread(file, make([]byte, 1), -1); return err },
	"truncate on a reader":      func(file, _, _ int) error { return unix.Ftruncate(file, 1) },
	"truncate to -1":            func(_, _, wo int) error { return unix.Ftruncate(wo, -1) },
	"truncate of a folder":      func(_, dir, _ int) error { return unix.Ftruncate(dir, 1) },
	"allocate in a folder":      func(_, dir, _ int) error { return unix.Fallocate(dir, 0, 0, 1) },
	"seek for data at the end":  func(file, _, _ int) error { _, err := unix.Seek(file, 9, unix.SEEK_DATA); return err },
	"seek for a hole past it":   func(file, _, _ int) error { _, err := unix.Seek(file, 10, unix.SEEK_HOLE); return err },
	"seek to -1":                func(file, _, _ int) error { _, err := unix.Seek(file, -1, 0); return err },
	"fsync of a reader":         func(file, _, _ int) error { return unix.Fsync(file) },
	"fsync of a folder":         func(_, dir, _ int) error { return unix.Fsync(dir) },
	"fdatasync":                 func(_, _, wo int) error { return unix.Fdatasync(wo) },
	"getdents of a file":        func(file, _, _ int) error { _, err := unix.Getdents(file, make([]byte, 4096)); return err },
	"getdents, too small":       func(_, dir, _ int) error { _, err := unix.Getdents(dir, make([]byte, 10)); return err },
	"mmap shared of a reader":   func(file, _, _ int) error { return mapOnce(file, unix.PROT_WRITE, unix.MAP_SHARED) },
	"mmap private of a reader":  func(file, _, _ int) error { return mapOnce(file, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE) },
	"mmap of a folder":          func(_, dir, _ int) error { return mapOnce(dir, unix.PROT_READ, unix.MAP_SHARED) },
	"getxattr, none":            func(file, _, _ int) error { _, err := unix.Fgetxattr(file, "user.none", nil); return err },
	"getxattr, too small":       func(file, _, _ int) error { _, err := unix.Fgetxattr(file, "user.have", make([]byte, 3)); return err },
	"listxattr, too small":      func(file, _, _ int) error { _, err := unix.Flistxattr(file, make([]byte, 3)); return err },
	"setxattr, create again":    func(file, _, _ int) error { return unix.Fsetxattr(file, "user.have", nil, unix.XATTR_CREATE) },
	"setxattr, replace none":    func(file, _, _ int) error { return unix.Fsetxattr(file, "user.none", nil, unix.XATTR_REPLACE) },
	"setxattr, long name":       func(file, _, _ int) error { return unix.Fsetxattr(file, "user."+strings.Repeat("n", 251), nil, 0) },
	"setxattr, 64 KiB and one":  func(file, _, _ int) error { return unix.Fsetxattr(file, "user.big", make([]byte, 65537), 0) },
	"setxattr, no name space":   func(file, _, _ int) error { return unix.Fsetxattr(file, "whatever", nil, 0) },
	"removexattr, none":         func(file, _, _ int) error { return unix.Fremovexattr(file, "user.none") },
	"unknown ioctl":             func(file, _, _ int) error { _, err := unix.IoctlGetInt(file, 0x5401); return err },
	"openat below a file":       func(file, _, _ int) error { _, err := unix.Openat(file, "x", unix.O_RDONLY, 0); return err },
	"unlinkat of a folder":      func(_, dir, _ int) error { return unix.Unlinkat(dir, "sub", 0) },
	"unlinkat of a file as one": func(_, dir, _ int) error { return unix.Unlinkat(dir, "f", unix.AT_REMOVEDIR) },
	"copy range to a reader": func(file, _, _ int) error {
		_, err := unix.CopyFileRange(file, nil, file, nil, 1, 0)
		return err
	},
	"copy range to a folder": func(file, dir, _ int) error {
		_, err := unix.CopyFileRange(file, nil, dir, nil, 1, 0)
		return err
	},
}

func mapOnce(fd, prot, flags int) error {
	m, err := unix.Mmap(fd, 0, 4096, prot, flags)
	if err != nil {
		return err
	}
	return unix.Munmap(m)
}

// TestRandomNamespaceOperationsMatchTheReference does the same random calls, as several users, on the reference file
// system and on the mount: the same errno, and afterwards the same attributes, content and extended attributes.
func TestRandomNamespaceOperationsMatchTheReference(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		needMount(t)
		first := seed(t)
		for round := range size(25, 500) {
			t.Run(fmt.Sprint(round), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(first+uint64(round), 0))
				ref, dir := deep(t, reference(t)), deep(t, c.folder(t))
				var trace []string
				for range 300 {
					op := randomOperation(rng)
					want, got := asUser(t, op, ref), asUser(t, op, dir)
					trace = append(trace, fmt.Sprintf("%s: %s", op, name(want)))
					if got != want {
						t.Fatalf("STRAKE_SUITE_SEED=%d: %s, the reference gives %s:\n%s", first+uint64(round), name(got), name(want),
							strings.Join(trace[max(0, len(trace)-25):], "\n"))
					}
					for _, p := range op.paths {
						if a, b := attributes(ref, p), attributes(dir, p); a != b {
							t.Fatalf("STRAKE_SUITE_SEED=%d: %s is\n  %s, in the reference\n  %s after:\n%s", first+uint64(round), p, b, a,
								strings.Join(trace[max(0, len(trace)-25):], "\n"))
						}
					}
				}
				if d := differences(ref, dir); d != "" {
					t.Fatalf("STRAKE_SUITE_SEED=%d: %s\nafter:\n%s", first+uint64(round), d, strings.Join(trace, "\n"))
				}
			})
		}
	})
}

// deep makes a chain of folders, so that symbolic links and ".." do not lead out of the part that is compared.
func deep(t testing.TB, top string) string {
	t.Helper()
	dir := top + strings.Repeat("/deep", 12)
	must(t, os.MkdirAll(dir, 0o777))
	for d := dir; d != filepath.Dir(top); d = filepath.Dir(d) {
		must(t, os.Chmod(d, 0o777))
	}
	return dir
}

// randomPath is a name out of few, up to three levels deep, now and then with an odd end.
func randomPath(rng *rand.Rand) string {
	parts := make([]string, 1+rng.IntN(3))
	for i := range parts {
		parts[i] = string(rune('a' + rng.IntN(4)))
	}
	p := strings.Join(parts, "/")
	switch rng.IntN(40) {
	case 0:
		p += "/"
	case 1:
		p += "/."
	case 2:
		p += "/.."
	case 3:
		p = "./" + p
	}
	return p
}

func pick[T any](rng *rand.Rand, list ...T) T { return list[rng.IntN(len(list))] }

func randomOperation(rng *rand.Rand) operation {
	a, b := randomPath(rng), randomPath(rng)
	mode := pick[uint32](rng, 0o777, 0o755, 0o700, 0o644, 0o600, 0o070, 0, 0o1777, 0o2775, 0o4755, 0o6755)
	op := operation{who: users[rng.IntN(len(users))], paths: []string{a}}
	if rng.IntN(3) == 0 {
		op.who = users[0]
	}
	at := func(root, p string) string { return root + "/" + p }
	set := func(what string, do func(root string) error) { op.what, op.do = what, do }
	switch rng.IntN(24) {
	case 0, 1, 2:
		flags := pick(rng, unix.O_CREAT|unix.O_WRONLY, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, unix.O_CREAT|unix.O_TRUNC|unix.O_RDWR,
			unix.O_RDONLY, unix.O_RDWR, unix.O_RDONLY|unix.O_DIRECTORY, unix.O_WRONLY|unix.O_TRUNC, unix.O_CREAT|unix.O_NOFOLLOW|unix.O_RDWR)
		set(fmt.Sprintf("open %s flags %#x mode %o", a, flags, mode), func(root string) error {
			fd, err := unix.Open(at(root, a), flags|unix.O_CLOEXEC|unix.O_NONBLOCK, mode)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		})
	case 3, 4, 5, 6:
		set(fmt.Sprintf("mkdir %s mode %o", a, mode), func(root string) error { return unix.Mkdir(at(root, a), mode) })
	case 7:
		kind := pick[uint32](rng, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFREG, unix.S_IFCHR)
		set(fmt.Sprintf("mknod %s mode %o", a, kind|mode), func(root string) error { return unix.Mknod(at(root, a), kind|mode, 0) })
	case 8, 9:
		target := pick(rng, "a", "b", "../a", "a/b", ".", "none", "../../c")
		set(fmt.Sprintf("symlink %s to %s", a, target), func(root string) error { return unix.Symlink(target, at(root, a)) })
	case 10, 11:
		flags := pick(rng, 0, unix.AT_SYMLINK_FOLLOW)
		op.paths = []string{a, b}
		set(fmt.Sprintf("link %s to %s flags %#x", a, b, flags), func(root string) error {
			return unix.Linkat(unix.AT_FDCWD, at(root, a), unix.AT_FDCWD, at(root, b), flags)
		})
	case 12:
		set("unlink "+a, func(root string) error { return unix.Unlink(at(root, a)) })
	case 13:
		set("rmdir "+a, func(root string) error { return unix.Rmdir(at(root, a)) })
	case 14, 15, 16:
		flags := pick[uint](rng, 0, 0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE, unix.RENAME_WHITEOUT)
		op.paths = []string{a, b}
		set(fmt.Sprintf("rename %s to %s flags %d", a, b, flags), func(root string) error {
			return unix.Renameat2(unix.AT_FDCWD, at(root, a), unix.AT_FDCWD, at(root, b), flags)
		})
	case 17:
		set(fmt.Sprintf("chmod %s %o", a, mode), func(root string) error { return unix.Chmod(at(root, a), mode) })
	case 18:
		uid, gid := pick(rng, -1, 0, 1001, 1002), pick(rng, -1, 0, 1001, 1002)
		set(fmt.Sprintf("lchown %s %d:%d", a, uid, gid), func(root string) error { return unix.Lchown(at(root, a), uid, gid) })
	case 19:
		length := pick[int64](rng, 0, 1, 5000, 1<<20)
		set(fmt.Sprintf("truncate %s %d", a, length), func(root string) error { return unix.Truncate(at(root, a), length) })
	case 20:
		n, value := pick(rng, "user.a", "user.b", "trusted.c", "security.d"), strings.Repeat("v", rng.IntN(20))
		set(fmt.Sprintf("setxattr %s %s=%s", a, n, value), func(root string) error { return unix.Lsetxattr(at(root, a), n, []byte(value), 0) })
	case 21:
		n, acl := pick(rng, "system.posix_acl_access", "system.posix_acl_default"), randomACL(rng)
		set(fmt.Sprintf("setxattr %s %s=%x", a, n, acl), func(root string) error { return unix.Setxattr(at(root, a), n, acl, 0) })
	case 22:
		text := strings.Repeat("t", rng.IntN(100))
		set(fmt.Sprintf("append %d bytes to %s", len(text), a), func(root string) error {
			fd, err := unix.Open(at(root, a), unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			_, err = unix.Write(fd, []byte(text))
			return errors.Join(err, unix.Close(fd))
		})
	case 23:
		want := pick[uint32](rng, unix.R_OK, unix.W_OK, unix.X_OK, unix.F_OK)
		set(fmt.Sprintf("access %s %o", a, want), func(root string) error {
			return unix.Faccessat2(unix.AT_FDCWD, at(root, a), want, unix.AT_EACCESS)
		})
	}
	return op
}

// randomACL is a valid POSIX ACL as the kernel takes it: version 2, then tag 2, permissions 2, id 4, little-endian.
func randomACL(rng *rand.Rand) []byte {
	b := []byte{2, 0, 0, 0}
	entry := func(tag byte, id uint32) {
		b = append(b, tag, 0, byte(rng.IntN(8)), 0, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
	const none = ^uint32(0)
	entry(1, none)
	named := rng.IntN(3)
	if named > 0 {
		entry(2, 1002)
	}
	entry(4, none)
	if named > 1 {
		entry(8, 1001)
	}
	if named > 0 {
		entry(0x10, none)
	}
	entry(0x20, none)
	return b
}

// attributes is what lstat says, without times and what each file system counts in its own way.
func attributes(root, path string) string {
	var st unix.Stat_t
	if err := unix.Lstat(root+"/"+path, &st); err != nil {
		return name(errno(err))
	}
	s := fmt.Sprintf("mode %o uid %d gid %d", st.Mode, st.Uid, st.Gid)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		s += fmt.Sprintf(" links %d size %d device %#x", st.Nlink, st.Size, st.Rdev)
	}
	return s
}

// differences compares two trees: attributes, targets, content and extended attributes. Empty when they are the same.
func differences(a, b string) string {
	x, y := describe(a), describe(b)
	for i := range max(len(x), len(y)) {
		switch {
		case i >= len(x):
			return "not in the reference: " + y[i]
		case i >= len(y):
			return "only in the reference: " + x[i]
		case x[i] != y[i]:
			return fmt.Sprintf("%s\n  in the reference %s", y[i], x[i])
		}
	}
	return ""
}

// describe is one line per file of a tree, in the order of their paths.
func describe(root string) []string {
	var lines []string
	_ = filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		line := fmt.Sprintf("%s: %s", rel, attributes(root, rel))
		if err != nil {
			line += fmt.Sprintf(" error %v", errno(err))
		}
		switch {
		case e == nil:
		case e.Type().IsRegular():
			text, err := os.ReadFile(path)
			line += fmt.Sprintf(" text %.40q of %d", strings.TrimLeft(string(text), "\x00"), len(text))
			if err != nil {
				line += name(errno(err))
			}
		case e.Type()&os.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			line += " to " + target
		}
		for _, n := range attributeNames(path) {
			value := make([]byte, 4096)
			k, err := unix.Lgetxattr(path, n, value)
			line += fmt.Sprintf(" %s=%x", n, value[:max(k, 0)])
			if err != nil {
				line += name(errno(err))
			}
		}
		lines = append(lines, line)
		return nil
	})
	slices.Sort(lines)
	return lines
}

// attributeNames lists the extended attributes of a file, sorted.
func attributeNames(path string) []string {
	buf := make([]byte, 65536)
	n, err := unix.Llistxattr(path, buf)
	if err != nil || n == 0 {
		return nil
	}
	names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
	slices.Sort(names)
	return names
}
