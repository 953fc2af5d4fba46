package rpc_test

import (
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/strakefs/strake/fs/failpoint"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

// TestFailPoints: each way to fail a request does what it says; a request that is lost, or its reply, runs once all the same.
func TestFailPoints(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		fp := failpoint.New()
		c.options.FailPoints = fp
		c.start()
		i := c.connect(nil)
		ctx := testContext(t)
		modify := func() error { return i.Do(ctx, &rpc.Request{Op: wire.OpCreate}) }
		arm := func(loc, val, when string) {
			t.Helper()
			if err := fp.Arm(loc, val, when); err != nil {
				t.Fatal(err)
			}
		}
		executed := func() (all int) {
			c.target.disk.mu.Lock()
			defer c.target.disk.mu.Unlock()
			for xid, n := range c.target.disk.executed {
				if n != 1 {
					t.Errorf("xid %d was executed %d times", xid, n)
				}
				all += n
			}
			return all
		}
		for n, loc := range []string{"drop_request", "drop_reply", "drop_request,drop_request,drop_reply"} {
			arm(loc, "0", "op:create+target:strake-*+times:1,op:connect+times:3,op:create+times:1")
			if err := modify(); err != nil || fp.Count(0) != 1 || executed() != n+1 {
				t.Errorf("%s: %v, failed %d times, %d executed", loc, err, fp.Count(0), executed())
			}
		}
		if fp.Count(1) != 3 || fp.Count(2) != 1 {
			t.Errorf("connect was cut %d times of 3, the reply after it %d of 1", fp.Count(1), fp.Count(2))
		}
		arm("error_reply", "ENOSPC", "op:create+times:1")
		if err := modify(); !errors.Is(err, status.NoSpace) || executed() != 3 {
			t.Errorf("%v, %d executed", err, executed())
		}
		arm("error_reply", "", "op:unlink")
		if err := modify(); err != nil {
			t.Error(err)
		}
		arm("delay_request", "30", "op:create")
		began := time.Now()
		if err := modify(); err != nil || time.Since(began) < 30*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		arm("0", "", "")
	})
}

// TestSilentConnection: a connection that falls silent is given up, and what ran on it is not run again.
func TestSilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "pipe")
		fp := failpoint.New()
		c.options.FailPoints = fp
		c.start()
		i, err := rpc.NewImport(c.options4(nil))
		if err != nil {
			t.Fatal(err)
		}
		if err := i.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := fp.Arm("drop_reply", "1", "op:create+times:1"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := i.Do(t.Context(), &rpc.Request{Op: wire.OpCreate}); err != nil {
			t.Error(err)
		}
		t.Logf("answered after %v", time.Since(began))
		if time.Since(began) < time.Second || fp.Count(0) != 1 {
			t.Error("the connection was not silent")
		}
		c.target.disk.mu.Lock()
		if len(c.target.disk.executed) != 1 {
			t.Error(c.target.disk.executed)
		}
		c.target.disk.mu.Unlock()
		closeImport(t, i)
		c.stop()
	})
}

// TestLastHeardOfATargetThatIsAway: an import that nobody has asked knows when it heard of its target last.
func TestLastHeardOfATargetThatIsAway(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.start()
		began := time.Now()
		i := c.connect(nil)
		c.crash()
		for i.State() == rpc.StateFull {
			runtime.Gosched()
		}
		if at := i.LastHeard(); at.Before(began.Add(-time.Millisecond)) || at.After(time.Now()) {
			t.Errorf("heard at %v, connected at %v", at, began)
		}
	})
}
