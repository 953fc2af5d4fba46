package client

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/stats"
)

// Limits of statahead, as Lustre has them.
const (
	// stataheadMax is what statahead_max begins with, stataheadMost what it may be set to.
	stataheadMax  = 128
	stataheadMost = 2048
	// aheadInFlight bounds the glimpses that listings have under way, flyingMax those of all, with those that stats begin.
	aheadInFlight = 16
	flyingMax     = 64
	// missesMax is how many stats in a row a listing's glimpses may be of no use to.
	missesMax = 32
	// aheadStale is how long a file without a stat keeps its place from others.
	aheadStale = 2 * time.Second
)

// statahead knows files that a listing showed without a size, because other clients have them open for writing. It asks the
// OSTs for their sizes ahead of the stats that follow: the locks that come with the answers spare those stats the way to the
// OSTs. A lock that a writer needs does not come, and a size without one is old before it is here: somebody may have written
// since the OST looked. So every stat has a glimpse of its own, but it begins that while the MDT answers, not after.
//
// Invariant: a stat uses only a glimpse that began after the stat, and only if the MDT then answers with what it had answered
// before the stat began. So all that the stat tells was true at one moment, when the glimpse looked.
type statahead struct {
	c   *Client
	max atomic.Int64
	// n is how many files are known; who finds 0 need not lock.
	n    atomic.Int64
	wait sync.WaitGroup

	// listings that looked ahead, and of those the ones that gave it up; glimpses ahead of stats; stats that one was of use
	// to, and of none.
	listings, wrong, glimpsed, hits, misses atomic.Int64

	mu     sync.Mutex
	inos   map[uint64]*unsized // by inode number; guarded by mu
	names  map[uint64]*unsized // by the hash of folder and name; guarded by mu
	order  []*unsized          // by age, with some that are out already; guarded by mu
	queue  []*unsized          // to be glimpsed ahead, in order; guarded by mu
	ahead  int                 // glimpses under way that listings began; guarded by mu
	flying int                 // all under way; guarded by mu
	closed bool                // guarded by mu
}

// unsized is a file whose size the MDT did not know. Its fields are guarded by statahead.mu.
type unsized struct {
	// attr and layout are what the MDT told last. The layout's bytes are never changed.
	attr   attr.Attr
	layout []byte
	name   uint64
	since  time.Time
	of     *listing
	// now is the listing's glimpse under way, nil for none.
	now *glimpsing
	// asked says that a stat came, out that it has left the table.
	asked, out bool
}

// listing is one open folder's looking ahead.
type listing struct {
	// began and stopped say that it has looked ahead, and that it does so no more; misses counts those in a row. All are
	// guarded by statahead.mu.
	began, stopped bool
	misses         int
}

// glimpsing is a glimpse under way: sizes and err are there when done is closed.
type glimpsing struct {
	done  chan struct{}
	sizes lov.Sizes
	err   error
}

// overlap is a stat's glimpse.
type overlap struct {
	*glimpsing
	x      *unsized
	attr   attr.Attr
	layout []byte
	// first says that no other stat came before.
	first bool
}

func (s *statahead) init(c *Client) {
	s.c = c
	s.inos, s.names = make(map[uint64]*unsized), make(map[uint64]*unsized)
	s.max.Store(stataheadMax)
}

// close waits for the glimpses under way.
// Precondition: the client's context has ended.
func (s *statahead) close() {
	s.mu.Lock()
	s.closed, s.queue = true, nil
	s.mu.Unlock()
	s.wait.Wait()
}

