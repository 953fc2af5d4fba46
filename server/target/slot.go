package target

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/store"
)

// slot holds an export's last modifying request in one numbered place, and its answer. What is in memory counts; the
// disk follows with the transaction of the change.
type slot struct {
	// mu is held while a request of the slot runs.
	mu      sync.Mutex
	xid     wire.XID     // guarded by mu
	transno wire.Transno // guarded by mu
	status  status.Kind  // guarded by mu
	reply   []byte       // guarded by mu
}

// slot finds the slot of a number and makes it at its first use.
func (x *Export) slot(number uint32) (*slot, error) {
	if number == 0 || number > MaxSlots {
		return nil, status.Errorf(status.Protocol, "%s: a modifying request in slot %d, slots are 1 to %d",
			x.t.o.Name, number, MaxSlots)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.slots) < int(number) {
		x.slots = append(x.slots, nil)
	}
	if x.slots[number-1] == nil {
		x.slots[number-1] = &slot{}
	}
	return x.slots[number-1], nil
}

// replay answers c as it was answered before.
// Precondition: s.mu is held.
func (s *slot) replay(e *env.Env, c *rpc.Call) {
	c.RawReply = e.Copy(s.reply)
	c.RawStatus = s.status
	c.Transno = s.transno
}

// Begin returns the empty transaction of a request. Requests that were run before never come as far as a handler: the
// target answers them from their slot.
func (t *Target) Begin(e *env.Env) *store.Tx { return t.o.Device.Begin(e) }

// Commit ends a modifying request: it puts the slot's record with the encoded reply into tx, publishes, and sets
// c.Transno and c.RawReply. The reply is in the slot before Commit returns. A tx that changes nothing gets no transno;
// then the slot is kept in memory only, which is enough for a request whose effect dies with the target too. reply may
// be nil for an empty body; it is encoded at once and may be reused. It does not wait; the error is of kind Stopping,
// or Protocol for a call that is not a modifying one. A replay (Replayed) is published under its number of then, with its reply of then
// instead of reply, and moves the replay point, whatever tx changes.
// Precondition: called once, by the Handler.Serve of c, with all that tx depends on locked.
func (t *Target) Commit(e *env.Env, c *rpc.Call, tx *store.Tx, reply rpc.Message) error {
	x, ok := c.Session.(*Export)
	if !ok || !c.Header.Op.Modifies() {
		return status.Errorf(status.Protocol, "%s: commit of %v, which owns no slot", t.o.Name, c.Header.Op)
	}
	x.mu.Lock()
	s := x.slots[c.Header.Slot-1]
	x.mu.Unlock()
	size := 0
	if reply != nil {
		size = reply.SizeVT()
	}
	again, replays := t.Replayed(c)
	if replays {
		size = len(again)
	}
	value := e.Alloc(slotHeader + size)
	putSlot(value, c.Header.Op, c.Header.XID)
	switch {
	case replays:
		copy(value[slotHeader:], again)
		tx.Replay = store.Transno(c.Header.Transno)
		t.putPoint(tx, e, c.Header.Transno)
	case reply != nil:
		if _, err := reply.MarshalToSizedBufferVT(value[slotHeader:]); err != nil {
			return fmt.Errorf("target: %s: encoding the reply of %v: %w", t.o.Name, c.Header.Op, err)
		}
	}
	var transno store.Transno
	if !tx.Empty() {
		tx.Put(t.o.Slots, slotKey(e.Alloc(slotKeySize), x.UUID, c.Header.Slot), value, slotTransnoAt)
		n, err := t.o.Device.Publish(tx)
		if err != nil {
			return Status(fmt.Errorf("target: %s: %v: %w", t.o.Name, c.Header.Op, err))
		}
		transno = n
		if replays {
			transno = tx.Replay
		}
	}
	s.xid, s.transno, s.status = c.Header.XID, wire.Transno(transno), status.OK
	s.reply = append(s.reply[:0], value[slotHeader:]...)
	c.Transno, c.RawReply, c.RawStatus = s.transno, value[slotHeader:], status.OK
	return nil
}

// Sizes in the slots table.
const (
	slotKeySize   = 18
	slotHeader    = 24
	slotTransnoAt = 16
	slotVersion   = 1
)

// slotKey writes the key of a slot: uuid (16 bytes), slot number (2 bytes, big-endian).
func slotKey(b []byte, uuid [16]byte, number uint32) []byte {
	copy(b, uuid[:])
	binary.BigEndian.PutUint16(b[16:], uint16(number))
	return b[:slotKeySize]
}

// putSlot writes the head of a slot's record. Version 1, big-endian:
//
//	 0  1  version
//	 1  1  flags, 0
//	 2  2  opcode
//	 4  4  status
//	 8  8  xid
//	16  8  transno, stamped by the store
//	24  …  reply body
func putSlot(b []byte, op wire.Op, xid wire.XID) {
	b[0], b[1] = slotVersion, 0
	binary.BigEndian.PutUint16(b[2:], uint16(op))
	binary.BigEndian.PutUint32(b[4:], uint32(status.OK))
	binary.BigEndian.PutUint64(b[8:], uint64(xid))
	binary.BigEndian.PutUint64(b[16:], 0)
}

// parseSlot reads a slot's record; the reply is copied.
func parseSlot(b []byte) (*slot, error) {
	if len(b) < slotHeader || b[0] != slotVersion {
		return nil, fmt.Errorf("a reply slot of %d bytes, or of a version that is not known", len(b))
	}
	if len(b)-slotHeader > wire.BodyMax {
		return nil, fmt.Errorf("a reply of %d bytes in a slot", len(b)-slotHeader)
	}
	return &slot{
		status:  status.Kind(binary.BigEndian.Uint32(b[4:])),
		xid:     wire.XID(binary.BigEndian.Uint64(b[8:])),
		transno: wire.Transno(binary.BigEndian.Uint64(b[16:])),
		reply:   append([]byte(nil), b[slotHeader:]...),
	}, nil
}
