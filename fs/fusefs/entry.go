package fusefs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/status"
)

// Lookup finds a name. An absent one is not remembered by the kernel: the client knows better what is absent.
func (f *FS) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if len(name) > attr.NameMax {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	ctx := f.begin(cancel, h.Pid, opLookup)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(h, 0, &who)
	var a attr.Attr
	if name == ".." && h.NodeId == fuse.FUSE_ROOT_ID {
		name = "."
	}
	err := f.lookup(ctx, &who, h.NodeId, name, &a)
	for again := 0; err == nil && again < asksMax && a.IsFile() && f.kernel.told.awaitTails(f.number(a.FID)); again++ {
		err = f.c.Lookup(ctx, &who, f.node(h.NodeId), name, &a)
	}
	if err != nil {
		return f.pathCode("lookup", h, err)
	}
	f.putEntry(&a, h.NodeId, name, out)
	return fuse.OK
}

// making is a request that makes an inode without opening it.
type making struct {
	header *fuse.InHeader
	umask  uint32
	name   string
	what   mdc.Creation
}

func (f *FS) make(cancel <-chan struct{}, m *making, out *fuse.EntryOut) fuse.Status {
	if len(m.name) > attr.NameMax {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	h := m.header
	ctx := f.begin(cancel, h.Pid, m.op())
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(h, m.umask, &who)
	var a attr.Attr
	f.busy.enter(h.NodeId)
	defer f.busy.leave(h.NodeId)
	if err := f.c.Make(ctx, &who, f.node(h.NodeId), m.name, &m.what, &a); err != nil {
		return f.pathCode("create", h, err)
	}
	f.putEntry(&a, h.NodeId, m.name, out)
	return fuse.OK
}

// Mknod makes a file, device, fifo or socket.
func (f *FS) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.make(cancel, &making{&in.InHeader, in.Umask, name, mdc.Creation{Mode: in.Mode, Rdev: in.Rdev}}, out)
}

// Mkdir makes a folder.
func (f *FS) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.make(cancel, &making{&in.InHeader, in.Umask, name, mdc.Creation{Mode: in.Mode&attr.PermMask | attr.TypeDir}}, out)
}

// Symlink makes a symbolic link.
func (f *FS) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target string, name string, out *fuse.EntryOut) fuse.Status {
	if len(target) > attr.SymlinkMax {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	return f.make(cancel, &making{h, 0, name, mdc.Creation{Mode: attr.TypeLink | 0o777, Symlink: target}}, out)
}

// Readlink reads a symbolic link.
func (f *FS) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	ctx := f.begin(cancel, h.Pid, opReadlink)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(h, 0, &who)
	b, err := f.c.Readlink(ctx, &who, f.node(h.NodeId))
	if k := status.Of(err); err != nil && (k == status.NotExist || k == status.Stale) {
		if _, target, ok := f.ahead.linkOf(h.Pid, f.node(h.NodeId)); ok {
			return target, fuse.OK
		}
		err = status.Stale
		f.ahead.ask(h.Pid)
	}
	return b, f.code("readlink", h.NodeId, err)
}

// Link makes another name.
func (f *FS) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	if len(name) > attr.NameMax {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	ctx := f.begin(cancel, in.Pid, opLink)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(&in.InHeader, 0, &who)
	var a attr.Attr
	f.busy.enter(in.NodeId)
	defer f.busy.leave(in.NodeId)
	if err := f.c.Link(ctx, &who, f.node(in.Oldnodeid), f.node(in.NodeId), name, &a); err != nil {
		return f.pathCode("link", &in.InHeader, err)
	}
	f.putEntry(&a, in.NodeId, name, out)
	return fuse.OK
}

func (f *FS) unlink(cancel <-chan struct{}, h *fuse.InHeader, name string, rmdir bool) fuse.Status {
	ctx := f.begin(cancel, h.Pid, pick(rmdir, opRmdir, opUnlink))
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(h, 0, &who)
	f.busy.enter(h.NodeId)
	defer f.busy.leave(h.NodeId)
	return f.pathCode("unlink", h, f.c.Unlink(ctx, &who, f.node(h.NodeId), name, rmdir))
}

