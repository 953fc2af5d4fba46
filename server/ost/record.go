package ost

import (
	"encoding/binary"
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// The tables of an OST's device, in the order of Specs.
const (
	tableClients store.Table = iota
	tableSlots
	tableObjects
	tableHot
	tableGroups
	tableUsage
	tableMeta
)

// Specs are the tables that an OST's device is opened with, these and no others.
func Specs() []store.Spec {
	return append(target.Specs(),
		store.Spec{Name: "objects"},
		store.Spec{Name: "hot"},
		store.Spec{Name: "groups"},
		store.Spec{Name: "usage", Merger: sumMerger{}},
		store.Spec{Name: "ost_meta"},
	)
}

// record is what the tables keep of an object.
type record struct {
	charge
	owner        fid.FID
	stripe       uint32
	version      uint64 // of the last change of owner by the MDT
	upTo         uint64 // changes up to this number are on disk with the record, or older ones in the file
	size         uint64 // when the record was written; the file's own size counts
	mtime, atime attr.Time
	ctime        attr.Time
}

// charge is whom an object's space is charged to.
type charge struct {
	owned             bool // uid, gid and project are known
	uid, gid, project uint32
	blocks            uint64 // of 512 bytes, from the host after its flush
}

// recordSize is the length of a version 2 record, big-endian, keyed by group (4) and id (8):
//
//	  0  1  version
//	  1  1  flags: 1 uid, gid and project are known
//	  2  2  0
//	  4  4  uid
//	  8  4  gid
//	 12  4  project
//	 16 16  FID of the file
//	 32  4  stripe index
//	 36  4  kind of block checksums, 0 none
//	 40  8  version of the owner
//	 48  8  size
//	 56  8  blocks
//	 64  8  mtime seconds
//	 72  8  atime seconds
//	 80  8  ctime seconds
//	 88  4  mtime nanoseconds
//	 92  4  atime nanoseconds
//	 96  4  ctime nanoseconds
//	100  4  0
//	104  8  transno of the commit that wrote it, stamped by the store: block checksums hold as of this one
//	112  8  the number up to which all changes of the object are on disk; not in version 1
//	120  …  block checksums, none in kind 0
const (
	recordSize    = 120
	recordVersion = 2
	recordStampAt = 104
	recordOwned   = 1
	recordSize1   = 112
)

// tableVersion is that of all other values.
const tableVersion = 1

func (r *record) put(b []byte) {
	be := binary.BigEndian
	clear(b[:recordSize])
	b[0] = recordVersion
	if r.owned {
		b[1] = recordOwned
	}
	be.PutUint32(b[4:], r.uid)
	be.PutUint32(b[8:], r.gid)
	be.PutUint32(b[12:], r.project)
	r.owner.AppendKey(b[16:16])
	be.PutUint32(b[32:], r.stripe)
	be.PutUint64(b[40:], r.version)
	be.PutUint64(b[48:], r.size)
	be.PutUint64(b[56:], r.blocks)
	be.PutUint64(b[64:], uint64(r.mtime.Sec))
	be.PutUint64(b[72:], uint64(r.atime.Sec))
	be.PutUint64(b[80:], uint64(r.ctime.Sec))
	be.PutUint32(b[88:], r.mtime.Nsec)
	be.PutUint32(b[92:], r.atime.Nsec)
	be.PutUint32(b[96:], r.ctime.Nsec)
	be.PutUint64(b[112:], r.upTo)
}

func (r *record) parse(b []byte) error {
	if len(b) < recordSize1 || b[0] != recordVersion && b[0] != 1 || b[0] == recordVersion && len(b) < recordSize {
		return fmt.Errorf("an object record of %d bytes, or of a version that is not known", len(b))
	}
	be := binary.BigEndian
	owner, err := fid.FromKey(b[16:])
	if err != nil {
		return err
	}
	*r = record{
		charge: charge{
			owned: b[1]&recordOwned != 0, uid: be.Uint32(b[4:]), gid: be.Uint32(b[8:]), project: be.Uint32(b[12:]),
			blocks: be.Uint64(b[56:]),
		},
		owner: owner, stripe: be.Uint32(b[32:]), version: be.Uint64(b[40:]), size: be.Uint64(b[48:]),
		mtime: attr.Time{Sec: int64(be.Uint64(b[64:])), Nsec: be.Uint32(b[88:])},
		atime: attr.Time{Sec: int64(be.Uint64(b[72:])), Nsec: be.Uint32(b[92:])},
		ctime: attr.Time{Sec: int64(be.Uint64(b[80:])), Nsec: be.Uint32(b[96:])},
	}
	if b[0] == recordVersion {
		r.upTo = be.Uint64(b[112:])
	}
	return nil
}

// addRecord puts an object's record into tx.
func addRecord(tx *store.Tx, e *env.Env, id fid.ObjectID, r *record) {
	v := e.Alloc(recordSize)
	r.put(v)
	tx.Put(tableObjects, objectKey(e, id), v, recordStampAt)
}

// saveLocked puts the object's record into tx and moves what is charged.
// Precondition: ob.mu and OST.pubMu are held, and tx is published before pubMu is given back.
func (ob *object) saveLocked(tx *store.Tx, e *env.Env) {
	ob.rec.size = uint64(ob.size.Load())
	r, s := &ob.rec.charge, &ob.saved
	switch {
	case !ob.recorded:
		addUsage(tx, e, r, int64(r.blocks), 1)
	case s.owned && r.owned && s.uid == r.uid && s.gid == r.gid && s.project == r.project:
		addUsage(tx, e, r, int64(r.blocks)-int64(s.blocks), 0)
	default:
		addUsage(tx, e, s, -int64(s.blocks), -1)
		addUsage(tx, e, r, int64(r.blocks), 1)
	}
	addRecord(tx, e, ob.id, &ob.rec)
	ob.saved, ob.recorded = ob.rec.charge, true
}

func objectKey(e *env.Env, id fid.ObjectID) []byte {
	return id.AppendKey(e.Alloc(fid.ObjectKeySize)[:0])
}

// Usage: key kind of id (1: 'u', 'g' or 'p'), id (4, big-endian); value blocks of 512 bytes (8) and objects (8), both
// signed, big-endian. A delta has the value's form and is added.
const usageSize = 16

// addUsage charges blocks and objects to the three ids of r.
func addUsage(tx *store.Tx, e *env.Env, r *charge, blocks, objects int64) {
	if !r.owned || blocks == 0 && objects == 0 {
		return
	}
	d := e.Alloc(usageSize)
	binary.BigEndian.PutUint64(d, uint64(blocks))
	binary.BigEndian.PutUint64(d[8:], uint64(objects))
	for _, id := range [...]struct {
		kind byte
		id   uint32
	}{{'u', r.uid}, {'g', r.gid}, {'p', r.project}} {
		tx.Delta(tableUsage, usageKey(e, id.kind, id.id), d)
	}
}

func usageKey(e *env.Env, kind byte, id uint32) []byte {
	k := e.Alloc(5)
	k[0] = kind
	binary.BigEndian.PutUint32(k[1:], id)
	return k
}

// sumMerger adds usage values. What is all zero goes.
type sumMerger struct{}

func (sumMerger) Combine(dst, a, b []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, number(a, 0)+number(b, 0))
	return binary.BigEndian.AppendUint64(dst, number(a, 8)+number(b, 8))
}

