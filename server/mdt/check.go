package mdt

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sort"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// A Checker holds an MDT's records against the invariants of doc.go. It goes over the inodes, then over everything that
// speaks of them, then over the inodes once more: what has the same record both times did not change in between, since every
// change of an inode's names, and of a folder's entries, is in its record. So on a running target it knows what it is sure of.
//
// It keeps nodeBytes for each inode, an inode with values in the xattr table or with more names than fit its record some more,
// and each problem.
type Checker struct {
	o     CheckOptions
	key   *hashKey
	seed  maphash.Seed
	nodes nodeTable
	n     inode
	tmpl  layout.Layout
	walk  entryWalk
	// large counts what is in the xattr table by inode; full holds the links of inodes that may not name all.
	large map[uint32]*largeXattrs
	full  map[uint32]map[uint64]struct{}
	uses  map[fid.Seq]*use
	// nextSeq is the next sequence that the target would hand out.
	nextSeq fid.Seq
	missing map[fid.FID]bool // folders whose entries are there
	found   []*Problem
	files   uint64
}

// CheckOptions of a Checker.
type CheckOptions struct {
	Records target.Records
	Tables  Tables
	// Key is the key of the hash of names; without one the places of entries are not checked.
	Key []byte
	// File, if not nil, is called for every regular file with objects, by Inodes.
	File func(*File)
	// Again, if not nil, is called by Finish for those whose record is what it was then.
	Again func(*File)
}

// File is a regular file as the checker found it. Layout is valid during the call.
type File struct {
	FID               fid.FID
	UID, GID, Project uint32
	Size              uint64
	SizeValid         bool
	Layout            *layout.Layout
}

// NewChecker makes a checker.
func NewChecker(o CheckOptions) *Checker {
	c := &Checker{o: o, seed: maphash.MakeSeed(), large: map[uint32]*largeXattrs{}, full: map[uint32]map[uint64]struct{}{},
		uses: map[fid.Seq]*use{}, nextSeq: fid.SeqFirst, missing: map[fid.FID]bool{}}
	if len(o.Key) == 16 {
		k := hashKeyOf(o.Key)
		c.key = &k
	}
	c.walk.c = c
	return c
}

// Check runs all of it.
func (c *Checker) Check(ctx context.Context) ([]*Problem, error) {
	if err := c.Inodes(ctx); err != nil {
		return nil, err
	}
	if err := c.Names(ctx); err != nil {
		return nil, err
	}
	return c.Finish(ctx)
}

// Count is the number of inodes and of regular files with objects.
func (c *Checker) Count() (inodes, files uint64) { return uint64(c.nodes.n), c.files }

// Known reports whether an inode was there, and whether its record could be read.
func (c *Checker) Known(f fid.FID) (there, good bool) {
	i := c.find(f)
	if i < 0 {
		return false, false
	}
	return true, c.nodes.at(i).flags&nodeBad == 0
}

// Used reports whether a FID was ever given to an inode that reached the disk, as far as sequences that clients still hold
// tell: of others every FID counts as used.
func (c *Checker) Used(f fid.FID) bool {
	u, ok := c.uses[f.Seq]
	return !ok || u.has(f.OID)
}

func (c *Checker) add(p *Problem) { c.found = append(c.found, p) }

// bad reports a record that cannot be read.
func (c *Checker) bad(t store.Table, k []byte, f fid.FID, err error) {
	c.add(&Problem{Kind: ProblemRecord, Table: t, RecordKey: string(k), FID: f, Detail: err.Error(), Settled: true})
}

// node is what the checker keeps of an inode.
type node struct {
	ino uint64
	// links is the sum of the hashes of its names less those of its parent links.
	links uint64
	// content is the stamp of a folder's content, latest the latest stamp of its entries.
	content, latest uint64
	sum             uint32 // hash of the record
	names, nlink    uint32
	entries, listed uint32 // of a folder: by its record, and found
	subdirs         uint32
	parent          uint32 // of a folder: where its name is
	kind            uint8  // d_type
	flags           uint8
}

