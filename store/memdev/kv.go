package memdev

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/store"
)

// Get implements store.KV.
func (d *Device) Get(e *env.Env, t store.Table, key []byte) ([]byte, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.err != nil {
		return nil, d.err
	}
	v, ok := d.tables[t].values[string(key)]
	if !ok {
		return nil, store.ErrNotFound
	}
	return e.Copy(v), nil
}

// scanPage is how many keys Scan takes under the lock at once.
const scanPage = 64

// Scan implements store.KV. The memory that fn sees is overwritten after it, to show who keeps it.
func (d *Device) Scan(_ *env.Env, t store.Table, from, to []byte, fn func(key, value []byte) bool) error {
	type pair struct{ key, value []byte }
	next, hasTo := string(from), to != nil
	var keys []string
	for {
		var page []pair
		d.mu.RLock()
		if d.err != nil {
			d.mu.RUnlock()
			return d.err
		}
		keys = d.tables[t].page(keys[:0], scanPage, next, string(to), hasTo)
		for _, k := range keys {
			page = append(page, pair{[]byte(k), bytes.Clone(d.tables[t].values[k])})
		}
		d.mu.RUnlock()
		for _, p := range page {
			ok := fn(p.key, p.value)
			scribble(p.key)
			scribble(p.value)
			if !ok {
				return nil
			}
		}
		if len(keys) < scanPage {
			return nil
		}
		next = keys[len(keys)-1] + "\x00"
	}
}

func scribble(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
}

// Throttle implements store.KV. It never waits: memory is what the tests give it.
func (d *Device) Throttle(ctx context.Context, reserve bool) error {
	if err := d.Err(); err != nil {
		return err
	}
	if d.full.Load() && !reserve {
		return store.ErrNoSpace
	}
	return ctx.Err()
}

// Begin implements store.KV.
func (d *Device) Begin(e *env.Env) *store.Tx { return store.BeginTx(e) }

// Publish implements store.KV.
func (d *Device) Publish(tx *store.Tx) (store.Transno, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return 0, d.err
	}
	n := max(d.last+1, d.next)
	stamp := n
	if tx.Replay != 0 {
		if tx.Replay <= d.replayed {
			return 0, fmt.Errorf("%w: %#x after %#x", store.ErrOrder, uint64(tx.Replay), uint64(d.replayed))
		}
		stamp, d.replayed = tx.Replay, tx.Replay
	}
	tx.WriteStamps(stamp)
	steps := make([]store.Step, len(tx.Steps))
	for i, s := range tx.Steps {
		s.Key, s.Value = bytes.Clone(s.Key), bytes.Clone(s.Value)
		steps[i] = s
		d.tables[s.Table].apply(&s, d.options.Specs[s.Table].Merger)
	}
	d.log = append(d.log, entry{n, steps})
	d.last = n
	if len(d.log) == 1 {
		d.poke()
	}
	return n, nil
}

// poke makes the committer look at the log.
func (d *Device) poke() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Last implements store.KV.
func (d *Device) Last() store.Transno {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.last
}

// Committed implements store.KV.
func (d *Device) Committed() store.Transno {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.done
}

// Hasten implements store.KV.
func (d *Device) Hasten(n store.Transno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n = min(n, d.last); n > d.done && n > d.hastened {
		d.hastened = n
		d.poke()
	}
}

// WaitCommitted implements store.KV.
func (d *Device) WaitCommitted(ctx context.Context, n store.Transno) error {
	d.Hasten(n)
	for {
		d.mu.RLock()
		done, err, moved := d.done, d.err, d.moved
		d.mu.RUnlock()
		if done >= n {
			return nil
		}
		if err != nil {
			return err
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

// committer commits when the interval has passed since the first publish, and at once when it is hastened.
func (d *Device) committer() {
	defer close(d.ended)
	var due <-chan time.Time
	for {
		select {
		case <-d.stopped:
			return
		case <-due:
			due = nil
			_ = d.commit() // A failure has stopped the device; it is told by Err.
		case <-d.wake:
			d.mu.RLock()
			pending, now := len(d.log) > 0, d.hastened > d.done
			d.mu.RUnlock()
			if pending && now {
				due = nil
				_ = d.commit()
			} else if pending && due == nil && d.options.CommitInterval > 0 {
				due = time.After(d.options.CommitInterval)
			}
		}
	}
}

// commit makes what is published now durable and tells everyone.
func (d *Device) commit() error {
	d.commitMu.Lock()
	defer d.commitMu.Unlock()
	d.mu.RLock()
	log, err := d.log, d.err
	d.mu.RUnlock()
	if err != nil || len(log) == 0 {
		return err
	}
	n := log[len(log)-1].n
	err = d.sync("commit", func(disk *Disk) {
		for _, e := range log {
			for i := range e.steps {
				spec := d.options.Specs[e.steps[i].Table]
				disk.tables[spec.Name].apply(&e.steps[i], spec.Merger)
			}
		}
		disk.committed = n
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.log = append([]entry(nil), d.log[len(log):]...)
	d.done = n
	close(d.moved)
	d.moved = make(chan struct{})
	fns := d.fns
	if len(d.log) > 0 {
		d.poke()
	}
	d.mu.Unlock()
	for _, fn := range fns {
		fn(n)
	}
	return nil
}
