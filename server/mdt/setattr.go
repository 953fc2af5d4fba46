package mdt

import (
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/osp"
)

// flagsKept are the chattr flags that can be set.
const flagsKept = attr.FlagSync | attr.FlagImmutable | attr.FlagAppend | attr.FlagNoDump | attr.FlagNoAtime |
	attr.FlagDirSync | attr.FlagProjInh

// timesValid are the bits that change times explicitly.
const (
	timesValid = attr.ValidAtime | attr.ValidMtime
	nowValid   = attr.ValidAtimeNow | attr.ValidMtimeNow
)

// ownChecks are changes that clear set-uid too, under checks of their own.
const ownChecks = attr.ValidSize | attr.ValidUID | attr.ValidGID | attr.ValidMode

// setattr changes attributes as notify_change of Linux does. A new size is only noted: the client that asks becomes a writer,
// cuts the objects and reports.
func (o *op) setattr() error {
	m := &o.req.setattr
	if err := o.decode(m); err != nil {
		return err
	}
	if err := o.as(m.Caller); err != nil {
		return err
	}
	f, err := o.fid(m.Seq, m.Oid)
	if err != nil {
		return err
	}
	a := &o.req.setAttrs
	if err := wire.Attr(m.Attr, a); err != nil {
		return err
	}
	valid := attr.Valid(m.Valid)
	if err := o.cancels(m.Cancels); err != nil {
		return err
	}
	if err := o.throttle(valid.Has(attr.ValidSize)); err != nil {
		return err
	}
	o.want, o.writing = o.wants(m.Want, false), valid.Has(attr.ValidSize)
	n := &o.child
	bits := setattrBits(valid)
	if err := o.get(f, n); err != nil {
		return err
	}
	bits |= setattrTakes(n, valid)
	for {
		if err := o.lockOne(f, ldlm.EX, bits); err != nil {
			return err
		}
		if !o.again.on { // Then it was allowed, maybe to who had it open.
			if err := o.maySetattr(m, n, a, valid); err != nil {
				return err
			}
		}
		more := setattrTakes(n, valid) &^ bits
		if more == 0 {
			break
		}
		bits |= more
		o.unlockOne()
	}
	o.depends(n.own)
	if err := o.agree(); err != nil {
		return err
	}
	o.beginTx()
	if err := o.applyAttrs(n, a, valid); err != nil {
		return err
	}
	o.put(n, false)
	o.settleGrant(n)
	return o.commitGranted(o.entryReply(n))
}

// setattrBits is what a change of attributes locks of any inode.
func setattrBits(valid attr.Valid) ldlm.Bits {
	b := ldlm.Update
	if valid.Any(attr.ValidMode | attr.ValidUID | attr.ValidGID | attr.ValidFlags | attr.ValidProjID) {
		b |= ldlm.Perm
	}
	if valid.Has(attr.ValidSize) {
		b |= opened
	}
	return b
}

// setattrTakes is what it changes besides in this inode: set-uid, capabilities, the access ACL that is an xattr too.
func setattrTakes(n *inode, valid attr.Valid) ldlm.Bits {
	b := ldlm.Bits(0)
	if valid.Any(attr.ValidSize | attr.ValidKillSuid | attr.ValidUID | attr.ValidGID) {
		b = contentTakes(n)
	}
	if valid.Has(attr.ValidMode) && n.HasACL {
		b |= ldlm.Xattr
	}
	return b
}

// contentTakes is what a change of a file's content or owner can take from it beside its size.
func contentTakes(n *inode) ldlm.Bits {
	b := ldlm.Bits(0)
	if n.Mode&(attr.SetUID|attr.SetGID) != 0 {
		b = ldlm.Perm
	}
	if len(n.sec[secXattrs]) > 0 {
		if _, _, ok, err := findXattr(n.sec[secXattrs], []byte(attr.XattrCapability)); ok && err == nil {
			b |= ldlm.Xattr
		}
	}
	return b
}

// maySetattr checks the change: may_setattr and setattr_prepare of Linux, and what open and truncate check before them.
func (o *op) maySetattr(m *wirepb.SetattrRequest, n *inode, a *attr.Attr, valid attr.Valid) error {
	c := &o.cred
	explicit := valid.Any(timesValid) || valid.Any(nowValid) && !valid.Has(nowValid)
	if valid.Has(attr.ValidSize) {
		if err := o.mayTruncate(m, n, a.Size, valid); err != nil {
			return err
		}
	}
	if valid.Has(attr.ValidKillSuid) && !valid.Any(ownChecks) && !owner(c, n) && !o.isWriter(n.FID) {
		if err := permission(c, n, mayWrite); err != nil {
			return err // Whoever cannot write cannot clear set-uid either.
		}
	}
	const fixed = attr.FlagAppend | attr.FlagImmutable
	if valid.Any(attr.ValidMode|attr.ValidUID|attr.ValidGID) || explicit {
		if n.Flags&fixed != 0 {
			return status.Perm
		}
	}
	if valid.Any(attr.ValidFlags|attr.ValidProjID) && !owner(c, n) {
		return status.Perm
	}
	if valid.Has(attr.ValidFlags) {
		if a.Flags&^flagsKept != 0 {
			return status.NotSupport
		}
		if (a.Flags^n.Flags)&fixed != 0 && !c.Root() {
			return status.Perm
		}
		if a.Flags&(attr.FlagProjInh|attr.FlagDirSync) != 0 && !n.IsDir() {
			return status.NotSupport
		}
	}
	if valid.Has(attr.ValidUID) && !c.Root() && (c.UID != n.UID || a.UID != n.UID) {
		return status.Perm
	}
	if valid.Has(attr.ValidGID) && !c.Root() && (c.UID != n.UID || a.GID != n.GID && !c.InGroup(a.GID)) {
		return status.Perm
	}
	if valid.Has(attr.ValidMode) && !owner(c, n) {
		return status.Perm
	}
	return o.maySetTimes(m, n, valid, explicit)
}

