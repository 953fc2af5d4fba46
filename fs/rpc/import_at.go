package rpc

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/wire"
)

// Defaults of the adaptive timeouts. The limits are below Lustre's at_max: a target evicts a client that was silent for a
// minute, so a connection that is dead has to be found out before.
const (
	DefaultTimeoutMin     = 5 * time.Second
	DefaultTimeoutMax     = 40 * time.Second
	DefaultTimeoutHistory = 600 * time.Second
)

// timeouts are the parameters at_min, at_max and at_history, in nanoseconds.
type timeouts struct {
	min, max, history atomic.Int64
}

func (t *timeouts) init() {
	t.min.Store(int64(DefaultTimeoutMin))
	t.max.Store(int64(DefaultTimeoutMax))
	t.history.Store(int64(DefaultTimeoutHistory))
}

// silence is how long a target may owe an answer before its connection counts as dead: a quarter more than the slowest answer
// of the time remembered, within the limits.
func (i *Import) silence(now time.Time) time.Duration {
	t := &i.times
	h := time.Duration(t.history.Load())
	worst := max(i.service.figures(now, h).worst, i.network.figures(now, h).worst)
	return min(max(worst+worst/4, time.Duration(t.min.Load())), time.Duration(t.max.Load()))
}

// waits reports whether an operation is answered late by its nature: when a lock is free, there is news, a disk has flushed.
func waits(op wire.Op) bool {
	switch op {
	case wire.OpEnqueue, wire.OpConfig, wire.OpRegister, wire.OpSync, wire.OpObjectSync, wire.OpReplay, wire.OpReplayDone, wire.OpReopen:
		return true
	}
	return false
}

// answerBins is into how many parts the time remembered is cut.
const answerBins = 4

// answers remembers the slowest answers of a while.
type answers struct {
	// ceiling is what passes without a look: the slowest answer of the open bin, which ends at ends. In nanoseconds.
	ceiling, ends atomic.Int64
	last          atomic.Int64 // when the last answer came, in nanoseconds of the wall clock
	count, sum    atomic.Int64

	mu    sync.Mutex
	width time.Duration // of a bin; guarded by mu
	begun time.Time     // the open bin; guarded by mu
	bins  [answerBins]time.Duration
	// worst is the slowest ever, and when it came. guarded by mu
	worst   time.Duration
	worstAt time.Time
}

// answerWidth is the width of a bin until figures has told another.
const answerWidth = DefaultTimeoutHistory / answerBins

// observe notes an answer that took d.
func (a *answers) observe(now time.Time, d time.Duration) {
	n := now.UnixNano()
	a.last.Store(n)
	a.count.Add(1)
	a.sum.Add(int64(d))
	if int64(d) <= a.ceiling.Load() && n < a.ends.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.moveLocked(now)
	a.bins[0] = max(a.bins[0], d)
	if d > a.worst {
		a.worst, a.worstAt = d, now
	}
	a.ceiling.Store(int64(a.bins[0]))
}

// moveLocked opens the bin that now belongs to.
func (a *answers) moveLocked(now time.Time) {
	if a.width == 0 {
		a.width = answerWidth
	}
	if a.begun.IsZero() {
		a.begun = now
	}
	n := int64(now.Sub(a.begun) / a.width)
	if n > 0 {
		for range min(n, answerBins) {
			copy(a.bins[1:], a.bins[:])
			a.bins[0] = 0
		}
		a.begun = a.begun.Add(time.Duration(n) * a.width)
		a.ceiling.Store(0)
	}
	a.ends.Store(a.begun.Add(a.width).UnixNano())
}

// answerFigures are what answers has seen: the slowest of the time remembered, of its parts, newest first, and ever.
type answerFigures struct {
	worst, ever time.Duration
	everAt      time.Time
	bins        [answerBins]time.Duration
}

// figures tells what was seen in the time up to now that history says.
func (a *answers) figures(now time.Time, history time.Duration) answerFigures {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := max(history/answerBins, time.Second); w != a.width {
		a.width = w
	}
	a.moveLocked(now)
	f := answerFigures{ever: a.worst, everAt: a.worstAt, bins: a.bins}
	for _, d := range a.bins {
		f.worst = max(f.worst, d)
	}
	return f
}
