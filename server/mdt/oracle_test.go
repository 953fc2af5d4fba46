package mdt

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"golang.org/x/sys/unix"
)

// oracle runs calls on a folder of a local file system, as several callers: what this kernel does is what is right.
type oracle struct {
	dir  string
	work chan func()
	done chan struct{}
}

func newOracle(t *testing.T) *oracle {
	if os.Getuid() != 0 {
		t.Skip("changes the caller's ids: needs root")
	}
	o := &oracle{dir: t.TempDir(), work: make(chan func()), done: make(chan struct{})}
	if err := os.Chmod(o.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	started := make(chan error)
	go func() {
		defer close(o.done)
		runtime.LockOSThread() // And never unlocked: the thread ends with its ids and its own working folder.
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Chdir(o.dir)
		}
		started <- err
		for fn := range o.work {
			fn()
		}
	}()
	if err := <-started; err != nil {
		close(o.work)
		t.Skipf("no thread with a working folder of its own: %v", err)
	}
	t.Cleanup(func() { close(o.work); <-o.done })
	return o
}

// as runs fn with the ids of w and returns its errno.
func (o *oracle) as(w who, fn func() error) syscallErrno {
	var err error
	ran := make(chan struct{})
	o.work <- func() {
		defer close(ran)
		var gs [8]uint32
		n := copy(gs[:], w.groups)
		unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(n), ptr(&gs), 0)
		unix.RawSyscall(unix.SYS_SETFSGID, uintptr(w.gid), 0, 0)
		unix.RawSyscall(unix.SYS_SETFSUID, uintptr(w.uid), 0, 0)
		unix.Umask(int(w.umask))
		err = fn()
		unix.RawSyscall(unix.SYS_SETFSUID, 0, 0, 0)
		unix.RawSyscall(unix.SYS_SETFSGID, 0, 0, 0)
		unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
	}
	<-ran
	return syscallErrno(status.Of(err))
}

type syscallErrno uint32

func (e syscallErrno) String() string { return status.Kind(e).Error() }

// shim does what the kernel does between an application's call and the requests of a mount.
type shim struct{ cl *client }

// parent walks to the folder of a path.
func (s shim) parent(w who, path string) (fid.FID, string, error) {
	parts := strings.Split(path, "/")
	at := fid.Root
	for _, p := range parts[:len(parts)-1] {
		r, err := s.cl.lookup(w, at, p)
		if err != nil {
			return at, "", err
		}
		if r.Attr.Mode&attr.TypeMask == attr.TypeLink {
			return at, "", status.NotExist // All symlinks here lead nowhere.
		}
		at = fidOf(r.Attr)
	}
	// The walk checks the last folder too, before it looks at the other path of a rename.
	if _, err := s.cl.lookup(w, at, "no such name"); status.Of(err) != status.NotExist {
		return at, "", err
	}
	return at, parts[len(parts)-1], nil
}

func (s shim) find(w who, path string, follow bool) (*wirepb.EntryReply, error) {
	p, name, err := s.parent(w, path)
	if err != nil {
		return nil, err
	}
	r, err := s.cl.lookup(w, p, name)
	if err == nil && follow && r.Attr.Mode&attr.TypeMask == attr.TypeLink {
		return nil, status.NotExist
	}
	return r, err
}

func (s shim) node(w who, path string, mode uint32, more ...func(*wirepb.CreateRequest)) error {
	p, name, err := s.parent(w, path)
	if err != nil {
		return err
	}
	_, err = s.cl.make(w, p, name, mode, more...)
	return err
}

func (s shim) open(w who, path string, flags int, mode uint32) error {
	var r *wirepb.EntryReply
	if flags&unix.O_CREAT != 0 {
		p, name, err := s.parent(w, path)
		if err != nil {
			return err
		}
		if r, err = s.cl.make(w, p, name, attr.TypeFile|mode, withOpen(uint32(flags))); err != nil {
			return err
		}
	} else {
		found, err := s.find(w, path, false)
		if err != nil {
			return err
		}
		if r, err = s.cl.open(w, fidOf(found.Attr), uint32(flags)); err != nil {
			return err
		}
	}
	if err := s.cl.closeFile(fidOf(r.Attr), r.Handle, nil); err != nil {
		return err
	}
	switch kind := r.Attr.Mode & attr.TypeMask; {
	case kind == attr.TypeChar, kind == attr.TypeBlock:
		return errDevice
	case kind == attr.TypeSocket, kind == attr.TypeFifo && flags&unix.O_ACCMODE == unix.O_WRONLY:
		return status.NoDevice
	}
	return nil
}

