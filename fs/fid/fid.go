package fid

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Seq is a sequence number.
type Seq uint64

// Width is the number of object ids of one sequence. Object id 0 is never used.
const (
	WidthBits = 17
	Width     = 1 << WidthBits
)

// SeqRoot is the sequence of the root folder alone; SeqFirst is the first one that a client can be given;
// SeqLast bounds them so that an inode number stays under 2^63.
const (
	SeqRoot  Seq = 0x200000400
	SeqFirst Seq = SeqRoot + 1
	SeqLast  Seq = SeqRoot + 1<<45
)

// KeySize is the length of a FID as a database key.
const KeySize = 16

// FID is a file identifier. The zero FID names nothing.
type FID struct {
	Seq Seq
	OID uint32
	Ver uint32
}

// Root is the FID of a file system's root folder.
var Root = FID{Seq: SeqRoot, OID: 1}

// ErrSyntax is returned by Parse and FromKey for text or bytes that are no FID.
var ErrSyntax = errors.New("not a FID")

// IsZero reports whether f names nothing.
func (f FID) IsZero() bool { return f == FID{} }

// IsFile reports whether f can name an inode: its sequence and object id are in the ranges that are handed out.
func (f FID) IsFile() bool {
	return f == Root || (f.Seq >= SeqFirst && f.Seq <= SeqLast && f.OID > 0 && f.OID < Width && f.Ver == 0)
}

// Ino gives the inode number of f: (sequence - first) << 17 | object id. The root is 1.
// Precondition: f.IsFile().
func (f FID) Ino() uint64 { return uint64(f.Seq-SeqRoot)<<WidthBits | uint64(f.OID) }

// FromIno is the inverse of FID.Ino. The result may name a file that does not exist.
func FromIno(ino uint64) FID {
	return FID{Seq: SeqRoot + Seq(ino>>WidthBits), OID: uint32(ino & (Width - 1))}
}

// Compare orders FIDs by sequence, object id, version: the order of their keys.
func (f FID) Compare(g FID) int {
	switch {
	case f.Seq != g.Seq:
		return cmp(uint64(f.Seq), uint64(g.Seq))
	case f.OID != g.OID:
		return cmp(uint64(f.OID), uint64(g.OID))
	}
	return cmp(uint64(f.Ver), uint64(g.Ver))
}

func cmp(a, b uint64) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

// AppendKey appends the 16 key bytes of f, big-endian sequence, object id, version, so that keys sort as FIDs do.
func (f FID) AppendKey(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(f.Seq))
	b = binary.BigEndian.AppendUint32(b, f.OID)
	return binary.BigEndian.AppendUint32(b, f.Ver)
}

// FromKey reads the FID at the start of b, at least KeySize bytes.
func FromKey(b []byte) (FID, error) {
	if len(b) < KeySize {
		return FID{}, fmt.Errorf("%w: %d bytes, want %d", ErrSyntax, len(b), KeySize)
	}
	return FID{
		Seq: Seq(binary.BigEndian.Uint64(b)),
		OID: binary.BigEndian.Uint32(b[8:]),
		Ver: binary.BigEndian.Uint32(b[12:]),
	}, nil
}

// String prints f as the field's tools do: [0x200000401:0x5:0x0].
func (f FID) String() string {
	return fmt.Sprintf("[0x%x:0x%x:0x%x]", uint64(f.Seq), f.OID, f.Ver)
}

// MarshalText makes logs and JSON show what String prints.
func (f FID) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// Parse reads the form that String prints, with or without the brackets.
func Parse(s string) (FID, error) {
	t := strings.TrimSpace(s)
	if strings.HasPrefix(t, "[") != strings.HasSuffix(t, "]") {
		return FID{}, fmt.Errorf("%w: %q", ErrSyntax, s)
	}
	parts := strings.Split(strings.Trim(t, "[]"), ":")
	if len(parts) != 3 {
		return FID{}, fmt.Errorf("%w: %q has %d parts, want 3", ErrSyntax, s, len(parts))
	}
	var v [3]uint64
	for i, p := range parts {
		bits := 32
		if i == 0 {
			bits = 64
		}
		n, err := strconv.ParseUint(p, 0, bits)
		if err != nil {
			return FID{}, fmt.Errorf("%w: %q: %w", ErrSyntax, s, err)
		}
		v[i] = n
	}
	return FID{Seq: Seq(v[0]), OID: uint32(v[1]), Ver: uint32(v[2])}, nil
}

// ObjectID names one object on an OST: the metadata target that owns it (Group, its index) and a number that is
// never reused on that OST.
type ObjectID struct {
	Group uint32
	ID    uint64
}

// ObjectKeySize is the length of an ObjectID as a database key.
const ObjectKeySize = 12

// AppendKey appends the 12 key bytes of o: big-endian group, id.
func (o ObjectID) AppendKey(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, o.Group)
	return binary.BigEndian.AppendUint64(b, o.ID)
}

// ObjectFromKey reads the object id at the start of b, at least ObjectKeySize bytes.
func ObjectFromKey(b []byte) (ObjectID, error) {
	if len(b) < ObjectKeySize {
		return ObjectID{}, fmt.Errorf("%w: object key of %d bytes, want %d", ErrSyntax, len(b), ObjectKeySize)
	}
	return ObjectID{Group: binary.BigEndian.Uint32(b), ID: binary.BigEndian.Uint64(b[4:])}, nil
}

// Compare orders object ids by group, id.
func (o ObjectID) Compare(p ObjectID) int {
	var a, b [ObjectKeySize]byte
	return bytes.Compare(o.AppendKey(a[:0]), p.AppendKey(b[:0]))
}

// String prints o as group:id, both hexadecimal.
func (o ObjectID) String() string { return fmt.Sprintf("0x%x:0x%x", o.Group, o.ID) }

// MarshalText makes logs and JSON show what String prints.
func (o ObjectID) MarshalText() ([]byte, error) { return []byte(o.String()), nil }
