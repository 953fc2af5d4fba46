package rpc

import (
	"context"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// replayWindow is how many requests of a recovery are in flight at once.
const replayWindow = PriorSlots

// Recovery is one try to bring a target that was started again to where this client left it. Its requests go out on the
// connection that the try began with, and on no other: when that is lost so is the try, and the next connect begins a new one.
type Recovery struct {
	i  *Import
	ls *links
}

// errLost ends a recovery's requests with their connection.
var errLost = status.Errorf(status.NotConnected, "rpc: the connection of this recovery is lost")

// Instance is the target's, of this try.
func (v *Recovery) Instance() uint64 { return v.ls.instance }

// Do sends r and waits for its reply, as Import.Do does, but outside of all limits of requests in flight other than its own,
// and never again: status.NotConnected when the connection is lost. Operations that modify travel as replays (Replay) only.
// At most 8 requests are in flight; Do waits for its turn.
func (v *Recovery) Do(ctx context.Context, r *Request) error {
	f, h, err := v.prepare(ctx, r)
	if err != nil {
		return err
	}
	if !v.post(f, r, h) {
		v.i.table.free(f)
		return errLost
	}
	return v.wait(ctx, f, r)
}

func (v *Recovery) prepare(ctx context.Context, r *Request) (*flight, *wire.Header, error) {
	i := v.i
	n := bulkSize(r.Bulk)
	if n > wire.BulkMax || len(r.Into) > wire.BulkMax || r.Op.Modifies() {
		return nil, nil, status.Errorf(status.Invalid, "rpc: %v in a recovery, with bulk of %d bytes and room for %d", r.Op, n, len(r.Into))
	}
	index, err := i.restores.acquire(ctx, v.ls.ended)
	if err != nil {
		if ctx.Err() == nil {
			err = errLost
		}
		return nil, nil, err
	}
	f := i.prepare(index, r.Op, i.restores)
	if err := encodeBody(&f.buf, r.Body); err != nil {
		i.table.free(f)
		return nil, nil, err
	}
	h := &wire.Header{Op: r.Op, BulkLen: uint32(n)}
	if n > 0 {
		h.Flags, h.BulkSum = wire.FlagBulkSum, sumOf(r.Bulk)
	}
	return f, h, nil
}

// post sends a request. Replays travel with the bulk, all of them: so they keep their order.
func (v *Recovery) post(f *flight, r *Request, h *wire.Header) bool {
	l := v.ls.of(r.Op)
	if r.Op == wire.OpReplay {
		l = v.ls.bulk
	}
	_, ok := v.i.post(&posting{f: f, l: l, generation: v.ls.generation, into: r.Into, bulk: r.Bulk}, h)
	if ok {
		l.role.summon()
	}
	return ok
}

// wait waits for the reply and gives the flight back.
func (v *Recovery) wait(ctx context.Context, f *flight, r *Request) error {
	i := v.i
	select {
	case <-f.done:
	case <-ctx.Done():
		i.table.abandon(f)
		return ctx.Err()
	}
	defer i.table.free(f)
	if f.state == flightLost {
		return errLost
	}
	h := &f.hdr
	i.stats.received.Add(int64(h.BodyLen + h.BulkLen))
	switch h.Status {
	case status.OK:
		r.N, r.Transno, r.LastCommitted, r.Instance = f.n, h.Transno, h.LastCommitted, v.ls.instance
		if h.Flags&wire.FlagBulkSum != 0 && h.BulkLen > 0 && wire.Sum(r.Into[:f.n]) != h.BulkSum {
			return status.Checksum
		}
		return i.take(f, r)
	case status.NotConnected, status.Stopping, status.Checksum:
		// What arrived damaged is not refused: the next try sends it again.
		v.ls.close(status.Errorf(status.NotConnected, "rpc: the target says: %v", h.Status))
		return errLost
	case status.Evicted:
		i.mu.Lock()
		i.want.evicted = true
		i.mu.Unlock()
		wake(i.kick)
		return errLost
	}
	return errorOf(h.Status, f.reply)
}

// Replay is one request of a replay.
type Replay struct {
	// Msg says what it was: all its fields.
	Msg wirepb.ReplayRequest
	// Bulk goes with it; it must not change until the request is answered.
	Bulk [][]byte
}

// Replay sends requests of then, in the order in which next gives them, which is that of their transnos, 8 at a time. next
// fills q, whose old content it replaces, and returns false after the last. answered gets what became of each: nil, or why the target
// has refused it; one that the loss of the connection leaves open is not told of. Neither is called by two goroutines at once.
//
// It returns when all are answered; status.NotConnected when the connection is lost, ctx's error.
func (v *Recovery) Replay(ctx context.Context, next func(q *Replay) bool, answered func(q *Replay, err error)) error {
	var mu sync.Mutex // the order of sending
	var end error     // guarded by mu
	over := false     // guarded by mu
	one := func(q *Replay, r *Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if over || !next(q) {
			over = true
			return false
		}
		r.Body, r.Bulk = &q.Msg, q.Bulk
		f, h, err := v.prepare(ctx, r)
		if err == nil && !v.post(f, r, h) {
			v.i.table.free(f)
			err = errLost
		}
		if err == nil {
			mu.Unlock()
			err = v.wait(ctx, f, r)
			mu.Lock()
		}
		if err != nil && (ctx.Err() != nil || v.ls.lost()) {
			over = true
			if end == nil {
				end = errLost
				if ctx.Err() != nil {
					end = ctx.Err()
				}
			}
			return false
		}
		answered(q, err)
		return true
	}
	var g sync.WaitGroup
	for range replayWindow {
		g.Go(func() {
			q, r := new(Replay), &Request{Op: wire.OpReplay}
			for one(q, r) {
			}
		})
	}
	g.Wait()
	return end
}

// lost reports whether one of the connections has ended.
func (ls *links) lost() bool { return ls.control.isClosed() || ls.bulk.isClosed() }

// replays reports whether the import takes part in a recovery: it has something to replay or to hand back.
func (o *ImportOptions) replays() bool { return o.Replay || o.ReplayMore != nil || o.Restore != nil }

// replay is the state REPLAY: what was answered and is not on the target's disk goes out again.
func (i *Import) replay(ctx context.Context, v *Recovery, after wire.Transno) error {
	// Answers that came over the lost connection are taken by their callers before: what they leave behind is to be replayed.
	if err := i.table.settle(ctx); err != nil {
		return err
	}
	start, refused := time.Now(), 0
	var entries []logRef
	if i.kept != nil {
		entries = i.kept.pin(after)
	}
	byTransno := make(map[wire.Transno]logRef, replayWindow)
	rest := entries
	next := func(q *Replay) bool {
		if len(rest) == 0 {
			return false
		}
		ref := rest[0]
		rest = rest[1:]
		byTransno[ref.e.transno] = ref
		q.Msg = wirepb.ReplayRequest{
			Op: uint32(ref.e.op), Xid: uint64(ref.e.xid), Slot: ref.e.slot, Transno: uint64(ref.e.transno),
			Request: ref.body(), Reply: ref.reply(),
		}
		return true
	}
	err := v.Replay(ctx, next, func(q *Replay, err error) {
		i.stats.replays.Inc()
		ref := byTransno[wire.Transno(q.Msg.Transno)]
		delete(byTransno, ref.e.transno)
		i.replayed.Store(q.Msg.Transno)
		if err != nil {
			refused++
			ref.e.refused = true
			i.refuse(ref, err)
		}
	})
	if err == nil && i.o.ReplayMore != nil {
		err = i.o.ReplayMore(ctx, v, after)
	}
	if v.goesOn(ctx, "replay", err) {
		err = v.done(ctx, 1)
	}
	if err == nil && len(entries) > 0 {
		i.log.Info("requests replayed", "requests", len(entries), "refused", refused, "took", time.Since(start))
	}
	return err
}

// refuse tells of a request that is lost for good.
func (i *Import) refuse(ref logRef, err error) {
	i.stats.refused.Inc()
	i.log.Warn("a change that was answered is lost: the target cannot repeat it", "op", ref.e.op.String(),
		"transno", uint64(ref.e.transno), "error", err)
	if i.o.OnRefused != nil {
		i.o.OnRefused(ref.e.op, ref.body(), err)
	}
}

// restore is the state REPLAY_LOCKS.
func (i *Import) restore(ctx context.Context, v *Recovery) error {
	if i.o.Restore == nil {
		return nil
	}
	if err := i.o.Restore(ctx, v); !v.goesOn(ctx, "restore", err) {
		return err
	}
	return nil
}

// await is the state REPLAY_WAIT. When it ends, all that was replayed is on the target's disk.
func (v *Recovery) await(ctx context.Context) error {
	err := v.done(ctx, 2)
	if err == nil && v.i.kept != nil {
		v.i.kept.clear()
	}
	return err
}

// done tells the target that a stage has ended and waits until every client's has.
func (v *Recovery) done(ctx context.Context, stage uint32) error {
	err := v.Do(ctx, &Request{Op: wire.OpReplayDone, Body: &wirepb.ReplayDoneRequest{Stage: stage}})
	if v.goesOn(ctx, "replay_done", err) {
		return nil
	}
	return err
}

// goesOn reports whether the recovery goes on after a part of it ended with err. While the connection stands an error is the
// target's word, or a hook's: another try would meet it again.
func (v *Recovery) goesOn(ctx context.Context, part string, err error) bool {
	if err != nil && (ctx.Err() != nil || v.ls.lost()) {
		return false
	}
	if err != nil {
		v.i.log.Error("a part of the recovery failed", "part", part, "error", err)
	}
	return true
}

// unreplayed gives up what an instance does not want any more: it has no recovery window, and has lost what is above after.
func (i *Import) unreplayed(ctx context.Context, after wire.Transno) {
	if i.kept == nil || i.table.settle(ctx) != nil {
		return
	}
	for _, ref := range i.kept.pin(after) {
		i.refuse(ref, status.Errorf(status.IO, "rpc: the target was started again without a recovery window"))
	}
	i.kept.clear()
}