// note takes in an entry of a listing, with attributes, that went to the kernel without them. It waits for nothing.
func (s *statahead) note(of *listing, parent uint64, e *mdc.Dirent) {
	if !e.HasAttr || !e.Attr.IsFile() || e.Attr.SizeValid || len(e.Layout) == 0 || s.max.Load() == 0 {
		return
	}
	if in := s.c.find(e.FID.Ino()); in != nil { // This mount has it in use, and knows better.
		s.c.put(in)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compactLocked()
	now := time.Now()
	if x := s.inos[e.FID.Ino()]; x != nil {
		s.dropLocked(x)
	}
	if !s.roomLocked(now) {
		return
	}
	x := &unsized{
		attr: bare(&e.Attr), layout: bytes.Clone(e.Layout), name: s.c.nodes.hash(parent, string(e.Name)), since: now, of: of,
	}
	if y := s.names[x.name]; y != nil {
		s.dropLocked(y)
	}
	s.inos[e.FID.Ino()], s.names[x.name] = x, x
	s.order = append(s.order, x)
	s.n.Add(1)
	if of.stopped {
		return
	}
	if !of.began {
		of.began = true
		s.listings.Add(1)
	}
	s.queue = append(s.queue, x)
	s.nextLocked()
}

// compactLocked forgets those that are out where they are more than the others may be.
func (s *statahead) compactLocked() {
	out := func(x *unsized) bool { return x.out }
	most := 2 * int(s.max.Load())
	if len(s.order) > most {
		s.order = slices.DeleteFunc(s.order, out)
	}
	if len(s.queue) > most {
		s.queue = slices.DeleteFunc(s.queue, out)
	}
}

// roomLocked makes room for one more: those leave first that a stat has come to, or that have waited for one for long.
func (s *statahead) roomLocked(now time.Time) bool {
	for s.n.Load() >= s.max.Load() || len(s.order) > 0 && s.order[0].out {
		if len(s.order) == 0 {
			return false
		}
		x := s.order[0]
		if !x.out && !x.asked && now.Sub(x.since) < aheadStale {
			return s.n.Load() < s.max.Load()
		}
		s.order[0] = nil
		s.order = s.order[1:]
		if !x.out && !x.asked {
			s.missLocked(x.of)
		}
		s.dropLocked(x)
	}
	return true
}

// dropLocked takes a file out.
func (s *statahead) dropLocked(x *unsized) {
	if x.out {
		return
	}
	x.out = true
	delete(s.inos, x.attr.FID.Ino())
	delete(s.names, x.name)
	s.n.Add(-1)
}

// nextLocked begins glimpses of those in the queue, as many as may be under way.
func (s *statahead) nextLocked() {
	for len(s.queue) > 0 && s.ahead < aheadInFlight {
		x := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		if x.out || x.asked || x.now != nil || x.of.stopped {
			continue
		}
		g := s.beginLocked(x, nil)
		if g == nil {
			return
		}
		x.now = g
		s.ahead++
		s.glimpsed.Add(1)
		s.wait.Go(func() {
			<-g.done
			s.mu.Lock()
			defer s.mu.Unlock()
			x.now = nil
			s.ahead--
			s.nextLocked()
		})
	}
}

// beginLocked begins a glimpse, behind an older one whose lock may answer it; nil when too many are under way.
func (s *statahead) beginLocked(x *unsized, older *glimpsing) *glimpsing {
	if s.closed || s.flying >= flyingMax {
		return nil
	}
	g := &glimpsing{done: make(chan struct{})}
	s.flying++
	e := &mdc.Entry{Attr: x.attr, Layout: x.layout}
	s.wait.Go(func() {
		if older != nil {
			<-older.done
		}
		if file, err := s.c.openData(e); err != nil {
			g.err = err
		} else {
			g.sizes, g.err = file.Glimpse(s.c.ctx)
			file.Close()
		}
		s.mu.Lock()
		s.flying--
		s.mu.Unlock()
		close(g.done)
	})
	return g
}

// stat is called when a stat of an inode begins, before the MDT is asked: it gives the glimpse that runs meanwhile, nil for a
// file that is not known.
func (s *statahead) stat(ino uint64) *overlap {
	if s.n.Load() == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overlapLocked(s.inos[ino])
}

// lookup is stat of an entry of a folder.
func (s *statahead) lookup(parent uint64, entry string) *overlap {
	if s.n.Load() == 0 {
		return nil
	}
	h := s.c.nodes.hash(parent, entry)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overlapLocked(s.names[h])
}

func (s *statahead) overlapLocked(x *unsized) *overlap {
	if x == nil {
		return nil
	}
	o := &overlap{x: x, attr: x.attr, layout: x.layout, first: !x.asked}
	x.asked = true
	if o.glimpsing = s.beginLocked(x, x.now); o.glimpsing == nil {
		return nil
	}
	return o
}

// answered completes attributes that the MDT answered a stat with, and reports whether it could; o may be nil.
func (s *statahead) answered(ctx context.Context, o *overlap, e *mdc.Entry, a *attr.Attr) bool {
	if o == nil {
		return false
	}
	same := bare(&e.Attr) == o.attr && bytes.Equal(e.Layout, o.layout)
	if same && !a.SizeValid {
		select {
		case <-o.done:
		case <-ctx.Done():
			return false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x := o.x
	switch {
	case e.Attr.FID != o.attr.FID, a.SizeValid:
		s.dropLocked(x)
	case !same:
		x.attr, x.layout = bare(&e.Attr), bytes.Clone(e.Layout)
	}
	used := same && !a.SizeValid && o.err == nil
	if o.first {
		if used && o.sizes.Held {
			s.hits.Add(1)
			x.of.misses = 0
		} else {
			s.missLocked(x.of)
		}
	}
	if used {
		sized(a, &o.sizes)
	}
	return used
}

// missLocked counts a glimpse ahead that was of no use. A listing with too many of them leaves it at what stats begin.
func (s *statahead) missLocked(of *listing) {
	if of.stopped {
		return
	}
	s.misses.Add(1)
	if of.misses++; of.misses > missesMax {
		of.stopped = true
		s.wrong.Add(1)
	}
}

// bare is what of attributes the MDT has told.
func bare(a *attr.Attr) attr.Attr {
	b := *a
	b.Under, b.Volatile, b.NoXattr = 0, false, false
	return b
}

// register enters the parameter and the figures below at.
func (s *statahead) register(reg *stats.Registry, at string) {
	reg.Param(at+"statahead_max", "Files in use by other clients whose sizes are known or asked for ahead of stats; 0 to 2048, 0 asks for none.",
		func() string { return strconv.FormatInt(s.max.Load(), 10) },
		func(text string) error {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 32)
			if err != nil || n < 0 || n > stataheadMost {
				return fmt.Errorf("client: statahead_max is a number from 0 to %d, not %q", stataheadMost, text)
			}
			s.max.Store(n)
			return nil
		})
	figures := []struct {
		line, metric string
		v            *atomic.Int64
	}{
		{"statahead total", "listings_total", &s.listings}, {"statahead wrong", "wrong_total", &s.wrong},
		{"agl total", "glimpses_total", &s.glimpsed}, {"hit_total", "hits_total", &s.hits}, {"miss_total", "misses_total", &s.misses},
	}
	reg.TextFigures(at+"statahead_stats",
		"Listings that asked for sizes ahead, those that gave it up, glimpses, and stats that these were of use to and of none.",
		func() string {
			var b strings.Builder
			for i, f := range figures {
				if i > 0 {
					b.WriteByte('\n')
				}
				fmt.Fprintf(&b, "%s: %d", f.line, f.v.Load())
			}
			return b.String()
		}, func() []stats.Figure {
			out := make([]stats.Figure, 0, len(figures))
			for _, f := range figures {
				out = append(out, stats.Figure{Name: f.metric, Value: float64(f.v.Load()), Counter: true})
			}
			return out
		})
}
