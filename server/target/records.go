package target

import (
	"bytes"
	"context"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/store"
)

// Records are the tables of a target as a checker reads them: of its device, or of a running target over the wire.
type Records interface {
	// Scan calls fn for the records from key from on, in key order, until fn returns false or ctx ends, whose error it then
	// returns. Key and value are valid during fn only. What is changed meanwhile may be seen or not.
	Scan(ctx context.Context, t store.Table, from []byte, fn func(key, value []byte) bool) error
	// Get returns a copy of a value, store.ErrNotFound without one.
	Get(ctx context.Context, t store.Table, key []byte) ([]byte, error)
}

// DeviceRecords are the records of a device.
type DeviceRecords struct{ store.KV }

// scanStep is how many records one scan of the device goes over: its read transaction keeps pages from being used again.
const scanStep = 4096

// Scan implements Records.
func (d DeviceRecords) Scan(ctx context.Context, t store.Table, from []byte, fn func(key, value []byte) bool) error {
	e := env.New()
	at := bytes.Clone(from)
	for {
		n, ended := 0, false
		err := d.KV.Scan(e, t, at, nil, func(k, v []byte) bool {
			n++
			ended = !fn(k, v)
			if n == scanStep {
				at = append(append(at[:0], k...), 0) // The next key there can be.
			}
			return !ended && n < scanStep
		})
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || ended || n < scanStep {
			return err
		}
		e.Reset()
	}
}

// Get implements Records.
func (d DeviceRecords) Get(_ context.Context, t store.Table, key []byte) ([]byte, error) {
	v, err := d.KV.Get(env.New(), t, key)
	return bytes.Clone(v), err
}
