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
	// missed counts own writes that ended while the size was not known, grown is the end of the longest: an LVB, or what the OST
	// was asked for meanwhile, may be from before them, or from after somebody has cut off what they wrote.
	missed, grown atomic.Uint64
	// high is behind the last byte that the kernel may have cached under the lock.
	high atomic.Uint64

	mu  sync.Mutex
	lvb ldlm.LVB // guarded by mu: as granted, with own changes; its size is not kept up

	next *cover // guarded by covers.mu
}

// told enters the LVB that came with the lock, whose cover has been among the covers since before it was asked for.
func (v *cover) told(l *ldlm.LVB) {
	v.mu.Lock()
	old := v.lvb
	v.lvb = *l
	v.lvb.Mtime, v.lvb.Ctime = max(l.Mtime, old.Mtime), max(l.Ctime, old.Ctime)
	v.mu.Unlock()
	v.settle(l.Size, 0)
}

// asked enters what the OST has answered, under the lock on the whole object, to a question from when missed was what it is here.
// The size is that with what is dirty here.
func (v *cover) asked(g *Glimpse, size, missed uint64) {
	v.mu.Lock()
	v.lvb.Blocks, v.lvb.Mtime = g.Blocks, max(v.lvb.Mtime, nanoseconds(g.Mtime))
	v.mu.Unlock()
	v.settle(size, missed)
}

// settle makes a size known, unless a write was missed since that may not be in it.
func (v *cover) settle(size, missed uint64) {
	v.size.Store(size + 1)
	if v.missed.Load() != missed && v.grown.Load() > size {
		v.size.Store(0)
	}
}

// raise grows a known size to end at least: a write has ended whose own lock kept others from cutting there.
func (v *cover) raise(end uint64) {
	for {
		old := v.size.Load()
		if old == 0 && v.miss(end) || old != 0 && (end < old || v.size.CompareAndSwap(old, end+1)) {
			return
		}
	}
}

// doubt is raise for a write without a lock: when its answer is heard of, somebody else may have cut the object already, before
// this lock was granted. So a size that does not hold it is not known any more.
func (v *cover) doubt(end uint64) {
	for {
		old := v.size.Load()
		if old == 0 && v.miss(end) || old != 0 && end < old {
			return
		}
		if old != 0 {
			v.note(end)
			if v.size.CompareAndSwap(old, 0) {
				return
			}
		}
	}
}

// miss notes a write that ended while the size was not known, and reports whether it still is not.
func (v *cover) miss(end uint64) bool {
	v.note(end)
	return v.size.Load() == 0
}

func (v *cover) note(end uint64) {
	for {
		old := v.grown.Load()
		if end <= old || v.grown.CompareAndSwap(old, end) {
			break
		}
	}
	v.missed.Add(1)
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

// covers finds the covers of an object's locks, and of those that are being asked for: what changes the object meanwhile has to be
// known with the answer.
type covers struct {
	mu sync.Mutex
	of map[fid.ObjectID]*cover // guarded by mu
}

// ensure adds v if it is not in.
func (c *covers) ensure(v *cover) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for x := c.of[v.id]; x != nil; x = x.next {
		if x == v {
			return
		}
	}
	c.addLocked(v)
}

func (c *covers) add(v *cover) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(v)
}

func (c *covers) addLocked(v *cover) {
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

// doubt tells all locks of an object of a write without a lock that ends at end.
func (c *covers) doubt(id fid.ObjectID, end uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for v := c.of[id]; v != nil; v = v.next {
		v.doubt(end)
	}
}

// wrote tells all locks of an object of an answered write: the OST told blocks, which may be old.
func (c *covers) wrote(w *write, blocks uint64) {
	mtime := nanoseconds(w.mtime)
	c.mu.Lock()
	defer c.mu.Unlock()
	for v := c.of[w.obj.id]; v != nil; v = v.next {
		if w.lock != 0 {
			v.raise(w.end)
		} else {
			v.doubt(w.end)
		}
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
