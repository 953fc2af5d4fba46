package lockd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/lockd"
)

// A lock goes from hand to hand: the holder is called back once, and who waits gets it when it has been given back.
func TestHandOver(t *testing.T) {
	c := newCluster(t, lockd.Options{})
	a, b := c.client("a"), c.client("b")
	_, first, err := a.lock(write(1, 0, 10))
	if err != nil || first.Desc.Extent != (extent.Extent{End: extent.EOF}) {
		t.Fatalf("%+v, %v", first, err)
	}
	own, second, err := b.lock(write(1, 100, 200))
	if err != nil || second.Desc.Extent.Start > 100 {
		t.Fatalf("%+v, %v", second, err)
	}
	if n := a.count(wire.OpBlockingAST); n != 1 {
		t.Errorf("%d blocking ASTs", n)
	}
	b.drop(own)
	until(t, "no lock left", func() bool { return c.locks.Namespace().LockCount() == 0 })
}

// checker knows what all clients hold, and that they may.
type checker struct {
	t    *testing.T
	mu   sync.Mutex
	held map[string]holding // guarded by mu
}

type holding struct {
	who string
	res ldlm.ResID
	d   ldlm.Desc
}

func (k *checker) add(name string, h holding) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, o := range k.held {
		shared := o.d.Bits&h.d.Bits != 0
		if h.res.Type == ldlm.TypeExtent {
			shared = o.d.Extent.Overlaps(h.d.Extent)
		}
		if o.res == h.res && shared && !ldlm.Compatible(o.d.Mode, h.d.Mode) && !(o.d.Mode == ldlm.GROUP && h.d.GID == o.d.GID) {
			k.t.Errorf("%v: %s has %+v beside %s with %+v", h.res, h.who, h.d, o.who, o.d)
		}
	}
	k.held[name] = h
}

func (k *checker) remove(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.held, name)
}

// Many clients ask for locks of any mode on few resources; no two ever hold what does not go together, and all get theirs.
func TestRandomModes(t *testing.T) {
	for name, o := range map[string]lockd.Options{
		"defaults": {}, "one sender": {MaxParallelAST: 1}, "detached": {HeldMax: 1},
	} {
		t.Run(name, func(t *testing.T) { randomModes(t, newCluster(t, o), false) })
	}
}

// The same while connections are cut and come back: no lock is lost, granted twice or left behind.
func TestRandomModesOverReconnects(t *testing.T) {
	for name, o := range map[string]lockd.Options{"held": {HeldMax: 8}, "mixed": {HeldMax: 1}} {
		t.Run(name, func(t *testing.T) { randomModes(t, newCluster(t, o), true) })
	}
}

func randomModes(t *testing.T, c *cluster, cuts bool) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	check := &checker{t: t, held: map[string]holding{}}
	modes := []ldlm.Mode{ldlm.EX, ldlm.PW, ldlm.PR, ldlm.CW, ldlm.CR, ldlm.NL, ldlm.GROUP}
	var clients []*client
	var wg sync.WaitGroup
	for n := range 6 {
		k := c.client(fmt.Sprintf("c%d", n))
		clients = append(clients, k)
		k.onBlocking = func(a wire.AST, _ ldlm.Recall) error {
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.dropped[a.Own] {
				return status.BadHandle
			}
			return nil // the lock is in use and given back soon
		}
		for w := range 2 {
			rng := rand.New(rand.NewPCG(seed, uint64(10*n+w)))
			wg.Go(func() {
				for range 60 {
					r := bits(uint32(1+rng.IntN(2)), modes[rng.IntN(6)], ldlm.Bits(1+rng.IntN(127)))
					if rng.IntN(2) == 0 {
						start := uint64(rng.IntN(100))
						r = write(uint64(1+rng.IntN(2)), start, start+1+uint64(rng.IntN(50)))
						r.Mode = modes[rng.IntN(len(modes))]
						r.GID = 1 + rng.Uint64N(2)
					}
					own, a, err := k.lock(r)
					if err != nil {
						t.Errorf("%s: %+v: %v", k.name, r, err)
						return
					}
					name := fmt.Sprintf("%s %v", k.name, own)
					check.add(name, holding{k.name, r.Res, a.Desc})
					if rng.IntN(4) == 0 && r.Res.Type == ldlm.TypeInodeBits && a.Desc.Bits&^1 != 0 && a.Desc.Bits != a.Desc.Bits&^1 {
						check.remove(name) // fewer bits
						var reply wirepb.ConvertReply
						if err := k.do(wire.OpConvert, &wirepb.ConvertRequest{Lock: uint64(a.Remote), Bits: uint32(a.Desc.Bits &^ 1)}, &reply); err != nil {
							t.Errorf("convert: %v", err)
						}
						a.Desc, _ = wire.ConvertReply(&reply)
						check.add(name, holding{k.name, r.Res, a.Desc})
					}
					check.remove(name)
					k.drop(own)
				}
			})
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for n := 0; cuts && n < 2*len(clients); n++ { // an import waits longer with every cut
			select {
			case <-stop:
				return
			case <-tick.C:
				clients[n%len(clients)].cut(false)
			}
		}
	}()
	wg.Wait()
	close(stop)
	<-stopped
	until(t, "no lock left", func() bool { return c.locks.Namespace().LockCount() == 0 })
	for n := range 6 {
		if why := c.wasEvicted(fmt.Sprintf("c%d", n)); why != "" {
			t.Errorf("c%d was evicted: %s", n, why)
		}
	}
}

