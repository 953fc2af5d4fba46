package lov

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/osc"
)

// parallelMax bounds the requests that one call sends at once: a file may have 2,000 stripes.
const parallelMax = 16

// Set is the OSCs of a mount by OST index. It may grow. Safe for concurrent use.
type Set struct {
	mu   sync.RWMutex
	oscs map[layout.OSTIndex]*osc.OSC // guarded by mu

	kernel osc.Kernel
	pins   sync.Pool // of *pins
	limits atomic.Pointer[ReadAhead]
	ahead  readAheadStats

	// running counts calls that go on although their caller was interrupted.
	running sync.WaitGroup
}

// NewSet returns a set of these OSCs.
func NewSet(oscs ...*osc.OSC) *Set {
	s := &Set{oscs: make(map[layout.OSTIndex]*osc.OSC, len(oscs))}
	for _, o := range oscs {
		s.Add(o)
	}
	return s
}

// Add enters an OSC. Open files that miss it find it from now on.
// Precondition: its index is not in the set.
func (s *Set) Add(o *osc.OSC) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.oscs[o.Index()] != nil {
		panic(fmt.Sprintf("lov: OST %d twice", o.Index()))
	}
	s.oscs[o.Index()] = o
	o.Attach(&s.kernel)
}

// Get returns the OSC of an index, nil if there is none.
func (s *Set) Get(i layout.OSTIndex) *osc.OSC {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.oscs[i]
}

// All returns the OSCs in order of index.
func (s *Set) All() []*osc.OSC {
	s.mu.RLock()
	list := make([]*osc.OSC, 0, len(s.oscs))
	for _, o := range s.oscs {
		list = append(list, o)
	}
	s.mu.RUnlock()
	slices.SortFunc(list, func(a, b *osc.OSC) int { return cmp.Compare(a.Index(), b.Index()) })
	return list
}

// OSTSpace is one OST's answer to Statfs.
type OSTSpace struct {
	Index layout.OSTIndex
	Name  string
	osc.Space
	// Err says why the OST did not answer; Space is zero then.
	Err error
}

// Space is the sum of what the OSTs told, and each one's answer in order of index.
type Space struct {
	osc.Space
	OSTs []OSTSpace
}

// statfsWait is how long df waits for an OST that is away: people are watching.
const statfsWait = 2 * time.Second

// Statfs asks all OSTs in parallel. One that has not answered after two seconds, or when ctx ends, has its error in its
// entry and is left out of the sum. The error is that of the OSTs when none answered.
func (s *Set) Statfs(ctx context.Context) (Space, error) {
	ctx, cancel := context.WithTimeout(ctx, statfsWait)
	defer cancel()
	oscs := s.All()
	out := Space{OSTs: make([]OSTSpace, len(oscs))}
	var g sync.WaitGroup
	for i, o := range oscs {
		g.Go(func() {
			e := &out.OSTs[i]
			e.Index, e.Name = o.Index(), o.Name()
			e.Space, e.Err = o.Statfs(ctx)
		})
	}
	g.Wait()
	var errs []error
	for _, e := range out.OSTs {
		out.Space.Add(e.Space)
		if e.Err != nil {
			errs = append(errs, e.Err)
		}
	}
	if len(errs) == len(oscs) {
		return out, errors.Join(errs...)
	}
	return out, nil
}

// SyncAll writes back all dirty data and makes everything durable on every OST. It waits for all, and returns what
// failed.
func (s *Set) SyncAll(ctx context.Context) error {
	oscs := s.All()
	errs := make([]error, len(oscs))
	var g sync.WaitGroup
	for i, o := range oscs {
		g.Go(func() { errs[i] = o.Sync(ctx) })
	}
	g.Wait()
	return errors.Join(errs...)
}

// Close waits until interrupted calls have ended, or until ctx ends. They end with their request's answer, or when
// their OSC is closed. Close the set's OSCs first.
func (s *Set) Close(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		s.kernel.Close()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("lov: close: %w", ctx.Err())
	}
}
