package ost

import (
	"context"
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/store"
)

// changedLocked gives a change of ob its number, enters ob into the active list, and returns the number that the client is told:
// that of then for a replay, where then is not 0.
// Precondition: the change is in the host's file, ob.io is held and ob.mu is held.
func (o *OST) changedLocked(ob *object, then wire.Transno) wire.Transno {
	if !ob.active {
		ob.active = true
		o.cache.pin(ob)
		o.activeMu.Lock()
		o.active = append(o.active, ob)
		o.activeMu.Unlock()
	}
	ob.idle = 0
	ob.seq = o.next()
	ob.said = ob.seq
	if then != 0 {
		ob.said = uint64(then)
	}
	return wire.Transno(ob.said)
}

// next gives the next number and sees to it that a commit will cover it.
func (o *OST) next() uint64 {
	n := o.seq.Add(1)
	o.arm()
	return n
}

// wrote counts bytes towards an early commit.
func (o *OST) wrote(n int) {
	if o.dirty.Add(int64(n)) >= o.o.CommitBytes {
		o.hasten()
	}
}

func (o *OST) hasten() {
	select {
	case o.kick <- struct{}{}:
	default:
	}
}

// commitLoop commits CommitEvery after the first change, or when it is asked to.
func (o *OST) commitLoop() {
	timer := time.NewTimer(o.o.CommitEvery)
	defer timer.Stop()
	for {
		select {
		case <-o.ctx.Done():
			return
		case <-o.kick:
		case <-o.first:
			timer.Reset(o.o.CommitEvery)
			select {
			case <-timer.C:
			case <-o.kick:
			case <-o.ctx.Done():
				return
			}
		}
		// A commit that has begun is finished: a flush given up half-way would count as failed.
		if err := o.commit(context.WithoutCancel(o.ctx)); err != nil {
			o.fail(err)
			return
		}
	}
}

// fail stops the OST: what it has answered may be lost, so it answers nothing more and clients replay.
func (o *OST) fail(err error) {
	o.t.Stop()
	o.o.Log.Error("commit failed, the target stops: restart it when the disk works", "target", o.o.Name, "err", err)
	o.waitMu.Lock()
	defer o.waitMu.Unlock()
	o.failed = err
	o.wakeLocked()
}

func (o *OST) failure() error {
	o.waitMu.Lock()
	defer o.waitMu.Unlock()
	return o.failed
}

func (o *OST) wakeLocked() {
	if o.moved != nil {
		close(o.moved)
		o.moved = nil
	}
}

// waitCommitted waits until n is on disk.
func (o *OST) waitCommitted(ctx context.Context, n uint64) error {
	for {
		o.waitMu.Lock()
		if o.moved == nil {
			o.moved = make(chan struct{})
		}
		moved, failed := o.moved, o.failed
		o.waitMu.Unlock()
		switch {
		case o.committed.Load() >= n:
			return nil
		case failed != nil:
			return status.Errorf(status.Stopping, "%s has stopped: %v", o.o.Name, failed)
		}
		o.hasten()
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("ost: %s: waiting for a commit: %w", o.o.Name, ctx.Err())
		case <-o.ctx.Done():
			return status.Errorf(status.Stopping, "%s is stopping", o.o.Name)
		}
	}
}

// commit makes every number given before the call durable: the host's flush, then records, usage and the number itself in
// one transaction of the tables, then its commit. A flush that failed is not tried again.
func (o *OST) commit(ctx context.Context) error {
	o.commitMu.Lock()
	defer o.commitMu.Unlock()
	start := time.Now()
	o.dirty.Store(0)
	covers := o.seq.Load()
	if covers <= o.committed.Load() && !o.anyActive() {
		return nil
	}
	if covers > o.committed.Load() {
		if err := o.o.Device.Objects().Flush(ctx); err != nil {
			return fmt.Errorf("ost: %s: flush: %w", o.o.Name, err)
		}
	}
	list := o.takeActive()
	err := o.measure(list, covers)
	var n store.Transno
	if err == nil {
		n, err = o.publishRecords(list, covers)
	}
	if err == nil {
		err = o.o.Device.WaitCommitted(ctx, n)
	}
	if err != nil {
		return fmt.Errorf("ost: %s: commit: %w", o.o.Name, err)
	}
	o.advance(covers)
	o.stats.commits.Observe(time.Since(start))
	if o.anyActive() {
		o.arm() // Marks are cleared two commits later: see to it that these come.
	}
	return nil
}

// arm starts the commit loop's clock.
func (o *OST) arm() {
	if len(o.first) > 0 {
		return
	}
	select {
	case o.first <- struct{}{}:
	default:
	}
}

func (o *OST) anyActive() bool {
	o.activeMu.Lock()
	defer o.activeMu.Unlock()
	return len(o.active) > 0
}

// advance tells that numbers up to n are on disk.
func (o *OST) advance(n uint64) {
	if n > o.committed.Load() {
		o.committed.Store(n)
	}
	o.waitMu.Lock()
	defer o.waitMu.Unlock()
	o.wakeLocked()
}

// idleCommits is how many commits without a change clear an object's hot mark: an object that is written all the time
// keeps its mark instead of waiting for a new one again and again.
const idleCommits = 2

