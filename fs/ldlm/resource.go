package ldlm

import (
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/fid"
)

// Type says what the locks of a resource protect; the values are the published ones.
type Type uint8

// The types.
const (
	TypePlain     Type = 10 // one thing; modes alone decide
	TypeExtent    Type = 11 // bytes of an object
	TypeFlock     Type = 12 // flock and fcntl locks of applications
	TypeInodeBits Type = 13 // parts of an inode
)

// ResID names a resource: what it is about and the type of its locks.
type ResID struct {
	Seq  uint64 // FID's sequence, or an object's group
	OID  uint64 // FID's object id << 32 | version, or an object's number
	Hash uint64 // name's hash for a lock on one name of a folder; otherwise 0
	Type Type
}

// InodeRes is the resource of an inode's bits.
func InodeRes(f fid.FID) ResID {
	return ResID{Seq: uint64(f.Seq), OID: uint64(f.OID)<<32 | uint64(f.Ver), Type: TypeInodeBits}
}

// NameRes is the resource of one name in a folder: parallel operations take a weak lock on the folder and a full one
// here, with hash != 0 made of the name.
func NameRes(parent fid.FID, hash uint64) ResID {
	r := InodeRes(parent)
	r.Hash = hash
	return r
}

// FlockRes is the resource of a file's flock and fcntl locks.
func FlockRes(f fid.FID) ResID {
	r := InodeRes(f)
	r.Type = TypeFlock
	return r
}

// ObjectRes is the resource of an object's bytes.
func ObjectRes(o fid.ObjectID) ResID {
	return ResID{Seq: uint64(o.Group), OID: o.ID, Type: TypeExtent}
}

// PlainRes is a resource without parts, such as one of the quota master's ids.
func PlainRes(seq, oid uint64) ResID { return ResID{Seq: seq, OID: oid, Type: TypePlain} }

// FID is the file that the resource is about; it means nothing for objects and plain resources.
func (r ResID) FID() fid.FID {
	return fid.FID{Seq: fid.Seq(r.Seq), OID: uint32(r.OID >> 32), Ver: uint32(r.OID)}
}

// Object is the object whose bytes the resource is about; it means nothing for other types.
func (r ResID) Object() fid.ObjectID { return fid.ObjectID{Group: uint32(r.Seq), ID: r.OID} }

// String prints the name in the field's form, [0x200000401:0x5:0x0].0x0 and a type in words.
func (r ResID) String() string {
	switch r.Type {
	case TypeExtent:
		return fmt.Sprintf("[0x%x:0x%x] extent", r.OID, r.Seq)
	case TypeFlock:
		return r.FID().String() + " flock"
	case TypeInodeBits:
		return fmt.Sprintf("%v.0x%x ibits", r.FID(), r.Hash)
	}
	return fmt.Sprintf("[0x%x:0x%x] plain", r.Seq, r.OID)
}

// valid reports whether a peer may name such a resource.
func (r ResID) valid() bool { return r.Type >= TypePlain && r.Type <= TypeInodeBits }

// resource is one thing that can be locked. All but the inside of lvb is guarded by its shard's mu.
type resource struct {
	id    ResID
	hash  uint64
	chain *resource // next of its bucket, or of the spare resources

	// granted holds the granted locks by mode. Invariant: in each, locks not called back stand before called-back ones.
	granted [numModes]list
	// waiting holds the waiting ones first come, first served, GROUP ahead of all others.
	waiting list
	// converting holds granted locks that wait for a stronger mode or more bits, first come, first served.
	converting []*lock

	trees *trees     // of extents; kept when the resource is reused
	bits  *bitCounts // once it has held countedFrom locks; kept when the resource is reused
	flock *flockState
	lvb   *lvbState
	// waitBits is the union of the bits of waiting locks by mode.
	waitBits [numModes]Bits

	contention contention
	nGranted   int32
	pins       int32 // users of the LVB
	own        int32 // locks with Own, granted or waiting
	counted    bool  // bits is in use
	queued     bool  // in the list of resources that an eviction has to look at again
}

