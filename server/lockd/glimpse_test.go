package lockd_test

import (
	"sync"
	"testing"

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
