package forgetfs

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const pageBytes = 4096

// page is 4 KiB of a file that the disk does not have.
type page struct {
	b    [pageBytes]byte
	lost bool // an fsync failed: it is readable, and will not be written
}

// backingFile is the open file in the backing folder. It stays open while the node is.
func (n *node) backingFile(im *image) (*os.File, error) {
	if n.file != nil {
		return n.file, nil
	}
	f, err := os.OpenFile(im.path(n.names[0]), os.O_RDWR, 0)
	n.file = f
	return f, err
}

// clean reports whether the disk has the bytes and the size.
func (n *node) clean() bool {
	return len(n.pages) == 0 && len(n.hidden) == 0 && len(n.space) == 0 && n.size == n.kept && n.durable()
}

// read fills b with the bytes at off and returns how many there are.
func (n *node) read(im *image, b []byte, off int64) (int, error) {
	if off >= n.size {
		return 0, nil
	}
	b = b[:min(int64(len(b)), n.size-off)]
	if err := n.readBacking(im, b, off); err != nil {
		return 0, err
	}
	if len(n.hidden) == 0 && len(n.pages) == 0 {
		return len(b), nil
	}
	for at := off; at < off+int64(len(b)); {
		p := at / pageBytes
		end := min((p+1)*pageBytes, off+int64(len(b)))
		part := b[at-off : end-off]
		if pg := n.pages[p]; pg != nil {
			copy(part, pg.b[at-p*pageBytes:])
		} else if n.hidden.has(p) {
			clear(part)
		}
		at = end
	}
	return len(b), nil
}

