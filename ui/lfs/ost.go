package lfs

import (
	"slices"
	"strconv"
	"strings"

	"github.com/strakefs/strake/fs/layout"
)

// parseOSTs reads a list of OST indexes as -o takes it: 0,3-5 in stripe order. No index may come twice: every stripe of
// a file is on an OST of its own.
func parseOSTs(text string) ([]layout.OSTIndex, error) {
	var out []layout.OSTIndex
	for item := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(item, "-")
		a, err := strconv.ParseUint(first, 10, 31)
		b := a
		if err == nil && isRange {
			b, err = strconv.ParseUint(last, 10, 31)
		}
		switch {
		case err != nil || b < a:
			return nil, usagef("%s in the list of OSTs is not an index or a range of them, such as 0,3-5", strconv.Quote(item))
		case b-a >= layout.MaxStripes || len(out)+int(b-a) >= layout.MaxStripes:
			return nil, usagef("too many OSTs: a file has at most %d stripes", layout.MaxStripes)
		}
		for i := a; i <= b; i++ {
			if slices.Contains(out, layout.OSTIndex(i)) {
				return nil, usagef("OST %d is named twice: several stripes of a file on one OST are not supported yet", i)
			}
			out = append(out, layout.OSTIndex(i))
		}
	}
	return out, nil
}
