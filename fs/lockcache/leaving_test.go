package lockcache_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// kernel is an owner whose Revoke waits for reads, as the kernel's invalidation of pages does.
type kernel struct {
	quiet
	rounds chan struct{} // one token for each Revoke that begins
	reads  chan struct{} // each Revoke takes one before it returns, while reads are there
}

func (k *kernel) Revoke(ctx context.Context, _ *lockcache.Revocation) {
	k.rounds <- struct{}{}
	select {
	case <-k.reads:
	case <-ctx.Done():
	}
}

func readPages() *lockcache.Request {
	return &lockcache.Request{Res: object(3), Mode: ldlm.PR, Extent: whole(), Leaving: true}
}

// TestReadIsServedUnderTheLeavingLock has a Revoke wait for a READ that comes for the very lock.
func TestReadIsServedUnderTheLeavingLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{rounds: make(chan struct{}, 100), reads: make(chan struct{}, 100)}
		f := newFixture(t, func(o *lockcache.Options) { o.Owner = k })
		defer f.Close()
		g := f.acquire(lockcache.Request{Res: object(3), Mode: ldlm.PW, Extent: whole()})
		f.Unpin(g.Handle)
		if err := f.blocking(g.Handle, 0x101, object(3), 0); err != nil {
			t.Fatal(err)
		}
		<-k.rounds
		r := f.acquire(*readPages())
		if !r.Leaving || !r.Matched {
			t.Fatalf("granted %+v", r)
		}
		k.reads <- struct{}{} // the invalidation has what it waits for
		synctest.Wait()
		if slices.Contains(f.imp.sent(), "cancel [101]") || len(k.rounds) != 0 {
			t.Fatal("gone while a call was served under it")
		}
		f.Unpin(r.Handle)
		<-k.rounds // once more: the read has put pages back
		k.reads <- struct{}{}
		synctest.Wait()
		if !slices.Contains(f.imp.sent(), "cancel [101]") {
			t.Error("not given back")
		}
		if n := len(f.imp.sent()); n != 2 {
			t.Errorf("sent %q", f.imp.sent())
		}
	})
}

// TestRevokeRunsAgainForAReadFromBeforeIt: a READ is served under a lock that is called back before its Revoke begins, and brings its
// pages while that runs, which had nothing to drop yet.
func TestRevokeRunsAgainForAReadFromBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{rounds: make(chan struct{}, 100), reads: make(chan struct{}, 100)}
		f := newFixture(t, func(o *lockcache.Options) { o.Owner, o.Revokers = k, 1 })
		defer f.Close()
		other := f.acquire(lockcache.Request{Res: object(4), Mode: ldlm.PW, Extent: whole()})
		g := f.acquire(lockcache.Request{Res: object(3), Mode: ldlm.PW, Extent: whole()})
		f.Unpin(other.Handle)
		f.Unpin(g.Handle)
		for i, l := range []lockcache.Grant{other, g} {
			if err := f.blocking(l.Handle, 0x101+uint64(i), object(uint64(4-i)), 0); err != nil {
				t.Fatal(err)
			}
		}
		<-k.rounds // of the other lock, whose Revoke keeps this one's waiting
		r := f.acquire(*readPages())
		if !r.Leaving {
			t.Fatalf("granted %+v", r)
		}
		k.reads <- struct{}{}
		<-k.rounds
		f.Unpin(r.Handle) // the READ has its bytes
		k.reads <- struct{}{}
		synctest.Wait()
		if len(k.rounds) != 1 || slices.Contains(f.imp.sent(), "cancel [102]") {
			t.Errorf("%d Revokes more, want 1; sent %q", len(k.rounds), f.imp.sent())
		}
		k.reads <- struct{}{}
	})
}

// TestReadThatWaitsIsServedUnderTheLeavingLock: the READ asks for a lock just before the one it could use is called back.
func TestReadThatWaitsIsServedUnderTheLeavingLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{rounds: make(chan struct{}, 100), reads: make(chan struct{}, 100)}
		f := newFixture(t, func(o *lockcache.Options) { o.Owner = k })
		defer f.Close()
		g := f.acquire(lockcache.Request{Res: object(3), Mode: ldlm.PR, Extent: whole()})
		f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
			r.Reply.(*wirepb.EnqueueReply).Waiting = true
			return nil
		})
		if err := f.blocking(g.Handle, 0x101, object(3), 0); err != nil { // still pinned
			t.Fatal(err)
		}
		got := make(chan lockcache.Grant)
		go func() {
			g, err := f.Acquire(f.ctx, readPages())
			if err != nil {
				t.Error(err)
			}
			got <- g
		}()
		synctest.Wait() // it waits at the server, behind the one who called the lock back
		f.Unpin(g.Handle)
		r := <-got
		if !r.Leaving {
			t.Errorf("granted %+v", r)
		}
		k.reads <- struct{}{}
		f.Unpin(r.Handle)
		k.reads <- struct{}{}
		synctest.Wait()
		for _, want := range []string{"withdraw 1", "cancel [101]"} {
			if !slices.Contains(f.imp.sent(), want) {
				t.Errorf("no %q: %q", want, f.imp.sent())
			}
		}
	})
}

// TestBusyReaderLetsGo has a task read in a tight loop, while no Revoke waits for it: the lock goes back all the same.
func TestBusyReaderLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{rounds: make(chan struct{}, 1000), reads: make(chan struct{}, 1000)}
		f := newFixture(t, func(o *lockcache.Options) { o.Owner = k })
		defer f.Close()
		f.imp.on(wire.OpEnqueue, nil)
		g := f.acquire(lockcache.Request{Res: object(3), Mode: ldlm.PR, Extent: whole()})
		f.Unpin(g.Handle)
		if err := f.blocking(g.Handle, 0x101, object(3), 0); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		go func() { // each Revoke takes a millisecond
			for {
				select {
				case <-k.rounds:
					time.Sleep(time.Millisecond)
					k.reads <- struct{}{}
				case <-stop:
					return
				}
			}
		}()
		rounds := 0
		for {
			r := f.acquire(*readPages())
			time.Sleep(100 * time.Microsecond)
			f.Unpin(r.Handle)
			if rounds++; !r.Leaving {
				break
			}
			if rounds > 10000 {
				t.Fatal("the lock never goes back")
			}
		}
		close(stop)
		f.imp.await(t, "cancel [101]", 1)
	})
}
