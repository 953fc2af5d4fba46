package rpc_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// TestDeactivated: an import that is switched off fails requests at once, one that the server does not answer and one that
// waits for a dead server among them; what gives something back passes while there is a connection; switched on it serves.
func TestDeactivated(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		hold, held := make(chan struct{}), make(chan struct{}, 1)
		c.target.serve = func(e *env.Env, call *rpc.Call) error {
			if call.Header.Op == wire.OpGetattr {
				held <- struct{}{}
				<-hold
				return nil
			}
			return serveEcho(e, call)
		}
		c.start()
		r := stats.NewRegistry()
		i := c.connect(func(o *rpc.ImportOptions) { o.Stats = r })
		ctx := testContext(t)
		inFlight := make(chan error, 1)
		go func() { inFlight <- i.Do(ctx, &rpc.Request{Op: wire.OpGetattr, Body: &wirepb.GetattrRequest{}}) }()
		<-held
		set := func(name, value string) {
			t.Helper()
			if err := setOne(r, "rpc.*."+name, value); err != nil {
				t.Fatal(err)
			}
		}
		set("active", "0")
		if err := <-inFlight; status.Of(err) != status.IO {
			t.Error(err)
		}
		close(hold)
		off := func() {
			t.Helper()
			if err := echo(ctx, i, "x"); status.Of(err) != status.IO || !errors.As(err, new(*status.Error)) {
				t.Errorf("%v", err)
			}
		}
		off()
		if i.Active() {
			t.Error("it is active")
		}
		// The connection comes back, and with it what gives something back.
		for end := time.Now().Add(10 * time.Second); ; <-time.After(time.Millisecond) {
			err := i.Do(ctx, &rpc.Request{Op: wire.OpClose, Body: &wirepb.CloseRequest{}})
			if err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal(err, i.State())
			}
		}
		off()
		// With the server dead, who waited before and who comes after.
		set("active", "1")
		c.stop()
		waits := make(chan error, 1)
		go func() { waits <- echo(ctx, i, "y") }()
		select {
		case err := <-waits:
			t.Fatalf("it does not wait for the server: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		set("active", "0")
		if err := <-waits; status.Of(err) != status.IO {
			t.Error(err)
		}
		off()
		if err := i.Do(ctx, &rpc.Request{Op: wire.OpClose, Body: &wirepb.CloseRequest{}}); status.Of(err) != status.IO {
			t.Error(err)
		}
		c.start()
		set("active", "1")
		if err := echo(ctx, i, "z"); err != nil {
			t.Error(err)
		}
		// And recover connects anew.
		before := c.target.gone.Load()
		set("recover", "1")
		for end := time.Now().Add(10 * time.Second); c.target.gone.Load() == before; {
			if time.Now().After(end) {
				t.Fatal("the connection stands")
			}
			<-time.After(time.Millisecond)
		}
		if err := echo(ctx, i, "z"); err != nil {
			t.Error(err)
		}
		if err := setOne(r, "rpc.*.active", "2"); status.Of(err) != status.Invalid {
			t.Error(err)
		}
	})
}

// setOne sets the one parameter that a pattern names.
func setOne(r *stats.Registry, pattern, value string) error {
	nodes, err := r.List(pattern, false)
	if err != nil {
		return err
	}
	if len(nodes) != 1 {
		return fmt.Errorf("%s: %d parameters", pattern, len(nodes))
	}
	return nodes[0].Set(value)
}
