package ldlm

import (
	"math/bits"
	"strings"
)

// Bits is a set of inode bits: what a lock on an inode protects. The values are the published ones.
type Bits uint16

// The inode bits.
const (
	Lookup  Bits = 1 << iota // the dentry: which FID the name leads to
	Update                   // size, link count, times, a folder's entries
	Open                     // a cached open handle
	Layout                   // the stripe layout
	Perm                     // mode, owner, ACL
	Xattr                    // the xattr cache
	DOM                      // file data held on the MDT
	numBits      = 7
	// Full is all bits.
	Full Bits = 1<<numBits - 1
)

var bitNames = [numBits]string{"LOOKUP", "UPDATE", "OPEN", "LAYOUT", "PERM", "XATTR", "DOM"}

// String is the names joined by '|', "-" for none.
func (b Bits) String() string {
	if b == 0 {
		return "-"
	}
	var s strings.Builder
	for rest := b & Full; rest != 0; rest &= rest - 1 {
		if s.Len() > 0 {
			s.WriteByte('|')
		}
		s.WriteString(bitNames[bits.TrailingZeros16(uint16(rest))])
	}
	return s.String()
}

// bitCounts counts the granted locks of a resource by mode and bit, so that a resource with many locks answers "is
// this bit held in that mode" without a walk.
type bitCounts [numModes][numBits]uint32

func (c *bitCounts) add(m Mode, b Bits, n uint32) {
	row := &c[m.index()]
	for ; b != 0; b &= b - 1 {
		row[bits.TrailingZeros16(uint16(b))] += n
	}
}

// held is the bits held in a mode.
func (c *bitCounts) held(m Mode) Bits {
	var b Bits
	for i, n := range c[m.index()] {
		if n != 0 {
			b |= 1 << i
		}
	}
	return b
}
