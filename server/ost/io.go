package ost

import (
	"errors"
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/failpoint"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

func (o *OST) serveRead(e *env.Env, x *target.Export, c *rpc.Call) error {
	sc := scratchOf(e)
	m := &sc.read
	m.Reset()
	m.Object = sc.fresh()
	if err := c.Decode(m); err != nil {
		return err
	}
	id, err := objectOf(m.Object)
	if err != nil {
		return err
	}
	if m.Length > wire.BulkMax {
		return status.Errorf(status.Protocol, "a read of %d bytes, at most %d", m.Length, wire.BulkMax)
	}
	if err := checkRange(m.Offset, uint64(m.Length)); err != nil {
		return err
	}
	start := time.Now()
	w := wanted{id: id, ext: extent.Extent{Start: m.Offset, End: m.Offset + uint64(m.Length)}, lock: m.Lock}
	if err := o.lock(c.Context(), e, x, w); err != nil {
		return err
	}
	defer o.unlock(e)
	ob := o.cache.get(id)
	defer o.cache.put(ob)
	ob.io.RLock()
	defer ob.io.RUnlock()
	there, err := o.load(e, ob)
	if err != nil {
		return err
	}
	if !there {
		return status.Errorf(status.NotExist, "%s: object %v is not there", o.o.Name, id)
	}
	size := uint64(ob.size.Load())
	n := int(min(uint64(m.Length), size-min(size, m.Offset)))
	if n > 0 {
		b := c.BulkBuffer(n)
		if n, err = o.readObject(ob, b[:n], int64(m.Offset)); err != nil {
			return fmt.Errorf("ost: read of object %v: %w", id, err)
		}
		c.ReplyBulk = b[:n]
	}
	sc.readReply.Reset()
	sc.readReply.Size = size
	c.Reply = &sc.readReply
	o.stats.readBytes.Add(int64(n))
	o.stats.readTime.Observe(time.Since(start))
	return nil
}

func (o *OST) serveWrite(e *env.Env, x *target.Export, c *rpc.Call) error {
	sc := scratchOf(e)
	m := &sc.write
	m.Reset()
	m.Object = sc.fresh()
	if err := c.Decode(m); err != nil {
		return err
	}
	id, err := objectOf(m.Object)
	if err != nil {
		return err
	}
	if x.ReadOnly {
		return status.ReadOnly
	}
	if err := checkRange(m.Offset, uint64(len(c.Bulk))); err != nil {
		return err
	}
	if _, ok := o.o.FailPoints.Reach(failpoint.NoSpace, c.Header.Op.String(), o.o.Name); ok {
		return status.NoSpace
	}
	if replayOf(c) != 0 {
		return o.replayWrite(e, c, id)
	}
	w := wanted{id: id, ext: extent.Extent{Start: m.Offset, End: m.Offset + uint64(len(c.Bulk))}, write: true, lock: m.Lock}
	if err := o.lock(c.Context(), e, x, w); err != nil {
		return err
	}
	defer o.unlock(e)
	if err := o.write(e, x, c, id); err != nil {
		return err
	}
	return o.updateLVB(e, id, false)
}

// write does a write whose lock is held. One to an object that was destroyed succeeds and does nothing.
func (o *OST) write(e *env.Env, x *target.Export, c *rpc.Call, id fid.ObjectID) error {
	m := &scratchOf(e).write
	g := &peerOf(x).grants
	if err := o.space.take(g, m, len(c.Bulk)); err != nil {
		return err
	}
	return o.store(e, c, id, o.space.topUp(g, m.GrantWant, o.o.GrantMax))
}

// store puts a write into its object and answers it, with so much new grant.
func (o *OST) store(e *env.Env, c *rpc.Call, id fid.ObjectID, grant uint64) error {
	sc := scratchOf(e)
	m := &sc.write
	start := time.Now()
	ob := o.cache.get(id)
	defer o.cache.put(ob)
	ob.io.RLock()
	defer ob.io.RUnlock()
	there, err := o.load(e, ob)
	if err != nil {
		return err
	}
	r := &sc.objectReply
	r.Reset()
	c.Reply = r
	r.Grant = grant
	if !there {
		return o.missing(id)
	}
	then := replayOf(c)
	if ob.reached(then) {
		return nil
	}
	if err := o.heat(c.Context(), e, ob); err != nil {
		return err
	}
	if len(c.Bulk) > 0 {
		if err := o.writeObject(ob, c.Bulk, int64(m.Offset)); err != nil {
			o.writeFailed(ob)
			return fmt.Errorf("ost: write of %d bytes at %d of object %v: %w", len(c.Bulk), m.Offset, id, err)
		}
	}
	ob.mu.Lock()
	ob.size.Store(max(ob.size.Load(), int64(m.Offset)+int64(len(c.Bulk))))
	ob.ownLocked(m)
	ob.touchLocked(m.MtimeSec, m.MtimeNsec)
	c.Transno = o.changedLocked(ob, then)
	ob.fillLocked(r)
	ob.mu.Unlock()
	o.wrote(len(c.Bulk))
	o.stats.writeBytes.Add(int64(len(c.Bulk)))
	o.stats.writeTime.Observe(time.Since(start))
	return nil
}

// writeFailed takes in what a write that failed half-way has left in the file.
// Precondition: ob.io is held.
func (o *OST) writeFailed(ob *object) {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	if size, _, err := ob.h.Stat(); err == nil {
		ob.size.Store(max(ob.size.Load(), size))
	}
	o.changedLocked(ob, 0)
}

// ownLocked notes whose object this is, as the first writer tells it; later only the MDT changes it.
func (ob *object) ownLocked(m *wirepb.WriteRequest) {
	r := &ob.rec
	if r.owner.IsZero() {
		r.owner = fid.FID{Seq: fid.Seq(m.Object.OwnerSeq), OID: m.Object.OwnerOid}
		r.stripe = m.Object.Stripe
	}
	if !r.owned {
		r.owned, r.uid, r.gid, r.project = true, m.Uid, m.Gid, m.Project
	}
}

// touchLocked moves the object's mtime forward to the writing client's.
func (ob *object) touchLocked(sec int64, nsec uint32) {
	t := attr.Time{Sec: sec, Nsec: min(nsec, 1e9-1)}
	ob.rec.mtime = ob.rec.mtime.Later(t)
	ob.rec.ctime = ob.rec.ctime.Later(t)
}

// fillLocked fills a reply with the object's state; blocks as the record has them.
func (ob *object) fillLocked(r *wirepb.ObjectReply) {
	r.Exists, r.Size, r.Blocks = true, uint64(ob.size.Load()), ob.rec.blocks
	r.MtimeSec, r.MtimeNsec = ob.rec.mtime.Sec, ob.rec.mtime.Nsec
}

// serveGlimpse answers what an object is now, with what clients have written and not sent yet: those who hold write locks that reach
// past the known size are asked.
func (o *OST) serveGlimpse(e *env.Env, c *rpc.Call) error {
	sc := scratchOf(e)
	m := &sc.glimpse
	m.Reset()
	m.Object = sc.fresh()
	if err := c.Decode(m); err != nil {
		return err
	}
	id, err := objectOf(m.Object)
	if err != nil {
		return err
	}
	r := &sc.objectReply
	r.Reset()
	c.Reply = r
	v, err := o.locks.Glimpse(c.Context(), e, id)
	if errors.Is(err, status.NotExist) {
		return o.missing(id)
	}
	if err != nil {
		return err
	}
	r.Exists, r.Size, r.Blocks = true, v.Size, v.Blocks
	t := time.Unix(0, v.Mtime)
	r.MtimeSec, r.MtimeNsec = t.Unix(), uint32(t.Nanosecond())
	return nil
}

// blocksLocked is the object's blocks; of one that has changed since its record was made the host's present figure, so that what
// was written never looks like a hole.
// Precondition: ob is loaded and not gone.
func (ob *object) blocksLocked() (uint64, error) {
	if ob.seq <= ob.covered {
		return ob.rec.blocks, nil
	}
	_, blocks, err := ob.h.Stat()
	if err != nil {
		return 0, fmt.Errorf("ost: stat of object %v: %w", ob.id, err)
	}
	return uint64(blocks), nil
}

func (o *OST) serveSeek(e *env.Env, x *target.Export, c *rpc.Call) error {
	sc := scratchOf(e)
	m := &sc.seek
	m.Reset()
	m.Object = sc.fresh()
	if err := c.Decode(m); err != nil {
		return err
	}
	id, err := objectOf(m.Object)
	if err != nil {
		return err
	}
	if m.Offset > MaxObjectBytes {
		return status.NoDevice
	}
	w := wanted{id: id, ext: extent.Extent{Start: m.Offset, End: extent.EOF}, lock: m.Lock}
	if err := o.lock(c.Context(), e, x, w); err != nil {
		return err
	}
	defer o.unlock(e)
	ob := o.cache.get(id)
	defer o.cache.put(ob)
	ob.io.RLock()
	defer ob.io.RUnlock()
	there, err := o.load(e, ob)
	if err != nil {
		return err
	}
	if !there {
		return status.Errorf(status.NotExist, "%s: object %v is not there", o.o.Name, id)
	}
	seek := ob.h.SeekData
	if m.Hole {
		seek = ob.h.SeekHole
	}
	at, err := seek(int64(m.Offset))
	if errors.Is(err, store.ErrNotFound) {
		return status.NoDevice
	}
	if err != nil {
		return fmt.Errorf("ost: seek in object %v: %w", id, err)
	}
	r := &sc.objectReply
	r.Reset()
	ob.mu.Lock()
	ob.fillLocked(r)
	ob.mu.Unlock()
	r.Offset = uint64(at)
	c.Reply = r
	return nil
}

func (o *OST) serveSync(e *env.Env, c *rpc.Call) error {
	sc := scratchOf(e)
	m := &sc.sync
	m.Reset()
	m.Object = sc.fresh()
	if err := c.Decode(m); err != nil {
		return err
	}
	if m.All {
		o.stats.syncs.Inc()
		e.WillWait()
		return o.waitCommitted(c.Context(), o.seq.Load())
	}
	id, err := objectOf(m.Object)
	if err != nil {
		return err
	}
	ob := o.cache.get(id)
	defer o.cache.put(ob)
	ob.io.RLock()
	defer ob.io.RUnlock()
	there, err := o.load(e, ob)
	if err != nil {
		return err
	}
	r := &sc.objectReply
	r.Reset()
	c.Reply = r
	if !there {
		return o.missing(id)
	}
	o.stats.syncs.Inc()
	if err := o.syncObject(c.Context(), e, ob); err != nil {
		return err
	}
	ob.mu.Lock()
	defer ob.mu.Unlock()
	ob.fillLocked(r)
	return nil
}
