package forgetfs

import (
	"math"
	"slices"
)

// span is a range of pages or bytes, [start, end).
type span struct{ start, end int64 }

const endless = math.MaxInt64

// spans is a set of numbers: sorted spans that neither overlap nor touch.
type spans []span

// add puts [start, end) into the set.
func (s *spans) add(start, end int64) {
	if start >= end {
		return
	}
	i := 0
	for i < len(*s) && (*s)[i].end < start {
		i++
	}
	j := i
	for j < len(*s) && (*s)[j].start <= end {
		start, end = min(start, (*s)[j].start), max(end, (*s)[j].end)
		j++
	}
	*s = slices.Replace(*s, i, j, span{start, end})
}

// has reports whether a number is in the set.
func (s spans) has(n int64) bool {
	for _, e := range s {
		if n < e.end {
			return n >= e.start
		}
	}
	return false
}
