package suite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// callLimit is how long one call may take while others fight for the same objects: far below the lock timeout
	// (20 s), so that nothing that ends by a timeout passes.
	callLimit = 10 * time.Second

	stableFiles = 3
	cells       = 16
	cellBytes   = 1000 // divides no page and no stripe
	stripeBytes = 65536
	cellsFrom   = stripeBytes - 7*cellBytes - 300 // the eighth cell crosses a stripe boundary
	mapPages    = 6
	recordBytes = 201
	resident    = 40 // entries that stay in each folder of the pair
)

// world is the objects of one run, as every mount names them.
type world struct {
	t     testing.TB
	m     *mounts
	h     *history
	roots []string
	next  atomic.Uint64 // last value written; every one is used once
	alone bool          // one worker per mount: what the kernel of a mount shows early to its own is not in the way

	errMu sync.Mutex
	errs  []string // guarded by errMu
	// calls counts those on names; stale those of them that the kernel has refused itself: it knows a folder, which another mount
	// has moved, by its old place, and cannot follow it there while one of its own renames runs. It then says ESTALE, on every
	// network file system. Such a call has changed nothing.
	calls, stale atomic.Int64
	slowest      atomic.Int64
	slowWas      atomic.Value // string: the call that took longest
}

// worker makes random calls through one mount.
type worker struct {
	*world
	id, mount int
	rng       *rand.Rand
	root      string
	held      int // an open file of the pair, or -1
	heldIno   uint64
}

// newWorld makes the objects of a run: a folder pair, stable files, a file of cells, a mapped file, a log.
func newWorld(t testing.TB, m *mounts, alone bool) *world {
	w := &world{t: t, m: m, h: newHistory(), roots: m.folders(t), alone: alone}
	root := w.roots[0]
	for _, dir := range []string{"A", "B"} {
		must(t, os.Mkdir(filepath.Join(root, dir), 0o755))
		for i := range resident {
			must(t, os.WriteFile(filepath.Join(root, dir, fmt.Sprintf("stays%d", i)), nil, 0o644))
		}
	}
	for i := range stableFiles {
		path := filepath.Join(root, fmt.Sprintf("s%d", i))
		must(t, os.WriteFile(path, nil, 0o644))
		must(t, os.Chmod(path, 0o644))
		now := w.h.now()
		w.record(-1, 0, now, step{part: part(i, "mode"), kind: partRegister, in: set{value: "644"}, out: nil})
		w.record(-1, 0, now, step{part: part(i, "uid"), kind: partRegister, in: set{value: "0"}, out: nil})
		w.record(-1, 0, now, step{part: part(i, "gid"), kind: partRegister, in: set{value: "0"}, out: nil})
	}
	m.setstripe(t, filepath.Join(root, "cells"), 2, "64K")
	m.setstripe(t, filepath.Join(root, "map"), 2, "64K")
	must(t, os.Truncate(filepath.Join(root, "map"), int64(mapPages*os.Getpagesize())))
	for i := range mapPages {
		w.record(-1, 0, w.h.now(), step{part: fmt.Sprintf("map page %d", i), kind: partCell, in: cellIn{op: cellGrow}, out: nil})
	}
	m.setstripe(t, filepath.Join(root, "log"), 2, "64K")
	return w
}

func part(file int, what string) string { return fmt.Sprintf("s%d %s", file, what) }

// record adds steps of one call that has just returned.
func (w *world) record(id, mount int, call int64, steps ...step) {
	ret := w.h.now()
	for i := range steps {
		steps[i].worker, steps[i].mount, steps[i].call, steps[i].ret = max(id, 0), mount, call, ret
	}
	w.h.add(steps...)
}

func (w *world) fail(format string, args ...any) {
	w.errMu.Lock()
	defer w.errMu.Unlock()
	if len(w.errs) < 20 {
		w.errs = append(w.errs, fmt.Sprintf(format, args...))
	}
}

func (w *world) failed() bool {
	w.errMu.Lock()
	defer w.errMu.Unlock()
	return len(w.errs) > 0
}

// timed notes how long a call took.
func (k *worker) timed(what string, call int64) {
	took := k.h.now() - call
	if took > k.slowest.Load() {
		k.slowest.Store(took)
		k.slowWas.Store(fmt.Sprintf("%s by worker %d on M%d", what, k.id, k.mount))
	}
	if took > int64(callLimit) {
		k.fail("%s by worker %d on M%d took %v, limit %v", what, k.id, k.mount, time.Duration(took), callLimit)
	}
}

// done records a call that returned err: steps when it succeeded, else an error that no state explains.
func (k *worker) done(what string, call int64, err error, steps ...step) {
	k.timed(what, call)
	if err != nil {
		k.fail("worker %d on M%d at %.3f ms: %s: %v", k.id, k.mount, float64(call)/1e6, what, err)
		return
	}
	k.record(k.id, k.mount, call, steps...)
}

