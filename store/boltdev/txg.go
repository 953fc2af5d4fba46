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
	keys   atomic.Int64  // in all tables
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
	if d.o.ReadOnly {
		return 0, fmt.Errorf("boltdev: %s: %w", d.o.Dir, ErrReadOnly)
	}
	if d.err.Load() != nil || d.sealed {
		return 0, d.stoppedErr()
	}
	last := store.Transno(d.last.Load())
	n := max(last+1, d.firstOfStart)
	stamp := n
	if tx.Replay != 0 {
		if tx.Replay <= d.replayed {
			return 0, fmt.Errorf("boltdev: %w: %#x after %#x", store.ErrOrder, uint64(tx.Replay), uint64(d.replayed))
		}
		stamp, d.replayed = tx.Replay, tx.Replay
	}
	checkSteps(tx)
	tx.WriteStamps(stamp)
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
		l.keys.Add(1)
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
	if err := ctx.Err(); err != nil {
		return err
	}
	for {
		if ok, err := d.admit(reserve); ok || err != nil {
			return err
		}
		d.mu.Lock()
		moved := d.moved
		d.mu.Unlock()
		// Once more: what it waits for may have come before there was a channel to hear of it.
		if ok, err := d.admit(reserve); ok || err != nil {
			return err
		}
		d.stats.throttled.Inc()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// admit reports whether an operation may go on; if not, and without an error, it is to wait for the next commit.
func (d *Device) admit(reserve bool) (bool, error) {
	if d.err.Load() != nil {
		return false, d.Err()
	}
	if d.o.Full != nil && !reserve && d.o.Full() {
		return false, fmt.Errorf("boltdev: %s: by a fail point: %w", d.o.Dir, store.ErrNoSpace)
	}
	if cost := d.pendingCost(); !d.room(reserve, cost) {
		// What is pending may need the room. On disk it needs what it really needs.
		if cost == 0 || !d.room(reserve, 0) {
			return false, fmt.Errorf("boltdev: %s: %w", d.o.Dir, store.ErrNoSpace)
		}
		d.Hasten(d.Last())
		return false, nil
	}
	return !d.crowded.Load(), nil
}

// room reports whether there is room for n bytes more of the database and, without reserve, the reserve beside. Pages of
// the database that are free need none of the disk.
func (d *Device) room(reserve bool, n int64) bool {
	n -= d.freeBytes.Load()
	if reserve {
		return d.space.room(n + d.space.floor() - d.space.reserve)
	}
	return d.space.room(n) && d.dbBytes.Load() < d.maxBytes-mapReserve
}

// pageCost is what a commit may write for a key: its leaf page, and a share of those above.
const pageCost = pageBytes + pageBytes/4

// pendingCost is an upper bound of what the commits of the layers alive take of the disk: a page for each key, as keys
// may be random; but no page of the database is written twice in one commit, and pages are half full at least.
func (d *Device) pendingCost() int64 {
	var cost int64
	db := d.dbBytes.Load()
	for _, l := range d.view.Load().layers {
		if n := l.keys.Load(); n > 0 {
			cost += min(n*pageCost, db+2*l.bytes.Load()+minCommitBytes)
		}
	}
	return cost
}

// minCommitBytes is what any commit may take: the paths to a few pages, and the list of free ones.
const minCommitBytes = 128 << 10
