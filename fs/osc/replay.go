package osc

import (
	"context"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// This file brings an OST that was started again to where this client left it: what is kept is said again in the order of transnos,
// then the locks are handed back. Dirty data outlives the restart under them. Nothing else of this client flows meanwhile. What
// carried a lock's old handle is refused later, and sent again with the new one.

// restoreSenders is how many locks are handed back at a time.
const restoreSenders = 4

// recovering is the recovery that runs, if one does.
type recovering struct {
	mu   sync.Mutex
	stop context.CancelFunc // guarded by mu; nil when none runs
	over bool               // guarded by mu: the OSC has ended
	wg   sync.WaitGroup
}

// begin enters a recovery, whose end is to be called at its end; ok is false when the OSC has ended.
func (r *recovering) begin(ctx context.Context) (_ context.Context, end func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return nil, nil, false
	}
	ctx, stop := context.WithCancel(ctx)
	r.stop = stop
	r.wg.Add(1)
	return ctx, func() { stop(); r.wg.Done() }, true
}

// end stops the recovery and waits for it.
func (r *recovering) end() {
	r.mu.Lock()
	r.over = true
	if r.stop != nil {
		r.stop()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// Replay says again what an earlier start of the OST had answered and the one that runs may have lost, in the order of transnos: for
// rpc.ImportOptions.ReplayMore. What is refused is dropped, and its file is told. All that is replayed stays kept until
// last_committed covers it. The error is the connection's loss or ctx's end; the next connection begins anew.
func (c *OSC) Replay(ctx context.Context, r *rpc.Recovery, after wire.Transno) error {
	ctx, end, ok := c.recovering.begin(ctx)
	if !ok {
		return nil
	}
	defer end()
	list := c.toReplay(after)
	if len(list) == 0 {
		return nil
	}
	start, at, bytes := time.Now(), 0, 0
	sent := make(map[uint64]*kept, replayedAtOnce)
	var refused []*kept
	next := func(q *rpc.Replay) bool {
		if at == len(list) {
			return false
		}
		k := list[at]
		at++
		sent[k.transno] = k
		bytes += c.fillReplay(q, k)
		return true
	}
	err := r.Replay(ctx, next, func(q *rpc.Replay, err error) {
		k := sent[q.Msg.Transno]
		delete(sent, q.Msg.Transno)
		if err != nil {
			refused = append(refused, k)
			c.log.Warn("the target does not take back what it had answered", "op", k.op.String(), "object", k.obj.id,
				"transno", k.transno, "error", err)
		}
	})
	c.refuse(refused)
	if err == nil {
		c.log.Info("written data replayed", "requests", len(list), "bytes", bytes, "refused", len(refused), "took", time.Since(start))
	}
	return err
}

// replayedAtOnce is about how many replays are on their way.
const replayedAtOnce = 16

// toReplay lists what is kept above after, in the order of transnos. It stays until the recovery has ended: nothing is dropped
// while the OST tells no newer last_committed.
func (c *OSC) toReplay(after wire.Transno) []*kept {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*kept, 0, c.kept.count)
	for k := c.kept.oldest; k != nil; k = k.next {
		if k.transno > uint64(after) && !k.lost && k.instance != c.kept.instance {
			list = append(list, k)
		}
	}
	return list
}

// fillReplay makes q the replay of k, and returns the bytes of its bulk.
func (c *OSC) fillReplay(q *rpc.Replay, k *kept) (n int) {
	body := q.Msg.Request[:0]
	q.Bulk = q.Bulk[:0]
	if k.op == wire.OpWrite {
		var id wirepb.Object
		m := wirepb.WriteRequest{
			Object: k.obj.name(&id), Offset: k.start, MtimeSec: k.mtime.Sec, MtimeNsec: k.mtime.Nsec,
			Uid: k.owner.UID, Gid: k.owner.GID, Project: k.owner.Project,
		}
		body = encode(body, &m)
		for _, p := range k.pages {
			q.Bulk = append(q.Bulk, p.bytes(p.start, p.end))
			n += int(p.end - p.start)
		}
	} else {
		body = append(body, k.body...)
	}
	q.Msg.Op, q.Msg.Transno, q.Msg.Request = uint32(k.op), k.transno, body
	return n
}

// refuse drops what was refused and tells the files.
func (c *OSC) refuse(list []*kept) {
	var lost []*Object
	c.mu.Lock()
	for _, k := range list {
		lost = append(lost, k.obj)
		c.dropLocked(k)
	}
	c.mu.Unlock()
	c.tell(lost, errNotReplayed)
	c.cache.announce()
}

// Restore hands all locks back: for rpc.ImportOptions.Restore. The error is the connection's loss or ctx's end.
func (c *OSC) Restore(ctx context.Context, r *rpc.Recovery) error {
	if c.locks == nil {
		return nil
	}
	ctx, end, ok := c.recovering.begin(ctx)
	if !ok {
		return nil
	}
	defer end()
	return c.handBack(ctx, r)
}

// handBackLater hands the locks back to an OST that was started again and waits for nobody, while requests flow. It does not wait.
func (c *OSC) handBackLater() {
	ctx, end, ok := c.recovering.begin(context.Background())
	if !ok {
		return
	}
	go func() {
		defer end()
		_ = c.handBack(ctx, c.o.Import) //nolint:errcheck // It ends with the OSC.
	}()
}

// handBack hands all locks back by requests of im, a few at a time.
func (c *OSC) handBack(ctx context.Context, im Import) error {
	held := c.locks.Held(nil)
	var g sync.WaitGroup
	next := make(chan *ldlm.LockInfo)
	for range min(restoreSenders, len(held)) {
		g.Go(func() {
			for l := range next {
				c.handBackLock(ctx, im, l)
			}
		})
	}
	for i := range held {
		next <- &held[i]
	}
	close(next)
	g.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	c.log.Info("locks are handed back", "locks", len(held))
	return nil
}

func (c *OSC) handBackLock(ctx context.Context, im Import, l *ldlm.LockInfo) {
	if ctx.Err() != nil {
		return
	}
	var m wirepb.EnqueueRequest
	var reply wirepb.EnqueueReply
	wire.PutEnqueue(&m, &ldlm.Request{Res: l.Res, Mode: l.Desc.Mode, Extent: l.Desc.Extent, GID: l.Desc.GID, Flags: ldlm.Replay}, l.Handle)
	err := im.Do(ctx, &rpc.Request{Op: wire.OpEnqueue, Body: &m, Reply: &reply, Reserve: true})
	if ctx.Err() != nil || status.Of(err) == status.NotConnected {
		return // The end, or another connect: nothing is known of this one's answer.
	}
	c.locks.Restored(l.Handle, ldlm.Handle(reply.Lock), err)
}
