package lockd_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/lockd"
)

// echo is an intent that answers with its body, and says how many locks are granted while it runs.
type echo struct{ locks func() int64 }

func (x *echo) Serve(_ *env.Env, _ *lockd.Client, op wire.Op, body []byte, m *wirepb.EnqueueReply) {
	m.IntentReply = append(append(m.IntentReply[:0], body...), op.String()...)
	m.IntentStatus = uint32(x.locks())
}

// An intent runs under the lock, be it granted at once or after a wait.
func TestIntent(t *testing.T) {
	x := &echo{}
	c := newCluster(t, lockd.Options{Intent: x})
	x.locks = c.locks.Namespace().LockCount
	a, b := c.client("a"), c.client("b")
	for n, k := range []*client{a, b} {
		r := bits(1, ldlm.EX, ldlm.Update)
		var m wirepb.EnqueueRequest
		wire.PutEnqueue(&m, &r, k.handle())
		m.Intent, m.IntentBody = uint32(wire.OpGetattr), []byte("body ")
		var reply wirepb.EnqueueReply
		if err := k.do(wire.OpEnqueue, &m, &reply); err != nil {
			t.Fatal(err)
		}
		if string(reply.IntentReply) != "body getattr" || reply.IntentStatus != 1 || reply.Lock == 0 {
			t.Errorf("%d: %v", n, &reply)
		}
		if n == 0 { // b waits for a
			a.mu.Lock()
			a.held[ldlm.Handle(m.Own)] = ldlm.Answer{Remote: ldlm.Handle(reply.Lock)}
			a.mu.Unlock()
		}
	}
}

// What waits for an object that is destroyed is told, held or detached.
func TestDeny(t *testing.T) {
	c := newCluster(t, lockd.Options{HeldMax: 1})
	a, b := c.client("a"), c.client("b")
	a.onBlocking = func(wire.AST, ldlm.Recall) error { return nil }
	if _, _, err := a.lock(write(1, 0, 10)); err != nil {
		t.Fatal(err)
	}
	var got []chan error
	for n := range 2 {
		got = append(got, later(func() error { _, _, err := b.lock(write(1, 0, 10)); return err }))
		until(t, "b waits", func() bool { return c.waiting(object(1)) == n+1 })
	}
	c.locks.Deny(env.New(), object(1), status.NotExist)
	for _, ch := range got {
		within(t, "the denial", ch, status.NotExist)
	}
}

// Who works under a lock is spared as long as it does.
func TestBusyIsSpared(t *testing.T) {
	var busy atomic.Bool
	busy.Store(true)
	asked := make(chan ldlm.ResID, 100)
	c := newCluster(t, lockd.Options{Limits: ldlm.Limits{LockTimeout: 50 * time.Millisecond}, Tick: 5 * time.Millisecond,
		Busy: func(_ *lockd.Client, id ldlm.ResID) bool { asked <- id; return busy.Load() }})
	a, b := c.client("a"), c.client("b")
	a.onBlocking = func(wire.AST, ldlm.Recall) error { return nil }
	if _, _, err := a.lock(write(1, 0, 10)); err != nil {
		t.Fatal(err)
	}
	got := later(func() error { _, _, err := b.lock(write(1, 0, 10)); return err })
	for range 3 {
		if id := <-asked; id != object(1) {
			t.Errorf("asked about %v", id)
		}
	}
	if why := c.wasEvicted("a"); why != "" {
		t.Errorf("evicted: %s", why)
	}
	busy.Store(false)
	within(t, "the lock", got, nil)
	if c.wasEvicted("a") == "" {
		t.Error("not evicted")
	}
}

// A lock comes with another request's answer where nobody has to give one back, and an early cancel frees one without an
// AST.
func TestGrantAndEarlyCancel(t *testing.T) {
	c := newCluster(t, lockd.Options{})
	e := env.New()
	x, y := c.locks.Join("x"), c.locks.Join("y")
	defer x.Gone()
	defer y.Gone()
	var g, h wirepb.LockGrant
	want := &wirepb.LockWant{Own: 4, Mode: uint32(ldlm.PR), Bits: uint32(ldlm.Lookup), TryBits: uint32(ldlm.Update)}
	if !c.locks.Grant(e, x, inode(1), want, &g) || g.Own != 4 || g.Bits != uint32(ldlm.Lookup|ldlm.Update) {
		t.Fatalf("%v", &g)
	}
	l := lockd.LocalLock{Res: inode(1), Mode: ldlm.EX, Bits: ldlm.Update}
	if err := c.locks.CancelEarly(e, x, []uint64{g.Lock, 99}); err != nil {
		t.Fatal(err)
	}
	if err := c.locks.TryLock(e, &l); err != nil {
		t.Fatal(err)
	}
	if !c.locks.Grant(e, y, inode(1), want, &h) || h.Bits != uint32(ldlm.Lookup) {
		t.Errorf("beside the server's: %v", &h)
	}
	want.Bits = uint32(ldlm.Update)
	if c.locks.Grant(e, y, inode(1), want, &h) || c.locks.Grant(e, y, inode(1), nil, &h) {
		t.Error("granted what is not free")
	}
	c.locks.Downgrade(e, &l, ldlm.PR, 0) // what an answer's lock needs
	if !c.locks.Grant(e, y, inode(1), want, &h) {
		t.Error("not granted beside the downgraded one")
	}
	c.locks.Unlock(e, &l)
	if err := c.locks.CancelEarly(e, x, make([]uint64, wire.CancelsMax+1)); status.Of(err) != status.Protocol {
		t.Error(err)
	}
}

