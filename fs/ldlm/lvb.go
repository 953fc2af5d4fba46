package ldlm

import (
	"errors"
	"fmt"
	"sync"

	"github.com/strakefs/strake/fs/env"
)

// LVB is the lock value block of an object's resource: what a lock carries about the object. Times are nanoseconds
// since the epoch, Size is bytes, Blocks are of 512 bytes.
type LVB struct {
	Size, Blocks        uint64
	Mtime, Atime, Ctime int64
}

// merge takes from into v: each field's larger value when only increase is allowed, else all of from.
func (v *LVB) merge(from *LVB, increaseOnly bool) {
	if !increaseOnly {
		*v = *from
		return
	}
	v.Size, v.Blocks = max(v.Size, from.Size), max(v.Blocks, from.Blocks)
	v.Mtime, v.Atime, v.Ctime = max(v.Mtime, from.Mtime), max(v.Atime, from.Atime), max(v.Ctime, from.Ctime)
}

// LVBMethods are what the owner of the resources does for their lock value blocks. They get the caller's env and may
// read the store; one resource's run one at a time. They must not call the namespace.
type LVBMethods interface {
	// Init sets v from the store, at the first lock of the resource since it was unknown.
	Init(e *env.Env, id ResID, v *LVB) error
	// Update sets v from the store as it is now. The namespace merges it.
	Update(e *env.Env, id ResID, v *LVB) error
	// Fill appends v's wire form to b.
	Fill(e *env.Env, id ResID, v *LVB, b []byte) []byte
}

// ErrNoLVB is returned where no LVB methods were given.
var ErrNoLVB = errors.New("ldlm: this namespace has no lock value blocks")

// lvbState is a resource's LVB. Its mutex is held across LVB methods, so that many first locks of an object read it
// from the store once, and an update that read early never overwrites one that read late.
type lvbState struct {
	mu    sync.Mutex
	value LVB  // guarded by mu
	disk  LVB  // guarded by mu; scratch of updates
	valid bool // guarded by mu
	// shrinks counts the times that the object may have become shorter. guarded by mu
	shrinks uint64
}

// forget is called when nobody uses the resource.
func (s *lvbState) forget() {
	s.mu.Lock()
	s.value, s.valid = LVB{}, false
	s.mu.Unlock()
}

// pinLVB finds or makes a resource's LVB and keeps the resource until unpinLVB. With create false it returns nil for
// a resource without locks.
func (ns *Namespace) pinLVB(id ResID, create bool) (*shard, *resource, *lvbState) {
	sh, hash := ns.shardOf(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var res *resource
	if create {
		res = sh.table.findOrAdd(id, hash)
	} else if res = sh.table.find(id, hash); res == nil {
		return sh, nil, nil
	}
	if res.lvb == nil {
		res.lvb = new(lvbState)
	}
	res.pins++
	return sh, res, res.lvb
}

func (sh *shard) unpinLVB(res *resource) {
	sh.mu.Lock()
	res.pins--
	sh.tidyLocked(res)
	sh.mu.Unlock()
}

// GetLVB returns a resource's LVB, read from the store when it is not known yet; it is kept while the resource has
// locks. It may wait for the store, holding nothing but this resource's LVB.
func (ns *Namespace) GetLVB(e *env.Env, id ResID) (LVB, error) {
	if ns.lvb == nil {
		return LVB{}, ErrNoLVB
	}
	sh, res, st := ns.pinLVB(id, true)
	defer sh.unpinLVB(res)
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := ns.initLVB(e, id, st); err != nil {
		return LVB{}, err
	}
	return st.value, nil
}

// initLVB reads the LVB if need be. Called with st.mu held.
func (ns *Namespace) initLVB(e *env.Env, id ResID, st *lvbState) error {
	if st.valid {
		return nil
	}
	if err := ns.lvb.Init(e, id, &st.value); err != nil {
		return fmt.Errorf("ldlm: lock value block of %v: %w", id, err)
	}
	st.valid = true
	return nil
}

// FillLVB appends the LVB of a resource in wire form to b, reading it first when it is not known.
func (ns *Namespace) FillLVB(e *env.Env, id ResID, b []byte) ([]byte, error) {
	if ns.lvb == nil {
		return b, ErrNoLVB
	}
	sh, res, st := ns.pinLVB(id, true)
	defer sh.unpinLVB(res)
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := ns.initLVB(e, id, st); err != nil {
		return b, err
	}
	return ns.lvb.Fill(e, id, &st.value, b), nil
}

// Shrinks counts the times that a resource's object may have become shorter while it had locks: take it before a holder is asked, for
// GlimpsedLVB.
func (ns *Namespace) Shrinks(id ResID) uint64 {
	sh, res, st := ns.pinLVB(id, false)
	if res == nil {
		return 0
	}
	defer sh.unpinLVB(res)
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.shrinks
}

// GlimpsedLVB is UpdateLVB with a holder's answer, which counts only if the object has not become shorter since the holder was
// asked: an answer that was on its way meanwhile is of before.
func (ns *Namespace) GlimpsedLVB(e *env.Env, id ResID, answer *LVB, shrinks uint64) error {
	return ns.updateLVB(e, id, &lvbUpdate{answer: answer, increaseOnly: true, shrinks: shrinks})
}

// UpdateLVB merges a glimpse's answer, if there is one, and then the store's own figures into a known LVB.
// increaseOnly after a glimpse, a lost glimpse race, a committed write and a cancel; decrease is allowed after
// truncate, punch, setattr and fallocate. A resource without locks is left alone: its next lock reads the store.
func (ns *Namespace) UpdateLVB(e *env.Env, id ResID, answer *LVB, increaseOnly bool) error {
	return ns.updateLVB(e, id, &lvbUpdate{answer: answer, increaseOnly: increaseOnly, shrinks: anyShrinks})
}

// lvbUpdate is what an LVB is brought up to date with.
type lvbUpdate struct {
	answer       *LVB
	increaseOnly bool
	shrinks      uint64 // the answer counts at this count only; anyShrinks at any
}

const anyShrinks = ^uint64(0)

func (ns *Namespace) updateLVB(e *env.Env, id ResID, u *lvbUpdate) error {
	answer, increaseOnly := u.answer, u.increaseOnly
	if ns.lvb == nil {
		return ErrNoLVB
	}
	sh, res, st := ns.pinLVB(id, false)
	if res == nil {
		return nil
	}
	defer sh.unpinLVB(res)
	st.mu.Lock()
	defer st.mu.Unlock()
	if !increaseOnly {
		st.shrinks++
	}
	if u.shrinks != anyShrinks && u.shrinks != st.shrinks {
		answer = nil
	}
	if !st.valid {
		if answer == nil {
			return nil
		}
		if err := ns.initLVB(e, id, st); err != nil {
			return err
		}
	}
	if answer != nil {
		st.value.merge(answer, true)
	}
	if err := ns.lvb.Update(e, id, &st.disk); err != nil {
		return fmt.Errorf("ldlm: update of the lock value block of %v: %w", id, err)
	}
	st.value.merge(&st.disk, increaseOnly)
	return nil
}
