package ost

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// Bounds of one request of the MDT: the time it takes, and the memory, stay small whatever it asks.
const (
	// PrecreateMax is the largest batch of objects made by one request.
	PrecreateMax = 65536
	// jumpMax bounds how many ids one request can use up: an OST restored from an old copy skips those that its MDT has
	// used since; a wrong request cannot use up the numbers.
	jumpMax = 1 << 40
	// DestroyMax is the largest number of objects destroyed by one request.
	DestroyMax = 16384
)

func (o *OST) servePrecreate(e *env.Env, c *rpc.Call) error {
	m := &scratchOf(e).precreate
	m.Reset()
	if err := c.Decode(m); err != nil {
		return err
	}
	g := o.group(m.Group)
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.Orphans {
		if err := o.destroyOrphans(c.Context(), e, g, m); err != nil {
			return err
		}
	}
	if last := g.last.Load(); m.Upto > last && !m.Orphans {
		if m.Upto-last > jumpMax {
			return status.Errorf(status.Invalid, "%s: objects up to %d asked for, the last one is %d", o.o.Name, m.Upto, last)
		}
		if err := o.precreate(c.Context(), g, m.Upto); err != nil {
			return err
		}
	}
	r := &scratchOf(e).precreateReply
	r.Reset()
	r.Last = g.last.Load()
	c.Reply = r
	return nil
}

// precreate makes the objects up to id upto and returns when files, folder entries and the last id are on disk. Ids that
// are skipped because more than PrecreateMax are asked for are never used.
// Precondition: g.mu is held, upto is above the last id.
func (o *OST) precreate(ctx context.Context, g *group, upto uint64) error {
	if st, err := o.o.Device.Statfs(); err != nil {
		return err
	} else if st.Avail == 0 || st.FreeInodes == 0 {
		return status.Errorf(status.NoSpace, "%s is full: %d bytes and %d inodes free", o.o.Name, st.Avail, st.FreeInodes)
	}
	last := g.last.Load()
	from := last + 1
	if upto-last > PrecreateMax {
		from = upto - PrecreateMax + 1
	}
	ids := make([]fid.ObjectID, 0, upto-from+1)
	for id := from; id <= upto; id++ {
		ids = append(ids, fid.ObjectID{Group: g.id, ID: id})
	}
	if err := o.o.Device.Objects().Create(ids); err != nil {
		return fmt.Errorf("ost: making objects %d to %d: %w", from, upto, err)
	}
	if err := o.o.Device.Objects().Flush(ctx); err != nil {
		return fmt.Errorf("ost: flush of new objects: %w", err)
	}
	n, err := o.publishGroup(g, from, upto)
	if err == nil {
		err = o.o.Device.WaitCommitted(ctx, n)
	}
	if err != nil {
		return fmt.Errorf("ost: last object id: %w", err)
	}
	g.last.Store(upto)
	o.stats.created.Add(int64(len(ids)))
	return nil
}

// publishGroup publishes a group's record with a new last id, and moves the fresh bound so that the range stays bounded.
func (o *OST) publishGroup(g *group, from, last uint64) (store.Transno, error) {
	o.pubMu.Lock()
	defer o.pubMu.Unlock()
	o.pubEnv.Reset()
	tx := o.o.Device.Begin(o.pubEnv)
	bound := g.fresh.Load()
	switch {
	case bound == g.last.Load():
		bound = from - 1
	case last-bound > o.o.FreshMax:
		// By half, so that the walk over the cache comes seldom.
		bound = max(bound, last-o.o.FreshMax/2)
	}
	bound = min(bound, from-1) // New objects are hot: their first write finds them so.
	if bound != g.fresh.Load() {
		o.raiseFresh(tx, o.pubEnv, g, bound)
	}
	key := binary.BigEndian.AppendUint32(o.pubEnv.Alloc(4)[:0], g.id)
	tx.Put(tableGroups, key, putGroup(o.pubEnv.Alloc(groupSize), last, bound))
	return o.o.Device.Publish(tx)
}

