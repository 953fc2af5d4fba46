package lockd

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/stats"
)

const (
	// reclaimPercent and limitPercent of memory are Lustre's.
	reclaimPercent, limitPercent = 20, 30
	// poolMemoryUnknown is the memory that a pool's limit is made for where none was stated.
	poolMemoryUnknown = 1 << 30
)

// Shared is what the namespaces of one process have in common: the lock timeout and the memory of locks.
type Shared struct {
	memory  uint64
	reclaim atomic.Int64 // bytes; 0: no bound
	limit   atomic.Int64 // bytes; 0: no bound
	used    atomic.Int64 // bytes, as last reported
	timeout atomic.Int64 // of namespaces made later; 0: the engine's default

	mu      sync.Mutex
	servers map[*Server]int64 // with their bytes; guarded by mu
}

// NewShared makes it for a machine with memoryBytes. 0: unknown, then memory has no bound until one is set, and pools are
// made for 1 GiB.
func NewShared(memoryBytes uint64) *Shared {
	h := &Shared{memory: memoryBytes, servers: map[*Server]int64{}}
	h.reclaim.Store(int64(memoryBytes / 100 * reclaimPercent))
	h.limit.Store(int64(memoryBytes / 100 * limitPercent))
	return h
}

// PoolLimit is the limit that a namespace's pool begins with, in locks.
func (h *Shared) PoolLimit() int64 {
	if h.memory == 0 {
		return ldlm.DefaultPoolLimit(poolMemoryUnknown)
	}
	return ldlm.DefaultPoolLimit(h.memory)
}

func (h *Shared) add(s *Server) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.servers[s] = 0
	if t := h.timeout.Load(); t != 0 && s.o.Limits.LockTimeout == 0 {
		setTimeout(s, time.Duration(t))
	}
}

func (h *Shared) remove(s *Server) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used.Add(-h.servers[s])
	delete(h.servers, s)
}

func setTimeout(s *Server, d time.Duration) {
	l := s.ns.Limits()
	l.LockTimeout = d
	s.ns.SetLimits(l)
}

// near reports whether, with at most bytes in this namespace, a bound could be passed.
func (h *Shared) near(s *Server, bytes int64) bool {
	least := h.reclaim.Load()
	if l := h.limit.Load(); least == 0 || l != 0 && l < least {
		least = l
	}
	if least == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.used.Load()-h.servers[s]+bytes > least
}

// report enters a namespace's memory and reports whether locks have to be called back.
func (h *Shared) report(s *Server, bytes int64) bool {
	h.mu.Lock()
	old, known := h.servers[s]
	if known {
		h.servers[s] = bytes
		h.used.Add(bytes - old)
	}
	h.mu.Unlock()
	r := h.reclaim.Load()
	return r > 0 && h.used.Load() > r
}

// full reports whether no memory is left for new locks of clients.
func (h *Shared) full() bool {
	l := h.limit.Load()
	return l > 0 && h.used.Load() > l
}

func (h *Shared) all() []*Server {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*Server, 0, len(h.servers))
	for s := range h.servers {
		all = append(all, s)
	}
	return all
}

// SetBounds sets the memory in bytes above which the oldest locks are called back, and above which new requests wait; 0
// is no bound.
func (h *Shared) SetBounds(reclaim, limit int64) {
	h.reclaim.Store(reclaim)
	h.limit.Store(limit)
}

// SetLockTimeout sets ldlm.lock_timeout of all namespaces, and of those made later.
func (h *Shared) SetLockTimeout(d time.Duration) {
	h.timeout.Store(int64(d))
	for _, s := range h.all() {
		setTimeout(s, d)
	}
}

// LockTimeout is what SetLockTimeout set last.
func (h *Shared) LockTimeout() time.Duration {
	if t := h.timeout.Load(); t != 0 {
		return time.Duration(t)
	}
	return ldlm.DefaultLimits().LockTimeout
}

// Register enters the parameters of the process: ldlm.lock_timeout, ldlm.lock_limit_mb and their like.
func (h *Shared) Register(reg *stats.Registry) {
	reg.Param("ldlm.lock_timeout", "Seconds that the holder of a called-back lock has before it is evicted, 1 to 3600; sets it in all namespaces.",
		func() string { return strconv.FormatInt(int64(h.LockTimeout()/time.Second), 10) },
		func(text string) error {
			n, err := number("lock_timeout", text, 1, 3600)
			if err == nil {
				h.SetLockTimeout(time.Duration(n) * time.Second)
			}
			return err
		})
	for _, p := range []struct {
		name, help string
		v          *atomic.Int64
	}{
		{"lock_reclaim_threshold_mb", "Memory of locks in MiB above which the oldest are called back; 0: no bound.", &h.reclaim},
		{"lock_limit_mb", "Memory of locks in MiB above which new requests wait; 0: no bound.", &h.limit},
	} {
		reg.Param("ldlm."+p.name, p.help, func() string { return strconv.FormatInt(p.v.Load()>>20, 10) }, func(text string) error {
			n, err := number(p.name, text, 0, 1<<30)
			if err == nil {
				p.v.Store(n << 20)
			}
			return err
		})
	}
	reg.Func("ldlm.lock_granted_count", "Locks of all namespaces, waiting ones included.", func() int64 {
		var n int64
		for _, s := range h.all() {
			n += s.ns.LockCount()
		}
		return n
	})
	reg.Func("ldlm.lock_bytes", "Memory of locks in bytes, as last measured; below the thresholds an upper bound.", h.used.Load)
}

// number reads a parameter.
func number(name, text string, low, high int64) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("ldlm: %s is a number from %d to %d, not %q", name, low, high, text)
	}
	return n, nil
}
