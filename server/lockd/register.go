package lockd

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/stats"
)

// Name is the namespace's, as the registry shows it: ldlm.namespaces.<name>.
func (s *Server) Name() string { return stats.Element(s.o.Name) }

// path is where the namespace stands in the registry.
func (s *Server) path() string { return "ldlm.namespaces." + s.Name() }

// register enters figures and parameters under Lustre's names, beside those that the engine enters.
func (s *Server) register() {
	reg := s.o.Stats
	if reg == nil {
		s.count.asts, s.count.waits = new(stats.Histogram), new(stats.Histogram)
		return
	}
	s.ns.Register(reg, s.o.Name)
	at := s.path() + "."
	reg.Param(at+"max_parallel_ast", "Goroutines that send ASTs, at most.", func() string {
		s.send.mu.Lock()
		defer s.send.mu.Unlock()
		return strconv.Itoa(s.send.max)
	}, func(text string) error {
		n, err := number("max_parallel_ast", text, 1, 1<<16)
		if err == nil {
			s.send.mu.Lock()
			s.send.max = int(n)
			s.send.mu.Unlock()
		}
		return err
	})
	for _, c := range []struct {
		name, help string
		get        func() int64
	}{
		{"evictions", "Clients handed to eviction because of a lock.", s.count.evictions.Load},
		{"asts_unanswered", "ASTs without an answer in time.", s.count.noAnswer.Load},
		{"asts_crossed", "ASTs about locks that the client did not have any more.", s.count.unknown.Load},
		{"detached", "Waiting requests that were answered with a promise.", s.count.detached.Load},
		{"parked", "Requests that had to wait for memory.", s.count.parked.Load},
		{"prolonged", "Called-back locks that got more time.", s.count.prolonged.Load},
		{"clients", "Clients known.", func() int64 { return int64(len(s.allClients())) }},
		{"bytes_per_lock", "Memory of a lock with its share of the resources, in bytes, as last measured; 0 without locks.", s.BytesPerLock},
		{"ast_senders", "Goroutines that send now.", func() int64 {
			s.send.mu.Lock()
			defer s.send.mu.Unlock()
			return int64(s.send.workers)
		}},
	} {
		reg.Func(at+c.name, c.help, c.get)
	}
	s.count.asts = reg.Histogram(at+"ast_time", "How long clients took to answer ASTs.")
	s.count.waits = reg.Histogram(at+"wait_time", "How long requests of clients that waited waited for their lock.")
	reg.Text(at+"contended", "The resources most wanted: granted, waiting, conflicts in the window.", func() string {
		var b strings.Builder
		for _, c := range s.Contended(shownRanges) {
			fmt.Fprintf(&b, "%v granted %d waiting %d conflicts %d lockless %v\n", c.Res, c.Granted, c.Waiting, c.Conflicts, c.Lockless)
		}
		return strings.TrimSuffix(b.String(), "\n")
	})
	s.registerPool(reg, at+"pool.")
}

func (s *Server) registerPool(reg *stats.Registry, at string) {
	reg.Param(at+"limit", "Locks that the memory is meant for.", func() string {
		return strconv.FormatInt(s.pool.limit.Load(), 10)
	}, func(text string) error {
		n, err := number("pool.limit", text, 1, 1<<40)
		if err == nil {
			s.pool.limit.Store(n)
		}
		return err
	})
	reg.Func(at+"granted", "Locks known, waiting ones included.", s.ns.LockCount)
	for _, c := range []struct {
		name, help string
		get        func(*ldlm.ServerPool) int64
	}{
		{"server_lock_volume", "The server lock volume: lock seconds that a client's unused locks may have.", func(p *ldlm.ServerPool) int64 { return int64(p.SLV) }},
		{"grant_plan", "Locks meant to be granted by the end of the period.", func(p *ldlm.ServerPool) int64 { return p.Plan }},
		{"grant_rate", "Locks granted per second, over the last period.", func(p *ldlm.ServerPool) int64 { return p.GrantRate }},
		{"cancel_rate", "Locks given back per second, over the last period.", func(p *ldlm.ServerPool) int64 { return p.CancelRate }},
		{"grant_speed", "Locks granted less locks given back per second.", func(p *ldlm.ServerPool) int64 { return p.GrantSpeed }},
	} {
		reg.Func(at+c.name, c.help, func() int64 { return s.pool.read(c.get) })
	}
}

// Party is a holder of a lock, or one that waits for it.
type Party struct {
	// Client is its name; "server" for the server's own.
	Client string
	Mode   ldlm.Mode
	Bits   ldlm.Bits
	Extent extent.Extent
	// Blocked: the lock is called back.
	Blocked bool
}

// Contended is a resource that several want.
type Contended struct {
	Res                          ldlm.ResID
	Granted, Waiting, Converting int
	// Conflicts is the decayed count of real conflicts; Lockless that clients are told to work without locks there.
	Conflicts uint32
	Lockless  bool
	// Holders and Waiters are some of them.
	Holders, Waiters []Party
}

// shownRanges bounds the application locks listed with a file.
const shownRanges = 16

// Contended returns up to n resources with waiting locks or recent conflicts, the most wanted first. It walks the resource
// table: it is for people.
func (s *Server) Contended(n int) []Contended {
	infos := s.ns.MostContended(s.now(), n)
	all := make([]Contended, 0, len(infos))
	for i := range infos {
		in := &infos[i]
		c := Contended{Res: in.Res, Granted: in.Granted, Waiting: in.Waiting, Converting: in.Converting,
			Conflicts: in.Conflicts, Lockless: in.Contended,
			Holders: s.parties(in.Holders), Waiters: s.parties(in.Waiters)}
		if in.Res.Type == ldlm.TypeFlock {
			ranges := s.ns.FlockRanges(in.Res, nil)
			for _, r := range ranges[:min(len(ranges), shownRanges)] {
				mode := ldlm.PR
				if r.Write {
					mode = ldlm.PW
				}
				c.Holders = append(c.Holders, Party{Client: s.nameOf(r.Owner.Client), Mode: mode, Extent: r.Extent})
			}
		}
		all = append(all, c)
	}
	return all
}

func (s *Server) nameOf(id ldlm.ClientID) string {
	if id == ldlm.Local {
		return "server"
	}
	if cl := s.client(id); cl != nil {
		return cl.name
	}
	return "a client that is gone"
}

func (s *Server) parties(locks []ldlm.LockInfo) []Party {
	all := make([]Party, 0, len(locks))
	for i := range locks {
		l := &locks[i]
		all = append(all, Party{Client: s.nameOf(l.Client), Mode: l.Desc.Mode, Bits: l.Desc.Bits, Extent: l.Desc.Extent, Blocked: l.Blocked})
	}
	return all
}
