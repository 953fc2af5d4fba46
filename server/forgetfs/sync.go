package forgetfs

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// sync puts a node into the backing folder: its names if it has none there, the changes of names in it if it is a folder,
// its bytes and its attributes.
func (im *image) sync(n *node) error {
	im.syncs++
	if im.offLocked(n) {
		return unix.EIO
	}
	if im.failsLocked("fsync", n) {
		for _, pg := range n.pages {
			pg.lost = true
		}
		return unix.EIO
	}
	if !n.durable() {
		if err := im.persist(n.last); err != nil {
			return err
		}
	}
	if n.isDir() {
		if err := im.persist(n.changes...); err != nil {
			return err
		}
		n.changes = nil
	}
	if n.mode&unix.S_IFMT == unix.S_IFREG && !n.clean() {
		if err := n.flush(im); err != nil {
			return fmt.Errorf("forgetfs: backing file: %w", err)
		}
	}
	return n.flushAttributes(im)
}

// flush writes the bytes of a file and its size.
func (n *node) flush(im *image) error {
	f, err := n.backingFile(im)
	if err != nil {
		return err
	}
	for _, h := range n.hidden {
		if err := n.flushHidden(f, h); err != nil {
			return err
		}
	}
	if err := n.flushPages(f); err != nil {
		return err
	}
	for _, s := range n.space {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, s.start, s.end-s.start)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
	}
	if err := f.Truncate(n.size); err != nil {
		return err
	}
	n.hidden, n.space, n.kept = nil, nil, n.size
	return nil
}

// flushHidden makes pages of the backing file zeros, or cuts them off.
func (n *node) flushHidden(f *os.File, h span) error {
	start := h.start * pageBytes
	if start >= n.kept {
		return nil
	}
	if h.end == endless {
		n.kept = start
		return f.Truncate(start)
	}
	length := min(h.end*pageBytes, n.kept) - start
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, start, length)
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = f.WriteAt(make([]byte, length), start)
	}
	return err
}

// flushPages writes the pages, neighbours together.
func (n *node) flushPages(f *os.File) error {
	const most = 256
	var run []byte
	for _, p := range slices.Sorted(maps.Keys(n.pages)) {
		pg := n.pages[p]
		if pg.lost {
			continue
		}
		run = append(run, pg.b[:]...)
		next := n.pages[p+1]
		if next != nil && !next.lost && len(run) < most*pageBytes {
			continue
		}
		if _, err := f.WriteAt(run, (p+1)*pageBytes-int64(len(run))); err != nil {
			return err
		}
		run = run[:0]
	}
	maps.DeleteFunc(n.pages, func(_ int64, pg *page) bool { return !pg.lost })
	return nil
}

// flushAttributes gives the backing file the mode, owner, times and extended attributes of the node.
func (n *node) flushAttributes(im *image) error {
	if n.plain || len(n.names) == 0 && n != im.root {
		return nil
	}
	path := im.backing
	if n != im.root {
		path = im.path(n.names[0])
	}
	if err := os.Lchown(path, int(n.uid), int(n.gid)); err != nil {
		return err
	}
	if n.mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(path, n.mode&0o7777); err != nil {
			return err
		}
	}
	if err := n.flushXattrs(path); err != nil {
		return err
	}
	at, _ := unix.TimeToTimespec(n.atime)
	mt, _ := unix.TimeToTimespec(n.mtime)
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{at, mt}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	n.plain = true
	return nil
}

// flushXattrs makes the extended attributes of the backing file those of the node, if it has read them.
func (n *node) flushXattrs(path string) error {
	if n.attrs == nil {
		return nil
	}
	old, err := readXattrs(path)
	if err != nil {
		return err
	}
	for name, value := range n.attrs {
		if err := unix.Lsetxattr(path, name, value, 0); err != nil {
			return err
		}
	}
	for name := range old {
		if _, ok := n.attrs[name]; !ok {
			if err := unix.Lremovexattr(path, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// tear puts a random part of what is pending into the backing folder. grain is the piece of a file that is written whole
// or not at all.
func (im *image) tear(rnd *rand.Rand, grain int) error {
	for _, c := range im.pending {
		if !c.done && rnd.IntN(2) == 0 {
			if err := im.persist(c); err != nil {
				return err
			}
		}
	}
	for _, ino := range slices.Sorted(maps.Keys(im.nodes)) { // in one order, so that a seed tears the same way again
		n := im.nodes[ino]
		if n.mode&unix.S_IFMT != unix.S_IFREG || !n.durable() || n.clean() {
			continue
		}
		if err := n.tear(im, rnd, grain); err != nil {
			return err
		}
	}
	return nil
}

// tear puts a random part of a file's bytes into the backing file.
func (n *node) tear(im *image, rnd *rand.Rand, grain int) error {
	size := n.size
	if lo, hi := min(n.size, n.kept), max(n.size, n.kept); lo < hi {
		size = []int64{n.size, n.kept, lo + rnd.Int64N(hi-lo)}[rnd.IntN(3)]
	}
	f, err := n.backingFile(im)
	if err != nil {
		return err
	}
	for _, h := range n.hidden {
		if rnd.IntN(2) == 0 {
			if err := n.flushHidden(f, h); err != nil {
				return err
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(n.pages)) {
		kind := rnd.IntN(3)
		pg := n.pages[p]
		if kind == 0 || pg.lost {
			continue
		}
		for at := 0; at < pageBytes; at += grain {
			if kind == 1 && rnd.IntN(2) == 0 {
				continue
			}
			if _, err := f.WriteAt(pg.b[at:at+grain], p*pageBytes+int64(at)); err != nil {
				return err
			}
		}
	}
	return f.Truncate(size)
}

// flushAll puts everything into the backing folder, as sync(2) does.
func (im *image) flushAll() error {
	if err := im.persist(im.pending...); err != nil {
		return err
	}
	for _, n := range im.nodes {
		if n.durable() {
			if err := im.sync(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// touch notes that attributes have changed.
func (n *node) touch() { n.ctime, n.plain = time.Now(), false }
