package forgetfs

import (
	"maps"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Create implements fuse.RawFileSystem.
func (im *image) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	n, done, code := im.add(&in.InHeader, unix.S_IFREG|in.Mode&0o7777, name)
	if !code.Ok() {
		return code
	}
	defer done()
	n.opens++
	n.entry(im, &out.EntryOut)
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	return fuse.OK
}

// Open implements fuse.RawFileSystem. The kernel's pages stay: nobody else writes the file.
func (im *image) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	if n.opens == 0 {
		n.evict()
	}
	if in.Flags&unix.O_TRUNC != 0 {
		if err := n.truncate(im, 0); err != nil {
			return status(err)
		}
	}
	n.opens++
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	return fuse.OK
}

// evict lets go of the pages whose fsync failed: once nobody has the file open, the disk's bytes are read again. A process that
// opens it must ask its kernel for that too, with fadvise(DONTNEED).
func (n *node) evict() {
	maps.DeleteFunc(n.pages, func(_ int64, pg *page) bool { return pg.lost })
}

// Release implements fuse.RawFileSystem.
func (im *image) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	im.mu.Lock()
	defer im.mu.Unlock()
	if n := im.nodes[in.NodeId]; n != nil {
		n.opens--
		if n.opens == 0 && n.file != nil && len(n.names) > 0 {
			_ = n.file.Close() // what was written to it is in the host's cache
			n.file = nil
		}
		im.dropLocked(n)
	}
}

// Read implements fuse.RawFileSystem.
func (im *image) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return nil, code
	}
	defer done()
	k, err := n.read(im, buf[:min(int(in.Size), len(buf))], int64(in.Offset))
	if err != nil {
		return nil, status(err)
	}
	return fuse.ReadResultData(buf[:k]), fuse.OK
}

// Write implements fuse.RawFileSystem.
func (im *image) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return 0, code
	}
	defer done()
	if im.failsLocked("write", n) {
		return 0, fuse.EIO
	}
	k, err := n.write(im, data, int64(in.Offset))
	if k > 0 {
		return uint32(k), fuse.OK
	}
	return 0, status(err)
}

// Flush implements fuse.RawFileSystem: a close keeps nothing.
func (im *image) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }

// Fsync implements fuse.RawFileSystem.
func (im *image) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	return status(im.sync(n))
}

// Fallocate implements fuse.RawFileSystem.
func (im *image) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	err := n.fallocate(im, in.Mode, int64(in.Offset), int64(in.Length))
	n.touch()
	return status(err)
}

// Lseek implements fuse.RawFileSystem.
func (im *image) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	n, done, code := im.use(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer done()
	at, err := n.seek(im, int64(in.Offset), in.Whence == unix.SEEK_HOLE)
	out.Offset = uint64(at)
	return status(err)
}
