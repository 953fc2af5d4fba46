package ost

import (
	"context"
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
)

// heat marks a cold object hot and waits until the mark is on disk. Objects heated at the same time share one commit of the
// tables.
// Precondition: ob is loaded and ob.io is held, shared or whole.
func (o *OST) heat(ctx context.Context, e *env.Env, ob *object) error {
	if ob.hot.Load() {
		return nil
	}
	tx := o.o.Device.Begin(e)
	tx.Put(tableHot, objectKey(e, ob.id), hotValue)
	n, err := o.o.Device.Publish(tx)
	if err == nil {
		err = o.o.Device.WaitCommitted(ctx, n)
	}
	if err != nil {
		return fmt.Errorf("ost: marking object %v hot: %w", ob.id, err)
	}
	ob.mu.Lock()
	ob.marked = true
	ob.mu.Unlock()
	ob.hot.Store(true)
	o.stats.heated.Inc()
	return nil
}

// hotValue is the version of a hot mark.
var hotValue = []byte{tableVersion}

// raiseFresh moves a group's fresh bound up. Objects below it that are hot without a mark get one in tx, or are cold.
// Precondition: pubMu is held and tx is published, with the group's record, before it is given back.
func (o *OST) raiseFresh(tx *store.Tx, e *env.Env, g *group, bound uint64) {
	g.fresh.Store(bound) // Before the walk: who loads an object later sees the new bound.
	wanted := func(ob *object) bool {
		// One without a user is not being loaded: what it says of itself holds.
		return ob.id.Group == g.id && ob.id.ID <= bound && (ob.refs > 0 || ob.hot.Load())
	}
	o.cache.each(wanted, func(ob *object) {
		whole := ob.io.TryLock() // False: somebody writes, or is about to.
		ob.mu.Lock()
		if ob.stated && ob.hot.Load() && !ob.marked {
			if whole && !ob.active {
				ob.hot.Store(false)
			} else {
				tx.Put(tableHot, objectKey(e, ob.id), hotValue)
				ob.marked = true
			}
		}
		ob.mu.Unlock()
		if whole {
			ob.io.Unlock()
		}
	})
}

// rescanBatch bounds the records of one transaction of a rescan.
const rescanBatch = 1024

// rescan looks at every object that was hot when the OST stopped and puts its record right: size and blocks from the
// file, what is charged with them. Then the marks go.
func (o *OST) rescan(ctx context.Context) error {
	// The host may know blocks only after its flush: the crash may have been the process's alone.
	if err := o.o.Device.Objects().Flush(ctx); err != nil {
		return err
	}
	e := env.New()
	var ids []fid.ObjectID
	var bad error
	err := o.o.Device.Scan(e, tableHot, nil, nil, func(k, _ []byte) bool {
		var id fid.ObjectID
		if id, bad = fid.ObjectFromKey(k); bad != nil {
			return false
		}
		ids = append(ids, id)
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	marks := len(ids)
	for _, g := range o.groups {
		for id := g.fresh.Load() + 1; id <= g.last.Load(); id++ {
			ids = append(ids, fid.ObjectID{Group: g.id, ID: id})
		}
	}
	o.o.Log.Info("looking at objects that were hot", "target", o.o.Name, "marked", marks, "fresh", len(ids)-marks)
	for at := 0; at < len(ids); at += rescanBatch {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := o.rescanSome(e, ids[at:min(at+rescanBatch, len(ids))]); err != nil {
			return err
		}
	}
	return nil
}

func (o *OST) rescanSome(e *env.Env, ids []fid.ObjectID) error {
	e.Reset()
	tx := o.o.Device.Begin(e)
	for _, id := range ids {
		if err := o.rescanOne(tx, e, id); err != nil {
			return fmt.Errorf("object %v: %w", id, err)
		}
	}
	_, err := o.o.Device.Publish(tx)
	return err
}

func (o *OST) rescanOne(tx *store.Tx, e *env.Env, id fid.ObjectID) error {
	ob := &object{id: id}
	if err := o.loadRecordLocked(e, ob); err != nil {
		return err
	}
	tx.Delete(tableHot, objectKey(e, id))
	var size, blocks int64
	h, err := o.o.Device.Objects().Open(id)
	if err == nil {
		size, blocks, err = h.Stat()
		err = errors.Join(err, h.Close())
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if !ob.recorded && size == 0 && blocks == 0 {
		return nil // Never written, or destroyed.
	}
	if ob.recorded && ob.rec.size == uint64(size) && ob.saved.blocks == uint64(blocks) {
		return nil
	}
	ob.size.Store(size)
	ob.rec.blocks = uint64(blocks)
	ob.saveLocked(tx, e)
	o.stats.rescanned.Inc()
	return nil
}
