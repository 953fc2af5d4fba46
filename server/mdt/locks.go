package mdt

import (
	"cmp"
	"slices"
	"sync"

	"github.com/strakefs/strake/fs/fid"
)

// lockKey names what is locked: an inode (hash 0) or a name in a folder.
type lockKey struct {
	fid  fid.FID
	hash nameHash
}

// renameLock is the key of the file system's rename lock. No inode has the zero FID.
var renameLock = lockKey{}

// lock is one lock that is held or waited for. The lock is there while refs is above 0.
type lock struct {
	rw   sync.RWMutex
	key  lockKey
	refs int    // guarded by lockShard.mu
	uses uint64 // counts acquisitions; guarded by lockShard.mu
	next *lock  // in the free list; guarded by lockShard.mu
}

const lockShards = 64

type lockShard struct {
	mu    sync.Mutex
	locks map[lockKey]*lock // guarded by mu
	free  *lock             // guarded by mu
	_     [40]byte          // Keeps shards on different cache lines.
}

// lockTable holds the locks of one MDT. A lock exists only while somebody uses it, so the table is as large as the
// number of requests that run.
type lockTable struct {
	shards [lockShards]lockShard
}

func newLockTable() *lockTable {
	t := &lockTable{}
	for i := range t.shards {
		t.shards[i].locks = map[lockKey]*lock{}
	}
	return t
}

func (t *lockTable) shard(k lockKey) *lockShard {
	h := uint64(k.fid.Seq)*0x9e3779b97f4a7c15 + uint64(k.fid.OID)*0xc2b2ae3d27d4eb4f + uint64(k.hash)
	h ^= h >> 29
	return &t.shards[h%lockShards]
}

func (t *lockTable) ref(k lockKey) *lock {
	s := t.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[k]
	if l == nil {
		if l = s.free; l != nil {
			s.free, l.next = l.next, nil
		} else {
			l = &lock{}
		}
		l.key, l.uses = k, 0
		s.locks[k] = l
	}
	l.refs++
	l.uses++
	return l
}

