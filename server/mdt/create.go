package mdt

import (
	"errors"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/osp"
)

// create makes an inode of any type under a name, or under none (O_TMPFILE), and opens it if asked. With open and without
// O_EXCL a name that is there is opened instead.
func (o *op) create() error {
	m := &o.req.create
	if err := o.decode(m); err != nil {
		return err
	}
	if err := o.as(m.Caller); err != nil {
		return err
	}
	parent, err := o.fid(m.ParentSeq, m.ParentOid)
	if err != nil {
		return err
	}
	f, err := o.fid(m.Seq, m.Oid)
	if err != nil {
		return err
	}
	if err := checkCreate(m); err != nil {
		return err
	}
	if err := o.cancels(m.Cancels); err != nil {
		return err
	}
	if err := o.throttle(false); err != nil {
		return err
	}
	if o.again.on && m.Open && !o.again.entry.Created { // It opened what was there.
		if f, err = o.fid(o.again.entry.Attr.GetSeq(), o.again.entry.Attr.GetOid()); err != nil {
			return err
		}
		return o.openFID(f, m.Flags|oCreat, m.Caller)
	}
	existing, err := o.tryCreate(m, parent, f)
	if err != nil || existing.IsZero() {
		return err
	}
	o.want = o.wants(m.Want, false)
	return o.openFID(existing, m.Flags|oCreat, m.Caller)
}

// checkCreate refuses what no create can ask for.
func checkCreate(m *wirepb.CreateRequest) error {
	kind := m.Mode & attr.TypeMask
	switch {
	case m.Mode > 0o177777:
		return status.Invalid
	case m.Tmpfile && kind != attr.TypeFile:
		return status.Invalid
	case m.Open && kind != attr.TypeFile:
		return status.Invalid
	}
	switch kind {
	case attr.TypeLink:
		if len(m.Symlink) == 0 {
			return status.NotExist
		}
		if len(m.Symlink) > attr.SymlinkMax {
			return status.NameTooLong
		}
		for _, c := range m.Symlink {
			if c == 0 {
				return status.Invalid
			}
		}
	case attr.TypeFile, attr.TypeDir, attr.TypeFifo, attr.TypeSocket, attr.TypeChar, attr.TypeBlock:
	default:
		return status.Invalid
	}
	if m.Tmpfile {
		return nil
	}
	return wire.Name(m.Name)
}

// tryCreate makes the inode. If the name is there and may be opened instead, it returns its FID and has done nothing.
func (o *op) tryCreate(m *wirepb.CreateRequest, parent, f fid.FID) (existing fid.FID, err error) {
	if err := o.get(parent, &o.folder); err != nil {
		return fid.FID{}, err
	}
	if err := search(&o.cred, &o.folder); err != nil {
		return fid.FID{}, err
	}
	claimed, err := o.claim(f)
	if err != nil {
		return fid.FID{}, err
	}
	var objects *osp.Allocation
	if m.Mode&attr.TypeMask == attr.TypeFile && !o.again.on {
		if objects, err = o.allocate(m.Layout, &o.folder, f); err != nil {
			claimed.unclaim(f)
			return fid.FID{}, err
		}
	}
	existing, err = o.createLocked(m, parent, f, objects)
	o.locks.release()
	if err != nil || !existing.IsZero() {
		objects.Cancel()
		claimed.unclaim(f)
		return existing, err
	}
	objects.Release()
	return fid.FID{}, nil
}

// allocate reserves objects by the file's own template, or its folder's default, or the file system's.
func (o *op) allocate(template []byte, folder *inode, f fid.FID) (*osp.Allocation, error) {
	if err := o.wishFor(template, folder); err != nil {
		return nil, err
	}
	return o.h.o.Objects.Allocate(o.h.contextOf(o.c), &o.wish, f)
}

// wishFor decodes the template that a new file in folder follows into o.wish.
func (o *op) wishFor(template []byte, folder *inode) error {
	if len(template) == 0 {
		template = o.defaultLayout(folder)
		return o.wish.Decode(template)
	}
	if err := o.wish.Decode(template); err != nil {
		return err
	}
	return checkTemplate(&o.wish)
}

