package lockd

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
)

// expiredEach bounds the eviction candidates named by one shard in one tick.
const expiredEach = 16

// tick looks at deadlines, and now and then at the pool and the memory.
func (s *Server) tick() {
	t := time.NewTicker(s.o.Tick)
	defer t.Stop()
	var last time.Duration
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
		}
		k := s.takeWork()
		s.ns.Expired(s.now(), expiredEach, &k.fx)
		s.run(k)
		s.lookForAbsent()
		if now := s.now(); now-last >= min(poolPeriod, s.o.Tick*4) {
			last = now
			s.pool.recalc(s)
			s.guard(k)
			for _, cl := range s.allClients() {
				s.sweepProlonged(cl)
			}
		}
		s.giveWork(k)
	}
}

// expired deals with a lock whose time is up.
func (s *Server) expired(f *ldlm.Effect) {
	cl := s.client(f.Client)
	if cl == nil || s.o.Busy != nil && s.o.Busy(cl, f.Res) && s.now() < s.prolongedUntil(cl, f.Handle) {
		return
	}
	s.evict(cl, fmt.Sprintf("it did not give back its %v lock on %v within %v", f.Desc.Mode, f.Res, s.ns.Limits().LockTimeout))
}

func (s *Server) allClients() []*Client {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*Client, 0, len(s.clients))
	for _, cl := range s.clients {
		all = append(all, cl)
	}
	return all
}

// lookForAbsent evicts clients that are wanted and away: without a connection for ReconnectGrace, or, where an application
// lock is wanted, which nobody calls back, silent for a lock timeout.
func (s *Server) lookForAbsent() {
	timeout := s.ns.Limits().LockTimeout
	var absent []*Client
	for _, cl := range s.allClients() {
		d, alone := cl.silence()
		away := alone && d >= s.o.ReconnectGrace
		if away && s.wanted(cl) {
			s.evict(cl, fmt.Sprintf("it is wanted and without a connection for %v", d.Round(time.Millisecond)))
		} else if away || d >= timeout {
			absent = append(absent, cl)
		}
	}
	if len(absent) > 0 {
		s.lookForFlocks(absent)
	}
}

// wanted reports whether somebody waits for an answer of the client, or for a lock of it that was called back.
func (s *Server) wanted(cl *Client) bool {
	s.send.mu.Lock()
	waits := false
	for _, j := range cl.queue.jobs[cl.queue.head:] {
		waits = waits || j.kind == jobBlocking || j.kind == jobGlimpse
	}
	s.send.mu.Unlock()
	if waits || !cl.recalled.Swap(false) {
		return waits
	}
	for _, l := range s.ns.Locks(cl.id, nil) {
		if l.Blocked {
			cl.recalled.Store(true)
			return true
		}
	}
	return false
}

// lookForFlocks evicts those of the absent clients whose application locks others wait for.
func (s *Server) lookForFlocks(absent []*Client) {
	files := map[ldlm.ResID]bool{}
	for _, cl := range s.allClients() {
		cl.mu.Lock()
		for _, w := range cl.waits {
			if w.res.Type == ldlm.TypeFlock {
				files[w.res] = true
			}
		}
		cl.mu.Unlock()
	}
	holders := map[ldlm.ClientID]ldlm.ResID{}
	var ranges []ldlm.FlockRange
	for id := range files {
		ranges = s.ns.FlockRanges(id, ranges[:0])
		for i := range ranges {
			holders[ranges[i].Owner.Client] = id
		}
	}
	for _, cl := range absent {
		if id, holds := holders[cl.id]; holds {
			d, _ := cl.silence()
			s.evict(cl, fmt.Sprintf("nothing heard of it for %v, and its application lock on %v is wanted", d.Round(time.Millisecond), id.FID()))
		}
	}
}

// poolState is the server's pool with what replies say of it.
type poolState struct {
	slv, limit atomic.Int64

	mu   sync.Mutex
	pool ldlm.ServerPool // guarded by mu
}

func (p *poolState) init(limit int64) {
	p.pool.Limit = limit
	p.limit.Store(limit)
}

// volume is what replies carry: the server lock volume and the limit.
func (p *poolState) volume() (slv, limit uint64) { return uint64(p.slv.Load()), uint64(p.limit.Load()) }

func (p *poolState) recalc(s *Server) {
	held, counts := s.ns.LockCount(), s.ns.Counts()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pool.Limit = p.limit.Load()
	p.pool.Recalc(s.now(), held, &counts)
	p.slv.Store(int64(p.pool.SLV))
}

func (p *poolState) read(f func(*ldlm.ServerPool) int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return f(&p.pool)
}

const (
	// reclaimRound is how many locks a round of the memory guard calls back: Lustre's.
	reclaimRound = 512
	// lockBytesMost is above what any lock with its own resource costs (ldlm, TestMemoryPerLock): below the threshold
	// by this measure nobody needs the walk that finds the exact number.
	lockBytesMost = 1024
)

// guard keeps the memory of locks below the process's limits: above the first one the oldest are called back, above the
// second one new ones are parked.
func (s *Server) guard(k *work) {
	bytes := s.ns.LockCount() * lockBytesMost
	if s.shared.near(s, bytes) {
		st := s.ns.Stats()
		bytes = st.LockBytes + int64(st.Table.Bytes)
	}
	if s.shared.report(s, bytes) {
		s.ns.Reclaim(s.now(), reclaimRound, &k.fx)
		s.run(k)
	}
	if !s.shared.full() {
		for _, p := range s.park.take() {
			s.send.post(p.cl, job{kind: jobParked, call: p.call})
		}
	}
}

// parked is an enqueue that waits for memory.
type parked struct {
	cl   *Client
	call *rpc.Call
}

// parking holds them, first come, first served. Their number is bounded by what clients may have in flight.
type parking struct {
	mu   sync.Mutex
	list []parked // guarded by mu
}

func (p *parking) add(cl *Client, c *rpc.Call) {
	p.mu.Lock()
	p.list = append(p.list, parked{cl, c})
	p.mu.Unlock()
}

func (p *parking) take() []parked {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.list
	p.list = nil
	return all
}

// drop ends those that which picks.
func (p *parking) drop(which func(*parked) bool) {
	p.mu.Lock()
	var gone []parked
	kept := p.list[:0]
	for i := range p.list {
		if which(&p.list[i]) {
			gone = append(gone, p.list[i])
		} else {
			kept = append(kept, p.list[i])
		}
	}
	clear(p.list[len(kept):])
	p.list = kept
	p.mu.Unlock()
	for i := range gone {
		gone[i].call.Finish(status.NotConnected)
	}
}

// unpark does an enqueue that was parked.
func (s *Server) unpark(k *work, cl *Client, c *rpc.Call) {
	cl.gate.RLock()
	defer cl.gate.RUnlock()
	if cl.gone.Load() || c.Context().Err() != nil {
		c.Finish(status.NotConnected)
		return
	}
	if err := s.enqueue(k, cl, c); err != rpc.ErrHeld {
		c.Finish(err)
	}
}
