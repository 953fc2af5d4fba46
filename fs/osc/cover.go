package osc

import (
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
)

// cover is what an OSC keeps with a lock: which bytes of which file lie under it, and what the lock told of the object. It
// outlives the file's Objects, because pages stay in the kernel's cache under unused locks.
type cover struct {
	id     fid.ObjectID
	file   fid.FID
	comp   *layout.Component // nil: nothing of the kernel's lies under it
	stripe layout.StripeIndex
	epoch  uint64 // OSC.epoch when it was asked for

	// size is the object's size as the lock's LVB told, raised by own writes and lowered by own truncates, plus 1; 0 when it
	// is not known. While the lock is held nobody else makes the object shorter than what of it lies under the lock.
	size atomic.Uint64
	// high is behind the last byte that the kernel may have cached under the lock.
	high atomic.Uint64

	mu  sync.Mutex
	lvb ldlm.LVB // guarded by mu: as granted, with own changes; its size is not kept up

	next *cover // guarded by covers.mu
}

// told enters the LVB that came with the lock.
func (v *cover) told(l *ldlm.LVB) {
	v.mu.Lock()
	v.lvb = *l
	v.mu.Unlock()
	v.size.Store(l.Size + 1)
}

// raise grows a known size to end at least.
func (v *cover) raise(end uint64) {
	for {
		old := v.size.Load()
		if old == 0 || end < old || v.size.CompareAndSwap(old, end+1) {
			return
		}
	}
}

// touch notes that the kernel may cache bytes up to end.
func (v *cover) touch(end uint64) {
	for {
		old := v.high.Load()
		if end <= old || v.high.CompareAndSwap(old, end) {
			return
		}
	}
}

// rangesMax bounds the ranges of a file that are dropped one by one; more are dropped as one, with what lies between them.
const rangesMax = 256

// ranges gives the file's bytes that lie in the object's e and that the kernel may have cached. They are given stripe by
// stripe: a mapped page of another stripe, dropped with them, would be written back, and that may need a lock whose holder
// waits for the one being revoked.
func (v *cover) ranges(e extent.Extent) []extent.Extent {
	e.End = min(e.End, v.high.Load())
	if e.Empty() || v.comp == nil {
		return nil
	}
	size := v.comp.StripeSize
	from := func(at uint64) uint64 { return v.comp.FileOffset(v.stripe, at) }
	pieces := (e.End-1)/size - e.Start/size + 1
	if len(v.comp.Stripes) == 1 || pieces > rangesMax {
		return []extent.Extent{{Start: from(e.Start), End: from(e.End-1) + 1}}
	}
	list := make([]extent.Extent, 0, pieces)
	for at := e.Start; at < e.End; {
		end := min(e.End, (at/size+1)*size)
		list = append(list, extent.Extent{Start: from(at), End: from(end-1) + 1})
		at = end
	}
	return list
}

// covers finds the covers of an object's locks, for what changes an object without a lock.
type covers struct {
	mu sync.Mutex
	of map[fid.ObjectID]*cover // guarded by mu
}

func (c *covers) add(v *cover) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[fid.ObjectID]*cover)
	}
	v.next = c.of[v.id]
	c.of[v.id] = v
}

// remove takes v out, if it is in.
func (c *covers) remove(v *cover) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.of[v.id]
	if at == v {
		if v.next == nil {
			delete(c.of, v.id)
		} else {
			c.of[v.id] = v.next
		}
		v.next = nil
		return
	}
	for ; at != nil; at = at.next {
		if at.next == v {
			at.next, v.next = v.next, nil
			return
		}
	}
}

// raise tells all locks of an object that it has end bytes at least.
func (c *covers) raise(id fid.ObjectID, end uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for v := c.of[id]; v != nil; v = v.next {
		v.raise(end)
	}
}

// wrote tells all locks of an object of an answered write that ends at end: the OST told blocks, which may be old.
func (c *covers) wrote(id fid.ObjectID, end, blocks uint64, mtime int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for v := c.of[id]; v != nil; v = v.next {
		v.raise(end)
		v.mu.Lock()
		v.lvb.Blocks, v.lvb.Mtime, v.lvb.Ctime = max(v.lvb.Blocks, blocks), max(v.lvb.Mtime, mtime), max(v.lvb.Ctime, mtime)
		v.mu.Unlock()
	}
}

// changed tells all locks of an object what the OST said of its blocks after a truncate or fallocate.
func (c *covers) changed(id fid.ObjectID, blocks uint64, mtime int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for v := c.of[id]; v != nil; v = v.next {
		v.mu.Lock()
		v.lvb.Blocks, v.lvb.Mtime, v.lvb.Ctime = blocks, max(v.lvb.Mtime, mtime), max(v.lvb.Ctime, mtime)
		v.mu.Unlock()
	}
}

func (c *covers) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.of)
}
