package mdt

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
)

// entryWalk is where the scan of the entries stands: in which folder, and in which run of one hash.
type entryWalk struct {
	c      *Checker
	folder fid.FID
	begun  bool
	at     int // index of the folder, -1 without one
	listed uint64
	sub    uint64

	hash  uint64
	first bool // ordinal 0 of the run is there and says that there are more
	names [][]byte
}

// Names goes over all that speaks of inodes: entries, orphans, xattrs, sequences. Inodes comes before.
func (c *Checker) Names(ctx context.Context) error {
	t := &c.o.Tables
	for _, s := range [...]struct {
		table store.Table
		what  string
		fn    func(k, v []byte) bool
	}{
		{t.Dirent, "entries", c.walk.entry}, {t.Orphan, "orphans", c.orphan}, {t.Xattr, "xattrs", c.xattr}, {t.Sequence, "sequences", c.sequence},
	} {
		if err := c.o.Records.Scan(ctx, s.table, nil, s.fn); err != nil {
			return fmt.Errorf("mdt: check: %s: %w", s.what, err)
		}
		if s.table == t.Dirent {
			c.walk.endFolder()
		}
	}
	return nil
}

// entry takes one record of the entries' table.
func (w *entryWalk) entry(k, v []byte) bool {
	c := w.c
	var d dirent
	err := d.decode(k, v)
	folder, bad := fid.FromKey(k)
	if bad == nil && (!w.begun || folder != w.folder) {
		w.endFolder()
		w.beginFolder(folder)
	}
	if err != nil {
		c.bad(c.o.Tables.Dirent, k, fid.FID{}, err)
		if bad == nil && w.at >= 0 {
			c.nodes.at(w.at).flags |= nodeBlurred
		}
		return true
	}
	report := func(kind ProblemKind, format string, args ...any) {
		c.add(&Problem{Kind: kind, Folder: folder, Name: string(d.name), Cookie: d.cookie, FID: d.child,
			Detail: fmt.Sprintf(format, args...), Settled: true})
	}
	ordinal := d.cookie % ordinals
	if hash := d.cookie / ordinals; hash != w.hash {
		w.hash, w.first, w.names = hash, false, w.names[:0]
	}
	if ordinal == 0 {
		w.first = d.run
	}
	if len(d.name) == 0 {
		if ordinal != 0 {
			report(ProblemEntry, "an entry without a name")
		}
		return true
	}
	w.listed++
	w.place(&d, report)
	w.child(&d, report)
	return true
}

// place checks that a lookup finds the entry, and only this one.
func (w *entryWalk) place(d *dirent, report func(ProblemKind, string, ...any)) {
	for _, name := range w.names {
		if bytes.Equal(name, d.name) {
			report(ProblemEntry, "the name is in the folder twice")
			return
		}
	}
	w.names = append(w.names, bytes.Clone(d.name))
	switch {
	case !validName(d.name):
		report(ProblemEntry, "no name can be so")
	case w.c.key != nil && uint64(w.c.key.name(d.name)) != d.cookie/ordinals:
		report(ProblemPlace, "it stands at hash %#x, its name's is %#x", d.cookie/ordinals, uint64(w.c.key.name(d.name)))
	case d.cookie%ordinals != 0 && !w.first:
		report(ProblemPlace, "nothing at ordinal 0 says that its hash has more")
	}
}

// child checks the inode that the entry leads to, and counts the name.
func (w *entryWalk) child(d *dirent, report func(ProblemKind, string, ...any)) {
	c := w.c
	isDir := uint32(d.kind) == attr.DirentType(attr.TypeDir)
	i := c.find(d.child)
	switch {
	case i < 0:
		report(ProblemDangling, "there is no inode")
	case d.child == rootFID:
		report(ProblemEntry, "it leads to the root")
	default:
		x := c.nodes.at(i)
		if x.flags&nodeBad != 0 {
			break
		}
		isDir = x.isDir()
		if x.kind != d.kind {
			report(ProblemEntryType, "its type is %d, the inode's %d", d.kind, x.kind)
		}
		x.names++
		if x.isDir() && x.names == 1 {
			x.parent = uint32(max(w.at, 0)) // Of a folder that is not there: it is reported, and the way ends well at any.
			if w.at < 0 {
				x.parent = uint32(i)
				x.flags |= nodeSafe
			}
		}
		h := c.nameSum(w.folder, d.name)
		if x.flags&nodeFull == 0 {
			x.links += h
		} else {
			delete(c.full[uint32(i)], h)
		}
	}
	if isDir {
		w.sub++
	}
	if w.at >= 0 {
		p := c.nodes.at(w.at)
		p.latest = max(p.latest, uint64(d.stamp.transno))
	}
}