func (k *worker) path(name string) string { return filepath.Join(k.root, name) }

func (k *worker) namePath(i int8) string { return filepath.Join(k.root, nameText(i)) }

// run makes count random calls.
func (k *worker) run(count int) {
	debug.SetPanicOnFault(true)
	defer func() {
		if p := recover(); p != nil {
			k.fail("worker %d on M%d: %v", k.id, k.mount, p)
		}
		if k.held >= 0 {
			unix.Close(k.held)
		}
	}()
	calls := []struct {
		weight int
		f      func()
	}{
		{14, k.onName}, {4, k.rename}, {3, k.link}, {4, k.inFolder}, {5, k.lookup}, {2, k.list}, {2, k.heldFile},
		{4, k.chmod}, {3, k.chown}, {4, k.statStable}, {4, k.xattr}, {3, k.acl},
		{6, k.write}, {6, k.read}, {2, k.truncate}, {2, k.length}, {5, k.append}, {3, k.readLog}, {4, k.mapped},
	}
	// STRAKE_SUITE_CALLS=names or data looks at one kind alone.
	const nameCalls, attrCalls = 7, 12
	switch os.Getenv("STRAKE_SUITE_CALLS") {
	case "names":
		calls = calls[:nameCalls]
	case "attrs":
		calls = calls[nameCalls:attrCalls]
	case "data":
		calls = calls[attrCalls:]
	}
	sum := 0
	for _, c := range calls {
		sum += c.weight
	}
	for range count {
		if k.failed() {
			return
		}
		n := k.rng.IntN(sum)
		for _, c := range calls {
			if n -= c.weight; n < 0 {
				c.f()
				break
			}
		}
	}
}

// --- names ----------------------------------------------------------------------------------------------------------

func (k *worker) anyName() int8 {
	return int8(k.rng.IntN(2)*(nameCount/2) + k.rng.IntN(4))
}

func (k *worker) anyLink() int8 {
	return int8(k.rng.IntN(2)*(nameCount/2) + 4 + k.rng.IntN(2))
}

// nameDone records a call on names: the change, or what its refusal says.
func (k *worker) nameDone(call int64, in nameIn, out nameOut, err error) {
	k.calls.Add(1)
	if err == unix.ESTALE {
		k.stale.Add(1)
		k.timed(in.String(), call)
		return
	}
	if err == nil {
		k.done(in.String(), call, nil, nameStep(in, out))
		return
	}
	seen, ok := refusal(in, err)
	if !ok {
		k.done(in.String(), call, err)
		return
	}
	var steps []step
	for _, in := range seen {
		steps = append(steps, nameStep(in, nameOut{}))
	}
	k.done(in.String(), call, nil, steps...)
}

func nameStep(in nameIn, out nameOut) step {
	return step{part: "names", kind: partNames, in: in, out: out, look: in.op >= seeName}
}

func (k *worker) onName() {
	a := k.anyName()
	call := k.h.now()
	switch k.rng.IntN(7) {
	case 0:
		ino, err := createFile(unix.AT_FDCWD, k.namePath(a), unix.O_EXCL)
		k.nameDone(call, nameIn{op: opCreate, a: a, ino: ino}, nameOut{}, err)
	case 1:
		ino, err := createFile(unix.AT_FDCWD, k.namePath(a), 0)
		k.nameDone(call, nameIn{op: opEnsure, a: a, ino: ino}, nameOut{}, err)
	case 2:
		k.nameDone(call, nameIn{op: opMkdir, a: a, ino: unbound}, nameOut{}, unix.Mkdir(k.namePath(a), 0o755))
	case 3, 4:
		k.nameDone(call, nameIn{op: opRmdir, a: a}, nameOut{}, unix.Rmdir(k.namePath(a)))
	default:
		k.nameDone(call, nameIn{op: opUnlink, a: a}, nameOut{}, unix.Unlink(k.namePath(a)))
	}
}

// createFile opens with O_CREAT and more, and returns the inode number.
func createFile(dir int, path string, more int) (uint64, error) {
	fd, err := unix.Openat(dir, path, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC|more, 0o644)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return st.Ino, err
}

func (k *worker) rename() {
	a, b := k.anyName(), k.anyName()
	if a == b {
		return
	}
	in := nameIn{op: opRename, a: a, b: b}
	call := k.h.now()
	if k.rng.IntN(5) == 0 {
		in.op = opExchange
		k.nameDone(call, in, nameOut{}, unix.Renameat2(unix.AT_FDCWD, k.namePath(a), unix.AT_FDCWD, k.namePath(b), unix.RENAME_EXCHANGE))
		return
	}
	k.nameDone(call, in, nameOut{}, unix.Rename(k.namePath(a), k.namePath(b)))
}

