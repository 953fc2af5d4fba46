package mdt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// inlineMax bounds the values of one inode that stay in its record, in bytes: the record is read with every lookup.
const inlineMax = 4 * attr.XattrInlineMax

// xattr is one extended attribute. An xattrs section is a row of them, uvarint where marked v:
//
//	1  where the value is: 0 here, 1 in the xattr table under FID (16 bytes) and name
//	v  length of the name, name
//	v  length of the value; value, if it is here
type xattr struct {
	large bool
	name  []byte
	size  uint64
	value []byte
}

func appendXattr(b []byte, x *xattr) []byte {
	where := byte(0)
	if x.large {
		where = 1
	}
	b = append(b, where)
	b = binary.AppendUvarint(b, uint64(len(x.name)))
	b = append(b, x.name...)
	b = binary.AppendUvarint(b, x.size)
	if !x.large {
		b = append(b, x.value...)
	}
	return b
}

// nextXattr takes the first attribute off a section.
// Precondition: len(b) > 0.
func nextXattr(b []byte) (x xattr, rest []byte, err error) {
	bad := fmt.Errorf
	if b[0] > 1 {
		return x, nil, bad("%w: xattrs of %d bytes", errFormat, len(b))
	}
	x.large = b[0] == 1
	size, k := binary.Uvarint(b[1:])
	if k <= 0 || size == 0 || size > uint64(len(b)-1-k) {
		return x, nil, bad("%w: xattrs of %d bytes", errFormat, len(b))
	}
	rest = b[1+k:]
	x.name, rest = rest[:size], rest[size:]
	x.size, k = binary.Uvarint(rest)
	if k <= 0 || !x.large && x.size > uint64(len(rest)-k) {
		return x, nil, bad("%w: xattrs of %d bytes", errFormat, len(b))
	}
	rest = rest[k:]
	if !x.large {
		x.value, rest = rest[:x.size], rest[x.size:]
	}
	return x, rest, nil
}

// findXattr looks a name up in a section; at is where the attribute starts.
func findXattr(section, name []byte) (x xattr, at int, ok bool, err error) {
	for rest := section; len(rest) > 0; {
		x, next, err := nextXattr(rest)
		if err != nil {
			return x, 0, false, err
		}
		if bytes.Equal(x.name, name) {
			return x, len(section) - len(rest), true, nil
		}
		rest = next
	}
	return x, 0, false, nil
}

func (o *op) xattrKey(f fid.FID, name []byte) []byte {
	return append(f.AppendKey(o.e.Alloc(fid.KeySize + len(name))[:0]), name...)
}

// xattrValue gives an attribute's value.
func (o *op) xattrValue(f fid.FID, x *xattr) ([]byte, error) {
	if !x.large {
		return x.value, nil
	}
	v, err := o.h.dev.Get(o.e, o.h.tables.Xattr, o.xattrKey(f, x.name))
	if errors.Is(err, store.ErrNotFound) {
		return nil, status.NoData // Removed since the inode was read.
	}
	return v, err
}

// tally is what an inode's attributes take.
type tally struct {
	count  int
	names  int
	values uint64
	inline uint64
}

func tallyXattrs(section []byte) (t tally, err error) {
	for len(section) > 0 {
		var x xattr
		if x, section, err = nextXattr(section); err != nil {
			return t, err
		}
		t.count++
		t.names += len(x.name) + 1
		t.values += x.size
		if !x.large {
			t.inline += x.size
		}
	}
	return t, nil
}

// setStored sets an attribute whose value is kept as it is.
func (o *op) setStored(n *inode, m *wirepb.XattrRequest) error {
	_, _, there, err := findXattr(n.sec[secXattrs], m.Name)
	switch {
	case err != nil:
		return err
	case there && m.Flags&attr.XattrFlagCreate != 0:
		return status.Exist
	case !there && m.Flags&attr.XattrFlagReplace != 0:
		return status.NoData
	}
	if there {
		if err := o.removeStored(n, m.Name); err != nil {
			return err
		}
	}
	t, err := tallyXattrs(n.sec[secXattrs])
	if err != nil {
		return err
	}
	size := uint64(len(m.Value))
	if t.count >= attr.XattrCountPerNode || t.names+len(m.Name)+1 > attr.XattrListMax || t.values+size > attr.XattrPerInodeMax {
		return status.NoSpace
	}
	x := xattr{name: m.Name, size: size, value: m.Value}
	x.large = size > attr.XattrInlineMax || t.inline+size > inlineMax
	if x.large {
		o.tx.Put(o.h.tables.Xattr, o.xattrKey(n.FID, m.Name), m.Value)
	}
	old := n.sec[secXattrs]
	b := o.e.Alloc(len(old) + 2*binary.MaxVarintLen64 + 1 + len(m.Name) + len(m.Value))[:0]
	n.sec[secXattrs] = appendXattr(append(b, old...), &x)
	return nil
}

// removeStored removes an attribute, NoData if it is not there.
func (o *op) removeStored(n *inode, name []byte) error {
	section := n.sec[secXattrs]
	x, at, ok, err := findXattr(section, name)
	if err != nil {
		return err
	}
	if !ok {
		return status.NoData
	}
	_, rest, err := nextXattr(section[at:])
	if err != nil {
		return err
	}
	if x.large {
		o.tx.Delete(o.h.tables.Xattr, o.xattrKey(n.FID, name))
	}
	b := append(o.e.Alloc(len(section))[:0], section[:at]...)
	n.sec[secXattrs] = append(b, rest...)
	return nil
}

// deleteLargeXattrs puts the end of all that n has in the xattr table.
func (o *op) deleteLargeXattrs(n *inode) error {
	for rest := n.sec[secXattrs]; len(rest) > 0; {
		x, next, err := nextXattr(rest)
		if err != nil {
			return err
		}
		if x.large {
			o.tx.Delete(o.h.tables.Xattr, o.xattrKey(n.FID, x.name))
		}
		rest = next
	}
	return nil
}

// dropCapability removes security.capability, which a change of content or owner ends.
func (o *op) dropCapability(n *inode) {
	if len(n.sec[secXattrs]) == 0 {
		return
	}
	name := []byte(attr.XattrCapability)
	if _, _, ok, err := findXattr(n.sec[secXattrs], name); ok && err == nil {
		_ = o.removeStored(n, name) // It is there: findXattr has read the section.
	}
}
