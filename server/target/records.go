package target

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
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

// Client is an export as its record tells.
type Client struct {
	UUID     [16]byte
	Kind     uint32 // rpc.KindClient and so on
	ReadOnly bool
	Since    time.Time
	Peer     string
}

// KindName names the kind of peer.
func (c *Client) KindName() string { return kindName(c.Kind) }

// Clients calls fn for the export records of a target, in the order of uuids. One that cannot be read comes with an error.
func Clients(ctx context.Context, r Records, t store.Table, fn func(c Client, err error)) error {
	return r.Scan(ctx, t, nil, func(k, v []byte) bool {
		if len(k) != 16 {
			return true // The target's own.
		}
		c, _, err := DecodeClient(k, v)
		fn(c, err)
		return true
	})
}

// KeepReplayPoint notes, before a tool publishes anything on the device of a target that does not run, up to which number the
// target's own transactions are on disk, for the clients that have still to come back: the tool's have higher numbers, and without the
// note the target would take what clients replay as done. It is for targets whose numbers are the device's.
func KeepReplayPoint(ctx context.Context, dev store.Device, clients store.Table) error {
	e := env.New()
	wait := false
	err := Clients(ctx, DeviceRecords{dev}, clients, func(c Client, err error) { wait = wait || err == nil && c.Kind == rpc.KindClient })
	if err != nil || !wait {
		return err
	}
	if _, err := dev.Get(e, clients, pointKey); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	tx := dev.Begin(e)
	tx.Put(clients, pointKey, binary.BigEndian.AppendUint64(nil, uint64(dev.Committed())))
	_, err = dev.Publish(tx)
	return err
}

// DecodeClient reads a record of the table of exports. own names one that is the target's own number, 8 bytes.
func DecodeClient(k, v []byte) (c Client, own string, err error) {
	switch {
	case len(k) == 16:
		x, err := parseExport(k, v)
		if err != nil {
			return Client{UUID: [16]byte(k)}, "", err
		}
		return Client{UUID: x.UUID, Kind: x.Kind, ReadOnly: x.ReadOnly, Since: x.Since, Peer: x.Peer}, "", nil
	case len(v) != 8:
		return c, "", fmt.Errorf("a record of %d bytes among the exports", len(v))
	case len(k) == 1:
		return c, "instance", nil
	}
	return c, string(k), nil
}

// Slot is a reply slot as its record tells.
type Slot struct {
	UUID    [16]byte
	Number  uint16
	Op      wire.Op
	XID     wire.XID
	Transno wire.Transno
	Status  status.Kind
	Reply   int // bytes
}

// DecodeSlot reads a reply slot's record.
func DecodeSlot(k, v []byte) (Slot, error) {
	if len(k) != slotKeySize {
		return Slot{}, fmt.Errorf("a reply slot with a key of %d bytes", len(k))
	}
	s, err := parseSlot(v)
	if err != nil {
		return Slot{}, err
	}
	return Slot{UUID: [16]byte(k), Number: binary.BigEndian.Uint16(k[16:]), Op: wire.Op(binary.BigEndian.Uint16(v[2:])), XID: s.xid,
		Transno: s.transno, Status: s.status, Reply: len(s.reply)}, nil
}