// look opens a name without a right and returns what it leads to; the caller closes the descriptor.
func (k *worker) look(a int8) (fd int, out nameOut) {
	call := k.h.now()
	fd, err := unix.Open(k.namePath(a), unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	var st unix.Stat_t
	if err == nil {
		if err = unix.Fstat(fd, &st); err == unix.ESTALE { // removed since, and nobody has it open: not known what it was
			unix.Close(fd)
			k.timed("open(O_PATH)", call)
			return -1, out
		}
		out = nameOut{ino: st.Ino, folder: st.Mode&unix.S_IFMT == unix.S_IFDIR}
	} else if err == unix.ENOENT {
		err, fd = nil, -1
	}
	k.lookDone(call, a, out, &st, err)
	return fd, out
}

func (k *worker) lookup() {
	a := k.anyName()
	if k.rng.IntN(4) == 0 {
		a = k.anyLink()
	}
	var st unix.Stat_t
	var out nameOut
	call := k.h.now()
	err := unix.Lstat(k.namePath(a), &st)
	if err == nil {
		out = nameOut{ino: st.Ino, folder: st.Mode&unix.S_IFMT == unix.S_IFDIR}
	} else if err == unix.ENOENT {
		err = nil
	}
	k.lookDone(call, a, out, &st, err)
}

// lookDone records what a name led to, and the links of a file.
func (k *worker) lookDone(call int64, a int8, out nameOut, st *unix.Stat_t, err error) {
	in := nameIn{op: seeName, a: a}
	if err != nil {
		k.nameDone(call, in, out, err)
		return
	}
	steps := []step{nameStep(in, out)}
	if out.ino != 0 && !out.folder {
		steps = append(steps, nameStep(nameIn{op: seeLinks, ino: st.Ino}, nameOut{n: int(st.Nlink)}))
	}
	k.done(in.String(), call, err, steps...)
}

// link gives a file a second name, or takes one away.
func (k *worker) link() {
	to := k.anyLink()
	if k.rng.IntN(2) == 0 {
		call := k.h.now()
		k.nameDone(call, nameIn{op: opUnlink, a: to}, nameOut{}, unix.Unlink(k.namePath(to)))
		return
	}
	fd, out := k.look(k.anyName())
	if fd < 0 {
		return
	}
	defer unix.Close(fd)
	if out.folder {
		return
	}
	call := k.h.now()
	err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, k.namePath(to), unix.AT_SYMLINK_FOLLOW)
	k.nameDone(call, nameIn{op: opLink, a: to, ino: out.ino}, nameOut{}, err)
}

// inFolder opens a folder of the pair and makes, removes or looks at an entry in it, wherever it may be by then.
func (k *worker) inFolder() {
	fd, out := k.look(k.anyName())
	if fd < 0 {
		return
	}
	defer unix.Close(fd)
	if !out.folder {
		return
	}
	for range 1 + k.rng.IntN(2) {
		in := nameIn{ino: out.ino}
		var got nameOut
		var err error
		call := k.h.now()
		switch k.rng.IntN(3) {
		case 0:
			in.op = opMakeIn
			got.ino, err = createFile(fd, "c", unix.O_EXCL)
			if err == unix.EEXIST {
				return // its inode is not known; a lookup says more
			}
		case 1:
			in.op, err = opTakeIn, unix.Unlinkat(fd, "c", 0)
		default:
			var st unix.Stat_t
			in.op, err = seeIn, unix.Fstatat(fd, "c", &st, unix.AT_SYMLINK_NOFOLLOW)
			got.ino = st.Ino
		}
		if err == unix.ENOENT || err == unix.ESTALE {
			in.op, err, got.ino = map[nameOp]nameOp{opMakeIn: seeDead, opTakeIn: seeIn, seeIn: seeIn}[in.op], nil, 0
		}
		k.done(in.String(), call, err, nameStep(in, got))
	}
}

