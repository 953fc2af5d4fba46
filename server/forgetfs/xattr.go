package forgetfs

import (
	"bytes"
	"errors"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// readXattrs reads the extended attributes of a backing file. A file system without any has none.
func readXattrs(path string) (map[string][]byte, error) {
	attrs := map[string][]byte{}
	list := make([]byte, 64<<10)
	k, err := unix.Llistxattr(path, list)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return attrs, nil
	}
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(list[:k]), "\x00"), "\x00") {
		value := make([]byte, 64<<10)
		if name == "" {
			continue
		}
		v, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return nil, err
		}
		attrs[name] = bytes.Clone(value[:v])
	}
	return attrs, nil
}

// xattrs returns the node's extended attributes, read from the disk at first use.
func (n *node) xattrs(im *image) (map[string][]byte, error) {
	if n.attrs != nil {
		return n.attrs, nil
	}
	n.attrs = map[string][]byte{}
	if len(n.names) == 0 && n != im.root {
		return n.attrs, nil
	}
	path := im.backing
	if n != im.root {
		path = im.path(n.names[0])
	}
	var err error
	n.attrs, err = readXattrs(path)
	return n.attrs, err
}

// GetXAttr implements fuse.RawFileSystem.
func (im *image) GetXAttr(_ <-chan struct{}, in *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return 0, code
	}
	defer done()
	attrs, err := n.xattrs(im)
	value, ok := attrs[name]
	if err == nil && !ok {
		err = unix.ENODATA
	}
	return answer(value, dest, err)
}

// ListXAttr implements fuse.RawFileSystem.
func (im *image) ListXAttr(_ <-chan struct{}, in *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return 0, code
	}
	defer done()
	attrs, err := n.xattrs(im)
	var list []byte
	for name := range attrs {
		list = append(append(list, name...), 0)
	}
	return answer(list, dest, err)
}

// answer copies a value to dest, or tells how long it is when dest is empty or too short.
func answer(value, dest []byte, err error) (uint32, fuse.Status) {
	if err == nil && len(dest) > 0 && len(dest) < len(value) {
		err = unix.ERANGE
	}
	copy(dest, value)
	return uint32(len(value)), fuse.ToStatus(err)
}

// SetXAttr implements fuse.RawFileSystem.
func (im *image) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, name string, data []byte) fuse.Status {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	attrs, err := n.xattrs(im)
	if err != nil {
		return fuse.ToStatus(err)
	}
	_, exists := attrs[name]
	switch {
	case in.Flags&unix.XATTR_CREATE != 0 && exists:
		return fuse.Status(unix.EEXIST)
	case in.Flags&unix.XATTR_REPLACE != 0 && !exists:
		return fuse.Status(unix.ENODATA)
	}
	attrs[name] = bytes.Clone(data)
	n.touch()
	return fuse.OK
}

// RemoveXAttr implements fuse.RawFileSystem.
func (im *image) RemoveXAttr(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	attrs, err := n.xattrs(im)
	if _, ok := attrs[name]; err == nil && !ok {
		err = unix.ENODATA
	}
	if err != nil {
		return fuse.ToStatus(err)
	}
	delete(attrs, name)
	n.touch()
	return fuse.OK
}
