package rpc

import (
	"context"
	"math/bits"
	"sync"
)

// MaxInFlightLimit is the largest max_rpcs_in_flight. Two sets of slots and the reserve stay below indexLimit.
const MaxInFlightLimit = 256

// PriorSlots is the reserve for operations that must never wait behind others (wire.Op.Prior): as many modifying ones,
// with the slot numbers 1 to PriorSlots, and as many others. Other modifying requests have the numbers above.
const PriorSlots = 8

// slots hands out the numbers first to first+size-1, the lowest free one first: the fewer slots a client uses, the fewer
// reply records its targets write. Who finds none waits in turn.
type slots struct {
	first uint32
	// hand carries numbers to waiters; it has room for all, so that nobody waits to put one in.
	hand chan uint32

	mu      sync.Mutex
	free    [MaxInFlightLimit / 64]uint64 // bit set: free; guarded by mu
	limit   int                           // numbers first+limit and above are not handed out; guarded by mu
	waiters int                           // those to whom no number was handed yet; guarded by mu
}

func newSlots(first uint32, size int) *slots {
	s := &slots{first: first, hand: make(chan uint32, size), limit: size}
	for i := range size {
		s.free[i/64] |= 1 << (i % 64)
	}
	return s
}

// takeLocked returns the lowest free number below the limit.
func (s *slots) takeLocked() (uint32, bool) {
	for w, set := range s.free {
		if set == 0 {
			continue
		}
		i := w*64 + bits.TrailingZeros64(set)
		if i >= s.limit {
			return 0, false
		}
		s.free[w] = set & (set - 1)
		return s.first + uint32(i), true
	}
	return 0, false
}

// try takes a number if one is free and nobody waits.
func (s *slots) try() (uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiters > 0 {
		return 0, false
	}
	return s.takeLocked()
}

// acquire takes a number, waiting for one until ctx ends (its error) or stop is closed (errClosed).
func (s *slots) acquire(ctx context.Context, stop <-chan struct{}) (uint32, error) {
	s.mu.Lock()
	if s.waiters == 0 {
		if i, ok := s.takeLocked(); ok {
			s.mu.Unlock()
			return i, nil
		}
	}
	s.waiters++
	s.mu.Unlock()
	var err error
	select {
	case i := <-s.hand:
		return i, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-stop:
		err = errClosed
	}
	s.mu.Lock()
	if s.waiters > 0 {
		s.waiters--
		s.mu.Unlock()
		return 0, err
	}
	// Every waiter, this one included, has a number on its way.
	s.mu.Unlock()
	s.release(<-s.hand)
	return 0, err
}

// release gives a number back. It never waits.
func (s *slots) release(n uint32) {
	i := int(n - s.first)
	s.mu.Lock()
	s.free[i/64] |= 1 << (i % 64)
	s.serveLocked()
	s.mu.Unlock()
}

// setLimit makes n the number of slots in use at most, 1 <= n <= size.
func (s *slots) setLimit(n int) {
	s.mu.Lock()
	s.limit = n
	s.serveLocked()
	s.mu.Unlock()
}

// over reports whether the number is one that the limit no longer allows.
func (s *slots) over(n uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(n-s.first) >= s.limit
}

// serveLocked hands free numbers to waiters.
func (s *slots) serveLocked() {
	for s.waiters > 0 {
		n, ok := s.takeLocked()
		if !ok {
			return
		}
		s.waiters--
		s.hand <- n
	}
}
