package stats

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Setting is a permanent value for every parameter that a pattern matches, as the MGS keeps it.
type Setting struct {
	Pattern, Value string
}

// permanent is the settings in force. Literal paths come after patterns, so that the last match is the one that counts.
type permanent struct {
	settings []compiledSetting
	// epoch grows with each change of settings.
	epoch   uint64
	refused func(path string, err error)
}

type compiledSetting struct {
	Setting
	pattern pattern
	glob    bool
}

// of is the value that the settings have for a path, dots replaced by slashes.
func (p *permanent) of(slashed string) (value string, ok bool) {
	for i := len(p.settings) - 1; i >= 0; i-- {
		if p.settings[i].pattern.match(slashed) {
			return p.settings[i].Value, true
		}
	}
	return "", false
}

// CheckPattern returns an error that wraps [ErrPattern] for what Walk would refuse.
func CheckPattern(pattern string) error {
	_, err := compile(pattern)
	return err
}

// SetPermanent makes settings the permanent ones, in place of those of an earlier call. A parameter gets its value when
// that is another one than before, and at its registration: what was set by hand since stays until then. A setting that
// is gone leaves the value as it is. Where two settings match, a path counts more than a pattern, and of two patterns the
// one that is later in the order of bytes. refused hears of values that a parameter does not take, now and at later
// registrations, and of patterns that are none; it must not call SetPermanent. Setters run in the caller's goroutine.
func (r *Registry) SetPermanent(settings []Setting, refused func(path string, err error)) {
	next := permanent{refused: refused}
	for _, s := range settings {
		p, err := compile(s.Pattern)
		if err != nil {
			refused(s.Pattern, err)
			continue
		}
		next.settings = append(next.settings, compiledSetting{Setting: s, pattern: p, glob: isGlob(s.Pattern)})
	}
	slices.SortStableFunc(next.settings, func(a, b compiledSetting) int {
		if a.glob != b.glob {
			if a.glob {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Pattern, b.Pattern)
	})
	r.mu.Lock()
	last := r.permanent
	next.epoch = last.epoch + 1
	r.permanent = next
	r.mu.Unlock()
	for _, e := range r.snapshot() {
		if e.Kind == KindParam && e.set != nil {
			was, had := last.of(e.slashed)
			r.settle(e, was, had)
		}
	}
}

// isGlob reports whether a pattern can match more than the path it spells.
func isGlob(s string) bool { return s == "" || strings.ContainsAny(s, `*?[{\`) }

// Permanent returns the settings in force, those that count less first.
func (r *Registry) Permanent() []Setting {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]Setting, len(r.permanent.settings))
	for i, s := range r.permanent.settings {
		out[i] = s.Setting
	}
	return out
}

// settle gives e the permanent value that counts for it, unless that is what it was given before (was, if had). When the
// settings change meanwhile, the newest ones win, whoever applies them.
func (r *Registry) settle(e *Entry, was string, had bool) {
	for {
		r.mu.RLock()
		value, ok := r.permanent.of(e.slashed)
		epoch, refused := r.permanent.epoch, r.permanent.refused
		r.mu.RUnlock()
		if !ok || had && value == was {
			return
		}
		if err := e.Set(value); err != nil {
			refused(e.Path, fmt.Errorf("permanent value %q: %w", value, err))
		}
		r.mu.RLock()
		same := r.permanent.epoch == epoch
		r.mu.RUnlock()
		if same {
			return
		}
		was, had = value, true
	}
}
