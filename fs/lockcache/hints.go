package lockcache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
)

// hintsMax bounds the contended resources remembered: a client fights over few objects at a time.
const hintsMax = 1024

// hints remembers contended resources.
type hints struct {
	n  atomic.Int64 // entries; who finds 0 need not lock
	mu sync.Mutex
	m  map[ldlm.ResID]time.Duration // until when; guarded by mu
}

func (h *hints) init() { h.m = map[ldlm.ResID]time.Duration{} }

// set remembers a resource for a while; when there is no room, in the place of any other.
func (h *hints) set(res ldlm.ResID, now, hold time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, there := h.m[res]; !there && len(h.m) >= hintsMax {
		for other := range h.m {
			delete(h.m, other)
			break
		}
	}
	h.m[res] = now + hold
	h.n.Store(int64(len(h.m)))
}

func (h *hints) has(res ldlm.ResID, now time.Duration) bool {
	if h.n.Load() == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	until, ok := h.m[res]
	return ok && now < until
}

// expire forgets what is over.
func (h *hints) expire(now time.Duration) {
	if h.n.Load() == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for res, until := range h.m {
		if now >= until {
			delete(h.m, res)
		}
	}
	h.n.Store(int64(len(h.m)))
}

func (h *hints) clear() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.m)
	h.n.Store(0)
}
