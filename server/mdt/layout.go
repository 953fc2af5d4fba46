package mdt

import (
	"bytes"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/osp"
)

// setLayout sets a folder's default layout, or gives a regular file that was never opened for write other objects.
func (o *op) setLayout() error {
	m := &o.req.layout
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
	if err := o.wish.Decode(m.Layout); err != nil {
		return err
	}
	if err := checkTemplate(&o.wish); err != nil {
		return err
	}
	if err := o.cancels(m.Cancels); err != nil {
		return err
	}
	if err := o.throttle(false); err != nil {
		return err
	}
	o.want = o.wants(m.Want, false)
	n := &o.child
	if err := o.get(f, n); err != nil {
		return err
	}
	switch n.Type() {
	case attr.TypeDir:
		return o.setDefault(f, m.Layout)
	case attr.TypeFile:
		if len(m.Layout) == 0 {
			return status.Errorf(status.Invalid, "mdt: a file's layout cannot be removed, a folder's default can")
		}
		return o.restripe(m, f)
	}
	return status.Invalid
}

// setDefault sets a folder's default layout, or removes it.
func (o *op) setDefault(f fid.FID, template []byte) error {
	n := &o.child
	if err := o.lockOne(f, ldlm.EX, ldlm.Layout|ldlm.Update); err != nil {
		return err
	}
	if err := mayChangeLayout(&o.cred, n); err != nil {
		return err
	}
	o.depends(n.own)
	o.depends(n.content)
	if err := o.agree(); err != nil {
		return err
	}
	o.beginTx()
	n.sec[secDefault] = template
	o.touch(n)
	o.put(n, false)
	o.settleGrant(n)
	if err := o.commitGranted(o.entryReply(n)); err != nil {
		return err
	}
	if f == rootFID {
		o.h.setRootDefault(template)
	}
	return nil
}

// mayChangeLayout: the owner may, or who can write to the inode, but to no immutable or append-only one.
func mayChangeLayout(c *attr.Cred, n *inode) error {
	if n.Flags&(attr.FlagImmutable|attr.FlagAppend) != 0 {
		return status.Perm
	}
	if owner(c, n) {
		return nil
	}
	return permission(c, n, mayWrite)
}

// setRootDefault keeps the root folder's default where every create finds it.
func (h *Handler) setRootDefault(template []byte) {
	if len(template) == 0 {
		h.rootDef.Store(nil)
		return
	}
	b := bytes.Clone(template)
	h.rootDef.Store(&b)
}

// restripe replaces the objects of a file that holds no byte. The new ones are reserved before the lock; the old ones are
// destroyed when the change is on disk.
func (o *op) restripe(m *wirepb.LayoutRequest, f fid.FID) error {
	if o.again.on {
		return o.restripeLocked(f, nil)
	}
	objects, err := o.h.o.Objects.Allocate(o.h.contextOf(o.c), &o.wish, f)
	if err != nil {
		return err
	}
	if err := o.restripeLocked(f, objects); err != nil {
		objects.Cancel()
		return err
	}
	objects.Release()
	return nil
}

func (o *op) restripeLocked(f fid.FID, objects *osp.Allocation) error {
	n := &o.child
	if err := o.lockOne(f, ldlm.EX, ldlm.Layout|opened); err != nil {
		return err
	}
	if err := mayChangeLayout(&o.cred, n); err != nil {
		return err
	}
	if n.flags&recWritten != 0 || n.Size > 0 {
		return status.Errorf(status.Exist, "mdt: the layout of a file that was written cannot change")
	}
	if o.h.opens.count(f) > 0 {
		// Who has it open reads the old objects.
		return status.Errorf(status.Busy, "mdt: the layout of an open file cannot change")
	}
	o.depends(n.own)
	o.depends(n.content)
	if err := o.agree(); err != nil {
		return err
	}
	o.beginTx()
	gen := uint32(1)
	if len(n.sec[secLayout]) > 0 {
		if err := o.tmpl.Decode(n.sec[secLayout]); err != nil {
			return err
		}
		gen = o.tmpl.Gen + 1
		o.h.o.Objects.Destroy(o.tx, o.e, &o.tmpl)
	}
	if o.again.on {
		if err := o.replayObjects(); err != nil {
			return err
		}
	} else {
		objects.Fill(&o.tmpl, o.tx, o.e)
		o.tmpl.Gen = gen
		n.sec[secLayout] = o.encodeLayout(&o.tmpl)
	}
	o.touch(n)
	o.put(n, false)
	o.settleGrant(n)
	return o.commitGranted(o.entryReply(n))
}
