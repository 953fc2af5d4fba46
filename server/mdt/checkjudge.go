package mdt

import (
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
)

// judge reports what does not agree, inode by inode.
func (c *Checker) judge() {
	if there, _ := c.Known(rootFID); !there {
		c.add(&Problem{Kind: ProblemRoot, FID: rootFID, Detail: "there is no root folder", Settled: true})
	}
	for i := range c.nodes.n {
		x := c.nodes.at(i)
		if x.flags&nodeBad != 0 {
			continue
		}
		f := x.fid()
		report := func(kind ProblemKind, want uint64, format string, args ...any) {
			c.add(&Problem{Kind: kind, FID: f, want: want, Detail: fmt.Sprintf(format, args...), Settled: x.flags&nodeStable != 0})
		}
		if x.names == 0 && f != rootFID {
			c.judgeNameless(x, report)
		} else {
			c.judgeNamed(i, x, report)
		}
		c.judgeFolder(x, report)
		if u, ok := c.uses[f.Seq]; ok && !u.has(f.OID) {
			report(ProblemSequence, 0, "its sequence does not count it as used")
		}
		if f != rootFID && f.Seq >= c.nextSeq && (i == c.nodes.n-1 || c.nodes.at(i+1).fid().Seq > f.Seq) {
			report(ProblemSequence, uint64(f.Seq)+1, "the next sequence to hand out is %#x", uint64(c.nextSeq))
		}
		if l := c.large[uint32(i)]; l != nil {
			for name, found := range l.names {
				if !found {
					c.add(&Problem{Kind: ProblemXattr, FID: f, Name: name, Detail: fmt.Sprintf("the value of %q is not there", name),
						Settled: x.flags&nodeStable != 0})
				}
			}
		}
	}
}

type reportFunc func(kind ProblemKind, want uint64, format string, args ...any)

func (c *Checker) judgeNameless(x *node, report reportFunc) {
	orphan := x.flags&nodeOrphan != 0
	switch {
	case orphan && x.nlink > 0:
		report(ProblemNlink, 0, "it has no name and %d links", x.nlink)
	case !orphan && x.nlink > 0:
		report(ProblemLost, 0, "no entry leads to it, its record says %d links", x.nlink)
	case !orphan:
		report(ProblemOrphan, 1, "it is unlinked and no orphan record says so")
	}
}

func (c *Checker) judgeNamed(i int, x *node, report reportFunc) {
	f := x.fid()
	if x.flags&nodeOrphan != 0 {
		report(ProblemOrphan, 0, "an orphan record of an inode that has a name")
	}
	want := x.names
	if x.isDir() {
		if x.names > 1 {
			report(ProblemNames, 0, "a folder with %d names", x.names)
		}
		want = 2 + x.subdirs
	}
	if f == rootFID && !x.isDir() {
		report(ProblemRoot, 0, "the root is no folder")
		return
	}
	if x.nlink != want && !(x.isDir() && x.flags&nodeBlurred != 0) {
		report(ProblemNlink, uint64(want), "its record says %d links, there are %d", x.nlink, want)
	}
	stray := len(c.full[uint32(i)])
	if x.flags&nodeFull == 0 && x.links != 0 || stray > 0 {
		report(ProblemLinks, 0, "its parent links are not its names")
	}
}

func (c *Checker) judgeFolder(x *node, report reportFunc) {
	if !x.isDir() || x.flags&nodeBlurred != 0 {
		return
	}
	if x.entries != x.listed && (x.nlink > 0 || x.listed == 0) {
		report(ProblemEntries, uint64(x.listed), "it counts %d entries, there are %d", x.entries, x.listed)
	}
	if x.latest > x.content {
		report(ProblemStamp, 0, "an entry changed in %#x, its folder's content in %#x", x.latest, x.content)
	}
}

// circles walks from every folder to the root. Ways that meet what is reported, or what has changed meanwhile, end there.
func (c *Checker) circles() {
	var way []int
	for i := range c.nodes.n {
		way = way[:0]
		at := i
		for {
			x := c.nodes.at(at)
			if !x.isDir() || x.flags&(nodeBad|nodeSafe) != 0 || x.names == 0 {
				break
			}
			if x.flags&nodeWalked != 0 {
				c.circle(way, at)
				break
			}
			x.flags |= nodeWalked
			way = append(way, at)
			at = int(x.parent)
		}
		for _, w := range way {
			x := c.nodes.at(w)
			x.flags = x.flags&^nodeWalked | nodeSafe
		}
	}
}

// circle reports the circle that the end of a way makes with the folder at from, by the lowest FID in it.
func (c *Checker) circle(way []int, from int) {
	lowest, settled, count := from, true, 0
	for k := len(way) - 1; k >= 0; k-- {
		count++
		lowest = min(lowest, way[k])
		settled = settled && c.nodes.at(way[k]).flags&nodeStable != 0
		if way[k] == from {
			break
		}
	}
	c.add(&Problem{Kind: ProblemCircle, FID: c.nodes.at(lowest).fid(), Detail: fmt.Sprintf("%d folders are inside each other", count),
		Settled: settled})
}

// validName reports whether a name can be an entry's.
func validName(name []byte) bool {
	if len(name) > attr.NameMax || string(name) == "." || string(name) == ".." {
		return false
	}
	for _, b := range name {
		if b == '/' || b == 0 {
			return false
		}
	}
	return true
}

// isLater reports whether a record's first byte is that of a later version.
func isLater(v []byte, version byte) bool { return len(v) > 0 && v[0] > version }

// foundName is the name in lost+found of an inode that has lost its own.
func foundName(f fid.FID) []byte { return []byte(fmt.Sprintf("%#x:%#x", uint64(f.Seq), f.OID)) }
