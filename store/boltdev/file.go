package boltdev

import (
	"container/list"
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/fs/fid"
	"golang.org/x/sys/unix"
)

// file is the open file of one object, shared by its handles.
type file struct {
	id      fid.ObjectID
	fd      int
	dirty   atomic.Bool // in objects.dirty; changes with it, under objects.mu
	removed atomic.Bool

	uses int           // guarded by fileCache.mu
	idle *list.Element // in fileCache.idle while uses is 0; guarded by fileCache.mu
}

// fileCache keeps object files open: those in use, and the last max used ones.
type fileCache struct {
	max   int
	mu    sync.Mutex
	files map[fid.ObjectID]*file // guarded by mu
	idle  list.List              // of *file, the last used one in front; guarded by mu
	// removals counts calls of remove: a file opened over one of them may be the removed one. guarded by mu
	removals uint64
	closed   bool // guarded by mu
}

func (c *fileCache) init(max int) { c.max, c.files = max, map[fid.ObjectID]*file{} }

// get returns the object's file with one more use, opened by open if it is not here.
func (c *fileCache) get(id fid.ObjectID, open func() (int, error)) (*file, error) {
	for {
		c.mu.Lock()
		f, removals := c.useLocked(id), c.removals
		c.mu.Unlock()
		if f != nil {
			return f, nil
		}
		fd, err := open()
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		if f := c.useLocked(id); f != nil {
			c.mu.Unlock()
			_ = unix.Close(fd)
			return f, nil
		}
		if c.removals == removals {
			f := &file{id: id, fd: fd, uses: 1}
			c.files[id] = f
			c.mu.Unlock()
			return f, nil
		}
		c.mu.Unlock()
		_ = unix.Close(fd)
	}
}

// use returns the object's file with one more use, nil if it is not open.
func (c *fileCache) use(id fid.ObjectID) *file {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.useLocked(id)
}

func (c *fileCache) useLocked(id fid.ObjectID) *file {
	f := c.files[id]
	if f == nil {
		return nil
	}
	if f.uses++; f.idle != nil {
		c.idle.Remove(f.idle)
		f.idle = nil
	}
	return f
}

// put gives a use back.
func (c *fileCache) put(f *file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.uses--; f.uses > 0 {
		return
	}
	if f.removed.Load() || c.closed {
		c.closeLocked(f)
		return
	}
	f.idle = c.idle.PushFront(f)
	for c.idle.Len() > c.max {
		c.closeLocked(c.idle.Back().Value.(*file))
	}
}

// closeLocked closes a file without uses. What was written to it stays for the flush: a later one opens it again, and
// an error of writing back in between is kept by the kernel for that opener, and for syncfs.
func (c *fileCache) closeLocked(f *file) {
	if f.idle != nil {
		c.idle.Remove(f.idle)
		f.idle = nil
	}
	if c.files[f.id] == f {
		delete(c.files, f.id)
	}
	_ = unix.Close(f.fd)
}

// remove forgets the file of an object that is no more; handles keep it.
func (c *fileCache) remove(id fid.ObjectID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removals++
	f := c.files[id]
	if f == nil {
		return
	}
	f.removed.Store(true)
	delete(c.files, id)
	if f.uses == 0 {
		c.closeLocked(f)
	}
}

// clean takes the dirty mark of a file. objects.mu is held.
func (c *fileCache) clean(id fid.ObjectID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.files[id]; f != nil {
		f.dirty.Store(false)
	}
}

func (c *fileCache) count() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.files))
}

// close closes the files that are not in use, and the others when they are given back.
func (c *fileCache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for c.idle.Len() > 0 {
		c.closeLocked(c.idle.Back().Value.(*file))
	}
}
