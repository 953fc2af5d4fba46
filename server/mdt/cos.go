package mdt

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// Levels of commit on share (DESIGN §8; Lustre Operations Manual, "Commit on Share"): whom another client's change that is
// not on disk makes wait for its commit.
const (
	shareNothing = 0 // nobody
	shareWrites  = 1 // who would change what it changed, opens it for write, or links it
	shareReads   = 2 // who would see it, too
)

// errShared says that an operation depends on another client's change that is not on disk (op.awaits). It has changed
// nothing, and starts over when that is.
var errShared = errors.New("mdt: depends on a change that is not committed")

// sharePatience is how often an operation gives its locks back to wait for a commit. After that it keeps them, in a
// goroutine of its own, or a client that goes on changing what another one wants would keep it waiting for ever.
const sharePatience = 2

// sharing makes operations wait for the commit of what they depend on. A call that waits is held: it has no worker and no
// lock. When its commit is done, a goroutine of its own serves it again from its beginning.
type sharing struct {
	dev     store.Device
	level   atomic.Int32
	removed removals
	stats   shareStats

	wake   chan struct{}
	cancel context.CancelFunc
	done   sync.WaitGroup // the goroutine that waits for commits
	again  sync.WaitGroup // calls that are served again

	mu      sync.Mutex
	waiters []shareWaiter // guarded by mu
	envs    []*env.Env    // spare ones; guarded by mu
	forced  store.Transno // commits have been started of all up to this; guarded by mu
	stopped bool          // guarded by mu
}

// shareStats are commit on share's figures.
type shareStats struct {
	forced, waits *stats.Counter
	time          *stats.Histogram
}

// shareWaiter is a held call and what it waits for.
type shareWaiter struct {
	call    *rpc.Call
	x       *target.Export
	transno store.Transno
	tries   int // waits before this one
	since   time.Time
}

// init starts the goroutine that waits for commits. Level and figures are ready before.
func (s *sharing) init(dev store.Device) {
	ctx, cancel := context.WithCancel(context.Background())
	s.dev, s.cancel, s.wake = dev, cancel, make(chan struct{}, 1)
	s.done.Go(func() { s.run(ctx) })
}

// register enters the parameter and the figures, under Lustre's names where it has them.
func (h *Handler) registerSharing() {
	s := &h.sharing
	s.level.Store(shareWrites)
	s.stats = shareStats{&stats.Counter{}, &stats.Counter{}, &stats.Histogram{}}
	r := h.o.Stats
	if r == nil {
		return
	}
	base := "mdt." + h.o.Name
	s.stats.forced = r.Counter(base+".async_commit_count", "Commits started because an operation depended on another client's change.")
	s.stats.waits = r.Counter(base+".sync_count", "Operations that waited for a commit because they depended on another client's change.")
	s.stats.time = r.Histogram(base+".commit_on_sharing_wait", "Time that operations waited for commits of other clients' changes.")
	r.Param(base+".commit_on_sharing",
		"Who waits for the commit of another client's change: 0 nobody, 1 who depends on it, 2 who reads it too.",
		func() string { return strconv.Itoa(int(s.level.Load())) }, h.setSharing)
}

// setSharing changes the level. When it is raised, what was shared before is on disk when setSharing returns.
func (h *Handler) setSharing(text string) error {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < shareNothing || n > shareReads {
		return fmt.Errorf("mdt: commit_on_sharing is 0, 1 or 2, not %q", text)
	}
	if was := h.sharing.level.Swap(int32(n)); int(was) >= n {
		return nil
	}
	if err := h.dev.WaitCommitted(h.life, h.dev.Last()); err != nil {
		return fmt.Errorf("mdt: committing what clients share: %w", err)
	}
	return nil
}

