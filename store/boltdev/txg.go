package boltdev

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/store"
	bolt "go.etcd.io/bbolt"
)

// layer is one txg in memory.
type layer struct {
	tables []tableLayer
	arena  arena         // guarded by Device.mu while open
	first  store.Transno // guarded by Device.mu; 0 while empty
	ops    int           // transactions; guarded by Device.mu
	bytes  atomic.Int64  // the arena's use
	begun  time.Time     // when the first transaction came; guarded by Device.mu
	// last is the txg's last transno, MaxUint64 while it is open: a database that has committed it holds the layer.
	last atomic.Uint64
}

func newLayer(tables int) *layer {
	l := &layer{tables: make([]tableLayer, tables)}
	l.last.Store(math.MaxUint64)
	return l
}

// view is the layers alive, newest first: open, closed, syncing. It does not change.
type view struct{ layers []*layer }

// Begin implements store.KV.
func (d *Device) Begin(e *env.Env) *store.Tx { return store.BeginTx(e) }

// Publish implements store.KV.
func (d *Device) Publish(tx *store.Tx) (store.Transno, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err.Load() != nil || d.sealed {
		return 0, d.stoppedErr()
	}
	last := store.Transno(d.last.Load())
	n := max(last+1, d.firstOfStart)
	if tx.Replay != 0 {
		if tx.Replay <= last {
			return 0, fmt.Errorf("boltdev: %w: %#x after %#x", store.ErrOrder, uint64(tx.Replay), uint64(last))
		}
		n = tx.Replay
	}
	checkSteps(tx)
	tx.WriteStamps(n)
	l := d.open
	if l.first == 0 {
		l.first, l.begun = n, time.Now()
		d.poke()
	}
	for i := range tx.Steps {
		d.mergeLocked(l, n, &tx.Steps[i])
	}
	l.ops++
	l.bytes.Store(l.arena.used)
	d.last.Store(uint64(n))
	if d.fullLocked(l) {
		if d.closed == nil {
			d.closeOpenLocked()
			d.poke()
		} else {
			d.crowded.Store(true)
		}
	}
	return n, nil
}

// Largest key and value. A larger key bbolt refuses; a value takes as many free pages in a row as it is long.
const (
	maxKeyBytes   = bolt.MaxKeySize
	maxValueBytes = 16 << 20
)

// checkSteps panics for a transaction that no commit could write: it would stop the device much later.
func checkSteps(tx *store.Tx) {
	for i := range tx.Steps {
		s := &tx.Steps[i]
		if len(s.Key) == 0 || len(s.Key) > maxKeyBytes || len(s.Value) > maxValueBytes {
			panic(fmt.Sprintf("boltdev: publish: table %d: key of %d bytes, value of %d", s.Table, len(s.Key), len(s.Value)))
		}
	}
}

// fullLocked reports whether a layer is as large as a txg should get.
func (d *Device) fullLocked(l *layer) bool {
	return l.arena.used >= d.o.TxgMaxBytes || l.ops >= d.o.TxgMaxOps
}

// closeOpenLocked opens the next txg and closes the open one, which is not empty. Precondition: none is closed.
func (d *Device) closeOpenLocked() {
	l := d.open
	l.last.Store(d.last.Load())
	d.closed = l
	d.open = newLayer(len(d.o.Specs))
	for i := range d.open.tables {
		// The next one will be like this one; it starts with a hash table of that size, and does not grow into it.
		if n := l.tables[i].count.Load(); n > minSlots {
			d.open.tables[i].resize(int(2 * n))
		}
	}
	d.setViewLocked()
}

// setViewLocked shows the layers alive to the readers.
func (d *Device) setViewLocked() {
	v := &view{layers: make([]*layer, 0, 3)}
	for _, l := range []*layer{d.open, d.closed, d.syncing} {
		if l != nil {
			v.layers = append(v.layers, l)
		}
	}
	d.view.Store(v)
}

// mergeLocked does one step of transaction n on the open layer.
func (d *Device) mergeLocked(l *layer, n store.Transno, s *store.Step) {
	t := &l.tables[s.Table]
	hash := maphash.Bytes(d.seed, s.Key)
	v := l.arena.version()
	v.n, v.kind = n, s.Kind
	d.tableStats[s.Table].published.Inc()
	e := t.find(hash, s.Key)
	if e == nil {
		v.value = l.arena.keep(s.Value)
		t.insert(&l.arena, hash, s.Key, v)
		return
	}
	d.tableStats[s.Table].merged.Inc()
	old := e.ver.Load()
	v.prev = old
	if old.n == n {
		v.prev = old.prev
	}
	if s.Kind == store.Delta {
		v.kind, d.merge = combine(d.o.Specs[s.Table].Merger, old, s.Value, d.merge[:0])
		v.value = l.arena.keep(d.merge)
	} else {
		v.value = l.arena.keep(s.Value)
	}
	e.ver.Store(v)
}

// combine puts a delta on what a layer knows of a key. The result is appended to dst.
func combine(m store.Merger, old *version, delta, dst []byte) (store.Kind, []byte) {
	switch old.kind {
	case store.Delta:
		return store.Delta, m.Combine(dst, old.value, delta)
	case store.Put:
		dst = m.Apply(dst, old.value, delta)
	default:
		dst = m.Apply(dst, nil, delta)
	}
	if len(dst) == 0 {
		return store.Delete, dst
	}
	return store.Put, dst
}

// Throttle implements store.KV.
func (d *Device) Throttle(ctx context.Context, reserve bool) error {
	for {
		if d.err.Load() != nil {
			return d.Err()
		}
		if !reserve && (!d.space.room(d.pendingBytes()) || d.dbBytes.Load() > d.maxBytes-mapReserve) {
			return fmt.Errorf("boltdev: %s: %w", d.o.Dir, store.ErrNoSpace)
		}
		if !d.crowded.Load() {
			return ctx.Err()
		}
		d.mu.Lock()
		moved, crowded := d.moved, d.crowdedLocked()
		d.mu.Unlock()
		if !crowded {
			continue
		}
		d.stats.throttled.Inc()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
