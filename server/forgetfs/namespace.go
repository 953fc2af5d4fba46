package forgetfs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// add makes a node under a name.
func (im *image) add(in *fuse.InHeader, mode uint32, name string) (*node, func(), fuse.Status) {
	dir, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return nil, nil, code
	}
	if dir.nlink == 0 || dir.entries[name] != nil {
		done()
		if dir.nlink == 0 {
			return nil, nil, fuse.ENOENT
		}
		return nil, nil, fuse.Status(unix.EEXIST)
	}
	n := im.newNode(mode, name)
	n.uid, n.gid = in.Uid, in.Gid
	if n.isDir() {
		n.parent = dir
	}
	dir.entries[name] = n
	dir.changed()
	im.pend(&change{kind: opMake, n: n, to: place{dir, name}})
	return n, done, fuse.OK
}

// changed notes that a name in the folder has changed.
func (n *node) changed() {
	n.touch()
	n.mtime = n.ctime
}

// Mknod implements fuse.RawFileSystem, for files.
func (im *image) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if in.Mode&unix.S_IFMT != unix.S_IFREG {
		return fuse.Status(unix.EOPNOTSUPP)
	}
	n, done, code := im.add(&in.InHeader, in.Mode, name)
	if code.Ok() {
		defer done()
		n.entry(im, out)
	}
	return code
}

// Mkdir implements fuse.RawFileSystem.
func (im *image) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	n, done, code := im.add(&in.InHeader, unix.S_IFDIR|in.Mode&0o7777, name)
	if code.Ok() {
		defer done()
		n.entry(im, out)
	}
	return code
}

// Symlink implements fuse.RawFileSystem.
func (im *image) Symlink(_ <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	n, done, code := im.add(in, unix.S_IFLNK|0o777, name)
	if code.Ok() {
		defer done()
		n.target = target
		n.entry(im, out)
	}
	return code
}

// Link implements fuse.RawFileSystem.
func (im *image) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	dir, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	n := im.nodes[in.Oldnodeid]
	switch {
	case n == nil || n.nlink == 0 || dir.nlink == 0:
		return fuse.ENOENT
	case dir.entries[name] != nil:
		return fuse.Status(unix.EEXIST)
	}
	dir.entries[name] = n
	dir.changed()
	n.nlink++
	n.touch()
	im.pend(&change{kind: opLink, n: n, to: place{dir, name}})
	n.entry(im, out)
	return fuse.OK
}

// Unlink implements fuse.RawFileSystem.
func (im *image) Unlink(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return im.remove(in, name, false)
}

// Rmdir implements fuse.RawFileSystem.
func (im *image) Rmdir(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return im.remove(in, name, true)
}

func (im *image) remove(in *fuse.InHeader, name string, folder bool) fuse.Status {
	dir, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	n := dir.entries[name]
	switch {
	case n == nil:
		return fuse.ENOENT
	case folder && !n.isDir():
		return fuse.ENOTDIR
	case !folder && n.isDir():
		return fuse.Status(unix.EISDIR)
	case len(n.entries) > 0:
		return fuse.Status(unix.ENOTEMPTY)
	}
	delete(dir.entries, name)
	dir.changed()
	im.pend(&change{kind: opUnlink, n: n, from: place{dir, name}})
	im.unname(n)
	return fuse.OK
}

// unname takes a name from a node.
func (im *image) unname(n *node) {
	n.nlink--
	n.touch()
	if n.nlink == 0 && im.room >= 0 {
		im.room += int64(n.blocks(im)) * 512
	}
	im.dropLocked(n)
}

// Rename implements fuse.RawFileSystem, without RENAME_EXCHANGE.
func (im *image) Rename(_ <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	from, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	to := im.nodes[in.Newdir]
	if to == nil || to.nlink == 0 {
		return fuse.ENOENT
	}
	n, over := from.entries[oldName], to.entries[newName]
	switch {
	case n == nil:
		return fuse.ENOENT
	case in.Flags&^unix.RENAME_NOREPLACE != 0:
		return fuse.EINVAL
	case in.Flags&unix.RENAME_NOREPLACE != 0 && over != nil:
		return fuse.Status(unix.EEXIST)
	case over == n:
		return fuse.OK
	case over != nil && over.isDir() && !n.isDir():
		return fuse.Status(unix.EISDIR)
	case over != nil && !over.isDir() && n.isDir():
		return fuse.ENOTDIR
	case over != nil && len(over.entries) > 0:
		return fuse.Status(unix.ENOTEMPTY)
	}
	delete(from.entries, oldName)
	to.entries[newName] = n
	from.changed()
	to.changed()
	n.touch()
	im.pend(&change{kind: opRename, n: n, from: place{from, oldName}, to: place{to, newName}, over: over})
	n.label = newName
	if n.isDir() {
		n.parent = to
	}
	if over != nil {
		im.unname(over)
	}
	return fuse.OK
}

// OpenDir implements fuse.RawFileSystem. The names are those of now.
func (im *image) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	up := n
	if n.parent != nil {
		up = n.parent
	}
	list := []fuse.DirEntry{{Name: ".", Mode: n.mode, Ino: n.ino}, {Name: "..", Mode: up.mode, Ino: up.ino}}
	for name, c := range n.entries {
		list = append(list, fuse.DirEntry{Name: name, Mode: c.mode, Ino: c.ino})
	}
	im.nextFh++
	im.dirs[im.nextFh] = list
	out.Fh = im.nextFh
	return fuse.OK
}

// ReadDir implements fuse.RawFileSystem.
func (im *image) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	_, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	list := im.dirs[in.Fh]
	for i := min(in.Offset, uint64(len(list))); i < uint64(len(list)); i++ {
		e := list[i]
		e.Off = i + 1
		if !out.AddDirEntry(e) {
			break
		}
	}
	return fuse.OK
}

// ReleaseDir implements fuse.RawFileSystem.
func (im *image) ReleaseDir(in *fuse.ReleaseIn) {
	im.mu.Lock()
	defer im.mu.Unlock()
	delete(im.dirs, in.Fh)
}

// FsyncDir implements fuse.RawFileSystem.
func (im *image) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	return status(im.sync(n))
}
