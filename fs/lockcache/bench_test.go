package lockcache_test

import (
	"context"
	"testing"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
)

// quiet is an owner that keeps nothing.
type quiet struct{}

func (quiet) Revoke(context.Context, *lockcache.Revocation) {}
func (quiet) Glimpse(ldlm.ResID, any, *ldlm.LVB) bool       { return false }
func (quiet) Lost()                                         {}
func (quiet) Silent(context.Context)                        {}

// held is a cache with a lock on an inode and one on an object.
func held(tb testing.TB) (*lockcache.Cache, []lockcache.Request) {
	c := lockcache.New(lockcache.Options{Import: newScripted(), Owner: quiet{}, Seed: 1})
	tb.Cleanup(c.Close)
	list := []lockcache.Request{
		{Res: inode(5), Mode: ldlm.PR, Bits: ldlm.Update},
		{Res: object(5), Mode: ldlm.PR, Extent: extent.Extent{Start: 4096, End: 8192}},
	}
	for i := range list {
		wide := list[i]
		if wide.Bits == 0 {
			wide.Extent = whole()
		}
		g, err := c.Acquire(tb.Context(), &wide)
		if err != nil {
			tb.Fatal(err)
		}
		c.Unpin(g.Handle)
	}
	return c, list
}

func TestMatchDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	c, list := held(t)
	ctx := t.Context()
	for i := range list {
		r := &list[i]
		if n := testing.AllocsPerRun(200, func() {
			g, err := c.Acquire(ctx, r)
			if err != nil || !g.Matched {
				t.Fatal("no match")
			}
			c.Unpin(g.Handle)
		}); n != 0 {
			t.Errorf("%v: %v allocations", r.Res, n)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	c, list := held(b)
	ctx := b.Context()
	for i, name := range []string{"inode", "object"} {
		b.Run(name, func(b *testing.B) {
			r := &list[i]
			b.ReportAllocs()
			for b.Loop() {
				g, _ := c.Acquire(ctx, r)
				c.Unpin(g.Handle)
			}
		})
	}
}

// BenchmarkMatchParallel matches one lock from all processors.
func BenchmarkMatchParallel(b *testing.B) {
	c, list := held(b)
	ctx := b.Context()
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		r := list[0]
		for p.Next() {
			g, _ := c.Acquire(ctx, &r)
			c.Unpin(g.Handle)
		}
	})
}