// A cancel that crosses the blocking AST: the client knows the lock no more and says so; nobody is evicted for it.
func TestCancelCrossesBlockingAST(t *testing.T) {
	c := newCluster(t, lockd.Options{})
	a, b := c.client("a"), c.client("b")
	crossed := make(chan struct{})
	_, lock, err := a.lock(write(1, 0, 10))
	if err != nil {
		t.Fatal(err)
	}
	a.onBlocking = func(wire.AST, ldlm.Recall) error {
		defer close(crossed)
		if err := a.cancel(lock.Remote); err != nil { // served before the AST is answered
			t.Error(err)
		}
		return status.BadHandle
	}
	if _, _, err := b.lock(write(1, 0, 10)); err != nil {
		t.Fatal(err)
	}
	<-crossed
	// One that does not know a lock that the server thinks it has loses it.
	if _, _, err = a.lock(write(2, 0, 10)); err != nil {
		t.Fatal(err)
	}
	a.onBlocking = func(wire.AST, ldlm.Recall) error { return status.BadHandle }
	if _, _, err := b.lock(write(2, 0, 10)); err != nil {
		t.Fatal(err)
	}
	if why := c.wasEvicted("a"); why != "" {
		t.Error(why)
	}
}

// A client that answers a blocking AST and then does nothing is evicted after the timeout, one that prolongs is not.
func TestLockTimeout(t *testing.T) {
	c := newCluster(t, lockd.Options{Limits: ldlm.Limits{LockTimeout: 400 * time.Millisecond}})
	for _, name := range []string{"stuck", "alive"} {
		a, b := c.client(name), c.client("after "+name)
		_, lock, err := a.lock(write(1, 0, 10))
		if err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		a.onBlocking = func(wire.AST, ldlm.Recall) error { return nil }
		got := later(func() error {
			own, _, err := b.lock(write(1, 0, 10))
			b.drop(own)
			return err
		})
		if name == "stuck" {
			within(t, "the lock after an eviction", got, nil)
			close(stop)
			if c.wasEvicted(name) == "" {
				t.Error("nobody was evicted")
			}
			continue
		}
		until(t, "blocking AST", func() bool { return a.count(wire.OpBlockingAST) == 1 })
		begin := time.Now()
		for tick := time.NewTicker(100 * time.Millisecond); time.Since(begin) < time.Second; <-tick.C {
			var reply wirepb.ProlongReply
			if err := a.do(wire.OpProlong, &wirepb.ProlongRequest{Locks: []uint64{uint64(lock.Remote), 77}}, &reply); err != nil {
				t.Fatal(err)
			}
			if len(reply.Unknown) != 1 || reply.Unknown[0] != 77 {
				t.Fatalf("unknown %v", reply.Unknown)
			}
		}
		if err := a.cancel(lock.Remote); err != nil {
			t.Fatal(err)
		}
		within(t, "the lock after prolonging", got, nil)
		if why := c.wasEvicted(name); why != "" {
			t.Error(why)
		}
	}
}

// Prolonging ends at its cap.
func TestProlongHasACap(t *testing.T) {
	c := newCluster(t, lockd.Options{Limits: ldlm.Limits{LockTimeout: 60 * time.Millisecond}, Tick: 5 * time.Millisecond})
	a, b := c.client("greedy"), c.client("b")
	_, lock, err := a.lock(write(1, 0, 10))
	if err != nil {
		t.Fatal(err)
	}
	a.onBlocking = func(wire.AST, ldlm.Recall) error { return nil }
	got := later(func() error { _, _, err := b.lock(write(1, 0, 10)); return err })
	for done := false; !done; {
		select {
		case err := <-got:
			if done = true; err != nil {
				t.Fatal(err)
			}
		case <-time.After(10 * time.Millisecond):
			a.do(wire.OpProlong, &wirepb.ProlongRequest{Locks: []uint64{uint64(lock.Remote)}}, nil)
		}
	}
	if c.wasEvicted("greedy") == "" {
		t.Error("it was not evicted")
	}
}

