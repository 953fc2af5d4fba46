package lfs

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/strakefs/strake/fs/layout"
)

// suffixes of sizes, each 1024 times the one before; the first is 1024.
const suffixes = "KMGTPE"

// parseSize reads a size in bytes: decimal digits and at most one suffix of k, m, g, t, p, e, in either case.
func parseSize(s string) (uint64, error) {
	digits, shift := s, 0
	if n := len(s); n > 0 {
		if i := strings.Index(suffixes, strings.ToUpper(s[n-1:])); i >= 0 {
			digits, shift = s[:n-1], 10*(i+1)
		}
	}
	v, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || digits[0] == '+' {
		return 0, usagef("%s is not a size; write a number with one of k, m, g behind it", strconv.Quote(s))
	}
	if v != 0 && bits.Len64(v)+shift > 64 {
		return 0, usagef("size %s is too large", s)
	}
	return v << shift, nil
}

// parseStripeSize reads a stripe size; 0 leaves it to the file system's default.
func parseStripeSize(s string) (uint64, error) {
	v, err := parseSize(s)
	switch {
	case err != nil:
		return 0, fmt.Errorf("stripe size: %w", err)
	case v%layout.MinStripeSize != 0:
		return 0, usagef("stripe size %s must be a multiple of 64K", s)
	case v > layout.MaxStripeSize:
		return 0, usagef("stripe size %s is too large: at most 4G", s)
	}
	return v, nil
}

// human prints bytes or a count with one decimal and a suffix; base is 1024 or 1000.
func human(v, base uint64) string {
	if v < base {
		return strconv.FormatUint(v, 10)
	}
	f := float64(v)
	i := -1
	for f >= float64(base) && i < len(suffixes)-1 {
		f /= float64(base)
		i++
	}
	if f >= float64(base)-0.05 && i < len(suffixes)-1 { // would round up to a fifth digit
		f /= float64(base)
		i++
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + suffixes[i:i+1]
}
