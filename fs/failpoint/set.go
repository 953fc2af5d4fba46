package failpoint

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/status"
)

// Set is the fail points of one process. The zero Set has none armed; a nil one never has.
type Set struct {
	on atomic.Uint32 // a bit for each armed point

	mu     sync.Mutex
	texts  [textCount]string // as set; guarded by mu
	rules  []*rule           // in the order of fail_loc; guarded by mu
	gone   chan struct{}     // closed when the rules are replaced; guarded by mu
	closed bool              // guarded by mu
}

// The three parameters.
const (
	textLoc = iota
	textVal
	textWhen
	textCount
)

// New makes a Set with nothing armed.
func New() *Set { return &Set{texts: [textCount]string{"0", "0", "always"}} }

// Armed reports whether any point is: one atomic load, to be asked first on hot paths.
func (s *Set) Armed() bool { return s != nil && s.on.Load() != 0 }

// Hit is an armed point that was reached.
type Hit struct {
	// Val is fail_val, or the point's default.
	Val   uint64
	point Point
	gone  <-chan struct{}
}

// Reach tells that a point was reached, by an operation (a name of package wire, empty for none) on a target ("strake-MDT0000").
// It reports whether the point fails this time. It does not wait.
func (s *Set) Reach(p Point, op, target string) (Hit, bool) {
	if s == nil || s.on.Load()&(1<<p) == 0 {
		return Hit{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rules {
		if r.point == p && r.reach(op, target) {
			return Hit{Val: r.val, point: p, gone: s.gone}, true
		}
	}
	return Hit{}, false
}

// Kind is the error of a point whose fail_val is one.
func (h Hit) Kind() status.Kind { return status.Kind(h.Val) }

// Err is Kind with a sentence.
func (h Hit) Err() error {
	return status.Errorf(h.Kind(), "injected by fail_loc=%v: %v", h.point, h.Kind())
}

// Wait waits for Val milliseconds, for ever if Val is 0. It ends early when the parameters are set, the Set is closed, or done is
// closed, which may be nil.
func (h Hit) Wait(done <-chan struct{}) {
	var over <-chan time.Time
	if h.Val > 0 {
		t := time.NewTimer(time.Duration(h.Val) * time.Millisecond)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-over:
	case <-h.gone:
	case <-done:
	}
}

// errOff is the refusal of a process that allows no faults.
var errOff = status.Errorf(status.Perm, "fault injection is off in this process: start it with --fault-injection")

// set replaces one of the texts. What cannot be read changes nothing.
func (s *Set) set(which int, text string) error {
	text = strings.TrimSpace(text)
	if s == nil {
		if text == defaults[which] {
			return nil
		}
		return errOff
	}
	if text == "" {
		text = defaults[which]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	texts := s.texts
	texts[which] = text
	rules, err := parse(texts)
	if err != nil {
		return err
	}
	if s.closed && len(rules) > 0 {
		return status.Errorf(status.Stopping, "the process is stopping")
	}
	s.texts = texts
	s.armLocked(rules)
	return nil
}

// armLocked puts rules in place of those that are there.
func (s *Set) armLocked(rules []*rule) {
	if s.gone != nil {
		close(s.gone)
	}
	s.rules, s.gone = rules, make(chan struct{})
	var on uint32
	for _, r := range rules {
		on |= 1 << r.point
	}
	s.on.Store(on)
}

// Arm sets fail_loc, fail_val and fail_when at once; an empty text is its default.
func (s *Set) Arm(loc, val, when string) error {
	if err := s.set(textLoc, "0"); err != nil || s == nil {
		return err
	}
	if err := s.set(textVal, val); err != nil {
		return err
	}
	if err := s.set(textWhen, when); err != nil {
		return err
	}
	return s.set(textLoc, loc)
}

// Close turns everything off for good and ends every pause. A nil Set may be closed.
func (s *Set) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.texts[textLoc] = "0"
	s.armLocked(nil)
}

// text gives one of the texts.
func (s *Set) text(which int) string {
	if s == nil {
		return defaults[which]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.texts[which]
}

// hits tells how often each armed point was reached by what fail_when names, and how often it failed.
func (s *Set) hits() string {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, r := range s.rules {
		fmt.Fprintf(&b, "%v: { reached: %d, failed: %d }\n", r.point, r.reached, r.failed)
	}
	return b.String()
}

// Count is how often the i-th point of fail_loc has failed since the parameters were set.
func (s *Set) Count(i int) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i >= len(s.rules) {
		return 0
	}
	return s.rules[i].failed
}
