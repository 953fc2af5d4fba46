package forgetfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// image is what one mount shows. It implements fuse.RawFileSystem.
type image struct {
	fuse.RawFileSystem // answers ENOSYS to what is not here
	backing            string

	mu      sync.Mutex
	dead    bool // the power is off: every request fails; guarded by mu
	root    *node
	nodes   map[uint64]*node // guarded by mu
	nextIno uint64           // guarded by mu
	nextFh  uint64           // guarded by mu
	dirs    map[uint64][]fuse.DirEntry
	seq     uint64
	pending []*change
	pruneAt int
	faults  []fault
	room    int64 // bytes left, negative when they are not bounded; guarded by mu
	syncs   uint64
}

// fault makes operations on files fail.
type fault struct {
	what  string // "fsync", "write", or "off": the power goes at the count-th fsync
	name  string // part of the file's name
	skip  int    // how many pass before
	count int    // how often; negative is for ever
}

// node is one file, folder or symbolic link. image.mu guards it.
type node struct {
	ino      uint64
	mode     uint32
	uid, gid uint32
	nlink    uint32 // names in the image; of a folder that is removed 0, else 1
	atime    time.Time
	mtime    time.Time
	ctime    time.Time
	target   string
	label    string // the last name it was given
	lookups  uint64
	opens    int

	// Of a folder.
	parent   *node
	entries  map[string]*node
	nameLast map[string]*change // last pending change of each name
	changes  []*change          // of names in it

	names []place // on the disk
	last  *change // last pending change of its names
	plain bool    // attributes on the disk are those of the image
	attrs map[string][]byte

	// Of a file. Bytes are those of pages, or zeros where hidden, or those of the backing file up to kept.
	size   int64
	kept   int64 // size of the backing file
	pages  map[int64]*page
	hidden spans // page numbers
	space  spans // bytes of fallocate to come
	file   *os.File
}

func (n *node) isDir() bool { return n.mode&unix.S_IFMT == unix.S_IFDIR }

// durable reports whether the node has a place in the backing folder.
func (n *node) durable() bool { return len(n.names) > 0 || n.file != nil || n.ino == fuse.FUSE_ROOT_ID }

// load reads a backing folder.
func load(backing string) (*image, error) {
	im := &image{
		RawFileSystem: fuse.NewDefaultRawFileSystem(), backing: backing, nodes: map[uint64]*node{}, nextIno: fuse.FUSE_ROOT_ID,
		dirs: map[uint64][]fuse.DirEntry{}, room: -1,
	}
	root, err := im.loadNode(nil, "", backing, map[uint64]*node{})
	if err != nil {
		return nil, fmt.Errorf("forgetfs: load: %w", err)
	}
	root.lookups = 1
	im.root = root
	return im, nil
}

// loadNode reads what is at path, and all below it. known are the files with several names, by inode number.
func (im *image) loadNode(parent *node, name, path string, known map[uint64]*node) (*node, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, err
	}
	if n := known[st.Ino]; n != nil && st.Nlink > 1 && !n.isDir() {
		n.nlink++
		n.names = append(n.names, place{parent, name})
		return n, nil
	}
	n := im.newNode(st.Mode, name)
	n.uid, n.gid, n.plain = st.Uid, st.Gid, true
	n.atime, n.mtime, n.ctime = stamp(st.Atim), stamp(st.Mtim), stamp(st.Ctim)
	n.size, n.kept, n.nlink = st.Size, st.Size, 1
	if parent != nil {
		n.names = []place{{parent, name}}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if st.Nlink > 1 {
			known[st.Ino] = n
		}
	case unix.S_IFLNK:
		var err error
		n.target, err = os.Readlink(path)
		return n, err
	case unix.S_IFDIR:
		n.parent, n.size, n.kept = parent, 0, 0
		list, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			child, err := im.loadNode(n, e.Name(), filepath.Join(path, e.Name()), known)
			if err != nil {
				return nil, err
			}
			n.entries[e.Name()] = child
		}
	}
	return n, nil
}

func stamp(t unix.Timespec) time.Time { return time.Unix(t.Unix()) }

func (im *image) newNode(mode uint32, label string) *node {
	now := time.Now()
	n := &node{ino: im.nextIno, mode: mode, nlink: 1, label: label, atime: now, mtime: now, ctime: now}
	if n.isDir() {
		n.entries, n.nameLast = map[string]*node{}, map[string]*change{}
	}
	im.nextIno++
	im.nodes[n.ino] = n
	return n
}

// failsLocked asks the faults, and uses one up.
func (im *image) failsLocked(what string, n *node) bool {
	for i := range im.faults {
		f := &im.faults[i]
		if f.what == what && f.count != 0 && strings.Contains(n.label, f.name) {
			if f.skip > 0 {
				f.skip--
				continue
			}
			f.count--
			return true
		}
	}
	return false
}

// offLocked counts a flush of a node, and reports whether the power goes at it.
func (im *image) offLocked(n *node) bool {
	for i := range im.faults {
		f := &im.faults[i]
		if f.what == "off" && f.count > 0 && strings.Contains(n.label, f.name) {
			f.count--
			im.dead = im.dead || f.count == 0
		}
	}
	return im.dead
}

// dropLocked lets go of a node that nobody uses and nothing names.
func (im *image) dropLocked(n *node) {
	if n.lookups > 0 || n.opens > 0 {
		return
	}
	if n.nlink == 0 {
		delete(im.nodes, n.ino)
	}
	if n.file != nil && (n.nlink == 0 || len(n.names) > 0) {
		_ = n.file.Close() // what was written to it is in the host's cache
		n.file = nil
	}
}
