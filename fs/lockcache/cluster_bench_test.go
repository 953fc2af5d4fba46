package lockcache_test

import (
	"testing"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
)

// The whole way over a pipe with the real server: ask, grant, revoke, cancel.
func TestEnqueueAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	c := newCluster(t, 20*time.Second)
	n := c.join(quiet{}, nil)
	ctx := t.Context()
	r := lockcache.Request{Res: inode(5), Mode: ldlm.EX, Bits: ldlm.Update, Fresh: true}
	run := func() { // each one cancels the one before early
		g, err := n.Acquire(ctx, &r)
		if err != nil {
			t.Fatal(err)
		}
		n.Unpin(g.Handle)
	}
	for range 50 {
		run()
	}
	if got := testing.AllocsPerRun(200, run); got >= 1 {
		t.Errorf("%v allocations", got)
	}
}

// BenchmarkEnqueue asks the real server over a pipe; each request carries the cancel of the lock before.
func BenchmarkEnqueue(b *testing.B) {
	c := newCluster(b, 20*time.Second)
	n := c.join(quiet{}, nil)
	ctx := b.Context()
	r := lockcache.Request{Res: inode(5), Mode: ldlm.EX, Bits: ldlm.Update, Fresh: true}
	b.ReportAllocs()
	for b.Loop() {
		g, err := n.Acquire(ctx, &r)
		if err != nil {
			b.Fatal(err)
		}
		n.Unpin(g.Handle)
	}
}

// BenchmarkPingPong hands one lock from client to client: enqueue, blocking AST, revoke, cancel, completion AST.
func BenchmarkPingPong(b *testing.B) {
	c := newCluster(b, 20*time.Second)
	nodes := []*node{c.join(quiet{}, nil), c.join(quiet{}, nil)}
	ctx := b.Context()
	r := lockcache.Request{Res: inode(5), Mode: ldlm.EX, Bits: ldlm.Update}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		n := nodes[i%2]
		i++
		g, err := n.Acquire(ctx, &r)
		if err != nil {
			b.Fatal(err)
		}
		n.Unpin(g.Handle)
	}
}
