package mdt

import (
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Flags of renameat2(2).
const (
	renameNoReplace = 1
	renameExchange  = 2
	renameWhiteout  = 4
)

// renaming is what a rename works on: two folders (the same inode twice in op.folder and op.to when it is one), two
// entries, and the inodes they lead to in op.child and op.other.
type renaming struct {
	from, to         fid.FID
	fromName, toName []byte
	source, target   dirent
	hasTarget        bool
	// free is where the new entry goes, when there was none.
	free     slot
	flags    uint32
	whiteout fid.FID
}

func (r *renaming) cross() bool    { return r.from != r.to }
func (r *renaming) exchange() bool { return r.flags&renameExchange != 0 }

// rename moves, replaces or exchanges names, as renameat2(2) does.
func (o *op) rename() error {
	m := &o.req.rename
	if err := o.decode(m); err != nil {
		return err
	}
	if err := o.as(m.Caller); err != nil {
		return err
	}
	r := &o.move
	*r = renaming{fromName: m.FromName, toName: m.ToName, flags: m.Flags}
	var err error
	if r.from, err = o.fid(m.FromSeq, m.FromOid); err != nil {
		return err
	}
	if r.to, err = o.fid(m.ToSeq, m.ToOid); err != nil {
		return err
	}
	if m.Flags&^(renameNoReplace|renameExchange|renameWhiteout) != 0 || r.exchange() && m.Flags != renameExchange {
		return status.Invalid
	}
	if err := errors.Join(wire.Name(m.FromName), wire.Name(m.ToName)); err != nil {
		return status.Of(err)
	}
	if err := o.cancels(m.Cancels); err != nil {
		return err
	}
	if err := o.throttle(false); err != nil {
		return err
	}
	if m.Flags&renameWhiteout == 0 {
		return o.renameLoop(r)
	}
	if r.whiteout, err = o.fid(m.WhiteoutSeq, m.WhiteoutOid); err != nil {
		return err
	}
	claimed, err := o.claim(r.whiteout)
	if err != nil {
		return err
	}
	if err := o.renameLoop(r); err != nil {
		claimed.unclaim(r.whiteout)
		return err
	}
	return nil
}

func (o *op) renameLoop(r *renaming) error {
	for {
		again, err := o.tryRename(r)
		if err != nil || !again {
			return err
		}
		o.locks.release()
		o.h.stats.restarts.Inc()
	}
}

// tryRename makes one attempt; again says that a name led elsewhere once it was locked, or a lock was busy.
func (o *op) tryRename(r *renaming) (again bool, err error) {
	o.locks.reset()
	o.above = 0
	if err := o.readRename(r); err != nil {
		if stale(err) {
			return o.renameStale(r)
		}
		return false, err
	}
	source, target, had := r.source.child, r.target.child, r.hasTarget
	moves := o.child.IsDir() || r.exchange() && had && o.other.IsDir()
	if err := o.lockFolders(r, moves); err != nil {
		return false, err
	}
	o.locks.name(r.from, o.h.key.name(r.fromName))
	o.locks.name(r.to, o.h.key.name(r.toName))
	o.locks.child(source, ldlm.EX, ldlm.Lookup|ldlm.Update, o.child.IsDir())
	if had {
		bits := lostName(&o.other)
		if r.exchange() {
			bits = ldlm.Lookup | ldlm.Update
		}
		o.locks.child(target, ldlm.EX, bits, o.other.IsDir())
	}
	if ok, err := o.acquire(); !ok {
		return true, err
	}
	o.locks.mark(r.from)
	o.locks.mark(r.to)
	if err := o.readRename(r); err != nil {
		return false, err
	}
	if r.source.child != source || r.hasTarget != had || r.target.child != target {
		return true, nil
	}
	if done, err := o.mayRename(r); err != nil || done {
		return false, err
	}
	o.dependRename(r, moves)
	if err := o.agree(); err != nil {
		return false, err
	}
	return false, o.publishRename(r)
}

// dependRename declares what a rename depends on. One that moves a folder rests on where all folders above it are: else it
// could close a circle once another client's move is lost.
func (o *op) dependRename(r *renaming, moves bool) {
	if moves {
		o.beyond = max(o.beyond, o.above)
	}
	o.depends(o.folder.own)
	if r.cross() {
		o.depends(o.to.own)
	}
	o.depends(r.source.stamp)
	if r.hasTarget {
		o.depends(r.target.stamp)
	} else {
		o.absent(r.to, &r.free)
	}
	o.depends(o.child.own)
	if r.hasTarget {
		o.depends(o.other.own)
		if o.other.IsDir() && !r.exchange() {
			o.depends(o.other.content)
		}
	}
}

// renameStale decides after a Stale without locks: it is the answer if a folder is gone, else the operation starts over.
func (o *op) renameStale(r *renaming) (again bool, err error) {
	if again, err = o.goneBehind(r.from); err != nil || !r.cross() {
		return again, err
	}
	return o.goneBehind(r.to)
}

// toFolder is the folder of the new name.
func (o *op) toFolder(r *renaming) *inode {
	if r.cross() {
		return &o.to
	}
	return &o.folder
}

// readRename reads folders, entries and inodes, and refuses what cannot be by them alone: who waits for locks after this
// never holds a folder's lock as a folder and wants it as a child.
func (o *op) readRename(r *renaming) error {
	if err := o.get(r.from, &o.folder); err != nil {
		return err
	}
	if err := search(&o.cred, &o.folder); err != nil {
		return err
	}
	if r.cross() {
		if err := o.get(r.to, &o.to); err != nil {
			return err
		}
		if err := search(&o.cred, &o.to); err != nil {
			return err
		}
	}
	var err error
	if r.source, _, err = o.find(r.from, r.fromName); err != nil {
		return err
	}
	if err := o.get(r.source.child, &o.child); err != nil {
		return err
	}
	r.target, r.free, err = o.find(r.to, r.toName)
	r.hasTarget = err == nil
	if err != nil && !errors.Is(err, status.NotExist) {
		return err
	}
	switch {
	case r.hasTarget && r.flags&renameNoReplace != 0:
		return status.Exist
	case !r.hasTarget && r.exchange():
		return status.NotExist
	case r.source.child == r.to:
		return status.Invalid
	case r.hasTarget && r.target.child == r.from && r.exchange():
		return status.Invalid
	case r.hasTarget && r.target.child == r.from:
		return status.NotEmpty
	case r.hasTarget:
		return o.get(r.target.child, &o.other)
	}
	return nil
}

// lockFolders names the folders' locks, in their order. Two folders need the rename lock first: under it nobody's place
// in the tree changes, so that the walks see who is whose ancestor.
func (o *op) lockFolders(r *renaming, moves bool) error {
	if !r.cross() {
		o.locks.folder(r.from, ldlm.CW)
		return nil
	}
	mode := ldlm.CW
	if moves {
		mode = ldlm.EX
	}
	o.locks.rename(mode)
	if err := o.lockAll(); err != nil {
		return err
	}
	o.locks.folder(r.from, ldlm.CW)
	o.locks.folder(r.to, ldlm.CW)
	under, err := o.walkUp(r.to, r.from, r.source.child)
	if err != nil {
		return err
	}
	if under == r.source.child && o.child.IsDir() {
		return status.Invalid
	}
	if under == r.from {
		o.locks.ancestor(r.from)
		return nil
	}
	over, err := o.walkUp(r.from, r.to, r.target.child)
	if err != nil {
		return err
	}
	if r.hasTarget && over == r.target.child && o.other.IsDir() {
		if r.exchange() {
			return status.Invalid
		}
		return status.NotEmpty
	}
	if over == r.to {
		o.locks.ancestor(r.to)
	}
	return nil
}

// depthMax bounds a walk: a tree that is deeper is damaged.
const depthMax = 1 << 20

// walkUp walks from a folder to the root and tells which of two inodes it meets first; the zero FID for none.
// Precondition: the rename lock is held.
func (o *op) walkUp(at, a, b fid.FID) (met fid.FID, err error) {
	start := at
	for range depthMax {
		if at == a || at == b {
			return at, nil
		}
		if at == rootFID {
			return fid.FID{}, nil
		}
		if err := o.get(at, &o.step); err != nil {
			if stale(err) {
				return fid.FID{}, nil // Removed meanwhile: its locked read finds that.
			}
			return fid.FID{}, err
		}
		if o.step.own.transno > o.above && o.shares(o.step.own, o.h.dev.Committed()) {
			o.above = o.step.own.transno
		}
		l, ok := o.step.parent()
		if !ok {
			return fid.FID{}, nil // Removed, or open without a name.
		}
		at = l.folder
	}
	return fid.FID{}, fmt.Errorf("%w: %v is in a circle of folders", errFormat, start)
}

// mayRename checks as vfs_rename does. done says that there is nothing to do, and the reply is given.
func (o *op) mayRename(r *renaming) (done bool, err error) {
	c, from, to := &o.cred, &o.folder, o.toFolder(r)
	source, target := &o.child, &o.other
	if r.hasTarget && source.FID == target.FID {
		o.beginTx()
		return true, o.commit(o.renameReply(r))
	}
	if err := mayDelete(c, from, source, source.IsDir()); err != nil {
		return false, err
	}
	switch {
	case !r.hasTarget:
		err = mayCreate(c, to)
	case r.exchange():
		err = mayDelete(c, to, target, target.IsDir())
	default:
		err = mayDelete(c, to, target, source.IsDir())
	}
	if err != nil {
		return false, err
	}
	if r.cross() && source.IsDir() {
		if err := permission(c, source, mayWrite); err != nil {
			return false, err
		}
	}
	if r.cross() && r.exchange() && target.IsDir() {
		if err := permission(c, target, mayWrite); err != nil {
			return false, err
		}
	}
	if to.Flags&attr.FlagProjInh != 0 && to.ProjID != source.ProjID ||
		r.exchange() && from.Flags&attr.FlagProjInh != 0 && from.ProjID != target.ProjID {
		return false, status.CrossDevice
	}
	if r.hasTarget && !r.exchange() && target.IsDir() && target.entries > 0 {
		return false, status.NotEmpty
	}
	return false, nil
}

// publishRename builds and publishes the change.
func (o *op) publishRename(r *renaming) error {
	o.beginTx()
	var err error
	if r.exchange() {
		err = o.exchange(r)
	} else {
		err = o.moveName(r)
	}
	if err != nil {
		return err
	}
	m := o.renameReply(r)
	if err := o.commit(m); err != nil {
		return err
	}
	again := o.settle(&o.folder, &o.rep.parent)
	if r.cross() {
		again = o.settle(&o.to, &o.rep.parent2) || again
	} else {
		putAttr(&o.rep.parent2, &o.folder)
	}
	if again {
		o.resend(m)
	}
	return nil
}

// folderLinks is 1 for a folder, whose ".." is a link of its parent, else 0.
func folderLinks(n *inode) int32 {
	if n.IsDir() {
		return 1
	}
	return 0
}

// relink gives n one name for another.
func (o *op) relink(n *inode, old, now parentLink) error {
	if err := o.dropLink(n, old); err != nil {
		return err
	}
	o.addLink(n, now)
	o.touch(n)
	o.put(n, false)
	return nil
}

// moveName moves the source to the new name, and takes that name from what had it.
func (o *op) moveName(r *renaming) error {
	from, to, source, target := &o.folder, o.toFolder(r), &o.child, &o.other
	entry := dirent{kind: r.source.kind, child: source.FID, name: r.toName}
	links, entries := folderLinks(source), int64(1)
	if r.hasTarget {
		entry.cookie, entry.run = r.target.cookie, r.target.run
		links, entries = links-folderLinks(target), 0
		if err := o.unname(target, parentLink{r.to, r.toName}); err != nil {
			return err
		}
	}
	if r.hasTarget {
		o.putEntry(r.to, &entry)
	} else if err := o.putNew(r.to, &entry, &r.free); err != nil {
		return err
	}
	if r.free.mark && !r.cross() && r.free.first.cookie == r.source.cookie {
		r.source.run = true // The new name is the second of the old one's run.
	}
	lost := int64(-1)
	if r.flags&renameWhiteout != 0 {
		lost = 0
		o.putWhiteout(r, from)
	} else {
		o.deleteEntry(r.from, &r.source)
	}
	if err := o.relink(source, parentLink{r.from, r.fromName}, parentLink{r.to, r.toName}); err != nil {
		return err
	}
	if !r.cross() {
		o.delta(from, links-folderLinks(source), entries+lost)
		return nil
	}
	o.delta(from, -folderLinks(source), lost)
	o.delta(to, links, entries)
	return nil
}

// putWhiteout leaves a character device 0:0 under the old name.
func (o *op) putWhiteout(r *renaming, folder *inode) {
	n := &o.step
	*n = inode{}
	n.FID, n.Nlink, n.SizeValid = r.whiteout, 1, true
	n.UID = o.cred.UID
	n.Mode, n.GID = newOwner(&o.cred, folder, attr.TypeChar)
	n.ProjID = o.caller.Project
	if folder.Flags&attr.FlagProjInh != 0 {
		n.ProjID = folder.ProjID
	}
	n.Atime, n.Mtime, n.Ctime, n.Btime = o.now, o.now, o.now, o.now
	o.addLink(n, parentLink{folder.FID, r.fromName})
	o.inheritACL(folder, n)
	o.put(n, true)
	o.used(n.FID)
	o.putEntry(folder.FID, &dirent{
		cookie: r.source.cookie, run: r.source.run, kind: uint8(attr.DirentType(n.Mode)), child: n.FID, name: r.fromName,
	})
}

// exchange swaps what two names lead to.
func (o *op) exchange(r *renaming) error {
	from, to, source, target := &o.folder, o.toFolder(r), &o.child, &o.other
	here, there := parentLink{r.from, r.fromName}, parentLink{r.to, r.toName}
	o.putEntry(r.from, &dirent{cookie: r.source.cookie, run: r.source.run, kind: r.target.kind, child: target.FID, name: r.fromName})
	o.putEntry(r.to, &dirent{cookie: r.target.cookie, run: r.target.run, kind: r.source.kind, child: source.FID, name: r.toName})
	if err := o.relink(source, here, there); err != nil {
		return err
	}
	if err := o.relink(target, there, here); err != nil {
		return err
	}
	if !r.cross() {
		o.delta(from, 0, 0)
		return nil
	}
	links := folderLinks(source) - folderLinks(target)
	o.delta(from, -links, 0)
	o.delta(to, links, 0)
	return nil
}

// renameReply fills the reply from the inodes as they are now.
func (o *op) renameReply(r *renaming) *wirepb.RenameReply {
	m := &o.rep.rename
	putAttr(&o.rep.attr, &o.child)
	putAttr(&o.rep.parent, &o.folder)
	putAttr(&o.rep.parent2, o.toFolder(r))
	m.Moved, m.Target = &o.rep.attr, nil
	m.FromParent, m.ToParent = &o.rep.parent, &o.rep.parent2
	if r.hasTarget {
		putAttr(&o.rep.attr2, &o.other)
		m.Target = &o.rep.attr2
	}
	return m
}
