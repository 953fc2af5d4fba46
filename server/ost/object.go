package ost

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
)

// object is an object's state in memory: its record, and a handle. The handle is open while somebody uses the object, and
// for as long as there is room for open files after that; the record stays for as long as there is memory, and while the object
// is active.
type object struct {
	id fid.ObjectID
	// io orders what is done to the file: shared by reads and writes, whole for truncate, punch, fallocate, destroy
	// and for clearing the hot mark.
	io     sync.RWMutex
	loaded atomic.Bool  // h is open and the state is there; set with mu held, cleared by whoever closes h
	hot    atomic.Bool  // may be written: the mark or the fresh range is on disk; cleared with io held whole
	size   atomic.Int64 // of the file, changed with mu held

	mu       sync.Mutex
	stated   bool         // size, rec and hot are there; guarded by mu, and by a reference: without users it holds still
	recorded bool         // the tables hold a record; guarded by mu
	gone     bool         // destroyed; guarded by mu, and by a reference
	marked   bool         // a hot mark of its own is in the tables; guarded by mu
	active   bool         // in the active list, which pins it; guarded by mu
	idle     int8         // commits since the last change; guarded by mu
	saved    charge       // what the tables charge for it, if recorded; guarded by mu
	rec      record       // guarded by mu
	h        store.Object // set with mu held; used by who has a reference and found it loaded
	seq      uint64       // number of the newest change; guarded by mu
	said     uint64       // the number that its client knows it by: of a replay, the one of then; guarded by mu
	covered  uint64       // changes up to here are in the record; guarded by mu
	measured uint64       // rec.blocks is the host's figure of a commit that covers this number; guarded by mu

	refs   int32              // users; guarded by the shard's mu
	pinned bool               // stays in the table without users; guarded by the shard's mu
	on     [listKinds]bool    // the lists that it is in; guarded by the shard's mu
	links  [listKinds]linkage // guarded by the shard's mu
	chain  *object            // the next one of its bucket; guarded by the shard's mu
}

// load opens the object and reads its record, as far as that is not there. It returns false for one without a file.
// Precondition: the caller has a reference.
func (o *OST) load(e *env.Env, ob *object) (bool, error) {
	if ob.loaded.Load() {
		return true, nil
	}
	ob.mu.Lock()
	defer ob.mu.Unlock()
	if ob.loaded.Load() {
		return true, nil
	}
	if ob.gone {
		return false, nil
	}
	h, err := o.o.Device.Objects().Open(ob.id)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ost: open object %v: %w", ob.id, err)
	}
	if !ob.stated {
		size, _, err := h.Stat()
		if err == nil {
			err = o.loadRecordLocked(e, ob)
		}
		if err != nil {
			h.Close() //nolint:errcheck // Nothing was written.
			return false, fmt.Errorf("ost: object %v: %w", ob.id, err)
		}
		ob.size.Store(size)
		ob.hot.Store(ob.id.ID > o.group(ob.id.Group).fresh.Load())
		ob.stated = true
	}
	ob.h = h
	ob.loaded.Store(true)
	return true, nil
}

// loadRecordLocked reads the object's record if it has one.
func (o *OST) loadRecordLocked(e *env.Env, ob *object) error {
	v, err := o.o.Device.Get(e, tableObjects, objectKey(e, ob.id))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := ob.rec.parse(v); err != nil {
		return err
	}
	ob.saved, ob.recorded = ob.rec.charge, true
	return nil
}
