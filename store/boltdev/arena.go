package boltdev

import "sync/atomic"

// Sizes of the pieces that a layer takes its memory in. One piece serves some hundred operations, so that a publish
// allocates nothing but once in a while; pieces much larger would make the first operation of a quiet device clear
// them for nothing.
const (
	chunkBytes    = 64 << 10
	entriesPiece  = 256
	versionsPiece = 256
	linksPiece    = 512
)

// arena is the memory of one layer. It is written under Device.mu, never given back piece by piece: the garbage
// collector takes it whole when the last reader has let go of the layer.
type arena struct {
	chunk    []byte
	entries  []entry
	versions []version
	links    []atomic.Pointer[entry]
	used     int64 // bytes taken, the bound that back-pressure works with
}

// bytes returns n bytes.
func (a *arena) bytes(n int) []byte {
	a.used += int64(n)
	if n == 0 {
		return []byte{} // an empty value is a value
	}
	if n > len(a.chunk) {
		if n > chunkBytes/4 {
			return make([]byte, n)
		}
		a.chunk = make([]byte, chunkBytes)
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
		a.entries = make([]entry, entriesPiece)
	}
	if len(a.links) < height {
		a.links = make([]atomic.Pointer[entry], linksPiece)
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
		a.versions = make([]version, versionsPiece)
	}
	v := &a.versions[0]
	a.versions = a.versions[1:]
	a.used += versionBytes
	return v
}
