package dash

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/fid"
)

// Limits of the search for paths.
const (
	// pathTimeout bounds one search: the metadata target may be what does not answer.
	pathTimeout = 2 * time.Second
	// pathAge is how long what was found, or not found, is shown before it is searched again.
	pathAge = 15 * time.Second
	// maxPathQueue is how many searches may wait; at the bound the next look at the page asks again.
	maxPathQueue = 64
	// maxPathsKept is how many answers are kept; past it the oldest go.
	maxPathsKept = 1024
	// maxPathsShown is how many paths of one file are shown: one with hard links has several.
	maxPathsShown = 4
)

// resolver finds the paths of files for the page, in a goroutine of its own: a page never waits for a target.
type resolver struct {
	ask   func(context.Context, fid.FID) ([]string, error)
	queue chan fid.FID

	mu    sync.Mutex
	known map[fid.FID]knownPaths // guarded by mu
}

type knownPaths struct {
	paths []string
	asked time.Time
}

func newResolver(ask func(context.Context, fid.FID) ([]string, error)) *resolver {
	return &resolver{ask: ask, queue: make(chan fid.FID, maxPathQueue), known: map[fid.FID]knownPaths{}}
}

// of returns the paths that are known, none at first, and has them searched when that was long ago.
func (r *resolver) of(f fid.FID) []string {
	if r.ask == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k, ok := r.known[f]
	if now := time.Now(); !ok || now.Sub(k.asked) > pathAge {
		select {
		case r.queue <- f:
			r.rememberLocked(f, knownPaths{k.paths, now})
		default:
		}
	}
	return k.paths
}

// rememberLocked keeps an answer and forgets the oldest past the bound.
func (r *resolver) rememberLocked(f fid.FID, k knownPaths) {
	if _, ok := r.known[f]; !ok && len(r.known) >= maxPathsKept {
		oldest, first := f, true
		for g, have := range r.known {
			if first || have.asked.Before(r.known[oldest].asked) {
				oldest, first = g, false
			}
		}
		delete(r.known, oldest)
	}
	r.known[f] = k
}

// run searches until ctx ends.
func (r *resolver) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-r.queue:
			r.search(ctx, f)
		}
	}
}

func (r *resolver) search(ctx context.Context, f fid.FID) {
	ctx, cancel := context.WithTimeout(ctx, pathTimeout)
	defer cancel()
	paths, err := r.ask(ctx, f)
	if err != nil {
		paths = nil // gone, or not to be had now: the FID is shown, and it is searched again later
	}
	paths = slices.Clone(paths[:min(len(paths), maxPathsShown)])
	for i := range paths {
		paths[i] = printable("/" + strings.TrimPrefix(paths[i], "/"))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rememberLocked(f, knownPaths{paths, time.Now()})
}
