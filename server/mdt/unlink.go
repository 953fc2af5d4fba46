package mdt

import (
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// unlink removes a name, of a folder if rmdir asks for it.
func (o *op) unlink() error {
	m := &o.req.unlink
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
	if err := o.cancels(m.Cancels); err != nil {
		return err
	}
	if err := o.throttle(true); err != nil {
		return err
	}
	for {
		again, err := o.tryUnlink(m, parent)
		if err != nil || !again {
			return err
		}
		o.locks.release()
		o.h.stats.restarts.Inc()
	}
}

// victim finds what a name to remove leads to and checks that the caller may remove it.
func (o *op) victim(m *wirepb.UnlinkRequest, parent fid.FID) (dirent, error) {
	if err := o.get(parent, &o.folder); err != nil {
		return dirent{}, err
	}
	if err := search(&o.cred, &o.folder); err != nil {
		return dirent{}, err
	}
	if err := wire.Name(m.Name); err != nil {
		return dirent{}, err
	}
	d, _, err := o.find(parent, m.Name)
	if err != nil {
		return dirent{}, err
	}
	if err := o.get(d.child, &o.child); err != nil {
		return dirent{}, err
	}
	if err := mayDelete(&o.cred, &o.folder, &o.child, m.Rmdir); err != nil {
		return dirent{}, err
	}
	if m.Rmdir && o.child.entries > 0 {
		return dirent{}, status.NotEmpty
	}
	return d, nil
}

// tryUnlink makes one attempt; again says that the name led elsewhere once it was locked, or a lock was busy.
func (o *op) tryUnlink(m *wirepb.UnlinkRequest, parent fid.FID) (again bool, err error) {
	before, err := o.victim(m, parent)
	if stale(err) {
		return o.goneBehind(parent)
	}
	if err != nil {
		return false, err
	}
	o.locks.reset()
	o.locks.folder(parent, ldlm.CW)
	o.locks.name(parent, o.h.key.name(m.Name))
	o.locks.child(before.child, ldlm.EX, lostName(&o.child), m.Rmdir)
	if ok, err := o.acquire(); !ok {
		return true, err
	}
	o.locks.mark(parent)
	d, err := o.victim(m, parent)
	if err != nil {
		return false, err
	}
	if d.child != before.child {
		return true, nil
	}
	return false, o.publishUnlink(&d)
}

// lostName is the bits of an inode that go with one of its names: all, with the last one.
func lostName(n *inode) ldlm.Bits {
	if n.IsDir() || n.Nlink <= 1 {
		return ldlm.Full
	}
	return takenName
}

// stale reports whether an inode was gone.
func stale(err error) bool { k, ok := err.(status.Kind); return ok && k == status.Stale }

// goneBehind decides after a Stale without locks whether a folder itself is gone (then that is the answer) or the name's
// inode went between reading the entry and itself (then the operation starts over).
func (o *op) goneBehind(folder fid.FID) (again bool, err error) {
	err = o.get(folder, &o.folder)
	return err == nil, err
}

// publishUnlink removes the entry d of o.folder that leads to o.child.
func (o *op) publishUnlink(d *dirent) error {
	folder, n := &o.folder, &o.child
	o.depends(folder.own)
	o.depends(d.stamp)
	o.depends(n.own)
	if n.IsDir() {
		o.depends(n.content)
	}
	if err := o.agree(); err != nil {
		return err
	}
	o.beginTx()
	o.deleteEntry(folder.FID, d)
	links := int32(0)
	if n.IsDir() {
		links = -1
	}
	if err := o.unname(n, parentLink{folder.FID, d.name}); err != nil {
		return err
	}
	o.delta(folder, links, -1)
	r := &o.rep.unlink
	putAttr(&o.rep.attr, n)
	putAttr(&o.rep.parent, folder)
	r.Attr, r.Parent = &o.rep.attr, &o.rep.parent
	if err := o.commit(r); err != nil {
		return err
	}
	if o.settle(folder, &o.rep.parent) {
		o.resend(r)
	}
	return nil
}
