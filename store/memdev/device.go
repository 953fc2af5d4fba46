package memdev

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
)

// ErrCrashed is why a device that has crashed does not work; errors wrap it and store.ErrStopped.
var ErrCrashed = errors.New("memdev: crashed")

// ErrInUse is returned by Open for a disk that a Device uses.
var ErrInUse = errors.New("memdev: disk in use")

// Disk is what survives a crash. The zero Disk is not ready: use NewDisk.
type Disk struct {
	mu        sync.Mutex
	starts    uint64                    // guarded by mu
	committed store.Transno             // guarded by mu
	tables    map[string]*table         // by name; guarded by mu
	objects   map[fid.ObjectID]*content // guarded by mu
	label     store.Label               // guarded by mu
	inUse     bool                      // guarded by mu
}

// NewDisk returns an empty disk.
func NewDisk() *Disk {
	return &Disk{tables: map[string]*table{}, objects: map[fid.ObjectID]*content{}}
}

// Sync describes one step that makes something durable.
type Sync struct {
	// N counts the syncs of a Device from 1.
	N int
	// What is "commit", "flush", "object" or "label".
	What string
}

// Options of a Device.
type Options struct {
	// Specs are the tables.
	Specs []store.Spec
	// Label is written to a disk that has none.
	Label store.Label
	// CommitInterval is the time from the first publish to the commit; 0 is 500 ms, negative is never: then only
	// Hasten, WaitCommitted, Commit and Close commit.
	CommitInterval time.Duration
	// OnSync, if set, runs before each sync. An error fails the sync, and with it the device. It may call Crash of the
	// device's own and must not call anything else of it.
	OnSync func(Sync) error
}

// Device implements store.Device and store.Labeled in memory.
type Device struct {
	disk    *Disk
	options Options
	objects objects
	syncs   atomic.Int64
	full    atomic.Bool

	commitMu sync.Mutex // held over one commit and its callbacks
	syncMu   sync.Mutex // held over one sync
	mu       sync.RWMutex
	tables   []*table              // guarded by mu
	log      []entry               // published and not on disk, in transno order; guarded by mu
	last     store.Transno         // guarded by mu
	next     store.Transno         // the lowest number that a new transaction may have; guarded by mu
	replayed store.Transno         // the last Tx.Replay of this start; guarded by mu
	done     store.Transno         // committed; guarded by mu
	hastened store.Transno         // guarded by mu
	err      error                 // guarded by mu
	moved    chan struct{}         // closed and replaced when done or err changes; guarded by mu
	fns      []func(store.Transno) // guarded by mu

	wake    chan struct{} // capacity 1: the committer has something to do now
	stopped chan struct{} // closed with err
	ended   chan struct{} // the committer has returned
}

// entry is one published transaction.
type entry struct {
	n     store.Transno
	steps []store.Step
}

// Open starts using a disk. The device holds what was durable when the last one crashed or closed.
func Open(disk *Disk, o Options) (*Device, error) {
	if o.CommitInterval == 0 {
		o.CommitInterval = 500 * time.Millisecond
	}
	disk.mu.Lock()
	defer disk.mu.Unlock()
	if disk.inUse {
		return nil, ErrInUse
	}
	disk.inUse = true
	disk.starts++
	if disk.label.Kind == "" {
		disk.label = o.Label
	}
	d := &Device{
		disk: disk, options: o,
		last: disk.committed, done: disk.committed, next: store.Transno(disk.starts<<store.CountBits | 1),
		moved: make(chan struct{}), wake: make(chan struct{}, 1),
		stopped: make(chan struct{}), ended: make(chan struct{}),
	}
	for _, s := range o.Specs {
		if disk.tables[s.Name] == nil {
			disk.tables[s.Name] = newTable()
		}
		d.tables = append(d.tables, disk.tables[s.Name].clone())
	}
	d.objects.init(d)
	go d.committer()
	return d, nil
}

// Crash stops the device at once, as a power cut does: what no sync has made durable is gone, and every method returns
// an error that wraps ErrCrashed. The disk can be opened again.
func (d *Device) Crash() { d.stop(ErrCrashed) }

// Commit commits everything published and flushes the objects, as far as the device works.
func (d *Device) Commit() error {
	if err := d.commit(); err != nil {
		return err
	}
	return d.objects.flush()
}

// SetFull makes the device behave as one with only its reserve left, or not.
func (d *Device) SetFull(full bool) { d.full.Store(full) }

// Syncs tells how many syncs there have been.
func (d *Device) Syncs() int { return int(d.syncs.Load()) }

// Close implements store.Device.
func (d *Device) Close() error {
	err := d.Commit()
	d.stop(nil)
	<-d.ended
	if errors.Is(err, store.ErrStopped) {
		return nil
	}
	return err
}

// Err implements store.Device.
func (d *Device) Err() error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.err
}

// stop ends the device with a cause; nil is a close. The disk is free after it: no sync is under way or follows.
func (d *Device) stop(cause error) {
	d.mu.Lock()
	if d.err != nil {
		d.mu.Unlock()
		return
	}
	d.err = store.ErrStopped
	if cause != nil {
		d.err = fmt.Errorf("%w: %w", store.ErrStopped, cause)
	}
	close(d.stopped)
	close(d.moved)
	d.moved = make(chan struct{})
	d.mu.Unlock()
	d.disk.mu.Lock()
	d.disk.inUse = false
	d.disk.mu.Unlock()
}

// sync runs one step that makes something durable: change runs with the disk locked, after OnSync allowed it. A failure
// stops the device.
func (d *Device) sync(what string, change func(*Disk)) error {
	d.syncMu.Lock()
	defer d.syncMu.Unlock()
	n := int(d.syncs.Add(1))
	if err := d.Err(); err != nil {
		return err
	}
	if d.options.OnSync != nil {
		if err := d.options.OnSync(Sync{N: n, What: what}); err != nil {
			d.stop(fmt.Errorf("memdev: %s: %w", what, err))
		}
	}
	// The device's lock keeps a crash out of the change: it happens before or after.
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.err != nil {
		return d.err
	}
	d.disk.mu.Lock()
	defer d.disk.mu.Unlock()
	change(d.disk)
	return nil
}

// Label implements store.Labeled.
func (d *Device) Label() store.Label {
	d.disk.mu.Lock()
	defer d.disk.mu.Unlock()
	return d.disk.label
}

// SetLabel implements store.Labeled.
func (d *Device) SetLabel(l store.Label) error {
	return d.sync("label", func(disk *Disk) { disk.label = l })
}

// diskBytes is the size that Statfs reports: enough for every test, small enough for sums of several.
const diskBytes = 1 << 40

// Statfs implements store.Device: a disk of 1 TiB without the objects' blocks.
func (d *Device) Statfs() (store.Statfs, error) {
	if err := d.Err(); err != nil {
		return store.Statfs{}, err
	}
	used, files := d.objects.usage()
	s := store.Statfs{
		Total: diskBytes, Free: diskBytes - used, Avail: diskBytes - used, Inodes: 1 << 30, FreeInodes: 1<<30 - files,
	}
	if d.full.Load() {
		s.Avail = 0
	}
	return s, nil
}

// Objects implements store.Device.
func (d *Device) Objects() store.Objects { return &d.objects }
