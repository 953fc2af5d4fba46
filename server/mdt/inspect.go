package mdt

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// Link is a name of an inode: in which folder, and which.
type Link struct {
	Folder fid.FID
	Name   string
}

// Stamp says which transaction changed something last, and for which client.
type Stamp struct {
	Transno store.Transno
	Client  uint64
}

// Inode is an inode's record as it is shown to people. Size of a folder is that of stat(2).
type Inode struct {
	attr.Attr
	Entries                                       uint64
	NoLink, MtimeSet, Tmpfile, Written            bool
	Own, Content                                  Stamp
	Layout, Default                               *layout.Layout // nil without
	Symlink                                       string
	ACLBytes, DefaultACLBytes, LinksBytes, XBytes int
	Links                                         []Link
	Xattrs                                        []Xattr
}

// Xattr is an extended attribute; the value of a large one is in a table of its own.
type Xattr struct {
	Name  string
	Size  uint64
	Large bool
	Value string
}

// DecodeInode reads an inode's record.
func DecodeInode(k, v []byte) (*Inode, error) {
	f, err := inodeKey(k)
	if err != nil {
		return nil, err
	}
	var n inode
	if err := n.decode(f, v); err != nil {
		return nil, err
	}
	c := NewChecker(CheckOptions{})
	if err := c.sections(&n); err != nil {
		return nil, err
	}
	x := &Inode{
		Attr: n.Attr, Entries: n.entries, NoLink: n.flags&recNoLink != 0, MtimeSet: n.flags&recMtimeSet != 0,
		Tmpfile: n.flags&recTmpfile != 0, Written: n.flags&recWritten != 0, Own: Stamp{n.own.transno, n.own.client},
		Content: Stamp{n.content.transno, n.content.client}, Symlink: string(n.sec[secSymlink]),
		ACLBytes: len(n.sec[secACL]), DefaultACLBytes: len(n.sec[secDefaultACL]),
		LinksBytes: len(n.sec[secLinks]), XBytes: len(n.sec[secXattrs]),
	}
	for s, to := range map[int]**layout.Layout{secLayout: &x.Layout, secDefault: &x.Default} {
		if len(n.sec[s]) > 0 {
			*to = &layout.Layout{}
			if err := (*to).Decode(n.sec[s]); err != nil {
				return nil, err
			}
		}
	}
	for rest := n.sec[secLinks]; len(rest) > 0; {
		l, next, _, err := nextLink(rest)
		if err != nil {
			return nil, err
		}
		x.Links, rest = append(x.Links, Link{l.folder, string(l.name)}), next
	}
	for rest := n.sec[secXattrs]; len(rest) > 0; {
		a, next, err := nextXattr(rest)
		if err != nil {
			return nil, err
		}
		x.Xattrs, rest = append(x.Xattrs, Xattr{string(a.name), a.size, a.large, string(a.value)}), next
	}
	return x, nil
}

// Entry is a folder's entry as it is shown to people. One without a name keeps the place of ordinal 0.
type Entry struct {
	Folder, Child fid.FID
	Name          string
	Cookie        uint64
	Type          uint8 // d_type
	Run           bool
	Stamp         Stamp
}

// DecodeEntry reads an entry's record.
func DecodeEntry(k, v []byte) (Entry, error) {
	var d dirent
	if err := d.decode(k, v); err != nil {
		return Entry{}, err
	}
	folder, err := fid.FromKey(k)
	return Entry{folder, d.child, string(d.name), d.cookie, d.kind, d.run, Stamp{d.stamp.transno, d.stamp.client}}, err
}

// EntryKey is where the entries of a folder begin.
func EntryKey(folder fid.FID) []byte { return appendDirentKey(nil, folder, 0) }

// Find looks a path up, from the root, by the entries' records; key is that of the hash of names.
func Find(ctx context.Context, r target.Records, t Tables, key []byte, path string) (fid.FID, error) {
	at := rootFID
	if len(key) != 16 {
		return at, fmt.Errorf("mdt: the key of names has %d bytes, want 16", len(key))
	}
	hash := hashKeyOf(key)
	for _, name := range strings.Split(path, "/") {
		if name == "" || name == "." {
			continue
		}
		h := hash.name([]byte(name))
		found := fid.FID{}
		err := r.Scan(ctx, t.Dirent, appendDirentKey(nil, at, h.cookie(0)), func(k, v []byte) bool {
			var d dirent
			if !bytes.HasPrefix(k, at.AppendKey(nil)) || d.decode(k, v) != nil || d.cookie/ordinals != uint64(h) {
				return false
			}
			if string(d.name) == name {
				found = d.child
			}
			return found.IsZero()
		})
		if err != nil {
			return at, err
		}
		if found.IsZero() {
			return at, fmt.Errorf("mdt: no %q in %v: %w", name, at, store.ErrNotFound)
		}
		at = found
	}
	return at, nil
}

// pathDepth bounds the folders of a path: in a circle there is no end.
const pathDepth = 4096

// PathOf gives a path of an inode by the parent links, and false when they do not lead to the root: then it begins with the FID
// where they end.
func PathOf(ctx context.Context, r target.Records, t Tables, f fid.FID) (string, bool) {
	var names []string
	for range pathDepth {
		if f == rootFID {
			slices.Reverse(names)
			return "/" + strings.Join(names, "/"), true
		}
		v, err := r.Get(ctx, t.Inode, f.AppendKey(nil))
		if err != nil {
			break
		}
		var n inode
		if n.decode(f, v) != nil {
			break
		}
		l, ok := n.parent()
		if !ok {
			break
		}
		names, f = append(names, string(l.name)), l.folder
	}
	names = append(names, f.String())
	slices.Reverse(names)
	return strings.Join(names, "/"), false
}

// DecodeSequence reads a sequence's record: whose it is, and the highest id in use. Key 0 holds the next sequence.
func DecodeSequence(k, v []byte) (seq fid.Seq, uuid [16]byte, high uint32, err error) {
	c := NewChecker(CheckOptions{})
	c.sequence(k, v)
	if len(c.found) > 0 {
		return 0, uuid, 0, fmt.Errorf("%s", c.found[0].Detail)
	}
	for s, u := range c.uses {
		return s, [16]byte(v[8:24]), u.high, nil
	}
	return c.nextSeq, uuid, 0, nil
}
