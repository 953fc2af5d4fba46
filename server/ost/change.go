package ost

import (
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// change is a punch, truncate or fallocate of one object.
type change struct {
	id        fid.ObjectID
	mtimeSec  int64
	mtimeNsec uint32
	apply     func(ob *object) error
}

// changeUnderLock runs one under its lock, and brings the object's lock value block up to date, even after one that failed half-way.
func (o *OST) changeUnderLock(e *env.Env, x *target.Export, c *rpc.Call, w wanted, ch change) error {
	if replayOf(c) == 0 {
		if err := o.lock(c.Context(), e, x, w); err != nil {
			return err
		}
		defer o.unlock(e)
	}
	err := o.change(e, c, ch)
	if bad := o.updateLVB(e, w.id, true); err == nil {
		err = bad
	}
	return err
}

// change runs one with the object held whole. One of an object that was destroyed succeeds and does nothing.
func (o *OST) change(e *env.Env, c *rpc.Call, ch change) error {
	ob := o.cache.get(ch.id)
	defer o.cache.put(ob)
	ob.io.Lock()
	defer ob.io.Unlock()
	there, err := o.load(e, ob)
	if err != nil {
		return err
	}
	r := &scratchOf(e).objectReply
	r.Reset()
	c.Reply = r
	if !there {
		return o.missing(ch.id)
	}
	then := replayOf(c)
	if ob.reached(then) {
		return nil
	}
	if err := o.heat(c.Context(), e, ob); err != nil {
		return err
	}
	err = ch.apply(ob)
	// Even one that failed may have changed something: the size and the number follow the file.
	size, _, statErr := ob.h.Stat()
	if statErr != nil {
		return fmt.Errorf("ost: %v of object %v: %w", c.Header.Op, ch.id, statErr)
	}
	ob.mu.Lock()
	defer ob.mu.Unlock()
	ob.size.Store(size)
	if err == nil {
		ob.touchLocked(ch.mtimeSec, ch.mtimeNsec)
	}
	n := o.changedLocked(ob, then)
	if err != nil {
		return fmt.Errorf("ost: %v of object %v: %w", c.Header.Op, ch.id, err)
	}
	c.Transno = n
	ob.fillLocked(r)
	return nil
}

func (o *OST) servePunch(e *env.Env, x *target.Export, c *rpc.Call) error {
	sc := scratchOf(e)
	m := &sc.punch
	m.Reset()
	m.Object = sc.fresh()
	if err := c.Decode(m); err != nil {
		return err
	}
	id, err := objectOf(m.Object)
	if err != nil {
		return err
	}
	if m.End != extent.EOF && m.End < m.Start {
		return status.Errorf(status.Invalid, "a punch of [%d, %d)", m.Start, m.End)
	}
	if err := checkRange(m.Start, 0); err != nil {
		return err
	}
	w := wanted{id: id, ext: extent.Extent{Start: m.Start, End: m.End}, write: true, lock: m.Lock}
	if err := o.cancelEarly(e, x, m.Cancels); err != nil {
		return err
	}
	return o.changeUnderLock(e, x, c, w, change{id: id, mtimeSec: m.MtimeSec, mtimeNsec: m.MtimeNsec, apply: func(ob *object) error {
		if m.End == extent.EOF {
			return ob.h.Truncate(int64(m.Start))
		}
		end := min(m.End, MaxObjectBytes)
		if end <= m.Start {
			return nil
		}
		return ob.h.Fallocate(store.FallocKeepSize|store.FallocPunchHole, int64(m.Start), int64(end-m.Start))
	}})
}

func (o *OST) serveFallocate(e *env.Env, x *target.Export, c *rpc.Call) error {
	sc := scratchOf(e)
	m := &sc.allocate
	m.Reset()
	m.Object = sc.fresh()
	if err := c.Decode(m); err != nil {
		return err
	}
	id, err := objectOf(m.Object)
	if err != nil {
		return err
	}
	switch m.Mode {
	case 0, store.FallocKeepSize, store.FallocZeroRange, store.FallocZeroRange | store.FallocKeepSize:
		// What is allocated needs space that nobody was promised, at most.
		granted, _ := o.space.sums()
		if free := o.space.now().Avail; m.Length > free-min(free, uint64(granted)) {
			return status.NoSpace
		}
	case store.FallocPunchHole | store.FallocKeepSize:
	default:
		return status.Errorf(status.NotSupport, "fallocate with mode 0x%x", m.Mode)
	}
	if m.Length == 0 {
		return status.Errorf(status.Invalid, "a fallocate of no bytes")
	}
	if err := checkRange(m.Offset, m.Length); err != nil {
		return err
	}
	w := wanted{id: id, ext: extent.Extent{Start: m.Offset, End: m.Offset + m.Length}, write: true, lock: m.Lock}
	if err := o.cancelEarly(e, x, m.Cancels); err != nil {
		return err
	}
	return o.changeUnderLock(e, x, c, w, change{id: id, mtimeSec: m.MtimeSec, mtimeNsec: m.MtimeNsec, apply: func(ob *object) error {
		return ob.h.Fallocate(m.Mode, int64(m.Offset), int64(m.Length))
	}})
}

// serveSetattr gives an object another owner, unless a newer change has been there.
func (o *OST) serveSetattr(e *env.Env, c *rpc.Call) error {
	sc := scratchOf(e)
	m := &sc.setattr
	m.Reset()
	m.Object = sc.fresh()
	if err := c.Decode(m); err != nil {
		return err
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
	if !there {
		// A destroyed one has no owner any more. The number makes the MDT wait for the commit of the destroy.
		c.Transno = wire.Transno(o.next())
		return o.missing(id)
	}
	o.pubMu.Lock()
	defer o.pubMu.Unlock()
	ob.mu.Lock()
	defer ob.mu.Unlock()
	r := &ob.rec
	if m.Version > r.version {
		r.version = m.Version
		valid := attr.Valid(m.Valid)
		if valid.Has(attr.ValidUID) {
			r.uid = m.Uid
		}
		if valid.Has(attr.ValidGID) {
			r.gid = m.Gid
		}
		if valid.Has(attr.ValidProjID) {
			r.project = m.Project
		}
		r.owned = r.owned || valid.Has(attr.ValidUID|attr.ValidGID|attr.ValidProjID)
		tx := o.o.Device.Begin(e)
		ob.saveLocked(tx, e)
		if _, err := o.o.Device.Publish(tx); err != nil {
			return err
		}
	}
	c.Transno = wire.Transno(o.next())
	return nil
}