// heldFile keeps a file of the pair open and asks for its link count, whatever became of its names.
func (k *worker) heldFile() {
	if k.held >= 0 {
		var st unix.Stat_t
		call := k.h.now()
		err := unix.Fstat(k.held, &st)
		if err == nil && st.Ino != k.heldIno {
			err = fmt.Errorf("inode %d became %d", k.heldIno, st.Ino)
		}
		in := nameIn{op: seeLinks, ino: k.heldIno}
		k.done("fstat: "+in.String(), call, err, nameStep(in, nameOut{n: int(st.Nlink)}))
		if k.rng.IntN(3) == 0 {
			unix.Close(k.held)
			k.held = -1
		}
		return
	}
	a := k.anyName()
	call := k.h.now()
	fd, err := unix.Open(k.namePath(a), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch err {
	case nil:
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		k.held, k.heldIno = fd, st.Ino
		in := nameIn{op: seeName, a: a}
		k.done("open: "+in.String(), call, err, nameStep(in, nameOut{ino: st.Ino}))
	case unix.ENOENT:
		k.done("open", call, nil, nameStep(nameIn{op: seeName, a: a}, nameOut{}))
	case unix.EISDIR:
		k.done("open", call, nil, nameStep(nameIn{op: seeFolder, a: a}, nameOut{}))
	default:
		k.nameDone(call, nameIn{op: seeName, a: a}, nameOut{}, err)
	}
}

// list reads one of the two folders.
func (k *worker) list() {
	folder := k.rng.IntN(2)
	l := reading{folder: folder, mount: k.mount, found: map[string]int{}, wantPossible: map[string]bool{}}
	for i := range resident {
		l.wantAlways = append(l.wantAlways, fmt.Sprintf("stays%d", i))
		l.wantPossible[l.wantAlways[i]] = true
	}
	for i := range int8(nameCount / 2) {
		l.wantPossible[nameText(i)[2:]] = true
	}
	l.call = k.h.now()
	err := listing(k.path([]string{"A", "B"}[folder]), 1024, func(name string, kind byte) error {
		l.found[name]++
		return nil
	})
	delete(l.found, ".")
	delete(l.found, "..")
	l.ret = k.h.now()
	k.done("readdir", l.call, err)
	if err == nil {
		k.h.mu.Lock()
		k.h.listings = append(k.h.listings, l)
		k.h.mu.Unlock()
	}
}

// --- attributes of files whose names stay ---------------------------------------------------------------------------

func (k *worker) stable() (int, string) {
	i := k.rng.IntN(stableFiles)
	return i, k.path(fmt.Sprintf("s%d", i))
}

func register(part string, in, out any) step {
	_, look := in.(get)
	return step{part: part, kind: partRegister, in: in, out: out, look: look}
}

func aclStep(file int, in aclIn, out any) step {
	return step{part: part(file, "acl"), kind: partACL, in: in, out: out, look: in.look}
}

func (k *worker) chmod() {
	i, path := k.stable()
	mode := uint32(k.rng.IntN(0o1000))
	call := k.h.now()
	err := unix.Chmod(path, mode)
	k.done(fmt.Sprintf("chmod %o s%d", mode, i), call, err, register(part(i, "mode"), set{value: fmt.Sprintf("%o", mode)}, nil),
		aclStep(i, aclIn{chmod: true, mode: mode}, nil))
}

func (k *worker) chown() {
	i, path := k.stable()
	uid, gid := k.rng.IntN(4), k.rng.IntN(4)
	call := k.h.now()
	err := unix.Lchown(path, uid, gid)
	k.done("chown", call, err, register(part(i, "uid"), set{value: fmt.Sprint(uid)}, nil), register(part(i, "gid"), set{value: fmt.Sprint(gid)}, nil))
}

func (k *worker) statStable() {
	i, path := k.stable()
	var st unix.Stat_t
	call := k.h.now()
	err := unix.Lstat(path, &st)
	k.done("stat", call, err, register(part(i, "mode"), get{}, fmt.Sprintf("%o", st.Mode&0o7777)),
		register(part(i, "uid"), get{}, fmt.Sprint(st.Uid)), register(part(i, "gid"), get{}, fmt.Sprint(st.Gid)))
}

func (k *worker) xattr() {
	i, path := k.stable()
	name := pick(k.rng, "user.a", "user.b")
	p := part(i, name)
	call := k.h.now()
	switch k.rng.IntN(6) {
	case 0, 1:
		v := fmt.Sprint(k.next.Add(1))
		flags := pick(k.rng, 0, 0, unix.XATTR_CREATE, unix.XATTR_REPLACE)
		err := unix.Lsetxattr(path, name, []byte(v), flags)
		in := set{value: v, create: flags == unix.XATTR_CREATE, old: flags == unix.XATTR_REPLACE}
		switch {
		case err == unix.EEXIST && in.create:
			k.done("setxattr", call, nil) // says that there is one; which is not known
		case err == unix.ENODATA && in.old:
			k.done("setxattr", call, nil, register(p, get{}, ""))
		default:
			k.done("setxattr "+name, call, err, register(p, in, nil))
		}
	case 2:
		err := unix.Lremovexattr(path, name)
		if err == unix.ENODATA {
			k.done("removexattr", call, nil, register(p, get{}, ""))
			return
		}
		k.done("removexattr", call, err, register(p, set{old: true}, nil))
	default:
		buf := make([]byte, 100)
		n, err := unix.Lgetxattr(path, name, buf)
		if err == unix.ENODATA {
			n, err = 0, nil
		}
		k.done("getxattr "+name, call, err, register(p, get{}, string(buf[:max(n, 0)])))
	}
}

const accessACL = "system.posix_acl_access"

func (k *worker) acl() {
	i, path := k.stable()
	call := k.h.now()
	switch k.rng.IntN(4) {
	case 0:
		bits := func() uint8 { return uint8(k.rng.IntN(8)) }
		a := aclState{have: true, owner: bits(), user: bits(), group: bits(), mask: bits(), others: bits()}
		err := unix.Lsetxattr(path, accessACL, a.encode(), 0)
		mode := fmt.Sprintf("%o", uint32(a.owner)<<6|uint32(a.mask)<<3|uint32(a.others))
		k.done("set ACL", call, err, aclStep(i, aclIn{acl: a}, nil), register(part(i, "mode"), set{value: mode}, nil))
	case 1:
		err := unix.Lremovexattr(path, accessACL)
		if err == unix.ENODATA {
			k.done("remove ACL", call, nil, aclStep(i, aclIn{look: true}, aclState{}))
			return
		}
		k.done("remove ACL", call, err, aclStep(i, aclIn{}, nil))
	default:
		buf := make([]byte, 200)
		n, err := unix.Lgetxattr(path, accessACL, buf)
		if err == unix.ENODATA {
			n, err = 0, nil
		}
		var a aclState
		if err == nil && n > 0 {
			a, err = decodeACL(buf[:n])
		}
		k.done("get ACL", call, err, aclStep(i, aclIn{look: true}, a))
	}
}

// encode gives the ACL in the form of the system.posix_acl_access attribute.
func (a aclState) encode() []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag  uint16
		perm uint8
		id   uint32
	}{{1, a.owner, ^uint32(0)}, {2, a.user, 1001}, {4, a.group, ^uint32(0)}, {0x10, a.mask, ^uint32(0)}, {0x20, a.others, ^uint32(0)}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, uint16(e.perm))
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

