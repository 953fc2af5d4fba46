package boltdev

import "sync/atomic"

// A layer takes its memory in pieces that double, so that the many operations of a busy txg allocate nothing but once in
// a while, and the one operation of a txg that an fsync commits does not pay for thousands.
const (
	minChunkBytes, maxChunkBytes = 4 << 10, 256 << 10
	minPiece, maxPiece           = 8, 512 // entries, versions; links are twice as many
)

// arena is the memory of one layer. It is written under Device.mu, never given back piece by piece: the garbage
// collector takes it whole when the last reader has let go of the layer.
type arena struct {
	chunk    []byte
	entries  []entry
	versions []version
	links    []atomic.Pointer[entry]
	used     int64 // bytes taken, the bound that back-pressure works with

	chunkBytes, entryPiece, versionPiece, linkPiece int // the sizes of the last pieces
}

// grow doubles a size between two bounds and returns it.
func grow(size *int, low, high int) int {
	*size = min(max(2**size, low), high)
	return *size
}

// bytes returns n bytes.
func (a *arena) bytes(n int) []byte {
	a.used += int64(n)
	if n == 0 {
		return []byte{} // an empty value is a value
	}
	if n > len(a.chunk) {
		grow(&a.chunkBytes, minChunkBytes, maxChunkBytes)
		if n > a.chunkBytes/4 {
			return make([]byte, n)
		}
		a.chunk = make([]byte, a.chunkBytes)
	}
	b := a.chunk[:n:n]
	a.chunk = a.chunk[n:]
	return b
}

// keep returns a copy of b.
func (a *arena) keep(b []byte) []byte {
	c := a.bytes(len(b))
	copy(c, b)
	return c
}

// entry returns an entry with height links.
func (a *arena) entry(height int) *entry {
	if len(a.entries) == 0 {
		a.entries = make([]entry, grow(&a.entryPiece, minPiece, maxPiece))
	}
	if len(a.links) < height {
		a.links = make([]atomic.Pointer[entry], grow(&a.linkPiece, 2*minPiece, 2*maxPiece))
	}
	e := &a.entries[0]
	e.next = a.links[:height:height]
	a.entries, a.links = a.entries[1:], a.links[height:]
	a.used += entryBytes + int64(height)*8
	return e
}

// version returns an empty version.
func (a *arena) version() *version {
	if len(a.versions) == 0 {
		a.versions = make([]version, grow(&a.versionPiece, minPiece, maxPiece))
	}
	v := &a.versions[0]
	a.versions = a.versions[1:]
	a.used += versionBytes
	return v
}
