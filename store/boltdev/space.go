package boltdev

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/store"
	"golang.org/x/sys/unix"
)

// How old the cached figures may be: while there is room, and when the reserve is near.
const (
	refreshEvery = time.Second
	refreshNear  = 10 * time.Millisecond
	// nearBytes above the reserve the figures are asked for more often.
	nearBytes = 256 << 20
)

// space knows how much room there is without asking for each operation: a statfs now and then, less what was written
// since.
type space struct {
	dir     string
	reserve int64

	avail atomic.Int64 // bytes for unprivileged writers at the last refresh
	taken atomic.Int64 // written since
	at    atomic.Int64 // time of the last refresh, Unix ns
	stale atomic.Bool  // a commit has changed the figures

	mu     sync.Mutex
	last   store.Statfs // guarded by mu
	shares uint64       // guarded by mu; 0 is 1
}

func (s *space) init(o Options) error {
	s.dir, s.reserve = o.Dir, o.Reserve
	_, err := s.refresh()
	return err
}

// refresh asks the file system below.
func (s *space) refresh() (store.Statfs, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.taken.Load()
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return store.Statfs{}, fmt.Errorf("boltdev: statfs %s: %w", s.dir, err)
	}
	size := uint64(st.Frsize)
	if size == 0 {
		size = uint64(st.Bsize)
	}
	avail := st.Bavail * size
	s.avail.Store(int64(avail))
	s.taken.Add(-before)
	s.at.Store(time.Now().UnixNano())
	n := max(s.shares, 1)
	s.last = store.Statfs{
		Total: st.Blocks * size / n, Free: st.Bfree * size / n, Avail: (avail - min(avail, uint64(s.reserve))) / n,
		Inodes: st.Files / n, FreeInodes: st.Ffree / n,
	}
	return s.last, nil
}

// mayRefresh refreshes figures that are old or stale.
func (s *space) mayRefresh() {
	if s.stale.Swap(false) || time.Since(time.Unix(0, s.at.Load())) > refreshEvery {
		_, _ = s.refresh() // the old figures stay then; writing shows what is wrong
	}
}

// left is the room above the reserve after n more bytes.
func (s *space) left(n int64) int64 { return s.avail.Load() - s.taken.Load() - s.reserve - n }

// room reports whether n more bytes leave the reserve alone. It asks the file system only when its figures are old.
func (s *space) room(n int64) bool {
	left := s.left(n)
	limit := refreshEvery
	if left < nearBytes {
		limit = refreshNear
	}
	if time.Now().UnixNano()-s.at.Load() > int64(limit) || left < 0 && s.stale.Swap(false) {
		_, _ = s.refresh()
		left = s.left(n)
	}
	return left >= 0
}

// floor is the part of the reserve that nobody may use: the commit of what was let in must find room.
func (s *space) floor() int64 { return min(s.reserve/8, 32<<20) }

// write is room for n bytes that are written now, and counts them.
func (s *space) write(n int64) bool {
	if !s.room(n) {
		return false
	}
	s.taken.Add(n)
	return true
}