// awaitShared returns nil when all up to n is on disk; else the operation has to start over, or to end.
func (o *op) awaitShared(n store.Transno) error {
	if n <= o.h.dev.Committed() {
		return nil
	}
	if o.tries < sharePatience {
		o.awaits = n
		return errShared
	}
	s := &o.h.sharing
	s.force(n)
	began := time.Now()
	if err := o.h.dev.WaitCommitted(o.ctx(), n); err != nil {
		return fmt.Errorf("mdt: committing what clients share: %w", err)
	}
	s.stats.waits.Inc()
	s.stats.time.Observe(time.Since(began))
	return nil
}

// force starts the commit of transno n, and counts it if it was not started before.
func (s *sharing) force(n store.Transno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forceLocked(n)
}

func (s *sharing) forceLocked(n store.Transno) {
	if n <= s.forced || n <= s.dev.Committed() {
		return
	}
	s.stats.forced.Inc()
	s.dev.Hasten(n)
	s.forced = max(n, s.dev.Last()) // The txg that closes now holds all that is published.
}

// hold keeps a call until what its operation depends on is on disk.
// Precondition: the operation holds no lock, and nothing in c lies in memory of its Env.
func (s *sharing) hold(w shareWaiter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return status.Stopping
	case len(s.waiters) >= waitersMax:
		return status.Errorf(status.NoMemory, "mdt: %d requests wait for a commit", waitersMax)
	}
	w.since = time.Now()
	s.waiters = append(s.waiters, w)
	s.stats.waits.Inc()
	s.forceLocked(w.transno)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return target.ErrAgain
}

func (s *sharing) run(ctx context.Context) {
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		for n := s.lowest(); n != 0 && ctx.Err() == nil; n = s.lowest() {
			err := s.dev.WaitCommitted(ctx, n)
			if ctx.Err() == nil {
				s.resume(s.dev.Committed(), err)
			}
		}
	}
}

// lowest is the least transno that a call waits for, 0 when none waits.
func (s *sharing) lowest() store.Transno {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n store.Transno
	for _, w := range s.waiters {
		if n == 0 || w.transno < n {
			n = w.transno
		}
	}
	return n
}

// resume serves the calls again whose dependency is on disk. With an error of the device it serves all: they find it.
func (s *sharing) resume(committed store.Transno, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.waiters[:0]
	for _, w := range s.waiters {
		if w.transno > committed && err == nil {
			kept = append(kept, w)
			continue
		}
		s.stats.time.Observe(time.Since(w.since))
		e := s.spareLocked()
		s.again.Go(func() { s.serve(e, w) })
	}
	clear(s.waiters[len(kept):])
	s.waiters = kept
}

// shareEnvs bounds the spare Envs: more calls than that seldom wait for one commit.
const shareEnvs = 64

func (s *sharing) spareLocked() *env.Env {
	if n := len(s.envs) - 1; n >= 0 {
		e := s.envs[n]
		s.envs = s.envs[:n]
		return e
	}
	return env.New()
}

// serve serves a call that waited. Each has a goroutine of its own: one may wait for what another one has locked.
func (s *sharing) serve(e *env.Env, w shareWaiter) {
	opOf(e).tries = w.tries + 1
	if err := w.x.Serve(e, w.call); err != rpc.ErrHeld {
		w.call.Finish(err)
	}
	opOf(e).tries = 0
	e.Reset()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.envs) < shareEnvs {
		s.envs = append(s.envs, e)
	}
}

// stop ends what waits. Later operations do not wait; drained waits for those that are being served again.
func (s *sharing) stop() {
	s.mu.Lock()
	held := s.waiters
	s.waiters, s.stopped = nil, true
	s.mu.Unlock()
	s.cancel()
	s.done.Wait()
	for _, w := range held {
		w.call.Finish(status.Stopping)
	}
}

// drained waits until no call is being served again.
// Precondition: stop has returned.
func (s *sharing) drained(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		s.again.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("mdt: calls that waited for commits still run: %w", ctx.Err())
	}
}
