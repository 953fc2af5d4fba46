package fusefs

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/puzpuzpuz/xsync/v4"
	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
)

// Options of a served mount.
type Options struct {
	Client *client.Client
	// Root is the folder that becomes the mount's root.
	Root fid.FID
	// UID, GID: all files are shown as owned by them if not nil. Umask hides permission bits if not nil.
	UID, GID, Umask *uint32
	// ACL and UserXattr allow POSIX ACLs and user.* attributes.
	ACL, UserXattr bool
	// NoFlock refuses locks of applications.
	NoFlock bool
	Log     *slog.Logger
	// Stats gets the mount's stats file, "<StatsPrefix>stats"; it may be nil.
	Stats       *stats.Registry
	StatsPrefix string
}

// cacheTime is how long the kernel may use what it was told under a lock. It is the eviction time: a stopped client process
// cannot take back what its kernel believes.
const cacheTime = 60 * time.Second

// FS serves one mount.
type FS struct {
	fuse.RawFileSystem
	c        *client.Client
	opts     Options
	log      *slog.Logger
	groups   groupCache
	requests watcher
	counts   counts
	kernel   *kernel
	nextFh   atomic.Uint64
	files    *xsync.Map[uint64, *client.Handle]
	dirs     *xsync.Map[uint64, *client.Dir]
	busy     busyFolders
	// listing counts listings with attributes.
	listing busyFolders
	// dropped counts the times that entries were dropped.
	dropped atomic.Uint64
	// writes are the WRITE requests under way.
	writes  writeTable
	drops   chan struct{} // bounds the notifications that wait for the kernel
	suspect suspects
	retries retries
	ahead   aheadOpens
	wait    sync.WaitGroup
}

func newFS(o Options, k *kernel) *FS {
	f := &FS{
		kernel:        k,
		RawFileSystem: fuse.NewDefaultRawFileSystem(), c: o.Client, opts: o, log: o.Log,
		files: xsync.NewMap[uint64, *client.Handle](), dirs: xsync.NewMap[uint64, *client.Dir](),
		drops: make(chan struct{}, dropsMax),
	}
	f.counts.register(o.Stats, o.StatsPrefix+"stats")
	f.requests.gone = f.kernel.gone
	f.requests.start()
	return f
}

// close ends what newFS started and releases what the kernel has left open.
func (f *FS) close() {
	f.requests.close()
	f.kernel.close()
	f.ahead.close()
	f.wait.Wait()
	f.files.Range(func(fh uint64, h *client.Handle) bool {
		if _, ok := f.files.LoadAndDelete(fh); ok {
			h.Release()
		}
		return true
	})
	f.dirs.Range(func(fh uint64, d *client.Dir) bool {
		if _, ok := f.dirs.LoadAndDelete(fh); ok {
			d.Release()
		}
		return true
	})
}

// String names the file system in traces.
func (f *FS) String() string { return "strake" }

// node gives the FID of a node number.
func (f *FS) node(n uint64) fid.FID {
	if n == fuse.FUSE_ROOT_ID {
		return f.opts.Root
	}
	return fid.FromIno(n)
}

// number gives the node number of a FID.
func (f *FS) number(g fid.FID) uint64 {
	if g == f.opts.Root {
		return fuse.FUSE_ROOT_ID
	}
	return g.Ino()
}

// caller tells who sent a request. Root's groups decide nothing, so they are not asked for.
func (f *FS) caller(h *fuse.InHeader, umask uint32, who *mdc.Caller) {
	*who = mdc.Caller{Cred: attr.Cred{UID: h.Uid, GID: h.Gid, Umask: umask & 0o777}, PID: h.Pid}
	if h.Uid != 0 && h.Pid != 0 {
		who.Groups = f.groups.of(h.Pid, h.Uid, h.Gid)
	}
}

// code turns an error into what the kernel is told. What no application can act on is logged.
func (f *FS) code(op string, n uint64, err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	e := fuse.Status(status.Errno(err))
	if e == fuse.EIO {
		f.log.Error("request failed", "op", op, "node", f.node(n), "err", err)
	}
	return e
}

// blockSize is what stat(2) calls the best size of I/O: 1 MiB requests reach the client whole, but programs that buffer
// st_blksize bytes for each open file should not take that much.
const blockSize = 64 << 10

func (f *FS) putAttr(a *attr.Attr, out *fuse.Attr) {
	*out = fuse.Attr{
		Ino: f.number(a.FID), Size: a.Size, Blocks: a.Blocks,
		Atime: uint64(a.Atime.Sec), Atimensec: a.Atime.Nsec,
		Mtime: uint64(a.Mtime.Sec), Mtimensec: a.Mtime.Nsec,
		Ctime: uint64(a.Ctime.Sec), Ctimensec: a.Ctime.Nsec,
		Mode: a.Mode, Nlink: a.Nlink, Owner: fuse.Owner{Uid: a.UID, Gid: a.GID},
		Rdev: a.Rdev, Blksize: blockSize,
	}
	if a.IsFile() {
		f.kernel.told.tellAttr(out.Ino, a.Size)
	}
	if f.opts.UID != nil {
		out.Uid = *f.opts.UID
	}
	if f.opts.GID != nil {
		out.Gid = *f.opts.GID
	}
	if f.opts.Umask != nil {
		out.Mode &^= *f.opts.Umask & 0o777
	}
}

// generation of all nodes: numbers are not used again.
const generation = 1

// putEntry answers with an inode that a name in a folder leads to. An empty name is of no entry.
func (f *FS) putEntry(a *attr.Attr, parent uint64, name string, out *fuse.EntryOut) {
	t := f.c.Tell(a, f.node(parent).Ino(), name)
	*out = fuse.EntryOut{NodeId: f.number(a.FID), Generation: generation}
	if t.Entry {
		out.SetEntryTimeout(cacheTime)
	}
	if t.Attr {
		out.SetAttrTimeout(cacheTime)
	}
	f.putAttr(a, &out.Attr)
}

// attrTimeout is how long the kernel may keep these attributes, which go to it now.
func (f *FS) attrTimeout(a *attr.Attr) time.Duration {
	if f.c.Tell(a, 0, "").Attr {
		return cacheTime
	}
	return 0
}

// StatFs answers statfs(2). Names are of 255 bytes.
func (f *FS) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	ctx := f.begin(cancel, h.Pid, opStatfs)
	defer f.requests.free(ctx)
	s, err := f.c.Statfs(ctx)
	if err != nil {
		return f.code("statfs", h.NodeId, err)
	}
	const unit = 4096
	*out = fuse.StatfsOut{
		Blocks: s.Total / unit, Bfree: s.Free / unit, Bavail: s.Avail / unit, Files: s.Inodes, Ffree: s.FreeInodes,
		Bsize: unit, Frsize: unit, NameLen: attr.NameMax,
	}
	return fuse.OK
}