// Flags of a node.
const (
	nodeBad     = 1 << iota // its record does not decode
	nodeOrphan              // has an orphan record
	nodeStable              // its record has not changed
	nodeFull                // may have more names than links
	nodeBlurred             // a folder with entries that could not be read
	nodeSafe                // leads to the root, or to what is reported
	nodeWalked              // on the way that is being walked
)

func (n *node) fid() fid.FID { return fid.FromIno(n.ino) }
func (n *node) isDir() bool  { return uint32(n.kind) == attr.DirentType(attr.TypeDir) }

const nodeChunk = 1 << 13

// nodeTable is the nodes in the order of their FIDs, in chunks that never move.
type nodeTable struct {
	chunks [][]node
	n      int
}

func (t *nodeTable) at(i int) *node { return &t.chunks[i/nodeChunk][i%nodeChunk] }

func (t *nodeTable) add(x node) int {
	if t.n%nodeChunk == 0 {
		t.chunks = append(t.chunks, make([]node, 0, nodeChunk))
	}
	last := len(t.chunks) - 1
	t.chunks[last] = append(t.chunks[last], x)
	t.n++
	return t.n - 1
}

// find gives the index of an inode, -1 without one.
func (c *Checker) find(f fid.FID) int {
	if !f.IsFile() {
		return -1
	}
	ino := f.Ino()
	t := &c.nodes
	i := sort.Search(t.n, func(i int) bool { return t.at(i).ino >= ino })
	if i < t.n && t.at(i).ino == ino {
		return i
	}
	return -1
}

// inodeKey reads the key of an inode record.
func inodeKey(k []byte) (fid.FID, error) {
	f, err := fid.FromKey(k)
	if err != nil {
		return f, err
	}
	if len(k) != fid.KeySize || !f.IsFile() {
		return f, fmt.Errorf("%w: the key %x names no inode", errFormat, k)
	}
	return f, nil
}

// Inodes goes over the inodes for the first time.
func (c *Checker) Inodes(ctx context.Context) error {
	err := c.o.Records.Scan(ctx, c.o.Tables.Inode, nil, func(k, v []byte) bool {
		f, err := inodeKey(k)
		if err != nil {
			c.bad(c.o.Tables.Inode, k, fid.FID{}, err)
			return true
		}
		c.inode(f, v)
		return true
	})
	if err != nil {
		return fmt.Errorf("mdt: check: inodes: %w", err)
	}
	return nil
}

func (c *Checker) inode(f fid.FID, v []byte) {
	x := node{ino: f.Ino(), sum: uint32(maphash.Bytes(c.seed, v))}
	n := &c.n
	err := n.decode(f, v)
	if err == nil {
		err = c.sections(n)
	}
	if err != nil {
		c.bad(c.o.Tables.Inode, f.AppendKey(nil), f, err)
		x.flags = nodeBad
		c.nodes.add(x)
		return
	}
	x.kind, x.nlink, x.content = uint8(attr.DirentType(n.Mode)), n.Nlink, uint64(n.content.transno)
	x.entries = uint32(min(n.entries, 1<<32-1))
	if len(n.sec[secLinks]) >= linksMax-linkSlack {
		x.flags |= nodeFull
	}
	i := c.nodes.add(x)
	c.links(i, n.sec[secLinks])
	c.xattrs(i, n.sec[secXattrs])
	if n.IsFile() && len(n.sec[secLayout]) > 0 {
		c.files++
		if c.o.File != nil {
			c.o.File(c.file(n))
		}
	}
}

// linkSlack is the most that one link takes: with less room left a section may not hold all names.
const linkSlack = 12 + 2 + attr.NameMax

