package memdev

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
	"golang.org/x/sys/unix"
)

// blockSize is the unit of holes.
const blockSize = 4 << 10

// content is what an object holds. Blocks are never changed once they are here; an empty one is allocated and reads as
// zeros, an absent one is a hole.
type content struct {
	size   int64
	blocks map[int64][]byte
}

func (c *content) clone() *content { return &content{c.size, maps.Clone(c.blocks)} }

// object is one object, shared by its handles.
type object struct {
	id fid.ObjectID
	mu sync.Mutex
	c  *content // guarded by mu
}

// objects implements store.Objects.
type objects struct {
	d  *Device
	mu sync.RWMutex
	// all is the visible objects, dirty those that the disk does not have as they are, removed those that it still
	// has. guarded by mu
	all     map[fid.ObjectID]*object
	dirty   map[fid.ObjectID]*object
	removed map[fid.ObjectID]bool
}

// init loads the objects of the disk. The disk is locked.
func (o *objects) init(d *Device) {
	o.d, o.all = d, map[fid.ObjectID]*object{}
	o.dirty, o.removed = map[fid.ObjectID]*object{}, map[fid.ObjectID]bool{}
	for id, c := range d.disk.objects {
		o.all[id] = &object{id: id, c: c.clone()}
	}
}

// Create implements store.Objects.
func (o *objects) Create(ids []fid.ObjectID) error {
	if err := o.d.room(); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		if o.all[id] == nil {
			b := &object{id: id, c: &content{blocks: map[int64][]byte{}}}
			o.all[id], o.dirty[id] = b, b
			delete(o.removed, id)
		}
	}
	return nil
}

// Open implements store.Objects.
func (o *objects) Open(id fid.ObjectID) (store.Object, error) {
	if err := o.d.Err(); err != nil {
		return nil, err
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	b := o.all[id]
	if b == nil {
		return nil, fmt.Errorf("memdev: object %v: %w", id, store.ErrNotFound)
	}
	return &handle{o: o, b: b}, nil
}

// Remove implements store.Objects.
func (o *objects) Remove(id fid.ObjectID) error {
	if err := o.d.Err(); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.all[id]
	if b == nil {
		return fmt.Errorf("memdev: object %v: %w", id, store.ErrNotFound)
	}
	delete(o.all, id)
	delete(o.dirty, id)
	o.removed[id] = true
	return nil
}

// Walk implements store.Objects.
func (o *objects) Walk(group uint32, fn func(fid.ObjectID) bool) error {
	if err := o.d.Err(); err != nil {
		return err
	}
	var ids []fid.ObjectID
	o.mu.RLock()
	for id := range o.all {
		if id.Group == group {
			ids = append(ids, id)
		}
	}
	o.mu.RUnlock()
	for _, id := range ids {
		if !fn(id) {
			return nil
		}
	}
	return nil
}

// Flush implements store.Objects.
func (o *objects) Flush(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return o.flush()
}

// flush writes what is dirty to the disk in one sync.
func (o *objects) flush() error {
	o.mu.Lock()
	dirty, removed := o.dirty, o.removed
	o.dirty, o.removed = map[fid.ObjectID]*object{}, map[fid.ObjectID]bool{}
	o.mu.Unlock()
	if len(dirty)+len(removed) == 0 {
		return o.d.Err()
	}
	return o.d.sync("flush", func(disk *Disk) {
		for id := range removed {
			delete(disk.objects, id)
		}
		for _, b := range dirty {
			b.save(disk)
		}
	})
}

// save copies the object's content to the disk, which is locked: so no older content comes after a newer one.
func (b *object) save(disk *Disk) {
	b.mu.Lock()
	disk.objects[b.id] = b.c.clone()
	b.mu.Unlock()
}

// usage tells the bytes of allocated blocks and the number of objects.
func (o *objects) usage() (bytes, files uint64) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	for _, b := range o.all {
		b.mu.Lock()
		bytes += uint64(len(b.c.blocks)) * blockSize
		b.mu.Unlock()
	}
	return bytes, uint64(len(o.all))
}