func decodeACL(b []byte) (a aclState, err error) {
	if len(b) == 4+3*8 {
		return a, nil // no more than the mode says
	}
	if len(b) != 4+5*8 {
		return a, fmt.Errorf("an ACL of %d bytes: % x", len(b), b)
	}
	a.have = true
	for b = b[4:]; len(b) > 0; b = b[8:] {
		perm := uint8(binary.LittleEndian.Uint16(b[2:]))
		switch binary.LittleEndian.Uint16(b) {
		case 1:
			a.owner = perm
		case 2:
			a.user = perm
		case 4:
			a.group = perm
		case 0x10:
			a.mask = perm
		case 0x20:
			a.others = perm
		}
	}
	return a, nil
}

// --- data -----------------------------------------------------------------------------------------------------------

func cellStep(i int, in cellIn, out any) step {
	return step{part: fmt.Sprintf("cell %d", i), kind: partCell, in: in, out: out, look: in.op == cellLook, file: "cells"}
}

func lengthStep(in lengthIn, out any) step {
	return step{part: "length of cells", kind: partLength, in: in, out: out, look: in.look, file: "cells"}
}

// openCells opens the file of cells, sometimes past the kernel's cache.
func (k *worker) openCells(flags int) (int, string, error) {
	how := "buffered"
	if k.alone && !k.m.local && k.rng.IntN(4) == 0 { // a local file system may want it aligned
		flags, how = flags|unix.O_DIRECT, "direct"
	}
	fd, err := unix.Open(k.path("cells"), flags|unix.O_CLOEXEC, 0)
	return fd, how, err
}

func (k *worker) span() (from, to int) {
	from = k.rng.IntN(cells)
	return from, min(from+1+k.rng.IntN(4), cells)
}

// write fills a few cells with one value, in one call.
func (k *worker) write() {
	fd, how, err := k.openCells(unix.O_WRONLY)
	if err != nil {
		k.done("open", k.h.now(), err)
		return
	}
	defer unix.Close(fd)
	from, to := k.span()
	v := k.next.Add(1)
	buf := make([]byte, (to-from)*cellBytes)
	for i := 0; i+8 <= len(buf); i += 8 {
		binary.LittleEndian.PutUint64(buf[i:], v)
	}
	call := k.h.now()
	n, err := unix.Pwrite(fd, buf, int64(cellsFrom+from*cellBytes))
	if err == nil && n < len(buf) {
		err = io.ErrShortWrite
	}
	if err == nil && k.rng.IntN(4) == 0 {
		err = unix.Fsync(fd)
	}
	steps := []step{lengthStep(lengthIn{size: int64(cellsFrom + to*cellBytes), atLeast: true}, nil)}
	for i := range to {
		if i < from {
			steps = append(steps, cellStep(i, cellIn{op: cellGrow}, nil))
		} else {
			steps = append(steps, cellStep(i, cellIn{op: cellWrite, value: v}, nil))
		}
	}
	if how != "direct" {
		steps = append(steps, splitSteps(from, to)...)
	}
	k.done(fmt.Sprintf("%s write of %x to cells %d to %d", how, v, from, to-1), call, err, steps...)
}

