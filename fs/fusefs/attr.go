package fusefs

import (
	"context"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/status"
)

// GetAttr answers stat(2).
func (f *FS) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	var a attr.Attr
	byHandle := in.Flags()&fuse.FUSE_GETATTR_FH != 0
	began := time.Now()
	if code := f.getattr(cancel, &in.InHeader, byHandle, &a); code != fuse.OK {
		return code
	}
	if byHandle && a.IsFile() && f.kernel.told.takenSince(in.NodeId, began) {
		f.lengthen(in.NodeId, a.Size) // the kernel asks by handle before it reads
	}
	f.putAttr(&a, &out.Attr)
	out.SetTimeout(f.attrTimeout(&a))
	return fuse.OK
}

func (f *FS) getattr(cancel <-chan struct{}, h *fuse.InHeader, byHandle bool, a *attr.Attr) fuse.Status {
	ctx := f.begin(cancel, h.Pid, opGetattr)
	defer f.requests.free(ctx)
	if !byHandle && f.suspect.take(h.NodeId) {
		f.ahead.ask(h.Pid)
		return fuse.Status(syscall.ESTALE)
	}
	var who mdc.Caller
	f.caller(h, 0, &who)
	err := f.c.Getattr(ctx, &who, f.node(h.NodeId), a)
	for again := 0; err == nil && again < asksMax && a.IsFile() && f.kernel.told.awaitTails(h.NodeId); again++ {
		err = f.c.Getattr(ctx, &who, f.node(h.NodeId), a)
	}
	if k := status.Of(err); !byHandle && (k == status.NotExist || k == status.Stale) {
		if link, _, ok := f.ahead.linkOf(h.Pid, f.node(h.NodeId)); ok {
			*a = link
			return fuse.OK
		}
		err = status.Stale
		f.ahead.ask(h.Pid)
	}
	return f.code("getattr", h.NodeId, err)
}

// Bits of statx(2)'s mask and attributes.
const (
	statxBasic = 0x7ff
	statxBtime = 0x800
	// statxKnown are immutable, append and nodump, whose bits are those of package attr.
	statxKnown   = 0x10 | 0x20 | 0x40
	deviceMajor  = 0xfff00
	minorLowMask = 0xff
)

// Statx answers statx(2) where more than stat(2) is wanted: the birth time.
func (f *FS) Statx(cancel <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	var a attr.Attr
	if code := f.getattr(cancel, &in.InHeader, in.GetattrFlags&fuse.FUSE_GETATTR_FH != 0, &a); code != fuse.OK {
		return code
	}
	var s fuse.Attr
	f.putAttr(&a, &s)
	out.SetTimeout(f.attrTimeout(&a))
	out.Statx = fuse.Statx{
		Mask: statxBasic | statxBtime, Blksize: s.Blksize, Nlink: s.Nlink, Uid: s.Uid, Gid: s.Gid, Mode: uint16(s.Mode),
		Ino: s.Ino, Size: s.Size, Blocks: s.Blocks,
		Attributes: uint64(a.Flags) & statxKnown, AttributesMask: statxKnown,
		Atime: sxTime(a.Atime), Mtime: sxTime(a.Mtime), Ctime: sxTime(a.Ctime), Btime: sxTime(a.Btime),
		RdevMajor: a.Rdev & deviceMajor >> 8, RdevMinor: a.Rdev&minorLowMask | a.Rdev>>12&^minorLowMask,
	}
	return fuse.OK
}

func sxTime(t attr.Time) fuse.SxTime { return fuse.SxTime{Sec: uint64(t.Sec), Nsec: t.Nsec} }

// setattrBits pairs the kernel's bits with ours.
var setattrBits = [...]struct {
	kernel uint32
	valid  attr.Valid
}{
	{fuse.FATTR_MODE, attr.ValidMode},
	{fuse.FATTR_UID, attr.ValidUID},
	{fuse.FATTR_GID, attr.ValidGID},
	{fuse.FATTR_SIZE, attr.ValidSize},
	{fuse.FATTR_ATIME, attr.ValidAtime},
	{fuse.FATTR_MTIME, attr.ValidMtime},
	{fuse.FATTR_ATIME_NOW, attr.ValidAtimeNow},
	{fuse.FATTR_MTIME_NOW, attr.ValidMtimeNow},
	{fattrKillSuidgid, attr.ValidKillSuid},
}

// fattrKillSuidgid: this truncate clears set-uid, set-gid and capabilities.
const fattrKillSuidgid = 1 << 11

