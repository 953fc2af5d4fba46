package rpc

import "sync"

// limits are how many requests may be in flight at once: what the user wants, of those that change nothing and of those
// that do, and what the server allows of each.
type limits struct {
	mu          sync.Mutex
	reads, mods int // wanted; guarded by mu
	granted     int // guarded by mu
}

// InFlight tells how many requests that change nothing, and how many that do, may be in flight at once.
func (i *Import) InFlight() (reads, mods int) {
	l := &i.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	return min(l.reads, l.granted), min(l.mods, l.granted)
}

// InFlightMost is what SetInFlight takes at most: what the import was made with.
func (i *Import) InFlightMost() int { return i.o.MaxInFlight }

// SetInFlight changes the limits, but for 0; the server may allow less. What is in flight is not recalled.
// Precondition: both are from 0 to InFlightMost.
func (i *Import) SetInFlight(reads, mods int) {
	l := &i.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	if reads != 0 {
		l.reads = reads
	}
	if mods != 0 {
		l.mods = mods
	}
	i.limitLocked()
}

// grantInFlight follows what a server allows.
func (i *Import) grantInFlight(n int) {
	l := &i.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	l.granted = n
	i.limitLocked()
}

// limitLocked applies the limits. Precondition: limits.mu is held.
func (i *Import) limitLocked() {
	l := &i.limits
	i.reads.setLimit(min(l.reads, l.granted))
	i.mods.setLimit(min(l.mods, l.granted))
}
