package config

import (
	"errors"
	"fmt"
	"maps"
	"strings"
)

// ErrInvalid marks every error of this package that comes from what was configured, in contrast to a file that
// could not be read. The message is one line: where, what, and what to do.
var ErrInvalid = errors.New("invalid configuration")

// invalid is an ErrInvalid with its message.
type invalid struct{ msg string }

func (e *invalid) Error() string        { return e.msg }
func (e *invalid) Is(target error) bool { return target == ErrInvalid }

// invalidf makes an ErrInvalid.
func invalidf(format string, args ...any) error {
	return &invalid{msg: fmt.Errorf(format, args...).Error()}
}

// Setting is what one source says about one key.
type Setting struct {
	// Values are the values in the order given, as text; never empty.
	Values []string
	// Origin is where they stand, for messages: "--role", "STRAKE_ROLE" or "/etc/strake/strake.yaml:3".
	Origin string
}

// Settings maps key names to what is said about them.
type Settings map[string]Setting

// Merge puts sources together. A later source wins, whole keys at a time. The result shares the sources' slices.
func Merge(sources ...Settings) Settings {
	all := Settings{}
	for _, s := range sources {
		maps.Copy(all, s)
	}
	return all
}

// list returns a key's values, split at commas where the key allows it, without empty ones.
func (s Settings) list(name string) []string {
	k, _ := lookup(name)
	var out []string
	for _, v := range s[name].Values {
		if !k.Commas {
			out = append(out, v)
			continue
		}
		for part := range strings.SplitSeq(v, ",") {
			if part = strings.TrimSpace(part); part != "" {
				out = append(out, part)
			}
		}
	}
	return out
}

// one returns a key's single value, and whether the key is set.
//
// A flag given twice keeps the last value, as flags do everywhere.
func (s Settings) one(name string) (string, bool) {
	set, ok := s[name]
	if !ok || len(set.Values) == 0 {
		return "", false
	}
	return set.Values[len(set.Values)-1], true
}

// has reports whether any source says something about the key.
func (s Settings) has(name string) bool {
	_, ok := s[name]
	return ok
}

// origin names where a key is set; for a key that is not, its flag.
func (s Settings) origin(name string) string {
	if set, ok := s[name]; ok {
		return set.Origin
	}
	return "--" + name
}
