package mdc

import (
	"context"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Lookup finds a name in a folder. The kinds NotExist, NotDir, Access and Stale come back as POSIX has them.
func (m *MDC) Lookup(ctx context.Context, c *Caller, parent fid.FID, name string, out *Entry) error {
	q := wirepb.LookupRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.ParentSeq, q.ParentOid = uint64(parent.Seq), parent.OID
	q.Name = append(q.Name[:0], name...)
	q.Want = m.want(out.Want)
	return m.entry(ctx, wire.OpLookup, q, out)
}

// Getattr fetches an inode's attributes and layout.
func (m *MDC) Getattr(ctx context.Context, c *Caller, f fid.FID, out *Entry) error {
	q := wirepb.GetattrRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.Seq, q.Oid = uint64(f.Seq), f.OID
	q.Want = m.want(out.Want)
	return m.entry(ctx, wire.OpGetattr, q, out)
}

// Readlink fetches a symbolic link's target into out.Symlink.
func (m *MDC) Readlink(ctx context.Context, c *Caller, f fid.FID, out *Entry) error {
	q := wirepb.GetattrRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.Seq, q.Oid = uint64(f.Seq), f.OID
	return m.entry(ctx, wire.OpReadlink, q, out)
}

// Open opens an inode; out.Handle names the open until it is closed with a report. flags are those of open(2).
func (m *MDC) Open(ctx context.Context, c *Caller, f fid.FID, flags uint32, out *Entry) error {
	q := wirepb.OpenRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.Seq, q.Oid, q.Flags = uint64(f.Seq), f.OID, flags
	if err := m.closes.room(ctx); err != nil {
		return err
	}
	q.Want = m.want(out.Want)
	return m.entry(ctx, wire.OpOpen, q, out)
}

// Creation says what Create makes.
type Creation struct {
	// Mode holds the type bits and permission bits before the umask.
	Mode uint32
	Rdev uint32
	// Symlink is the target of a symbolic link.
	Symlink string
	// Layout is an encoded template, empty for the default.
	Layout []byte
	// Open asks for a handle; Flags are those of open(2).
	Open  bool
	Flags uint32
	// Tmpfile makes a file without a name in the folder's file system (O_TMPFILE).
	Tmpfile bool
}

// Create makes an inode in a folder under a fresh FID, and opens it if asked.
func (m *MDC) Create(ctx context.Context, c *Caller, parent fid.FID, name string, what *Creation, out *Entry) error {
	if what.Open {
		if err := m.closes.room(ctx); err != nil {
			return err
		}
	}
	q := wirepb.CreateRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.ParentSeq, q.ParentOid = uint64(parent.Seq), parent.OID
	q.Name = append(q.Name[:0], name...)
	q.Mode, q.Rdev = what.Mode, what.Rdev
	q.Symlink = append(q.Symlink[:0], what.Symlink...)
	q.Layout = append(q.Layout[:0], what.Layout...)
	q.Open, q.Flags, q.Tmpfile = what.Open, what.Flags, what.Tmpfile
	q.Want = m.want(out.Want)
	return m.withFID(ctx, func(f fid.FID) error {
		q.Seq, q.Oid = uint64(f.Seq), f.OID
		return m.entry(ctx, wire.OpCreate, q, out)
	})
}

// Link gives an inode another name.
func (m *MDC) Link(ctx context.Context, c *Caller, f, parent fid.FID, name string, out *Entry) error {
	q := wirepb.LinkRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.Seq, q.Oid = uint64(f.Seq), f.OID
	q.ParentSeq, q.ParentOid = uint64(parent.Seq), parent.OID
	q.Name = append(q.Name[:0], name...)
	return m.entry(ctx, wire.OpLink, q, out)
}

// Unlinked is what an unlink touched. Child has the inode's attributes after the change: Nlink 0 when its last name is
// gone.
type Unlinked struct {
	Child, Parent attr.Attr
	Transno       wire.Transno
}

// Unlink removes a name; rmdir asks for a folder, which must be empty.
func (m *MDC) Unlink(ctx context.Context, c *Caller, parent fid.FID, name string, rmdir bool, out *Unlinked) error {
	q := wirepb.UnlinkRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.ParentSeq, q.ParentOid = uint64(parent.Seq), parent.OID
	q.Name = append(q.Name[:0], name...)
	q.Rmdir = rmdir
	p := wirepb.UnlinkReplyFromVTPool()
	defer p.ReturnToVTPool()
	var err error
	if out.Transno, err = m.change(ctx, wire.OpUnlink, q, p); err != nil {
		return err
	}
	if err := wire.Attr(p.Attr, &out.Child); err != nil {
		return err
	}
	return wire.Attr(p.Parent, &out.Parent)
}

// Renaming says what Rename moves.
type Renaming struct {
	From, To         fid.FID
	FromName, ToName string
	// Flags are those of renameat2(2).
	Flags uint32
}

// Renamed is what a rename touched. Target has a zero FID when the new name was free.
type Renamed struct {
	Moved, Target        attr.Attr
	FromParent, ToParent attr.Attr
	Transno              wire.Transno
}

// Rename moves a name, exchanges two, or leaves a whiteout behind, as renameat2(2) does.
func (m *MDC) Rename(ctx context.Context, c *Caller, r *Renaming, out *Renamed) error {
	q := wirepb.RenameRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.FromSeq, q.FromOid = uint64(r.From.Seq), r.From.OID
	q.ToSeq, q.ToOid = uint64(r.To.Seq), r.To.OID
	q.FromName = append(q.FromName[:0], r.FromName...)
	q.ToName = append(q.ToName[:0], r.ToName...)
	q.Flags = r.Flags
	p := wirepb.RenameReplyFromVTPool()
	defer p.ReturnToVTPool()
	send := func(f fid.FID) (err error) {
		q.WhiteoutSeq, q.WhiteoutOid = uint64(f.Seq), f.OID
		out.Transno, err = m.change(ctx, wire.OpRename, q, p)
		return err
	}
	const whiteout = 4
	var err error
	if r.Flags&whiteout != 0 {
		err = m.withFID(ctx, send)
	} else {
		err = send(fid.FID{})
	}
	if err != nil {
		return err
	}
	if err := wire.Attr(p.Moved, &out.Moved); err != nil {
		return err
	}
	if err := wire.Attr(p.Target, &out.Target); err != nil {
		return err
	}
	if err := wire.Attr(p.FromParent, &out.FromParent); err != nil {
		return err
	}
	return wire.Attr(p.ToParent, &out.ToParent)
}
