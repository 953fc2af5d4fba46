package target

import (
	"context"
	"errors"
	"slices"
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

// recovery runs the replay window of a target that has been started again. Its clients replay the requests whose changes may be lost
// (REPLAY), hand back opens and locks (REOPEN, ENQUEUE with Replay), and end both stages with REPLAY_DONE. Until each of them has, or
// time is up, nobody else's request is served that could meet one of those: it is held, with no worker. Who has not come by then is
// evicted first.
type recovery struct {
	t    *Target
	open atomic.Bool // the window is open, or ends
	wake chan struct{}
	done sync.WaitGroup // calls that were held and end now
	// point is the replay point: what clients are told as last_committed while the window is open.
	point wire.Transno
	// first is the first transno of this start: what is replayed lies below it.
	first wire.Transno
	now   current // of the goroutine that runs replays

	mu      sync.Mutex
	w       window    // guarded by mu
	started time.Time // guarded by mu
	ended   time.Time // zero while it is open; guarded by mu
	evicted int       // who left before it had finished; guarded by mu
	// completed is how many had finished when the window ended.
	completed int          // guarded by mu
	held      []heldCall   // until the window is over; guarded by mu
	stages    []stageCall  // until a stage is; guarded by mu
	locks     int          // handed back; guarded by mu
	ran       int          // replays carried out; guarded by mu
	refused   refusedCalls // guarded by mu
	missed    bool         // a client was evicted with what it had to replay; guarded by mu
	aborted   bool         // guarded by mu
	closed    bool         // guarded by mu
}

type heldCall struct {
	x *Export
	c *rpc.Call
}

// stageCall is a REPLAY_DONE that is answered when every client has ended stage at.
type stageCall struct {
	heldCall
	at stage
}

// begin readies the window: it is open if an earlier start has left clients. start begins to run it.
func (r *recovery) begin(t *Target) {
	r.t, r.wake = t, make(chan struct{}, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.w.soft, r.w.hard, r.started = t.o.ReplayWindow, t.o.ReplayWindow*hardFactor, time.Now()
	if r.w.soft <= 0 {
		r.w.at = stageDone
		return
	}
	r.w.open(r.started, r.point, t.Exports())
	r.open.Store(!r.w.over())
}

// hardFactor is how much longer than soft the hard limit is: Lustre has 300 s and 900 s.
const hardFactor = 3

// start runs the window. Without one, what follows a window is done before it returns.
func (r *recovery) start() error {
	if r.open.Load() {
		r.t.o.Log.Info("waiting for clients to replay", "target", r.t.o.Name, "window", r.t.o.ReplayWindow, "point", r.point)
		r.t.done.Go(r.run)
		return nil
	}
	if r.t.o.EndReplay != nil {
		if err := r.t.o.EndReplay(); err != nil {
			return err
		}
	}
	if r.t.o.Recovered != nil {
		r.t.o.Recovered()
	}
	return nil
}

// run does what the window decides, until it is over.
func (r *recovery) run() {
	e := env.New()
	for {
		select {
		case <-r.t.stop:
			return
		default:
		}
		r.mu.Lock()
		now := time.Now()
		rp, again := r.w.next()
		var late []*Export
		if rp == nil {
			if r.w.advance(now) {
				r.answerLocked(r.w.at)
			}
			if late = r.w.late(now); r.aborted {
				late = r.awayLocked()
			}
		}
		over, left := r.w.over(), time.Until(r.w.deadline)
		r.mu.Unlock()
		switch {
		case rp != nil:
			r.carryOut(e, rp, again)
		case len(late) > 0:
			r.evict(late)
		case over:
			r.end()
			return
		default:
			r.sleep(left)
		}
	}
}

// sleep waits until something has come, for at most d.
func (r *recovery) sleep(d time.Duration) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.wake:
	case <-r.t.stop:
	}
}

// awayLocked is who has not handed everything back and has no connection.
func (r *recovery) awayLocked() (all []*Export) {
	for x, m := range r.w.members {
		if m.at != stageDone && !x.Connected() {
			all = append(all, x)
		}
	}
	return all
}

func (r *recovery) evict(late []*Export) {
	for _, x := range late {
		r.t.Evict(x, "it did not replay or hand its locks back in time after the restart")
		r.gone(x) // An eviction that another one has begun ends later.
	}
}

// answerLocked answers who waits for the end of the stages below at, but for the last one.
func (r *recovery) answerLocked(at stage) {
	if at == stageDone {
		at = stageLocks
	}
	r.stages = slices.DeleteFunc(r.stages, func(s stageCall) bool {
		if s.at >= at {
			return false
		}
		r.finish(s.c, nil)
		return true
	})
}

// finish answers a held call without waiting for its connection.
func (r *recovery) finish(c *rpc.Call, err error) {
	r.done.Go(func() { c.Finish(err) })
}

