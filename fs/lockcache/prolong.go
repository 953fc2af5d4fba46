package lockcache

import (
	"sync"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// called holds the called-back locks that have not gone back, to be kept alive: those still pinned, because their holder
// may wait at another target, and those whose Revoke runs.
type called struct {
	mu    sync.Mutex
	locks map[ldlm.Handle]calledLock // by own handle; guarded by mu
	part  map[ldlm.Handle]struct{}   // locks whose conversion is on its way; guarded by mu
}

type calledLock struct {
	remote      ldlm.Handle
	first, last time.Duration // called back; prolonged last
	given       bool          // the cap is reached: no more prolongs
}

func (k *called) init() {
	k.locks, k.part = map[ldlm.Handle]calledLock{}, map[ldlm.Handle]struct{}{}
}

func (k *called) add(own, remote ldlm.Handle, now time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, there := k.locks[own]; !there {
		k.locks[own] = calledLock{remote: remote, first: now, last: now}
	}
}

func (k *called) forget(own ldlm.Handle) {
	k.mu.Lock()
	delete(k.locks, own)
	k.mu.Unlock()
}

// take forgets a lock and returns the server's handle, 0 when it was not called back.
func (k *called) take(own ldlm.Handle) ldlm.Handle {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.locks[own]
	delete(k.locks, own)
	return l.remote
}

// convert notes that a conversion begins or has ended.
func (k *called) convert(own ldlm.Handle, on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if on {
		k.part[own] = struct{}{}
	} else {
		delete(k.part, own)
	}
}

func (k *called) converting(own ldlm.Handle) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.part[own]
	return ok
}

func (k *called) clear() {
	k.mu.Lock()
	clear(k.locks)
	clear(k.part)
	k.mu.Unlock()
}

func (k *called) len() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return int64(len(k.locks))
}

// prolongBatch bounds the handles of one PROLONG.
const prolongBatch = 512

// due appends the server's handles of locks that were not prolonged for a while, the owners' in own beside them. Locks called
// back longer than most ago are no longer kept alive: the server evicts this client, which is stuck.
func (k *called) due(now, each, most time.Duration, own []ldlm.Handle, remote []uint64) ([]ldlm.Handle, []uint64, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	stuck := 0
	for h, l := range k.locks {
		switch {
		case l.given || now-l.last < each || len(own) == prolongBatch:
			continue
		case now-l.first > most:
			l.given = true
			stuck++
		default:
			l.last = now
			own, remote = append(own, h), append(remote, uint64(l.remote))
		}
		k.locks[h] = l
	}
	return own, remote, stuck
}

// prolong keeps called-back locks alive that are due.
func (c *Cache) prolong(now time.Duration) {
	each := c.ns.Limits().LockTimeout / 3
	own, remote, stuck := c.called.due(now, each, c.set.prolongMax(c.ns.Limits().LockTimeout), nil, nil)
	if stuck > 0 {
		c.figs.stuck.Add(int64(stuck))
		c.log.Error("called-back locks are still used and are kept alive no longer; the target will evict this client",
			"locks", stuck)
	}
	if len(own) == 0 {
		return
	}
	c.spawn(func() {
		var reply wirepb.ProlongReply
		r := rpc.Request{Op: wire.OpProlong, Body: &wirepb.ProlongRequest{Locks: remote}, Reply: &reply}
		if err := c.do(c.ctx, &r); err != nil {
			c.log.Debug("called-back locks could not be prolonged", "locks", len(own), "error", err)
			return
		}
		c.figs.prolongs.Add(int64(len(own)))
		c.observe(reply.Slv, reply.LockLimit)
		for _, u := range reply.Unknown {
			for i, h := range remote {
				if h == u {
					c.called.forget(own[i])
				}
			}
		}
	})
}