func (s shim) setattr(w who, path string, follow bool, valid attr.Valid, a *wirepb.Attr) error {
	r, err := s.find(w, path, follow)
	if err != nil {
		return err
	}
	_, err = s.cl.setattr(w, fidOf(r.Attr), valid, a, 0)
	return err
}

func (s shim) xattr(op wire.Op, w who, path, name string, value []byte, flags uint32) error {
	r, err := s.find(w, path, false)
	if err != nil {
		return err
	}
	_, err = s.cl.xattr(op, w, fidOf(r.Attr), name, value, flags)
	return err
}

// errDevice says that the open reached a device, and what happens then is the kernel's.
var errDevice = status.Errorf(status.NoDevice, "a device")

// call is one random call, on both sides.
type call struct {
	text   string
	who    who
	real   func() error
	strake func() error
}

var testCallers = []who{
	{}, {}, {}, {umask: 0o022}, {umask: 0o022}, {uid: 1000, gid: 1000, groups: []uint32{2000}, umask: 0o022}, {uid: 1000, gid: 1000, groups: []uint32{2000}},
	{uid: 1001, gid: 1001, groups: []uint32{1000}, umask: 0o077}, {uid: 1002, gid: 2000},
}

func testACL(entries ...[3]uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, e := range entries {
		b = binary.LittleEndian.AppendUint16(b, uint16(e[0]))
		b = binary.LittleEndian.AppendUint16(b, uint16(e[1]))
		b = binary.LittleEndian.AppendUint32(b, e[2])
	}
	return b
}

func testACLs() [][]byte {
	no := aclNoID
	return [][]byte{
		testACL([3]uint32{aclUserObj, 7, no}, [3]uint32{aclGroupObj, 5, no}, [3]uint32{aclOther, 1, no}),
		testACL([3]uint32{aclUserObj, 6, no}, [3]uint32{aclUser, 7, 1001}, [3]uint32{aclGroupObj, 4, no}, [3]uint32{aclMask, 6, no}, [3]uint32{aclOther, 0, no}),
		testACL([3]uint32{aclUserObj, 7, no}, [3]uint32{aclUser, 7, 1000}, [3]uint32{aclGroupObj, 7, no}, [3]uint32{aclGroup, 3, 2000}, [3]uint32{aclMask, 7, no}, [3]uint32{aclOther, 5, no}),
		testACL([3]uint32{aclUserObj, 7, no}, [3]uint32{aclGroupObj, 7, no}, [3]uint32{aclMask, 1, no}, [3]uint32{aclOther, 7, no}),
		testACL([3]uint32{aclUserObj, 7, no}, [3]uint32{aclUser, 7, 1000}, [3]uint32{aclGroupObj, 7, no}, [3]uint32{aclMask, 0, no}, [3]uint32{aclOther, 4, no}),
		testACL([3]uint32{aclUserObj, 7, no}, [3]uint32{aclUser, 7, 1000}, [3]uint32{aclGroupObj, 7, no}, [3]uint32{aclOther, 5, no}), // no mask
		testACL([3]uint32{aclUserObj, 9, no}, [3]uint32{aclGroupObj, 7, no}, [3]uint32{aclOther, 5, no}),
		testACL([3]uint32{aclGroupObj, 7, no}, [3]uint32{aclUserObj, 7, no}, [3]uint32{aclOther, 5, no}),
		{2, 0, 0}, {1, 0, 0, 0}, {2, 0, 0, 0}, {},
	}
}