// end closes the window: what was replayed is on disk before anybody is told, or new work begins.
func (r *recovery) end() {
	t := r.t
	if t.o.EndReplay != nil {
		if err := t.o.EndReplay(); err != nil {
			t.o.Log.Error("at the end of recovery", "target", t.o.Name, "err", err) // What is left is there at the next start.
		}
	}
	if err := r.settle(); err != nil {
		t.o.Log.Error("ending the replay window", "target", t.o.Name, "err", err)
		r.close()
		return
	}
	r.mu.Lock()
	r.ended = time.Now()
	r.open.Store(false) // Under mu, so that hold adds nothing any more.
	held, stages := r.held, r.stages
	r.held, r.stages = nil, nil
	for _, s := range stages {
		r.finish(s.c, nil)
	}
	for _, h := range held {
		r.done.Go(func() { r.serve(h) })
	}
	took, evicted, ran, refused := r.ended.Sub(r.started), r.evicted, r.ran, r.refused.count
	r.completed = r.w.count(stageDone)
	r.refused.byTransno, r.w.members = nil, nil
	r.mu.Unlock()
	t.o.Log.Info("recovered", "target", t.o.Name, "took", took, "evicted", evicted, "replayed", ran, "refused", refused, "held", len(held))
	if t.o.Recovered != nil {
		t.o.Recovered()
	}
}

// settle brings what was replayed to disk, and then the end of the window.
func (r *recovery) settle() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.done.Go(func() {
		select {
		case <-r.t.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	if r.t.o.Flush != nil {
		if err := r.t.o.Flush(ctx); err != nil {
			return err
		}
	}
	n, err := r.t.dropPoint()
	if err != nil {
		return err
	}
	return r.t.o.Device.WaitCommitted(ctx, n)
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
	r.closed = true
	calls := r.takeLocked(func(heldCall) bool { return true })
	r.mu.Unlock()
	for _, c := range calls {
		c.Finish(status.Stopping)
	}
}

// takeLocked takes out the calls that which picks, replays and the ends of stages too.
func (r *recovery) takeLocked(which func(heldCall) bool) (calls []*rpc.Call) {
	pick := func(h heldCall) bool {
		if which(h) {
			calls = append(calls, h.c)
			return true
		}
		return false
	}
	r.held = slices.DeleteFunc(r.held, pick)
	r.stages = slices.DeleteFunc(r.stages, func(s stageCall) bool { return pick(s.heldCall) })
	for _, m := range r.w.members {
		m.queue = slices.DeleteFunc(m.queue, func(q *replay) bool { return pick(heldCall{q.x, q.call}) })
	}
	return calls
}

// hold takes a request that has come during the window, and returns rpc.ErrHeld for one that is answered later, errServe for one that
// is served now.
func (r *recovery) hold(x *Export, c *rpc.Call) error {
	op := c.Header.Op
	switch op {
	case wire.OpReplay:
		return r.replay(x, c)
	case wire.OpReplayDone:
		return r.stageEnds(x, c)
	}
	back := op == wire.OpEnqueue && handsBack(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case serves(x.Kind, op, back):
		if back {
			r.locks++
		}
		return errServe
	case r.closed:
		return status.Stopping
	case !r.open.Load():
		return errServe
	}
	r.held = append(r.held, heldCall{x, c})
	return rpc.ErrHeld
}

// errServe is hold's word for a request that is served now.
var errServe = errors.New("target: served now")

// stageEnds takes a REPLAY_DONE. Who ends both stages in one, as clients of OSTs that keep no requests do, is answered at once.
func (r *recovery) stageEnds(x *Export, c *rpc.Call) error {
	var m wirepb.ReplayDoneRequest
	if err := c.Decode(&m); err != nil {
		return err
	}
	if m.Stage > 2 {
		return status.Errorf(status.Protocol, "%s: the end of stage %d of a recovery", r.t.o.Name, m.Stage)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return status.Stopping
	}
	ended := stageLocks
	if m.Stage == 1 {
		ended = stageReplay
	}
	r.w.end(time.Now(), x, ended)
	r.poke()
	if m.Stage == 0 || ended < r.w.at && !r.w.over() || !r.open.Load() {
		return nil
	}
	r.stages = append(r.stages, stageCall{heldCall{x, c}, ended})
	return rpc.ErrHeld
}

// handsBack reports whether an enqueue is a replay.
func handsBack(c *rpc.Call) bool {
	var m wirepb.EnqueueRequest
	return c.Decode(&m) == nil && m.Flags&uint32(ldlm.Replay) != 0
}

// disconnected ends what is held of a connection that has ended: the client asks again.
func (r *recovery) disconnected(x *Export, conn *rpc.Conn) {
	if conn != nil {
		r.drop(x, func(h heldCall) bool { return h.c.Conn == conn })
	}
}

// reconnected ends what is held of a client's earlier generations. It replays again what it has no answer for.
func (r *recovery) reconnected(x *Export) {
	r.drop(x, func(h heldCall) bool { return h.x == x && h.c.Header.Generation != x.Generation() })
}

// gone notes that an export has ended.
func (r *recovery) gone(x *Export) {
	r.drop(x, func(h heldCall) bool { return h.x == x })
	if r.open.Load() {
		r.mu.Lock()
		if m := r.w.members[x]; m != nil && m.at != stageDone {
			r.evicted++
			r.missed = r.missed || m.at == stageReplay
		}
		r.w.leave(x)
		r.mu.Unlock()
		r.poke()
	}
}

// drop ends the held calls of a client that which picks. Its connection has changed.
func (r *recovery) drop(x *Export, which func(heldCall) bool) {
	if !r.open.Load() {
		return
	}
	r.mu.Lock()
	r.w.heard(time.Now(), x)
	calls := r.takeLocked(which)
	r.mu.Unlock()
	for _, c := range calls {
		c.Finish(status.NotConnected)
	}
}

func (r *recovery) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// committed is the last_committed that an export is told.
func (r *recovery) committed(x *Export) wire.Transno {
	if x.Kind == rpc.KindClient && r.open.Load() {
		return r.point
	}
	return r.t.o.Committed()
}
