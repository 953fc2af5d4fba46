package mdt

import (
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// open makes a handle. A first open for write, or O_TRUNC, clears size_valid in its own transaction; any other open changes
// nothing on disk.
func (o *op) open() error {
	m := &o.req.open
	if err := o.decode(m); err != nil {
		return err
	}
	f, err := o.fid(m.Seq, m.Oid)
	if err != nil {
		return err
	}
	if err := o.cancels(m.Cancels); err != nil {
		return err
	}
	o.want = o.wants(m.Want, false)
	return o.openFID(f, m.Flags, m.Caller)
}

// openFID opens an inode with the flags of open(2).
func (o *op) openFID(f fid.FID, flags uint32, caller *wirepb.Caller) error {
	if err := o.as(caller); err != nil {
		return err
	}
	changes := writes(flags) || flags&oTrunc != 0
	if changes {
		if o.x.ReadOnly {
			return status.ReadOnly
		}
		if err := o.throttle(true); err != nil {
			return err
		}
	}
	n := &o.child
	if err := o.lockOpen(f, flags); err != nil {
		return err
	}
	if n.IsFile() && changes {
		o.depends(n.own)
	} else {
		o.readsInode(n)
		if err := o.settled(); err != nil {
			return err
		}
	}
	if err := o.agree(); err != nil {
		return err
	}
	o.beginTx()
	// What the size was worth before this open: a writer that knows it need not ask the OSTs.
	known := n.SizeValid || flags&oTrunc != 0
	if n.IsFile() && changes {
		o.openForWrite(n, flags)
	}
	r := o.entryReply(n)
	r.Attr.SizeValid = known
	if o.again.on {
		return o.commitGranted(r) // Its client hands the open back with REOPEN, if it has it still.
	}
	id, err := o.openHandle(n, flags)
	if err != nil {
		return err
	}
	r.Handle = id
	o.settleGrant(n)
	if err := o.commitGranted(r); err != nil {
		o.dropOpen(f, id)
		return err
	}
	return nil
}

// lockOpen locks an inode for an open, reads it and checks that it may be opened. To open it for reading shares OPEN with other
// opens; so does one more open by who writes it already. To become a writer takes UPDATE from all others: from then on
// they do not know the size.
func (o *op) lockOpen(f fid.FID, flags uint32) error {
	mode, bits := ldlm.CW, ldlm.Open
	o.writing = writes(flags) || flags&oTrunc != 0
	if flags&oTrunc != 0 {
		if err := o.get(f, &o.child); err != nil {
			return err
		}
		bits |= contentTakes(&o.child)
	}
	for {
		if flags&oTrunc != 0 || writes(flags) && !o.isWriter(f) {
			mode, bits = ldlm.EX, bits|opened
		}
		if err := o.lockOne(f, mode, bits); err != nil {
			return err
		}
		if err := mayOpen(&o.cred, &o.child, flags); err != nil {
			return err
		}
		more := ldlm.Bits(0)
		if flags&oTrunc != 0 {
			more = contentTakes(&o.child) &^ bits
		}
		if more == 0 && (mode == ldlm.EX || !writes(flags) || o.isWriter(f) || !o.child.IsFile()) {
			return nil
		}
		bits |= more
		o.unlockOne()
	}
}

// openForWrite puts what an open for write or with O_TRUNC changes, if it changes anything.
func (o *op) openForWrite(n *inode, flags uint32) {
	dirty := n.SizeValid || n.flags&recWritten == 0 || o.again.on // A replay is one because its first run put something.
	n.SizeValid = false
	n.flags |= recWritten
	if flags&oTrunc != 0 {
		o.truncate(n, 0)
		dirty = true
	}
	if dirty {
		o.put(n, false)
	}
}

// truncate sets the size that the client is going to cut the objects to: it is a writer until it reports.
func (o *op) truncate(n *inode, size uint64) {
	n.Size, n.SizeValid = size, false
	n.SetattrGen++
	n.flags |= recWritten
	n.flags &^= recMtimeSet
	n.Mtime = o.now
	o.touch(n)
	killSuid(&o.cred, n)
	o.dropCapability(n)
	if !o.again.on {
		o.h.opens.addWriter(n.FID, o.xs, 0, n.SetattrGen)
	}
}

// openHandle makes a handle on n and counts the open.
// Precondition: n's lock is held, or n is new and nobody can know it.
func (o *op) openHandle(n *inode, flags uint32) (uint64, error) {
	id, err := o.xs.addHandle(n.FID, flags, n.IsDir())
	if err != nil {
		return 0, err
	}
	o.h.opens.open(n.FID)
	o.h.stats.opens.Add(1)
	if n.IsFile() && writes(flags) {
		o.h.opens.addWriter(n.FID, o.xs, 1, 0)
	}
	return id, nil
}

// dropOpen takes back a handle whose reply was never given.
func (o *op) dropOpen(f fid.FID, id uint64) {
	if v, ok := o.xs.dropHandle(id, f); ok {
		if writes(v.flags) {
			o.h.opens.closeWrite(f, o.xs)
		}
		o.h.opens.close(f)
		o.h.stats.opens.Add(-1)
	}
}

// isWriter reports whether the client is a writer of f.
func (o *op) isWriter(f fid.FID) bool {
	mine, _ := o.h.opens.writers(f, o.xs)
	return mine
}

// canWrite reports whether the client's handle is one of f open for write.
func (o *op) canWrite(f fid.FID, id uint64) bool {
	v, ok := o.xs.handleOf(id, f)
	return ok && writes(v.flags)
}
