package storetest

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/store"
)

// Maker makes an empty disk for one test.
type Maker func(t testing.TB) Disk

// Disk is what a device stands on.
type Disk interface {
	// Open opens the device. interval is the commit interval; negative means that only Hasten, WaitCommitted and Close
	// commit.
	Open(t testing.TB, specs []store.Spec, interval time.Duration) store.Device
	// Crash stops the device that is open, without a commit, and makes Open possible again.
	Crash(t testing.TB)
}

// Never is an interval without commits by the timer.
const Never = -time.Second

// Tables of the suite.
const (
	Plain store.Table = iota
	Sums
	Tails
)

// Specs returns the tables of the suite: one without deltas, sums of 64-bit numbers, where 0 removes the key, and the
// last bytes of what was appended, where the order of deltas shows.
func Specs() []store.Spec {
	return []store.Spec{{Name: "plain"}, {Name: "sums", Merger: Sum{}}, {Name: "tails", Merger: Tail{}}}
}

// Sum adds big-endian 64-bit numbers.
type Sum struct{}

// Number is a value or delta of Sum.
func Number(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// Combine implements store.Merger.
func (Sum) Combine(dst, a, b []byte) []byte {
	return binary.BigEndian.AppendUint64(dst, binary.BigEndian.Uint64(a)+binary.BigEndian.Uint64(b))
}

// Apply implements store.Merger.
func (Sum) Apply(dst, base, delta []byte) []byte {
	n := binary.BigEndian.Uint64(delta)
	if base != nil {
		n += binary.BigEndian.Uint64(base)
	}
	if n == 0 {
		return dst
	}
	return binary.BigEndian.AppendUint64(dst, n)
}

// tailSize is how many bytes Tail keeps.
const tailSize = 16

// Tail appends and keeps the last 16 bytes.
type Tail struct{}

// Combine implements store.Merger.
func (Tail) Combine(dst, a, b []byte) []byte {
	if drop := len(a) + len(b) - tailSize; drop > 0 {
		if drop > len(a) {
			return append(dst, b[drop-len(a):]...)
		}
		a = a[drop:]
	}
	return append(append(dst, a...), b...)
}

// Apply implements store.Merger.
func (m Tail) Apply(dst, base, delta []byte) []byte { return m.Combine(dst, base, delta) }

// publish publishes what build puts into a transaction.
func publish(t testing.TB, d store.Device, e *env.Env, build func(tx *store.Tx)) store.Transno {
	t.Helper()
	tx := d.Begin(e)
	build(tx)
	n, err := d.Publish(tx)
	if err != nil {
		t.Fatalf("publish: %v", err)
	}
	return n
}

func put(t testing.TB, d store.Device, e *env.Env, key, value string) store.Transno {
	t.Helper()
	return publish(t, d, e, func(tx *store.Tx) { tx.Put(Plain, []byte(key), []byte(value)) })
}

// get returns a value, or "<none>".
func get(t testing.TB, d store.Device, e *env.Env, table store.Table, key string) string {
	t.Helper()
	v, err := d.Get(e, table, []byte(key))
	if errors.Is(err, store.ErrNotFound) {
		return "<none>"
	}
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	return string(v)
}

// commit waits until everything published is on disk.
func commit(t testing.TB, d store.Device) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.WaitCommitted(ctx, d.Last()); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

func closeDevice(t testing.TB, d store.Device) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}
