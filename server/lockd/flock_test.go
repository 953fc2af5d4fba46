package lockd_test

import (
	"context"
	"testing"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/lockd"
)

func flockOf(n uint32, op ldlm.FlockOp, start, end, owner uint64) ldlm.FlockRequest {
	r := ldlm.FlockRequest{Res: file(n), Op: op, Wait: true}
	r.Range.Extent, r.Range.PID = extent.Extent{Start: start, End: end}, uint32(owner)
	r.Range.Owner = ldlm.FlockOwner{Owner: owner, Class: ldlm.Posix}
	return r
}

// flock takes, or with FlockUnlock gives up, an application lock.
func (k *client) flock(n uint32, op ldlm.FlockOp, start, end, owner uint64, wait bool) error {
	r := flockOf(n, op, start, end, owner)
	r.Wait = wait
	if op == ldlm.FlockUnlock {
		var m wirepb.FlockRequest
		wire.PutFlockRequest(&m, &r, false)
		return k.do(wire.OpFlock, &m, nil)
	}
	var m wirepb.EnqueueRequest
	wire.PutFlock(&m, &r, k.handle())
	_, err := k.ask(&m)
	return err
}

func TestFlock(t *testing.T) {
	c := newCluster(t, lockd.Options{})
	a, b := c.client("a"), c.client("b")
	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	ok("a locks", a.flock(1, ldlm.FlockExclusive, 0, 100, 1, false))
	if err := b.flock(1, ldlm.FlockShared, 50, 60, 2, false); status.Of(err) != status.Again {
		t.Errorf("a conflict: %v", err)
	}
	r := flockOf(1, ldlm.FlockExclusive, 0, 200, 2)
	var m wirepb.FlockRequest
	var reply wirepb.FlockReply
	wire.PutFlockRequest(&m, &r, true)
	ok("F_GETLK", b.do(wire.OpFlock, &m, &reply))
	if !reply.Held || reply.Start != 0 || reply.End != 100 || !reply.Write || reply.Pid != 1 || reply.Same {
		t.Errorf("F_GETLK: %v", &reply)
	}
	// b waits, a unlocks a part: b gets it.
	got := later(func() error { return b.flock(1, ldlm.FlockExclusive, 50, 60, 2, true) })
	until(t, "b waits", func() bool { return c.waiting(file(1)) == 1 })
	ok("a unlocks", a.flock(1, ldlm.FlockUnlock, 40, 70, 1, false))
	within(t, "b's lock", got, nil)
	// A circle: a waits for b, then b for a.
	got = later(func() error { return a.flock(1, ldlm.FlockExclusive, 50, 60, 1, true) })
	until(t, "a waits", func() bool { return c.waiting(file(1)) == 1 })
	if err := b.flock(1, ldlm.FlockExclusive, 0, 10, 2, true); status.Of(err) != status.Deadlock {
		t.Errorf("a circle: %v", err)
	}
	ok("b unlocks", b.flock(1, ldlm.FlockUnlock, 0, extent.EOF, 2, false))
	within(t, "a's lock", got, nil)
}

// A wait that is interrupted: withdrawn in time, and too late.
func TestWithdraw(t *testing.T) {
	c := newCluster(t, lockd.Options{})
	a, b := c.client("a"), c.client("b")
	if err := a.flock(1, ldlm.FlockExclusive, 0, 10, 1, true); err != nil {
		t.Fatal(err)
	}
	r := flockOf(1, ldlm.FlockExclusive, 0, 10, 2)
	var m wirepb.EnqueueRequest
	wire.PutFlock(&m, &r, 77)
	var reply wirepb.EnqueueReply
	if err := b.do(wire.OpEnqueue, &m, &reply); err != nil || !reply.Waiting {
		t.Fatalf("%v, %v", &reply, err)
	}
	withdraw := func(own uint64) int {
		var cr wirepb.CancelReply
		if err := b.do(wire.OpCancel, &wirepb.CancelRequest{Waiting: []uint64{own}}, &cr); err != nil {
			t.Fatal(err)
		}
		return len(cr.Ended)
	}
	if n := withdraw(77); n != 0 || c.waiting(file(1)) != 0 {
		t.Errorf("withdrawn: %d ended, %d wait", n, c.waiting(file(1)))
	}
	if n := withdraw(77); n != 1 {
		t.Errorf("withdrawn again: %d ended", n)
	}
	// A held call is answered with Interrupted.
	if _, _, err := a.lock(write(1, 0, 10)); err != nil {
		t.Fatal(err)
	}
	a.onBlocking = func(wire.AST, ldlm.Recall) error { return nil }
	got := later(func() error {
		w := write(1, 0, 10)
		var m wirepb.EnqueueRequest
		wire.PutEnqueue(&m, &w, 78)
		return b.imp.Do(context.Background(), &rpc.Request{Op: wire.OpEnqueue, Body: &m})
	})
	until(t, "b waits", func() bool { return c.waiting(object(1)) == 1 })
	if n := withdraw(78); n != 0 {
		t.Error("ended")
	}
	within(t, "the held call", got, status.Interrupted)

	// An application lock granted to who does not wait any more goes back.
	m.Own = uint64(gaveUp)
	if err := b.do(wire.OpEnqueue, &m, &reply); err != nil || !reply.Waiting {
		t.Fatalf("%v, %v", &reply, err)
	}
	if err := a.flock(1, ldlm.FlockUnlock, 0, extent.EOF, 1, false); err != nil {
		t.Fatal(err)
	}
	until(t, "the lock went back", func() bool {
		return b.count(wire.OpCompletionAST) == 1 && len(c.locks.Namespace().FlockRanges(file(1), nil)) == 0
	})
}