// destroyOrphans destroys the objects of a group above the last used id, or of these the ones up to m.Upto, if that is not 0.
// Precondition: g.mu is held.
func (o *OST) destroyOrphans(ctx context.Context, e *env.Env, g *group, m *wirepb.PrecreateRequest) error {
	used, last := m.Used, g.last.Load()
	if m.Upto != 0 {
		last = min(last, m.Upto)
	}
	if used >= last {
		return nil
	}
	var ids []uint64
	err := o.o.Device.Objects().Walk(g.id, func(id fid.ObjectID) bool {
		if id.ID > used && id.ID <= last {
			ids = append(ids, id.ID)
		}
		return true
	})
	if err == nil {
		// A crash between the end of a file and that of its record leaves the record.
		from := fid.ObjectID{Group: g.id, ID: used + 1}.AppendKey(nil)
		to := fid.ObjectID{Group: g.id, ID: last + 1}.AppendKey(nil)
		err = o.o.Device.Scan(e, tableObjects, from, to, func(k, _ []byte) bool {
			if id, bad := fid.ObjectFromKey(k); bad == nil {
				ids = append(ids, id.ID)
			}
			return true
		})
	}
	if err != nil {
		return fmt.Errorf("ost: looking for orphans: %w", err)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if len(ids) > 0 {
		o.o.Log.Info("destroying orphans", "target", o.o.Name, "group", g.id, "above", used, "count", len(ids))
	}
	for len(ids) > 0 && ctx.Err() == nil {
		n := min(len(ids), DestroyMax)
		if err := o.destroy(e, g.id, ids[:n]); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return ctx.Err()
}

func (o *OST) serveDestroy(e *env.Env, c *rpc.Call) error {
	m := &scratchOf(e).destroy
	ids := m.Ids[:0]
	m.Reset()
	m.Ids = ids
	if err := c.Decode(m); err != nil {
		return err
	}
	if len(m.Ids) > DestroyMax {
		return status.Errorf(status.Invalid, "%s: %d objects to destroy at once, at most %d", o.o.Name, len(m.Ids), DestroyMax)
	}
	last := o.group(m.Group).last.Load()
	for _, id := range m.Ids {
		if id == 0 || id > last {
			return status.Errorf(status.Invalid, "%s: object %v to destroy was never made", o.o.Name, fid.ObjectID{Group: m.Group, ID: id})
		}
	}
	if err := o.destroy(e, m.Group, m.Ids); err != nil {
		return err
	}
	c.Transno = wire.Transno(o.next())
	return nil
}

// destroyTx bounds the objects whose records go in one transaction.
const destroyTx = 256

// destroy removes objects: files, records, marks and what they charge. One that is not there leaves only what a crash
// may have left of its record.
func (o *OST) destroy(e *env.Env, group uint32, ids []uint64) error {
	held := make([]*object, 0, min(len(ids), destroyTx))
	for len(ids) > 0 {
		n := min(len(ids), destroyTx)
		held = held[:0]
		var err error
		for _, id := range ids[:n] {
			ob := o.cache.get(fid.ObjectID{Group: group, ID: id})
			held = append(held, ob)
			if err = o.remove(e, ob); err != nil {
				break
			}
		}
		if err == nil {
			err = o.forget(e, held)
		}
		for _, ob := range held {
			o.cache.put(ob)
		}
		if err != nil {
			return fmt.Errorf("ost: destroy: %w", err)
		}
		for _, id := range ids[:n] {
			o.locks.Destroyed(e, ldlm.ObjectRes(fid.ObjectID{Group: group, ID: id}))
		}
		o.stats.destroyed.Add(int64(n))
		ids = ids[n:]
		e.Reset()
	}
	return nil
}

// remove removes an object's file; what runs on it ends first, what comes later finds it gone.
func (o *OST) remove(e *env.Env, ob *object) error {
	ob.io.Lock()
	defer ob.io.Unlock()
	ob.mu.Lock()
	defer ob.mu.Unlock()
	if err := o.o.Device.Objects().Remove(ob.id); err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("object %v: %w", ob.id, err)
	}
	if !ob.stated {
		if err := o.loadRecordLocked(e, ob); err != nil {
			return fmt.Errorf("object %v: %w", ob.id, err)
		}
	}
	ob.gone = true
	ob.loaded.Store(false)
	if ob.h != nil {
		ob.h.Close() //nolint:errcheck // The file is gone.
		ob.h = nil
	}
	return nil
}

// forget removes the records and marks of objects that are gone.
func (o *OST) forget(e *env.Env, obs []*object) error {
	o.pubMu.Lock()
	defer o.pubMu.Unlock()
	tx := o.o.Device.Begin(e)
	for _, ob := range obs {
		ob.mu.Lock()
		if ob.recorded {
			addUsage(tx, e, &ob.saved, -int64(ob.saved.blocks), -1)
			tx.Delete(tableObjects, objectKey(e, ob.id))
			ob.recorded = false
		}
		if ob.marked {
			tx.Delete(tableHot, objectKey(e, ob.id))
			ob.marked = false
		}
		ob.mu.Unlock()
	}
	if tx.Empty() {
		return nil
	}
	_, err := o.o.Device.Publish(tx)
	return err
}
