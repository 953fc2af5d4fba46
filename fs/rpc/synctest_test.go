package rpc_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire"
)

// switched is a network that can stop to deliver.
type switched struct {
	rpc.Transport
	deaf atomic.Bool
}

type switchedConn struct {
	net.Conn
	s *switched
}

func (s *switched) Dial(ctx context.Context, addr string) (net.Conn, error) {
	nc, err := s.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &switchedConn{nc, s}, nil
}

func (c *switchedConn) Write(b []byte) (int, error) {
	if c.s.deaf.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func TestPingKeepsAnIdleConnectionAndFindsADeadOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "pipe")
		reg := stats.NewRegistry()
		c.options.Stats = reg
		c.start()
		net := &switched{Transport: c.transport}
		i := c.connect(func(o *rpc.ImportOptions) { o.Transport, o.Bulk = net, true })
		time.Sleep(10 * time.Minute) // fake time: server and client would both have given up an idle peer
		if n := reg.Gauge("rpc.server.connections", "").Load(); n != 2 || i.State() != rpc.StateFull {
			t.Fatalf("%d connections, state %v", n, i.State())
		}
		net.deaf.Store(true)
		start := time.Now()
		done := make(chan error)
		go func() { done <- echo(context.Background(), i, "x") }()
		time.Sleep(30 * time.Second)
		net.deaf.Store(false)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > 45*time.Second {
			t.Errorf("it took %v to notice and connect anew", d)
		}
		closeImport(t, i)
		c.stop()
	})
}

// TestCloseAfterTheTargetWent: a good-bye that nobody hears takes its time at most, and is no error.
func TestCloseAfterTheTargetWent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "pipe")
		c.start()
		net := &switched{Transport: c.transport}
		i := c.connect(func(o *rpc.ImportOptions) { o.Transport = net })
		net.deaf.Store(true)
		start := time.Now()
		if err := i.Close(t.Context()); err != nil || time.Since(start) > 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		j := c.connect(func(o *rpc.ImportOptions) { o.Transport = &switched{Transport: c.transport} })
		closeImport(t, j)
		c.stop()
	})
}

func TestBackoffIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "pipe")
		c.start()
		i := c.connect(nil)
		c.crash()
		time.Sleep(time.Hour)
		if s := i.State(); s != rpc.StateDisconn && s != rpc.StateConnecting {
			t.Errorf("state %v", s)
		}
		c.restart()
		start := time.Now()
		if err := echo(t.Context(), i, "x"); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("connected after %v", d)
		}
		closeImport(t, i)
		c.stop()
	})
}

func TestSetAddressesMovesAWaitingImport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "pipe")
		c.start()
		i := c.connect(nil)
		c.crash()
		time.Sleep(time.Hour)
		c.addr = "elsewhere"
		c.restart()
		i.SetAddresses([]string{"nowhere", "elsewhere"})
		if err := echo(t.Context(), i, "x"); err != nil {
			t.Fatal(err)
		}
		i.Reconnect()
		if err := echo(t.Context(), i, "y"); err != nil {
			t.Fatal(err)
		}
		closeImport(t, i)
		c.stop()
	})
}

func TestIdleWorkersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "pipe")
		reg := stats.NewRegistry()
		c.options.Stats = reg
		c.target.serve = func(_ *env.Env, call *rpc.Call) error {
			time.Sleep(time.Second)
			return nil
		}
		c.start()
		i := c.connect(nil)
		for range 16 {
			go i.Do(context.Background(), &rpc.Request{Op: wire.OpGetattr})
		}
		time.Sleep(500 * time.Millisecond)
		workers := reg.Gauge("rpc.server.threads_started", "")
		if n := workers.Load(); n < 16 {
			t.Errorf("%d workers for 16 requests at once", n)
		}
		time.Sleep(time.Minute)
		if n := workers.Load(); n > 3 {
			t.Errorf("%d workers with nothing to do", n)
		}
		closeImport(t, i)
		c.stop()
	})
}

func TestServerCloseLetsRunningRequestsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "pipe")
		c.target.serve = func(_ *env.Env, call *rpc.Call) error {
			time.Sleep(3 * time.Second)
			return call.Context().Err()
		}
		c.start()
		i := c.connect(func(o *rpc.ImportOptions) { o.RetryLimit = time.Minute })
		done := make(chan error, 1)
		go func() { done <- i.Do(context.Background(), &rpc.Request{Op: wire.OpGetattr}) }()
		synctest.Wait()
		c.stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := i.Do(ctx, &rpc.Request{Op: wire.OpGetattr}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		closeImport(t, i)
	})
}
