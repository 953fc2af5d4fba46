package mdt

import (
	"errors"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// link gives an inode one more name.
func (o *op) link() error {
	m := &o.req.link
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
	parent, err := o.fid(m.ParentSeq, m.ParentOid)
	if err != nil {
		return err
	}
	if err := wire.Name(m.Name); err != nil {
		return err
	}
	if err := o.cancels(m.Cancels); err != nil {
		return err
	}
	if err := o.throttle(false); err != nil {
		return err
	}
	o.locks.reset()
	o.locks.folder(parent, ldlm.CW)
	o.locks.name(parent, o.h.key.name(m.Name))
	o.locks.child(f, ldlm.EX, ldlm.Update, false)
	if err := o.lockAll(); err != nil {
		return err
	}
	return o.linkLocked(m, parent, f)
}

func (o *op) linkLocked(m *wirepb.LinkRequest, parent, f fid.FID) error {
	folder, n := &o.folder, &o.child
	o.locks.mark(parent)
	if err := o.get(parent, folder); err != nil {
		return err
	}
	if err := search(&o.cred, folder); err != nil {
		return err
	}
	_, free, err := o.find(parent, m.Name)
	if err == nil {
		return status.Exist
	}
	if !errors.Is(err, status.NotExist) {
		return err
	}
	if err := o.get(f, n); err != nil {
		return err
	}
	if err := mayCreate(&o.cred, folder); err != nil {
		return err
	}
	switch {
	case n.Flags&(attr.FlagAppend|attr.FlagImmutable) != 0, n.IsDir():
		return status.Perm
	case n.Nlink == 0 && (n.flags&recTmpfile == 0 || n.flags&recNoLink != 0):
		return status.NotExist
	case n.Nlink >= attr.LinkMax:
		return status.TooManyLink
	case folder.Flags&attr.FlagProjInh != 0 && folder.ProjID != n.ProjID:
		return status.CrossDevice
	}
	o.depends(folder.own)
	o.absent(parent, &free)
	o.depends(n.own)
	if err := o.agree(); err != nil {
		return err
	}
	o.beginTx()
	entry := dirent{kind: uint8(attr.DirentType(n.Mode)), child: f, name: m.Name}
	if err := o.putNew(parent, &entry, &free); err != nil {
		return err
	}
	if n.Nlink == 0 {
		o.deleteOrphan(f)
		n.flags &^= recTmpfile
	}
	n.Nlink++
	o.touch(n)
	o.addLink(n, parentLink{parent, m.Name})
	o.put(n, false)
	o.delta(folder, 0, 1)
	return o.commitEntry(o.entryReply(n), folder)
}
