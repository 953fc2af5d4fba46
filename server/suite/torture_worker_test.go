package suite

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// torturer is one application of the torture test. It works on names of its own, below two folders of its own and with a
// prefix in one that all share, mostly through one mount; and it keeps a model of what its calls were answered. A call
// that is answered other than the model says ends the test.
type torturer struct {
	index  int
	mounts []string // mount points; home is the one that it works on
	home   int
	rnd    *rand.Rand
	files  map[string]*tortureFile // by path below the mount
	dirs   map[string]bool
	held   []*tortureFile // with an open descriptor
	nextID int

	ops, syncs atomic.Int64
	began      atomic.Int64 // when the call under way began, Unix ns; 0 for none
	slowest    atomic.Int64 // ns, reset by who reads it

	mu  sync.Mutex
	log []string // the last calls; guarded by mu
}

// tortureFile is what a file must be.
type tortureFile struct {
	id    int
	data  []byte
	mode  uint32
	links int
	mtime time.Time // zero unless it was the last thing set
	xattr string
	fd    int // -1 for none
	// synced says that an fsync has returned since the last change of the file, its name or the folder above; under that name.
	synced string
	past   []string // the last calls on it
}

// did notes the worker's last call as one on the file.
func (w *torturer) did(f *tortureFile) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.past = append(f.past, w.log[len(w.log)-1]); len(f.past) > 16 {
		f.past = f.past[1:]
	}
}

// withPast adds the file's calls to an error.
func (f *tortureFile) withPast(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w; the calls on it were:\n      %s\n   ", err, strings.Join(f.past, "\n      "))
}

const (
	workerFiles = 24       // names of a worker that exist, about
	maxFile     = 300_000  // bytes
	keepLog     = 40       // calls
	visitChance = 40       // one call in so many goes through another mount
	syncChance  = 25       // one in so many is an fsync
	sharedName  = "shared" // folder of all workers
)

func newTorturer(index, home int, mounts []string, seed uint64) *torturer {
	w := &torturer{
		index: index, home: home, mounts: mounts, rnd: rand.New(rand.NewPCG(seed, uint64(index))),
		files: map[string]*tortureFile{}, dirs: map[string]bool{},
	}
	for _, d := range []string{"a", "b"} {
		w.dirs[fmt.Sprintf("w%d/%s", index, d)] = true
	}
	return w
}

// run works until stop is closed.
func (w *torturer) run(stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		start := time.Now()
		w.began.Store(start.UnixNano())
		err := w.step()
		w.began.Store(0)
		if d := int64(time.Since(start)); d > w.slowest.Load() {
			w.slowest.Store(d)
		}
		if err != nil {
			return fmt.Errorf("worker %d after %d operations: %w\n%s", w.index, w.ops.Load(), err, w.history())
		}
		w.ops.Add(1)
	}
}

func (w *torturer) history() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return "    " + strings.Join(w.log, "\n    ")
}

// at is a path on a mount; the call is noted.
func (w *torturer) at(path string) string {
	m := w.home
	if w.rnd.IntN(visitChance) == 0 {
		m = w.rnd.IntN(len(w.mounts))
	}
	return filepath.Join(w.mounts[m], path)
}

// call runs a system call and compares its result with what the model says.
func (w *torturer) call(what string, want error, f func() error) error {
	began := time.Now()
	w.note("%s %s …", began.Format("05.000"), what)
	err := f()
	for errors.Is(err, unix.EINTR) {
		err = f()
	}
	w.mu.Lock()
	w.log[len(w.log)-1] += fmt.Sprintf(" %v (%v)", err, time.Since(began).Round(time.Microsecond))
	w.mu.Unlock()
	if want == nil && err != nil || want != nil && !errors.Is(err, want) {
		return fmt.Errorf("%s: %v, expected %v", what, err, want)
	}
	return nil
}

func (w *torturer) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.log = append(w.log, fmt.Sprintf(format, args...)); len(w.log) > keepLog {
		w.log = w.log[1:]
	}
}

