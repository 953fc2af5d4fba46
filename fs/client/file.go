package client

import (
	"context"
	"syscall"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/status"
)

// Handle is an open regular file. Its methods may be called at once from many goroutines.
type Handle struct {
	c      *Client
	in     *inode
	id     uint64
	append bool
	direct bool
	write  bool
	sync   bool
	atime  Atime
	// life is the client's when the file was opened.
	life uint32
	// flocks are the owners of application locks taken through this handle. guarded by in.mu
	flocks flockOwners
	reader lov.Reader
}

// alive fails when this mount was evicted since the file was opened: others may have changed it as if it were closed.
func (h *Handle) alive(ctx context.Context) error {
	if h.c.opts.Alive != nil {
		if err := h.c.opts.Alive(ctx); err != nil {
			return err
		}
	}
	if h.in.vanished.Load() {
		return status.Errorf(status.IO, "client: %v is lost: the MDT could not be brought back to where it was open", h.in.fid)
	}
	if h.life != h.c.life.Load() {
		return status.Errorf(status.IO, "client: %v was open when this mount was evicted: close it and open it again", h.in.fid)
	}
	return nil
}

// writable reports whether open(2) flags ask for writing.
func writable(flags uint32) bool { return flags&syscall.O_ACCMODE != syscall.O_RDONLY }

// Open opens a regular file. flags are those of open(2); O_TRUNC is honoured. a gets the attributes.
func (c *Client) Open(ctx context.Context, who *mdc.Caller, f fid.FID, flags uint32, a *attr.Attr) (*Handle, error) {
	if c.opts.ReadOnly && (writable(flags) || flags&syscall.O_TRUNC != 0) {
		return nil, status.ReadOnly
	}
	e := c.entry()
	defer c.putEntry(e)
	// The inode is held before the MDT is asked: what is written and reported meanwhile through another handle would make
	// the size in the answer an old one.
	in := c.get(f)
	life := c.life.Load()
	k := c.ask(f, e)
	changes := writable(flags) || flags&syscall.O_TRUNC != 0
	if changes {
		c.stale(f.Ino())
	}
	err := c.mdc.Open(ctx, who, f, flags, e)
	if err == nil && e.Attr.FID != f {
		err = status.Errorf(status.Protocol, "client: open of %v was answered for %v", f, e.Attr.FID)
	}
	if err != nil {
		c.put(in)
		return nil, err
	}
	c.keep(&k, e, changes, name{})
	return c.opened(ctx, e, in, &opening{flags, life}, a)
}

// opening is what an open was asked with, and in which life of the client.
type opening struct {
	flags uint32
	life  uint32
}

// Create makes a regular file and opens it; one that exists is opened unless flags hold O_EXCL.
func (c *Client) Create(ctx context.Context, who *mdc.Caller, parent fid.FID, entry string, what *mdc.Creation, a *attr.Attr) (*Handle, error) {
	if c.opts.ReadOnly {
		return nil, status.ReadOnly
	}
	e := c.entry()
	defer c.putEntry(e)
	life := c.life.Load()
	c.names.add(parent.Ino(), entry)
	k, pk := c.ask(fid.FID{}, e), c.entering(parent)
	if err := c.mdc.Create(ctx, who, parent, entry, what, e); err != nil {
		return nil, err
	}
	if e.HasParent {
		c.entered(&pk, parent, &e.Parent, e.Transno)
	}
	c.keep(&k, e, true, name{parent.Ino(), entry})
	h, err := c.opened(ctx, e, c.get(e.Attr.FID), &opening{what.Flags, life}, a)
	if err == nil && e.Created && !what.Tmpfile {
		if err = c.settle(ctx, &e.Parent, parent); err != nil {
			h.Release()
			return nil, err
		}
	}
	return h, err
}

