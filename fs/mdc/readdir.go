package mdc

import (
	"context"
	"encoding/binary"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Readdir fetches entries behind a cookie into buf and tells how many of its bytes are filled; eof says that the folder
// ends with them. DecodeDirent takes them apart.
func (m *MDC) Readdir(ctx context.Context, c *Caller, f fid.FID, cookie uint64, plus bool, buf []byte) (n int, eof bool, err error) {
	q := wirepb.ReaddirRequestFromVTPool()
	defer q.ReturnToVTPool()
	q.Caller = caller(c)
	q.Seq, q.Oid, q.Cookie = uint64(f.Seq), f.OID, cookie
	q.MaxBytes, q.Plus = uint32(len(buf)), plus
	p := wirepb.ReaddirReplyFromVTPool()
	defer p.ReturnToVTPool()
	n, err = m.call(ctx, wire.OpReaddir, q, p, buf)
	return n, p.Eof, err
}

// Dirent is one entry of a folder. Name shares the memory it was decoded from.
type Dirent struct {
	Cookie  uint64
	Name    []byte
	FID     fid.FID
	Mode    uint32
	HasAttr bool
	Attr    attr.Attr
	msg     wirepb.Dirent
	msgAttr wirepb.Attr
}

// DecodeDirent takes one entry from the front of b into d and returns the rest.
func DecodeDirent(b []byte, d *Dirent) ([]byte, error) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) {
		return nil, status.Errorf(status.Protocol, "mdc: a folder entry is cut short")
	}
	name, layout := d.msg.Name[:0], d.msg.Layout[:0]
	d.msgAttr = wirepb.Attr{}
	d.msg = wirepb.Dirent{Name: name, Layout: layout, Attr: &d.msgAttr}
	if err := d.msg.UnmarshalVT(b[w : w+int(n)]); err != nil {
		return nil, status.Errorf(status.Protocol, "mdc: a folder entry: %v", err)
	}
	f := fid.FID{Seq: fid.Seq(d.msg.Seq), OID: d.msg.Oid}
	if !f.IsFile() {
		return nil, status.Errorf(status.Protocol, "mdc: a folder entry names %v", f)
	}
	d.Cookie, d.Name, d.FID, d.Mode = d.msg.Cookie, d.msg.Name, f, d.msg.Mode
	d.HasAttr = d.msgAttr.Seq != 0
	if err := wire.Attr(&d.msgAttr, &d.Attr); err != nil {
		return nil, err
	}
	return b[w+int(n):], nil
}
