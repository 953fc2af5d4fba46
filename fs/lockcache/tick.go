package lockcache

import (
	"context"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
)

// run is the cache's goroutine: it does what goes by time. It waits for no request and for no Revoke.
func (c *Cache) run() {
	ticks := c.o.Ticks
	if ticks == nil {
		t := time.NewTicker(min(longestTick, c.o.LockTimeout/6, c.o.EvictTime/12))
		defer t.Stop()
		ticks = t.C
	}
	var recalc time.Duration
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.kick:
			c.trim()
		case <-ticks:
			now := c.look()
			c.prolong(now)
			c.listen(now)
			if period := c.set.period(); now-recalc >= period {
				c.figs.rates(c.ns.Counts(), now-recalc)
				recalc = now
				c.hints.expire(now)
				c.trim()
			}
		}
	}
}

// wake puts the one token in.
func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// trim gives back what the LRU does not want, in a goroutine of which there is one at most.
func (c *Cache) trim() {
	if c.ns.UnusedCount() == 0 || !c.trimming.CompareAndSwap(false, true) {
		return
	}
	c.spawn(func() {
		c.unuse(c.ctx, WhyUnused, func(to []ldlm.Cancel) []ldlm.Cancel {
			p := c.set.policy()
			return c.ns.Trim(c.now(), &p, to)
		})
		c.trimming.Store(false)
	})
}

// Clear gives all unused locks back, as writing "clear" to lru_size does, and waits until the server has them or ctx ends.
// It returns how many there were.
func (c *Cache) Clear(ctx context.Context) (int, error) {
	n := c.unuse(ctx, WhyClear, c.ns.TrimAll)
	if ctx.Err() != nil {
		return n, ctx.Err()
	}
	select {
	case <-c.cancels.flushed():
		return n, nil
	case <-ctx.Done():
		return n, ctx.Err()
	case <-c.ctx.Done():
		return n, errClosed
	}
}

// unuse takes batches of unused locks from next until there is none, and lets each batch be revoked before the next.
func (c *Cache) unuse(ctx context.Context, why Why, next func([]ldlm.Cancel) []ldlm.Cancel) int {
	total := 0
	list := make([]ldlm.Cancel, 0, c.set.batch.Load())
	for ctx.Err() == nil && c.ctx.Err() == nil {
		list = next(list[:0])
		if len(list) == 0 {
			break
		}
		b := newBatch(len(list))
		for i := range list {
			l := &list[i]
			j := job{act: actCancel, why: why, own: l.Handle, remote: l.Remote, res: l.Res, desc: l.Desc,
				data: l.Data, bits: bitsOf(l.Res, l.Desc.Bits), batch: b}
			j.leave = c.leaving.add(&j)
			c.others.push(&j)
		}
		total += len(list)
		select {
		case <-b.over:
		case <-ctx.Done():
		}
	}
	return total
}

// observe enters what a reply says of the server's pool.
func (c *Cache) observe(slv, limit uint64) {
	if slv != 0 && c.set.observe(slv, limit) {
		wake(c.kick)
	}
}

// listen watches whether the target is heard.
func (c *Cache) listen(now time.Duration) {
	heard := time.Duration(c.heard.Load())
	if c.o.Heard != nil {
		heard = max(heard, c.o.Heard().Sub(c.start))
	}
	quiet, limit := now-heard, time.Duration(c.evict.Load())/2
	switch {
	case c.silent.Load():
		if quiet < limit {
			c.silent.Store(false)
			c.usable.Store(c.ctx.Err() == nil)
			c.log.Info("the target is heard again; its locks are used again")
			return
		}
	case quiet >= limit && c.ns.LockCount() > 0:
		c.silent.Store(true)
		c.usable.Store(false)
		c.figs.silences.Inc()
		c.log.Warn("the target has not been heard; its locks are not used until it is", "silent", quiet)
		c.spawn(func() { c.o.Owner.Silent(c.ctx) })
	}
	if quiet >= limit/3 && c.ns.LockCount() > 0 && c.asking.CompareAndSwap(false, true) {
		c.spawn(func() {
			defer c.asking.Store(false)
			ctx, cancel := context.WithTimeout(c.ctx, limit)
			defer cancel()
			if err := c.do(ctx, &rpc.Request{Op: wire.OpPing}); err != nil {
				c.log.Debug("no answer to a ping", "error", err)
			}
		})
	}
}
