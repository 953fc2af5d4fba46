package mdt

import (
	"sync"

	"github.com/strakefs/strake/fs/fid"
)

// writer is a client that may hold bytes of a file which the size in its record does not count.
type writer struct {
	x *export
	// handles counts its handles open for write. gen is the setattr generation that its last truncate began. A report
	// overtaken by an open or a truncate of the same client does not end its part.
	handles int
	gen     uint32
}

// openFile is an inode that somebody has open or writes.
type openFile struct {
	handles int
	writers []writer
	// several: more than one writer was there at once since the first of the present ones came.
	several bool
	// cut: one of them has truncated it since then. The MDT hears of that before the OSTs cut, so that what others see of the
	// size meanwhile may be of before.
	cut bool
	// reported: one of them has said a size since then. Before, the size in the record is that of earlier writers, of whom one may
	// have cut what another counted.
	reported bool
	// tainted: a writer was evicted since the first of the present ones came, so nobody knows the size.
	tainted bool
}

const openShards = 64

type openShard struct {
	mu    sync.Mutex
	files map[fid.FID]*openFile // guarded by mu
	free  []*openFile           // guarded by mu
	_     [24]byte
}

// openTable holds the open inodes of one MDT. What changes whether an inode is open at all happens under its bit OPEN too: in
// mode CW to open it, EX to unlink or close it, and to become a writer or cease to be one, but for an evicted one.
type openTable struct {
	shards [openShards]openShard
}

func newOpenTable() *openTable {
	t := &openTable{}
	for i := range t.shards {
		t.shards[i].files = map[fid.FID]*openFile{}
	}
	return t
}

func (t *openTable) shard(f fid.FID) *openShard {
	return &t.shards[(uint64(f.OID)+uint64(f.Seq)*31)%openShards]
}

// with runs fn on f's entry, which it makes if there is none and drops if fn leaves it empty.
func (s *openShard) with(f fid.FID, fn func(*openFile)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.files[f]
	if v == nil {
		if n := len(s.free); n > 0 {
			v, s.free = s.free[n-1], s.free[:n-1]
		} else {
			v = &openFile{}
		}
		s.files[f] = v
	}
	fn(v)
	if v.handles == 0 && len(v.writers) == 0 {
		delete(s.files, f)
		v.tainted = false
		if len(s.free) < 1024 {
			s.free = append(s.free, v)
		}
	}
}

// open counts one more open.
func (t *openTable) open(f fid.FID) { t.shard(f).with(f, countOpen) }

func countOpen(v *openFile) { v.handles++ }

// close counts one open less and returns how many are left.
func (t *openTable) close(f fid.FID) (left int) {
	t.shard(f).with(f, func(v *openFile) {
		if v.handles > 0 {
			v.handles--
		}
		left = v.handles
	})
	return left
}

// count is the number of opens.
func (t *openTable) count(f fid.FID) int {
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.files[f]; v != nil {
		return v.handles
	}
	return 0
}

// find gives x's place among the writers, nil if it is none.
func (v *openFile) find(x *export) *writer {
	for i := range v.writers {
		if v.writers[i].x == x {
			return &v.writers[i]
		}
	}
	return nil
}

// addWriter makes x a writer of f: by one more handle, or by a truncate that begins generation gen (0 for none).
func (t *openTable) addWriter(f fid.FID, x *export, handles int, gen uint32) {
	t.shard(f).with(f, func(v *openFile) {
		w := v.find(x)
		if w == nil {
			v.several = len(v.writers) > 0
			if !v.several {
				v.tainted, v.cut, v.reported = false, false, false
			}
			v.writers = append(v.writers, writer{x: x})
			w = &v.writers[len(v.writers)-1]
		}
		w.handles += handles
		w.gen = max(w.gen, gen)
		v.cut = v.cut || gen != 0
	})
	x.setWriting(f, true)
}

// restoreWriter makes x a writer again after a restart. Nobody knows then who has written the file besides and what of it its record counts,
// so that no report of the present writers is the whole truth.
func (t *openTable) restoreWriter(f fid.FID, x *export, handles int, gen uint32) {
	t.addWriter(f, x, handles, gen)
	t.shard(f).with(f, func(v *openFile) { v.tainted = true })
}

// sized notes that one of f's writers has said a size, if it has any still.
func (t *openTable) sized(f fid.FID) {
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.files[f]; v != nil {
		v.reported = true
	}
}

// closeWrite counts a handle open for write less. The client stays a writer until it reports.
func (t *openTable) closeWrite(f fid.FID, x *export) {
	t.shard(f).with(f, func(v *openFile) {
		if w := v.find(x); w != nil && w.handles > 0 {
			w.handles--
		}
	})
}

// standing is what a report's sender is to a file when it is applied.
type standing struct {
	// writer: it was a writer until now. last: it is none any more, and none is left.
	writer, last bool
	// whole: nobody whose bytes are not known has gone since the first of the present writers came, so that the writers' reports have the
	// file's size. several: they were more than one, so that it is the greatest.
	whole, several bool
	// reported: one of the present writers has said a size.
	reported bool
}

func (v *openFile) standing(x *export) standing {
	if v == nil || v.find(x) == nil {
		return standing{}
	}
	return standing{writer: true, whole: !v.tainted && !(v.several && v.cut), several: v.several, reported: v.reported}
}

// standing is x's part in f.
func (t *openTable) standing(f fid.FID, x *export) standing {
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[f].standing(x)
}

// doneWriter takes x off the writers of f, on a report that follows generation gen, unless it has become one again since.
func (t *openTable) doneWriter(f fid.FID, x *export, gen uint32) (st standing) {
	gone := false
	t.shard(f).with(f, func(v *openFile) {
		st = v.standing(x)
		if w := v.find(x); w == nil || w.handles > 0 || gen < w.gen {
			return
		}
		v.remove(x)
		gone, st.last = true, len(v.writers) == 0
	})
	if gone {
		x.setWriting(f, false)
	}
	return st
}

// evictWriter takes x off the writers of f without a report.
func (t *openTable) evictWriter(f fid.FID, x *export) {
	t.shard(f).with(f, func(v *openFile) {
		if v.find(x) != nil {
			v.remove(x)
			v.tainted = true
		}
	})
}

func (v *openFile) remove(x *export) {
	for i := range v.writers {
		if v.writers[i].x == x {
			last := len(v.writers) - 1
			v.writers[i], v.writers[last] = v.writers[last], writer{}
			v.writers = v.writers[:last]
			return
		}
	}
}

// writers reports whether x, and whether anybody else, is a writer of f.
func (t *openTable) writers(f fid.FID, x *export) (mine, others bool) {
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.files[f]
	if v == nil {
		return false, false
	}
	mine = v.find(x) != nil
	return mine, len(v.writers) > 1 || !mine && len(v.writers) > 0
}
