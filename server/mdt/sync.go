package mdt

import (
	"context"
	"slices"
	"sync"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/store"
)

// sync answers when a file's newest change is on disk, whoever made it: its own stamp, which every change of its names moves
// too, and for a folder the content stamp. It holds no worker while it waits.
func (o *op) sync() error {
	m := &o.req.sync
	if err := o.decode(m); err != nil {
		return err
	}
	n := o.h.dev.Last()
	if !m.All {
		f, err := o.fid(m.Seq, m.Oid)
		if err != nil {
			return err
		}
		if err := o.get(f, &o.child); err != nil {
			return err
		}
		n = max(o.child.own.transno, o.child.content.transno)
	}
	return o.h.syncs.wait(o.c, n)
}

// waitersMax bounds the calls that wait for commits; the clients' requests in flight are bounded well below it.
const waitersMax = 1 << 16

// syncWaiter is a held call and what it waits for.
type syncWaiter struct {
	call    *rpc.Call
	transno store.Transno
}

// syncer holds the calls that wait for a commit. Its goroutine answers them.
type syncer struct {
	dev    store.Device
	wake   chan struct{}
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	waiters []syncWaiter // guarded by mu
	stopped bool         // guarded by mu
}

// init starts the syncer.
func (s *syncer) init(dev store.Device) {
	ctx, cancel := context.WithCancel(context.Background())
	s.dev, s.cancel, s.wake = dev, cancel, make(chan struct{}, 1)
	s.done.Go(func() { s.run(ctx) })
}

// wait answers at once when n is on disk, else holds the call.
func (s *syncer) wait(c *rpc.Call, n store.Transno) error {
	if n <= s.dev.Committed() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return status.Stopping
	}
	if len(s.waiters) >= waitersMax {
		return status.Errorf(status.NoMemory, "mdt: %d requests wait for a commit", waitersMax)
	}
	s.waiters = append(s.waiters, syncWaiter{c, n})
	s.dev.Hasten(n)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return rpc.ErrHeld
}

func (s *syncer) run(ctx context.Context) {
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			s.answer(s.dev.Committed(), status.Stopping)
			return
		}
		for n := s.lowest(); n != 0; n = s.lowest() {
			err := s.dev.WaitCommitted(ctx, n)
			s.answer(s.dev.Committed(), err)
			if err != nil && ctx.Err() != nil {
				break
			}
		}
	}
}

// lowest is the least transno that a call waits for, 0 when none waits.
func (s *syncer) lowest() store.Transno {
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

// answer finishes the calls whose change is on disk, and with an error all others too.
func (s *syncer) answer(committed store.Transno, err error) {
	s.mu.Lock()
	var ready []syncWaiter
	s.waiters = slices.DeleteFunc(s.waiters, func(w syncWaiter) bool {
		if w.transno > committed && err == nil {
			return false
		}
		ready = append(ready, w)
		return true
	})
	s.mu.Unlock()
	for _, w := range ready {
		if w.transno <= committed {
			w.call.Finish(nil)
		} else {
			w.call.Finish(status.Stopping)
		}
	}
}

// stop answers what waits and ends the goroutine. Later calls do not wait.
func (s *syncer) stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.cancel()
	s.done.Wait()
}