// A client that does not answer ASTs at all is evicted; others are served meanwhile.
func TestNoAnswerToAST(t *testing.T) {
	c := newCluster(t, lockd.Options{Limits: ldlm.Limits{LockTimeout: 300 * time.Millisecond}})
	a, b, d := c.client("dumb"), c.client("b"), c.client("d")
	block := make(chan struct{})
	t.Cleanup(func() { close(block) })
	for n := range 20 {
		if _, _, err := a.lock(write(uint64(n+1), 0, 10)); err != nil {
			t.Fatal(err)
		}
	}
	a.onBlocking = func(wire.AST, ldlm.Recall) error { <-block; return nil }
	var got []chan error
	for n := range 20 {
		got = append(got, later(func() error { _, _, err := b.lock(write(uint64(n+1), 0, 10)); return err }))
	}
	for range 5 { // somebody else's hand-over takes no notice
		if _, _, err := d.lock(write(99, 0, 10)); err != nil {
			t.Fatal(err)
		}
	}
	for _, ch := range got {
		within(t, "lock of the dumb client", ch, nil)
	}
	if c.wasEvicted("dumb") == "" {
		t.Error("it was not evicted")
	}
}

// A client whose connection is cut for good: what it holds goes to others within the grace, be it a lock or an
// application lock, and an idle one is left alone.
func TestLostClient(t *testing.T) {
	const grace = 200 * time.Millisecond
	c := newCluster(t, lockd.Options{ReconnectGrace: grace})
	a, b, idle := c.client("a"), c.client("b"), c.client("idle")
	for _, k := range []*client{a, idle} {
		if _, _, err := k.lock(write(uint64(len(k.name)), 0, 10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.flock(1, ldlm.FlockExclusive, 0, 10, 5, true); err != nil {
		t.Fatal(err)
	}
	a.cut(true)
	idle.cut(true)
	begin := time.Now()
	lock := later(func() error { _, _, err := b.lock(write(1, 0, 10)); return err })
	within(t, "the lost client's lock", lock, nil)
	within(t, "the lost client's flock", later(func() error { return b.flock(1, ldlm.FlockExclusive, 0, 10, 6, true) }), nil)
	if d := time.Since(begin); d < grace/2 || c.wasEvicted("a") == "" || c.wasEvicted("idle") != "" {
		t.Errorf("after %v: a %q, idle %q", d, c.wasEvicted("a"), c.wasEvicted("idle"))
	}
	// Only an application lock is wanted.
	d := c.client("d")
	if err := d.flock(2, ldlm.FlockExclusive, 0, 10, 7, true); err != nil {
		t.Fatal(err)
	}
	d.cut(true)
	within(t, "the flock alone", later(func() error { return b.flock(2, ldlm.FlockShared, 0, 10, 6, true) }), nil)
	if c.wasEvicted("d") == "" {
		t.Error("d was not evicted")
	}
}

// A connection is cut and comes back: waits go on, locks granted meanwhile are found, nobody is evicted, nothing is granted
// twice.
func TestReconnect(t *testing.T) {
	c := newCluster(t, lockd.Options{HeldMax: 1})
	a, b := c.client("a"), c.client("b")
	release := make(chan struct{})
	for n := range 2 {
		own, _, err := a.lock(write(uint64(n+1), 0, 10))
		if err != nil {
			t.Fatal(err)
		}
		a.onBlocking = func(x wire.AST, _ ldlm.Recall) error {
			go func() {
				<-release
				a.drop(x.Own)
			}()
			return nil
		}
		_ = own
	}
	var got []chan error
	for n := range 2 { // one held, one detached
		got = append(got, later(func() error { _, _, err := b.lock(write(uint64(n+1), 0, 10)); return err }))
		until(t, "b waits", func() bool { return c.waiting(object(uint64(n+1))) == 1 })
	}
	b.cut(false)
	a.cut(false)
	until(t, "b waits again", func() bool { return c.waiting(object(1)) == 1 && c.waiting(object(2)) == 1 })
	close(release)
	for _, ch := range got {
		within(t, "a lock after the reconnect", ch, nil)
	}
	if n := c.locks.Namespace().LockCount(); n != 2 || c.wasEvicted("a")+c.wasEvicted("b") != "" {
		t.Errorf("%d locks; evicted: %q %q", n, c.wasEvicted("a"), c.wasEvicted("b"))
	}
}

// Every slot of two clients is full of requests that wait for each other's locks (DESIGN section 3): what gives locks back
// still gets through, and so does what does not wait.
func TestEverySlotFull(t *testing.T) {
	c := newCluster(t, lockd.Options{})
	pair := [2]*client{c.client("a"), c.client("b")}
	const each = 40
	release := make(chan struct{})
	for n, k := range pair {
		k.onBlocking = func(x wire.AST, _ ldlm.Recall) error {
			go func() {
				<-release
				k.drop(x.Own)
			}()
			return nil
		}
		for i := range each {
			if _, _, err := k.lock(bits(uint32(1000*n+i+1), ldlm.EX, ldlm.Full)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var got []chan error
	for n, k := range pair {
		for i := range each {
			got = append(got, later(func() error {
				own, _, err := k.lock(bits(uint32(1000*(1-n)+i+1), ldlm.EX, ldlm.Full))
				k.drop(own)
				return err
			}))
		}
	}
	until(t, "all wait", func() bool {
		all := 0
		for n := range pair {
			for i := range each {
				all += c.waiting(inode(uint32(1000*n + i + 1)))
			}
		}
		return all == 2*each
	})
	for _, k := range pair {
		if _, _, err := k.lock(bits(5000, ldlm.CR, ldlm.Lookup)); err != nil {
			t.Errorf("a request that need not wait: %v", err)
		}
	}
	close(release)
	for _, ch := range got {
		within(t, "a lock of the other client", ch, nil)
	}
}

// The server's own locks wait for clients' and keep clients out.
func TestLocalLocks(t *testing.T) {
	c := newCluster(t, lockd.Options{})
	a := c.client("a")
	e := env.New()
	ctx := context.Background()
	if _, _, err := a.lock(bits(1, ldlm.PR, ldlm.Update)); err != nil {
		t.Fatal(err)
	}
	blocked := make(chan ldlm.Handle, 4)
	l := lockd.LocalLock{Res: inode(1), Mode: ldlm.EX, Bits: ldlm.Update, OnBlocking: func(h ldlm.Handle) { blocked <- h }}
	if err := c.locks.TryLock(e, &l); !errors.Is(err, status.Again) {
		t.Fatalf("try: %v", err)
	}
	if err := c.locks.Lock(ctx, e, &l); err != nil {
		t.Fatal(err)
	}
	h := l.Handle()
	got := later(func() error { _, _, err := a.lock(bits(1, ldlm.PR, ldlm.Update)); return err })
	if b := <-blocked; b != h {
		t.Errorf("told of %v, not %v", b, h)
	}
	short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	defer stop()
	other := lockd.LocalLock{Res: inode(1), Mode: ldlm.PR, Bits: ldlm.Update}
	if err := c.locks.Lock(short, env.New(), &other); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait with an end: %v", err)
	}
	c.locks.Unlock(e, &l)
	within(t, "the client's lock", got, nil)
	if err := c.locks.Lock(ctx, e, &other); err != nil {
		t.Fatal(err)
	}
	c.locks.Unlock(e, &other)

	// A COS lock is no obstacle for the client that caused it, and one for others.
	cause := c.locks.Join("cause")
	defer cause.Gone()
	if err := c.locks.Lock(ctx, e, &l); err != nil {
		t.Fatal(err)
	}
	c.locks.Downgrade(e, &l, ldlm.COS, uint64(cause.ID()))
	mine := lockd.LocalLock{Res: inode(1), Mode: ldlm.EX, Bits: ldlm.Update, Cause: cause.ID()}
	if err := c.locks.TryLock(e, &mine); err != nil {
		t.Errorf("the cause's own: %v", err)
	}
	c.locks.Unlock(e, &mine)
	if err := c.locks.TryLock(e, &other); !errors.Is(err, status.Again) {
		t.Errorf("another's: %v", err)
	}
	c.locks.Unlock(e, &l)
}

// Local waits end when the server closes.
func TestCloseEndsLocalWaits(t *testing.T) {
	s := lockd.New(lockd.Options{Name: "closing"})
	e := env.New()
	a := lockd.LocalLock{Res: inode(1), Mode: ldlm.EX, Bits: ldlm.Full}
	if err := s.Lock(context.Background(), e, &a); err != nil {
		t.Fatal(err)
	}
	b := a
	got := later(func() error {
		b = lockd.LocalLock{Res: inode(1), Mode: ldlm.EX, Bits: ldlm.Full}
		return s.Lock(context.Background(), env.New(), &b)
	})
	until(t, "b waits", func() bool { i, _ := s.Namespace().Resource(0, inode(1)); return i.Waiting == 1 })
	s.Close()
	within(t, "the wait", got, status.Stopping)
}
