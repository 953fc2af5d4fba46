package lockd_test

import (
	"context"
	"sync"
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/lockd"
)

// glimpse asks for an object's LVB; it returns whether a lock came with it.
func (k *client) glimpse(n uint64) (ldlm.LVB, bool, error) {
	r := ldlm.Request{Res: object(n), Mode: ldlm.PR, Extent: extent.Extent{End: extent.EOF}, Flags: ldlm.Glimpse}
	var m wirepb.EnqueueRequest
	wire.PutEnqueue(&m, &r, k.handle())
	var reply wirepb.EnqueueReply
	if err := k.do(wire.OpEnqueue, &m, &reply); err != nil {
		return ldlm.LVB{}, false, err
	}
	v, err := wire.ParseLVB(reply.Lvb)
	if reply.Lock != 0 {
		k.cancel(ldlm.Handle(reply.Lock))
	}
	return v, reply.Lock != 0, err
}

func TestGlimpse(t *testing.T) {
	c := newCluster(t, lockd.Options{})
	a, b := c.client("a"), c.client("b")
	c.store.set(object(1).Object(), 500)
	if v, locked, err := b.glimpse(1); err != nil || !locked || v.Size != 500 {
		t.Fatalf("alone: %+v, %v, %v", v, locked, err)
	}
	if _, _, err := a.lock(write(1, 0, 10)); err != nil {
		t.Fatal(err)
	}
	a.onGlimpse = func(x wire.AST) (ldlm.LVB, error) { return ldlm.LVB{Size: 9000, Mtime: 5}, nil }
	if v, locked, err := b.glimpse(1); err != nil || locked || v.Size != 9000 || v.Mtime != 5 {
		t.Fatalf("beside a writer: %+v, %v, %v", v, locked, err)
	}
	if n := a.count(wire.OpGlimpseAST); n != 1 || a.count(wire.OpBlockingAST) != 0 {
		t.Errorf("%d glimpse ASTs, %d blocking ones", n, a.count(wire.OpBlockingAST))
	}
	// The writer has given the lock back meanwhile: the store's figures count. Its lie is not believed.
	a.onGlimpse = func(x wire.AST) (ldlm.LVB, error) { return ldlm.LVB{}, status.BadHandle }
	c.store.set(object(1).Object(), 9500)
	if v, _, err := b.glimpse(1); err != nil || v.Size != 9500 {
		t.Errorf("a crossed AST: %+v, %v", v, err)
	}
	a.onGlimpse = func(x wire.AST) (ldlm.LVB, error) { return ldlm.LVB{Size: 1 << 63}, nil }
	if v, _, err := b.glimpse(1); err != nil || v.Size != 9500 {
		t.Errorf("a lie: %+v, %v", v, err)
	}
}

// A glimpse whose writer vanishes is answered within the grace.
func TestGlimpseOfALostWriter(t *testing.T) {
	c := newCluster(t, lockd.Options{ReconnectGrace: 100e6})
	a := c.client("a")
	c.store.set(object(1).Object(), 500)
	if _, _, err := a.lock(write(1, 0, 10)); err != nil {
		t.Fatal(err)
	}
	a.cut(true)
	var wg sync.WaitGroup
	for _, name := range []string{"b", "d"} {
		k := c.client(name)
		wg.Go(func() {
			if v, _, err := k.glimpse(1); err != nil || v.Size != 500 {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
	wg.Wait()
	if c.wasEvicted("a") == "" {
		t.Error("a was not evicted")
	}
}

// The server's own operation asks writers for the size too, and leaves when its context ends.
func TestGlimpseOfTheServer(t *testing.T) {
	c := newCluster(t, lockd.Options{})
	a := c.client("a")
	e, id := env.New(), object(1).Object()
	c.store.set(id, 500)
	if v, err := c.locks.Glimpse(t.Context(), e, id); err != nil || v.Size != 500 || c.locks.Namespace().LockCount() != 0 {
		t.Fatalf("alone: %+v, %v", v, err)
	}
	if _, _, err := a.lock(write(1, 0, 10)); err != nil {
		t.Fatal(err)
	}
	ask, answer := make(chan struct{}, 2), make(chan struct{}, 2)
	a.onGlimpse = func(wire.AST) (ldlm.LVB, error) { ask <- struct{}{}; <-answer; return ldlm.LVB{Size: 9000}, nil }
	ctx, cancel := context.WithCancel(t.Context())
	got := later(func() error { _, err := c.locks.Glimpse(ctx, env.New(), id); return err })
	<-ask
	cancel()
	within(t, "who gave up", got, context.Canceled)
	answer <- struct{}{}
	answer <- struct{}{}
	if v, err := c.locks.Glimpse(t.Context(), e, id); err != nil || v.Size != 9000 {
		t.Errorf("beside a writer: %+v, %v", v, err)
	}
}

// Recall calls back and waits for nobody; a client's own locks are spared where the operation is its own.
func TestRecall(t *testing.T) {
	c := newCluster(t, lockd.Options{})
	a, b := c.client("a"), c.client("b")
	for _, k := range []*client{a, b} {
		if _, _, err := k.lock(ldlm.Request{Res: object(1), Mode: ldlm.PR, Extent: extent.Extent{End: 4096}}); err != nil {
			t.Fatal(err)
		}
	}
	l := lockd.LocalLock{Res: object(1), Mode: ldlm.PW, Extent: extent.Extent{End: 10}, Cause: c.sessionsOf("a")[0].lock.ID(), Own: true}
	c.locks.Recall(env.New(), &l)
	until(t, "b has given its lock back", func() bool { return c.locks.Namespace().LockCount() == 1 })
	if n := a.count(wire.OpBlockingAST); n != 0 {
		t.Errorf("%d blocking ASTs to the client whose operation it is", n)
	}
}
