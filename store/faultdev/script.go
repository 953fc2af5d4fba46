package faultdev

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/strakefs/strake/store"
	"golang.org/x/sys/unix"
)

// ErrFault is what a rule without an error of its own gives; every error of a script wraps it.
var ErrFault = errors.New("faultdev: scripted fault")

// Op is a kind of call or sync.
type Op string

// The ops. Commit, Flush, Sync and Label are the points that boltdev and memdev report; a Device counts the calls of
// Flush and Object.Sync under the same names, so give a script to one of both or expect two counts each.
const (
	Get       Op = "get"
	Scan      Op = "scan"
	Throttle  Op = "throttle"
	Publish   Op = "publish"
	Wait      Op = "wait"
	Commit    Op = "commit"
	Flush     Op = "flush"
	Sync      Op = "sync"
	Label     Op = "label"
	Create    Op = "create"
	Open      Op = "open"
	Remove    Op = "remove"
	Read      Op = "read"
	Write     Op = "write"
	Truncate  Op = "truncate"
	Fallocate Op = "fallocate"
	Statfs    Op = "statfs"
	// Any stands for each op, counted together.
	Any Op = "any"
)

var ops = []Op{
	Get, Scan, Throttle, Publish, Wait, Commit, Flush, Sync, Label, Create, Open, Remove, Read, Write, Truncate,
	Fallocate, Statfs, Any,
}

// Rule is what happens at some ops.
type Rule struct {
	Op Op
	// First and Last are the numbers of the ops, from 1; 0 and 0 are all of them, a Last of 0 is First alone.
	First, Last int
	Delay       time.Duration
	// Err fails the op. Torn does half of a Write first. Stop stops the device.
	Err        error
	Torn, Stop bool
}

// Script is rules and counts. The zero Script does nothing. Its methods may be called at once.
type Script struct {
	mu      sync.Mutex
	rules   []Rule     // guarded by mu
	counts  map[Op]int // guarded by mu
	stopped error      // guarded by mu
	onStop  []func()   // guarded by mu
}

// Add adds rules.
func (s *Script) Add(rules ...Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = append(s.rules, rules...)
}

// Clear removes the rules and keeps the counts.
func (s *Script) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
}

// OnStop adds a function that runs when a rule stops the device, before the op fails.
func (s *Script) OnStop(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onStop = append(s.onStop, fn)
}

// Count tells how many ops of a kind there were.
func (s *Script) Count(op Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[op]
}

// Err is nil until a rule has stopped the device.
func (s *Script) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// Fault counts an op and does what the rules say: the signature of boltdev.Options.Fault.
func (s *Script) Fault(point string) error {
	_, err := s.hit(context.Background(), Op(point))
	return err
}

// hit counts an op, waits for its delays and returns its error.
func (s *Script) hit(ctx context.Context, op Op) (torn bool, err error) {
	s.mu.Lock()
	if s.stopped != nil {
		defer s.mu.Unlock()
		return false, s.stopped
	}
	if s.counts == nil {
		s.counts = map[Op]int{}
	}
	s.counts[op]++
	s.counts[Any]++
	var delay time.Duration
	var stop bool
	for _, r := range s.rules {
		if (r.Op != op && r.Op != Any) || !r.covers(s.counts[r.Op]) {
			continue
		}
		delay += r.Delay
		torn = torn || r.Torn
		stop = stop || r.Stop
		if err == nil && (r.Err != nil || r.Torn || r.Stop) {
			err = fmt.Errorf("%w: %s %d", ErrFault, op, s.counts[op])
			if r.Err != nil {
				err = fmt.Errorf("%w: %w", err, r.Err)
			}
		}
	}
	var fns []func()
	if stop {
		err = fmt.Errorf("%w: %w", store.ErrStopped, err)
		s.stopped = err
		fns = s.onStop
	}
	s.mu.Unlock()
	for _, fn := range fns {
		fn()
	}
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return torn, ctx.Err()
		}
	}
	return torn, err
}

func (r Rule) covers(n int) bool {
	if r.First == 0 {
		return true
	}
	return n >= r.First && n <= max(r.First, r.Last)
}

// Parse reads rules, separated by semicolons or lines: op, which, what happens.
//
//	write 3 error ENOSPC     the third write
//	commit 2 stop            the second commit
//	flush 1-4 delay 20ms
//	write * torn             every write
//
// which is a number, two with a dash, or *. Errors are EIO, ENOSPC, EDQUOT, EROFS or fault.
func Parse(text string) ([]Rule, error) {
	var rules []Rule
	for _, line := range strings.FieldsFunc(text, func(c rune) bool { return c == ';' || c == '\n' }) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		r, err := parseRule(f)
		if err != nil {
			return nil, fmt.Errorf("faultdev: rule %q: %w", strings.TrimSpace(line), err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// MustParse is a script of Parse's rules. It panics if they cannot be read.
func MustParse(text string) *Script {
	rules, err := Parse(text)
	if err != nil {
		panic(err)
	}
	return &Script{rules: rules}
}

var errSyntax = errors.New("want: op, number, what")

func parseRule(f []string) (r Rule, err error) {
	if len(f) < 3 {
		return r, errSyntax
	}
	r.Op = Op(f[0])
	known := false
	for _, op := range ops {
		known = known || op == r.Op
	}
	if !known {
		return r, fmt.Errorf("no op %q", f[0])
	}
	if f[1] != "*" {
		first, last, _ := strings.Cut(f[1], "-")
		if r.First, err = strconv.Atoi(first); err != nil || r.First < 1 {
			return r, fmt.Errorf("bad number %q", f[1])
		}
		if last != "" {
			if r.Last, err = strconv.Atoi(last); err != nil || r.Last < r.First {
				return r, fmt.Errorf("bad number %q", f[1])
			}
		}
	}
	switch {
	case f[2] == "stop" && len(f) == 3:
		r.Stop = true
	case f[2] == "torn" && len(f) == 3:
		r.Torn = true
	case f[2] == "delay" && len(f) == 4:
		r.Delay, err = time.ParseDuration(f[3])
	case f[2] == "error" && len(f) == 4:
		r.Err, err = parseError(f[3])
	default:
		err = errSyntax
	}
	return r, err
}

func parseError(name string) (error, error) {
	switch name {
	case "fault":
		return ErrFault, nil
	case "EIO":
		return unix.EIO, nil
	case "EROFS":
		return unix.EROFS, nil
	case "ENOSPC":
		return fmt.Errorf("%w: %w", store.ErrNoSpace, unix.ENOSPC), nil
	case "EDQUOT":
		return fmt.Errorf("%w: %w", store.ErrNoSpace, unix.EDQUOT), nil
	}
	return nil, fmt.Errorf("no error %q", name)
}
