package mdt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/store"
)

// Cookies below firstCookie are kept: 0 is the start, 1 is ".", 2 is "..".
const (
	cookieDot    = 1
	cookieDotDot = 2
	firstCookie  = 4
	// ordinalBits is the width of the number that tells entries with equal hashes apart. A run of 128 is full: with a
	// keyed 56-bit hash nobody can make one, and chance will not.
	ordinalBits = 7
	ordinals    = 1 << ordinalBits
	hashBits    = 56
	cookieLimit = uint64(1) << (hashBits + ordinalBits)
)

// nameHash is the 56-bit keyed hash of a name, never 0, so that every cookie is above the kept ones.
type nameHash uint64

func (k hashKey) name(b []byte) nameHash {
	if h := nameHash(k.sum(b) >> (64 - hashBits)); h != 0 {
		return h
	}
	return 1
}

func (h nameHash) cookie(ordinal int) uint64 { return uint64(h)<<ordinalBits | uint64(ordinal) }

// direntKeySize is the length of an entry's key:
//
//	 0 16  FID of the folder
//	16  8  cookie: hash of the name << 7 | ordinal
const direntKeySize = fid.KeySize + 8

func appendDirentKey(b []byte, folder fid.FID, cookie uint64) []byte {
	return binary.BigEndian.AppendUint64(folder.AppendKey(b), cookie)
}

// direntVersion is the first byte of an entry's value, big-endian:
//
//	 0  1  version (1)
//	 1  1  d_type of the child
//	 2 16  FID of the child
//	18  8  stamp: transno of the entry's last change
//	26  8  stamp: client
//	34     name
const (
	direntVersion = 1
	direntAtStamp = 18
	direntFixed   = 34
)

// dirent is an entry in memory; name shares memory with the value it was decoded from.
type dirent struct {
	cookie uint64
	kind   uint8
	child  fid.FID
	stamp  stamp
	name   []byte
}

func (d *dirent) appendTo(b []byte) []byte {
	b = append(b, direntVersion, d.kind)
	b = d.child.AppendKey(b)
	b = binary.BigEndian.AppendUint64(b, uint64(d.stamp.transno))
	b = binary.BigEndian.AppendUint64(b, d.stamp.client)
	return append(b, d.name...)
}

func (d *dirent) decode(key, v []byte) error {
	if len(key) != direntKeySize || len(v) <= direntFixed || v[0] != direntVersion {
		return fmt.Errorf("%w: entry of %d and %d bytes", errFormat, len(key), len(v))
	}
	be := binary.BigEndian
	child, err := fid.FromKey(v[2:])
	if err != nil {
		return err
	}
	*d = dirent{
		cookie: be.Uint64(key[fid.KeySize:]), kind: v[1], child: child,
		stamp: stamp{store.Transno(be.Uint64(v[direntAtStamp:])), be.Uint64(v[direntAtStamp+8:])},
		name:  v[direntFixed:],
	}
	return nil
}

// entryScan looks for one name among the entries of its hash. Its fn is bound once, so that a lookup makes no closure.
type entryScan struct {
	fn    func(key, value []byte) bool
	name  []byte
	found bool
	entry dirent
	err   error
	used  [ordinals / 64]uint64
	count int
}

func (s *entryScan) init() { s.fn = s.visit }

func (s *entryScan) visit(key, value []byte) bool {
	if len(value) <= direntFixed {
		s.err = fmt.Errorf("%w: entry of %d bytes", errFormat, len(value))
		return false
	}
	o := key[len(key)-1] & (ordinals - 1)
	s.used[o/64] |= 1 << (o % 64)
	s.count++
	if !bytes.Equal(value[direntFixed:], s.name) {
		return true
	}
	s.err = s.entry.decode(key, value)
	s.entry.name = s.name
	s.found = true
	return false
}

// find looks the name up in a folder, without locks. The result's name is the argument. It is NotExist when there is none.
func (o *op) find(folder fid.FID, name []byte) (dirent, error) {
	h := o.h.key.name(name)
	key := appendDirentKey(o.e.Alloc(direntKeySize)[:0], folder, h.cookie(0))
	v, err := o.h.dev.Get(o.e, o.h.tables.Dirent, key)
	if err == nil && len(v) > direntFixed && bytes.Equal(v[direntFixed:], name) {
		var d dirent
		err = d.decode(key, v)
		return d, err
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return dirent{}, err
	}
	_, d, err := o.findFree(folder, name)
	return d, err
}

// findFree looks the name up and, when it is not there (NotExist), gives the cookie that a new entry takes: the first
// ordinal free behind its hash. A full run is NoSpace.
func (o *op) findFree(folder fid.FID, name []byte) (uint64, dirent, error) {
	h := o.h.key.name(name)
	s := &o.scan
	s.name, s.found, s.err, s.count = name, false, nil, 0
	clear(s.used[:])
	from := appendDirentKey(o.e.Alloc(direntKeySize)[:0], folder, h.cookie(0))
	to := appendDirentKey(o.e.Alloc(direntKeySize)[:0], folder, h.cookie(0)+ordinals)
	err := o.h.dev.Scan(o.e, o.h.tables.Dirent, from, to, s.fn)
	switch {
	case err != nil:
		return 0, dirent{}, err
	case s.err != nil:
		return 0, dirent{}, s.err
	case s.found:
		return 0, s.entry, nil
	case s.count >= ordinals:
		o.h.stats.hashRunsFull.Add(1)
		return 0, dirent{}, status.Errorf(status.NoSpace, "mdt: %d names of %v have the hash of the new one", ordinals, folder)
	}
	for i := range ordinals {
		if s.used[i/64]&(1<<(i%64)) == 0 {
			return h.cookie(i), dirent{}, status.NotExist
		}
	}
	panic("mdt: no free ordinal")
}

// putEntry adds an entry to the transaction, stamped with it.
func (o *op) putEntry(folder fid.FID, d *dirent) {
	d.stamp = stamp{client: o.client}
	key := appendDirentKey(o.e.Alloc(direntKeySize)[:0], folder, d.cookie)
	value := d.appendTo(o.e.Alloc(direntFixed + len(d.name))[:0])
	o.tx.Put(o.h.tables.Dirent, key, value, direntAtStamp)
}

func (o *op) deleteEntry(folder fid.FID, d *dirent) {
	o.tx.Delete(o.h.tables.Dirent, appendDirentKey(o.e.Alloc(direntKeySize)[:0], folder, d.cookie))
}
