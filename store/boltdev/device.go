package boltdev

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/store"
	bolt "go.etcd.io/bbolt"
)

// Device implements store.Device and store.Labeled on a folder of a local file system.
type Device struct {
	o       Options
	lock    *os.File // the folder, locked for this process
	db      *bolt.DB
	file    *os.File    // of db
	broken  atomic.Bool // bbolt has panicked in a write: it may hold its locks for ever
	seed    maphash.Seed
	objects objects
	space   space
	readers readers

	stats      deviceStats
	tableStats []tableStats

	// last is the newest transno published, which is what readers may see; done the newest one on disk.
	last, done atomic.Uint64
	// err is why the device stopped, nil while it works. It is set under mu.
	err     atomic.Pointer[error]
	view    atomic.Pointer[view]
	crowded atomic.Bool // Throttle waits

	maxBytes int64        // the database's map: its file stays below
	dbBytes  atomic.Int64 // its pages at the last commit but one
	// freeBytes is its pages that are free after the last commit, or with the next one.
	freeBytes atomic.Int64

	firstOfStart store.Transno // the lowest transno of this start

	mu sync.Mutex
	// open takes transactions; closed waits for the committer, syncing is being written; both may be nil. guarded by mu
	open, closed, syncing *layer
	replayed              store.Transno         // the last Tx.Replay of this start; guarded by mu
	wanted                store.Transno         // a caller waits for this one; guarded by mu
	closing               bool                  // guarded by mu
	sealed                bool                  // closing, and everything published is on disk; guarded by mu
	moved                 chan struct{}         // closed and replaced at each commit and at the stop; guarded by mu
	fns                   []func(store.Transno) // guarded by mu
	merge                 []byte                // scratch of mergeLocked; guarded by mu

	labelMu  sync.Mutex
	label    store.Label // guarded by labelMu
	restored *Restored   // nil for a device that was not, or whose target knows; guarded by labelMu

	tail atomic.Pointer[tail] // of the backup that runs; nil without

	wake  chan struct{} // capacity 1: the committer has something to look at
	ended chan struct{} // the committer has returned

	once     sync.Once // the closing of db and lock
	closeErr error     // what it met; written in once
}

// Err implements store.Device.
func (d *Device) Err() error {
	if p := d.err.Load(); p != nil {
		return *p
	}
	return nil
}

// stop ends the device: nothing is published, committed or flushed after it. A nil cause is a close. It reports
// whether it was the first.
func (d *Device) stop(cause error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err.Load() != nil {
		return false
	}
	err := fmt.Errorf("boltdev: %s: %w", d.o.Dir, store.ErrStopped)
	if cause != nil {
		err = fmt.Errorf("boltdev: %s: %w: %w", d.o.Dir, store.ErrStopped, cause)
		d.o.Log.Error("device stopped: it answers nothing that it cannot keep; mend the disk and start the target again",
			"dir", d.o.Dir, "err", cause)
	}
	d.err.Store(&err)
	d.crowded.Store(false)
	close(d.moved)
	d.moved = make(chan struct{})
	d.poke()
	return true
}

// poke makes the committer look.
func (d *Device) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// crowdedLocked reports whether three txgs are alive and the open one is full.
func (d *Device) crowdedLocked() bool {
	c := d.err.Load() == nil && d.closed != nil && d.fullLocked(d.open)
	d.crowded.Store(c)
	return c
}

// pendingBytes is the memory of the layers alive.
func (d *Device) pendingBytes() int64 {
	var n int64
	for _, l := range d.view.Load().layers {
		n += l.bytes.Load()
	}
	return n
}

// Last implements store.KV.
func (d *Device) Last() store.Transno { return store.Transno(d.last.Load()) }

// Committed implements store.KV.
func (d *Device) Committed() store.Transno { return store.Transno(d.done.Load()) }

// Hasten implements store.KV.
func (d *Device) Hasten(n store.Transno) {
	if uint64(n) <= d.done.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// A number that nobody has would keep the device committing for ever.
	if n = min(n, store.Transno(d.last.Load())); n > d.wanted {
		d.wanted = n
		d.poke()
	}
}

// WaitCommitted implements store.KV.
func (d *Device) WaitCommitted(ctx context.Context, n store.Transno) error {
	d.Hasten(n)
	for {
		d.mu.Lock()
		moved := d.moved
		d.mu.Unlock()
		if uint64(n) <= d.done.Load() {
			return nil
		}
		if d.err.Load() != nil {
			return d.Err()
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// OnCommitted implements store.KV.
func (d *Device) OnCommitted(fn func(store.Transno)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fns = append(d.fns, fn)
}

// Objects implements store.Device.
func (d *Device) Objects() store.Objects { return &d.objects }

// SetShares says that n devices whose space is summed up are on one file system: each shows its part, so that the sum is
// the file system's.
func (d *Device) SetShares(n int) {
	d.space.mu.Lock()
	d.space.shares = uint64(n)
	d.space.mu.Unlock()
	d.space.stale.Store(true)
}

// Statfs implements store.Device.
func (d *Device) Statfs() (store.Statfs, error) {
	if err := d.Err(); err != nil {
		return store.Statfs{}, err
	}
	return d.space.refresh()
}

// Close implements store.Device. It returns why the device failed, if it did.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closing = true
	d.poke()
	d.mu.Unlock()
	<-d.ended
	d.once.Do(func() {
		err := d.Err()
		if err == nil && !d.o.ReadOnly {
			err = d.objects.Flush(context.Background())
		}
		d.stop(nil)
		d.readers.close()
		d.objects.close()
		d.unregister()
		d.closeErr = errors.Join(err, d.closeDB(), d.lock.Close())
	})
	return d.closeErr
}

// closeDB closes the database. One that bbolt has panicked in is let go with its file; its map stays.
func (d *Device) closeDB() error {
	if d.broken.Load() {
		return d.file.Close()
	}
	return d.db.Close()
}

// stoppedErr is Err, or ErrStopped while a close is under way.
func (d *Device) stoppedErr() error {
	if err := d.Err(); err != nil {
		return err
	}
	return fmt.Errorf("boltdev: %s: closing: %w", d.o.Dir, store.ErrStopped)
}
