package mdt

import "slices"

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
// Then it calls agree. A folder's times, nlink and entries are no dependency, nor is the outcome of a size report.

// depends declares that the operation rests on what s stamped.
// Precondition: what is stamped is locked, so that it stays until the operation is published.
func (o *op) depends(s stamp) { o.deps = append(o.deps, s) }

// absent declares that the operation rests on a name not being there. In the list that is the zero stamp: it does not
// matter who took the name away.
func (o *op) absent() { o.depends(stamp{}) }

// agree is called once when all is declared. An error, and the operation must not be carried out: it returns it as it is.
func (o *op) agree() error {
	if len(o.deps) > depsMax {
		panic("mdt: an operation with more dependencies than depsMax")
	}
	return nil
}

// newDeps makes room for the declared dependencies of an op.
func newDeps() []stamp { return slices.Grow([]stamp(nil), depsMax) }
