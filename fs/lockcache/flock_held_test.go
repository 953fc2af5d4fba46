package lockcache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
)

// flockOf is a wish of an owner.
func flockOf(f fid.FID, owner uint64, class ldlm.FlockClass, op ldlm.FlockOp, e extent.Extent) *ldlm.FlockRequest {
	return &ldlm.FlockRequest{Res: ldlm.FlockRes(f), Op: op, Range: ldlm.FlockRange{
		Extent: e, Owner: ldlm.FlockOwner{Owner: owner, Class: class}, PID: uint32(owner),
	}}
}

// TestFlocksOutliveARestart: whatever two clients have locked and unlocked, the table of a target that was started again is the one of
// before when both have handed theirs back.
func TestFlocksOutliveARestart(t *testing.T) {
	c := newCluster(t, time.Minute)
	nodes := []*node{c.join(newOwner(), nil), c.join(newOwner(), nil)}
	ctx := t.Context()
	rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	table := func() string {
		var text []string
		for k := range 4 {
			for _, r := range c.locks.Namespace().FlockRanges(ldlm.FlockRes(fid.FID{Seq: fid.SeqFirst, OID: uint32(k + 1)}), nil) {
				text = append(text, fmt.Sprintln(k, r.Extent, r.Owner.Owner, r.Owner.Class, r.PID, r.Write))
			}
		}
		slices.Sort(text) // those of several owners that begin together have no order
		return strings.Join(text, "")
	}
	for round := range 6 {
		for range 150 {
			n := rnd.IntN(2)
			f := fid.FID{Seq: fid.SeqFirst, OID: uint32(rnd.IntN(4) + 1)}
			start := rnd.Uint64N(100)
			r := flockOf(f, uint64(10*n+rnd.IntN(3)+1), ldlm.FlockClass(rnd.IntN(3)), ldlm.FlockOp(rnd.IntN(3)), extent.Extent{Start: start, End: start + 1 + rnd.Uint64N(30)})
			var err error
			if r.Op == ldlm.FlockUnlock {
				err = nodes[n].Unflock(ctx, r)
			} else {
				err = nodes[n].Flock(ctx, r)
			}
			if err != nil && !errors.Is(err, status.Again) {
				t.Fatal(err)
			}
		}
		before := table()
		c.restart(nodes...)
		for _, n := range nodes {
			if _, _, err := n.TestFlock(ctx, flockOf(fid.Root, 1, ldlm.Posix, ldlm.FlockShared, extent.Extent{End: 1})); err != nil {
				t.Fatal(err)
			}
			if n.lost.Load() != 0 {
				t.Errorf("%d are lost", n.lost.Load())
			}
		}
		if after := table(); after != before {
			t.Fatalf("round %d, before:\n%safter:\n%s", round, before, after)
		}
	}
}

// TestAWaitingFlockOutlivesARestart: the wish is made once more, and granted when its holder, whose lock came back, gives it up.
func TestAWaitingFlockOutlivesARestart(t *testing.T) {
	c := newCluster(t, time.Minute)
	a, b := c.join(newOwner(), nil), c.join(newOwner(), nil)
	f := fid.FID{Seq: fid.SeqFirst, OID: 1}
	all := extent.Extent{End: extent.EOF}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := a.Flock(ctx, flockOf(f, 1, ldlm.BSD, ldlm.FlockExclusive, all)); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	waits := func() {
		for i, ok := c.locks.Namespace().Resource(0, ldlm.FlockRes(f)); !ok || i.Waiting == 0; i, ok = c.locks.Namespace().Resource(0, ldlm.FlockRes(f)) {
			if ctx.Err() != nil {
				select {
				case err := <-got:
					t.Fatalf("nobody waits: %v", err)
				default:
					t.Fatal("nobody waits")
				}
			}
			runtime.Gosched()
		}
	}
	go func() {
		r := flockOf(f, 2, ldlm.BSD, ldlm.FlockExclusive, all)
		r.Wait = true
		got <- b.Flock(ctx, r)
	}()
	waits()
	c.restart(a, b)
	if _, held, err := a.TestFlock(ctx, flockOf(f, 3, ldlm.BSD, ldlm.FlockExclusive, all)); err != nil || !held {
		t.Fatalf("held %v: %v", held, err)
	}
	waits()
	select {
	case err := <-got:
		t.Fatalf("granted beside its holder: %v", err)
	default:
	}
	if err := a.Unflock(ctx, flockOf(f, 1, ldlm.BSD, ldlm.FlockUnlock, all)); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}