// randomCall draws a call.
func randomCall(rnd *rand.Rand, s shim, acls [][]byte, known []string) call {
	pick := func(n int) int { return rnd.IntN(n) }
	path := func() string {
		if len(known) > 0 && pick(3) > 0 {
			p := known[pick(len(known))]
			if pick(3) == 0 && strings.Count(p, "/") < 3 {
				p += "/" + string(rune('a'+pick(4)))
			}
			return p
		}
		parts := make([]string, 1+pick(3))
		for i := range parts {
			parts[i] = string(rune('a' + pick(4)))
		}
		return strings.Join(parts, "/")
	}
	modes := []uint32{0o777, 0o755, 0o700, 0o070, 0o007, 0o1777, 0o2775, 0o2755, 0o4755, 0o6777, 0o644, 0, 0o2644, 0o111, 0o2767}
	mode := modes[pick(len(modes))]
	w := testCallers[pick(len(testCallers))]
	p, q := path(), path()
	c := call{who: w}
	set := func(text string, real, strake func() error) { c.text, c.real, c.strake = text, real, strake }
	switch pick(20) {
	case 0, 1, 2:
		set(fmt.Sprintf("mkdir %s %o", p, mode), func() error { return unix.Mkdir(p, mode) },
			func() error { return s.node(w, p, dir|mode) })
	case 3, 4:
		kinds := []uint32{attr.TypeFifo, attr.TypeSocket, attr.TypeFile, attr.TypeChar, attr.TypeBlock}
		kind := kinds[pick(len(kinds))]
		dev := 0
		if kind == attr.TypeChar && pick(2) == 0 || kind == attr.TypeBlock {
			dev = int(unix.Mkdev(1, 3))
		}
		set(fmt.Sprintf("mknod %s %o dev %d", p, kind|mode, dev), func() error { return unix.Mknod(p, kind|mode, dev) },
			func() error { return s.node(w, p, kind|mode, func(m *wirepb.CreateRequest) { m.Rdev = uint32(dev) }) })
	case 5:
		set("symlink "+p, func() error { return unix.Symlink("/nowhere/x", p) }, func() error { return s.node(w, p, slnk|0o777, withLink("/nowhere/x")) })
	case 6, 7, 8:
		flags := []int{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR, unix.O_WRONLY | unix.O_TRUNC}[pick(4)]
		flags |= []int{0, unix.O_CREAT, unix.O_CREAT, unix.O_CREAT | unix.O_EXCL, unix.O_DIRECTORY}[pick(5)]
		set(fmt.Sprintf("open %s %#x %o", p, flags, mode), func() error {
			fd, err := unix.Open(p, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, mode)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}, func() error { return s.open(w, p, flags, mode) })
	case 9:
		set("link "+p+" "+q, func() error { return unix.Link(p, q) }, func() error {
			r, err := s.find(w, p, false)
			if err != nil {
				return err
			}
			d, name, err := s.parent(w, q)
			if err != nil {
				return err
			}
			_, err = s.cl.link(w, fidOf(r.Attr), d, name)
			return err
		})
		// protected_hardlinks is the mount's kernel's; only the owner and root get past it surely.
		c.who, w = root, root
	case 10:
		set("unlink "+p, func() error { return unix.Unlink(p) }, func() error {
			d, name, err := s.parent(w, p)
			if err == nil {
				_, err = s.cl.unlink(w, d, name, false)
			}
			return err
		})
	case 11:
		set("rmdir "+p, func() error { return unix.Rmdir(p) }, func() error {
			d, name, err := s.parent(w, p)
			if err == nil {
				_, err = s.cl.unlink(w, d, name, true)
			}
			return err
		})
	case 12, 13, 14:
		flags := []uint{0, 0, 0, 1, 2, 2, 4, 5, 3}[pick(9)]
		set(fmt.Sprintf("rename %s %s %d", p, q, flags), func() error { return unix.Renameat2(unix.AT_FDCWD, p, unix.AT_FDCWD, q, flags) }, func() error {
			if flags == 3 {
				return status.Invalid
			}
			d, name, err := s.parent(w, p)
			if err != nil {
				return err
			}
			e, to, err := s.parent(w, q)
			if err == nil {
				_, err = s.cl.rename(w, d, name, e, to, uint32(flags))
			}
			return err
		})
	case 15:
		set(fmt.Sprintf("chmod %s %o", p, mode), func() error { return unix.Chmod(p, mode) },
			func() error { return s.setattr(w, p, true, attr.ValidMode, &wirepb.Attr{Mode: mode}) })
	case 16:
		uid := []int{-1, 0, 1000, 1001}[pick(4)]
		gid := []int{-1, 0, 1000, 1001, 2000}[pick(5)]
		if uid < 0 && gid < 0 {
			gid = 1000
		}
		valid := attr.Valid(0)
		if uid >= 0 {
			valid |= attr.ValidUID
		}
		if gid >= 0 {
			valid |= attr.ValidGID
		}
		set(fmt.Sprintf("lchown %s %d %d", p, uid, gid), func() error { return unix.Lchown(p, uid, gid) },
			func() error { return s.setattr(w, p, false, valid, &wirepb.Attr{Uid: uint32(uid), Gid: uint32(gid)}) })
	case 17:
		size := int64(pick(10000))
		set(fmt.Sprintf("truncate %s %d", p, size), func() error { return unix.Truncate(p, size) },
			func() error { return s.setattr(w, p, true, attr.ValidSize, &wirepb.Attr{Size: uint64(size)}) })
	case 18:
		ts := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
		valid := attr.ValidAtimeNow | attr.ValidMtimeNow
		switch pick(3) {
		case 0:
			ts[0], ts[1] = unix.Timespec{Sec: 1000, Nsec: 1}, unix.Timespec{Sec: 2000, Nsec: 2}
			valid = attr.ValidAtime | attr.ValidMtime
		case 1:
			ts[0].Nsec = unix.UTIME_OMIT
			valid = attr.ValidMtimeNow
		}
		set(fmt.Sprintf("utimensat %s %#x", p, valid), func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, p, ts, unix.AT_SYMLINK_NOFOLLOW) },
			func() error {
				return s.setattr(w, p, false, valid, &wirepb.Attr{AtimeSec: 1000, AtimeNsec: 1, MtimeSec: 2000, MtimeNsec: 2})
			})
	default:
		name := []string{"user.x", "user.y", attr.XattrACLAccess, attr.XattrACLDefault, attr.XattrACLAccess}[pick(5)]
		value := []byte("value")
		if !strings.HasPrefix(name, "user.") {
			value = acls[pick(len(acls))]
		}
		flags := []int{0, 0, 0, unix.XATTR_CREATE, unix.XATTR_REPLACE}[pick(5)]
		if value != nil && !strings.HasPrefix(name, "user.") {
			flags = 0
		}
		if pick(4) == 0 {
			set("lremovexattr "+p+" "+name, func() error { return unix.Lremovexattr(p, name) },
				func() error { return s.xattr(wire.OpRemovexattr, w, p, name, nil, 0) })
			break
		}
		set(fmt.Sprintf("lsetxattr %s %s %x %d", p, name, value, flags), func() error { return unix.Lsetxattr(p, name, value, flags) },
			func() error { return s.xattr(wire.OpSetxattr, w, p, name, value, uint32(flags)) })
	}
	return c
}