// defaultLayout is what new inodes in a folder follow: its own default, or the root folder's; empty is the built-in one.
func (o *op) defaultLayout(folder *inode) []byte {
	if b := folder.sec[secDefault]; len(b) > 0 {
		return b
	}
	if b := o.h.rootDef.Load(); b != nil {
		return *b
	}
	return nil
}

// checkTemplate refuses a peer's template that holds objects or asks for what is not there yet.
func checkTemplate(l *layout.Layout) error {
	for i := range l.Components {
		c := &l.Components[i]
		if len(c.Stripes) > 0 {
			return status.Errorf(status.Invalid, "mdt: a layout template with objects")
		}
		if c.Pattern != layout.RAID0 {
			return status.Errorf(status.NotSupport, "mdt: a file's layout of pattern %#x", uint32(c.Pattern))
		}
	}
	if len(l.Components) > 1 {
		return status.Errorf(status.NotSupport, "mdt: composite layouts are not there yet")
	}
	return nil
}

// createLocked does the create under its locks.
func (o *op) createLocked(m *wirepb.CreateRequest, parent, f fid.FID, objects *osp.Allocation) (existing fid.FID, err error) {
	o.locks.reset()
	if m.Tmpfile {
		o.locks.folder(parent, ldlm.CR)
	} else {
		o.locks.folder(parent, ldlm.CW)
		o.locks.name(parent, o.h.key.name(m.Name))
	}
	if err := o.lockAll(); err != nil {
		return fid.FID{}, err
	}
	o.locks.mark(parent)
	if err := o.get(parent, &o.folder); err != nil {
		return fid.FID{}, err
	}
	if err := search(&o.cred, &o.folder); err != nil {
		return fid.FID{}, err
	}
	entry := dirent{kind: uint8(attr.DirentType(m.Mode)), child: f, name: m.Name}
	if !m.Tmpfile {
		found, free, err := o.find(parent, m.Name)
		if err == nil {
			if m.Open && m.Flags&oExcl == 0 && !o.again.on {
				return found.child, nil
			}
			return fid.FID{}, status.Exist
		}
		if !errors.Is(err, status.NotExist) {
			return fid.FID{}, err
		}
		o.free = free
	}
	if err := mayCreate(&o.cred, &o.folder); err != nil {
		return fid.FID{}, err
	}
	o.depends(o.folder.own)
	if !m.Tmpfile {
		o.absent(parent, &o.free)
	}
	if err := o.agree(); err != nil {
		return fid.FID{}, err
	}
	o.beginTx()
	if err := o.newInode(m, f, objects); err != nil {
		return fid.FID{}, err
	}
	return fid.FID{}, o.publishCreate(m, &entry)
}

// newInode makes o.child in o.folder with all its first attributes.
func (o *op) newInode(m *wirepb.CreateRequest, f fid.FID, objects *osp.Allocation) error {
	folder, n := &o.folder, &o.child
	kind := m.Mode & attr.TypeMask
	mode := m.Mode
	switch kind {
	case attr.TypeDir:
		mode &= attr.TypeMask | 0o1777
	case attr.TypeLink:
		mode = attr.TypeLink | 0o777
	case attr.TypeChar, attr.TypeBlock:
		if !o.cred.Root() && (kind != attr.TypeChar || m.Rdev != 0) {
			return status.Perm
		}
	}
	*n = inode{}
	n.FID, n.Nlink, n.SizeValid = f, 1, true
	n.UID = o.cred.UID
	n.Mode, n.GID = newOwner(&o.cred, folder, mode)
	n.ProjID = m.Caller.Project
	if folder.Flags&attr.FlagProjInh != 0 {
		n.ProjID = folder.ProjID
	}
	n.Flags = inheritedFlags(folder.Flags, kind)
	n.Atime, n.Mtime, n.Ctime, n.Btime = o.now, o.now, o.now, o.now
	if kind == attr.TypeChar || kind == attr.TypeBlock {
		n.Rdev = m.Rdev
	}
	if !m.Tmpfile {
		o.addLink(n, parentLink{folder.FID, m.Name})
	}
	switch kind {
	case attr.TypeLink:
		n.sec[secSymlink] = m.Symlink
		n.Size = uint64(len(m.Symlink))
		return nil
	case attr.TypeDir:
		n.Nlink = 2
		n.Size = folderSize(0)
		n.Blocks = n.Size / 512
		if err := o.newFolderDefault(m, folder, n); err != nil {
			return err
		}
	case attr.TypeFile:
		if o.again.on {
			if err := o.replayObjects(); err != nil {
				return err
			}
			break
		}
		objects.Fill(&o.tmpl, o.tx, o.e)
		n.sec[secLayout] = o.encodeLayout(&o.tmpl)
	}
	o.inheritACL(folder, n)
	return nil
}

