package wire

import (
	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// FID joins the two fields of a message and checks that they can name a file.
func FID(seq uint64, oid uint32) (fid.FID, error) {
	f := fid.FID{Seq: fid.Seq(seq), OID: oid}
	if !f.IsFile() {
		return fid.FID{}, status.Errorf(status.Stale, "wire: %v names no file", f)
	}
	return f, nil
}

// Name checks the name of a folder entry: 1 to 255 bytes, no slash, no NUL, not "." or "..".
func Name(b []byte) error {
	switch {
	case len(b) == 0:
		return status.NotExist
	case len(b) > attr.NameMax:
		return status.NameTooLong
	case len(b) == 1 && b[0] == '.', len(b) == 2 && b[0] == '.' && b[1] == '.':
		return status.Invalid
	}
	for _, c := range b {
		if c == '/' || c == 0 {
			return status.Invalid
		}
	}
	return nil
}

// PutAttr fills m from a.
func PutAttr(m *wirepb.Attr, a *attr.Attr) {
	m.Seq, m.Oid = uint64(a.FID.Seq), a.FID.OID
	m.Mode, m.Uid, m.Gid, m.Project, m.Nlink = a.Mode, a.UID, a.GID, a.ProjID, a.Nlink
	m.Rdev, m.Flags, m.Size, m.Blocks = a.Rdev, uint32(a.Flags), a.Size, a.Blocks
	m.AtimeSec, m.AtimeNsec = a.Atime.Sec, a.Atime.Nsec
	m.MtimeSec, m.MtimeNsec = a.Mtime.Sec, a.Mtime.Nsec
	m.CtimeSec, m.CtimeNsec = a.Ctime.Sec, a.Ctime.Nsec
	m.BtimeSec, m.BtimeNsec = a.Btime.Sec, a.Btime.Nsec
	m.SizeValid, m.SetattrGen, m.HasAcl, m.NoXattr = a.SizeValid, a.SetattrGen, a.HasACL, a.NoXattr
}

// Attr fills a from m. A nil m leaves a zero. Nanoseconds out of range are refused.
func Attr(m *wirepb.Attr, a *attr.Attr) error {
	if m == nil {
		*a = attr.Attr{}
		return nil
	}
	*a = attr.Attr{
		FID:  fid.FID{Seq: fid.Seq(m.Seq), OID: m.Oid},
		Mode: m.Mode, UID: m.Uid, GID: m.Gid, ProjID: m.Project, Nlink: m.Nlink,
		Rdev: m.Rdev, Flags: attr.Flags(m.Flags), Size: m.Size, Blocks: m.Blocks,
		Atime: attr.Time{Sec: m.AtimeSec, Nsec: m.AtimeNsec}, Mtime: attr.Time{Sec: m.MtimeSec, Nsec: m.MtimeNsec},
		Ctime: attr.Time{Sec: m.CtimeSec, Nsec: m.CtimeNsec}, Btime: attr.Time{Sec: m.BtimeSec, Nsec: m.BtimeNsec},
		SizeValid: m.SizeValid, SetattrGen: m.SetattrGen, HasACL: m.HasAcl, NoXattr: m.NoXattr,
	}
	for _, n := range [...]uint32{m.AtimeNsec, m.MtimeNsec, m.CtimeNsec, m.BtimeNsec} {
		if n >= 1e9 {
			return status.Errorf(status.Invalid, "wire: a time with %d nanoseconds", n)
		}
	}
	return nil
}

// PutCaller fills m from c.
func PutCaller(m *wirepb.Caller, c *attr.Cred) {
	m.Uid, m.Gid, m.Umask = c.UID, c.GID, c.Umask
	m.Groups = append(m.Groups[:0], c.Groups...)
}

// Caller fills c from m; Groups shares m's memory.
func Caller(m *wirepb.Caller, c *attr.Cred) error {
	if m == nil {
		return status.Errorf(status.Protocol, "wire: a request without a caller")
	}
	if len(m.Groups) > attr.GroupsMax {
		return status.Errorf(status.Protocol, "wire: a caller with %d groups", len(m.Groups))
	}
	*c = attr.Cred{UID: m.Uid, GID: m.Gid, Groups: m.Groups, Umask: m.Umask & 0o777}
	return nil
}
