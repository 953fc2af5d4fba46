package osc

import (
	"context"
	"sync"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// This file hands locks back to an OST that was started again. Dirty data outlives the restart under them. Everything else
// that this client sends meanwhile is held by the OST; so these requests take slots of the reserve, which held ones cannot
// fill. What carried the lock's old handle is refused then, and sent again with the new one.

// replaySenders is how many locks are handed back at a time: below rpc.PriorSlots, so that cancels still pass.
const replaySenders = 4

// replay is the handing back that runs, if one does.
type replay struct {
	mu   sync.Mutex
	stop context.CancelFunc // guarded by mu; nil before the first
	wg   sync.WaitGroup
}

// handBack begins to hand all locks back; a run for an earlier start of the OST is given up. It does not wait.
func (c *OSC) handBack() {
	r := &c.replay
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-c.life.done:
		return
	default:
	}
	if r.stop != nil {
		r.stop()
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.wg.Go(func() { c.replayLocks(ctx) })
}

// end stops the handing back and waits for it.
func (r *replay) end() {
	r.mu.Lock()
	if r.stop != nil {
		r.stop()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

func (c *OSC) replayLocks(ctx context.Context) {
	var held []ldlm.LockInfo
	if c.locks != nil {
		held = c.locks.Held(nil)
	}
	var g sync.WaitGroup
	next := make(chan *ldlm.LockInfo)
	for range min(replaySenders, len(held)) {
		g.Go(func() {
			for l := range next {
				c.replayLock(ctx, l)
			}
		})
	}
	for i := range held {
		next <- &held[i]
	}
	close(next)
	g.Wait()
	err := ctx.Err()
	if err == nil {
		err = c.do(ctx, &rpc.Request{Op: wire.OpReplayDone})
	}
	if err != nil && ctx.Err() == nil {
		c.log.Warn("the target was not told that all locks are handed back", "error", err)
		return
	}
	c.log.Info("locks are handed back", "locks", len(held))
}

func (c *OSC) replayLock(ctx context.Context, l *ldlm.LockInfo) {
	if ctx.Err() != nil {
		return
	}
	var m wirepb.EnqueueRequest
	var reply wirepb.EnqueueReply
	wire.PutEnqueue(&m, &ldlm.Request{Res: l.Res, Mode: l.Desc.Mode, Extent: l.Desc.Extent, GID: l.Desc.GID, Flags: ldlm.Replay}, l.Handle)
	err := c.do(ctx, &rpc.Request{Op: wire.OpEnqueue, Body: &m, Reply: &reply, Reserve: true})
	if ctx.Err() != nil { // another start, or the end: nothing is known of this one's answer
		return
	}
	c.locks.Restored(l.Handle, ldlm.Handle(reply.Lock), err)
}
