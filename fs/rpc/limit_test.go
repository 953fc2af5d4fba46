package rpc_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
)

// TestInFlightCanBeLowered: no more requests are under way than were asked for, and never more than the server allows.
func TestInFlightCanBeLowered(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.target.maxInFlight = 6
		var active, most atomic.Int64
		step := make(chan struct{})
		c.target.serve = func(_ *env.Env, call *rpc.Call) error {
			n := active.Add(1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			<-step
			active.Add(-1)
			return nil
		}
		c.start()
		i := c.connect(nil)
		defer close(step)
		if reads, mods := i.InFlight(); reads != 6 || mods != 6 {
			t.Fatalf("%d and %d in flight, the server allows 6", reads, mods)
		}
		i.SetInFlight(3, 2)
		for op, want := range map[wire.Op]int64{wire.OpGetattr: 3, wire.OpSetattr: 2} {
			most.Store(0)
			var wg sync.WaitGroup
			for range 12 {
				wg.Go(func() {
					if err := i.Do(testContext(t), &rpc.Request{Op: op}); err != nil {
						t.Error(err)
					}
				})
			}
			for range 12 {
				step <- struct{}{}
			}
			wg.Wait()
			if n := most.Load(); n > want {
				t.Errorf("%d of %v at once, want %d at most", n, op, want)
			}
		}
		i.SetInFlight(i.InFlightMost(), i.InFlightMost())
		if reads, mods := i.InFlight(); reads != 6 || mods != 6 {
			t.Errorf("%d and %d in flight after raising, the server allows 6", reads, mods)
		}
		c.crash()
		c.target.maxInFlight = 4
		i.SetInFlight(5, 3)
		c.restart()
		go func() { step <- struct{}{} }()
		if err := i.Do(testContext(t), &rpc.Request{Op: wire.OpGetattr}); err != nil {
			t.Fatal(err)
		}
		if reads, mods := i.InFlight(); reads != 4 || mods != 3 {
			t.Errorf("%d and %d in flight after the restart", reads, mods)
		}
	})
}