// Unlink removes a name.
func (f *FS) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return f.unlink(cancel, h, name, false)
}

// Rmdir removes an empty folder.
func (f *FS) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return f.unlink(cancel, h, name, true)
}

// Rename moves a name.
func (f *FS) Rename(cancel <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	if len(to) > attr.NameMax {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	ctx := f.begin(cancel, in.Pid, opRename)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(&in.InHeader, 0, &who)
	f.busy.enter(in.NodeId)
	defer f.busy.leave(in.NodeId)
	f.busy.enter(in.Newdir)
	defer f.busy.leave(in.Newdir)
	err := f.c.Rename(ctx, &who, &mdc.Renaming{
		From: f.node(in.NodeId), FromName: from, To: f.node(in.Newdir), ToName: to, Flags: in.Flags,
	})
	return f.pathCode("rename", &in.InHeader, err)
}

// Access answers access(2) where the kernel does not decide itself.
func (f *FS) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.ENOSYS }

// openFlags says how the kernel caches an open file. A handle opened with O_APPEND goes past the cache: its offset is the
// client's to find. So does one opened with O_DIRECT, whose reads would otherwise end in the cache where they are short.
func (f *FS) openFlags(h *client.Handle) uint32 {
	if h.Append() {
		return fuse.FOPEN_DIRECT_IO
	}
	if h.Direct() {
		return fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES
	}
	// Pages lie under locks, which are given back when they are dropped.
	return fuse.FOPEN_PARALLEL_DIRECT_WRITES | fuse.FOPEN_KEEP_CACHE
}

func (f *FS) keep(h *client.Handle) uint64 {
	fh := f.nextFh.Add(1)
	f.files.Store(fh, h)
	return fh
}

// Create makes and opens a file.
func (f *FS) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if len(name) > attr.NameMax {
		return fuse.Status(syscall.ENAMETOOLONG)
	}
	return f.create(cancel, in, name, &mdc.Creation{Mode: in.Mode&attr.PermMask | attr.TypeFile, Open: true, Flags: in.Flags}, out)
}

// Tmpfile makes and opens a file without a name.
func (f *FS) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	return f.create(cancel, in, "", &mdc.Creation{Mode: in.Mode&attr.PermMask | attr.TypeFile, Open: true, Flags: in.Flags, Tmpfile: true}, out)
}

func (f *FS) create(cancel <-chan struct{}, in *fuse.CreateIn, name string, what *mdc.Creation, out *fuse.CreateOut) fuse.Status {
	ctx := f.begin(cancel, in.Pid, opCreate)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(&in.InHeader, in.Umask, &who)
	var a attr.Attr
	f.busy.enter(in.NodeId)
	defer f.busy.leave(in.NodeId)
	h, err := f.c.Create(ctx, &who, f.node(in.NodeId), name, what, &a)
	if err != nil {
		return f.pathCode("create", &in.InHeader, err)
	}
	f.putEntry(&a, in.NodeId, name, &out.EntryOut)
	out.OpenOut = fuse.OpenOut{Fh: f.keep(h), OpenFlags: f.openFlags(h)}
	return fuse.OK
}

// Open opens a file.
func (f *FS) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	ctx := f.begin(cancel, in.Pid, opOpen)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(&in.InHeader, 0, &who)
	if f.suspect.take(in.NodeId) {
		f.ahead.ask(in.Pid)
		return fuse.Status(syscall.ESTALE)
	}
	var a attr.Attr
	h, err := f.c.Open(ctx, &who, f.node(in.NodeId), in.Flags, &a)
	f.ahead.done(in.Pid)
	if err != nil {
		if k := status.Of(err); k == status.NotExist || k == status.Stale {
			// Addressed by number: ESTALE makes the kernel walk the path again, once.
			err = status.Stale
			f.ahead.ask(in.Pid)
		}
		return f.code("open", in.NodeId, err)
	}
	*out = fuse.OpenOut{Fh: f.keep(h), OpenFlags: f.openFlags(h)}
	return fuse.OK
}

// Release ends an open file.
func (f *FS) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	if h, ok := f.files.LoadAndDelete(in.Fh); ok {
		f.counts[opClose].Inc()
		h.Release() // Locks of flock(2) go with it.
	}
}
