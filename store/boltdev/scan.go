package boltdev

import (
	"bytes"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/store"
	bolt "go.etcd.io/bbolt"
)

// scan is the state of one Scan: where it stands in each layer and in the database.
type scan struct {
	layers [maxLayers]*layer // newest first, those that the database does not hold
	at     [maxLayers]*entry
	n      int
	// The database's side: the pair that the cursor stands on, copied.
	cursor     *bolt.Cursor
	has        bool
	key, value []byte
	// out is the value given to fn, where it had to be made.
	out []byte
}

// takeScan returns a scan of e's that is not in use.
func takeScan(e *env.Env) *scan {
	c := scratchOf(e)
	if n := len(c.scans); n > 0 {
		s := c.scans[n-1]
		c.scans = c.scans[:n-1]
		return s
	}
	return &scan{value: []byte{}} // never nil: an empty value is a value
}

// giveScan takes a scan back, without what it refers to.
func giveScan(e *env.Env, s *scan) {
	s.layers, s.at, s.n, s.cursor = [maxLayers]*layer{}, [maxLayers]*entry{}, 0, nil
	c := scratchOf(e)
	c.scans = append(c.scans, s)
}

// Scan implements store.KV.
func (d *Device) Scan(e *env.Env, t store.Table, from, to []byte, fn func(key, value []byte) bool) error {
	if d.err.Load() != nil {
		return d.Err()
	}
	// The layers first, then the database, as in Get.
	visible := store.Transno(d.last.Load())
	return d.scanIn(e, t, span{from, to}, fn, snapshot{d.view.Load(), visible})
}

// span is a range of keys; a nil to is the table's end.
type span struct{ from, to []byte }

// scanIn is Scan in a snapshot that may be old by now.
func (d *Device) scanIn(e *env.Env, t store.Table, keys span, fn func(k, v []byte) bool, in snapshot) error {
	r, err := d.readers.take()
	if err != nil {
		return err
	}
	defer d.readers.give(r)
	s := takeScan(e)
	defer giveScan(e, s)
	for _, l := range in.view.layers {
		if uint64(r.committed) < l.last.Load() && l.tables[t].count.Load() > 0 {
			s.layers[s.n], s.at[s.n] = l, l.tables[t].seek(keys.from)
			s.n++
		}
	}
	s.cursor = r.cursor(d, t)
	from := keys.from
	if from == nil {
		from = []byte{}
	}
	if err := r.step(d, s, from); err != nil {
		return err
	}
	for {
		key := s.next(in.visible)
		if key == nil || keys.to != nil && bytes.Compare(key, keys.to) >= 0 {
			return nil
		}
		value, stored := s.take(e, d.o.Specs[t].Merger, key, in.visible)
		if value != nil && !fn(key, value) {
			return nil
		}
		if stored {
			if err := r.step(d, s, nil); err != nil {
				return err
			}
		}
	}
}

// next returns the lowest key that any side stands on, nil at the end. Entries that are not visible are passed.
func (s *scan) next(visible store.Transno) []byte {
	var key []byte
	if s.has {
		key = s.key
	}
	for i := range s.n {
		for s.at[i] != nil && s.at[i].at(visible) == nil {
			s.at[i] = s.at[i].next[0].Load()
		}
		if en := s.at[i]; en != nil && (key == nil || bytes.Compare(en.key, key) < 0) {
			key = en.key
		}
	}
	return key
}

// take returns the value of the key that next gave, nil if it is deleted, and moves the layers past it. stored tells
// that the database stands on it and is to be moved once the key and value have been used.
func (s *scan) take(e *env.Env, m store.Merger, key []byte, visible store.Transno) (value []byte, stored bool) {
	var f found
	done := false
	for i := range s.n {
		en := s.at[i]
		if en == nil || !bytes.Equal(en.key, key) {
			continue
		}
		s.at[i] = en.next[0].Load()
		done = done || f.add(en.at(visible), s.layers[i])
	}
	stored = s.has && bytes.Equal(s.key, key)
	var base []byte
	switch {
	case f.base != nil && f.base.kind == store.Put:
		base = f.base.value
	case f.base == nil && stored:
		base = s.value
	}
	value = f.value(e, m, base, 0)
	if f.n > 0 && value != nil {
		// A Get inside fn uses the memory that the deltas were applied in.
		s.out = append(s.out[:0], value...)
		value = s.out
	}
	return value, stored
}
