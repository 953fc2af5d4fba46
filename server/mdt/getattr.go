package mdt

import (
	"errors"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

// lookupTries bounds how often a lookup starts over because the inode went between reading its entry and itself.
const lookupTries = 8

// lookup answers with the inode that a name leads to. It takes no lock.
func (o *op) lookup() error {
	m := &o.req.lookup
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
	for range lookupTries {
		if err := o.get(parent, &o.folder); err != nil {
			return err
		}
		if err := search(&o.cred, &o.folder); err != nil {
			return err
		}
		if err := wire.Name(m.Name); err != nil {
			return err
		}
		d, _, err := o.find(parent, m.Name)
		if err != nil {
			return err
		}
		err = o.get(d.child, &o.child)
		if errors.Is(err, status.Stale) {
			continue
		}
		if err != nil {
			return err
		}
		o.c.Reply = o.entryReply(&o.child)
		return nil
	}
	return status.NotExist
}

// getattr answers with an inode's attributes and layout. It takes no lock and needs no permission: whoever has the FID
// has looked it up.
func (o *op) getattr() error {
	m := &o.req.getattr
	if err := o.decode(m); err != nil {
		return err
	}
	f, err := o.fid(m.Seq, m.Oid)
	if err != nil {
		return err
	}
	if err := o.get(f, &o.child); err != nil {
		return err
	}
	o.c.Reply = o.entryReply(&o.child)
	return nil
}

// readlink answers with a symlink's target.
func (o *op) readlink() error {
	m := &o.req.getattr
	if err := o.decode(m); err != nil {
		return err
	}
	f, err := o.fid(m.Seq, m.Oid)
	if err != nil {
		return err
	}
	if err := o.get(f, &o.child); err != nil {
		return err
	}
	if o.child.Type() != attr.TypeLink {
		return status.Invalid
	}
	o.c.Reply = o.entryReply(&o.child)
	return nil
}

// lockOne locks one inode and reads it.
func (o *op) lockOne(f fid.FID, m lockMode) error {
	o.locks.child(f, m, false)
	o.locks.acquire()
	return o.get(f, &o.child)
}
