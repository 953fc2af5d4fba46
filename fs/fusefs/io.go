package fusefs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/mdc"
)

// file finds an open file by its handle.
func (f *FS) file(fh uint64) (*client.Handle, fuse.Status) {
	h, ok := f.files.Load(fh)
	if !ok {
		return nil, fuse.EBADF
	}
	return h, fuse.OK
}

// Read reads into the kernel's own buffer.
func (f *FS) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	h, code := f.file(in.Fh)
	if code != fuse.OK {
		return nil, code
	}
	ctx := f.begin(cancel, in.Pid, opRead)
	defer f.requests.free(ctx)
	began := time.Now()
	buf = buf[:min(int(in.Size), len(buf))]
	n, err := h.Read(ctx, buf, in.Offset)
	paged := !h.Append() && !h.Direct()
	for again := 0; err == nil && paged && n < int(in.Size) && again < 2 && f.kernel.told.longer(in.NodeId, in.Offset+uint64(n), began); again++ {
		// A longer file was told meanwhile: what was appended must not be missing from the page.
		was := n
		if n, err = h.Read(ctx, buf, in.Offset); n <= was {
			break
		}
	}
	if err != nil {
		return nil, f.code("read", in.NodeId, err)
	}
	f.counts[opReadBytes].Observe(int64(n))
	end := in.Offset + uint64(n)
	r := fuse.ReadResultData(buf[:n])
	if paged && n < int(in.Size) {
		r = f.short(in.NodeId, buf[:n], end, began)
	}
	if paged && !h.Alone() {
		r = f.uncut(r, in.NodeId, in.Offset, end, began)
	}
	return r, fuse.OK
}

// Write writes one piece.
func (f *FS) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	return f.Writev(cancel, in, [][]byte{data})
}

// writeKillSuidgid of WriteIn.WriteFlags: the caller's write clears set-uid, set-gid and capabilities.
const writeKillSuidgid = 1 << 2

// Writev writes the pieces of one request.
func (f *FS) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	h, code := f.file(in.Fh)
	if code != fuse.OK {
		return 0, code
	}
	ctx := f.begin(cancel, in.Pid, opWrite)
	defer f.requests.free(ctx)
	w := client.Write{Data: data, Offset: in.Offset, Mapped: in.WriteFlags&fuse.WRITE_CACHE != 0}
	if in.WriteFlags&writeKillSuidgid != 0 && !w.Mapped {
		w.KillPriv = new(mdc.Caller)
		f.caller(&in.InHeader, 0, w.KillPriv)
	}
	r := f.writes.begin(in, (h.Append() || h.Direct()) && !w.Mapped)
	n, err := h.Write(ctx, &w)
	f.writes.end(in.NodeId, r)
	f.kernel.told.tell(in.NodeId, in.Offset+uint64(in.Size))
	if err != nil && n == 0 {
		return 0, f.code("write", in.NodeId, err)
	}
	f.counts[opWriteBytes].Observe(int64(n))
	return uint32(n), fuse.OK
}

// Flush is sent for each close(2).
func (f *FS) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	h, code := f.file(in.Fh)
	if code != fuse.OK {
		return code
	}
	ctx := f.begin(cancel, in.Pid, opFlush)
	defer f.requests.free(ctx)
	err := h.Flush(ctx)
	if unlockErr := h.Unlock(ctx, in.LockOwner, false); err == nil {
		err = unlockErr
	}
	return f.code("close", in.NodeId, err)
}

// Fsync makes a file durable.
func (f *FS) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	h, code := f.file(in.Fh)
	if code != fuse.OK {
		return code
	}
	ctx := f.begin(cancel, in.Pid, opFsync)
	defer f.requests.free(ctx)
	return f.code("fsync", in.NodeId, h.Fsync(ctx))
}

// Fallocate reserves, punches or zeroes a range.
func (f *FS) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	h, code := f.file(in.Fh)
	if code != fuse.OK {
		return code
	}
	ctx := f.begin(cancel, in.Pid, opFallocate)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(&in.InHeader, 0, &who)
	return f.code("fallocate", in.NodeId, h.Fallocate(ctx, &who, in.Mode, in.Offset, in.Length))
}

// Values of lseek(2).
const (
	seekData = 3
	seekHole = 4
)

// Lseek finds data or a hole.
func (f *FS) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	if in.Whence != seekData && in.Whence != seekHole {
		return fuse.EINVAL
	}
	h, code := f.file(in.Fh)
	if code != fuse.OK {
		return code
	}
	ctx := f.begin(cancel, in.Pid, opSeek)
	defer f.requests.free(ctx)
	off, err := h.Seek(ctx, in.Offset, in.Whence == seekHole)
	if err != nil {
		return f.code("lseek", in.NodeId, err)
	}
	out.Offset = off
	return fuse.OK
}

// copyMax bounds what one request copies, so that a copy of any size can be interrupted and answers in time.
const copyMax = 64 << 20

// CopyFileRange copies between two open files of the mount.
func (f *FS) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	if in.Flags != 0 {
		return 0, fuse.EINVAL
	}
	src, code := f.file(in.FhIn)
	if code != fuse.OK {
		return 0, code
	}
	dst, code := f.file(in.FhOut)
	if code != fuse.OK {
		return 0, code
	}
	if src.FID() == dst.FID() && in.OffIn < in.OffOut+in.Len && in.OffOut < in.OffIn+in.Len {
		return 0, fuse.EINVAL
	}
	ctx := f.begin(cancel, in.Pid, opCopy)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(&in.InHeader, 0, &who)
	n, err := src.CopyTo(ctx, &who, dst, in.OffIn, in.OffOut, min(in.Len, copyMax))
	return uint32(n), f.code("copy_file_range", in.NodeId, err)
}
