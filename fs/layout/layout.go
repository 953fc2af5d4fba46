package layout

import (
	"slices"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
)

// OSTIndex is an OST's index in its file system, from 0.
type OSTIndex uint32

// StripeIndex is a stripe's place in its component, from 0.
type StripeIndex uint32

// Pattern is how the bytes of a component go round its stripes.
type Pattern uint32

// Patterns.
const (
	RAID0 Pattern = 1
	// OnMDT keeps the component's bytes with the inode.
	OnMDT Pattern = 0x100
)

// Flags of a component.
type Flags uint32

// Component flags, with the values of the field's tools.
const (
	FlagInit      Flags = 0x10
	FlagExtension Flags = 0x40
)

// Bounds and defaults. StripeSizeDefault is the field's present default. MaxStripes bounds a layout's record to well
// under one frame; MaxObjectSize keeps every object's size below what a local ext4 holds (16 TiB).
const (
	MinStripeSize     = 64 << 10
	MaxStripeSize     = 4 << 30
	StripeSizeDefault = 4 << 20
	MaxStripes        = 2000
	MaxComponents     = 32
	MaxPoolName       = 15
	MaxObjectSize     = 16<<40 - 4096
	// CountAll as a StripeCount means one stripe on every OST.
	CountAll = ^uint32(0)
	// OffsetAny as a StripeOffset leaves the first OST to the MDT.
	OffsetAny int32 = -1
)

// Stripe is one object of a component.
type Stripe struct {
	OST    OSTIndex
	Object fid.ObjectID
}

// Component is a range of a file's bytes and how they are striped.
type Component struct {
	ID           uint32
	Flags        Flags
	Extent       extent.Extent
	Pattern      Pattern
	StripeSize   uint64
	StripeCount  uint32
	StripeOffset int32
	Pool         string
	// Wanted lists the OSTs asked for in a template (lfs setstripe -o), in stripe order; empty leaves them to the MDT.
	Wanted []OSTIndex
	// Stripes holds the objects in stripe order; empty in a template and in a component not initialised yet.
	Stripes []Stripe
}

// Layout is a file's layout, or a folder's default one (a template). The zero Layout says nothing: the file system's
// default applies.
type Layout struct {
	// Gen grows with every change of the layout.
	Gen        uint32
	Components []Component
}

// IsZero reports whether the layout says nothing.
func (l *Layout) IsZero() bool { return len(l.Components) == 0 }

// Plain returns a template of one component.
func Plain(count uint32, size uint64) Layout {
	return Layout{Components: []Component{{
		ID: 1, Extent: extent.Extent{End: extent.EOF}, Pattern: RAID0,
		StripeSize: size, StripeCount: count, StripeOffset: OffsetAny,
	}}}
}

// Clone returns a copy that shares no memory.
func (l *Layout) Clone() Layout {
	c := Layout{Gen: l.Gen, Components: slices.Clone(l.Components)}
	for i := range c.Components {
		c.Components[i].Stripes = slices.Clone(c.Components[i].Stripes)
		c.Components[i].Wanted = slices.Clone(c.Components[i].Wanted)
	}
	return c
}

// Check refuses a layout that breaks an invariant or a bound, with a sentence that says which.
func (l *Layout) Check() error {
	if len(l.Components) > MaxComponents {
		return status.Errorf(status.Invalid, "layout: %d components, at most %d", len(l.Components), MaxComponents)
	}
	var end uint64
	for i := range l.Components {
		c := &l.Components[i]
		if c.Extent.Start != end || c.Extent.Empty() {
			return status.Errorf(status.Invalid, "layout: component %d is [%d, %d), must start at %d", i, c.Extent.Start, c.Extent.End, end)
		}
		end = c.Extent.End
		if err := c.check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Component) check() error {
	switch {
	case c.Pattern != RAID0 && c.Pattern != OnMDT:
		return status.Errorf(status.NotSupport, "layout: pattern 0x%x is not known", uint32(c.Pattern))
	case c.StripeSize != 0 && (c.StripeSize%MinStripeSize != 0 || c.StripeSize > MaxStripeSize):
		return status.Errorf(status.Invalid, "layout: stripe size %d, must be a multiple of %d and at most %d", c.StripeSize, MinStripeSize, uint64(MaxStripeSize))
	case c.StripeCount > MaxStripes && c.StripeCount != CountAll:
		return status.Errorf(status.Invalid, "layout: %d stripes, at most %d", c.StripeCount, MaxStripes)
	case len(c.Pool) > MaxPoolName:
		return status.Errorf(status.Invalid, "layout: pool name of %d bytes, at most %d", len(c.Pool), MaxPoolName)
	case len(c.Wanted) > MaxStripes:
		return status.Errorf(status.Invalid, "layout: %d OSTs named, at most %d", len(c.Wanted), MaxStripes)
	case len(c.Stripes) != 0 && (len(c.Stripes) != int(c.StripeCount) || c.StripeSize == 0):
		return status.Errorf(status.Invalid, "layout: %d objects for %d stripes of %d bytes", len(c.Stripes), c.StripeCount, c.StripeSize)
	}
	return nil
}

// At returns the component that covers a byte offset, nil if none does. It may not be initialised.
func (l *Layout) At(offset uint64) *Component {
	for i := range l.Components {
		if c := &l.Components[i]; offset >= c.Extent.Start && offset < c.Extent.End {
			return c
		}
	}
	return nil
}
