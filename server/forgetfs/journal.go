package forgetfs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// opKind is a kind of change of names.
type opKind uint8

const (
	opMake opKind = iota // a file, folder or symbolic link
	opLink
	opUnlink // of a folder too
	opRename
)

// change is a pending change of names.
type change struct {
	kind opKind
	n    *node
	from place // opUnlink, opRename
	to   place // opMake, opLink, opRename
	over *node // what a rename removes
	deps []*change
	seq  uint64
	done bool // in the backing folder
}

// place is a name in a folder.
type place struct {
	dir  *node
	name string
}

// pend notes a change that the image shows already.
func (im *image) pend(c *change) {
	im.seq++
	c.seq = im.seq
	need := func(d *change) {
		if d != nil && !d.done {
			c.deps = append(c.deps, d)
		}
	}
	need(c.n.last)
	c.n.last = c
	for _, p := range []place{c.from, c.to} {
		if p.dir == nil {
			continue
		}
		need(p.dir.nameLast[p.name])
		p.dir.nameLast[p.name] = c
		for d := p.dir; d != nil; d = d.parent {
			need(d.last)
			if c.kind != opRename || !c.n.isDir() {
				break // only a folder could come to lie in itself
			}
		}
		p.dir.changes = append(pruned(p.dir.changes), c)
	}
	gone := c.over
	if c.kind == opUnlink {
		gone = c.n
	}
	if gone != nil {
		for _, d := range gone.changes {
			need(d)
		}
		if gone != c.n {
			need(gone.last)
			gone.last = c
		}
	}
	im.pending = append(im.pending, c)
	if len(im.pending) > im.pruneAt {
		im.pending = pruned(im.pending)
		im.pruneAt = 2*len(im.pending) + 64
	}
}

// pruned drops changes that are done from the front, or all of them when the list is about to grow.
func pruned(list []*change) []*change {
	if len(list) < cap(list) {
		return list
	}
	return slices.DeleteFunc(list, func(c *change) bool { return c.done })
}

// persist applies changes to the backing folder, with all that they stand on.
func (im *image) persist(wanted ...*change) error {
	var all []*change
	seen := map[*change]bool{}
	stack := slices.Clone(wanted)
	for len(stack) > 0 {
		c := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if c == nil || c.done || seen[c] {
			continue
		}
		seen[c] = true
		all = append(all, c)
		stack = append(stack, c.deps...)
	}
	slices.SortFunc(all, func(a, b *change) int { return cmp.Compare(a.seq, b.seq) })
	for _, c := range all {
		if err := im.apply(c); err != nil {
			return fmt.Errorf("forgetfs: backing folder: %w", err)
		}
		c.done, c.deps = true, nil
		for _, p := range []place{c.from, c.to} {
			if p.dir != nil && p.dir.nameLast[p.name] == c {
				delete(p.dir.nameLast, p.name)
			}
		}
	}
	return nil
}

// apply makes one change in the backing folder.
func (im *image) apply(c *change) error {
	switch c.kind {
	case opMake:
		path := im.path(c.to)
		err := c.n.make(path)
		if err == nil {
			err = os.Lchown(path, int(c.n.uid), int(c.n.gid))
		}
		if err != nil {
			return err
		}
		c.n.names = append(c.n.names, c.to)
	case opLink:
		if err := os.Link(im.path(c.n.names[0]), im.path(c.to)); err != nil {
			return err
		}
		c.n.names = append(c.n.names, c.to)
	case opUnlink:
		if err := c.n.hold(im); err != nil {
			return err
		}
		if err := os.Remove(im.path(c.from)); err != nil {
			return err
		}
		c.n.dropName(c.from)
	case opRename:
		if c.over != nil {
			if err := c.over.hold(im); err != nil {
				return err
			}
		}
		if err := os.Rename(im.path(c.from), im.path(c.to)); err != nil {
			return err
		}
		if c.over != nil {
			c.over.dropName(c.to)
		}
		c.n.dropName(c.from)
		c.n.names = append(c.n.names, c.to)
	}
	return nil
}

// path is where a durable name is in the backing folder.
func (im *image) path(p place) string {
	if p.dir == im.root {
		return filepath.Join(im.backing, p.name)
	}
	return filepath.Join(im.path(p.dir.names[0]), p.name)
}

// make makes the node at a path of the backing folder.
func (n *node) make(path string) error {
	switch n.mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		return unix.Chmod(path, n.mode&0o7777)
	case unix.S_IFLNK:
		return os.Symlink(n.target, path)
	case unix.S_IFREG:
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		n.kept = 0
		return errors.Join(unix.Fchmod(int(f.Fd()), n.mode&0o7777), f.Close())
	}
	return fmt.Errorf("%s: %w", path, syscall.EOPNOTSUPP)
}

// hold opens the file of a node that is about to lose its last durable name and may still be in use.
func (n *node) hold(im *image) error {
	if n.mode&unix.S_IFMT != unix.S_IFREG || len(n.names) > 1 || n.lookups == 0 || n.file != nil {
		return nil
	}
	f, err := os.OpenFile(im.path(n.names[0]), os.O_RDWR, 0)
	n.file = f
	return err
}

func (n *node) dropName(p place) {
	n.names = slices.DeleteFunc(n.names, func(q place) bool { return q == p })
}