// sections reads the sections that decode leaves as they are. The layout is in c.tmpl then.
func (c *Checker) sections(n *inode) error {
	for rest := n.sec[secLinks]; ; {
		_, next, ok, err := nextLink(rest)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		rest = next
	}
	if _, err := tallyXattrs(n.sec[secXattrs]); err != nil {
		return err
	}
	for _, s := range [...]int{secDefault, secLayout} { // the layout last
		if err := c.tmpl.Decode(n.sec[s]); err != nil {
			return fmt.Errorf("%w: layout: %w", errFormat, err)
		}
	}
	return nil
}

// file is what Inodes and Finish tell of a regular file. Precondition: its layout is in c.tmpl.
func (c *Checker) file(n *inode) *File {
	return &File{FID: n.FID, UID: n.UID, GID: n.GID, Project: n.ProjID, Size: n.Size, SizeValid: n.SizeValid, Layout: &c.tmpl}
}

// nameSum is the hash of one name of an inode.
func (c *Checker) nameSum(folder fid.FID, name []byte) uint64 {
	var b [fid.KeySize + attr.NameMax + 1]byte
	return maphash.Bytes(c.seed, append(folder.AppendKey(b[:0]), name...))
}

func (c *Checker) links(i int, section []byte) {
	x := c.nodes.at(i)
	for rest := section; ; {
		l, next, ok, err := nextLink(rest)
		if err != nil || !ok {
			return
		}
		rest = next
		h := c.nameSum(l.folder, l.name)
		if x.flags&nodeFull == 0 {
			x.links -= h
			continue
		}
		if c.full[uint32(i)] == nil {
			c.full[uint32(i)] = map[uint64]struct{}{}
		}
		c.full[uint32(i)][h] = struct{}{}
	}
}

// largeXattrs is what an inode has in the xattr table by its own account, less what was found there.
type largeXattrs struct {
	names map[string]bool // found
}

func (c *Checker) xattrs(i int, section []byte) {
	for rest := section; len(rest) > 0; {
		x, next, err := nextXattr(rest)
		if err != nil {
			return
		}
		rest = next
		if !x.large {
			continue
		}
		if c.large[uint32(i)] == nil {
			c.large[uint32(i)] = &largeXattrs{names: map[string]bool{}}
		}
		c.large[uint32(i)].names[string(x.name)] = false
	}
}

// Finish goes over the inodes again and returns what is wrong. Nothing else may be called after it but Count.
func (c *Checker) Finish(ctx context.Context) ([]*Problem, error) {
	at := 0
	err := c.o.Records.Scan(ctx, c.o.Tables.Inode, nil, func(k, v []byte) bool {
		f, err := inodeKey(k)
		if err != nil {
			return true
		}
		ino := f.Ino()
		for at < c.nodes.n && c.nodes.at(at).ino < ino {
			at++
		}
		if at == c.nodes.n || c.nodes.at(at).ino != ino {
			return true // new
		}
		x := c.nodes.at(at)
		if x.flags&nodeBad != 0 || x.sum != uint32(maphash.Bytes(c.seed, v)) {
			return true
		}
		x.flags |= nodeStable
		if c.o.Again != nil && uint32(x.kind) == attr.DirentType(attr.TypeFile) {
			if n := &c.n; n.decode(f, v) == nil && len(n.sec[secLayout]) > 0 && c.tmpl.Decode(n.sec[secLayout]) == nil {
				c.o.Again(c.file(n))
			}
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("mdt: check: inodes once more: %w", err)
	}
	c.judge()
	c.circles()
	return c.result(), nil
}

// result is the problems, without the entries that lead to a folder that is itself reported as missing.
func (c *Checker) result() []*Problem {
	kept := c.found[:0]
	for _, p := range c.found {
		if p.Kind != ProblemDangling || !c.missing[p.FID] {
			kept = append(kept, p)
		}
	}
	return kept
}

// errNewer is a record of a later version, which nobody changes.
var errNewer = errors.New("mdt: a record of a later version")