// opened makes a handle of an answered open, and takes over the reference to the inode. A failure closes the open at the
// MDT again.
func (c *Client) opened(ctx context.Context, e *mdc.Entry, in *inode, o *opening, a *attr.Attr) (*Handle, error) {
	flags := o.flags
	if !e.Attr.IsFile() {
		c.mdc.QueueReport(mdc.Report{FID: e.Attr.FID, Handle: e.Handle})
		c.put(in)
		return nil, status.Invalid
	}
	trunc := flags&syscall.O_TRUNC != 0 && !e.Created
	in.mu.Lock()
	in.handles++
	in.writer = in.writer || writable(flags) || trunc
	in.unnamed = e.Attr.Nlink == 0
	if e.Created || trunc || e.Attr.NoXattr && e.Bits&ldlm.Xattr != 0 {
		in.caps = capsNone
	}
	in.mu.Unlock()
	h := &Handle{
		c: c, in: in, id: e.Handle, append: flags&syscall.O_APPEND != 0, direct: flags&syscall.O_DIRECT != 0,
		write: writable(flags), atime: c.opts.Atime, life: o.life,
		sync: c.opts.Sync || flags&(syscall.O_SYNC|syscall.O_DSYNC) != 0 || e.Attr.Flags&attr.FlagSync != 0,
	}
	if c.opts.ReadOnly || flags&syscall.O_NOATIME != 0 || e.Attr.Flags&attr.FlagNoAtime != 0 {
		h.atime = NoAtime
	}
	err := in.attach(ctx, e)
	if err == nil && trunc {
		err = c.truncateData(ctx, in, 0)
		c.changes.mark(in.fid.Ino())
	}
	if err != nil {
		h.Release()
		return nil, err
	}
	*a = e.Attr
	in.complete(a)
	return h, nil
}

// FID is the file's.
func (h *Handle) FID() fid.FID { return h.in.fid }

// Append reports whether the handle was opened with O_APPEND.
func (h *Handle) Append() bool { return h.append }

// Direct reports whether the handle was opened with O_DIRECT.
func (h *Handle) Direct() bool { return h.direct }

// Alone reports whether no other client can change the file's size.
func (h *Handle) Alone() bool { return h.in.knows() }

// ID is the MDT's number of the open.
func (h *Handle) ID() uint64 { return h.id }

// Read fills b from off; fewer bytes only at the end of the file.
func (h *Handle) Read(ctx context.Context, b []byte, off uint64) (int, error) {
	if err := h.alive(ctx); err != nil {
		return 0, err
	}
	n, err := h.readAt(ctx, b, off)
	if err == nil {
		h.in.accessed(h.atime)
	}
	return n, err
}

func (h *Handle) readAt(ctx context.Context, b []byte, off uint64) (int, error) {
	if h.direct {
		return h.in.file.Read(ctx, b, off, &lov.How{Direct: true})
	}
	return h.in.file.ReadBy(ctx, b, off, &h.reader)
}

// readCopy is Read for bytes that fill no page of the kernel's.
func (h *Handle) readCopy(ctx context.Context, b []byte, off uint64) (int, error) {
	if err := h.alive(ctx); err != nil {
		return 0, err
	}
	n, err := h.in.file.ReadAt(ctx, b, off)
	if err == nil {
		h.in.accessed(h.atime)
	}
	return n, err
}

// Write is one write request.
type Write struct {
	// Data is written in order, one piece behind the other.
	Data [][]byte
	// Offset is where; it means nothing on a handle opened with O_APPEND.
	Offset uint64
	// Mapped says that the data comes from a shared mapping: it goes where Offset says, whatever the handle.
	Mapped bool
	// KillPriv, if not nil, is the caller whose write clears set-uid, set-gid and capabilities.
	KillPriv *mdc.Caller
}

// Write writes at an offset, or at the end of the file for a handle opened with O_APPEND. It tells how many bytes were
// taken; fewer than asked come with an error.
func (h *Handle) Write(ctx context.Context, w *Write) (int, error) {
	if err := h.alive(ctx); err != nil {
		return 0, err
	}
	if !w.Mapped {
		if err := h.c.killPriv(ctx, w.KillPriv, h.in); err != nil {
			return 0, err
		}
	}
	t := now()
	var n int
	var err error
	if h.append && !w.Mapped {
		n, err = h.appendTo(ctx, w, t)
	} else {
		n, err = h.writeAt(ctx, w, t)
	}
	if n > 0 {
		h.in.wrote(t)
		h.c.changes.mark(h.in.fid.Ino())
	}
	if err == nil && h.sync {
		if err = h.Fsync(ctx); err != nil {
			return 0, err // what is not on disk was not written
		}
	}
	return n, err
}