// An operation of a client leaves the client's own locks alone, calls those of others back, and a lock for the client goes
// with its answer.
func TestOwnOperation(t *testing.T) {
	c := newCluster(t, lockd.Options{})
	a, b := c.client("a"), c.client("b")
	for _, k := range []*client{a, b} {
		if _, _, err := k.lock(bits(1, ldlm.PR, ldlm.Lookup|ldlm.Update)); err != nil {
			t.Fatal(err)
		}
	}
	e := env.New()
	x := c.sessionsOf("a")[0].lock
	op := lockd.LocalLock{Res: inode(1), Mode: ldlm.EX, Bits: ldlm.Update, Cause: x.ID(), Own: true}
	if err := c.locks.TryLock(e, &op); status.Of(err) != status.Again {
		t.Fatalf("while b holds: %v", err)
	}
	if err := c.locks.Lock(t.Context(), e, &op); err != nil {
		t.Fatal(err)
	}
	if n, m := a.count(wire.OpBlockingAST), b.count(wire.OpBlockingAST); n != 0 || m != 1 {
		t.Errorf("blocking ASTs: %d to the client itself, %d to the other one", n, m)
	}
	var g wirepb.LockGrant
	want := &wirepb.LockWant{Mode: uint32(ldlm.PR), TryBits: uint32(ldlm.Update | ldlm.Perm)}
	if !c.locks.Grant(e, x, inode(1), want, &g) || g.Bits != uint32(ldlm.Update|ldlm.Perm) {
		t.Errorf("granted with the answer: %v", &g)
	}
	if !c.locks.Grant(e, c.sessionsOf("b")[0].lock, inode(1), want, &g) || g.Bits != uint32(ldlm.Perm) {
		t.Errorf("granted to the other one: %v", &g)
	}
	c.locks.Unlock(e, &op)
}

// A client goes while everything of it is under way: waits, ASTs to it, glimpses.
func TestGoneWithAllUnderWay(t *testing.T) {
	c := newCluster(t, lockd.Options{HeldMax: 1})
	a, b := c.client("a"), c.client("b")
	hang := make(chan struct{})
	a.onBlocking = func(wire.AST, ldlm.Recall) error { <-hang; return nil }
	a.onGlimpse = func(wire.AST) (ldlm.LVB, error) { <-hang; return ldlm.LVB{}, nil }
	for n := range 3 {
		if _, _, err := a.lock(write(uint64(n+1), 0, 10)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := b.lock(write(9, 0, 10)); err != nil {
		t.Fatal(err)
	}
	b.onBlocking = func(wire.AST, ldlm.Recall) error { return nil }
	var doomed, got []chan error
	for range 2 { // a waits: held and detached
		doomed = append(doomed, later(func() error { _, _, err := a.lock(write(9, 0, 10)); return err }))
	}
	until(t, "a waits", func() bool { return c.waiting(object(9)) == 2 })
	for n := range 2 {
		got = append(got, later(func() error { _, _, err := b.lock(write(uint64(n+1), 0, 10)); return err }))
	}
	got = append(got, later(func() error { _, _, err := b.glimpse(3); return err }))
	until(t, "a is asked", func() bool { return a.count(wire.OpBlockingAST) == 2 && a.count(wire.OpGlimpseAST) == 1 })
	a.net.dead.Store(true)
	for _, x := range c.sessionsOf("a") {
		c.evict(x.lock, "test")
	}
	for _, ch := range got {
		within(t, "what waited for a", ch, nil)
	}
	close(hang)
	a.close(t.Context())
	for _, ch := range doomed {
		within(t, "a's requests", ch, errAny)
	}
	if n := c.waiting(object(9)); n != 0 {
		t.Errorf("%d still wait", n)
	}
}
