package lockcache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// flockShard is a shard number that the mirror does not have: handles of waiting flocks are no locks of it.
const flockShard = ldlm.Handle(0xff) << 56

// Flock takes a flock or fcntl lock of an application, and waits for it with r.Wait. The server keeps these locks; the
// client caches none. r.Op is FlockShared or FlockExclusive; r's owner need be unique within this client only.
//
// Errors: status.Again without Wait, status.Deadlock, status.NoMemory, status.IO when this client was evicted meanwhile,
// ctx's error; then the lock was not taken. An end of ctx is first told to the server.
func (c *Cache) Flock(ctx context.Context, r *ldlm.FlockRequest) error {
	for try := 1; ; try++ {
		err := c.flock(ctx, r)
		switch {
		case err == nil, c.ctx.Err() == nil && ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return err
		case !errors.Is(err, errAgain):
			return fmt.Errorf("lockcache: application's lock on %v: %w", r.Res.FID(), err)
		case try == enqueueTries:
			return errEvicted
		}
	}
}

func (c *Cache) flock(ctx context.Context, r *ldlm.FlockRequest) error {
	if c.ctx.Err() != nil {
		return errClosed
	}
	own := flockShard | ldlm.Handle(c.flocks.Add(1))&(1<<56-1)
	w := c.newWaiter(&Request{Res: r.Res, Extent: r.Range.Extent})
	defer c.release(w)
	w.flock = true
	w.req.ResetVT()
	wire.PutFlock(&w.req, r, own)
	w.send(wire.OpEnqueue)
	w.rpc.Answered = c.mine.enqueued
	c.life.RLock()
	c.beginLocked(own, w)
	c.life.RUnlock()
	err := c.do(ctx, &w.rpc)
	if errors.Is(err, status.Again) {
		c.mine.denied(&w.req)
	}
	if err == nil && w.reply.Waiting {
		c.figs.waits.Inc()
		if c.park(own, w) {
			select {
			case <-w.done:
				return w.err
			case <-ctx.Done():
				err = ctx.Err()
			case <-c.ctx.Done():
				err = errClosed
			}
		} else {
			// The wish is made once more. Should the new start know of this one and grant it, its completion is no news.
			err = errAgain
			c.withdraw(own)
			c.granted.add(own)
		}
	}
	if err != nil && uncertain(ctx, err) && c.withdraw(own) && w.reply.Waiting {
		// It had been granted, or denied, before the withdrawal came; the completion AST says which.
		select {
		case <-w.done:
			return w.err
		case <-c.ctx.Done():
			err = errClosed
		}
	}
	if c.waiters.take(own) == nil {
		<-w.done
		if w.reply.Waiting || w.err == nil {
			return w.err
		}
	}
	return err
}

// withdraw ends a wish and waits for the server's word, because a range just taken cannot be told from one held before. It
// reports whether the wish had ended already.
func (c *Cache) withdraw(own ldlm.Handle) bool {
	var reply wirepb.CancelReply
	r := rpc.Request{Op: wire.OpCancel, Body: &wirepb.CancelRequest{Waiting: []uint64{uint64(own)}}, Reply: &reply}
	if err := c.do(c.ctx, &r); err != nil {
		if c.ctx.Err() == nil {
			c.log.Warn("an interrupted wish for an application's lock could not be withdrawn", "error", err)
		}
		return false
	}
	c.observe(reply.Slv, reply.LockLimit)
	return slices.Contains(reply.Ended, uint64(own))
}

// Unflock gives a range of an owner up. It never waits for a lock.
func (c *Cache) Unflock(ctx context.Context, r *ldlm.FlockRequest) error {
	var m wirepb.FlockRequest
	wire.PutFlockRequest(&m, r, false)
	if err := c.do(ctx, &rpc.Request{Op: wire.OpFlock, Body: &m, Answered: c.mine.unlocked}); err != nil {
		return fmt.Errorf("lockcache: giving up an application's lock on %v: %w", r.Res.FID(), err)
	}
	return nil
}

// FlockHolder is a lock in the way of another.
type FlockHolder struct {
	Range ldlm.FlockRange
	// Same: its holder is this client, where Range.PID means something.
	Same bool
}

// TestFlock returns a lock that is in the way of r (F_GETLK), and false when there is none.
func (c *Cache) TestFlock(ctx context.Context, r *ldlm.FlockRequest) (FlockHolder, bool, error) {
	var m wirepb.FlockRequest
	var reply wirepb.FlockReply
	wire.PutFlockRequest(&m, r, true)
	if err := c.do(ctx, &rpc.Request{Op: wire.OpFlock, Body: &m, Reply: &reply}); err != nil {
		return FlockHolder{}, false, fmt.Errorf("lockcache: asking for an application's lock on %v: %w", r.Res.FID(), err)
	}
	if !reply.Held {
		return FlockHolder{}, false, nil
	}
	h := FlockHolder{Same: reply.Same, Range: ldlm.FlockRange{PID: reply.Pid, Write: reply.Write}}
	h.Range.Start, h.Range.End = reply.Start, reply.End
	if h.Range.Empty() {
		return FlockHolder{}, false, status.Errorf(status.Protocol, "lockcache: a lock of no bytes is in the way on %v", r.Res.FID())
	}
	return h, true, nil
}

// flocksKept is how many granted wishes are remembered: a completion AST comes again only when its connection was lost
// before the answer arrived, and a connection carries no more than rpc.CallbacksMax at once.
const flocksKept = 256

// grantedFlocks remembers the last wishes that a completion AST granted, because one that comes twice, and is answered with
// BadHandle, would take the lock away.
type grantedFlocks struct {
	mu   sync.Mutex
	ring [flocksKept]ldlm.Handle // guarded by mu
	n    int                     // guarded by mu
}

func (g *grantedFlocks) add(own ldlm.Handle) {
	g.mu.Lock()
	g.ring[g.n%flocksKept] = own
	g.n++
	g.mu.Unlock()
}

func (g *grantedFlocks) has(own ldlm.Handle) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Contains(g.ring[:], own)
}
