package osp

import (
	"errors"
	"fmt"
	"strings"

	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/status"
)

// errNotReady says that OSTs are usable and have no object ready now: wait and choose again.
var errNotReady = errors.New("osp: no objects ready")

// ThresholdRRPercent is how far free space may differ, in percent of the fullest-with-space OST's, before objects follow
// free space instead of going round (qos_threshold_rr of the field).
const ThresholdRRPercent = 17

// Candidate is one OST as the choice sees it.
type Candidate struct {
	Index layout.OSTIndex
	// Up: it answers. Full: it is short of space or inodes. Deactivated: the administrator took it out.
	Up, Full, Deactivated bool
	// Ready is how many objects can be had without waiting.
	Ready int
	// AvailBytes is its free space.
	AvailBytes uint64
}

func (c *Candidate) usable() bool { return c.Up && !c.Full && !c.Deactivated }

// reason says why an OST is not usable.
func (c *Candidate) reason() string {
	switch {
	case c.Deactivated:
		return "deactivated"
	case !c.Up:
		return "down"
	case c.Full:
		return "full"
	}
	return "usable"
}

// Wish is what a component's template asks for.
type Wish struct {
	// Count is the number of stripes, layout.CountAll for all usable OSTs, 0 for one.
	Count uint32
	// Offset is the first OST's index, layout.OffsetAny for none in particular.
	Offset int32
	// Wanted names the OSTs in stripe order; empty leaves them open.
	Wanted []layout.OSTIndex
	// Turn starts the round; it advances by the number of stripes with each choice. Random decides the weighted choice.
	Turn, Random uint64
}

// Choose appends the OSTs of a new component to dst, in stripe order, all different. cands is sorted by index; it is used
// as scratch and left in any order of its Ready fields. While free space is even the OSTs go round; else they are drawn by
// free space. Of a count that is more than what is usable, three quarters do; of one that is more than the OSTs there are,
// all of them. OSTs named by the wish are taken exactly. The error is of kind NoSpace with the reason of each OST, Invalid
// for OSTs that do not exist or are named twice, or errNotReady.
func Choose(dst []layout.OSTIndex, cands []Candidate, w Wish) ([]layout.OSTIndex, error) {
	if len(w.Wanted) > 0 {
		return chooseWanted(dst, cands, w.Wanted)
	}
	usable, ready := 0, 0
	for i := range cands {
		if cands[i].usable() {
			usable++
			if cands[i].Ready > 0 {
				ready++
			}
		}
	}
	count := int(min(max(w.Count, 1), uint32(len(cands))))
	if w.Count == layout.CountAll {
		count = max(usable, 1)
	}
	if usable == 0 || usable < (count*3+3)/4 {
		return dst, noSpace(cands, count)
	}
	count = min(count, usable)
	if w.Offset >= 0 {
		return chooseFrom(dst, cands, count, layout.OSTIndex(w.Offset))
	}
	if ready < count {
		return dst, errNotReady
	}
	if even(cands) {
		return appendRound(dst, cands, count, int(w.Turn%uint64(len(cands)))), nil
	}
	return appendWeighted(dst, cands, count, w.Random), nil
}

// chooseWanted takes exactly the OSTs named.
func chooseWanted(dst []layout.OSTIndex, cands []Candidate, wanted []layout.OSTIndex) ([]layout.OSTIndex, error) {
	start := len(dst)
	for _, index := range wanted {
		c := find(cands, index)
		switch {
		case c == nil:
			return dst[:start], status.Errorf(status.Invalid, "there is no OST with index %d", index)
		case !c.usable():
			return dst[:start], status.Errorf(status.NoSpace, "OST%04x is %s", uint32(index), c.reason())
		case c.Ready == 0:
			return dst[:start], errNotReady
		}
		for _, other := range dst[start:] {
			if other == index {
				return dst[:start], status.Errorf(status.Invalid, "OST index %d is named twice", index)
			}
		}
		dst = append(dst, index)
	}
	return dst, nil
}

// chooseFrom starts at the OST named and goes round from there.
func chooseFrom(dst []layout.OSTIndex, cands []Candidate, count int, first layout.OSTIndex) ([]layout.OSTIndex, error) {
	c := find(cands, first)
	switch {
	case c == nil:
		return dst, status.Errorf(status.Invalid, "there is no OST with index %d", first)
	case !c.usable():
		return dst, status.Errorf(status.NoSpace, "OST%04x is %s", uint32(first), c.reason())
	}
	at := 0
	for i := range cands {
		if cands[i].Index == first {
			at = i
		}
		if cands[i].usable() && cands[i].Ready == 0 && (count > 1 || cands[i].Index == first) {
			return dst, errNotReady
		}
	}
	return appendRound(dst, cands, count, at), nil
}

// appendRound takes the next count ready OSTs from position at on.
// Precondition: there are that many.
func appendRound(dst []layout.OSTIndex, cands []Candidate, count, at int) []layout.OSTIndex {
	for i := 0; count > 0 && i < len(cands); i++ {
		c := &cands[(at+i)%len(cands)]
		if c.usable() && c.Ready > 0 {
			dst = append(dst, c.Index)
			count--
		}
	}
	return dst
}

// appendWeighted draws count different ready OSTs, each with a chance that follows its free space.
// Precondition: there are that many.
func appendWeighted(dst []layout.OSTIndex, cands []Candidate, count int, random uint64) []layout.OSTIndex {
	for ; count > 0; count-- {
		var total uint64
		for i := range cands {
			total += weight(&cands[i])
		}
		random = mix(random)
		at := random % max(total, 1)
		for i := range cands {
			w := weight(&cands[i])
			if w == 0 {
				continue
			}
			if at < w {
				dst = append(dst, cands[i].Index)
				cands[i].Ready = 0
				break
			}
			at -= w
		}
	}
	return dst
}

// weight is an OST's free space in MiB, at least 1 while it can be drawn; the sum over every OST fits 64 bits.
func weight(c *Candidate) uint64 {
	if !c.usable() || c.Ready == 0 {
		return 0
	}
	return max(c.AvailBytes>>20, 1)
}

// mix is the finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// even reports whether the usable OSTs' free space differs by less than the threshold.
func even(cands []Candidate) bool {
	low, high := ^uint64(0), uint64(0)
	for i := range cands {
		if cands[i].usable() {
			low, high = min(low, cands[i].AvailBytes), max(high, cands[i].AvailBytes)
		}
	}
	return high-low <= high/100*ThresholdRRPercent
}

func find(cands []Candidate, index layout.OSTIndex) *Candidate {
	for i := range cands {
		if cands[i].Index == index {
			return &cands[i]
		}
	}
	return nil
}

func noSpace(cands []Candidate, count int) error {
	if len(cands) == 0 {
		return status.Errorf(status.NoSpace, "no OST has joined the file system")
	}
	var b strings.Builder
	for i := range cands {
		if !cands[i].usable() && b.Len() < 512 {
			fmt.Fprintf(&b, ", OST%04x is %s", uint32(cands[i].Index), cands[i].reason())
		}
	}
	return status.Errorf(status.NoSpace, "not enough OSTs for %d stripes%s", count, b.String())
}