func (h *Handle) writeAt(ctx context.Context, w *Write, t attr.Time) (int, error) {
	o := writing{off: w.Offset, mtime: t, how: lov.How{Direct: h.direct && !w.Mapped, Mapped: w.Mapped}}
	n, err := h.put(ctx, w.Data, &o)
	if o.how.Uncached && n > 0 {
		h.dropWritten(w.Offset, uint64(n))
	}
	return n, err
}

// appendTo writes at the end of the file, wherever that is by then. The kernel does not know where the bytes went, and may
// hold the page that they begin in.
func (h *Handle) appendTo(ctx context.Context, w *Write, t attr.Time) (int, error) {
	if err := h.in.io.lock(ctx); err != nil {
		return 0, err
	}
	defer h.in.io.unlock()
	o := writing{append: true, mtime: t, how: lov.How{Direct: h.direct}}
	n, err := h.put(ctx, w.Data, &o)
	if n > 0 {
		h.dropWritten(o.off, uint64(n))
	}
	return n, err
}

// dropWritten drops pages that the kernel may have of bytes just written past it, or that no lock covers.
func (h *Handle) dropWritten(off, n uint64) {
	if k := h.c.kernel.Load(); k != nil {
		k.DropWritten(h.in.fid, off, n)
	}
}

// Flush is close(2)'s share: it reports errors of earlier delayed writes and waits for nothing.
func (h *Handle) Flush(ctx context.Context) error {
	if err := h.alive(ctx); err != nil {
		return err
	}
	return h.in.file.TakeError()
}

// Fsync makes data, size and every change of the inode durable.
func (h *Handle) Fsync(ctx context.Context) error {
	if err := h.alive(ctx); err != nil {
		return err
	}
	if err := h.in.file.Sync(ctx); err != nil {
		return err
	}
	if err := h.c.syncReport(ctx, h.in); err != nil {
		return err
	}
	return h.c.mdc.Sync(ctx, h.in.fid, false)
}

// Fallocate does what fallocate(2) does, for the modes that the OSTs know.
func (h *Handle) Fallocate(ctx context.Context, who *mdc.Caller, mode uint32, off, n uint64) error {
	if err := h.alive(ctx); err != nil {
		return err
	}
	if err := h.c.killPriv(ctx, unprivileged(who), h.in); err != nil {
		return err
	}
	if err := h.in.io.lock(ctx); err != nil {
		return err
	}
	defer h.in.io.unlock()
	t := now()
	err := h.in.file.Fallocate(ctx, mode, off, n, t)
	h.in.wrote(t)
	h.c.changes.mark(h.in.fid.Ino())
	return err
}

// Seek finds the next data or hole at or behind off. NoDevice if there is none.
func (h *Handle) Seek(ctx context.Context, off uint64, hole bool) (uint64, error) {
	if err := h.alive(ctx); err != nil {
		return 0, err
	}
	return h.in.file.Seek(ctx, off, hole)
}

// CopyTo copies n bytes to another open file, which who writes, and tells how many arrived; fewer is no error.
func (h *Handle) CopyTo(ctx context.Context, who *mdc.Caller, dst *Handle, from, to, n uint64) (int, error) {
	if err := h.c.killPriv(ctx, unprivileged(who), dst.in); err != nil {
		return 0, err
	}
	const step = 1 << 20
	buf := make([]byte, min(n, step))
	var done uint64
	for done < n {
		got, err := h.readCopy(ctx, buf[:min(n-done, step)], from+done)
		if err == nil && got > 0 {
			if got, err = dst.Write(ctx, &Write{Data: [][]byte{buf[:got]}, Offset: to + done}); got > 0 {
				done += uint64(got)
			}
		}
		if err != nil && done == 0 {
			return 0, err
		}
		if err != nil || got == 0 {
			break
		}
	}
	return int(done), nil
}

// Release ends the handle. It does not wait for data to be written.
func (h *Handle) Release() {
	if h.in.flocked() {
		h.unlockAll()
	}
	h.c.release(h.in, h.id)
}
