package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/strakefs/strake/fs/status"
)

// XID numbers a request of one export; it grows with every new request and stays the same when one is resent.
type XID uint64

// Transno is a modification's number on its target: start count of the target in the upper 20 bits, a counter below.
type Transno uint64

// TransnoCountBits is the width of the counter in a Transno.
const TransnoCountBits = 44

// Sizes. A frame is a header, a body and bulk, none longer than said here; both ends check before they allocate.
const (
	HeaderSize = 64
	// BodyMax fits a reply with a 64 KiB xattr, and a layout of 2,000 stripes.
	BodyMax = 256 << 10
	// BulkMax is the largest bulk of one request: one full-size RPC.
	BulkMax = 4 << 20
	// TextMax bounds the sentence of an error reply.
	TextMax = 4 << 10
)

// Magic starts every header, so that a stranger is noticed with his first bytes: "STRK".
const Magic = 0x5354524b

// Version of the protocol. Peers one apart work together; a body's unknown fields are ignored.
const Version = 1

// FrameFlags of a header.
type FrameFlags uint16

// Frame flags.
const (
	// FlagReply marks the answer to the request of the same xid.
	FlagReply FrameFlags = 1 << iota
	// FlagResent marks a request that may have been executed before.
	FlagResent
	// FlagReplay marks a request that was answered before the target restarted.
	FlagReplay
	// FlagCallback marks a server's request to a client; its xid counts in the server's own space.
	FlagCallback
	// FlagBulkSum says that BulkSum holds the crc32c of the bulk.
	FlagBulkSum
	// FlagAlone says that the sender has no other request in flight on this connection: a hint that nobody loses by when
	// the receiver serves it before it reads on.
	FlagAlone
	flagsEnd
)

// Header starts a frame. On the wire it is HeaderSize bytes, little-endian:
//
//	 0  4  magic
//	 4  2  flags
//	 6  2  opcode
//	 8  8  xid
//	16  8  transno: of the modification answered or replayed
//	24  8  last_committed of the target, in replies
//	32  4  status, in replies
//	36  4  slot of a modifying request
//	40  8  generation of the export
//	48  4  body length
//	52  4  bulk length
//	56  4  crc32c of the bulk
//	60  4  crc32c of bytes 0 to 59 and the body
type Header struct {
	Flags         FrameFlags
	Op            Op
	XID           XID
	Transno       Transno
	LastCommitted Transno
	Status        status.Kind
	Slot          uint32
	Generation    uint64
	BodyLen       uint32
	BulkLen       uint32
	BulkSum       uint32
}

// Castagnoli is the polynomial of every checksum on the wire.
func Castagnoli() *crc32.Table { return castagnoli }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum is the crc32c of bulk data.
func Sum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// SumMore is the crc32c of what sum was made of and b behind it.
func SumMore(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }

// Put writes the header and its checksum into b.
// Precondition: len(b) >= HeaderSize; body is what will follow, h.BodyLen bytes.
func (h *Header) Put(b, body []byte) {
	le := binary.LittleEndian
	le.PutUint32(b, Magic)
	le.PutUint16(b[4:], uint16(h.Flags))
	le.PutUint16(b[6:], uint16(h.Op))
	le.PutUint64(b[8:], uint64(h.XID))
	le.PutUint64(b[16:], uint64(h.Transno))
	le.PutUint64(b[24:], uint64(h.LastCommitted))
	le.PutUint32(b[32:], uint32(h.Status))
	le.PutUint32(b[36:], h.Slot)
	le.PutUint64(b[40:], h.Generation)
	le.PutUint32(b[48:], h.BodyLen)
	le.PutUint32(b[52:], h.BulkLen)
	le.PutUint32(b[56:], h.BulkSum)
	le.PutUint32(b[60:], headerSum(b, body))
}

func headerSum(b, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:60], castagnoli), castagnoli, body)
}

// Parse reads a header and refuses, with kind Protocol, what no peer may send: a wrong magic, lengths over the bounds,
// unknown flags. The checksum is checked by Verify when the body is there.
// Precondition: len(b) >= HeaderSize.
func (h *Header) Parse(b []byte) error {
	le := binary.LittleEndian
	if m := le.Uint32(b); m != Magic {
		return status.Errorf(status.Protocol, "wire: the peer does not speak this protocol (first bytes %#08x)", m)
	}
	*h = Header{
		Flags: FrameFlags(le.Uint16(b[4:])), Op: Op(le.Uint16(b[6:])), XID: XID(le.Uint64(b[8:])),
		Transno: Transno(le.Uint64(b[16:])), LastCommitted: Transno(le.Uint64(b[24:])),
		Status: status.Kind(le.Uint32(b[32:])), Slot: le.Uint32(b[36:]), Generation: le.Uint64(b[40:]),
		BodyLen: le.Uint32(b[48:]), BulkLen: le.Uint32(b[52:]), BulkSum: le.Uint32(b[56:]),
	}
	switch {
	case h.BodyLen > BodyMax:
		return status.Errorf(status.Protocol, "wire: %v with a body of %d bytes, at most %d", h.Op, h.BodyLen, BodyMax)
	case h.BulkLen > BulkMax:
		return status.Errorf(status.Protocol, "wire: %v with bulk of %d bytes, at most %d", h.Op, h.BulkLen, BulkMax)
	case h.Flags >= flagsEnd:
		return status.Errorf(status.Protocol, "wire: %v with flags %#x", h.Op, uint16(h.Flags))
	}
	return nil
}

// Verify checks the header's and body's checksum. b is the header as it came.
func Verify(b, body []byte) error {
	if got, want := headerSum(b, body), binary.LittleEndian.Uint32(b[60:]); got != want {
		return status.Errorf(status.Protocol, "wire: header and body have crc32c %08x, the header says %08x", got, want)
	}
	return nil
}

// String prints a header for traces.
func (h *Header) String() string {
	return fmt.Sprintf("%v xid %d flags %#x status %d transno %d committed %d body %d bulk %d",
		h.Op, h.XID, uint16(h.Flags), uint32(h.Status), h.Transno, h.LastCommitted, h.BodyLen, h.BulkLen)
}
