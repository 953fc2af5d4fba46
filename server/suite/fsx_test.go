package suite

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRandomFileOperationsMatchAShadowCopy drives one file with random reads, writes, truncates, mappings and holes, and
// compares every byte with a copy in memory.
func TestRandomFileOperationsMatchAShadowCopy(t *testing.T) {
	judged(t, func(t *testing.T, c *cluster) {
		for _, stripes := range []int{1, 4} {
			t.Run(fmt.Sprintf("stripes=%d", stripes), func(t *testing.T) {
				path := filepath.Join(c.folder(t), "fsx")
				c.setstripe(t, path, stripes, "64k")
				x := newExerciser(t, path, seed(t))
				defer x.close()
				for range size(5_000, 100_000) {
					if err := x.step(); err != nil {
						t.Fatalf("%v\nlast operations:\n%s", err, strings.Join(x.trace, "\n"))
					}
				}
				if err := x.verify(); err != nil {
					t.Fatalf("at the end: %v\nlast operations:\n%s", err, strings.Join(x.trace, "\n"))
				}
			})
		}
	})
}

// exerciser holds a file and what it must contain.
type exerciser struct {
	t     testing.TB
	path  string
	fd    int
	rng   *rand.Rand
	want  []byte // the file's content, len is its size
	limit int    // largest size
	trace []string
	count int
	sync  bool            // every write through a mapping is synced before the next operation
	can   map[string]bool // operations the file system refused with EOPNOTSUPP are false
}

func newExerciser(t testing.TB, path string, seed uint64) *exerciser {
	x := &exerciser{t: t, path: path, fd: -1, rng: rand.New(rand.NewPCG(seed, 1)), limit: 1 << 20, can: map[string]bool{}}
	must(t, x.reopen())
	return x
}

func (x *exerciser) close() { unix.Close(x.fd) }

func (x *exerciser) reopen() error {
	if x.fd >= 0 {
		if err := unix.Close(x.fd); err != nil {
			return fmt.Errorf("close: %w", err)
		}
	}
	fd, err := unix.Open(x.path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	x.fd = fd
	return err
}

// note records an operation for the report of a failure.
func (x *exerciser) note(format string, args ...any) {
	x.trace = append(x.trace, fmt.Sprintf("%6d ", x.count)+fmt.Sprintf(format, args...)+fmt.Sprintf(" (size %#x)", len(x.want)))
	if len(x.trace) > 40 {
		x.trace = slices.Delete(x.trace, 0, 1)
	}
}

// span picks an offset and length in [0, end), mostly small, now and then aligned to a page.
func (x *exerciser) span(end int) (off, n int) {
	if end == 0 {
		return 0, 0
	}
	off = x.rng.IntN(end)
	if x.rng.IntN(4) == 0 {
		off &^= 4095
	}
	n = 1 + x.rng.IntN(min(end-off, 1<<(4+x.rng.IntN(15))))
	return off, n
}

func (x *exerciser) random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(1 + x.rng.IntN(255)) // never 0: holes are told from data
	}
	return b
}

// grow makes the shadow at least n bytes long.
func (x *exerciser) grow(n int) {
	if n > len(x.want) {
		x.want = append(x.want, make([]byte, n-len(x.want))...)
	}
}

