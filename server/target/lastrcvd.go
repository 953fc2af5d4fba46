package target

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/store"
)

// Specs are the tables that a target keeps on its device, in the order clients, slots: what Options.Clients and
// Options.Slots index.
func Specs() []store.Spec {
	return []store.Spec{{Name: "clients"}, {Name: "reply_slots"}}
}

// Sizes in the clients table.
const (
	clientHeader  = 32
	clientVersion = 1
	// peerMax bounds the text of who a client is.
	peerMax = 255

	clientReadOnly = 1
)

// instanceKey holds the target's newest instance, 8 bytes; clients have keys of 16 bytes, the replay point has pointKey.
var instanceKey = []byte{0}

// saveExport writes the record of an export. Version 1, big-endian; the key is the uuid:
//
//	 0  1  version
//	 1  1  kind of peer
//	 2  1  flags: 1 read-only
//	 3  1  0
//	 4  4  index
//	 8  8  generation when it was written
//	16  8  transno, stamped by the store
//	24  8  connected since, Unix seconds
//	32  …  who it is, text of at most 255 bytes
func (t *Target) saveExport(x *Export) error {
	v := make([]byte, clientHeader, clientHeader+len(x.Peer))
	v[0], v[1] = clientVersion, byte(x.Kind)
	if x.ReadOnly {
		v[2] = clientReadOnly
	}
	binary.BigEndian.PutUint32(v[4:], x.Index)
	binary.BigEndian.PutUint64(v[8:], x.Generation())
	binary.BigEndian.PutUint64(v[24:], uint64(x.Since.Unix()))
	v = append(v, x.Peer...)
	tx := t.o.Device.Begin(env.New())
	tx.Put(t.o.Clients, x.UUID[:], v, 16)
	n, err := t.o.Device.Publish(tx)
	x.saved.Store(uint64(n))
	return Status(err)
}

func parseExport(key, v []byte) (*Export, error) {
	if len(key) != 16 || len(v) < clientHeader || len(v) > clientHeader+peerMax || v[0] != clientVersion {
		return nil, fmt.Errorf("a client record of %d and %d bytes, or of a version that is not known", len(key), len(v))
	}
	x := &Export{
		UUID: [16]byte(key), Kind: uint32(v[1]), ReadOnly: v[2]&clientReadOnly != 0,
		Index: binary.BigEndian.Uint32(v[4:]), Peer: string(v[clientHeader:]), Restored: true,
		Since: time.Unix(int64(binary.BigEndian.Uint64(v[24:])), 0), alone: time.Now(),
	}
	x.generation.Store(binary.BigEndian.Uint64(v[8:]))
	return x, nil
}

// dropExport removes an export's record and slots.
// Precondition: the export is gone.
func (t *Target) dropExport(x *Export) (store.Transno, error) {
	tx := t.o.Device.Begin(env.New())
	tx.Delete(t.o.Clients, x.UUID[:])
	x.mu.Lock()
	for i, s := range x.slots {
		if s != nil {
			tx.Delete(t.o.Slots, slotKey(make([]byte, slotKeySize), x.UUID, uint32(i+1)))
		}
	}
	x.mu.Unlock()
	return t.o.Device.Publish(tx)
}

// restore reads the exports of an earlier start with their slots, and gives this start its instance.
func (t *Target) restore() error {
	e := env.New()
	var bad error
	var last, point uint64
	kept := false
	err := t.o.Device.Scan(e, t.o.Clients, nil, nil, func(k, v []byte) bool {
		switch {
		case len(k) == len(instanceKey) && len(v) == 8:
			last = binary.BigEndian.Uint64(v)
			return true
		case string(k) == string(pointKey) && len(v) == 8:
			point, kept = binary.BigEndian.Uint64(v), true
			return true
		}
		var x *Export
		if x, bad = parseExport(k, v); bad == nil {
			t.adopt(x)
		}
		return bad == nil
	})
	if err = first(err, bad); err != nil {
		return err
	}
	err = t.o.Device.Scan(e, t.o.Slots, nil, nil, func(k, v []byte) bool {
		bad = t.restoreSlot(k, v)
		return bad == nil
	})
	if err = first(err, bad); err != nil {
		return err
	}
	// The clock alone could repeat a number after a step back, the stored one alone after a crash before its commit.
	t.previous = last
	t.instance = max(last+1, uint64(time.Now().UnixNano()))
	tx := t.o.Device.Begin(e)
	tx.Put(t.o.Clients, instanceKey, binary.BigEndian.AppendUint64(nil, t.instance))
	t.recovery.point = t.restart
	switch wait := t.o.ReplayWindow > 0 && slices.ContainsFunc(t.Exports(), (*Export).waitedFor); {
	case wait && !kept:
		t.putPoint(tx, e, t.restart)
	case wait:
		t.recovery.point = wire.Transno(point) // Of KeepPoint, or an earlier window was not ended: what it had replayed counts as far as that.
	case kept:
		tx.Delete(t.o.Clients, pointKey)
	}
	n, err := t.o.Device.Publish(tx)
	t.recovery.first = wire.Transno(n)
	return err
}

// adopt enters an export into the table; restore calls it before the target is visible, admitLocked with mu held.
func (t *Target) adopt(x *Export) {
	x.t = t
	t.exports.add(x)
	t.nextIdx = max(t.nextIdx, x.Index+1)
	if t.o.NewExport != nil {
		t.o.NewExport(x)
	}
}

func (t *Target) restoreSlot(k, v []byte) error {
	if len(k) != slotKeySize {
		return fmt.Errorf("a reply slot with a key of %d bytes", len(k))
	}
	x := t.exports.get([16]byte(k))
	if x == nil {
		return nil // Left by a client that ended: dropExport's transaction removes both, so this cannot be; harmless.
	}
	number := binary.BigEndian.Uint16(k[16:])
	if _, err := x.slot(uint32(number)); err != nil {
		return err
	}
	s, err := parseSlot(v)
	if err != nil {
		return err
	}
	x.slots[number-1] = s
	return nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// kindName names a kind of peer for people.
func kindName(kind uint32) string {
	switch kind {
	case rpc.KindClient:
		return "client"
	case rpc.KindMDT:
		return "MDT"
	case rpc.KindOST:
		return "OST"
	case rpc.KindTool:
		return "tool"
	}
	return fmt.Sprintf("kind %d", kind)
}
