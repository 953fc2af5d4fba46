package osc

import (
	"context"
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// brw is a reusable READ.
type brw struct {
	req   rpc.Request
	body  wirepb.ReadRequest
	id    wirepb.Object
	reply wirepb.ReadReply
}

// do runs a request. The import sends it again where that helps: after a reconnect, and when bulk came damaged.
func (c *OSC) do(ctx context.Context, r *rpc.Request) error {
	c.figs.rpcs.Inc()
	c.figs.inFlight.Add(1)
	defer c.figs.inFlight.Add(-1)
	return c.o.Import.Do(ctx, r)
}

// fetch reads b from the OST, with zeros behind the object's end. awaited: somebody waits for it.
func (o *Object) fetch(ctx context.Context, b []byte, off uint64, lock ldlm.Handle, awaited bool) error {
	r := o.osc.brws.Get().(*brw)
	defer o.osc.brws.Put(r)
	for len(b) > 0 {
		n := min(uint64(len(b)), o.osc.brw.Load())
		r.id.Reset()
		r.body.Object, r.body.Offset, r.body.Length = o.name(&r.id), off, uint32(n)
		r.body.Lock, _ = o.osc.remote(lock)
		r.reply.Reset()
		r.req = rpc.Request{Op: wire.OpRead, Body: &r.body, Reply: &r.reply, Into: b[:n]}
		begin := time.Now()
		err := o.osc.doUnder(ctx, r.body.Lock, &r.req)
		if awaited {
			o.osc.aheads.waited(n, time.Since(begin))
		}
		if r.body.Lock != 0 && status.Of(err) == status.BadHandle {
			// The OST was started again since, or the lock is lost: it takes one of its own.
			r.body.Lock = 0
			err = o.osc.doUnder(ctx, 0, &r.req)
		}
		got := r.req.N
		r.req.Into = nil
		if err != nil {
			return o.fail("read", off, err)
		}
		clear(b[got:n])
		o.osc.figs.readBytes.Add(int64(n))
		b, off = b[n:], off+n
	}
	return nil
}

// sendWrite sends a queued write, unless it was dropped, and ends it.
func (c *OSC) sendWrite(w *write) {
	o := w.obj
	o.mu.Lock()
	owner := o.owner
	if w.dropped && w.ticket == nil {
		o.mu.Unlock()
		o.finish(w, nil)
		return
	}
	if w.lost {
		o.mu.Unlock()
		o.finish(w, o.fail("write", w.start, errLost))
		return
	}
	w.sending = true
	o.mu.Unlock()
	for _, p := range w.pages {
		w.req.Bulk = append(w.req.Bulk, p.bytes(p.start, p.end))
	}
	w.body.Object, w.body.Offset = o.name(&w.id), w.start
	w.body.MtimeSec, w.body.MtimeNsec = w.mtime.Sec, w.mtime.Nsec
	w.body.Uid, w.body.Gid, w.body.Project = owner.UID, owner.GID, owner.Project
	w.body.GrantUsed = w.charged
	c.mu.Lock()
	w.body.Dirty = c.dirty + c.pending
	w.body.GrantWant = c.grant.want(uint64(c.o.MaxDirtyBytes))
	c.mu.Unlock()
	w.req.Op, w.req.Body, w.req.Reply = wire.OpWrite, &w.body, &w.reply
	for {
		w.req.Transno, w.req.LastCommitted, w.req.Instance = 0, 0, 0
		err := c.sendUnder(w)
		switch {
		case err == nil:
			c.figs.writeBytes.Add(int64(w.len()))
		case c.life.Err() != nil:
			err = o.closedErr("write", w.start)
		default:
			err = o.fail("write", w.start, err)
		}
		if !o.finish(w, err) {
			return
		}
		w.reply.Reset()
	}
}

// remote gives the OST's handle of a lock; false when there is one that this client does not have any more.
func (c *OSC) remote(lock ldlm.Handle) (uint64, bool) {
	if lock == 0 {
		return 0, true
	}
	h, ok := c.locks.Remote(lock)
	return uint64(h), ok
}

// sendUnder sends a write under its lock. An OST that was started again knows the lock by another handle once it was
// handed back. A write whose lock is lost is never sent: others may have changed the bytes.
func (c *OSC) sendUnder(w *write) error {
	for {
		h, ok := c.remote(w.lock)
		if !ok {
			return errLost
		}
		w.body.Lock = h
		err := c.doUnder(&c.life, h, &w.req)
		if h == 0 || status.Of(err) != status.BadHandle {
			return err
		}
		if again, ok := c.remote(w.lock); !ok || again == h {
			return fmt.Errorf("%w (%w)", errLost, err)
		}
	}
}

// ReadThrough fills b with the object's bytes from off under a lock that the OST takes for the request, and returns how
// many there are up to the object's end. Own dirty data is not looked at.
func (o *Object) ReadThrough(ctx context.Context, b []byte, off uint64) (int, error) {
	r := o.osc.brws.Get().(*brw)
	defer o.osc.brws.Put(r)
	n := min(uint64(len(b)), o.osc.brw.Load())
	r.id.Reset()
	r.body.Object, r.body.Offset, r.body.Length, r.body.Lock = o.name(&r.id), off, uint32(n), 0
	r.reply.Reset()
	r.req = rpc.Request{Op: wire.OpRead, Body: &r.body, Reply: &r.reply, Into: b[:n]}
	err := o.osc.doUnder(ctx, 0, &r.req)
	got := r.req.N
	r.req.Into = nil
	if err != nil {
		return 0, o.fail("read", off, err)
	}
	o.osc.figs.readBytes.Add(int64(n))
	return got, nil
}
