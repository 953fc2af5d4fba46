package ldlm

import (
	"slices"

	"github.com/strakefs/strake/fs/extent"
)

// GlimpseRound asks for the second round of a glimpse.
type GlimpseRound struct {
	Res ResID
	// KnownSize is the size in the LVB after the answers of the first round.
	KnownSize uint64
	// Asked are the clients that the first round asked.
	Asked []ClientID
	// Asker describes the glimpse for the holders.
	Asker Desc
}

// glimpse is what one round needs to know.
type glimpse struct {
	size  uint64
	asked []ClientID
	again bool
}

// GlimpseAgain makes the glimpse ASTs of the second round, if it takes one. The first round asks the holder of the
// highest write lock that reaches past the known size: a lock that was let grow is one that its holder writes under, so
// the file ends there or behind, and nobody below need be asked. Should the answer be smaller than that (its write
// failed), all other holders that reach past it are asked now. It returns Asking or LVBOnly.
func (ns *Namespace) GlimpseAgain(r *GlimpseRound, fx *Effects) Outcome {
	sh, hash := ns.shardOf(r.Res)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	res := sh.table.find(r.Res, hash)
	if res == nil || r.Res.Type != TypeExtent {
		return LVBOnly
	}
	s := step{sh: sh, ns: ns, fx: fx}
	return s.glimpse(res, &glimpse{size: r.KnownSize, asked: r.Asked, again: true}, r.Asker)
}

// glimpse makes the ASTs of one round.
func (s *step) glimpse(res *resource, g *glimpse, by Desc) Outcome {
	reach := s.sh.passed[:0]
	for set := writeModes; set != 0; {
		var m Mode
		m, set = set.lowest()
		res.trees.granted[m.index()].overlapping(extent.Extent{Start: g.size, End: extent.EOF}, func(h *lock) bool {
			if h.client != Local {
				reach = append(reach, h)
			}
			return true
		})
	}
	slices.SortFunc(reach, higher)
	first := len(s.fx.List)
	for _, h := range reach {
		if !slices.Contains(g.asked, h.client) && !s.glimpsed(first, h.client) {
			s.fx.add(EffectGlimpse, h).Desc = by
			s.sh.count.Glimpses++
		}
		if !g.again && h.flags&NoExpansion == 0 {
			break
		}
	}
	clear(reach)
	s.sh.passed = reach[:0]
	if len(s.fx.List) == first {
		return LVBOnly
	}
	return Asking
}

// higher orders locks by the end of their extents, then by start, highest first.
func higher(a, b *lock) int {
	switch {
	case a.ext.End != b.ext.End:
		if a.ext.End > b.ext.End {
			return -1
		}
		return 1
	case a.ext.Start > b.ext.Start:
		return -1
	case a.ext.Start < b.ext.Start:
		return 1
	}
	return 0
}

// glimpsed reports whether this round asks a client already.
func (s *step) glimpsed(first int, c ClientID) bool {
	for i := first; i < len(s.fx.List); i++ {
		if s.fx.List[i].Client == c {
			return true
		}
	}
	return false
}
