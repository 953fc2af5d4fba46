package target

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// recovery runs the replay window of a target that has been started again. Its clients hand back the locks that they held
// (ENQUEUE with Replay), then say so (REPLAY_DONE). Until each of them has, or time is up, nobody else's request is served
// that could meet one of those locks: it is held, with no worker. Who has not come back by then is evicted first.
type recovery struct {
	t    *Target
	open atomic.Bool // the window is open, or its late clients are being evicted
	wake chan struct{}
	done sync.WaitGroup // requests that were held and run now

	mu      sync.Mutex
	w       window        // guarded by mu
	length  time.Duration // of this window and later ones; guarded by mu
	started time.Time     // guarded by mu
	ended   time.Time     // zero while it is open; guarded by mu
	evicted int           // guarded by mu
	held    []heldCall    // guarded by mu
	locks   int           // handed back; guarded by mu
	closed  bool          // guarded by mu
}

type heldCall struct {
	x *Export
	c *rpc.Call
}

// begin opens the window if an earlier start has left clients.
func (r *recovery) begin(t *Target) {
	r.t, r.wake = t, make(chan struct{}, 1)
	r.mu.Lock()
	r.length, r.started = t.o.ReplayWindow, time.Now()
	if r.length > 0 {
		r.w.open(r.started.Add(r.length), t.Exports())
	} else {
		r.w.over = true
	}
	n, over := r.w.total, r.w.over
	r.mu.Unlock()
	if over {
		return
	}
	r.open.Store(true)
	t.o.Log.Info("waiting for clients to hand their locks back", "target", t.o.Name, "clients", n, "window", t.o.ReplayWindow)
	t.done.Go(r.run)
}

// run waits for the window's end, evicts who is late and serves what was held.
func (r *recovery) run() {
	for {
		r.mu.Lock()
		over, late := r.w.tick(time.Now())
		over = over || r.w.over
		left := time.Until(r.w.deadline)
		r.mu.Unlock()
		if over {
			r.end(late)
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-r.wake:
		case <-r.t.stop:
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

func (r *recovery) end(late []*Export) {
	for _, x := range late {
		r.t.Evict(x, "it did not hand its locks back in time after the restart")
	}
	r.mu.Lock()
	r.evicted, r.ended = len(late), time.Now()
	r.open.Store(false) // Under mu, so that hold adds nothing any more.
	held := r.held
	r.held = nil
	for _, h := range held {
		r.done.Go(func() { r.serve(h) })
	}
	took := r.ended.Sub(r.started)
	r.mu.Unlock()
	r.t.o.Log.Info("clients have handed their locks back", "target", r.t.o.Name, "evicted", len(late), "took", took, "held", len(held))
}

// serve runs a request that was held. Each has a goroutine of its own: one may wait for what another one gives back.
func (r *recovery) serve(h heldCall) {
	if err := h.x.Serve(env.New(), h.c); err != rpc.ErrHeld {
		h.c.Finish(err)
	}
}

// close ends all that is held. The target is stopped.
func (r *recovery) close() {
	r.mu.Lock()
	held := r.held
	r.held, r.closed = nil, true
	r.mu.Unlock()
	for _, h := range held {
		h.c.Finish(status.Stopping)
	}
}

// hold keeps a request until the window ends, and returns false for one that is served now.
func (r *recovery) hold(x *Export, c *rpc.Call) bool {
	back := c.Header.Op == wire.OpEnqueue && handsBack(c)
	if serves(x.Kind, c.Header.Op, back) {
		if back {
			r.mu.Lock()
			r.locks++
			r.mu.Unlock()
		}
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		c.Finish(status.Stopping)
		return true
	}
	if !r.open.Load() {
		return false
	}
	r.held = append(r.held, heldCall{x, c})
	return true
}

// handsBack reports whether an enqueue is a replay.
func handsBack(c *rpc.Call) bool {
	var m wirepb.EnqueueRequest
	return c.Decode(&m) == nil && m.Flags&uint32(ldlm.Replay) != 0
}

// disconnected ends what is held of a connection that has ended: the client asks again.
func (r *recovery) disconnected(conn *rpc.Conn) {
	if !r.open.Load() {
		return
	}
	var drop []*rpc.Call
	r.mu.Lock()
	kept := r.held[:0]
	for _, h := range r.held {
		if h.c.Conn == conn {
			drop = append(drop, h.c)
		} else {
			kept = append(kept, h)
		}
	}
	clear(r.held[len(kept):])
	r.held = kept
	r.mu.Unlock()
	for _, c := range drop {
		c.Finish(status.NotConnected)
	}
}

// replayed notes that a client has handed everything back.
func (r *recovery) replayed(x *Export) { r.leave(x) }

// gone notes that an export has ended.
func (r *recovery) gone(x *Export) { r.leave(x) }

func (r *recovery) leave(x *Export) {
	if !r.open.Load() {
		return
	}
	r.mu.Lock()
	ended := r.w.leave(x)
	r.mu.Unlock()
	if ended {
		r.poke()
	}
}

func (r *recovery) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// register enters the window's parameter and state, under Lustre's names.
func (r *recovery) register(o *Options, base string) {
	if o.ReplayWindow <= 0 {
		return
	}
	o.Stats.Param(base+".recovery_time_hard", "Seconds that a target waits after a restart for its clients to hand their locks back, 1 to 3600.",
		func() string {
			r.mu.Lock()
			defer r.mu.Unlock()
			return strconv.FormatInt(int64(r.length/time.Second), 10)
		},
		func(text string) error {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil || n < 1 || n > 3600 {
				return fmt.Errorf("target: recovery_time_hard is a number of seconds from 1 to 3600, not %q", text)
			}
			r.mu.Lock()
			r.length = time.Duration(n) * time.Second
			r.w.deadline = r.started.Add(r.length)
			r.mu.Unlock()
			r.poke()
			return nil
		})
	o.Stats.Text(base+".recovery_status", "Where the target is in handing locks back after a restart.", r.text)
}

func (r *recovery) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	state, took := "COMPLETE", r.ended.Sub(r.started)
	switch {
	case r.w.total == 0:
		return "status: INACTIVE"
	case r.ended.IsZero():
		state, took = "RECOVERING", time.Since(r.started)
	}
	left := len(r.w.waiting)
	return fmt.Sprintf("status: %s\nrecovery_duration: %.1f\ncompleted_clients: %d/%d\nevicted_clients: %d\nreplayed_locks: %d\nqueued_requests: %d",
		state, took.Seconds(), r.w.total-left, r.w.total, r.evicted, r.locks, len(r.held))
}