// splitSteps are what a buffered write of cells from to to-1 may do beside what it says. The kernel sends what lies in the last page by
// itself if it does not have that page whole: others see the size of before, and where one of them cuts the file between
// the two, the second leaves a hole where the first was.
func splitSteps(from, to int) (steps []step) {
	page := os.Getpagesize()
	last := (cellsFrom + to*cellBytes - 1) / page * page
	if cellsFrom+from*cellBytes >= last {
		return nil
	}
	steps = append(steps, lengthStep(lengthIn{size: int64(last), atLeast: true}, nil))
	for i := 0; cellsFrom+i*cellBytes < last; i++ {
		steps = append(steps, cellStep(i, cellIn{op: cellGrow}, nil))
	}
	return steps
}

// read reads a few cells in one call.
func (k *worker) read() {
	fd, how, err := k.openCells(unix.O_RDONLY)
	if err != nil {
		k.done("open", k.h.now(), err)
		return
	}
	defer unix.Close(fd)
	from, to := k.span()
	buf := make([]byte, (to-from)*cellBytes)
	call := k.h.now()
	n, err := unix.Pread(fd, buf, int64(cellsFrom+from*cellBytes))
	var steps []step
	for i := from; i < to && err == nil; i++ {
		c := buf[(i-from)*cellBytes:][:cellBytes]
		var out cell
		if have := n - (i-from)*cellBytes; have >= cellBytes {
			out = cell{true, binary.LittleEndian.Uint64(c)}
			if i == from && k.alone {
				err = k.uniform(c, out.value, i)
			}
		} else if have > 0 && (from*cellBytes+cellsFrom+n)%os.Getpagesize() == 0 {
			continue // the kernel may make one request per page of a buffered write: its first part is seen
		} else if have > 0 {
			err = fmt.Errorf("the file ends inside cell %d, and was never cut there", i)
		}
		steps = append(steps, cellStep(i, cellIn{op: cellLook}, out))
	}
	k.done(fmt.Sprintf("%s read of cells %d to %d", how, from, to-1), call, err, steps...)
}

// uniform checks that a cell within one page holds one value: no write is seen in part.
func (k *worker) uniform(c []byte, v uint64, i int) error {
	page := os.Getpagesize()
	off := cellsFrom + i*cellBytes
	if k.m.local || off/page != (off+cellBytes-1)/page {
		return nil
	}
	for j := 0; j+8 <= len(c); j += 8 {
		if got := binary.LittleEndian.Uint64(c[j:]); got != v {
			return fmt.Errorf("cell %d is torn: %x, and %x from byte %d on", i, v, got, j)
		}
	}
	return nil
}

func (k *worker) truncate() {
	n := k.rng.IntN(cells + 2)
	size := int64(cellsFrom + n*cellBytes)
	if n > cells {
		n, size = 0, 0
	}
	call := k.h.now()
	var err error
	if size == 0 {
		var fd int
		if fd, err = unix.Open(k.path("cells"), unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0); err == nil {
			unix.Close(fd)
		}
	} else {
		err = unix.Truncate(k.path("cells"), size)
	}
	steps := []step{lengthStep(lengthIn{size: size}, nil)}
	for i := range cells {
		in := cellIn{op: cellGrow}
		if i >= n {
			in.op = cellCut
		}
		steps = append(steps, cellStep(i, in, nil))
	}
	k.done(fmt.Sprintf("truncate to %d", size), call, err, steps...)
}

func (k *worker) length() {
	var st unix.Stat_t
	call := k.h.now()
	err := unix.Lstat(k.path("cells"), &st)
	if st.Size%int64(os.Getpagesize()) == 0 && (st.Size-cellsFrom)%cellBytes != 0 && st.Size != 0 {
		return // the first part of a buffered write that the kernel makes in two requests
	}
	k.done("stat", call, err, lengthStep(lengthIn{look: true}, st.Size))
}

