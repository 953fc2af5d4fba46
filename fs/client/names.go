package client

import (
	"hash/maphash"
	"sync"
)

// Names knows, for folders that this mount made, every name that can be in them, so that a lookup of another name (the
// kernel sends one before each create) is answered without a request. It holds hashes and may say "perhaps" for a name
// that is not there, never "absent" for one that is.
//
// Invariant: a name is added before the request that creates it is sent, and removed after the reply that removed it.
type Names struct {
	seed maphash.Seed
	max  int
	mu   sync.Mutex
	// dirs maps a folder's inode number to the names that can be in it. guarded by mu
	dirs  map[uint64]map[uint64]uint32
	total int
}

func (n *Names) init(limit int) {
	n.seed, n.max, n.dirs = maphash.MakeSeed(), limit, make(map[uint64]map[uint64]uint32)
}

func (n *Names) len() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.total
}

// begin starts knowing an empty folder.
func (n *Names) begin(dir uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.dirs) < n.max && n.dirs[dir] == nil {
		n.dirs[dir] = make(map[uint64]uint32)
		n.total++
	}
}

// reset stops knowing every folder.
func (n *Names) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.dirs)
	n.total = 0
}

// forget stops knowing a folder.
func (n *Names) forget(dir uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgetLocked(dir)
}

func (n *Names) forgetLocked(dir uint64) {
	if set, ok := n.dirs[dir]; ok {
		n.total -= len(set) + 1
		delete(n.dirs, dir)
	}
}

// add notes that a name may come to be in a folder. A full memory forgets this folder, and costs requests only.
func (n *Names) add(dir uint64, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	set, ok := n.dirs[dir]
	if !ok {
		return
	}
	h := maphash.String(n.seed, name)
	if set[h]++; set[h] == 1 {
		n.total++
	}
	if n.total > n.max {
		n.forgetLocked(dir)
	}
}

// remove notes that a name has left a folder.
func (n *Names) remove(dir uint64, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	set, ok := n.dirs[dir]
	if !ok {
		return
	}
	h := maphash.String(n.seed, name)
	switch set[h] {
	case 0:
	case 1:
		delete(set, h)
		n.total--
	default:
		set[h]--
	}
}

// absent reports whether the folder is known and has no such name.
func (n *Names) absent(dir uint64, name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	set, ok := n.dirs[dir]
	return ok && set[maphash.String(n.seed, name)] == 0
}
