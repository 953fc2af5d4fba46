package mdc

import (
	"context"
	"encoding/binary"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Page is a request for entries of a folder.
type Page struct {
	// Cookie is the last one seen, 0 for the start.
	Cookie uint64
	// Plus asks for attributes, and Want for a lock on each entry's inode.
	Plus bool
	Want ldlm.Bits
	// Buf takes the entries; N of its bytes are filled. DecodeDirent takes them apart.
	Buf []byte
	N   int
	// EOF says that the folder ends with them.
	EOF    bool
	window lockcache.Window
}

// Readdir fetches a page. With Want, adopt each entry's lock and then call EndPage.
func (m *MDC) Readdir(ctx context.Context, c *Caller, f fid.FID, p *Page) error {
	q := wirepb.ReaddirRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.Seq, q.Oid, q.Cookie = uint64(f.Seq), f.OID, p.Cookie
	q.MaxBytes, q.Plus, q.Want = uint32(len(p.Buf)), p.Plus, m.want(p.Want)
	r := wirepb.ReaddirReplyFromVTPool()
	defer r.ReturnToVTPool()
	if q.Want != nil {
		m.locks.Expect(&p.window)
	}
	var err error
	p.N, err = m.call(ctx, wire.OpReaddir, q, r, p.Buf)
	p.EOF = r.Eof
	if err != nil {
		p.N = 0
		m.EndPage(p)
	}
	return err
}

// Adopt enters the lock of an entry of the page and returns it pinned, 0 for none: Unpin it when the entry is cached.
func (m *MDC) Adopt(p *Page, d *Dirent) (ldlm.Handle, ldlm.Bits) {
	if d.msgLock.Lock == 0 || m.locks == nil {
		return 0, 0
	}
	if d.msgLock.ResSeq != uint64(d.FID.Seq) || d.msgLock.ResOid != ldlm.InodeRes(d.FID).OID {
		m.locks.Return(&d.msgLock)
		return 0, 0
	}
	g, ok := m.locks.Adopt(&p.window, &d.msgLock, nil)
	if !ok {
		return 0, 0
	}
	return g.Handle, g.Desc.Bits & ldlm.Bits(d.msgLock.Bits)
}

// Unpin ends the use of a lock that Adopt returned.
func (m *MDC) Unpin(h ldlm.Handle) { m.locks.Unpin(h) }

// EndPage tells that all locks of a page were adopted.
func (m *MDC) EndPage(p *Page) {
	if m.locks != nil {
		m.locks.Done(&p.window)
	}
}

// Dirent is one entry of a folder. Name and Layout share the memory it was decoded from.
type Dirent struct {
	Cookie  uint64
	Name    []byte
	FID     fid.FID
	Mode    uint32
	HasAttr bool
	Attr    attr.Attr
	Layout  []byte
	msg     wirepb.Dirent
	msgAttr wirepb.Attr
	msgLock wirepb.LockGrant
}

// DecodeDirent takes one entry from the front of b into d and returns the rest.
func DecodeDirent(b []byte, d *Dirent) ([]byte, error) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) {
		return nil, status.Errorf(status.Protocol, "mdc: a folder entry is cut short")
	}
	name, layout := d.msg.Name[:0], d.msg.Layout[:0]
	d.msgAttr, d.msgLock = wirepb.Attr{}, wirepb.LockGrant{}
	d.msg = wirepb.Dirent{Name: name, Layout: layout, Attr: &d.msgAttr, Lock: &d.msgLock}
	if err := d.msg.UnmarshalVT(b[w : w+int(n)]); err != nil {
		return nil, status.Errorf(status.Protocol, "mdc: a folder entry: %v", err)
	}
	f := fid.FID{Seq: fid.Seq(d.msg.Seq), OID: d.msg.Oid}
	if !f.IsFile() {
		return nil, status.Errorf(status.Protocol, "mdc: a folder entry names %v", f)
	}
	d.Cookie, d.Name, d.FID, d.Mode, d.Layout = d.msg.Cookie, d.msg.Name, f, d.msg.Mode, d.msg.Layout
	d.HasAttr = d.msgAttr.Seq != 0
	if err := wire.Attr(&d.msgAttr, &d.Attr); err != nil {
		return nil, err
	}
	return b[w+int(n):], nil
}