func (m sumMerger) Apply(dst, base, delta []byte) []byte {
	if number(base, 0)+number(delta, 0) == 0 && number(base, 8)+number(delta, 8) == 0 {
		return dst
	}
	return m.Combine(dst, base, delta)
}

// number reads 8 bytes at at, 0 if they are not there.
func number(b []byte, at int) uint64 {
	if len(b) < at+8 {
		return 0
	}
	return binary.BigEndian.Uint64(b[at:])
}

// Group record, keyed by group (4, big-endian): version (1), last id made (8), fresh bound (8): ids in (fresh, last] are
// hot without a mark.
const groupSize = 17

func putGroup(b []byte, last, fresh uint64) []byte {
	b[0] = tableVersion
	binary.BigEndian.PutUint64(b[1:], last)
	binary.BigEndian.PutUint64(b[9:], fresh)
	return b[:groupSize]
}

// metaKey is the one key of the meta table; its value, version 1, big-endian: version (1), 1 for a clean stop (1), the
// newest number that the commit covers (8), the same commit's transno, stamped by the store (8).
var metaKey = []byte("meta")

const (
	metaSize    = 18
	metaStampAt = 10
)

func putMeta(b []byte, clean bool, committed uint64) []byte {
	b[0], b[1] = tableVersion, 0
	if clean {
		b[1] = 1
	}
	binary.BigEndian.PutUint64(b[2:], committed)
	binary.BigEndian.PutUint64(b[10:], 0)
	return b[:metaSize]
}