// room is an error when nothing can be written.
func (d *Device) room() error {
	if err := d.Err(); err != nil {
		return err
	}
	if d.full.Load() {
		return fmt.Errorf("memdev: write: %w: %w", store.ErrNoSpace, unix.ENOSPC)
	}
	return nil
}

// handle implements store.Object.
type handle struct {
	o      *objects
	b      *object
	closed atomic.Bool
}

// change runs f on the object's content and marks the object dirty.
func (h *handle) change(f func(*content)) {
	h.b.mu.Lock()
	f(h.b.c)
	h.b.mu.Unlock()
	h.o.mu.Lock()
	if h.o.all[h.b.id] == h.b {
		h.o.dirty[h.b.id] = h.b
	}
	h.o.mu.Unlock()
}

func (h *handle) use() error {
	if h.closed.Load() {
		panic(fmt.Sprintf("memdev: object %v used after Close", h.b.id))
	}
	return h.o.d.Err()
}

// ReadAt implements store.Object.
func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	if err := h.use(); err != nil {
		return 0, err
	}
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	c := h.b.c
	if off < 0 {
		return 0, fmt.Errorf("memdev: read at %d: %w", off, unix.EINVAL)
	}
	n := int(min(int64(len(p)), max(c.size-off, 0)))
	c.each(off, int64(n), func(i, at, from, to int64) {
		dst := p[at : at+to-from]
		clear(dst)
		if b := c.blocks[i]; len(b) > 0 {
			copy(dst, b[from:to])
		}
	})
	return n, nil
}

// each calls fn for every block that [off, off+n) touches: its number, where its part starts in the range, and the
// part's bounds in the block.
func (c *content) each(off, n int64, fn func(i, at, from, to int64)) {
	for at := int64(0); at < n; {
		i, from := (off+at)/blockSize, (off+at)%blockSize
		to := min(blockSize, from+n-at)
		fn(i, at, from, to)
		at += to - from
	}
}

// fresh returns a copy of block i that may be changed.
func (c *content) fresh(i int64) []byte {
	b := make([]byte, blockSize)
	copy(b, c.blocks[i])
	return b
}

// WriteAt implements store.Object.
func (h *handle) WriteAt(p []byte, off int64) error {
	if err := h.use(); err != nil {
		return err
	}
	if err := h.o.d.room(); err != nil {
		return err
	}
	if off < 0 {
		return fmt.Errorf("memdev: write at %d: %w", off, unix.EINVAL)
	}
	h.change(func(c *content) {
		c.each(off, int64(len(p)), func(i, at, from, to int64) {
			b := c.fresh(i)
			copy(b[from:to], p[at:])
			c.blocks[i] = b
		})
		if len(p) > 0 {
			c.size = max(c.size, off+int64(len(p)))
		}
	})
	return nil
}

// zero makes [off, off+n) read as zeros; whole blocks become holes, or allocated ones with keep.
func (c *content) zero(off, n int64, keep bool) {
	c.each(off, n, func(i, _, from, to int64) {
		switch {
		case to-from == blockSize && keep:
			c.blocks[i] = []byte{}
		case to-from == blockSize:
			delete(c.blocks, i)
		case len(c.blocks[i]) > 0:
			b := c.fresh(i)
			clear(b[from:to])
			c.blocks[i] = b
		case keep:
			c.blocks[i] = []byte{}
		}
	})
}

// Truncate implements store.Object.
func (h *handle) Truncate(size int64) error {
	if err := h.use(); err != nil {
		return err
	}
	if size < 0 {
		return fmt.Errorf("memdev: truncate to %d: %w", size, unix.EINVAL)
	}
	h.change(func(c *content) {
		for i := range c.blocks {
			if i*blockSize >= size {
				delete(c.blocks, i)
			}
		}
		if tail := size % blockSize; tail > 0 {
			c.zero(size, blockSize-tail, false)
		}
		c.size = size
	})
	return nil
}

