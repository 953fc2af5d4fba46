package boltdev

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/store"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// reader is one read transaction of the database with a cursor per table. One goroutine uses it at a time, for one Get
// or Scan; between them it stands idle until the next commit, so that a steady Get allocates nothing.
type reader struct {
	tx        *bolt.Tx
	committed store.Transno // what this snapshot holds
	gen       uint64
	cursors   []*bolt.Cursor
}

// readers hands out read transactions.
type readers struct {
	d      *Device
	mu     sync.Mutex
	gen    uint64      // counts renewals; guarded by mu
	idle   []*reader   // of generation gen; guarded by mu
	inUse  []readerUse // by generation, oldest first, none empty; guarded by mu
	closed bool        // guarded by mu
}

// readerUse counts the readers of one generation that are at work.
type readerUse struct {
	gen   uint64
	n     int
	since time.Time // when a newer generation came; zero for the newest
}

// take returns a reader of a snapshot that is not older than the call.
func (p *readers) take() (*reader, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, p.d.stoppedErr()
	}
	if n := len(p.inUse); n > 0 && p.inUse[n-1].gen == p.gen {
		p.inUse[n-1].n++
	} else {
		p.inUse = append(p.inUse, readerUse{gen: p.gen, n: 1})
	}
	gen := p.gen
	if n := len(p.idle); n > 0 {
		r := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return r, nil
	}
	p.mu.Unlock()
	r, err := p.begin(gen)
	if err != nil {
		p.mu.Lock()
		p.doneLocked(gen)
		p.mu.Unlock()
		return nil, err
	}
	return r, nil
}

func (p *readers) begin(gen uint64) (*reader, error) {
	tx, err := p.d.db.Begin(false)
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return nil, p.d.stoppedErr()
	}
	if err != nil {
		return nil, fmt.Errorf("boltdev: read: %w", err)
	}
	r := &reader{tx: tx, gen: gen, cursors: make([]*bolt.Cursor, len(p.d.o.Specs))}
	r.committed = readCommitted(tx)
	return r, nil
}

// give takes a reader back.
func (p *readers) give(r *reader) {
	p.mu.Lock()
	p.doneLocked(r.gen)
	keep := r.gen == p.gen && !p.closed
	if keep {
		p.idle = append(p.idle, r)
	}
	p.mu.Unlock()
	if !keep {
		_ = r.tx.Rollback() // of a read transaction; it cannot fail but by being closed
	}
}

func (p *readers) doneLocked(gen uint64) {
	i := slices.IndexFunc(p.inUse, func(u readerUse) bool { return u.gen == gen })
	if p.inUse[i].n--; p.inUse[i].n == 0 {
		p.inUse = slices.Delete(p.inUse, i, i+1)
	}
}

// renew makes every later take see a snapshot that is not older than now.
func (p *readers) renew() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.gen++
	if n := len(p.inUse); n > 0 && p.inUse[n-1].since.IsZero() {
		p.inUse[n-1].since = time.Now()
	}
	p.mu.Unlock()
	for _, r := range idle {
		_ = r.tx.Rollback()
	}
}

func (p *readers) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.renew()
}

// oldest tells how long ago the oldest snapshot in use was replaced by a newer one, which is how long it has kept pages
// from being used again, and how many readers are at work.
func (p *readers) oldest() (age time.Duration, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.inUse {
		n += u.n
	}
	if n > 0 && !p.inUse[0].since.IsZero() {
		age = time.Since(p.inUse[0].since)
	}
	return age, n
}

// cursor returns the reader's cursor on a table, nil for one that is not on disk.
func (r *reader) cursor(d *Device, t store.Table) *bolt.Cursor {
	c := r.cursors[t]
	if c == nil {
		b := r.tx.Bucket(bucketOf(d.o.Specs[t].Name))
		if b == nil && d.o.ReadOnly {
			return nil // Only a start that may write adds it.
		}
		c = b.Cursor()
		r.cursors[t] = c
	}
	return c
}

// guarded runs the three below: a damaged page makes bbolt panic, a page that cannot be read makes the processor fault.
// Both become ErrCorrupt, and stop the device. Nothing else may run under it: a caller's panic is the caller's.
func (d *Device) guarded(before bool, err *error) {
	debug.SetPanicOnFault(before)
	if r := recover(); r != nil {
		*err = fmt.Errorf("read: %w: %v", ErrCorrupt, r)
		d.stop(*err)
		*err = d.Err()
	}
}

// exact returns the value of key in scratch memory of e, nil if there is none.
func (r *reader) exact(d *Device, e *env.Env, t store.Table, key []byte) (v []byte, err error) {
	before := debug.SetPanicOnFault(true)
	defer d.guarded(before, &err)
	c := r.cursor(d, t)
	if c == nil {
		return nil, nil
	}
	if k, b := c.Seek(key); k != nil && bytes.Equal(k, key) {
		checkSizes(k, b)
		v = e.Copy(b)
	}
	return v, nil
}

