package target_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/target"
)

// events records what the hooks are told.
type events struct {
	mu   sync.Mutex
	list []string // guarded by mu
}

func (v *events) add(s string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.list = append(v.list, s)
}

func (v *events) has(want ...string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Equal(v.list, want)
}

// TestHooksFollowConnections: connected comes after the earlier generation has ended and before requests, and an eviction ends
// it all.
func TestHooksFollowConnections(t *testing.T) {
	v := &events{}
	var f *fixture
	var evicted *target.Export
	f = newFixture(t, target.Options{
		Connected: func(x *target.Export, _ *rpc.Conn) {
			if f.handler.running.Load() != 0 {
				t.Error("a request of the earlier generation runs")
			}
			evicted = x
			v.add("up")
		},
		Disconnected: func(*target.Export, *rpc.Conn) { v.add("down") },
	})
	i := f.dial(rpc.ImportOptions{Peer: "a"})
	if err := i.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- i.Do(t.Context(), &rpc.Request{Op: wire.OpSync}) }()
	<-f.handler.entered
	i.Reconnect()
	<-f.handler.entered
	eventually(t, "both connections are known", func() bool { return v.has("up", "down", "up") || v.has("up", "up", "down") })
	x := evicted
	f.target.Evict(x, "test")
	if n := f.handler.gone.Load(); n != 1 {
		t.Fatalf("%d exports gone when Evict had returned", n)
	}
	if err := <-ended; err == nil { // It may have been done: its client has to know that it was evicted.
		t.Fatal("the request of an evicted client succeeded")
	}
	if err := i.Do(t.Context(), &rpc.Request{Op: wire.OpGetattr}); err != nil {
		t.Fatal(err)
	}
	f.target.Evict(x, "again")
	if n := f.handler.gone.Load(); n != 1 || f.target.Count() != 1 {
		t.Fatalf("%d gone, %d exports", n, f.target.Count())
	}
}

// restarted makes two clients known on disk, starts the target again and brings back the first n of them.
func restarted(t *testing.T, window time.Duration, n int) (*fixture, []*rpc.Import) {
	t.Helper()
	f := newFixture(t, target.Options{ReplayWindow: window})
	var all []*rpc.Import
	for k := range 2 {
		i := f.dial(rpc.ImportOptions{Peer: "client", UUID: [16]byte{15: byte(k + 1)}})
		if err := i.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		all = append(all, i)
	}
	if err := f.device.Commit(); err != nil {
		t.Fatal(err)
	}
	f.device.Crash()
	for _, i := range all[n:] {
		f.close(i)
	}
	f.stop()
	f.start()
	for _, i := range all[:n] {
		if err := i.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return f, all[:n]
}

// ask sends a request that has to wait for the window's end.
func ask(t *testing.T, i *rpc.Import) chan error {
	ended := make(chan error, 1)
	go func() { ended <- i.Do(t.Context(), &rpc.Request{Op: wire.OpGetattr}) }()
	return ended
}

func still(t *testing.T, ended chan error) {
	t.Helper()
	select {
	case err := <-ended:
		t.Fatalf("served during the window: %v", err)
	case <-time.After(30 * time.Millisecond):
	}
}

// TestReplayWindowEndsEarly: requests wait until both clients have said that they are done, a new client's too, and replays are
// served meanwhile.
func TestReplayWindowEndsEarly(t *testing.T) {
	f, clients := restarted(t, time.Hour, 2)
	var recovering bool
	c := f.dial(rpc.ImportOptions{Peer: "new", OnConnect: func(r *wirepb.ConnectReply) { recovering = r.Recovering }})
	if err := c.Connect(t.Context()); err != nil || !recovering {
		t.Fatalf("new client: %v, recovering %v", err, recovering)
	}
	waits := []chan error{ask(t, clients[0]), ask(t, clients[1]), ask(t, c)}
	lock := rpc.Request{Op: wire.OpEnqueue, Body: &wirepb.EnqueueRequest{Own: 1, Flags: uint32(ldlm.Replay)}}
	if err := clients[0].Do(t.Context(), &lock); status.Of(err) != status.NotSupport { // The handler's answer: it has none.
		t.Fatalf("replay of a lock: %v", err)
	}
	done := func(i *rpc.Import) {
		if err := i.Do(t.Context(), &rpc.Request{Op: wire.OpReplayDone}); err != nil {
			t.Fatal(err)
		}
	}
	done(clients[0])
	done(clients[0])
	done(c)
	for _, ch := range waits {
		still(t, ch)
	}
	done(clients[1])
	for n, ch := range waits {
		if err := <-ch; err != nil {
			t.Errorf("%d: %v", n, err)
		}
	}
	if n := f.handler.gone.Load(); n != 0 {
		t.Errorf("%d evicted", n)
	}
}

// TestReplayWindowEvictsTheAbsent: who does not come back is evicted before anybody is served.
func TestReplayWindowEvictsTheAbsent(t *testing.T) {
	f, clients := restarted(t, 300*time.Millisecond, 1)
	if err := clients[0].Do(t.Context(), &rpc.Request{Op: wire.OpReplayDone}); err != nil {
		t.Fatal(err)
	}
	waits := ask(t, clients[0])
	still(t, waits)
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
	if n := f.handler.gone.Load(); n != 1 || f.target.Count() != 1 {
		t.Errorf("%d evicted, %d exports", n, f.target.Count())
	}
}

// TestReplayWindowLosesConnections: what a lost connection had asked is dropped, the client asks again; a stop ends what is held.
func TestReplayWindowLosesConnections(t *testing.T) {
	f, clients := restarted(t, time.Hour, 1)
	waits := ask(t, clients[0])
	still(t, waits)
	clients[0].Reconnect()
	still(t, waits)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := f.target.Close(ctx); err != nil {
		t.Fatal(err)
	}
	f.close(clients[0])
	if err := <-waits; err == nil {
		t.Error("served by a target that has stopped")
	}
}