func (w *entryWalk) beginFolder(f fid.FID) {
	w.folder, w.begun, w.at = f, true, w.c.find(f)
	w.listed, w.sub, w.hash, w.first, w.names = 0, 0, 0, false, w.names[:0]
}

// endFolder closes the counts of a folder.
func (w *entryWalk) endFolder() {
	c := w.c
	if !w.begun || w.listed == 0 {
		return
	}
	if w.at < 0 {
		kind := ProblemNoFolder
		if !w.folder.IsFile() || w.folder == rootFID {
			kind = ProblemNotFolder
		}
		c.missing[w.folder] = true
		c.add(&Problem{Kind: kind, FID: w.folder, want: w.listed, subdirs: w.sub, Settled: true,
			Detail: fmt.Sprintf("%d entries of a folder that is not there", w.listed)})
		return
	}
	x := c.nodes.at(w.at)
	if x.flags&nodeBad != 0 {
		return
	}
	x.listed, x.subdirs = uint32(w.listed), uint32(w.sub)
	if !x.isDir() || x.nlink == 0 {
		c.add(&Problem{Kind: ProblemNotFolder, FID: w.folder, Settled: true,
			Detail: fmt.Sprintf("%d entries of what is no folder, or was removed", w.listed)})
		x.flags |= nodeBlurred
	}
}

func (c *Checker) orphan(k, v []byte) bool {
	f, err := inodeKey(k)
	if err == nil && (len(v) != 1 || v[0] != orphanVersion) {
		err = fmt.Errorf("%w: orphan %v of %d bytes", errFormat, f, len(v))
	}
	if err != nil {
		c.bad(c.o.Tables.Orphan, k, fid.FID{}, err)
		return true
	}
	if i := c.find(f); i >= 0 {
		c.nodes.at(i).flags |= nodeOrphan
		return true
	}
	c.add(&Problem{Kind: ProblemOrphan, FID: f, Detail: "an orphan record of an inode that is not there", Settled: true})
	return true
}

func (c *Checker) xattr(k, _ []byte) bool {
	f, err := fid.FromKey(k)
	if err == nil && len(k) == fid.KeySize {
		err = fmt.Errorf("%w: an xattr without a name", errFormat)
	}
	if err != nil {
		c.bad(c.o.Tables.Xattr, k, fid.FID{}, err)
		return true
	}
	name := string(k[fid.KeySize:])
	i := c.find(f)
	if i >= 0 && c.nodes.at(i).flags&nodeBad != 0 {
		return true
	}
	if i >= 0 && c.large[uint32(i)] != nil {
		if _, ok := c.large[uint32(i)].names[name]; ok {
			c.large[uint32(i)].names[name] = true
			return true
		}
	}
	c.add(&Problem{Kind: ProblemXattr, FID: f, Table: c.o.Tables.Xattr, RecordKey: string(k), Settled: true,
		Detail: fmt.Sprintf("a value of %q that no inode has", name)})
	return true
}

func (c *Checker) sequence(k, v []byte) bool {
	if len(k) != 8 || len(v) < 16 || v[0] != seqVersion {
		c.bad(c.o.Tables.Sequence, k, fid.FID{}, fmt.Errorf("%w: sequence of %d and %d bytes", errFormat, len(k), len(v)))
		return true
	}
	seq := fid.Seq(binary.BigEndian.Uint64(k))
	if seq == 0 {
		c.nextSeq = max(c.nextSeq, fid.Seq(binary.BigEndian.Uint64(v[8:])))
		return true
	}
	if len(v) < seqAtUse+useMin || len(v) > seqAtUse+useMax {
		c.bad(c.o.Tables.Sequence, k, fid.FID{}, fmt.Errorf("%w: sequence %#x of %d bytes", errFormat, uint64(seq), len(v)))
		return true
	}
	u := &use{}
	u.decode(v[seqAtUse:])
	c.uses[seq] = u
	c.nextSeq = max(c.nextSeq, seq+1)
	return true
}
