package mdc

import (
	"context"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Setting is what a setattr changes.
type Setting struct {
	// Valid names the attributes of Attr that are meant.
	Valid attr.Valid
	Attr  attr.Attr
	// Handle is the open it goes through, 0 for none.
	Handle uint64
}

// Setattr changes attributes.
func (m *MDC) Setattr(ctx context.Context, c *Caller, f fid.FID, s *Setting, out *Entry) error {
	q := wirepb.SetattrRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.Seq, q.Oid, q.Valid, q.Handle = uint64(f.Seq), f.OID, uint32(s.Valid), s.Handle
	q.Attr = wirepb.AttrFromVTPool()
	wire.PutAttr(q.Attr, &s.Attr)
	q.Want = m.want(out.Want)
	return m.entry(ctx, wire.OpSetattr, q, out)
}

// SetLayout sets a folder's default layout or the layout of a file that was never written. layout is encoded; empty
// removes a folder's default.
func (m *MDC) SetLayout(ctx context.Context, c *Caller, f fid.FID, layout []byte, out *Entry) error {
	q := wirepb.LayoutRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.Seq, q.Oid = uint64(f.Seq), f.OID
	q.Layout = append(q.Layout[:0], layout...)
	q.Want = m.want(out.Want)
	return m.entry(ctx, wire.OpSetLayout, q, out)
}

// Xattr is what a call on extended attributes is about. Flags are those of setxattr(2).
type Xattr struct {
	Name  string
	Value []byte
	Flags uint32
}

func (m *MDC) xattr(ctx context.Context, c *Caller, op wire.Op, f fid.FID, x Xattr, dst []byte) ([]byte, error) {
	q := wirepb.XattrRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.Seq, q.Oid, q.Flags = uint64(f.Seq), f.OID, x.Flags
	q.Name = append(q.Name[:0], x.Name...)
	q.Value = append(q.Value[:0], x.Value...)
	p := wirepb.XattrReplyFromVTPool()
	defer p.ReturnToVTPool()
	if _, err := m.call(ctx, op, q, p, nil); err != nil {
		return dst, err
	}
	return append(dst, p.Value...), nil
}

// Getxattr appends an attribute's value to dst. NoData if there is none.
func (m *MDC) Getxattr(ctx context.Context, c *Caller, f fid.FID, name string, dst []byte) ([]byte, error) {
	return m.xattr(ctx, c, wire.OpGetxattr, f, Xattr{Name: name}, dst)
}

// Listxattr appends the names of an inode's attributes to dst, each ended by NUL.
func (m *MDC) Listxattr(ctx context.Context, c *Caller, f fid.FID, dst []byte) ([]byte, error) {
	return m.xattr(ctx, c, wire.OpListxattr, f, Xattr{}, dst)
}

// Setxattr sets an attribute.
func (m *MDC) Setxattr(ctx context.Context, c *Caller, f fid.FID, x Xattr) error {
	_, err := m.xattr(ctx, c, wire.OpSetxattr, f, x, nil)
	return err
}

// Removexattr removes an attribute. NoData if there is none.
func (m *MDC) Removexattr(ctx context.Context, c *Caller, f fid.FID, name string) error {
	_, err := m.xattr(ctx, c, wire.OpRemovexattr, f, Xattr{Name: name}, nil)
	return err
}

// Sync waits until the newest change of an inode, and of the entry it was opened by, is on the MDT's disk; all waits for
// everything answered so far.
func (m *MDC) Sync(ctx context.Context, f fid.FID, all bool) error {
	q := wirepb.SyncRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Seq, q.Oid, q.All = uint64(f.Seq), f.OID, all
	_, err := m.call(ctx, wire.OpSync, q, nil, nil)
	return err
}

// Statfs tells the MDT's space and inodes.
func (m *MDC) Statfs(ctx context.Context, out *wirepb.StatfsReply) error {
	_, err := m.call(ctx, wire.OpStatfs, nil, out, nil)
	return err
}

// Paths gives the names of an inode from the file system's root, all of them or the one with number link if it is not
// negative.
func (m *MDC) Paths(ctx context.Context, c *Caller, f fid.FID, link int) ([]string, error) {
	q := wirepb.PathRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.Seq, q.Oid = uint64(f.Seq), f.OID
	var p wirepb.PathReply
	if _, err := m.call(ctx, wire.OpPath, q, &p, nil); err != nil {
		return nil, err
	}
	var out []string
	for i, b := range p.Paths {
		if link < 0 || link == i {
			out = append(out, string(b))
		}
	}
	return out, nil
}

// Link is one name of an inode.
type Link struct {
	Parent fid.FID
	Name   string
}

// Parents lists the names of an inode with their folders.
func (m *MDC) Parents(ctx context.Context, c *Caller, f fid.FID) ([]Link, error) {
	q := wirepb.PathRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.Seq, q.Oid = uint64(f.Seq), f.OID
	var p wirepb.ParentsReply
	if _, err := m.call(ctx, wire.OpParents, q, &p, nil); err != nil {
		return nil, err
	}
	out := make([]Link, 0, len(p.Links))
	for _, l := range p.Links {
		f, err := wire.FID(l.Seq, l.Oid)
		if err != nil {
			return nil, err
		}
		out = append(out, Link{Parent: f, Name: string(l.Name)})
	}
	return out, nil
}
