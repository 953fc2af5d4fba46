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

// object is an object's state in memory: an open handle and its record. The handle is open while somebody uses the object,
// and for as long as there is room after that; the state is there with the handle, and while the object is active.
type object struct {
	id fid.ObjectID
	// io orders what is done to the file: shared by reads and writes, whole for truncate, punch, fallocate, destroy
	// and for clearing the hot mark.
	io     sync.RWMutex
	loaded atomic.Bool  // h is open and the state is there; set with mu held, cleared by whoever closes h
	hot    atomic.Bool  // may be written: the mark or the fresh range is on disk; cleared with io held whole
	size   atomic.Int64 // of the file, changed with mu held

	mu       sync.Mutex
	h        store.Object // set with mu held; used by who has a reference and found it loaded
	stated   bool         // size, rec and hot are there; guarded by mu
	rec      record       // guarded by mu
	saved    record       // the record in the tables, if recorded; guarded by mu
	recorded bool         // the tables hold a record; guarded by mu
	gone     bool         // destroyed; guarded by mu
	marked   bool         // a hot mark of its own is in the tables; guarded by mu
	active   bool         // in the active list, which pins it; guarded by mu
	idle     int          // commits since the last change; guarded by mu
	seq      uint64       // number of the newest change; guarded by mu
	covered  uint64       // changes up to here are in the record; guarded by mu
	measured uint64       // rec.blocks is the host's figure of a commit that covers this number; guarded by mu

	refs       int     // users; guarded by the shard's mu
	pinned     bool    // stays in the table without users; guarded by the shard's mu
	next, prev *object // in the shard's list of unused ones with an open handle; guarded by the shard's mu
}

const cacheShards = 64

// cache holds objects by id, in shards, each with its own lock and list of unused ones with an open handle, oldest first.
// Used objects keep theirs, so it can grow past its bound while they are in use: it refuses nothing because it is full.
type cache struct {
	shards   [cacheShards]shard
	perShard int
	hits     atomic.Int64
	misses   atomic.Int64
	purged   atomic.Int64
}

type shard struct {
	mu      sync.Mutex
	objects map[fid.ObjectID]*object // guarded by mu
	unused  object                   // head of a ring: next is the oldest; guarded by mu
	count   int                      // length of the ring; guarded by mu
	_       [64]byte                 // shards on cache lines of their own
}

func (c *cache) init(maxObjects int) {
	c.perShard = max(maxObjects/cacheShards, 1)
	for i := range c.shards {
		s := &c.shards[i]
		s.objects = map[fid.ObjectID]*object{}
		s.unused.next, s.unused.prev = &s.unused, &s.unused
	}
}

func (c *cache) shard(id fid.ObjectID) *shard {
	return &c.shards[(id.ID*0x9e3779b97f4a7c15+uint64(id.Group))>>58]
}

// get returns the object of an id with a reference. It may not be loaded.
func (c *cache) get(id fid.ObjectID) *object {
	s := c.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	ob := s.objects[id]
	if ob == nil {
		c.misses.Add(1)
		ob = &object{id: id, refs: 1}
		s.objects[id] = ob
		return ob
	}
	c.hits.Add(1)
	s.refLocked(ob)
	return ob
}

func (s *shard) refLocked(ob *object) {
	if ob.refs == 0 && ob.next != nil {
		s.unlinkLocked(ob)
	}
	ob.refs++
}

// ref takes a reference on an object that is pinned or that the caller has one on.
func (c *cache) ref(ob *object) {
	s := c.shard(ob.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refLocked(ob)
}

// put gives a reference back. When too many unused objects have a handle, the oldest one's is closed; an object without
// users, handle and pin leaves the table.
func (c *cache) put(ob *object) {
	var close store.Object
	s := c.shard(ob.id)
	s.mu.Lock()
	ob.refs--
	switch {
	case ob.refs > 0:
	case !ob.loaded.Load():
		s.leaveLocked(ob)
	default:
		last := s.unused.prev
		last.next, ob.prev, ob.next, s.unused.prev = ob, last, &s.unused, ob
		s.count++
		if s.count > c.perShard {
			old := s.unused.next
			s.unlinkLocked(old)
			close, old.h = old.h, nil
			old.loaded.Store(false)
			s.leaveLocked(old)
			c.purged.Add(1)
		}
	}
	s.mu.Unlock()
	if close != nil {
		close.Close() //nolint:errcheck // What was written has its errors from WriteAt and Flush.
	}
}

func (s *shard) unlinkLocked(ob *object) {
	ob.prev.next, ob.next.prev = ob.next, ob.prev
	ob.next, ob.prev = nil, nil
	s.count--
}

// leaveLocked takes an object without users and handle out of the table, unless it is pinned.
func (s *shard) leaveLocked(ob *object) {
	if !ob.pinned {
		delete(s.objects, ob.id)
	}
}

// pin keeps an object in the table without users, its handle closed when there is no room.
// Precondition: the caller has a reference.
func (c *cache) pin(ob *object) {
	s := c.shard(ob.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	ob.pinned = true
}

// unpin ends pin.
// Precondition: the caller has a reference.
func (c *cache) unpin(ob *object) {
	s := c.shard(ob.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	ob.pinned = false
}

// each calls fn for every object in the cache, with a reference held and no lock.
func (c *cache) each(fn func(*object)) {
	var batch []*object
	for i := range c.shards {
		s := &c.shards[i]
		batch = batch[:0]
		s.mu.Lock()
		for _, ob := range s.objects {
			s.refLocked(ob)
			batch = append(batch, ob)
		}
		s.mu.Unlock()
		for _, ob := range batch {
			fn(ob)
			c.put(ob)
		}
	}
}

// close closes every handle. Nothing may use the cache any more.
func (c *cache) close() {
	for i := range c.shards {
		for _, ob := range c.shards[i].objects {
			if ob.h != nil {
				ob.h.Close() //nolint:errcheck // The last commit has flushed.
			}
		}
	}
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
	ob.saved, ob.recorded = ob.rec, true
	return nil
}