// readBacking reads what the disk has; behind its end are zeros.
func (n *node) readBacking(im *image, b []byte, off int64) error {
	k := 0
	if off < n.kept && n.durable() {
		f, err := n.backingFile(im)
		if err != nil {
			return err
		}
		k, err = f.ReadAt(b[:min(int64(len(b)), n.kept-off)], off)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	clear(b[k:])
	return nil
}

// page returns the page to write to, with the bytes it has; whole says that all of them will be replaced.
func (n *node) page(im *image, p int64, whole bool) (*page, error) {
	if pg := n.pages[p]; pg != nil {
		pg.lost = false
		return pg, nil
	}
	if im.room >= 0 && !n.placed(im, p) {
		if im.room < pageBytes {
			return nil, unix.ENOSPC
		}
		im.room -= pageBytes
	}
	pg := &page{}
	if !whole && !n.hidden.has(p) {
		if err := n.readBacking(im, pg.b[:], p*pageBytes); err != nil {
			return nil, err
		}
		if over := n.size - p*pageBytes; over < pageBytes {
			clear(pg.b[max(over, 0):])
		}
	}
	if n.pages == nil {
		n.pages = map[int64]*page{}
	}
	n.pages[p] = pg
	return pg, nil
}

// placed reports whether a page has its place on the disk.
func (n *node) placed(im *image, p int64) bool {
	if p*pageBytes >= n.kept || n.hidden.has(p) || !n.durable() {
		return false
	}
	f, err := n.backingFile(im)
	if err != nil {
		return false
	}
	at, err := unix.Seek(int(f.Fd()), p*pageBytes, unix.SEEK_DATA)
	return err == nil && at == p*pageBytes
}

// write writes b at off. It returns how many bytes it has written before an error.
func (n *node) write(im *image, b []byte, off int64) (int, error) {
	done := 0
	for done < len(b) {
		at := off + int64(done)
		p := at / pageBytes
		k := int(min((p+1)*pageBytes-at, int64(len(b)-done)))
		pg, err := n.page(im, p, k == pageBytes)
		if err != nil {
			return done, err
		}
		copy(pg.b[at-p*pageBytes:], b[done:done+k])
		done += k
		n.size = max(n.size, at+int64(k))
	}
	n.mtime = time.Now()
	n.ctime, n.plain = n.mtime, false
	return done, nil
}

// truncate changes the size.
func (n *node) truncate(im *image, size int64) error {
	if size < n.size {
		if tail := size % pageBytes; tail != 0 {
			pg, err := n.page(im, size/pageBytes, false)
			if err != nil {
				return err
			}
			clear(pg.b[tail:])
		}
		first := (size + pageBytes - 1) / pageBytes
		n.hide(im, first, endless)
	}
	n.size = size
	n.mtime = time.Now()
	n.ctime, n.plain = n.mtime, false
	return nil
}

// hide makes whole pages zeros.
func (n *node) hide(im *image, start, end int64) {
	for p := range n.pages {
		if p >= start && p < end {
			delete(n.pages, p)
			if im.room >= 0 {
				im.room += pageBytes
			}
		}
	}
	n.hidden.add(start, end)
}

// zero makes a range zeros, up to the size.
func (n *node) zero(im *image, start, end int64) error {
	end = min(end, n.size)
	if start >= end {
		return nil
	}
	first, last := (start+pageBytes-1)/pageBytes, end/pageBytes
	if end == n.size {
		last = (end + pageBytes - 1) / pageBytes // what is behind the size is zeros already
	}
	parts := []span{{start, min(first*pageBytes, end)}, {max(last*pageBytes, start), end}}
	if first > last {
		parts = []span{{start, end}}
	}
	for _, part := range parts {
		p := part.start / pageBytes
		if part.start >= part.end || n.pages[p] == nil && (n.hidden.has(p) || p*pageBytes >= n.kept) {
			continue
		}
		pg, err := n.page(im, p, false)
		if err != nil {
			return err
		}
		clear(pg.b[part.start-p*pageBytes : part.end-p*pageBytes])
	}
	if first < last {
		n.hide(im, first, last)
	}
	n.mtime = time.Now()
	n.ctime, n.plain = n.mtime, false
	return nil
}

// fallocate implements fallocate(2) for modes 0, KEEP_SIZE, PUNCH_HOLE and ZERO_RANGE.
func (n *node) fallocate(im *image, mode uint32, off, length int64) error {
	end := off + length
	switch mode {
	case unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE:
		return n.zero(im, off, end)
	case unix.FALLOC_FL_ZERO_RANGE, unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE:
		if err := n.zero(im, off, end); err != nil {
			return err
		}
	case 0, unix.FALLOC_FL_KEEP_SIZE:
	default:
		return unix.EOPNOTSUPP
	}
	if im.room >= 0 && im.room < length {
		return unix.ENOSPC
	}
	n.space.add(off, end)
	if mode&unix.FALLOC_FL_KEEP_SIZE == 0 {
		n.size = max(n.size, end)
	}
	return nil
}

// blocks are the 512-byte blocks in use: those of the disk and of the pages that lie behind its size.
func (n *node) blocks(im *image) uint64 {
	var count uint64
	if n.kept > 0 && n.durable() {
		if f, err := n.backingFile(im); err == nil {
			var st unix.Stat_t
			if unix.Fstat(int(f.Fd()), &st) == nil {
				count = uint64(st.Blocks)
			}
		}
	}
	for p := range n.pages {
		if p*pageBytes >= n.kept {
			count += pageBytes / 512
		}
	}
	return count
}

// seek finds the next data (or hole) at or behind off; ENXIO behind the end.
func (n *node) seek(im *image, off int64, hole bool) (int64, error) {
	for off < n.size {
		next, data, err := n.stretch(im, off)
		if err != nil {
			return 0, err
		}
		if data != hole {
			return off, nil
		}
		off = next
	}
	if hole && off == n.size {
		return off, nil
	}
	return 0, unix.ENXIO
}

// stretch tells whether off is in data, and where the next page begins that may differ.
func (n *node) stretch(im *image, off int64) (next int64, data bool, err error) {
	p := off / pageBytes
	next = min((p+1)*pageBytes, n.size)
	if n.pages[p] != nil {
		return next, true, nil
	}
	if n.hidden.has(p) || off >= n.kept || !n.durable() {
		return n.nextPage(p), false, nil
	}
	f, err := n.backingFile(im)
	if err != nil {
		return 0, false, err
	}
	at, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return n.nextPage(p), false, nil
	}
	return next, at/pageBytes == p, err
}

// nextPage is where the next page begins behind p that pages has, or the next one that the disk may have.
func (n *node) nextPage(p int64) int64 {
	if (p+1)*pageBytes < n.kept {
		return (p + 1) * pageBytes
	}
	next := n.size
	for q := range n.pages {
		if q > p {
			next = min(next, q*pageBytes)
		}
	}
	return next
}
