package lov

import "github.com/strakefs/strake/fs/osc"

// How says how a Read or Write is done, and tells how it was.
type How struct {
	// Direct: O_DIRECT. Nothing of the call stays in a cache. It goes under a lock that is held already, or else under one that
	// the OST takes for as long as the request runs; a call on several objects takes locks, so that it is one.
	Direct bool
	// Paged: a READ of the kernel into pages that it keeps locked until the answer. It is served under a lock on its way back
	// too, whose Revoke waits for these pages, and while it waits for a lock nobody waits for its pages (osc.Kernel).
	Paged bool
	// Mapped: a WRITE of mapped pages. It never waits for a lock that waits for it (osc.Object.Lock), and is not atomic over
	// a stripe's edge.
	Mapped bool
	// Reader is the open file's reading, for read-ahead; nil is one that all such calls on the file share.
	Reader *Reader

	// Uncached is set by the call when the object is contended and no lock covers the bytes: the kernel must not keep pages of
	// the range. The caller drops them, from another goroutine than the one that answers the kernel, or answers with direct
	// I/O. Calls without a How never do that.
	Uncached bool
	told     bool // the caller looks at Uncached
}

// SetPages says who drops what the kernel caches of the set's files; nil: nobody has any.
func (s *Set) SetPages(p osc.Pages) { s.kernel.SetPages(p) }
