package mdt

import (
	"errors"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

// lookupTries bounds how often a lookup starts over because the inode went between reading its entry and itself.
const lookupTries = 8

// lookup answers with the inode that a name leads to. It waits for no lock. A lock granted with the answer is there before
// the name is looked up for good.
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
	want := o.wants(m.Want, true)
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
		d, free, err := o.find(parent, m.Name)
		if err != nil {
			return o.notFound(parent, &free, err)
		}
		o.reads(d.stamp)
		err = o.read(d.child, &o.child, want)
		if errors.Is(err, status.Stale) {
			continue
		}
		if err != nil {
			return err
		}
		if len(o.granted) > 0 && o.rep.grant.Bits&uint32(ldlm.Lookup) != 0 && !o.leads(parent, m.Name, d.child) {
			o.ungrant()
			want = 0 // A name that moves this fast is not worth a lock.
			continue
		}
		r := o.entryReply(&o.child)
		r.Locks = o.grants()
		o.c.Reply = r
		return nil
	}
	return status.NotExist
}

// notFound is the end of a lookup of a name that is not there, which shows that it was taken away.
func (o *op) notFound(parent fid.FID, s *slot, err error) error {
	if errors.Is(err, status.NotExist) && o.h.sharing.level.Load() == shareReads {
		o.reads(o.h.sharing.removed.find(removalKey(parent, s.cookie), o.h.dev.Committed()))
		if err := o.settled(); err != nil {
			return err
		}
	}
	return err
}

// leads reports whether a name leads to f now.
func (o *op) leads(folder fid.FID, name []byte, f fid.FID) bool {
	d, _, err := o.find(folder, name)
	return err == nil && d.child == f
}

// getattr answers with an inode's attributes and layout. It waits for no lock and needs no permission: whoever has the FID
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
	if err := o.read(f, &o.child, o.wants(m.Want, false)); err != nil {
		return err
	}
	r := o.entryReply(&o.child)
	r.Locks = o.grants()
	o.c.Reply = r
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
	o.reads(o.child.own)
	o.c.Reply = o.entryReply(&o.child)
	return nil
}

// lockOne locks bits of one inode, grants what the client would like of it (o.want), and reads it.
func (o *op) lockOne(f fid.FID, m ldlm.Mode, b ldlm.Bits) error {
	o.locks.reset()
	o.locks.child(f, m, b, false)
	if err := o.lockAll(); err != nil {
		return err
	}
	o.grant(f, o.likely(f, o.want), &o.rep.grant)
	return o.get(f, &o.child)
}

// likely leaves UPDATE out where settleGrant is going to find that the client may not have it: all would go with it.
func (o *op) likely(f fid.FID, want ldlm.Bits) ldlm.Bits {
	want = o.withoutWriters(f, want)
	if n := &o.other; want&ldlm.Update != 0 && o.get(f, n) == nil && !o.mayUpdate(n) && !(n.IsFile() && o.writing) {
		want &^= ldlm.Update
	}
	return want
}

// unlockOne undoes lockOne, to begin again with more bits.
func (o *op) unlockOne() {
	if len(o.granted) > 0 {
		o.ungrant()
	}
	o.locks.release()
}

// settleGrant makes sure that the lock granted by lockOne may go with n as the operation leaves it.
func (o *op) settleGrant(n *inode) {
	if len(o.granted) > 0 && o.rep.grant.Bits&uint32(ldlm.Update) != 0 && !o.mayUpdate(n) {
		o.ungrant()
	}
}