// mayTruncate checks a new size.
func (o *op) mayTruncate(m *wirepb.SetattrRequest, n *inode, size uint64, valid attr.Valid) error {
	switch {
	case n.IsDir():
		return status.IsDir
	case !n.IsFile():
		return status.Invalid
	case size > attr.SizeMax:
		return status.FileTooBig
	}
	if !valid.Has(attr.ValidOpenHandle) || !o.canWrite(n.FID, m.Handle) {
		if err := permission(&o.cred, n, mayWrite); err != nil {
			return err
		}
	}
	if n.Flags&(attr.FlagAppend|attr.FlagImmutable) != 0 {
		return status.Perm
	}
	return nil
}

// maySetTimes checks a change of times. Explicit ones need the owner; "now" for both needs the owner or write permission.
func (o *op) maySetTimes(m *wirepb.SetattrRequest, n *inode, valid attr.Valid, explicit bool) error {
	switch {
	case explicit:
		if !owner(&o.cred, n) && !(valid.Any(attr.ValidSize|attr.ValidKillSuid) && !valid.Any(timesValid)) {
			return status.Perm
		}
	case valid.Has(nowValid):
		if n.Flags&attr.FlagImmutable != 0 {
			return status.Perm
		}
		if !owner(&o.cred, n) && !(valid.Has(attr.ValidOpenHandle) && o.canWrite(n.FID, m.Handle)) {
			return permission(&o.cred, n, mayWrite)
		}
	}
	return nil
}

// applyAttrs makes the change in n, and adds what it means for n's objects.
// Precondition: maySetattr allowed it.
func (o *op) applyAttrs(n *inode, a *attr.Attr, valid attr.Valid) error {
	owns := n.UID != a.UID && valid.Has(attr.ValidUID) || n.GID != a.GID && valid.Has(attr.ValidGID) ||
		n.ProjID != a.ProjID && valid.Has(attr.ValidProjID)
	if valid.Any(attr.ValidUID | attr.ValidGID) {
		o.chownKills(n)
	}
	if valid.Has(attr.ValidUID) {
		n.UID = a.UID
	}
	if valid.Has(attr.ValidGID) {
		n.GID = a.GID
	}
	if valid.Has(attr.ValidProjID) {
		n.ProjID = a.ProjID
	}
	if valid.Has(attr.ValidFlags) {
		n.Flags = a.Flags
	}
	if valid.Has(attr.ValidMode) {
		o.chmod(n, a.Mode)
	}
	if valid.Has(attr.ValidKillSuid) {
		killSuid(&o.cred, n)
		o.dropCapability(n)
	}
	o.touch(n)
	if valid.Has(attr.ValidSize) {
		o.truncate(n, a.Size)
	}
	o.setTimes(n, a, valid)
	if owns && n.IsFile() && len(n.sec[secLayout]) > 0 {
		if err := o.tmpl.Decode(n.sec[secLayout]); err != nil {
			return fmt.Errorf("%w: layout of %v: %w", errFormat, n.FID, err)
		}
		o.h.o.Objects.Chown(o.tx, o.e, &o.tmpl, osp.Owner{UID: n.UID, GID: n.GID, Project: n.ProjID})
	}
	return nil
}

// chownKills clears set-uid, set-gid and capabilities of what is no folder, whoever changes the owner.
func (o *op) chownKills(n *inode) {
	if n.IsDir() {
		return
	}
	if dropSgid(&o.cred, n) {
		n.Mode &^= attr.SetGID
	}
	n.Mode &^= attr.SetUID
	o.dropCapability(n)
}

// chmod sets the permission bits, in the access ACL too. Set-gid is refused to who is not of the group.
func (o *op) chmod(n *inode, mode uint32) {
	mode &= attr.PermMask
	if !o.cred.Root() && !o.cred.InGroup(n.GID) {
		mode &^= attr.SetGID
	}
	n.Mode = n.Mode&attr.TypeMask | mode
	if n.HasACL {
		access := acl(o.e.Copy(n.sec[secACL]))
		access.chmod(mode)
		n.sec[secACL] = access
	}
}

// setTimes moves the times. Every explicit change opens a new setattr generation, so that no report of writes before it
// moves mtime.
func (o *op) setTimes(n *inode, a *attr.Attr, valid attr.Valid) {
	switch {
	case valid.Has(attr.ValidAtime):
		n.Atime = a.Atime
	case valid.Has(attr.ValidAtimeNow):
		n.Atime = o.now
	}
	switch {
	case valid.Has(attr.ValidMtime):
		n.Mtime = a.Mtime
	case valid.Has(attr.ValidMtimeNow):
		n.Mtime = o.now
	default:
		return
	}
	if !n.IsFile() {
		return
	}
	if !valid.Has(attr.ValidSize) {
		n.SetattrGen++
	}
	n.flags |= recMtimeSet
}