// SetAttr answers chmod(2), chown(2), truncate(2) and utimensat(2).
func (f *FS) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	ctx := f.begin(cancel, in.Pid, pick(in.Valid&fuse.FATTR_SIZE != 0, opTruncate, opSetattr))
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(&in.InHeader, 0, &who)
	var valid attr.Valid
	for _, b := range setattrBits {
		if in.Valid&b.kernel != 0 {
			valid |= b.valid
		}
	}
	// The kernel sets the plain bit with the now bit.
	if valid.Has(attr.ValidAtimeNow) {
		valid &^= attr.ValidAtime
	}
	if valid.Has(attr.ValidMtimeNow) {
		valid &^= attr.ValidMtime
	}
	if valid == 0 {
		return f.chownNobody(ctx, &who, in, out)
	}
	set := client.Setting{Valid: valid, Attr: attr.Attr{
		Mode: in.Mode & attr.PermMask, UID: in.Uid, GID: in.Gid, Size: in.Size,
		Atime: attr.Time{Sec: int64(in.Atime), Nsec: in.Atimensec},
		Mtime: attr.Time{Sec: int64(in.Mtime), Nsec: in.Mtimensec},
	}}
	if fh, ok := in.GetFh(); ok {
		set.Handle, _ = f.files.Load(fh)
	}
	var a attr.Attr
	if err := f.c.Setattr(ctx, &who, f.node(in.NodeId), &set, &a); err != nil {
		return f.code("setattr", in.NodeId, err)
	}
	f.putAttr(&a, &out.Attr)
	out.SetTimeout(f.attrTimeout(&a))
	return fuse.OK
}

// chownNobody is a change that sets nothing: chown(2) with -1 for both ids, or the kernel's own clearing of privileges
// before a write by somebody who need not be the owner. Both clear set-uid, and set-gid where the group can execute. For
// root the two cannot be told apart where the file has capabilities: then a write clears what a chown does.
func (f *FS) chownNobody(ctx context.Context, who *mdc.Caller, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	var a attr.Attr
	node := f.node(in.NodeId)
	err := f.c.Getattr(ctx, who, node, &a)
	if err == nil && !a.IsDir() && a.Mode&(attr.SetUID|attr.SetGID) != 0 {
		set := client.Setting{Valid: attr.ValidKillSuid}
		if who.Root() {
			set = client.Setting{Valid: attr.ValidUID | attr.ValidGID, Attr: attr.Attr{UID: a.UID, GID: a.GID}}
		}
		if err = f.c.Setattr(ctx, who, node, &set, &a); status.Of(err) == status.Access {
			err = status.Perm // no writer asks: chown by who is not the owner
		}
	}
	if err != nil {
		return f.code("setattr", in.NodeId, err)
	}
	f.putAttr(&a, &out.Attr)
	out.SetTimeout(f.attrTimeout(&a))
	return fuse.OK
}

// GetXAttr reads an extended attribute; an empty dest asks for its length.
func (f *FS) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	if code := f.xattrName(name); code != fuse.OK {
		return 0, code
	}
	ctx := f.begin(cancel, h.Pid, opGetxattr)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(h, 0, &who)
	b, keep, err := f.c.TellXattr(ctx, &who, f.node(h.NodeId), name, dest[:0])
	if !keep && (name == attr.XattrACLAccess || name == attr.XattrACLDefault) {
		// The kernel would cache it: not if its ACLs are dropped while it waits for the answer.
		_ = f.kernel.invalidate(h.NodeId, -1, 0)
	}
	return f.fit(b, dest, f.xattrCode("getxattr", h.NodeId, err))
}

// ListXAttr lists the names; an empty dest asks for the length.
func (f *FS) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	ctx := f.begin(cancel, h.Pid, opListxattr)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(h, 0, &who)
	b, err := f.c.Listxattr(ctx, &who, f.node(h.NodeId), dest[:0])
	return f.fit(b, dest, f.xattrCode("listxattr", h.NodeId, err))
}

// fit answers with a value that was appended to dest[:0], ERANGE if it does not fit.
func (f *FS) fit(b, dest []byte, code fuse.Status) (uint32, fuse.Status) {
	switch {
	case code != fuse.OK:
		return 0, code
	case len(b) > len(dest):
		return uint32(len(b)), fuse.ERANGE
	}
	copy(dest, b)
	return uint32(len(b)), fuse.OK
}

func (f *FS) xattrCode(op string, n uint64, err error) fuse.Status {
	if status.Of(err) == status.NoData {
		return fuse.ENOATTR
	}
	return f.code(op, n, err)
}

// xattrName refuses names that the mount's options leave out.
func (f *FS) xattrName(name string) fuse.Status {
	acl := name == attr.XattrACLAccess || name == attr.XattrACLDefault
	user := len(name) >= len(attr.XattrUser) && name[:len(attr.XattrUser)] == attr.XattrUser
	if acl && !f.opts.ACL || user && !f.opts.UserXattr {
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	return fuse.OK
}

// SetXAttr sets an extended attribute.
func (f *FS) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, data []byte) fuse.Status {
	if code := f.xattrName(name); code != fuse.OK {
		return code
	}
	ctx := f.begin(cancel, in.Pid, opSetxattr)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(&in.InHeader, 0, &who)
	return f.xattrCode("setxattr", in.NodeId, f.c.Setxattr(ctx, &who, f.node(in.NodeId), mdc.Xattr{Name: name, Value: data, Flags: in.Flags}))
}

// RemoveXAttr removes an extended attribute.
func (f *FS) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if code := f.xattrName(name); code != fuse.OK {
		return code
	}
	ctx := f.begin(cancel, h.Pid, opRemovexattr)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(h, 0, &who)
	if name == attr.XattrCapability {
		// The kernel has asked for CAP_SETFCAP already, or removes it by itself because its caller writes: with the
		// caller's ids, who need not be allowed to.
		who = mdc.Caller{PID: h.Pid}
	}
	return f.xattrCode("removexattr", h.NodeId, f.c.Removexattr(ctx, &who, f.node(h.NodeId), name))
}