// append adds one record to the log.
func (k *worker) append() {
	v := k.next.Add(1)
	buf := make([]byte, recordBytes)
	for i := range buf {
		buf[i] = byte(v >> (8 * (i % 8)))
	}
	fd, err := unix.Open(k.path("log"), unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
	if err != nil {
		k.done("open", k.h.now(), err)
		return
	}
	defer unix.Close(fd)
	call := k.h.now()
	n, err := unix.Write(fd, buf)
	if err == nil && n < len(buf) {
		err = io.ErrShortWrite
	}
	k.done("append", call, err, step{part: "log", kind: partLog, in: logIn{record: v}, file: "log"})
}

func (k *worker) readLog() {
	call := k.h.now()
	if k.rng.IntN(3) == 0 {
		var st unix.Stat_t
		err := unix.Lstat(k.path("log"), &st)
		if k.m.local && st.Size%recordBytes != 0 {
			return // a local file system shows a write over two pages in two parts
		}
		if err == nil && st.Size%recordBytes != 0 {
			err = fmt.Errorf("the log has %d bytes, records have %d", st.Size, recordBytes)
		}
		k.done("stat of the log", call, err, step{part: "log", kind: partLog, in: logIn{countOnly: true}, look: true,
			out: logState{n: int(st.Size / recordBytes)}, file: "log"})
		return
	}
	text, err := os.ReadFile(k.path("log"))
	if k.m.local && len(text)%recordBytes != 0 {
		return
	}
	var state logState
	last := ""
	if err == nil && len(text)%recordBytes != 0 {
		err = fmt.Errorf("%d bytes read, records have %d", len(text), recordBytes)
	}
	for i := 0; i < len(text) && err == nil; i += recordBytes {
		r := text[i:][:recordBytes]
		v := binary.LittleEndian.Uint64(r)
		for j := range r {
			if r[j] != byte(v>>(8*(j%8))) || v == 0 {
				err = fmt.Errorf("record %d at %d of %d bytes is torn: % x", i/recordBytes, i, len(text), r[:16])
				break
			}
		}
		state = state.with(v)
		if len(text)-i <= 12*recordBytes {
			last += fmt.Sprintf(" %x", v)
		}
	}
	k.done("read of the log", call, err, step{part: "log", kind: partLog, in: logIn{}, out: logOut{state, last}, look: true, file: "log"})
}

// mapped writes a page of its own mount through a mapping and syncs it, or reads one of another mount. Two mounts never
// map one page for writing: the kernel writes whole pages back.
func (k *worker) mapped() {
	page := os.Getpagesize()
	p := k.rng.IntN(mapPages)
	fd, err := unix.Open(k.path("map"), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		k.done("open", k.h.now(), err)
		return
	}
	defer unix.Close(fd)
	mine := p%len(k.m.at) == k.mount
	in, out := cellIn{op: cellLook}, cell{true, 0}
	call := k.h.now()
	switch {
	case mine:
		in = cellIn{op: cellWrite, value: k.next.Add(1)}
		err = onMapping(fd, int64(p*page), func(b []byte) error {
			binary.LittleEndian.PutUint64(b, in.value)
			return unix.Msync(b, unix.MS_SYNC)
		})
	case k.rng.IntN(2) == 0:
		err = onMapping(fd, int64(p*page), func(b []byte) error {
			out.value = binary.LittleEndian.Uint64(b)
			return nil
		})
	default:
		buf := make([]byte, 8)
		_, err = unix.Pread(fd, buf, int64(p*page))
		out.value = binary.LittleEndian.Uint64(buf)
	}
	k.done(fmt.Sprintf("mapping of page %d: %v", p, in), call, err, step{part: fmt.Sprintf("map page %d", p), kind: partCell,
		in: in, out: out, look: !mine})
}

// onMapping maps one page shared, for f.
func onMapping(fd int, off int64, f func(b []byte) error) error {
	b, err := unix.Mmap(fd, off, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	return errors.Join(f(b), unix.Munmap(b))
}

// --- the runs -------------------------------------------------------------------------------------------------------

// relax takes from looks what the kernel of a mount tells its own processes of what another of them is changing at that moment.
// It shows what is being written before the server has it, may show a page that a truncate is clearing, and shows names and
// attributes as they were until its own call has returned, although the server has made the change and another mount has seen it.
// A look at a name may be as old as the change; other looks are left out. Renames of
// names that another mount moves are marked.
func (w *world) relax() {
	object := func(s *step) string {
		if s.file != "" {
			return s.file
		}
		return s.part
	}
	changes := map[string][]step{}
	for i := range w.h.steps {
		if s := &w.h.steps[i]; !s.look && s.kind != partLog {
			changes[object(s)] = append(changes[object(s)], *s)
		}
	}
	for i := range w.h.steps {
		s := &w.h.steps[i]
		in, ok := s.in.(nameIn)
		if !ok || in.op != opRename || w.m.local {
			continue
		}
		in.torn = slices.ContainsFunc(changes[object(s)], func(c step) bool {
			o := c.in.(nameIn)
			return c.mount != s.mount && o.op >= opRename && o.op <= opLink && (o.touches(in.a) || o.touches(in.b)) && c.call <= s.ret && s.call <= c.ret
		})
		s.in = in
	}
	kept := w.h.steps[:0]
	for _, s := range w.h.steps {
		in, named := s.in.(nameIn)
		named = named && (in.op < opMakeIn || in.op == seeName || in.op >= seeFile)
		keep, call := true, s.call
		for _, c := range changes[object(&s)] {
			if c.worker == s.worker || !w.m.local && c.mount != s.mount || c.call > s.ret || s.call > c.ret {
				continue
			}
			switch {
			case named && w.m.local: // one kernel has one order of what happens to names
			case named && (s.look || in.op == opEnsure):
				if of := c.in.(nameIn); of.op < opMakeIn && (of.touches(in.a) || in.op == seeNoPair && of.touches(in.b)) {
					call = min(call, c.call)
				}
			case s.look && s.kind != partLog:
				keep = false
			}
		}
		if s.call = call; keep {
			kept = append(kept, s)
		}
	}
	w.h.steps = kept
}

// touches says whether a change of names is one of name.
func (i nameIn) touches(name int8) bool {
	return i.a == name || (i.op == opRename || i.op == opExchange) && i.b == name
}

// lastLook looks at everything from every mount when all is quiet.
func (w *world) lastLook() {
	for i, root := range w.roots {
		k := &worker{world: w, id: i, mount: i, root: root, rng: rand.New(rand.NewPCG(1, uint64(i))), held: -1}
		for a := range int8(nameCount) {
			if fd, _ := k.look(a); fd >= 0 {
				unix.Close(fd)
			}
		}
		for range 4 * stableFiles {
			k.statStable()
		}
		for range 10 {
			k.list()
			k.read()
			k.length()
			k.readLog()
		}
	}
}

// runWorkers is one run between two barriers: perMount workers on each mount make count calls each, all wait, everything
// is looked at from everywhere, and the history is checked.
func runWorkers(t testing.TB, m *mounts, perMount, count int, seed uint64) {
	t.Helper()
	w := newWorld(t, m, perMount == 1)
	var group sync.WaitGroup
	for i, root := range w.roots {
		for j := range perMount {
			id := i*perMount + j
			k := &worker{world: w, id: id, mount: i, root: root, rng: rand.New(rand.NewPCG(seed, uint64(id))), held: -1}
			group.Go(func() { k.run(count) })
		}
	}
	ended := make(chan struct{})
	go func() { group.Wait(); close(ended) }()
	limit := 2*time.Minute + time.Duration(count)*20*time.Millisecond
	select {
	case <-ended:
	case <-time.After(limit):
		t.Fatalf("not all workers have ended after %v; the slowest call that returned: %v", limit, w.slowWas.Load())
	}
	if !w.failed() {
		w.lastLook()
	}
	w.relax()
	began := time.Now()
	bad := w.h.check(30 * time.Second)
	t.Logf("%d steps, slowest call %v (%v), checked in %v", len(w.h.steps), time.Duration(w.slowest.Load()).Round(time.Microsecond), w.slowWas.Load(), time.Since(began).Round(time.Millisecond))
	if n, all := w.stale.Load(), w.calls.Load(); n > 2+all/20 {
		t.Errorf("%d of %d calls on names gave ESTALE: more than folders that another mount moves explain", n, all)
	}
	for _, e := range w.errs {
		t.Error(e)
	}
	for i, v := range bad {
		if i == 5 {
			t.Errorf("and %d more parts", len(bad)-i)
			break
		}
		t.Errorf("%s", v.text)
	}
}

// TestHistoriesOfAllMountsAreLinearizable: random calls of every kind from all mounts, one worker each; for every object
// there is one order of the calls that explains all that every mount saw.
func TestHistoriesOfAllMountsAreLinearizable(t *testing.T) { histories(t, 1) }

// TestHistoriesOfTwoWorkersPerMountAreLinearizable: the same with two tasks on each mount.
func TestHistoriesOfTwoWorkersPerMountAreLinearizable(t *testing.T) { histories(t, 2) }

func histories(t *testing.T, perMount int) {
	coherent(t, func(t *testing.T, m *mounts) {
		s := seed(t)
		limit := size(2*time.Second, 5*time.Minute)
		for began, round := time.Now(), uint64(0); !t.Failed() && (round == 0 || time.Since(began) < limit); round++ {
			mounts := *m
			mounts.at = m.at[:2+2*(round%2)]
			runWorkers(t, &mounts, perMount, 1600/len(mounts.at)/perMount, s+round)
		}
	})
}