func (x *exerciser) step() error {
	x.count++
	var err error
	switch x.rng.IntN(22) {
	case 0, 1, 2, 3:
		err = x.read()
	case 4, 5, 6, 7:
		err = x.write(false)
	case 8:
		err = x.write(true)
	case 9, 10:
		err = x.truncate()
	case 11, 12:
		err = x.mapRead()
	case 13, 14:
		err = x.mapWrite()
	case 15:
		err = x.space("punch", unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE)
	case 16:
		err = x.space("zero", unix.FALLOC_FL_ZERO_RANGE|uint32(x.rng.IntN(2)*unix.FALLOC_FL_KEEP_SIZE))
	case 17:
		err = x.space("allocate", uint32(x.rng.IntN(2)*unix.FALLOC_FL_KEEP_SIZE))
	case 18:
		err = x.copyRange()
	case 19:
		err = x.seek()
	case 20:
		x.note("close and open")
		err = x.reopen()
	case 21:
		x.note("fsync")
		err = unix.Fsync(x.fd)
	}
	if err != nil {
		return fmt.Errorf("operation %d: %w", x.count, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(x.fd, &st); err != nil {
		return fmt.Errorf("operation %d: fstat: %w", x.count, err)
	}
	if st.Size != int64(len(x.want)) {
		return fmt.Errorf("operation %d: size is %#x, want %#x", x.count, st.Size, len(x.want))
	}
	if x.count%500 == 0 {
		return x.verify()
	}
	return nil
}

// differ names the first byte that is wrong.
func differ(got, want []byte, off int) error {
	if bytes.Equal(got, want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("got %d bytes at %#x, want %d", len(got), off, len(want))
	}
	first, count := -1, 0
	for i := range got {
		if got[i] != want[i] {
			if first < 0 {
				first = i
			}
			count++
		}
	}
	return fmt.Errorf("byte %#x is %#02x, want %#02x; %d of the %d bytes from %#x are wrong",
		off+first, got[first], want[first], count, len(got), off)
}

func (x *exerciser) read() error {
	off, n := x.span(len(x.want) + 4096)
	x.note("read %#x+%#x", off, n)
	buf := make([]byte, n)
	got, err := unix.Pread(x.fd, buf, int64(off))
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	end := min(off+n, len(x.want))
	return differ(buf[:got], x.want[min(off, end):end], off)
}

func (x *exerciser) write(appending bool) error {
	off, n := x.span(x.limit)
	fd := x.fd
	if appending {
		n = min(n, 1+(x.limit-len(x.want))/2)
		off = len(x.want)
		if off+n > x.limit {
			return nil
		}
		var err error
		if fd, err = unix.Open(x.path, unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		defer unix.Close(fd)
	}
	x.note("write %#x+%#x append=%v", off, n, appending)
	data := x.random(n)
	var got int
	var err error
	if appending {
		got, err = unix.Write(fd, data)
	} else {
		got, err = unix.Pwrite(fd, data, int64(off))
	}
	if err != nil || got != n {
		return fmt.Errorf("write: %d of %d bytes: %w", got, n, err)
	}
	x.grow(off + n)
	copy(x.want[off:], data)
	return nil
}

func (x *exerciser) truncate() error {
	n := x.rng.IntN(x.limit)
	if x.rng.IntN(2) == 0 && len(x.want) > 0 {
		n = x.rng.IntN(len(x.want))
	}
	x.note("truncate %#x", n)
	if err := unix.Ftruncate(x.fd, int64(n)); err != nil {
		return fmt.Errorf("truncate: %w", err)
	}
	x.want = x.want[:min(n, len(x.want))]
	x.want = slices.Clip(x.want)
	x.grow(n)
	return nil
}

// askSize asks for the size where another mount may have changed it: a mapping and copy_file_range take what the kernel
// knows, and programs ask before they use either.
func (x *exerciser) askSize() error {
	if !x.sync {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(x.fd, &st); err != nil || st.Size != int64(len(x.want)) {
		return fmt.Errorf("fstat: size %#x, want %#x: %w", st.Size, len(x.want), err)
	}
	return nil
}

// mapped runs f on a shared mapping that holds [off, off+n).
func (x *exerciser) mapped(off, n, prot int, f func(b []byte)) error {
	if err := x.askSize(); err != nil {
		return err
	}
	start := off &^ (os.Getpagesize() - 1)
	m, err := unix.Mmap(x.fd, int64(start), off-start+n, prot, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	if err := faultless(func() { f(m[off-start:]) }); err != nil {
		return errors.Join(err, unix.Munmap(m))
	}
	if prot&unix.PROT_WRITE != 0 && (x.sync || x.rng.IntN(2) == 0) {
		if err := unix.Msync(m, unix.MS_SYNC); err != nil {
			return fmt.Errorf("msync: %w", err)
		}
	}
	return unix.Munmap(m)
}

// faultless runs f and turns a SIGBUS into an error.
func faultless(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("SIGBUS: %v", p)
		}
	}()
	f()
	return nil
}

func (x *exerciser) mapRead() error {
	off, n := x.span(len(x.want))
	if n == 0 {
		return nil
	}
	x.note("mapped read %#x+%#x", off, n)
	got := make([]byte, n)
	if err := x.mapped(off, n, unix.PROT_READ, func(b []byte) { copy(got, b) }); err != nil {
		return err
	}
	return differ(got, x.want[off:off+n], off)
}

func (x *exerciser) mapWrite() error {
	off, n := x.span(len(x.want))
	if n == 0 {
		return nil
	}
	x.note("mapped write %#x+%#x", off, n)
	data := x.random(n)
	copy(x.want[off:], data)
	return x.mapped(off, n, unix.PROT_READ|unix.PROT_WRITE, func(b []byte) { copy(b, data) })
}

func (x *exerciser) space(what string, mode uint32) error {
	if can, known := x.can[what]; known && !can {
		return nil
	}
	off, n := x.span(x.limit)
	x.note("%s %#x+%#x mode %#x", what, off, n, mode)
	if err := unix.Fallocate(x.fd, mode, int64(off), int64(n)); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) && what == "zero" {
			x.can[what] = false
			x.t.Logf("%s: %v", what, err)
			return nil
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	if mode&unix.FALLOC_FL_KEEP_SIZE == 0 {
		x.grow(off + n)
	}
	if what != "allocate" && off < len(x.want) {
		clear(x.want[off:min(off+n, len(x.want))])
	}
	return nil
}

func (x *exerciser) copyRange() error {
	from, n := x.span(len(x.want))
	to := x.rng.IntN(x.limit)
	n = min(n, x.limit-to)
	if n <= 0 || (to < from+n && from < to+n) {
		return nil
	}
	x.note("copy %#x+%#x to %#x", from, n, to)
	if err := x.askSize(); err != nil {
		return err
	}
	src, dst := int64(from), int64(to)
	data := slices.Clone(x.want[from : from+n])
	for left := n; left > 0; {
		k, err := unix.CopyFileRange(x.fd, &src, x.fd, &dst, left, 0)
		if err != nil || k == 0 {
			return fmt.Errorf("copy_file_range, %d bytes left: copied %d: %w", left, k, err)
		}
		left -= k
	}
	x.grow(to + n)
	copy(x.want[to:], data)
	return nil
}

// seek walks the segments: what is called a hole must be zeros. A hole told as data is allowed.
func (x *exerciser) seek() error {
	x.note("walk the holes")
	return holes(x.fd, x.want)
}

// holes checks that everything that SEEK_DATA and SEEK_HOLE call a hole is zeros in want, whose length is the size.
func holes(fd int, want []byte) error {
	for off := int64(0); off < int64(len(want)); {
		data, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			data, err = int64(len(want)), nil
		}
		if err != nil {
			return fmt.Errorf("seek for data from %#x: %w", off, err)
		}
		if data < off || data > int64(len(want)) {
			return fmt.Errorf("seek for data from %#x gives %#x, size %#x", off, data, len(want))
		}
		for i, b := range want[off:data] {
			if b != 0 {
				return fmt.Errorf("SEEK_DATA skips byte %#x, which holds data", off+int64(i))
			}
		}
		if data == int64(len(want)) {
			return nil
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("seek for a hole from %#x: %w", data, err)
		}
		if hole <= data || hole > int64(len(want)) {
			return fmt.Errorf("seek for a hole from %#x gives %#x, size %#x", data, hole, len(want))
		}
		off = hole
	}
	return nil
}

func (x *exerciser) verify() error {
	got, err := readAll(x.fd)
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	return differ(got, x.want, 0)
}
