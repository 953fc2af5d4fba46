package client

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/stats"
)

// aheadClient is a client whose glimpses fail at once: the layouts that unsizedEntry makes cannot be decoded.
func aheadClient(t *testing.T) *Client {
	c := &Client{}
	c.inodes.init()
	c.nodes.init()
	c.ctx, c.cancel = context.WithCancel(t.Context())
	c.ahead.init(c)
	t.Cleanup(func() {
		c.cancel()
		c.ahead.close()
	})
	return c
}

func unsizedEntry(i int) *mdc.Dirent {
	f := fid.FID{Seq: fid.SeqFirst, OID: uint32(i + 1)}
	return &mdc.Dirent{
		Name: fmt.Append(nil, "f", i), FID: f, HasAttr: true, Layout: []byte{0xff},
		Attr: attr.Attr{FID: f, Mode: attr.TypeFile | 0o644, Nlink: 1},
	}
}

// entryOf is what the MDT answers with when nothing has changed.
func entryOf(d *mdc.Dirent) *mdc.Entry { return &mdc.Entry{Attr: d.Attr, Layout: d.Layout} }

// TestStataheadGivesUp: a listing whose glimpses are of no use to any stat leaves it at what stats begin themselves.
func TestStataheadGivesUp(t *testing.T) {
	c := aheadClient(t)
	s := &c.ahead
	var of listing
	for i := range 2 * missesMax {
		d := unsizedEntry(i)
		s.note(&of, 1, d)
		o := s.lookup(1, string(d.Name))
		if o == nil {
			t.Fatalf("file %d is not known", i)
		}
		e := entryOf(d)
		a := e.Attr
		if s.answered(t.Context(), o, e, &a) {
			t.Fatal("a glimpse that failed completed a stat")
		}
	}
	if s.listings.Load() != 1 || s.wrong.Load() != 1 || s.misses.Load() != missesMax+1 || s.hits.Load() != 0 {
		t.Errorf("%d listings, %d gave up, %d hits, %d misses", s.listings.Load(), s.wrong.Load(), s.hits.Load(), s.misses.Load())
	}
	before := s.glimpsed.Load()
	s.note(&of, 1, unsizedEntry(1000))
	if n := s.glimpsed.Load(); n != before {
		t.Errorf("%d glimpses after it was given up", n-before)
	}
	if s.stat(unsizedEntry(1000).FID.Ino()) == nil {
		t.Error("a stat has no glimpse of its own")
	}
}

