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
	if h := nameHash(k.sum(b)>>(64-hashBits)) & k.mask; h != 0 {
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
//	 1  1  d_type of the child; bit 128 of ordinal 0: the run of its hash has, or had, more ordinals
//	 2 16  FID of the child
//	18  8  stamp: transno of the entry's last change
//	26  8  stamp: client
//	34     name
//
// Ordinal 0 of a run that has more keeps its place when its entry goes: as a value without a name. So an absent ordinal 0
// says that no name of this hash is there, and a lookup or create is one read.
const (
	direntVersion = 1
	direntRun     = 0x80
	direntAtStamp = 18
	direntFixed   = 34
)

// dirent is an entry in memory; name shares memory with the value it was decoded from.
type dirent struct {
	cookie uint64
	kind   uint8
	run    bool
	child  fid.FID
	stamp  stamp
	name   []byte
}

func (d *dirent) appendTo(b []byte) []byte {
	kind := d.kind
	if d.run {
		kind |= direntRun
	}
	b = append(b, direntVersion, kind)
	b = d.child.AppendKey(b)
	b = binary.BigEndian.AppendUint64(b, uint64(d.stamp.transno))
	b = binary.BigEndian.AppendUint64(b, d.stamp.client)
	return append(b, d.name...)
}

func (d *dirent) decode(key, v []byte) error {
	if len(key) != direntKeySize || len(v) < direntFixed || v[0] != direntVersion {
		return fmt.Errorf("%w: entry of %d and %d bytes", errFormat, len(key), len(v))
	}
	be := binary.BigEndian
	child, err := fid.FromKey(v[2:])
	if err != nil {
		return err
	}
	*d = dirent{
		cookie: be.Uint64(key[fid.KeySize:]), kind: v[1] &^ direntRun, run: v[1]&direntRun != 0, child: child,
		stamp: stamp{store.Transno(be.Uint64(v[direntAtStamp:])), be.Uint64(v[direntAtStamp+8:])},
		name:  v[direntFixed:],
	}
	return nil
}

// slot is where a new entry goes.
type slot struct {
	cookie uint64
	run    bool
	// mark says that first, ordinal 0 of the run, has to be told that it has more now.
	mark  bool
	first dirent
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
	var d dirent
	if s.err = d.decode(key, value); s.err != nil {
		return false
	}
	if len(d.name) == 0 {
		return true
	}
	o := key[len(key)-1] & (ordinals - 1)
	s.used[o/64] |= 1 << (o % 64)
	s.count++
	if !bytes.Equal(d.name, s.name) {
		return true
	}
	s.entry, s.found = d, true
	s.entry.name = s.name
	return false
}

// find looks a name up in a folder. Without it the error is NotExist, and then the slot is where a new entry of that
// name goes; its run may be full (NoSpace of putNew). The entry's name is the argument.
func (o *op) find(folder fid.FID, name []byte) (dirent, slot, error) {
	h := o.h.key.name(name)
	key := appendDirentKey(o.e.Alloc(direntKeySize)[:0], folder, h.cookie(0))
	v, err := o.h.dev.Get(o.e, o.h.tables.Dirent, key)
	if errors.Is(err, store.ErrNotFound) {
		return dirent{}, slot{cookie: h.cookie(0)}, status.NotExist
	}
	if err != nil {
		return dirent{}, slot{}, err
	}
	var d dirent
	if err := d.decode(key, v); err != nil {
		return dirent{}, slot{}, err
	}
	if bytes.Equal(d.name, name) {
		d.name = name
		return d, slot{}, nil
	}
	if !d.run {
		return dirent{}, slot{cookie: h.cookie(1), mark: true, first: d}, status.NotExist
	}
	return o.findInRun(folder, name, &d)
}

// findInRun looks a name up among the entries of its hash. first is ordinal 0.
func (o *op) findInRun(folder fid.FID, name []byte, first *dirent) (dirent, slot, error) {
	h := o.h.key.name(name)
	s := &o.scan
	s.name, s.found, s.err, s.count = name, false, nil, 0
	clear(s.used[:])
	from := appendDirentKey(o.e.Alloc(direntKeySize)[:0], folder, h.cookie(0))
	to := appendDirentKey(o.e.Alloc(direntKeySize)[:0], folder, h.cookie(0)+ordinals)
	if err := o.h.dev.Scan(o.e, o.h.tables.Dirent, from, to, s.fn); err != nil {
		return dirent{}, slot{}, err
	}
	switch {
	case s.err != nil:
		return dirent{}, slot{}, s.err
	case s.found:
		return s.entry, slot{}, nil
	case s.count >= ordinals:
		return dirent{}, slot{}, status.NotExist
	}
	for i := range ordinals {
		if s.used[i/64]&(1<<(i%64)) == 0 {
			return dirent{}, slot{cookie: h.cookie(i), run: i == 0 && first.run}, status.NotExist
		}
	}
	panic("mdt: no free ordinal")
}

// putNew adds a new entry in its slot to the transaction.
func (o *op) putNew(folder fid.FID, d *dirent, s *slot) error {
	if s.cookie == 0 {
		o.h.stats.hashRunsFull.Add(1)
		return status.Errorf(status.NoSpace, "mdt: %d names of %v have the hash of the new one", ordinals, folder)
	}
	if s.mark {
		s.first.run = true
		o.putRaw(folder, &s.first)
	}
	d.cookie, d.run = s.cookie, s.run
	o.putEntry(folder, d)
	return nil
}

// putEntry adds an entry to the transaction, stamped with it.
func (o *op) putEntry(folder fid.FID, d *dirent) {
	d.stamp = stamp{client: o.client}
	key := appendDirentKey(o.e.Alloc(direntKeySize)[:0], folder, d.cookie)
	value := d.appendTo(o.e.Alloc(direntFixed + len(d.name))[:0])
	o.tx.Put(o.h.tables.Dirent, key, value, direntAtStamp)
}

// putRaw puts an entry with the stamp that it has.
func (o *op) putRaw(folder fid.FID, d *dirent) {
	key := appendDirentKey(o.e.Alloc(direntKeySize)[:0], folder, d.cookie)
	o.tx.Put(o.h.tables.Dirent, key, d.appendTo(o.e.Alloc(direntFixed + len(d.name))[:0]))
}

// deleteEntry takes an entry away; ordinal 0 of a run with more keeps its place.
func (o *op) deleteEntry(folder fid.FID, d *dirent) {
	o.removed = append(o.removed, removalKey(folder, d.cookie))
	if d.run && d.cookie%ordinals == 0 {
		o.putEntry(folder, &dirent{cookie: d.cookie, run: true})
		return
	}
	o.tx.Delete(o.h.tables.Dirent, appendDirentKey(o.e.Alloc(direntKeySize)[:0], folder, d.cookie))
}
