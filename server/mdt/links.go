package mdt

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/strakefs/strake/fs/fid"
)

// linksMax bounds the parent links kept with an inode, in bytes. A file with more names than fit keeps the first ones:
// fid2path then does not know the others. A folder has one name.
const linksMax = 4096

// parentLink is one name of an inode. A parent links section is a row of them, big-endian, uvarint where marked v:
//
//	8  sequence of the folder
//	4  object id of the folder
//	v  length of the name, name
type parentLink struct {
	folder fid.FID
	name   []byte
}

func appendLink(b []byte, l parentLink) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(l.folder.Seq))
	b = binary.BigEndian.AppendUint32(b, l.folder.OID)
	b = binary.AppendUvarint(b, uint64(len(l.name)))
	return append(b, l.name...)
}

// nextLink takes the first link off a section; ok is false at its end.
func nextLink(b []byte) (l parentLink, rest []byte, ok bool, err error) {
	if len(b) == 0 {
		return parentLink{}, nil, false, nil
	}
	if len(b) > 12 {
		size, k := binary.Uvarint(b[12:])
		if k > 0 && size > 0 && size <= uint64(len(b)-12-k) {
			l.folder = fid.FID{Seq: fid.Seq(binary.BigEndian.Uint64(b)), OID: binary.BigEndian.Uint32(b[8:])}
			end := 12 + k + int(size)
			l.name = b[12+k : end]
			return l, b[end:], true, nil
		}
	}
	return parentLink{}, nil, false, fmt.Errorf("%w: parent links of %d bytes", errFormat, len(b))
}

// parent gives the first parent link: of a folder, where it is.
func (n *inode) parent() (parentLink, bool) {
	l, _, ok, err := nextLink(n.sec[secLinks])
	return l, ok && err == nil
}

// addLink adds a name, if there is room.
func (o *op) addLink(n *inode, l parentLink) {
	old := n.sec[secLinks]
	need := len(old) + 12 + binary.MaxVarintLen16 + len(l.name)
	if need > linksMax {
		return
	}
	n.sec[secLinks] = appendLink(append(o.e.Alloc(need)[:0], old...), l)
}

// dropLink removes a name, if it is there.
func (o *op) dropLink(n *inode, l parentLink) error {
	section := n.sec[secLinks]
	for rest := section; ; {
		got, next, ok, err := nextLink(rest)
		if err != nil || !ok {
			return err
		}
		if got.folder == l.folder && bytes.Equal(got.name, l.name) {
			b := o.e.Alloc(len(section))[:0]
			b = append(b, section[:len(section)-len(rest)]...)
			n.sec[secLinks] = append(b, next...)
			return nil
		}
		rest = next
	}
}