// newFolderDefault gives a new folder its default layout: the one asked for, or its parent's. The root's default stays
// where it is, so that changing it reaches all that have none of their own.
func (o *op) newFolderDefault(m *wirepb.CreateRequest, folder, n *inode) error {
	if len(m.Layout) > 0 {
		if err := o.wish.Decode(m.Layout); err != nil {
			return err
		}
		n.sec[secDefault] = m.Layout
		return checkTemplate(&o.wish)
	}
	if folder.FID != rootFID {
		n.sec[secDefault] = folder.sec[secDefault]
	}
	return nil
}

// encodeLayout encodes l into scratch memory.
func (o *op) encodeLayout(l *layout.Layout) []byte {
	o.layoutBuf = l.Append(o.layoutBuf[:0])
	return o.e.Copy(o.layoutBuf)
}

// inheritedFlags are the chattr flags that a new inode takes from its folder: ext4's EXT4_FL_INHERITED, by type.
func inheritedFlags(folder attr.Flags, kind uint32) attr.Flags {
	switch kind {
	case attr.TypeDir:
		return folder & (attr.FlagSync | attr.FlagNoDump | attr.FlagNoAtime | attr.FlagDirSync | attr.FlagProjInh)
	case attr.TypeFile:
		return folder & (attr.FlagSync | attr.FlagNoDump | attr.FlagNoAtime)
	}
	return folder & (attr.FlagNoDump | attr.FlagNoAtime)
}

// inheritACL gives a new inode its ACLs, or applies the umask where the folder has no default ACL: posix_acl_create.
func (o *op) inheritACL(folder, n *inode) {
	def := acl(folder.sec[secDefaultACL])
	if len(def) == 0 {
		n.Mode &^= o.cred.Umask
		return
	}
	access := acl(o.e.Copy(def))
	mode, minimal := access.inherit(n.Mode)
	n.Mode = mode
	if !minimal {
		n.sec[secACL] = access
		n.HasACL = true
	}
	if n.IsDir() {
		n.sec[secDefaultACL] = def
	}
}

// publishCreate puts the inode, the entry and the folder's delta, opens the new inode if asked, and publishes.
func (o *op) publishCreate(m *wirepb.CreateRequest, entry *dirent) error {
	n, folder := &o.child, &o.folder
	if m.Open && writes(m.Flags) {
		n.SizeValid = false
		n.flags |= recWritten
	}
	if m.Tmpfile {
		n.Nlink = 0
		n.flags |= recTmpfile
		if m.Flags&oExcl != 0 {
			n.flags |= recNoLink
		}
		o.putOrphan(n.FID)
	} else {
		if err := o.putNew(folder.FID, entry, &o.free); err != nil {
			return err
		}
	}
	o.put(n, true)
	o.used(n.FID)
	r := o.entryReply(n)
	r.Created = m.Open
	// The first writer need not ask for the size of what is new.
	r.Attr.SizeValid = true
	if m.Open && !o.again.on {
		id, err := o.openHandle(n, m.Flags)
		if err != nil {
			return err
		}
		r.Handle = id
	}
	o.grant(n.FID, o.wants(m.Want, !m.Tmpfile), &o.rep.grant) // Before anybody can know the inode.
	var err error
	if m.Tmpfile {
		err = o.commitGranted(r)
	} else {
		links := int32(0)
		if n.IsDir() {
			links = 1
		}
		o.delta(folder, links, 1)
		err = o.commitEntry(r, folder)
	}
	if err != nil && r.Handle != 0 {
		o.dropOpen(n.FID, r.Handle)
	}
	return err
}
