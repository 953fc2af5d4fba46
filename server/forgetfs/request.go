package forgetfs

import (
	"errors"
	"log"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// entryTimeout is how long the kernel keeps names: nobody else changes them.
const entryTimeout = time.Hour

// use locks the image and finds a node; done unlocks it. It fails when the power is off.
func (im *image) use(ino uint64) (n *node, done func(), code fuse.Status) {
	im.mu.Lock()
	n = im.nodes[ino]
	switch {
	case im.dead:
		code = fuse.EIO
	case n == nil:
		code = fuse.Status(unix.ESTALE)
	default:
		return n, im.mu.Unlock, fuse.OK
	}
	im.mu.Unlock()
	return nil, nil, code
}

// status is the answer for an error; one that is no errno is the backing folder's, and is logged.
func status(err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		log.Print(err)
		return fuse.EIO
	}
	return fuse.Status(errno)
}

// String implements fuse.RawFileSystem.
func (im *image) String() string { return "forgetfs" }

// attr fills in what stat shows.
func (n *node) attr(im *image, a *fuse.Attr) {
	*a = fuse.Attr{Ino: n.ino, Mode: n.mode, Nlink: n.nlink, Size: uint64(n.size), Blksize: pageBytes, Owner: fuse.Owner{Uid: n.uid, Gid: n.gid}}
	a.SetTimes(&n.atime, &n.mtime, &n.ctime)
	switch n.mode & unix.S_IFMT {
	case unix.S_IFDIR:
		a.Size = pageBytes
		for _, c := range n.entries {
			if c.isDir() {
				a.Nlink++
			}
		}
		if n.nlink > 0 {
			a.Nlink++
		}
	case unix.S_IFLNK:
		a.Size = uint64(len(n.target))
	default:
		a.Blocks = n.blocks(im)
	}
}

// entry fills in the answer to a look-up, and counts it.
func (n *node) entry(im *image, out *fuse.EntryOut) {
	n.lookups++
	out.NodeId, out.Generation = n.ino, 1
	out.SetEntryTimeout(entryTimeout)
	n.attr(im, &out.Attr)
}

// Lookup implements fuse.RawFileSystem.
func (im *image) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	dir, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	n := dir.entries[name]
	if n == nil {
		return fuse.ENOENT
	}
	n.entry(im, out)
	return fuse.OK
}

// Forget implements fuse.RawFileSystem.
func (im *image) Forget(ino, count uint64) {
	im.mu.Lock()
	defer im.mu.Unlock()
	if n := im.nodes[ino]; n != nil && n != im.root {
		n.lookups -= min(n.lookups, count)
		im.dropLocked(n)
	}
}

// GetAttr implements fuse.RawFileSystem.
func (im *image) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	n.attr(im, &out.Attr)
	return fuse.OK
}

// SetAttr implements fuse.RawFileSystem.
func (im *image) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	if size, ok := in.GetSize(); ok {
		if err := n.truncate(im, int64(size)); err != nil {
			return status(err)
		}
	}
	if mode, ok := in.GetMode(); ok {
		n.mode = n.mode&unix.S_IFMT | mode&0o7777
	}
	if uid, ok := in.GetUID(); ok {
		n.uid = uid
	}
	if gid, ok := in.GetGID(); ok {
		n.gid = gid
	}
	if t, ok := in.GetATime(); ok {
		n.atime = t
	}
	if t, ok := in.GetMTime(); ok {
		n.mtime = t
	}
	n.touch()
	n.attr(im, &out.Attr)
	return fuse.OK
}

// Readlink implements fuse.RawFileSystem.
func (im *image) Readlink(_ <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return nil, code
	}
	defer done()
	return []byte(n.target), fuse.OK
}

// Access implements fuse.RawFileSystem: the kernel checks permission.
func (im *image) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.OK }

// StatFs implements fuse.RawFileSystem.
func (im *image) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	im.mu.Lock()
	defer im.mu.Unlock()
	var st unix.Statfs_t
	if err := unix.Statfs(im.backing, &st); err != nil {
		return status(err)
	}
	*out = fuse.StatfsOut{
		Blocks: st.Blocks, Bfree: st.Bfree, Bavail: st.Bavail, Files: st.Files, Ffree: st.Ffree,
		Bsize: uint32(st.Bsize), Frsize: uint32(st.Frsize), NameLen: 255,
	}
	if im.room >= 0 {
		out.Bfree = uint64(im.room) / uint64(out.Frsize)
		out.Bavail = out.Bfree
	}
	return fuse.OK
}
