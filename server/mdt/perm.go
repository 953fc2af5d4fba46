package mdt

import (
	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/status"
)

// What a caller wants to do with an inode.
const (
	mayExec  = 1
	mayWrite = 2
	mayRead  = 4
)

// permission is inode_permission of Linux: nil, Perm for a write to an immutable inode, or Access.
func permission(c *attr.Cred, n *inode, want uint32) error {
	if want&mayWrite != 0 && n.Flags&attr.FlagImmutable != 0 {
		return status.Perm
	}
	if modeAllows(c, n, want) {
		return nil
	}
	if c.Root() && (n.IsDir() || want&mayExec == 0 || n.Mode&0o111 != 0) {
		return nil
	}
	return status.Access
}

func modeAllows(c *attr.Cred, n *inode, want uint32) bool {
	mode := n.Mode
	switch {
	case n.UID == c.UID:
		mode >>= 6
	case n.HasACL && mode&0o070 != 0:
		return acl(n.sec[secACL]).allows(c, n.UID, n.GID, want)
	case c.InGroup(n.GID):
		mode >>= 3
	}
	return mode&want == want
}

// owner reports whether the caller may do what only the owner may: inode_owner_or_capable.
func owner(c *attr.Cred, n *inode) bool { return c.UID == n.UID || c.Root() }

// search checks that n is a folder that the caller may look names up in.
func search(c *attr.Cred, n *inode) error {
	if !n.IsDir() {
		return status.NotDir
	}
	return permission(c, n, mayExec)
}

// mayCreate is may_create of Linux: the folder can take a new entry.
func mayCreate(c *attr.Cred, folder *inode) error {
	if folder.Nlink == 0 {
		return status.NotExist
	}
	return permission(c, folder, mayWrite|mayExec)
}

// mayDelete is may_delete of Linux: the folder can lose the entry of victim; wantDir says that it must be a folder, or
// must not be one.
func mayDelete(c *attr.Cred, folder, victim *inode, wantDir bool) error {
	if err := permission(c, folder, mayWrite|mayExec); err != nil {
		return err
	}
	const fixed = attr.FlagAppend | attr.FlagImmutable
	sticky := folder.Mode&attr.Sticky != 0 && c.UID != victim.UID && c.UID != folder.UID && !c.Root()
	switch {
	case folder.Flags&attr.FlagAppend != 0, sticky, victim.Flags&fixed != 0:
		return status.Perm
	case wantDir && !victim.IsDir():
		return status.NotDir
	case wantDir && victim.FID == rootFID:
		return status.Busy
	case !wantDir && victim.IsDir():
		return status.IsDir
	case folder.Nlink == 0:
		return status.NotExist
	}
	return nil
}

// mayOpen is may_open of Linux for the flags of open(2).
func mayOpen(c *attr.Cred, n *inode, flags uint32) error {
	access := flags & oAccMode
	switch n.Type() {
	case attr.TypeLink:
		if flags&oDirectory != 0 {
			return status.NotDir
		}
		return status.Loop
	case attr.TypeDir:
		if access != oRdonly || flags&(oTrunc|oCreat) != 0 {
			return status.IsDir
		}
	default:
		if flags&oDirectory != 0 {
			return status.NotDir
		}
	}
	var want uint32
	switch {
	case flags&oExec != 0:
		want = mayExec
	case access == oRdonly:
		want = mayRead
	case access == oWronly:
		want = mayWrite
	default:
		want = mayRead | mayWrite
	}
	if flags&oTrunc != 0 {
		want |= mayWrite
	}
	if err := permission(c, n, want); err != nil {
		return err
	}
	if n.Flags&attr.FlagAppend != 0 && (access != oRdonly && flags&oAppend == 0 || flags&oTrunc != 0) {
		return status.Perm
	}
	if flags&oNoatime != 0 && !owner(c, n) {
		return status.Perm
	}
	return nil
}

// Flags of open(2) on Linux that a request carries. oExec is the kernel's own mark of an execve.
const (
	oAccMode   = 0o3
	oRdonly    = 0o0
	oWronly    = 0o1
	oRdwr      = 0o2
	oExec      = 0o40
	oCreat     = 0o100
	oExcl      = 0o200
	oTrunc     = 0o1000
	oAppend    = 0o2000
	oDirectory = 0o200000
	oNoatime   = 0o1000000
)

// writes reports whether an open with these flags can write.
func writes(flags uint32) bool { return flags&oAccMode != oRdonly }

// dropSgid reports whether a change of the content or the owner by c clears n's set-gid bit:
// setattr_should_drop_sgid. Without group execute the bit is kept for members of the group.
func dropSgid(c *attr.Cred, n *inode) bool {
	return n.Mode&attr.SetGID != 0 && (n.Mode&0o010 != 0 || !c.InGroup(n.GID) && !c.Root())
}

// killSuid clears what a write by c clears: set-uid and set-gid of a regular file, unless root writes.
func killSuid(c *attr.Cred, n *inode) {
	if c.Root() || !n.IsFile() {
		return
	}
	drop := uint32(attr.SetUID)
	if dropSgid(c, n) {
		drop |= attr.SetGID
	}
	n.Mode &^= drop
}

// newOwner gives mode and group of a new inode in a folder, before umask and ACLs: inode_init_owner and
// mode_strip_sgid of Linux.
func newOwner(c *attr.Cred, folder *inode, mode uint32) (uint32, uint32) {
	if folder.Mode&attr.SetGID == 0 {
		return mode, c.GID
	}
	if mode&attr.TypeMask == attr.TypeDir {
		return mode | attr.SetGID, folder.GID
	}
	if mode&(attr.SetGID|0o010) == attr.SetGID|0o010 && !c.InGroup(folder.GID) && !c.Root() {
		mode &^= attr.SetGID
	}
	return mode, folder.GID
}
