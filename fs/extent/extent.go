// Package extent holds half-open byte ranges [Start, End) and sets of them.
package extent

// EOF as an End means "to the end of the file, wherever that is".
const EOF = ^uint64(0)

// Extent is the byte range [Start, End).
type Extent struct {
	Start, End uint64
}

// Len is the number of bytes.
func (e Extent) Len() uint64 { return e.End - e.Start }

// Empty reports whether no byte is in e.
func (e Extent) Empty() bool { return e.End <= e.Start }

// Overlaps reports whether a byte is in both.
func (e Extent) Overlaps(f Extent) bool { return e.Start < f.End && f.Start < e.End }

// Contains reports whether every byte of f is in e.
func (e Extent) Contains(f Extent) bool { return e.Start <= f.Start && f.End <= e.End }

// Intersect gives the bytes in both; it may be Empty.
func (e Extent) Intersect(f Extent) Extent {
	return Extent{Start: max(e.Start, f.Start), End: min(e.End, f.End)}
}