func (t *lockTable) unref(l *lock) {
	s := t.shard(l.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.refs--; l.refs == 0 {
		delete(s.locks, l.key)
		l.next, s.free = s.free, l
	}
}

// lockMode says how much of it is locked.
type lockMode uint8

const (
	// weak is shared with other weak holders.
	weak lockMode = iota
	// full excludes everybody.
	full
)

// Levels of the lock order: DESIGN §4, "Names and permission". Level 5, mutexes, is never in a set.
const (
	levelRename uint8 = iota + 1
	levelFolder
	levelName
	levelChild
)

// want is one lock of a set.
type want struct {
	key   lockKey
	mode  lockMode
	level uint8
	// rank orders folders: an ancestor has the lower one.
	rank uint8
	// dir says that a child is a folder: those come first.
	dir  bool
	lock *lock
	uses uint64
}

// lockSet is the locks of one operation. First all are named with add, then acquire takes them in order, then release
// gives them back.
type lockSet struct {
	table *lockTable
	wants []want
	held  int
	// busy is the lock whose try failed last.
	busy struct {
		key lockKey
		set bool
	}
}

// reset makes the set empty.
// Precondition: nothing is held.
func (s *lockSet) reset() { s.wants = s.wants[:0] }

// begin makes the set ready for a new operation.
func (s *lockSet) begin() {
	s.reset()
	s.busy.set = false
}

func (s *lockSet) rename(m lockMode) { s.add(want{key: renameLock, mode: m, level: levelRename}) }

func (s *lockSet) folder(f fid.FID, m lockMode) {
	s.add(want{key: lockKey{fid: f}, mode: m, level: levelFolder})
}

func (s *lockSet) name(f fid.FID, h nameHash) {
	s.add(want{key: lockKey{fid: f, hash: h}, mode: full, level: levelName})
}

func (s *lockSet) child(f fid.FID, m lockMode, dir bool) {
	s.add(want{key: lockKey{fid: f}, mode: m, level: levelChild, dir: dir})
}

// add names a lock. One that is named already keeps its place and gets the stronger mode.
func (s *lockSet) add(w want) {
	for i := range s.wants {
		if s.wants[i].key == w.key {
			s.wants[i].mode = max(s.wants[i].mode, w.mode)
			s.wants[i].level = min(s.wants[i].level, w.level)
			return
		}
	}
	s.wants = append(s.wants, w)
}

// ancestor makes a's lock come before the other folders'.
func (s *lockSet) ancestor(a fid.FID) {
	for i := range s.wants {
		if s.wants[i].level == levelFolder && s.wants[i].key.fid != a {
			s.wants[i].rank = 1
		}
	}
}

func compareWants(a, b want) int {
	if c := cmp.Compare(a.level, b.level); c != 0 {
		return c
	}
	if c := cmp.Compare(a.rank, b.rank); c != 0 {
		return c
	}
	if a.dir != b.dir {
		if a.dir {
			return -1
		}
		return 1
	}
	if c := a.key.fid.Compare(b.key.fid); c != 0 {
		return c
	}
	return cmp.Compare(a.key.hash, b.key.hash)
}

// acquire takes the set's locks in order. The first lock and those of the levels up to names are waited for. Children are
// only tried: a name that was looked up without a lock may meanwhile lead to a folder that somebody holds as an
// ancestor, and waiting for it could close a circle. When a try fails, acquire gives all back and returns false: the
// caller names its locks again, and the next acquire waits for the one that was busy first, while it holds nothing, and
// tries all others. So whoever waits holds nothing out of order, and a busy lock does not starve the operation.
//
// A set that holds the rename lock already may name more and acquire again.
func (s *lockSet) acquire() bool {
	rest := s.wants[s.held:]
	slices.SortFunc(rest, compareWants)
	first := -1
	if s.busy.set {
		first = slices.IndexFunc(rest, func(w want) bool { return w.key == s.busy.key })
	}
	if first >= 0 {
		s.busy.set = false
	}
	if first > 0 {
		w := rest[first]
		copy(rest[1:], rest[:first])
		rest[0] = w
	}
	for i := range rest {
		w := &rest[i]
		l := s.table.ref(w.key)
		if i > 0 && (first > 0 || w.level == levelChild) {
			if !tryLock(l, w.mode) {
				s.table.unref(l)
				s.release()
				s.busy.key, s.busy.set = w.key, true
				return false
			}
		} else {
			takeLock(l, w.mode)
		}
		w.lock = l
		s.held++
	}
	return true
}

// release gives all locks back, last first.
func (s *lockSet) release() {
	for s.held > 0 {
		s.held--
		w := &s.wants[s.held]
		dropLock(w.lock, w.mode)
		s.table.unref(w.lock)
		w.lock = nil
	}
}

// mark remembers how often a held lock was asked for until now; alone tells whether nobody has asked for it since, nor
// holds it with us.
func (s *lockSet) mark(f fid.FID) {
	if w := s.find(f); w != nil {
		w.uses = s.table.usesAlone(w.lock)
	}
}

func (s *lockSet) alone(f fid.FID) bool {
	w := s.find(f)
	return w == nil || w.uses != 0 && s.table.usesAlone(w.lock) == w.uses
}

func (s *lockSet) find(f fid.FID) *want {
	for i := range s.wants[:s.held] {
		if s.wants[i].key == (lockKey{fid: f}) {
			return &s.wants[i]
		}
	}
	return nil
}

// usesAlone is the lock's count of uses while one holds it, 0 while several do.
func (t *lockTable) usesAlone(l *lock) uint64 {
	s := t.shard(l.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.refs != 1 {
		return 0
	}
	return l.uses
}

func takeLock(l *lock, m lockMode) {
	if m == full {
		l.rw.Lock()
	} else {
		l.rw.RLock()
	}
}

func tryLock(l *lock, m lockMode) bool {
	if m == full {
		return l.rw.TryLock()
	}
	return l.rw.TryRLock()
}

func dropLock(l *lock, m lockMode) {
	if m == full {
		l.rw.Unlock()
	} else {
		l.rw.RUnlock()
	}
}
