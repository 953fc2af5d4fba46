package stats

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// ErrPattern is returned for a pattern that is not a valid glob or is too long.
var ErrPattern = errors.New("bad parameter pattern")

// Limits of a pattern. Patterns come from tools and browsers: past these a short string
// could cost a long search.
const (
	maxPatternBytes   = 1024
	maxPatternChoices = 64
)

// pattern is a compiled glob over paths: one alternative for each choice of its braces.
type pattern struct {
	all          bool
	alternatives []alternative
}

type alternative struct {
	glob string // elements joined by '/', for path.Match
	rest bool   // ended in "**": what matches may have any further elements
}

// compile parses lctl's glob: '*' and '?' inside one element, [a-z], [!a-z], {a,b}; elements
// are separated by '.' or '/'. A last element "**" matches one or more further elements.
// The empty pattern and "**" match everything.
func compile(s string) (pattern, error) {
	if s == "" || s == "**" {
		return pattern{all: true}, nil
	}
	if len(s) > maxPatternBytes {
		return pattern{}, fmt.Errorf("%w: %d bytes, at most %d", ErrPattern, len(s), maxPatternBytes)
	}
	choices, err := expandBraces(s)
	if err != nil {
		return pattern{}, err
	}
	var p pattern
	for _, c := range choices {
		c = strings.ReplaceAll(strings.ReplaceAll(c, ".", "/"), "[!", "[^")
		glob, rest := strings.CutSuffix(c, "/**")
		if _, err := path.Match(glob, ""); err != nil {
			return pattern{}, fmt.Errorf("%w: %q", ErrPattern, s)
		}
		p.alternatives = append(p.alternatives, alternative{glob: glob, rest: rest})
	}
	return p, nil
}

// expandBraces returns s once for each combination of its {a,b} groups; groups may nest.
func expandBraces(s string) ([]string, error) {
	pending, done := []string{s}, []string(nil)
	for len(pending) > 0 {
		if len(pending)+len(done) > maxPatternChoices {
			return nil, fmt.Errorf("%w: %q has more than %d alternatives", ErrPattern, s, maxPatternChoices)
		}
		cur := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		open := strings.LastIndexByte(cur, '{')
		if open < 0 {
			if strings.IndexByte(cur, '}') >= 0 {
				return nil, fmt.Errorf("%w: unbalanced braces in %q", ErrPattern, s)
			}
			done = append(done, cur)
			continue
		}
		length := strings.IndexByte(cur[open:], '}')
		if length < 0 {
			return nil, fmt.Errorf("%w: unbalanced braces in %q", ErrPattern, s)
		}
		for _, choice := range strings.Split(cur[open+1:open+length], ",") {
			pending = append(pending, cur[:open]+choice+cur[open+length+1:])
		}
	}
	return done, nil
}

// match reports whether the path, dots replaced by slashes, matches.
func (p *pattern) match(slashed string) bool {
	if p.all {
		return true
	}
	for _, a := range p.alternatives {
		head := slashed
		if a.rest {
			var ok bool
			if head, ok = headElements(slashed, strings.Count(a.glob, "/")+1); !ok {
				continue
			}
		}
		// The pattern was tried in compile, so the error is always nil here.
		if ok, _ := path.Match(a.glob, head); ok {
			return true
		}
	}
	return false
}

// headElements returns the first n elements of a slashed path, and false unless more follow.
func headElements(slashed string, n int) (string, bool) {
	end := 0
	for ; n > 0; n-- {
		i := strings.IndexByte(slashed[end:], '/')
		if i < 0 {
			return "", false
		}
		end += i + 1
	}
	return slashed[:end-1], true
}

// Element makes one path element of any string: dots, slashes, white space, control bytes,
// the glob's own characters and what is not printable ASCII become '_'. An empty string
// becomes "_". Use it for what others name, such as a NID or a job.
func Element(s string) string {
	if s == "" {
		return "_"
	}
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f || strings.ContainsRune(`./*?[]{},\=`, r) {
			return '_'
		}
		return r
	}, s)
}

// validPath reports whether every element is as Element would leave it.
func validPath(p string) bool {
	if p == "" || len(p) > 512 {
		return false
	}
	for element := range strings.SplitSeq(p, ".") {
		if element == "" || Element(element) != element {
			return false
		}
	}
	return true
}