// step moves the cursor of s to from, or on if from is nil, and copies what is there.
func (r *reader) step(d *Device, s *scan, from []byte) (err error) {
	before := debug.SetPanicOnFault(true)
	defer d.guarded(before, &err)
	var k, v []byte
	if s.cursor == nil {
		s.has = false
		return nil
	}
	if from != nil {
		k, v = s.cursor.Seek(from)
	} else {
		k, v = s.cursor.Next()
	}
	checkSizes(k, v)
	s.has = k != nil
	s.key, s.value = append(s.key[:0], k...), append(s.value[:0], v...)
	return nil
}

// checkSizes panics for sizes that nobody has put: a damaged page can name 4 GiB, and a copy would take them.
func checkSizes(k, v []byte) {
	if len(k) > maxKeyBytes || len(v) > maxValueBytes {
		panic(fmt.Sprintf("a key of %d bytes with a value of %d", len(k), len(v)))
	}
}

// scratch is what the device keeps in an Env.
type scratch struct {
	apply [2][]byte // deltas are applied from one to the other
	scans []*scan   // not in use: a Scan inside a Scan takes another one
}

func scratchOf(e *env.Env) *scratch {
	s := store.StateOf(e)
	if c, ok := s.Device.(*scratch); ok {
		return c
	}
	c := &scratch{}
	s.Device = c
	return c
}

// maxLayers alive: open, closed, syncing.
const maxLayers = 3

// found is what the layers know of one key: a put or delete, or nothing of either, and the deltas above, newest first.
type found struct {
	base   *version
	deltas [maxLayers]*version
	from   [maxLayers]*layer // whose delta it is
	n      int
}

// add takes the version of the next older layer; it reports whether older ones do not matter.
func (f *found) add(v *version, l *layer) bool {
	if v == nil {
		return false
	}
	if v.kind != store.Delta {
		f.base = v
		return true
	}
	f.deltas[f.n], f.from[f.n] = v, l
	f.n++
	return false
}

// value puts the deltas on a base that holds every transaction up to committed. The result is in e's scratch memory,
// in the overlay, or base itself; nil when there is no such key.
func (f *found) value(e *env.Env, m store.Merger, base []byte, committed store.Transno) []byte {
	if f.n == 0 {
		return base
	}
	s := scratchOf(e)
	for i := f.n - 1; i >= 0; i-- {
		if uint64(committed) >= f.from[i].last.Load() {
			continue // the base has it
		}
		dst := m.Apply(s.apply[i&1][:0], base, f.deltas[i].value)
		s.apply[i&1] = dst
		if base = dst; len(dst) == 0 {
			base = nil
		}
	}
	return base
}

// Get implements store.KV.
func (d *Device) Get(e *env.Env, t store.Table, key []byte) ([]byte, error) {
	if d.err.Load() != nil {
		return nil, d.Err()
	}
	// The layers first, then the database: what is committed between is in both, and never in neither.
	visible := store.Transno(d.last.Load())
	return d.getIn(e, t, key, snapshot{d.view.Load(), visible})
}

// snapshot is what a reader looks into: the layers it has found, and the newest transno it may see there.
type snapshot struct {
	view    *view
	visible store.Transno
}

// getIn is Get in a snapshot that may be old by now.
func (d *Device) getIn(e *env.Env, t store.Table, key []byte, in snapshot) ([]byte, error) {
	var f found
	var hash uint64
	for _, l := range in.view.layers {
		tl := &l.tables[t]
		if tl.slots.Load() == nil {
			continue
		}
		if hash == 0 {
			hash = maphash.Bytes(d.seed, key)
		}
		if en := tl.find(hash, key); en != nil && f.add(en.at(in.visible), l) {
			break
		}
	}
	m := d.o.Specs[t].Merger
	if f.base != nil {
		v := f.base.value
		if f.base.kind == store.Delete {
			v = nil
		}
		return d.result(e, &f, f.value(e, m, v, 0))
	}
	return d.getBelow(e, t, key, &f)
}

// result returns a value that is valid until e.Reset.
func (d *Device) result(e *env.Env, f *found, v []byte) ([]byte, error) {
	if v == nil {
		return nil, store.ErrNotFound
	}
	if f.n > 0 {
		v = e.Copy(v)
	}
	return v, nil
}

// getBelow looks into the database and puts the deltas of f on what is there.
func (d *Device) getBelow(e *env.Env, t store.Table, key []byte, f *found) ([]byte, error) {
	r, err := d.readers.take()
	if err != nil {
		return nil, err
	}
	base, err := r.exact(d, e, t, key)
	committed := r.committed
	d.readers.give(r)
	if err != nil {
		return nil, err
	}
	return d.result(e, f, f.value(e, d.o.Specs[t].Merger, base, committed))
}
