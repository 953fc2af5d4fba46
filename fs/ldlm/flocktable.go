package ldlm

import (
	"slices"

	"github.com/strakefs/strake/fs/extent"
)

// FlockClass tells the two families of application locks apart. They do not see each other, as on Linux.
type FlockClass uint8

// The classes.
const (
	// Posix is fcntl's: byte ranges of a process, merged and split, with deadlock detection.
	Posix FlockClass = iota
	// OFD is fcntl's open-file-description locks: as Posix, owned by an open file, without deadlock detection. They and
	// Posix locks keep each other out.
	OFD
	// BSD is flock(2)'s: the whole file, owned by an open file. An upgrade gives the old lock up first.
	BSD
)

// FlockOwner is who holds application locks: an owner number of one client (a process or an open file).
type FlockOwner struct {
	Client ClientID
	Owner  uint64
	Class  FlockClass
}

// sees reports whether locks of the two owners can be in each other's way.
func (o FlockOwner) sees(p FlockOwner) bool { return o != p && (o.Class == BSD) == (p.Class == BSD) }

// FlockRange is one range held by an owner.
type FlockRange struct {
	extent.Extent
	Owner FlockOwner
	PID   uint32
	Write bool
}

func (r *FlockRange) conflicts(q *FlockRange) bool {
	return (r.Write || q.Write) && r.Owner.sees(q.Owner) && r.Overlaps(q.Extent)
}

// FlockTable is the application locks of one file, on a server and, for replay and localflock, on a client.
//
// Invariant: ranges are sorted by Start; ranges of one owner do not overlap; two of one owner and kind do not touch.
// Its zero value is empty. It is not safe for concurrent use.
type FlockTable struct {
	ranges  []FlockRange
	scratch []FlockRange
}

// Conflict returns the first range that keeps r out.
func (t *FlockTable) Conflict(r *FlockRange) (FlockRange, bool) {
	for i := range t.ranges {
		if t.ranges[i].Start >= r.End {
			break
		}
		if t.ranges[i].conflicts(r) {
			return t.ranges[i], true
		}
	}
	return FlockRange{}, false
}

// Set makes r its owner's lock on its bytes, in place of what the owner had there. Precondition: no Conflict.
func (t *FlockTable) Set(r *FlockRange) { t.apply(r, true) }

// Clear takes the owner's locks off r's bytes. It reports whether there were any.
func (t *FlockTable) Clear(r *FlockRange) bool { return t.apply(r, false) }

// apply splits, merges and replaces.
func (t *FlockTable) apply(r *FlockRange, set bool) bool {
	out := t.scratch[:0]
	whole := *r
	changed := false
	for i := range t.ranges {
		q := &t.ranges[i]
		touches := q.Start <= r.End && r.Start <= q.End
		switch {
		case q.Owner != r.Owner || !touches:
			out = append(out, *q)
		case set && q.Write == r.Write: // overlapping or side by side: one range
			whole.Start, whole.End = min(whole.Start, q.Start), max(whole.End, q.End)
			changed = true
		case !q.Overlaps(r.Extent):
			out = append(out, *q)
		default:
			changed = true
			if q.Start < r.Start {
				left := *q
				left.End = r.Start
				out = append(out, left)
			}
			if q.End > r.End {
				right := *q
				right.Start = r.End
				out = append(out, right)
			}
		}
	}
	if set {
		out = append(out, whole)
		changed = true
	}
	// Nearly sorted: an insertion sort moves the few new ones.
	for i := 1; i < len(out); i++ {
		for j := i; j > 0 && out[j].Start < out[j-1].Start; j-- {
			out[j], out[j-1] = out[j-1], out[j]
		}
	}
	t.ranges, t.scratch = out, t.ranges[:0]
	return changed
}

// DropClient takes all ranges of a client out and returns how many there were.
func (t *FlockTable) DropClient(c ClientID) int {
	n := len(t.ranges)
	t.ranges = slices.DeleteFunc(t.ranges, func(r FlockRange) bool { return r.Owner.Client == c })
	return n - len(t.ranges)
}

// Ranges returns the ranges in the order of Start; valid until the next change.
func (t *FlockTable) Ranges() []FlockRange { return t.ranges }

// blockers appends the owners that keep r out, each once.
func (t *FlockTable) blockers(r *FlockRange, to []FlockOwner) []FlockOwner {
	for i := range t.ranges {
		if q := &t.ranges[i]; q.conflicts(r) && !slices.Contains(to, q.Owner) {
			to = append(to, q.Owner)
		}
	}
	return to
}
