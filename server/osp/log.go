package osp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// Bounds of the log's work: a destroy request names at most destroyBatch objects (36 KiB of body), and at most sentMax
// records wait for the OST's commit, so that memory stays bounded while an OST does not commit.
const (
	destroyBatch = 4096
	setattrBatch = 256
	sentMax      = 64 << 10
)

// logKey names a record that was sent.
type logKey struct {
	setattr bool
	id      fid.ObjectID
}

// sent is what became of it: the OST's number for it, and which version of the record it was.
type sent struct {
	instance uint64
	transno  wire.Transno
	stamp    store.Transno
}

// logState belongs to the log's goroutine.
type logState struct {
	sent      map[logKey]sent
	sentCount atomic.Int64
	env       *env.Env
	batch     []entry
	ids       []uint64
	// more says that the last scan stopped at a bound.
	more bool
}

// logLoop sends the records whose transactions are on disk and removes those that the OST has committed.
func (o *OSP) logLoop() {
	o.log.sent, o.log.env = map[logKey]sent{}, env.New()
	select {
	case <-o.set.recovered: // A record that is replayed has an old stamp, and may not be on disk before.
	case <-o.set.ctx.Done():
		return
	}
	wake(o.logWake)
	for {
		select {
		case <-o.logWake:
		case <-o.set.ctx.Done():
			return
		}
		for {
			o.log.more = false
			err := o.workLog(o.set.ctx)
			if o.set.ctx.Err() != nil || errors.Is(err, store.ErrStopped) {
				return
			}
			if err != nil {
				o.set.o.Log.Warn("telling an OST what it has to destroy or change", "ost", o.name, "err", err)
				if !o.pause(retryEvery) {
					return
				}
				continue
			}
			if !o.log.more {
				break
			}
		}
		o.log.sentCount.Store(int64(len(o.log.sent)))
	}
}

func (o *OSP) workLog(ctx context.Context) error {
	if err := o.forget(); err != nil {
		return err
	}
	if !o.up.Load() {
		return nil
	}
	if err := o.collect(o.set.o.Tables.Destroy, false, destroyBatch); err != nil {
		return err
	}
	if err := o.sendDestroys(ctx); err != nil {
		return fmt.Errorf("destroy: %w", err)
	}
	if err := o.collect(o.set.o.Tables.Setattr, true, setattrBatch); err != nil {
		return err
	}
	if err := o.sendSetattrs(ctx); err != nil {
		return fmt.Errorf("setattr: %w", err)
	}
	return nil
}

// forget removes the records that the OST has committed, and sends anew what an earlier instance of it may have lost.
func (o *OSP) forget() error {
	instance, committed := o.remote.Instance(), o.remote.LastCommitted()
	if o.remote.Instance() != instance {
		instance, committed = 0, 0
	}
	o.log.env.Reset()
	tx := o.set.o.Device.Begin(o.log.env)
	for k, s := range o.log.sent {
		switch {
		case s.instance != instance:
			delete(o.log.sent, k)
		case s.transno <= committed:
			delete(o.log.sent, k)
			key := putLogKey(o.log.env.Alloc(logKeySize), o.index, k.id)
			if k.setattr {
				tx.Delta(o.set.o.Tables.Setattr, key, binary.BigEndian.AppendUint64(o.log.env.Alloc(8)[:0], uint64(s.stamp)))
			} else {
				tx.Delete(o.set.o.Tables.Destroy, key)
			}
		}
	}
	if tx.Empty() {
		return nil
	}
	_, err := o.set.o.Device.Publish(tx)
	return err
}

// collect gathers into log.batch the records of this OST that are on disk and not under way.
func (o *OSP) collect(t store.Table, setattr bool, limit int) error {
	o.log.env.Reset()
	o.log.batch = o.log.batch[:0]
	committed := o.set.o.Device.Committed()
	from := binary.BigEndian.AppendUint32(nil, uint32(o.index))
	to := binary.BigEndian.AppendUint32(nil, uint32(o.index)+1)
	if o.index == layout.OSTIndex(^uint32(0)) {
		to = nil
	}
	var bad error
	err := o.set.o.Device.Scan(o.log.env, t, from, to, func(k, v []byte) bool {
		var r entry
		if r, bad = parseEntry(k, v); bad != nil {
			return false
		}
		if r.stamp > committed {
			return true
		}
		if s, ok := o.log.sent[logKey{setattr, r.id}]; ok && s.stamp >= r.stamp {
			return true
		}
		if len(o.log.batch) == limit {
			o.log.more = true
			return false
		}
		if len(o.log.sent)+len(o.log.batch) >= sentMax {
			return false // The OST's next commit wakes the loop.
		}
		o.log.batch = append(o.log.batch, r)
		return true
	})
	return errors.Join(err, bad)
}

// note enters what the OST has answered for. An answer of an instance that is gone counts for nothing.
func (o *OSP) note(setattr bool, r entry, before uint64, transno wire.Transno) {
	if o.remote.Instance() == before {
		o.log.sent[logKey{setattr, r.id}] = sent{instance: before, transno: transno, stamp: r.stamp}
	}
}

// sendDestroys sends log.batch, one request for each run of a group.
func (o *OSP) sendDestroys(ctx context.Context) error {
	for rest := o.log.batch; len(rest) > 0; {
		n := 0
		o.log.ids = o.log.ids[:0]
		for n < len(rest) && rest[n].id.Group == rest[0].id.Group {
			o.log.ids = append(o.log.ids, rest[n].id.ID)
			n++
		}
		before := o.remote.Instance()
		req := rpc.Request{Op: wire.OpDestroy, Body: &wirepb.DestroyRequest{Group: rest[0].id.Group, Ids: o.log.ids}}
		if err := o.remote.Do(ctx, &req); err != nil {
			return err
		}
		for _, r := range rest[:n] {
			o.note(false, r, before, req.Transno)
		}
		rest = rest[n:]
	}
	return nil
}

func (o *OSP) sendSetattrs(ctx context.Context) error {
	for _, r := range o.log.batch {
		before := o.remote.Instance()
		req := rpc.Request{Op: wire.OpObjectSetattr, Body: &wirepb.ObjectSetattrRequest{
			Object: &wirepb.Object{Group: r.id.Group, Id: r.id.ID},
			Valid:  uint32(attr.ValidUID | attr.ValidGID | attr.ValidProjID),
			Uid:    r.owner.UID, Gid: r.owner.GID, Project: r.owner.Project, Version: uint64(r.stamp),
		}}
		if err := o.remote.Do(ctx, &req); err != nil {
			return err
		}
		o.note(true, r, before, req.Transno)
	}
	return nil
}
