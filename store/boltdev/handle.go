package boltdev

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/strakefs/strake/store"
	"golang.org/x/sys/unix"
)

// handle implements store.Object.
type handle struct {
	o      *objects
	f      *file
	closed atomic.Bool
}

// use panics after Close: the descriptor may be another object's by then.
func (h *handle) use() error {
	if h.closed.Load() {
		panic(fmt.Sprintf("boltdev: object %v used after Close", h.f.id))
	}
	if h.o.d.err.Load() != nil {
		return h.o.d.Err()
	}
	return nil
}

func (h *handle) wrap(what string, err error) error {
	return h.o.wrap(what+" "+h.f.id.String(), err)
}

// retry repeats a system call that a signal has interrupted.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// ReadAt implements store.Object.
func (h *handle) ReadAt(b []byte, off int64) (int, error) {
	if err := h.use(); err != nil {
		return 0, err
	}
	n := 0
	for n < len(b) {
		m, err := unix.Pread(h.f.fd, b[n:], off+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, h.wrap("read", err)
		}
		if m == 0 {
			break
		}
		n += m
	}
	return n, nil
}

// WriteAt implements store.Object.
func (h *handle) WriteAt(b []byte, off int64) error {
	if err := h.use(); err != nil {
		return err
	}
	if !h.o.d.space.write(int64(len(b))) && !h.allocated(off, int64(len(b))) {
		return h.wrap("write", unix.ENOSPC)
	}
	for n := 0; n < len(b); {
		m, err := unix.Pwrite(h.f.fd, b[n:], off+int64(n))
		if err == unix.EINTR {
			continue
		}
		if m > 0 {
			n += m
			h.o.touched(h.f)
		}
		if err != nil {
			return h.wrap("write", err)
		}
	}
	return nil
}

// allocated reports whether a write into a range takes no new space: who has allocated it may write, on a full device
// too. Space that was allocated and never written shows as a hole; so a file that has blocks for all its size counts.
func (h *handle) allocated(off, n int64) bool {
	size, blocks, err := h.Stat()
	if err != nil || off < 0 || off+n > size {
		return false
	}
	if blocks*512 >= size {
		return true
	}
	hole, err := h.SeekHole(off)
	return err == nil && hole >= off+n
}

// Truncate implements store.Object.
func (h *handle) Truncate(size int64) error {
	if err := h.use(); err != nil {
		return err
	}
	if err := retry(func() error { return unix.Ftruncate(h.f.fd, size) }); err != nil {
		return h.wrap("truncate", err)
	}
	h.o.touched(h.f)
	return nil
}

// Fallocate implements store.Object.
func (h *handle) Fallocate(mode uint32, off, n int64) error {
	if err := h.use(); err != nil {
		return err
	}
	switch mode {
	case 0, store.FallocKeepSize, store.FallocZeroRange, store.FallocZeroRange | store.FallocKeepSize:
		if n > 0 && !h.o.d.space.write(n) {
			return h.wrap("fallocate", unix.ENOSPC)
		}
	case store.FallocPunchHole | store.FallocKeepSize:
	default:
		return h.wrap(fmt.Sprintf("fallocate mode %#x", mode), unix.EOPNOTSUPP)
	}
	err := h.fallocate(mode, off, n)
	if errors.Is(err, unix.EFBIG) && mode&store.FallocPunchHole != 0 && off+n > 0 {
		err = h.punch(off, n)
	}
	if err != nil {
		return h.wrap("fallocate", err)
	}
	h.o.touched(h.f)
	return nil
}

func (h *handle) fallocate(mode uint32, off, n int64) error {
	return retry(func() error { return unix.Fallocate(h.f.fd, mode, off, n) })
}

// punch punches a range that ends behind what the file system below can have in a file.
func (h *handle) punch(off, n int64) error {
	size, _, err := h.Stat()
	// Space allocated behind the end is taken along as far as ext4 with blocks of 4 KiB can have it, less half.
	for _, end := range []int64{8 << 40, size} {
		if end = min(max(end, size), off+n); end <= off || err != nil {
			return err
		}
		err = h.fallocate(store.FallocPunchHole|store.FallocKeepSize, off, end-off)
		if !errors.Is(err, unix.EFBIG) {
			return err
		}
		err = nil // all that there is lies before the next end
	}
	return err
}

// SeekData implements store.Object.
func (h *handle) SeekData(off int64) (int64, error) { return h.seek(off, unix.SEEK_DATA) }

// SeekHole implements store.Object.
func (h *handle) SeekHole(off int64) (int64, error) { return h.seek(off, unix.SEEK_HOLE) }

func (h *handle) seek(off int64, whence int) (int64, error) {
	if err := h.use(); err != nil {
		return 0, err
	}
	n, err := unix.Seek(h.f.fd, off, whence)
	if errors.Is(err, unix.ENXIO) {
		return 0, store.ErrNotFound
	}
	if err != nil {
		return 0, h.wrap("seek", err)
	}
	return n, nil
}

// Stat implements store.Object.
func (h *handle) Stat() (size, blocks int64, err error) {
	if err := h.use(); err != nil {
		return 0, 0, err
	}
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(h.f.fd, &st) }); err != nil {
		return 0, 0, h.wrap("stat", err)
	}
	return st.Size, st.Blocks, nil
}

// Sync implements store.Object.
func (h *handle) Sync() error {
	if err := h.use(); err != nil {
		return err
	}
	if h.f.removed.Load() {
		return nil
	}
	k := folderOf(h.f.id)
	h.o.mu.Lock()
	dirty := h.o.dirtyDirs[k] || h.o.flushing[k]
	h.o.mu.Unlock()
	err := h.o.d.fault("sync")
	if err == nil {
		err = unix.Fdatasync(h.f.fd)
	}
	// The folder stays marked: other objects of it may have been made meanwhile.
	if err == nil && dirty {
		err = h.o.syncDir(k)
	}
	if err != nil {
		h.o.d.stop(fmt.Errorf("sync of object %v: %w", h.f.id, err))
		return h.o.d.Err()
	}
	return nil
}

// Close implements store.Object.
func (h *handle) Close() error {
	if h.closed.Swap(true) {
		panic(fmt.Sprintf("boltdev: object %v closed twice", h.f.id))
	}
	h.o.files.put(h.f)
	return nil
}
