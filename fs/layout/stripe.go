package layout

import "github.com/strakefs/strake/fs/extent"

// Chunk is a run of a file's bytes that lies in one object without a break.
type Chunk struct {
	Component *Component
	Stripe    StripeIndex
	// FileOffset and ObjectOffset say where the run starts in the file and in the object; Len is in bytes.
	FileOffset   uint64
	ObjectOffset uint64
	Len          uint64
}

// Chunks calls fn for each chunk of [off, off+n) in file order until fn returns false. It stops before a byte that no
// initialised component covers and returns how many bytes it has covered.
func (l *Layout) Chunks(off, n uint64, fn func(Chunk) bool) uint64 {
	end := off + n
	pos := off
	for pos < end {
		c := l.At(pos)
		if c == nil || len(c.Stripes) == 0 {
			return pos - off
		}
		s, obj := c.Locate(pos)
		length := min(c.StripeSize-pos%c.StripeSize, end-pos, c.Extent.End-pos)
		if len(c.Stripes) == 1 {
			length = min(end, c.Extent.End) - pos
		}
		if !fn(Chunk{Component: c, Stripe: s, FileOffset: pos, ObjectOffset: obj, Len: length}) {
			return pos + length - off
		}
		pos += length
	}
	return n
}

// Locate gives the stripe and the object offset of a file offset. Offsets count from the file's start in every
// component, so that object offsets of a later component begin with a hole.
// Precondition: the component is initialised.
func (c *Component) Locate(off uint64) (StripeIndex, uint64) {
	n := uint64(len(c.Stripes))
	number := off / c.StripeSize
	return StripeIndex(number % n), number/n*c.StripeSize + off%c.StripeSize
}

// FileOffset is the inverse of Locate.
// Precondition: the component is initialised and s is one of its stripes.
func (c *Component) FileOffset(s StripeIndex, objectOffset uint64) uint64 {
	n := uint64(len(c.Stripes))
	return (objectOffset/c.StripeSize*n+uint64(s))*c.StripeSize + objectOffset%c.StripeSize
}

// ObjectSize gives the size that stripe s has when the file ends at fileSize without holes: where a truncate cuts it.
// Precondition: the component is initialised.
func (c *Component) ObjectSize(s StripeIndex, fileSize uint64) uint64 {
	n := uint64(len(c.Stripes))
	row := c.StripeSize * n
	size := fileSize / row * c.StripeSize
	rest := fileSize % row
	start := uint64(s) * c.StripeSize
	if rest > start {
		size += min(rest-start, c.StripeSize)
	}
	return size
}

// FileSize gives the size of the file whose stripe s has objectSize bytes, as far as that stripe can tell: the offset
// behind its last byte, 0 for an empty object. A file's size is the largest over its stripes.
// Precondition: the component is initialised.
func (c *Component) FileSize(s StripeIndex, objectSize uint64) uint64 {
	if objectSize == 0 {
		return 0
	}
	return c.FileOffset(s, objectSize-1) + 1
}

// ObjectExtent gives the smallest object range of stripe s that holds all bytes of the file range e that lie on it;
// an End of extent.EOF stays EOF. It may be Empty.
// Precondition: the component is initialised.
func (c *Component) ObjectExtent(s StripeIndex, e extent.Extent) extent.Extent {
	out := extent.Extent{Start: c.ObjectSize(s, e.Start), End: extent.EOF}
	if e.End != extent.EOF {
		out.End = c.ObjectSize(s, e.End)
	}
	return out
}

// MaxSize is the largest file size that the layout's objects can hold.
func (l *Layout) MaxSize() uint64 {
	if len(l.Components) == 0 {
		return MaxObjectSize
	}
	c := &l.Components[len(l.Components)-1]
	if c.StripeSize == 0 {
		return MaxObjectSize
	}
	n := uint64(max(len(c.Stripes), 1))
	return min(uint64(MaxObjectSize)/c.StripeSize*c.StripeSize*n, 1<<63-1)
}