// name returns a path that may exist, one time in three with a wish for one that does.
func (w *torturer) name() string {
	if w.rnd.IntN(3) == 0 && len(w.files) > 0 {
		return w.some()
	}
	n := w.rnd.IntN(workerFiles)
	if w.rnd.IntN(4) == 0 {
		return fmt.Sprintf("%s/w%d-%d", sharedName, w.index, n)
	}
	return fmt.Sprintf("%s/%d", w.someDir(), n)
}

// some returns the path of a file that exists; some order is needed, so that a seed does the same again.
func (w *torturer) some() string {
	names := slices.Sorted(maps.Keys(w.files))
	return names[w.rnd.IntN(len(names))]
}

func (w *torturer) someDir() string {
	names := slices.Sorted(maps.Keys(w.dirs))
	return names[w.rnd.IntN(len(names))]
}

// step runs one random call.
func (w *torturer) step() error {
	if len(w.files) == 0 {
		return w.create(w.name())
	}
	if w.rnd.IntN(syncChance) == 0 {
		return w.sync(w.some())
	}
	switch k := w.rnd.IntN(100); {
	case k < 22:
		return w.create(w.name())
	case k < 40:
		return w.write(w.some())
	case k < 48:
		return w.appendTo(w.some())
	case k < 52:
		return w.truncate(w.some())
	case k < 62:
		return w.rename(w.some(), w.name())
	case k < 72:
		return w.unlink(w.name())
	case k < 77:
		return w.link(w.some(), w.name())
	case k < 84:
		return w.setattr(w.some())
	case k < 88:
		return w.folder()
	case k < 93:
		return w.hold()
	case k < 95:
		return w.list()
	default:
		return w.verify(w.some(), w.at(""))
	}
}

// change notes a change of a file.
func (f *tortureFile) change() { f.synced, f.mtime = "", time.Time{} }

func (w *torturer) bytes(most int) []byte {
	b := make([]byte, 1+w.rnd.IntN(most))
	w.nextID++
	mark := fmt.Appendf(nil, "w%d.%d ", w.index, w.nextID)
	for i := range b {
		b[i] = mark[i%len(mark)]
	}
	return b
}

func (w *torturer) create(path string) error {
	var want error
	if w.files[path] != nil {
		want = unix.EEXIST
	}
	data, at := w.bytes(6000), w.at(path)
	if w.rnd.IntN(4) == 0 {
		data = nil
	}
	mode := uint32(0o600 | w.rnd.IntN(64))
	err := w.call(fmt.Sprintf("create %s, %d bytes", at, len(data)), want, func() error {
		fd, err := unix.Open(at, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, mode)
		if err != nil {
			return err
		}
		return errors.Join(writeAll(fd, data, 0), unix.Close(fd))
	})
	if err == nil && want == nil {
		w.nextID++
		w.files[path] = &tortureFile{id: w.nextID, data: data, mode: mode &^ 0o022, links: 1, fd: -1}
	}
	return err
}

