package osp

import (
	"encoding/binary"
	"fmt"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/store"
)

// Tables are the indices of the tables that Specs names.
type Tables struct {
	Destroy, Setattr, LastUsed, Kept store.Table
}

// Specs are the tables on the metadata target's device, in the order of the fields of Tables.
func Specs() []store.Spec {
	return []store.Spec{
		{Name: "destroy_log"},
		{Name: "object_setattr_log", Merger: forgetMerger{}},
		{Name: "ost_last_used", Merger: maxMerger{}},
		{Name: "kept_objects"},
	}
}

// TablesAt are the Tables when Specs was put into the device's list at index first.
func TablesAt(first store.Table) Tables {
	return Tables{Destroy: first, Setattr: first + 1, LastUsed: first + 2, Kept: first + 3}
}

// Owner is whom an object's space is charged to.
type Owner struct {
	UID, GID, Project uint32
}

// Records. Keys of both logs are 16 bytes, big-endian: OST index (4), object group (4), object id (8).
//
// Destroy record, version 1, big-endian:
//
//	0  1  version
//	1  7  0
//	8  8  transno, stamped by the store
//
// Setattr record, version 1, big-endian; the transno is the change's version:
//
//	 0  1  version
//	 1  3  0
//	 4  4  uid
//	 8  8  transno, stamped by the store
//	16  4  gid
//	20  4  project
//
// Last used: key OST index (4), value last used object id (8).
const (
	logKeySize    = 16
	destroySize   = 16
	setattrSize   = 24
	recordVersion = 1
	stampAt       = 8
)

func putLogKey(b []byte, ost layout.OSTIndex, id fid.ObjectID) []byte {
	binary.BigEndian.PutUint32(b, uint32(ost))
	binary.BigEndian.PutUint32(b[4:], id.Group)
	binary.BigEndian.PutUint64(b[8:], id.ID)
	return b[:logKeySize]
}

// entry is one record of a log.
type entry struct {
	id    fid.ObjectID
	stamp store.Transno
	owner Owner
}

// parseEntry reads a record of either log, told apart by its size.
func parseEntry(key, v []byte) (entry, error) {
	if len(key) != logKeySize || (len(v) != destroySize && len(v) != setattrSize) || v[0] != recordVersion {
		return entry{}, fmt.Errorf("osp: a log record of %d and %d bytes, or of a version that is not known", len(key), len(v))
	}
	r := entry{
		id:    fid.ObjectID{Group: binary.BigEndian.Uint32(key[4:]), ID: binary.BigEndian.Uint64(key[8:])},
		stamp: store.Transno(binary.BigEndian.Uint64(v[stampAt:])),
	}
	if len(v) == setattrSize {
		r.owner = Owner{UID: binary.BigEndian.Uint32(v[4:]), GID: binary.BigEndian.Uint32(v[16:]), Project: binary.BigEndian.Uint32(v[20:])}
	}
	return r, nil
}

// addDestroy puts a destroy record into tx.
func addDestroy(tx *store.Tx, e *env.Env, t store.Table, s layout.Stripe) {
	v := e.Alloc(destroySize)
	clear(v)
	v[0] = recordVersion
	tx.Put(t, putLogKey(e.Alloc(logKeySize), s.OST, s.Object), v, stampAt)
}

// addSetattr puts a setattr record into tx.
func addSetattr(tx *store.Tx, e *env.Env, t store.Table, s layout.Stripe, o Owner) {
	v := e.Alloc(setattrSize)
	clear(v)
	v[0] = recordVersion
	binary.BigEndian.PutUint32(v[4:], o.UID)
	binary.BigEndian.PutUint32(v[16:], o.GID)
	binary.BigEndian.PutUint32(v[20:], o.Project)
	tx.Put(t, putLogKey(e.Alloc(logKeySize), s.OST, s.Object), v, stampAt)
}

// addUsed merges a used object id into the OST's last used one.
func addUsed(tx *store.Tx, e *env.Env, t store.Table, s layout.Stripe) {
	b := e.Alloc(12)
	binary.BigEndian.PutUint32(b, uint32(s.OST))
	binary.BigEndian.PutUint64(b[4:], s.Object.ID)
	tx.Delta(t, b[:4:4], b[4:])
}

// maxMerger keeps the larger of 8-byte big-endian numbers.
type maxMerger struct{}

func (maxMerger) Combine(dst, a, b []byte) []byte {
	if number(a) > number(b) {
		return append(dst, a...)
	}
	return append(dst, b...)
}

func (m maxMerger) Apply(dst, base, delta []byte) []byte {
	if base == nil {
		return append(dst, delta...)
	}
	return m.Combine(dst, base, delta)
}

// forgetMerger removes a record whose stamp is not above the delta's 8 bytes: what was sent is forgotten, what was put
// meanwhile stays.
type forgetMerger struct{}

func (forgetMerger) Combine(dst, a, b []byte) []byte { return maxMerger{}.Combine(dst, a, b) }

func (forgetMerger) Apply(dst, base, delta []byte) []byte {
	if len(base) < stampAt+8 || number(base[stampAt:]) <= number(delta) {
		return dst
	}
	return append(dst, base...)
}

func number(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// LogRecord is a record of the destroy or the setattr log: what an OST has still to be told.
type LogRecord struct {
	OST     layout.OSTIndex
	Object  fid.ObjectID
	Transno store.Transno
	Owner   Owner // of the setattr log
}

// DecodeLog reads a record of either log.
func DecodeLog(key, v []byte) (LogRecord, error) {
	r, err := parseEntry(key, v)
	if err != nil {
		return LogRecord{}, err
	}
	return LogRecord{layout.OSTIndex(binary.BigEndian.Uint32(key)), r.id, r.stamp, r.owner}, nil
}

// DecodeKept reads a record of the table of what is kept after a restore. ok is false for the one of the mode itself.
func DecodeKept(key, v []byte) (r Kept, ok bool, err error) {
	switch {
	case len(v) != keptSize || v[0] != recordVersion || len(key) != 4 && len(key) != 12:
		return r, false, fmt.Errorf("osp: a record of kept objects of %d and %d bytes, or of a version that is not known", len(key), len(v))
	case len(key) == 4:
		return r, false, nil
	}
	return Kept{layout.OSTIndex(binary.BigEndian.Uint32(key)), number(key[4:]), number(v[8:])}, true, nil
}

// DecodeLastUsed reads the last used object id of an OST.
func DecodeLastUsed(key, v []byte) (layout.OSTIndex, uint64, error) {
	if len(key) != 4 || len(v) != 8 {
		return 0, 0, fmt.Errorf("osp: a last used id of %d and %d bytes", len(key), len(v))
	}
	return layout.OSTIndex(binary.BigEndian.Uint32(key)), number(v), nil
}

// PutLastUsed is the record that DecodeLastUsed reads.
func PutLastUsed(i layout.OSTIndex, id uint64) (key, v []byte) {
	return binary.BigEndian.AppendUint32(nil, uint32(i)), binary.BigEndian.AppendUint64(nil, id)
}