// realTree describes every inode of the oracle's folder.
func (o *oracle) tree() map[string]string {
	out := map[string]string{}
	_ = filepath.WalkDir(o.dir, func(path string, _ os.DirEntry, err error) error {
		rel, _ := filepath.Rel(o.dir, path)
		if err != nil || rel == "." {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		size := st.Size
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			size = 0
		}
		out[rel] = describe(st.Mode, st.Uid, st.Gid, uint32(st.Nlink), uint32(st.Rdev), uint64(size), realXattrs(path))
		return nil
	})
	return out
}

func describe(mode, uid, gid, nlink, rdev uint32, size uint64, x []string) string {
	slices.Sort(x)
	return fmt.Sprintf("%o %d:%d links %d dev %x size %d %s", mode, uid, gid, nlink, rdev, size, strings.Join(x, " "))
}

func realXattrs(path string) (out []string) {
	b := make([]byte, 1024)
	n, err := unix.Llistxattr(path, b)
	if err != nil {
		return nil
	}
	for _, name := range strings.Split(string(b[:n]), "\x00") {
		if name == "" {
			continue
		}
		v := make([]byte, 1024)
		k, _ := unix.Lgetxattr(path, name, v)
		out = append(out, fmt.Sprintf("%s=%x", name, v[:max(k, 0)]))
	}
	return out
}

