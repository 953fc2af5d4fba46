package mdt

import (
	"slices"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
)

// depsMax is the most that one operation depends on: a rename over a folder in another folder (both folders, both entries,
// both inodes, and what is in the one that goes).
const depsMax = 7

// Dependencies (DESIGN §8, "Stamps"). After an operation has locked, read and checked, and before it changes anything, it
// declares what it depends on, in this order:
//
//	create, mkdir, …     folder's own, entry (absent)
//	O_TMPFILE            folder's own
//	link                 folder's own, entry (absent), inode's own
//	unlink               folder's own, entry, inode's own
//	rmdir                folder's own, entry, inode's own, its content
//	rename               old folder's own, new folder's own if it is another, old entry, new entry or its absence, moved inode's own;
//	                     the other inode's own if there is one, and its content if it is a folder that is replaced
//	setattr, xattr       inode's own
//	default ACL, layout  inode's own, its content
//	open that writes     inode's own
//
// Then it calls agree. A folder's times, nlink and entries are no dependency, nor is what a size report says: it is true
// whatever was before it.

// depends declares that the operation rests on what s stamped.
// Precondition: what is stamped is locked, so that it stays until the operation is published.
func (o *op) depends(s stamp) { o.deps = append(o.deps, s) }

// absent declares that the operation rests on a name not being there; s is where it would go. In the list that is the zero
// stamp: a replay finds the name absent or not, whoever took it away. For commit on share it is the name's removal.
func (o *op) absent(folder fid.FID, s *slot) {
	o.depends(stamp{})
	o.behind(o.h.sharing.removed.find(removalKey(folder, s.cookie), o.h.dev.Committed()))
}

// behind notes a stamp that the operation rests on besides those it declares: only commit on share looks at it.
func (o *op) behind(s stamp) {
	if s.transno > o.beyond && o.shares(s, o.h.dev.Committed()) {
		o.beyond = s.transno
	}
}

// shares reports whether s is another client's change that is not on disk.
func (o *op) shares(s stamp, committed store.Transno) bool {
	return s.client != o.client && s.transno > committed
}

// agree is called once when all is declared. An error, and the operation must not be carried out: it returns it as it is.
func (o *op) agree() error {
	if len(o.deps) > depsMax {
		panic("mdt: an operation with more dependencies than depsMax")
	}
	if o.again.on {
		return o.same()
	}
	if o.h.sharing.level.Load() == shareNothing || o.c == nil {
		return nil
	}
	need, committed := o.beyond, o.h.dev.Committed()
	for _, s := range o.deps {
		if o.shares(s, committed) {
			need = max(need, s.transno)
		}
	}
	return o.awaitShared(need)
}

// reads notes that the answer shows what s stamped. settled ends a reading operation.
func (o *op) reads(s stamp) {
	if o.h.sharing.level.Load() == shareReads && o.shares(s, o.h.dev.Committed()) {
		o.shown = max(o.shown, s.transno)
	}
}

// readsInode notes that the answer shows an inode's attributes.
func (o *op) readsInode(n *inode) {
	o.reads(n.own)
	if n.IsDir() {
		o.reads(n.content)
	}
}

// settled is called when all that an answer shows is read. An error, and the answer must not be given.
func (o *op) settled() error { return o.awaitShared(o.shown) }

// newDeps makes room for the declared dependencies of an op.
func newDeps() []stamp { return slices.Grow([]stamp(nil), depsMax) }
