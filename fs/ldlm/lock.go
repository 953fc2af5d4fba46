package ldlm

import (
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/extent"
)

// Handle names a lock of one namespace: shard, slot and generation, see handle.go. Zero names none. It says nothing
// about who may use it: every step that takes one from a peer also takes the peer's ClientID.
type Handle uint64

// String prints h as the field's tools do.
func (h Handle) String() string { return fmt.Sprintf("0x%x", uint64(h)) }

// ClientID numbers a client of a server's namespace (its export). Local is the server itself, and on a client's
// mirror the client itself.
type ClientID uint64

// Local is the owner of locks that no peer holds.
const Local ClientID = 0

// Flags of a request; they stay with the lock.
type Flags uint16

// The flags.
const (
	// NoExpansion keeps a granted extent at what was asked (lockahead, locknoexpand).
	NoExpansion Flags = 1 << iota
	// NoWait denies with status.Again what cannot be granted at once, and calls nobody back.
	NoWait
	// Speculative is NoWait for a lock asked ahead of need.
	Speculative
	// Glimpse asks for the LVB: a lock when one is free, otherwise holders of write locks are asked.
	Glimpse
	// Replay hands back a lock held before a restart: exactly its extent and bits, ahead of waiting locks. One that
	// conflicts with a granted lock is denied with status.Stale.
	Replay
	// DiscardData says that what the lock covers need not be written back: the object is being destroyed.
	DiscardData
	// Own is for the server's own requests, with a Cause: an operation of that client. Neither its locks nor those of the
	// client keep the other out, granted or waiting, so a client's operations never cost it its own locks.
	Own
)

// state is where a lock stands.
type state uint8

const (
	stateFree state = iota
	stateWaiting
	stateGranted
	// stateCancelling: a mirror's lock that is being given back; nobody matches it.
	stateCancelling
)

// mark is what has happened to a lock.
type mark uint16

const (
	// markBlocked: the holder was asked to give it back, or will be with its completion.
	markBlocked mark = 1 << iota
	// markUntold: granted from the queue and the completion not built yet; a blocking AST is folded into it.
	markUntold
	// markConverting: also in its resource's converting queue.
	markConverting
	// markReturning: some bits of a mirror's lock are on their way back.
	markReturning
	// markListed: in the shard's list by age or deadline.
	markListed
	// markPosix: a waiting fcntl lock, which takes part in deadlock detection.
	markPosix
	// markDiscard: called back by a lock with DiscardData.
	markDiscard
)

// The intrusive lists a lock can be in.
const (
	linkQueue  = iota // its resource's granted or waiting queue
	linkClient        // its client's locks in this shard
	linkAge           // unused, granted or called-back locks by time
	numLinks
)

// lock is one lock. All of it is guarded by its shard's mu. Fields are ordered to keep it in 208 bytes: a server holds
// millions.
type lock struct {
	res    *resource
	handle Handle
	remote Handle // the peer's handle of the same lock
	client ClientID
	data   any // the caller's own

	ext extent.Extent // granted; while waiting what was asked
	req extent.Extent // what was asked

	links       [numLinks]struct{ prev, next *lock }
	left, right *lock  // interval tree: of granted or of waiting locks
	max         uint64 // interval tree: largest End below

	owner   uint64        // group id, flock owner, or the cause of a COS or TXN lock
	stamp   time.Duration // last use, grant, or the deadline of a called-back lock
	seq     uint64        // order of enqueueing in its shard
	pid     uint32        // flock
	pins    int32         // mirror: users
	bits    Bits
	tryBits Bits
	called  Bits // bits that the blocking AST named
	mode    Mode
	newMode Mode // converting
	newBits Bits // converting
	flags   Flags
	marks   mark
	state   state
	height  int8
}

func (l *lock) has(m mark) bool { return l.marks&m != 0 }

// Desc describes a lock: what was granted, asked or stands in the way.
type Desc struct {
	Mode   Mode
	Bits   Bits
	Extent extent.Extent
	// GID is the group of a GROUP lock.
	GID uint64
}

// disown makes a lock of an operation of a client one of nobody's.
func (l *lock) disown() {
	if l.flags&Own != 0 {
		l.flags &^= Own
		l.res.own--
	}
}

func (l *lock) desc() Desc {
	d := Desc{Mode: l.mode, Bits: l.bits, Extent: l.ext}
	if l.mode == GROUP {
		d.GID = l.owner
	}
	if l.res.id.Type == TypePlain {
		d.Bits = 0
	}
	return d
}

// list is a doubly linked list of locks over one of their links.
type list struct {
	head, tail *lock
	n          int32
}

func (q *list) pushFront(l *lock, link int) {
	l.links[link].prev, l.links[link].next = nil, q.head
	if q.head != nil {
		q.head.links[link].prev = l
	} else {
		q.tail = l
	}
	q.head = l
	q.n++
}

func (q *list) pushBack(l *lock, link int) { q.insertAfter(q.tail, l, link) }

// insertAfter puts l behind at, or to the front when at is nil.
func (q *list) insertAfter(at, l *lock, link int) {
	if at == nil {
		q.pushFront(l, link)
		return
	}
	next := at.links[link].next
	l.links[link].prev, l.links[link].next = at, next
	at.links[link].next = l
	if next != nil {
		next.links[link].prev = l
	} else {
		q.tail = l
	}
	q.n++
}

func (q *list) remove(l *lock, link int) {
	prev, next := l.links[link].prev, l.links[link].next
	if prev != nil {
		prev.links[link].next = next
	} else {
		q.head = next
	}
	if next != nil {
		next.links[link].prev = prev
	} else {
		q.tail = prev
	}
	l.links[link].prev, l.links[link].next = nil, nil
	q.n--
}
