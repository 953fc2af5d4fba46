package boltdev

import (
	"encoding/binary"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/strakefs/strake/store"
	bolt "go.etcd.io/bbolt"
)

// committer is the one goroutine that writes the database. It ends when the device stops, or is closing and everything
// is on disk.
func (d *Device) committer() {
	defer close(d.ended)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		l, wait := d.nextTxg()
		switch {
		case l != nil:
			if err := d.commit(l); err != nil {
				d.stop(fmt.Errorf("commit of transnos %#x to %#x: %w", uint64(l.first), l.last.Load(), err))
				return
			}
			continue
		case wait < 0:
			return
		case wait == 0:
			<-d.wake
		default:
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-d.wake:
			}
		}
		d.space.mayRefresh()
	}
}

// nextTxg returns the txg to write now, as the syncing one. Without one it tells how long to wait: 0 until something
// happens, negative when the committer is to end.
func (d *Device) nextTxg() (*layer, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err.Load() != nil {
		return nil, -1
	}
	if d.closed == nil {
		l := d.open
		if l.first == 0 {
			if d.closing {
				d.sealed = true
				return nil, -1
			}
			return nil, 0
		}
		wait := d.o.CommitInterval - time.Since(l.begun)
		if !d.closing && d.wanted < l.first && !d.fullLocked(l) && wait > 0 {
			return nil, wait
		}
		if d.o.Hold != nil && !d.closing && !d.fullLocked(l) && d.o.Hold() {
			return nil, holdTime
		}
		d.closeOpenLocked()
	}
	d.syncing, d.closed = d.closed, nil
	if d.fullLocked(d.open) {
		d.closeOpenLocked() // it had to wait for the place
	}
	d.setViewLocked()
	if d.crowded.Load() && !d.crowdedLocked() {
		d.tellMovedLocked()
	}
	return d.syncing, 0
}

// holdTime is how long a txg that is held stays unlooked at.
const holdTime = 20 * time.Millisecond

// tellMovedLocked wakes who waits for a commit or for room.
func (d *Device) tellMovedLocked() {
	close(d.moved)
	d.moved = make(chan struct{})
}

// commit writes a closed layer to the database and takes it out of the view.
func (d *Device) commit(l *layer) error {
	start := time.Now()
	if err := d.fault("commit"); err != nil {
		return err
	}
	// An idle read transaction would keep the pages that the last commit freed from being used by this one.
	d.readers.renew()
	backup := d.tail.Load()
	if err := d.write(l, backup); err != nil {
		return err
	}
	// What the layer took must be known before it stops counting as pending, or the next one is promised it too.
	d.measure()
	// Readers that see the view without the layer must read a database with it.
	d.readers.renew()
	d.stats.committed(l, time.Since(start))
	last := store.Transno(l.last.Load())
	if backup != nil {
		backup.committed(last)
	}
	d.mu.Lock()
	d.syncing = nil
	d.setViewLocked()
	d.done.Store(uint64(last))
	d.tellMovedLocked()
	fns := d.fns
	d.mu.Unlock()
	for _, fn := range fns {
		fn(last)
	}
	return nil
}

// measure takes the database's size and the room left as they are now. Figures that cannot be had stay as they were.
func (d *Device) measure() {
	_ = d.db.View(func(tx *bolt.Tx) error {
		d.dbBytes.Store(tx.Size())
		return nil
	})
	_, _ = d.space.refresh()
}

// update runs a write transaction of the database. A damaged page makes bbolt panic, a page that cannot be read makes
// the processor fault; both become errors here.
func (d *Device) update(fn func(*bolt.Tx) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrCorrupt, r)
			d.broken.Store(true)
		}
	}()
	err = d.db.Update(fn)
	s := d.db.Stats()
	d.freeBytes.Store(int64(s.FreePageN+s.PendingPageN) * pageBytes)
	return err
}

// write puts the layer into the database in one transaction, and what it changes into a backup's tail, if there is one.
func (d *Device) write(l *layer, backup *tail) error {
	return d.update(func(tx *bolt.Tx) error {
		d.dbBytes.Store(tx.Size())
		for i := range l.tables {
			if l.tables[i].count.Load() == 0 {
				continue
			}
			if err := d.writeTable(tx, store.Table(i), &l.tables[i], backup); err != nil {
				return fmt.Errorf("table %s: %w", d.o.Specs[i].Name, err)
			}
		}
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], l.last.Load())
		return tx.Bucket(bucketDevice).Put(keyCommitted, b[:])
	})
}

// fillAscending is the fill of pages of tables whose keys come in order: what is behind a split is never filled up
// later, so bbolt's half would waste half of the pages. Not 1.0, for the few values that grow.
const fillAscending = 0.9

// writeTable writes one table of a layer in key order.
func (d *Device) writeTable(tx *bolt.Tx, t store.Table, l *tableLayer, backup *tail) error {
	spec := d.o.Specs[t]
	b := tx.Bucket(bucketOf(spec.Name))
	if spec.Ascending {
		b.FillPercent = fillAscending
	}
	var puts, deletes int64
	for e := l.head[0].Load(); e != nil; e = e.next[0].Load() {
		v := e.ver.Load()
		value, kind := v.value, v.kind
		if kind == store.Delta {
			value = spec.Merger.Apply(nil, b.Get(e.key), v.value)
			kind = store.Put
			if len(value) == 0 {
				kind = store.Delete
			}
		}
		var err error
		if kind == store.Put {
			puts++
			err = b.Put(e.key, value)
		} else {
			deletes++
			err = b.Delete(e.key)
		}
		if err != nil {
			return err
		}
		switch {
		case backup == nil:
		case kind == store.Put:
			backup.put(t, e.key, value)
		default:
			backup.remove(t, e.key)
		}
	}
	d.tableStats[t].puts.Add(puts)
	d.tableStats[t].deletes.Add(deletes)
	return nil
}