// trees are a resource's interval trees by mode.
type trees struct {
	granted [numModes]tree
	waiting [numModes]tree
}

// countedFrom is the number of granted locks from which a resource keeps bitCounts (252 bytes): below, a walk is as
// cheap.
const countedFrom = 16

func (r *resource) empty() bool {
	return r.nGranted == 0 && r.waiting.n == 0 && r.pins == 0 && (r.flock == nil || len(r.flock.table.ranges) == 0)
}

// add puts a lock among the granted ones.
func (r *resource) add(l *lock) {
	q := &r.granted[l.mode.index()]
	if l.has(markBlocked) {
		q.pushBack(l, linkQueue)
	} else {
		q.pushFront(l, linkQueue)
	}
	r.nGranted++
	if r.id.Type == TypeExtent {
		r.trees.granted[l.mode.index()].insert(l)
		return
	}
	switch {
	case r.counted:
		r.bits.add(l.mode, l.bits, 1)
	case r.nGranted >= countedFrom:
		r.count()
	}
}

// count begins to keep bitCounts.
func (r *resource) count() {
	if r.bits == nil {
		r.bits = new(bitCounts)
	}
	*r.bits = bitCounts{}
	r.counted = true
	for i := range r.granted {
		for l := r.granted[i].head; l != nil; l = l.links[linkQueue].next {
			r.bits.add(l.mode, l.bits, 1)
		}
	}
}

// drop takes a lock out of the granted ones.
func (r *resource) drop(l *lock) {
	r.granted[l.mode.index()].remove(l, linkQueue)
	r.nGranted--
	if r.id.Type == TypeExtent {
		r.trees.granted[l.mode.index()].remove(l)
	} else if r.counted {
		r.bits.add(l.mode, l.bits, ^uint32(0))
	}
}

// wait puts a lock into the waiting queue: GROUP behind the GROUP locks at the front, others at the end.
func (r *resource) wait(l *lock) {
	l.state = stateWaiting
	if l.mode != GROUP || r.id.Type == TypeFlock {
		r.waiting.pushBack(l, linkQueue)
		r.waitIndex(l)
		return
	}
	var at *lock
	for w := r.waiting.head; w != nil && w.mode == GROUP; w = w.links[linkQueue].next {
		at = w
	}
	r.waiting.insertAfter(at, l, linkQueue)
	r.waitIndex(l)
}

// waitIndex enters a waiting lock into what answers "does a waiting lock conflict".
func (r *resource) waitIndex(l *lock) {
	switch r.id.Type {
	case TypeExtent:
		r.trees.waiting[l.mode.index()].insert(l)
	case TypeInodeBits, TypePlain:
		r.waitBits[l.mode.index()] |= l.bits
	}
}

// resetWaitIndex empties the index; the walk over the queue that follows fills it again.
func (r *resource) resetWaitIndex() {
	r.waitBits = [numModes]Bits{}
	if r.trees != nil {
		r.trees.waiting = [numModes]tree{}
	}
}

// contention is a decaying count of conflicts: this window's and the one before, weighted by how much of it is still
// inside the last window's length.
type contention struct {
	window time.Duration // start of this window
	until  time.Duration // contended until
	now    uint32
	prev   uint32
}

// count adds n conflicts at a time and returns the decayed sum.
func (c *contention) count(now, length time.Duration, n uint32) uint32 {
	switch age := now - c.window; {
	case c.now == 0 && c.prev == 0, age >= 2*length, age < 0:
		c.window, c.now, c.prev = now, 0, 0
	case age >= length:
		c.window, c.prev, c.now = c.window+length, c.now, 0
	}
	c.now += n
	left := length - (now - c.window)
	return c.now + uint32(uint64(c.prev)*uint64(left)/uint64(length))
}
