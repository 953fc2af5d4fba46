package boltdev

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// A meta page of bbolt, little-endian: page header of 16 bytes, magic 4, version 4, page size 4, flags 4, root page 8,
// root sequence 8, freelist page 8, page count 8, transaction 8, FNV-1a checksum of what stands before it, 8.
const (
	metaOffset = 16
	metaSize   = 64
	metaMagic  = 0xED0CDAED
	noFreelist = ^uint64(0)
)

// meta is what a valid meta page says.
type meta struct {
	pageSize, root, freelist, pages, txid uint64
}

// parseMeta reads a meta page; ok is false if it is not valid.
func parseMeta(page []byte) (m meta, ok bool) {
	b := page[metaOffset : metaOffset+metaSize]
	le := binary.LittleEndian
	sum := fnv.New64a()
	_, _ = sum.Write(b[:56]) // a hash does not fail
	m = meta{
		pageSize: uint64(le.Uint32(b[8:])), root: le.Uint64(b[16:]), freelist: le.Uint64(b[32:]),
		pages: le.Uint64(b[40:]), txid: le.Uint64(b[48:]),
	}
	return m, le.Uint32(b) == metaMagic && le.Uint32(b[4:]) == 2 && le.Uint64(b[56:]) == sum.Sum64()
}

// checkFile looks at the meta pages and the size of a database before bbolt maps it: a page behind the end of the file
// would fault. It reads only. Its errors wrap ErrCorrupt.
func checkFile(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: %s is not a file", ErrCorrupt, path)
	}
	m, err := readMeta(path)
	if err != nil {
		return err
	}
	return m.check(path, uint64(info.Size()))
}

// readMeta returns the newer of the valid meta pages.
func readMeta(path string) (best meta, err error) {
	f, err := os.Open(path)
	if err != nil {
		return best, err
	}
	defer f.Close()
	pageSize := boltOptions().PageSize
	page := make([]byte, pageSize)
	found := false
	for i := range int64(2) {
		if _, err := f.ReadAt(page, i*int64(pageSize)); err == io.EOF {
			return best, fmt.Errorf("%w: %s is truncated", ErrCorrupt, path)
		} else if err != nil {
			return best, err
		}
		if m, ok := parseMeta(page); ok && (!found || m.txid > best.txid) {
			best, found = m, true
		}
	}
	if !found {
		return best, fmt.Errorf("%w: %s has no valid meta page", ErrCorrupt, path)
	}
	return best, nil
}

// check compares a meta page with the file's size.
func (m meta) check(path string, size uint64) error {
	pageSize := uint64(boltOptions().PageSize)
	switch {
	case m.pageSize != pageSize:
		return fmt.Errorf("%w: %s has pages of %d bytes, want %d", ErrCorrupt, path, m.pageSize, pageSize)
	case m.pages > size/pageSize:
		return fmt.Errorf("%w: %s is truncated to %d bytes, its pages need %d", ErrCorrupt, path, size, m.pages*pageSize)
	case m.root >= m.pages || m.freelist != noFreelist && m.freelist >= m.pages:
		return fmt.Errorf("%w: %s has a meta page that points outside", ErrCorrupt, path)
	}
	return nil
}
