package fusefs

import (
	"context"
	"encoding/binary"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/mdc"
)

// Commands of ioctl(2) on inode flags, from <linux/fs.h>: their numbers on 64-bit machines, and the 32-bit variants.
const (
	getFlags   = 0x80086601
	setFlags   = 0x40086602
	getFlags32 = 0x80046601
	setFlags32 = 0x40046602
	getFsxattr = 0x801c581f
	setFsxattr = 0x401c5820
)

// Flags of struct fsxattr, and the size of the struct.
const (
	fsxattrSize  = 28
	xImmutable   = 0x8
	xAppend      = 0x10
	xSync        = 0x20
	xNoAtime     = 0x40
	xNoDump      = 0x80
	xProjInherit = 0x200
)

// settableFlags are the flags that chattr(1) may set here.
const settableFlags = attr.FlagSync | attr.FlagImmutable | attr.FlagAppend | attr.FlagNoDump | attr.FlagNoAtime |
	attr.FlagDirSync | attr.FlagProjInh

var fsxattrBits = [...]struct {
	x    uint32
	flag attr.Flags
}{
	{xImmutable, attr.FlagImmutable}, {xAppend, attr.FlagAppend}, {xSync, attr.FlagSync},
	{xNoAtime, attr.FlagNoAtime}, {xNoDump, attr.FlagNoDump}, {xProjInherit, attr.FlagProjInh},
}

// Ioctl answers lsattr(1), chattr(1) and their like for project ids.
func (f *FS) Ioctl(cancel <-chan struct{}, in *fuse.IoctlIn, inbuf []byte, out *fuse.IoctlOut, outbuf []byte) fuse.Status {
	ctx := f.begin(cancel, in.Pid, opIoctl)
	defer f.requests.free(ctx)
	var who mdc.Caller
	f.caller(&in.InHeader, 0, &who)
	node := f.node(in.NodeId)
	var a attr.Attr
	le := binary.LittleEndian
	switch in.Cmd {
	case getFlags, getFlags32:
		if len(outbuf) < 4 {
			return fuse.EINVAL
		}
		err := f.c.Getattr(ctx, &who, node, &a)
		le.PutUint32(outbuf, uint32(a.Flags))
		return f.code("getflags", in.NodeId, err)
	case setFlags, setFlags32:
		if len(inbuf) < 4 {
			return fuse.EINVAL
		}
		set := client.Setting{Valid: attr.ValidFlags}
		set.Attr.Flags = attr.Flags(le.Uint32(inbuf))
		if set.Attr.Flags&^settableFlags != 0 {
			return fuse.Status(syscall.EOPNOTSUPP)
		}
		return f.code("setflags", in.NodeId, f.c.Setattr(ctx, &who, node, &set, &a))
	case getFsxattr:
		if len(outbuf) < fsxattrSize {
			return fuse.EINVAL
		}
		err := f.c.Getattr(ctx, &who, node, &a)
		clear(outbuf[:fsxattrSize])
		for _, b := range fsxattrBits {
			if a.Flags&b.flag != 0 {
				le.PutUint32(outbuf, le.Uint32(outbuf)|b.x)
			}
		}
		le.PutUint32(outbuf[12:], a.ProjID)
		return f.code("getflags", in.NodeId, err)
	case setFsxattr:
		if len(inbuf) < fsxattrSize {
			return fuse.EINVAL
		}
		return f.setFsxattr(ctx, &who, in.NodeId, inbuf)
	}
	return fuse.Status(syscall.ENOTTY)
}

func (f *FS) setFsxattr(ctx context.Context, who *mdc.Caller, n uint64, b []byte) fuse.Status {
	x := binary.LittleEndian.Uint32(b)
	set := client.Setting{Valid: attr.ValidFlags | attr.ValidProjID}
	for _, bit := range fsxattrBits {
		if x&bit.x != 0 {
			set.Attr.Flags |= bit.flag
			x &^= bit.x
		}
	}
	if x != 0 {
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	set.Attr.ProjID = binary.LittleEndian.Uint32(b[12:])
	var a attr.Attr
	err := f.c.Setattr(ctx, who, f.node(n), &set, &a)
	return f.code("setflags", n, err)
}