// TestStataheadIsBounded: however much is listed, and listed again, without a stat.
func TestStataheadIsBounded(t *testing.T) {
	c := aheadClient(t)
	s := &c.ahead
	s.max.Store(10)
	var of listing
	for round := range 20 {
		for i := range 25 {
			s.note(&of, 1, unsizedEntry(i))
			if round == 10 && i%2 == 0 {
				s.lookup(1, fmt.Sprint("f", i))
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.n.Load(); n > 10 || int(n) != len(s.inos) || int(n) != len(s.names) {
		t.Errorf("%d files: %d by number, %d by name", n, len(s.inos), len(s.names))
	}
	if len(s.order) > 30 || len(s.queue) > 30 {
		t.Errorf("%d in order, %d in the queue", len(s.order), len(s.queue))
	}
}

// TestStataheadMakesRoom: a file that nobody asked for keeps its place for a while only, one that was asked for goes first.
func TestStataheadMakesRoom(t *testing.T) {
	c := aheadClient(t)
	s := &c.ahead
	s.max.Store(2)
	var of listing
	for i := range 3 {
		s.note(&of, 1, unsizedEntry(i))
	}
	known := func(i int) bool { return s.inos[unsizedEntry(i).FID.Ino()] != nil }
	if !known(0) || !known(1) || known(2) {
		t.Fatal("a fresh file lost its place")
	}
	s.lookup(1, "f0")
	s.note(&of, 1, unsizedEntry(2))
	if known(0) || !known(1) || !known(2) {
		t.Fatal("a file that was asked for kept its place")
	}
	s.mu.Lock()
	for _, x := range s.order {
		x.since = time.Now().Add(-2 * aheadStale)
	}
	s.mu.Unlock()
	s.note(&of, 1, unsizedEntry(3))
	if known(1) || !known(2) || !known(3) {
		t.Fatal("a stale file kept its place")
	}
	if s.misses.Load() != 1 {
		t.Errorf("%d misses, want the one that nobody asked for", s.misses.Load())
	}
}

// TestStataheadFollowsTheMDT: what is noted follows the MDT's answers, and goes when the MDT knows the size.
func TestStataheadFollowsTheMDT(t *testing.T) {
	c := aheadClient(t)
	s := &c.ahead
	var of listing
	d := unsizedEntry(1)
	s.note(&of, 1, d)
	e := entryOf(d)
	e.Attr.Mode = attr.TypeFile | 0o600
	a := e.Attr
	if s.answered(t.Context(), s.stat(d.FID.Ino()), e, &a) {
		t.Error("a glimpse from before a chmod was used after it")
	}
	if x := s.inos[d.FID.Ino()]; x == nil || x.attr.Mode != e.Attr.Mode {
		t.Error("the mode was not followed")
	}
	e.Attr.SizeValid, e.Attr.Size = true, 77
	a = e.Attr
	if s.answered(t.Context(), s.stat(d.FID.Ino()), e, &a) || a.Size != 77 {
		t.Error("the MDT's size was replaced")
	}
	if s.n.Load() != 0 || s.stat(d.FID.Ino()) != nil || s.lookup(1, "f1") != nil {
		t.Error("a file with a known size is still known")
	}
	for what, d := range map[string]*mdc.Dirent{
		"a folder":       {Name: []byte("d"), FID: d.FID, HasAttr: true, Attr: attr.Attr{FID: d.FID, Mode: attr.TypeDir}},
		"no attributes":  {Name: []byte("n"), FID: d.FID},
		"a size":         {Name: []byte("s"), FID: d.FID, HasAttr: true, Layout: []byte{1}, Attr: attr.Attr{FID: d.FID, Mode: attr.TypeFile, SizeValid: true}},
		"without layout": {Name: []byte("l"), FID: d.FID, HasAttr: true, Attr: attr.Attr{FID: d.FID, Mode: attr.TypeFile}},
	} {
		if s.note(&of, 1, d); s.n.Load() != 0 {
			t.Errorf("%s was noted", what)
		}
	}
}

// TestStatWithoutStataheadDoesNotAllocate: most stats are of files that no listing showed without a size.
func TestStatWithoutStataheadDoesNotAllocate(t *testing.T) {
	c := aheadClient(t)
	e := &mdc.Entry{}
	var a attr.Attr
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		c.ahead.answered(ctx, c.ahead.stat(7), e, &a)
		c.ahead.answered(ctx, c.ahead.lookup(1, "name"), e, &a)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestStataheadFigures(t *testing.T) {
	c := aheadClient(t)
	reg := stats.NewRegistry()
	c.ahead.register(reg, "llite.fs-0.")
	c.ahead.hits.Store(3)
	found := false
	if err := reg.Walk("llite.*.statahead_stats", func(e stats.Entry) error {
		found = true
		const want = "statahead total: 0\nstatahead wrong: 0\nagl total: 0\nhit_total: 3\nmiss_total: 0"
		if got := e.Text(); got != want {
			t.Errorf("statahead_stats is %q", got)
		}
		for _, f := range e.Figures() {
			if f.Name == "hits_total" && f.Value != 3 {
				t.Errorf("hits_total is %v", f.Value)
			}
		}
		return nil
	}); err != nil || !found {
		t.Errorf("found %v: %v", found, err)
	}
}