// takeActive empties the active list.
func (o *OST) takeActive() []*object {
	o.activeMu.Lock()
	defer o.activeMu.Unlock()
	list := o.active
	o.active = nil
	return list
}

// measure asks the host for the blocks of every object in list that has changed since its record. It opens files, so it runs
// before pubMu is taken.
func (o *OST) measure(list []*object, covers uint64) error {
	e := env.New()
	for _, ob := range list {
		o.cache.ref(ob)
		err := o.measureOne(e, ob, covers)
		o.cache.put(ob)
		if err != nil {
			return fmt.Errorf("object %v: %w", ob.id, err)
		}
	}
	return nil
}

func (o *OST) measureOne(e *env.Env, ob *object, covers uint64) error {
	ob.mu.Lock()
	todo := !ob.gone && ob.seq > ob.covered
	ob.mu.Unlock()
	if !todo {
		return nil
	}
	there, err := o.load(e, ob)
	if err != nil || !there {
		return err
	}
	ob.mu.Lock()
	defer ob.mu.Unlock()
	if ob.gone || ob.h == nil {
		return nil
	}
	_, blocks, err := ob.h.Stat()
	ob.rec.blocks, ob.measured = uint64(blocks), covers
	return err
}

// publishRecords publishes the records of what changed up to number covers, and takes the objects of list that are cold now
// out of the active ones.
// Precondition: commitMu is held, everything up to covers is flushed and list is measured.
func (o *OST) publishRecords(list []*object, covers uint64) (store.Transno, error) {
	o.pubMu.Lock()
	defer o.pubMu.Unlock()
	o.pubEnv.Reset()
	tx := o.o.Device.Begin(o.pubEnv)
	kept := list[:0]
	var cold []*object // with a reference, and io held until the publish
	for _, ob := range list {
		o.cache.ref(ob)
		whole := ob.io.TryLock()
		if whole && !o.record(tx, o.pubEnv, ob, true) {
			cold = append(cold, ob)
			continue
		}
		if whole {
			ob.io.Unlock()
		} else {
			o.record(tx, o.pubEnv, ob, false)
		}
		o.cache.put(ob)
		kept = append(kept, ob)
	}
	tx.Put(tableMeta, metaKey, putMeta(o.pubEnv.Alloc(metaSize), false, covers), metaStampAt)
	n, err := o.o.Device.Publish(tx)
	for _, ob := range cold {
		o.cache.unpin(ob)
		ob.io.Unlock()
		o.cache.put(ob)
	}
	o.activeMu.Lock()
	defer o.activeMu.Unlock()
	o.active = append(kept, o.active...)
	return n, err
}

// record adds to tx what a commit says of one active object. It returns false, with the object cold and no longer active,
// when its mark has gone; that needs whole: io is held.
func (o *OST) record(tx *store.Tx, e *env.Env, ob *object, whole bool) (keep bool) {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	switch {
	case ob.gone:
		if whole {
			ob.active = false
		}
		return !whole
	case ob.seq > ob.covered:
		if ob.measured > ob.covered {
			o.reachLocked(ob, ob.measured)
			ob.saveLocked(tx, e)
			ob.covered = ob.measured // A change above it makes another record in the next commit.
		}
		return true
	}
	ob.idle = min(ob.idle+1, idleCommits)
	if ob.idle < idleCommits || !whole {
		return true
	}
	if ob.marked {
		tx.Delete(tableHot, objectKey(e, ob.id))
		ob.marked = false
		ob.hot.Store(false)
	}
	ob.active = false
	return false
}

// syncObject makes one object durable without waiting for the flush of all: its own file, then its record.
// Precondition: ob is loaded and ob.io is held, shared.
func (o *OST) syncObject(ctx context.Context, e *env.Env, ob *object) error {
	ob.mu.Lock()
	seq, clean := ob.seq, ob.seq <= o.committed.Load()
	ob.mu.Unlock()
	if clean {
		return nil
	}
	if err := ob.h.Sync(); err != nil {
		err = fmt.Errorf("ost: sync of object %v: %w", ob.id, err)
		o.fail(err)
		return err
	}
	n, err := o.publishOne(e, ob, seq)
	if err == nil {
		err = o.o.Device.WaitCommitted(ctx, n)
	}
	if err != nil {
		return fmt.Errorf("ost: record of object %v: %w", ob.id, err)
	}
	return nil
}

// publishOne publishes the record of an object whose changes up to number covers are flushed.
func (o *OST) publishOne(e *env.Env, ob *object, covers uint64) (store.Transno, error) {
	o.pubMu.Lock()
	defer o.pubMu.Unlock()
	ob.mu.Lock()
	defer ob.mu.Unlock()
	if ob.gone || ob.covered >= covers {
		return o.o.Device.Last(), nil
	}
	_, blocks, err := ob.h.Stat()
	if err != nil {
		return 0, err
	}
	ob.rec.blocks = uint64(blocks)
	o.reachLocked(ob, covers)
	tx := o.o.Device.Begin(e)
	ob.saveLocked(tx, e)
	ob.covered = covers
	return o.o.Device.Publish(tx)
}