// tree describes every inode of the MDT.
func (s shim) tree(t *testing.T) map[string]string {
	out := map[string]string{}
	var walk func(f fid.FID, at string)
	walk = func(f fid.FID, at string) {
		ds, err := s.cl.list(f, 1<<16, true, nil)
		if err != nil {
			t.Fatalf("list %s: %v", at, err)
		}
		for _, d := range ds {
			if d.Cookie < firstCookie {
				continue
			}
			p := filepath.Join(at, string(d.Name))
			a := d.Attr
			size := a.Size
			if a.Mode&attr.TypeMask == attr.TypeDir {
				size = 0
			}
			out[p] = describe(a.Mode, a.Uid, a.Gid, a.Nlink, a.Rdev, size, s.xattrs(t, fidOf(a)))
			if a.Mode&attr.TypeMask == attr.TypeDir {
				walk(fidOf(a), p)
			}
		}
	}
	walk(fid.Root, "")
	return out
}

func (s shim) xattrs(t *testing.T, f fid.FID) (out []string) {
	list, err := s.cl.xattr(wire.OpListxattr, root, f, "", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Split(string(list), "\x00") {
		if name == "" {
			continue
		}
		v, err := s.cl.xattr(wire.OpGetxattr, root, f, name, nil, 0)
		if err != nil {
			t.Fatalf("getxattr %s: %v", name, err)
		}
		out = append(out, fmt.Sprintf("%s=%x", name, v))
	}
	return out
}

// TestAgainstLocalFileSystem does the same random calls, as several callers, here and on a local file system, and compares
// every errno and every inode.
func TestAgainstLocalFileSystem(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	calls := 6000
	if testing.Short() {
		calls = 2000
	}
	for i := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed+i), func(t *testing.T) { compareRun(t, seed+i, calls/4) })
	}
}

func compareRun(t *testing.T, seed uint64, calls int) {
	o := newOracle(t)
	c := newCluster(t)
	if seed%2 == 0 {
		c.h.key.mask = 1 // All names are in one run.
	}
	s := shim{c.client()}
	if _, err := s.cl.setattr(root, fid.Root, attr.ValidMode, &wirepb.Attr{Mode: 0o777}, 0); err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	acls := testACLs()
	var log []string
	fail := func(format string, args ...any) {
		t.Fatalf("%s\nlast calls:\n%s", fmt.Sprintf(format, args...), strings.Join(log[max(0, len(log)-12):], "\n"))
	}
	ok := 0
	var known []string
	for i := range calls {
		k := randomCall(rnd, s, acls, known)
		want := o.as(k.who, k.real)
		err := k.strake()
		got := syscallErrno(status.Of(err))
		if err == errDevice && (want == 0 || want == syscallErrno(status.Access)) {
			got = want
		}
		if strings.HasPrefix(k.text, "open") && want == syscallErrno(status.Access) && (got == syscallErrno(status.Loop) || got == syscallErrno(status.NoDevice)) {
			got = want // may_create_in_sticky, which is the mount's kernel's.
		}
		log = append(log, fmt.Sprintf("uid %d umask %o: %s = %v", k.who.uid, k.who.umask, k.text, want))
		if got != want {
			real, mine := o.tree(), s.tree(t)
			for p := range strings.FieldsSeq(k.text) {
				log = append(log, fmt.Sprintf("%s: here %s, there %s", p, mine[p], real[p]))
			}
			fail("call %d: %v here, %v there", i, got, want)
		}
		if want == 0 {
			ok++
		}
		if i%10 == 0 || i == calls-1 {
			real, mine := o.tree(), s.tree(t)
			known = slices.Sorted(maps.Keys(real))
			for p, v := range real {
				if mine[p] != v {
					fail("%s is\n  %s, should be\n  %s", p, mine[p], v)
				}
			}
			if len(real) != len(mine) {
				fail("%d inodes, should be %d", len(mine), len(real))
			}
		}
	}
	if ok < calls/12 {
		t.Errorf("only %d of %d calls succeeded", ok, calls)
	}
}
