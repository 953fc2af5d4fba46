package mdt

import (
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
)

// removals remembers who took names away while that is not on disk: an entry that is gone has no record that could be
// stamped. It holds what the txgs alive have removed, and at most as much of older ones.
//
// Two names with one key, out of 2^64, make an operation wait for a commit that it did not need.
type removals struct {
	newest atomic.Uint64 // transno
	shards [64]removalShard
}

// removalShard keeps two maps: what was removed since old was last emptied, and what before that.
type removalShard struct {
	mu        sync.Mutex
	now, old  map[uint64]stamp // guarded by mu
	oldNewest store.Transno    // of old; guarded by mu
	nowNewest store.Transno    // of now; guarded by mu
}

// removalKey names an entry by its folder and the hash in its cookie.
func removalKey(folder fid.FID, cookie uint64) uint64 {
	h := uint64(folder.Seq)*0x9e3779b97f4a7c15 ^ uint64(folder.OID)*0xc2b2ae3d27d4eb4f
	return (h ^ cookie>>ordinalBits) * 0xff51afd7ed558ccd
}

func (r *removals) shard(key uint64) *removalShard { return &r.shards[key>>58] }

// add notes a removal. What is on disk up to committed is forgotten.
func (r *removals) add(key uint64, s stamp, committed store.Transno) {
	sh := r.shard(key)
	sh.mu.Lock()
	if sh.oldNewest <= committed {
		clear(sh.old)
		sh.old, sh.now = sh.now, sh.old
		sh.oldNewest, sh.nowNewest = sh.nowNewest, 0
	}
	if sh.now == nil {
		sh.now = map[uint64]stamp{}
	}
	sh.now[key] = s
	sh.nowNewest = max(sh.nowNewest, s.transno)
	sh.mu.Unlock()
	for n := r.newest.Load(); n < uint64(s.transno) && !r.newest.CompareAndSwap(n, uint64(s.transno)); n = r.newest.Load() {
	}
}

// find returns the stamp of a removal that is not on disk; zero if there is none.
func (r *removals) find(key uint64, committed store.Transno) stamp {
	if store.Transno(r.newest.Load()) <= committed {
		return stamp{}
	}
	sh := r.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s, ok := sh.now[key]
	if !ok {
		s = sh.old[key]
	}
	if s.transno <= committed {
		return stamp{}
	}
	return s
}