func writeAll(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, off)
		if err != nil && err != unix.EINTR {
			return err
		}
		n = max(n, 0)
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// open runs f on a descriptor of a file: one that is held or a new one.
func (w *torturer) open(file *tortureFile, at string, flags int, f func(fd int) error) error {
	if file.fd >= 0 && w.rnd.IntN(2) == 0 && flags&unix.O_APPEND == 0 {
		return f(file.fd)
	}
	fd, err := unix.Open(at, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(f(fd), unix.Close(fd))
}

func (w *torturer) write(path string) error {
	file, at := w.files[path], w.at(path)
	most := 5000
	if w.rnd.IntN(6) == 0 {
		most = 100_000
	}
	data := w.bytes(most)
	off := w.rnd.IntN(min(len(file.data)+20_000, maxFile))
	err := w.call(fmt.Sprintf("write %s, %d bytes at %d", at, len(data), off), nil, func() error {
		return w.open(file, at, unix.O_WRONLY, func(fd int) error { return writeAll(fd, data, int64(off)) })
	})
	file.put(data, off)
	w.did(file)
	return err
}

func (f *tortureFile) put(data []byte, off int) {
	f.change()
	if need := off + len(data) - len(f.data); need > 0 {
		f.data = append(f.data, make([]byte, need)...)
	}
	copy(f.data[off:], data)
}

func (w *torturer) appendTo(path string) error {
	file, at := w.files[path], w.at(path)
	if len(file.data) > maxFile {
		return w.truncate(path)
	}
	data := w.bytes(3000)
	err := w.call(fmt.Sprintf("append %s, %d bytes", at, len(data)), nil, func() error {
		return w.open(file, at, unix.O_WRONLY|unix.O_APPEND, func(fd int) error {
			n, err := unix.Write(fd, data)
			if err == nil && n < len(data) {
				return fmt.Errorf("only %d bytes", n)
			}
			return err
		})
	})
	file.put(data, len(file.data))
	w.did(file)
	return err
}

func (w *torturer) truncate(path string) error {
	file, at := w.files[path], w.at(path)
	size := w.rnd.IntN(len(file.data)*3/2 + 1000)
	size = min(size, maxFile)
	err := w.call(fmt.Sprintf("truncate %s to %d", at, size), nil, func() error { return unix.Truncate(at, int64(size)) })
	file.change()
	w.did(file)
	file.data = append(file.data[:min(size, len(file.data)):min(size, len(file.data))], make([]byte, max(0, size-len(file.data)))...)
	return err
}

func (w *torturer) rename(from, to string) error {
	file, over := w.files[from], w.files[to]
	a := w.at(from)
	b := filepath.Join(strings.TrimSuffix(a, from), to) // on the same mount
	err := w.call(fmt.Sprintf("rename %s to %s", a, to), nil, func() error { return unix.Rename(a, b) })
	w.did(file)
	if over == file {
		return err
	}
	if over != nil {
		over.unlinked()
	}
	file.synced = ""
	delete(w.files, from)
	w.files[to] = file
	return err
}

func (f *tortureFile) unlinked() {
	f.links--
	f.synced = ""
}

func (w *torturer) unlink(path string) error {
	file, at := w.files[path], w.at(path)
	var want error
	if file == nil {
		want = unix.ENOENT
	}
	err := w.call("unlink "+at, want, func() error { return unix.Unlink(at) })
	if file != nil {
		file.unlinked()
		delete(w.files, path)
	}
	return err
}

func (w *torturer) link(from, to string) error {
	file := w.files[from]
	a := w.at(from)
	b := filepath.Join(strings.TrimSuffix(a, from), to)
	var want error
	if w.files[to] != nil {
		want = unix.EEXIST
	}
	err := w.call(fmt.Sprintf("link %s to %s", a, to), want, func() error { return unix.Link(a, b) })
	if want == nil {
		file.links++
		file.synced = ""
		w.files[to] = file
	}
	return err
}

func (w *torturer) setattr(path string) error {
	file, at := w.files[path], w.at(path)
	switch w.rnd.IntN(3) {
	case 0:
		mode := uint32(0o600 | w.rnd.IntN(64))
		file.mode, file.synced = mode, ""
		return w.call(fmt.Sprintf("chmod %s %o", at, mode), nil, func() error { return unix.Chmod(at, mode) })
	case 1:
		stamp := time.Unix(1_000_000_000+w.rnd.Int64N(500_000_000), w.rnd.Int64N(1_000_000_000))
		file.mtime, file.synced = stamp, ""
		return w.call(fmt.Sprintf("utimes %s %v", at, stamp.UnixNano()), nil, func() error {
			ts, _ := unix.TimeToTimespec(stamp)
			return unix.UtimesNanoAt(unix.AT_FDCWD, at, []unix.Timespec{ts, ts}, 0)
		})
	}
	file.xattr, file.synced = string(w.bytes(60)), ""
	return w.call("setxattr "+at, nil, func() error { return unix.Setxattr(at, "user.torture", []byte(file.xattr), 0) })
}

// folder makes or removes a folder, or moves one with all that is in it.
func (w *torturer) folder() error {
	own := fmt.Sprintf("w%d/%s", w.index, []string{"a", "b"}[w.rnd.IntN(2)])
	path := fmt.Sprintf("%s/d%d", own, w.rnd.IntN(3))
	at := w.at(path)
	if !w.dirs[path] {
		w.dirs[path] = true
		return w.call("mkdir "+at, nil, func() error { return unix.Mkdir(at, 0o755) })
	}
	under := func(p string) bool { return strings.HasPrefix(p, path+"/") }
	full := slices.ContainsFunc(slices.Collect(maps.Keys(w.files)), under)
	if w.rnd.IntN(2) == 0 {
		var want error
		if full {
			want = unix.ENOTEMPTY
		} else {
			delete(w.dirs, path)
		}
		return w.call("rmdir "+at, want, func() error { return unix.Rmdir(at) })
	}
	to := fmt.Sprintf("w%d/%s/d%d", w.index, []string{"a", "b"}[w.rnd.IntN(2)], w.rnd.IntN(3))
	if w.dirs[to] {
		return nil
	}
	delete(w.dirs, path)
	w.dirs[to] = true
	for _, p := range slices.Collect(maps.Keys(w.files)) {
		if under(p) {
			file := w.files[p]
			file.synced = ""
			delete(w.files, p)
			w.files[to+strings.TrimPrefix(p, path)] = file
		}
	}
	b := filepath.Join(strings.TrimSuffix(at, path), to)
	return w.call(fmt.Sprintf("rename %s to %s", at, to), nil, func() error { return unix.Rename(at, b) })
}

// hold opens a file and keeps it open, or closes one; it may have no name any more by then, and must have its bytes.
func (w *torturer) hold() error {
	if len(w.held) < 4 {
		path := w.some()
		file, at := w.files[path], w.at(path)
		if file.fd >= 0 {
			return nil
		}
		err := w.call("open "+at, nil, func() (err error) {
			file.fd, err = unix.Open(at, unix.O_RDWR|unix.O_CLOEXEC, 0)
			return err
		})
		w.held = append(w.held, file)
		w.did(file)
		return err
	}
	i := w.rnd.IntN(len(w.held))
	file := w.held[i]
	w.held = slices.Delete(w.held, i, i+1)
	if file.links == 0 {
		data := w.bytes(5000)
		off := w.rnd.IntN(len(file.data) + 1)
		if err := w.call("write to a file without a name", nil, func() error { return writeAll(file.fd, data, int64(off)) }); err != nil {
			return err
		}
		file.put(data, off)
	}
	what := fmt.Sprintf("read and close of a file with %d names", file.links)
	err := w.call(what, nil, func() error {
		got, err := readAll(file.fd)
		if err == nil && !bytes.Equal(got, file.data) {
			err = file.withPast(differ(got, file.data, 0))
		}
		return errors.Join(err, unix.Close(file.fd))
	})
	w.did(file)
	file.fd = -1
	return err
}

// list reads the shared folder: its own names in it must be the model's.
func (w *torturer) list() error {
	dir := sharedName
	if w.rnd.IntN(2) == 0 {
		dir = w.someDir()
	}
	at := w.at(dir)
	return w.call("list "+at, nil, func() error { return w.checkNames(dir, at) })
}

// checkNames compares the names in a folder with the model.
func (w *torturer) checkNames(dir, at string) error {
	list, err := os.ReadDir(at)
	if err != nil {
		return err
	}
	got := map[string]bool{}
	for _, e := range list {
		if dir != sharedName || strings.HasPrefix(e.Name(), fmt.Sprintf("w%d-", w.index)) {
			got[e.Name()] = true
		}
	}
	var missing, extra []string
	expect := func(path string) {
		if filepath.Dir(path) == dir {
			if !got[filepath.Base(path)] {
				missing = append(missing, path)
			}
			delete(got, filepath.Base(path))
		}
	}
	for path := range w.files {
		expect(path)
	}
	for path := range w.dirs {
		expect(path)
	}
	extra = slices.Collect(maps.Keys(got))
	if len(missing)+len(extra) > 0 {
		return fmt.Errorf("%s: %v are missing, %v should not be there", at, missing, extra)
	}
	return nil
}

// sync flushes a file.
func (w *torturer) sync(path string) error {
	file, at := w.files[path], w.at(path)
	err := w.call("fsync "+at, nil, func() error {
		return w.open(file, at, unix.O_RDWR, func(fd int) error { return unix.Fsync(fd) })
	})
	w.syncs.Add(1)
	w.did(file)
	file.synced = path
	return err
}

// verify compares a file with the model.
func (w *torturer) verify(path, mount string) error {
	file, at := w.files[path], filepath.Join(mount, path)
	err := w.call("verify "+at, nil, func() error {
		if err := file.checkAttributes(at); err != nil {
			return file.withPast(err)
		}
		got, err := os.ReadFile(at)
		if err == nil && !bytes.Equal(got, file.data) {
			err = fmt.Errorf("%s: %d bytes, expected %d: %w", at, len(got), len(file.data), differ(got, file.data, 0))
		}
		return file.withPast(err)
	})
	w.did(file)
	return err
}

func (f *tortureFile) checkAttributes(at string) error {
	var st unix.Stat_t
	if err := unix.Lstat(at, &st); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	if st.Mode != unix.S_IFREG|f.mode || st.Size != int64(len(f.data)) || int(st.Nlink) != f.links {
		return fmt.Errorf("%s: mode %o size %d links %d, expected %o %d %d", at, st.Mode, st.Size, st.Nlink, unix.S_IFREG|f.mode, len(f.data), f.links)
	}
	if mt := time.Unix(st.Mtim.Unix()); !f.mtime.IsZero() && !mt.Equal(f.mtime) {
		return fmt.Errorf("%s: mtime %v, expected %v", at, mt, f.mtime)
	}
	value := make([]byte, 100)
	n, err := unix.Getxattr(at, "user.torture", value)
	if err != nil && !errors.Is(err, unix.ENODATA) {
		return fmt.Errorf("%s: %w", at, err)
	}
	if got := string(value[:max(n, 0)]); got != f.xattr {
		return fmt.Errorf("%s: xattr %q, expected %q", at, got, f.xattr)
	}
	return nil
}

// verifyAll compares everything with what a mount shows, and closes what is held.
func (w *torturer) verifyAll(mount string) error {
	var errs []error
	for _, dir := range append(slices.Sorted(maps.Keys(w.dirs)), sharedName) {
		errs = append(errs, w.checkNames(dir, filepath.Join(mount, dir)))
	}
	for _, path := range slices.Sorted(maps.Keys(w.files)) {
		errs = append(errs, w.verify(path, mount))
	}
	return errors.Join(errs...)
}

// verifySynced compares what was flushed and has not changed since, after a loss of everything else.
func (w *torturer) verifySynced(mount string) (checked int, err error) {
	var errs []error
	for _, path := range slices.Sorted(maps.Keys(w.files)) {
		file := w.files[path]
		if file.synced != path || file.links > 1 { // another name may be gone
			continue
		}
		checked++
		errs = append(errs, w.verify(path, mount))
	}
	return checked, errors.Join(errs...)
}

// release closes what is held.
func (w *torturer) release() error {
	var errs []error
	for _, f := range w.held {
		errs = append(errs, unix.Close(f.fd))
		f.fd = -1
	}
	w.held = nil
	return errors.Join(errs...)
}
