package lfs

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// safe gives a name as it is printed. One that holds bytes which are no text or that a terminal would act on, or that
// begins with a quote, is put between double quotes with Go's and C's escapes (\n, \x1b); every other is itself.
func safe(name string) string {
	if name == "" || name[0] == '"' || !utf8.ValidString(name) || strings.ContainsFunc(name, odd) {
		return strconv.Quote(name)
	}
	return name
}

func odd(r rune) bool { return !unicode.IsPrint(r) }

// printable maps what a terminal would act on to a blank.
func printable(r rune) rune {
	if odd(r) {
		return ' '
	}
	return r
}
