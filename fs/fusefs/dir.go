package fusefs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/strakefs/strake/fs/mdc"
)

// OpenDir opens a folder.
func (f *FS) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if f.kernel.isOwn(&in.InHeader) {
		return fuse.OK // a place to start from: nothing is read there
	}
	ctx := f.begin(cancel, in.Pid, opOpen)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(&in.InHeader, 0, &who)
	d, err := f.c.OpenDir(ctx, &who, f.node(in.NodeId), in.Flags)
	if err != nil {
		return f.code("opendir", in.NodeId, err)
	}
	fh := f.nextFh.Add(1)
	f.dirs.Store(fh, d)
	*out = fuse.OpenOut{Fh: fh}
	return fuse.OK
}

// ReleaseDir closes a folder.
func (f *FS) ReleaseDir(in *fuse.ReleaseIn) {
	if d, ok := f.dirs.LoadAndDelete(in.Fh); ok {
		f.counts[opClose].Inc()
		d.Release()
	}
}

// ReadDir lists names.
func (f *FS) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.readDir(cancel, in, false, func(e *mdc.Dirent, _ bool) bool {
		return out.AddDirEntry(fuse.DirEntry{Mode: e.Mode, Name: string(e.Name), Ino: f.number(e.FID), Off: e.Cookie})
	})
}

// ReadDirPlus lists names with attributes, which the kernel keeps as if it had looked each name up. An entry whose
// attributes no lock covers goes out without them.
func (f *FS) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	f.listing.enter(in.NodeId)
	defer f.listing.left(in.NodeId)
	before := f.dropped.Load()
	var told []*fuse.EntryOut
	code := f.readDir(cancel, in, true, func(e *mdc.Dirent, whole bool) bool {
		o := out.AddDirLookupEntry(fuse.DirEntry{Mode: e.Mode, Name: string(e.Name), Ino: f.number(e.FID), Off: e.Cookie})
		if o == nil {
			return false
		}
		dots := len(e.Name) == 1 && e.Name[0] == '.' || len(e.Name) == 2 && e.Name[0] == '.' && e.Name[1] == '.'
		if whole && !dots {
			f.putEntry(&e.Attr, in.NodeId, string(e.Name), o)
			told = append(told, o)
		}
		return true
	})
	if f.dropped.Load() != before {
		// What was dropped meanwhile may be among them, and the kernel does not have them yet.
		for _, o := range told {
			o.SetEntryTimeout(0)
			o.SetAttrTimeout(0)
		}
	}
	return code
}

func (f *FS) readDir(cancel <-chan struct{}, in *fuse.ReadIn, plus bool, fn func(*mdc.Dirent, bool) bool) fuse.Status {
	d, ok := f.dirs.Load(in.Fh)
	if !ok {
		return fuse.EBADF
	}
	ctx := f.begin(cancel, in.Pid, opReaddir)
	defer f.requests.free(ctx)
	return f.code("readdir", in.NodeId, d.Read(ctx, in.Offset, plus, fn))
}

// FsyncDir makes a folder's entries durable.
func (f *FS) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	ctx := f.begin(cancel, in.Pid, opFsync)
	defer f.requests.free(ctx)
	return f.code("fsync", in.NodeId, f.c.SyncDir(ctx, f.node(in.NodeId)))
}

var _ fuse.RawFileSystem = (*FS)(nil)
