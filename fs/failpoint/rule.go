package failpoint

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/strakefs/strake/fs/status"
)

// defaults is the constant table of texts that arm nothing and say nothing.
var defaults = [textCount]string{textLoc: "0", textVal: "0", textWhen: "always"}

// rule is one armed point.
type rule struct {
	point  Point
	val    uint64
	ops    []string // nil: any
	target string   // a pattern of path.Match; empty: any
	skip   uint64
	every  uint64 // at least 1
	times  uint64 // 0: no bound

	reached, failed uint64
}

// reach counts one arrival and reports whether it fails.
func (r *rule) reach(op, target string) bool {
	if r.ops != nil && !slices.Contains(r.ops, op) {
		return false
	}
	if r.target != "" {
		if ok, err := path.Match(r.target, target); !ok || err != nil {
			return false
		}
	}
	r.reached++
	if r.reached <= r.skip || (r.reached-r.skip-1)%r.every != 0 || r.times > 0 && r.failed >= r.times {
		return false
	}
	r.failed++
	return true
}

// maxRules bounds the points armed at once; one may stand more than once, with another fail_when.
const maxRules = 16

// parse reads the three texts.
func parse(texts [textCount]string) ([]*rule, error) {
	vals, whens := strings.Split(texts[textVal], ","), strings.Split(texts[textWhen], ",")
	var locs []string
	if texts[textLoc] != defaults[textLoc] {
		locs = strings.Split(texts[textLoc], ",")
	}
	if len(locs) > maxRules {
		return nil, status.Errorf(status.Invalid, "fail_loc: %d points, at most %d", len(locs), maxRules)
	}
	var rules []*rule
	for i, loc := range locs {
		p, err := parsePoint(loc)
		if err != nil {
			return nil, err
		}
		r := &rule{point: p, every: 1}
		if r.val, err = p.parseVal(item(vals, i)); err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	for i, when := range whens {
		r := &rule{every: 1} // one more than points are armed is read all the same
		if i < len(rules) {
			r = rules[i]
		}
		if err := r.parseWhen(when); err != nil {
			return nil, err
		}
	}
	return rules, nil
}

// item is the i-th of a list without its blanks, empty behind its end.
func item(list []string, i int) string {
	if i >= len(list) {
		return ""
	}
	return strings.TrimSpace(list[i])
}

func parsePoint(text string) (Point, error) {
	text = strings.TrimSpace(text)
	for p := range pointCount {
		if p.String() == text {
			return p, nil
		}
	}
	names := make([]string, 0, pointCount)
	for _, p := range points {
		names = append(names, p.name)
	}
	return 0, status.Errorf(status.Invalid, "fail_loc: no point %q; 0 for none, or %s", text, strings.Join(names, ", "))
}

// parseWhen reads an item of fail_when.
func (r *rule) parseWhen(text string) error {
	text = strings.TrimSpace(text)
	switch text {
	case "", "always":
		return nil
	case "once":
		r.times = 1
		return nil
	}
	for field := range strings.SplitSeq(text, "+") {
		name, value, _ := strings.Cut(field, ":")
		n, err := strconv.ParseUint(value, 10, 32)
		ok := err == nil
		switch name {
		case "op":
			r.ops = strings.Split(value, "|")
			ok = value != ""
		case "target":
			r.target = value
			_, err := path.Match(value, "")
			ok = value != "" && err == nil
		case "skip":
			r.skip = n
		case "every":
			r.every = n
			ok = ok && n > 0
		case "times":
			r.times = n
			ok = ok && n > 0
		default:
			ok = false
		}
		if !ok {
			return status.Errorf(status.Invalid,
				"fail_when: %q: want always, once, or fields such as op:create|link+target:*-MDT0000+skip:2+every:3+times:1", field)
		}
	}
	return nil
}
