package ldlm

// A handle is 64 bits:
//
//	bits 63..56  shard of the lock's resource
//	bits 55..32  slot in the shard's lock table
//	bits 31..0   generation, never 0: the shard's count of locks when this one was made, begun at a random number
//
// A slot is used again with another generation, so a handle of a lock that is gone finds nothing, before a restart
// or after it. A client that names another one's handle finds nothing either: find compares the client.
const (
	handleShardShift = 56
	handleSlotShift  = 32
	// maxSlots bounds the locks of one shard; beyond it enqueues are denied with status.NoMemory (4 GiB of locks).
	maxSlots  = 1 << 24
	maxShards = 1 << 8
)

func (h Handle) shard() int { return int(h >> handleShardShift) }
func (h Handle) slot() int  { return int(h >> handleSlotShift & (maxSlots - 1)) }

// spareLocks is the number of free locks that a shard keeps beside a quarter of the live ones.
const spareLocks = 64

// lockTable finds the locks of one shard by handle, and keeps free ones for reuse.
type lockTable struct {
	slots []*lock  // nil: the slot is in free
	free  []uint32 // slots without a lock object
	spare list     // free locks, linked by linkQueue; they keep their slots
	gen   uint32
	live  int
}

// take returns a lock with a new handle and nothing else set, nil when the shard is full.
func (t *lockTable) take(shard int) *lock {
	l := t.spare.head
	slot := 0
	switch {
	case l != nil:
		t.spare.remove(l, linkQueue)
		slot = l.handle.slot()
	case len(t.free) > 0:
		l = new(lock)
		slot = int(t.free[len(t.free)-1])
		t.free = t.free[:len(t.free)-1]
	case len(t.slots) < maxSlots:
		l = new(lock)
		slot = len(t.slots)
		t.slots = append(t.slots, nil)
	default:
		return nil
	}
	if t.gen++; t.gen == 0 {
		t.gen = 1
	}
	*l = lock{handle: Handle(shard)<<handleShardShift | Handle(slot)<<handleSlotShift | Handle(t.gen)}
	t.slots[slot] = l
	t.live++
	return l
}

// give takes a lock back.
func (t *lockTable) give(l *lock) {
	l.state, l.data, l.res = stateFree, nil, nil
	t.live--
	t.spare.pushFront(l, linkQueue)
	for int(t.spare.n) > spareLocks+t.live/4 {
		last := t.spare.tail
		t.spare.remove(last, linkQueue)
		t.slots[last.handle.slot()] = nil
		t.free = append(t.free, uint32(last.handle.slot()))
	}
}

// find returns the client's lock of a handle, nil when it has none.
func (t *lockTable) find(h Handle, client ClientID) *lock {
	if h.slot() >= len(t.slots) {
		return nil
	}
	l := t.slots[h.slot()]
	if l == nil || l.handle != h || l.state == stateFree || l.client != client {
		return nil
	}
	return l
}
