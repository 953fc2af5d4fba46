package store

import (
	"context"
	"errors"

	"github.com/strakefs/strake/fs/env"
)

// Transno numbers a published transaction of one device. The upper 20 bits are the device's start count.
type Transno uint64

// CountBits is the width of the counter part of a Transno.
const CountBits = 44

// Table is an index into the Specs that a device was opened with.
type Table uint8

// Spec describes one table.
type Spec struct {
	// Name is the table's name on disk; it never changes.
	Name string
	// Merger interprets deltas; nil for a table without.
	Merger Merger
	// Ascending tells that new keys mostly come after the ones before them; it only steers how full pages get.
	Ascending bool
}

// Merger gives deltas their meaning. Both methods append their result to dst and return it; they keep no argument.
// Combine is associative, and Apply(Apply(v, a), b) equals Apply(v, Combine(a, b)).
type Merger interface {
	// Combine gives the delta that does what a and then b do.
	Combine(dst, a, b []byte) []byte
	// Apply gives the value after the delta. base is nil when the key is absent; a nil result (len 0) removes the key.
	Apply(dst, base, delta []byte) []byte
}

// Errors of a device.
var (
	// ErrNotFound: no such key, no such object.
	ErrNotFound = errors.New("store: not found")
	// ErrStopped: the device has failed or was closed. It wraps the cause where there is one.
	ErrStopped = errors.New("store: device stopped")
	// ErrNoSpace: only the reserve is left, which deletes and replays may use.
	ErrNoSpace = errors.New("store: no space left on device")
	// ErrExists: the object is there already.
	ErrExists = errors.New("store: exists")
	// ErrOrder: a replay's number is not above the last replay's.
	ErrOrder = errors.New("store: replay out of order")
)

// Device is one local device. All methods may be called at once from many goroutines.
type Device interface {
	KV
	Objects() Objects
	// Statfs tells the space of the file system below, the reserve already taken off Avail.
	Statfs() (Statfs, error)
	// Err is nil while the device works, else why it stopped; it wraps ErrStopped.
	Err() error
	// Close commits what is published, flushes and gives the device back. Waiters get ErrStopped.
	Close() error
}

// Statfs is the space of a device, in bytes and inodes.
type Statfs struct {
	Total, Free, Avail uint64
	Inodes, FreeInodes uint64
}

// KV is the tables of a device.
type KV interface {
	// Get returns the value of a key, ErrNotFound if there is none. The value is valid until e.Reset and must not be
	// changed. It sees every transaction published before the call. It does not wait but for a page of the database.
	Get(e *env.Env, t Table, key []byte) ([]byte, error)
	// Scan calls fn for the keys in [from, to) in order until fn returns false; a nil to is the table's end. Key and
	// value are valid during the call of fn only. It sees every transaction published before the call and may see
	// later ones. fn must not wait.
	Scan(e *env.Env, t Table, from, to []byte, fn func(key, value []byte) bool) error

	// Throttle waits until the device can take more, ctx.Err() if that ends first. An operation calls it before it
	// takes locks; Publish then never waits. With reserve false it returns ErrNoSpace when only the reserve is left; with
	// reserve true when even that is used up.
	Throttle(ctx context.Context, reserve bool) error
	// Begin returns e's transaction, empty. An Env has one transaction at a time.
	Begin(e *env.Env) *Tx
	// Publish gives tx the next transno, writes it into the stamps of tx and makes tx visible. It copies what it keeps,
	// so tx's keys and values may be reused after. It never waits for the disk. A replay (tx.Replay) gets tx.Replay in
	// its stamps and a number of this start like any other, which is returned, and which Last, Committed and
	// WaitCommitted know it by. That tx.Replay is of an earlier start is the caller's to hold. It returns ErrStopped, and
	// ErrOrder for a replay whose number is not above the last replay's of this start; tx has changed nothing then.
	Publish(tx *Tx) (Transno, error)

	// Last is the newest transno given, or what the device had committed when it was opened.
	Last() Transno
	// Committed is the newest transno on disk with all before it.
	Committed() Transno
	// Hasten starts the commit of the txg that holds transno n, if it is not on its way; it does not wait.
	Hasten(n Transno)
	// WaitCommitted hastens and waits until n is on disk.
	WaitCommitted(ctx context.Context, n Transno) error
	// OnCommitted makes the device call fn after each commit with the new Committed, from the committer's goroutine, in
	// order. fn must not wait. Call it before the first Publish; further calls add functions.
	OnCommitted(fn func(Transno))
}