// maxFallocate bounds what Fallocate allocates here: each block is a map entry.
const maxFallocate = 16 << 30

// Fallocate implements store.Object.
func (h *handle) Fallocate(mode uint32, off, n int64) error {
	if err := h.use(); err != nil {
		return err
	}
	if off < 0 || n <= 0 {
		return fmt.Errorf("memdev: fallocate %d at %d: %w", n, off, unix.EINVAL)
	}
	if off+n < 0 {
		return fmt.Errorf("memdev: fallocate %d at %d: %w", n, off, unix.EFBIG)
	}
	punch := mode&store.FallocPunchHole != 0
	switch mode {
	case 0, store.FallocKeepSize, store.FallocZeroRange, store.FallocZeroRange | store.FallocKeepSize:
		if err := h.o.d.room(); err != nil {
			return err
		}
		if n > maxFallocate {
			return fmt.Errorf("memdev: fallocate %d bytes: %w: %w", n, store.ErrNoSpace, unix.ENOSPC)
		}
	case store.FallocPunchHole | store.FallocKeepSize:
	default:
		return fmt.Errorf("memdev: fallocate mode %#x: %w", mode, unix.EOPNOTSUPP)
	}
	h.change(func(c *content) {
		switch {
		case punch:
			// Beyond the last block there is nothing to punch; a range of 2^63 bytes must not be walked.
			c.zero(off, min(n, max(c.end()-off, 0)), false)
			return
		case mode&store.FallocZeroRange != 0:
			c.zero(off, n, true)
		default:
			c.each(off, n, func(i, _, _, _ int64) {
				if _, ok := c.blocks[i]; !ok {
					c.blocks[i] = []byte{}
				}
			})
		}
		if mode&store.FallocKeepSize == 0 {
			c.size = max(c.size, off+n)
		}
	})
	return nil
}

// end is the end of the last block.
func (c *content) end() int64 {
	end := c.size
	for i := range c.blocks {
		end = max(end, (i+1)*blockSize)
	}
	return end
}

// SeekData implements store.Object.
func (h *handle) SeekData(off int64) (int64, error) { return h.seek(off, true) }

// SeekHole implements store.Object.
func (h *handle) SeekHole(off int64) (int64, error) { return h.seek(off, false) }

func (h *handle) seek(off int64, data bool) (int64, error) {
	if err := h.use(); err != nil {
		return 0, err
	}
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	c := h.b.c
	if off < 0 || off >= c.size {
		return 0, store.ErrNotFound
	}
	for i := off / blockSize; i*blockSize < c.size; i++ {
		if (len(c.blocks[i]) > 0) == data {
			return max(off, i*blockSize), nil
		}
	}
	if data {
		return 0, store.ErrNotFound
	}
	return c.size, nil
}

// Stat implements store.Object.
func (h *handle) Stat() (size, blocks int64, err error) {
	if err := h.use(); err != nil {
		return 0, 0, err
	}
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	return h.b.c.size, int64(len(h.b.c.blocks)) * (blockSize / 512), nil
}

// Sync implements store.Object.
func (h *handle) Sync() error {
	if err := h.use(); err != nil {
		return err
	}
	return h.o.d.sync("object", func(disk *Disk) {
		h.o.mu.Lock()
		defer h.o.mu.Unlock()
		if h.o.all[h.b.id] == h.b {
			delete(h.o.dirty, h.b.id)
			h.b.save(disk)
		}
	})
}

// Close implements store.Object.
func (h *handle) Close() error {
	if h.closed.Swap(true) {
		panic(fmt.Sprintf("memdev: object %v closed twice", h.b.id))
	}
	return nil
}
