package ost

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// spaceAge is how old the host's figure may be; what was written since is taken off meanwhile.
const spaceAge = 200 * time.Millisecond

// fullBytes is the least free space below which new files avoid the OST: a few full-size RPCs.
const fullBytes = 16 << 20

// grantFirst is promised at connect: two full-size RPCs, so that the first writes are gathered.
const grantFirst = 2 * wire.BulkMax

// space knows what is free and what of it is promised.
type space struct {
	device store.Device
	figure atomic.Pointer[figure]
	since  atomic.Int64 // bytes written since the figure was taken

	mu      sync.Mutex
	granted int64 // the sum over exports; guarded by mu
	dirty   int64 // what clients say they hold; guarded by mu
}

type figure struct {
	store.Statfs
	at time.Time
}

func (s *space) init(d store.Device) { s.device = d }

// now gives the device's space, not older than spaceAge but for what was written since. A device that cannot tell has
// none.
func (s *space) now() store.Statfs {
	f := s.figure.Load()
	if f == nil || time.Since(f.at) > spaceAge {
		s.since.Store(0)
		st, err := s.device.Statfs()
		if err != nil {
			return store.Statfs{}
		}
		f = &figure{Statfs: st, at: time.Now()}
		s.figure.Store(f)
	}
	st := f.Statfs
	st.Avail -= min(st.Avail, uint64(s.since.Load()))
	return st
}

// grants is an export's share of space.granted and space.dirty.
type grants struct {
	granted int64 // guarded by space.mu
	dirty   int64 // guarded by space.mu
}

// connectReply gives a new connection its first grant. What the client held before it lost its connection it holds no
// more when the export was made anew; a client that joins its export keeps what it has.
func (o *OST) connectReply(x *target.Export, r *wirepb.ConnectReply) {
	if x.ReadOnly || x.Kind != rpc.KindClient {
		return
	}
	g := &peerOf(x).grants
	st := o.space.now()
	o.space.mu.Lock()
	defer o.space.mu.Unlock()
	o.space.giveLocked(g, grantFirst-g.granted, st.Avail, o.o.GrantMax)
	r.Grant = uint64(g.granted)
}

// giveLocked promises up to want bytes more and returns how many.
func (s *space) giveLocked(g *grants, want int64, avail uint64, limit int64) int64 {
	free := int64(min(avail, 1<<62)) - s.granted
	// No export is promised more than an eighth of what is left at once, so that several can gather until the end.
	n := min(want, limit-g.granted, free/8)
	if n <= 0 {
		return 0
	}
	g.granted += n
	s.granted += n
	return n
}

// take settles a write before it is done: what was gathered against grant gives it back, the rest needs free space that
// nobody was promised.
func (s *space) take(g *grants, m *wirepb.WriteRequest, n int) error {
	st := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	d := int64(min(m.Dirty, 1<<50))
	s.dirty += d - g.dirty
	g.dirty = d
	used := min(int64(min(m.GrantUsed, uint64(n))), g.granted)
	rest := int64(n) - used
	if rest > 0 && rest > int64(min(st.Avail, 1<<62))-s.granted {
		return status.Errorf(status.NoSpace, "no space: %d bytes free, %d promised", st.Avail, s.granted)
	}
	g.granted -= used
	s.granted -= used
	s.since.Add(int64(n))
	return nil
}

// topUp promises what the client wants, as far as there is space.
func (s *space) topUp(g *grants, want uint64, limit int64) uint64 {
	if want == 0 {
		return 0
	}
	st := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	return uint64(s.giveLocked(g, int64(min(want, 1<<40)), st.Avail, limit))
}

// drop gives back all that an export had.
func (s *space) drop(g *grants) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.granted -= g.granted
	s.dirty -= g.dirty
	g.granted, g.dirty = 0, 0
}

// sums are the bytes promised and the bytes that clients hold.
func (s *space) sums() (granted, dirty int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.granted, s.dirty
}
