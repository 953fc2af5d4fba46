package lockcache_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// timed runs a test with a cache in fake time.
func timed(t *testing.T, change func(*lockcache.Options), run func(f *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, change)
		defer f.Close()
		run(f)
	})
}

// fill takes and unpins n locks on inodes from first.
func (f *fixture) fill(first, n uint64) {
	for i := range n {
		f.Unpin(f.acquire(read(inode(first+i), ldlm.Update)).Handle)
	}
}

func TestLRUByNumber(t *testing.T) {
	timed(t, func(o *lockcache.Options) { o.LRUSize = 10 }, func(f *fixture) {
		f.fill(2, 40)
		synctest.Wait() // without any tick: the unpin that was one too many asked for it
		if n := f.UnusedCount(); n > 10 {
			t.Errorf("%d unused locks", n)
		}
		time.Sleep(15 * time.Second)
		if n := f.UnusedCount(); n != 10 {
			t.Errorf("%d unused locks", n)
		}
		if _, ok := f.Match(&ldlm.Wanted{Res: inode(41), Modes: ldlm.PR, Bits: ldlm.Update}); !ok {
			t.Error("the newest lock is gone")
		}
	})
}

func TestLRUByAge(t *testing.T) {
	timed(t, func(o *lockcache.Options) { o.MaxAge = time.Minute }, func(f *fixture) {
		f.fill(2, 5)
		pinned := f.acquire(read(inode(2), ldlm.Update))
		time.Sleep(40 * time.Second)
		f.fill(3, 1) // used again
		time.Sleep(35 * time.Second)
		if n := f.UnusedCount(); n != 1 {
			t.Errorf("%d unused locks after 75 s, one was used 35 s ago and one is pinned", n)
		}
		f.Unpin(pinned.Handle)
		time.Sleep(75 * time.Second)
		if s := f.Stats(); s.Locks != 0 {
			t.Errorf("%d locks", s.Locks)
		}
		for _, r := range f.owner.revoked {
			if r.Why != lockcache.WhyUnused || r.Bits != ldlm.Update {
				t.Errorf("revoked %+v", r)
			}
		}
	})
}

// The server's lock volume falls: old unused locks go, at once.
func TestLRUByPool(t *testing.T) {
	timed(t, nil, func(f *fixture) {
		slv := uint64(1 << 40)
		f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
			reply := r.Reply.(*wirepb.EnqueueReply)
			f.imp.grant(r.Body.(*wirepb.EnqueueRequest), reply)
			reply.Slv, reply.LockLimit = slv, 1000
			return nil
		})
		f.fill(2, 100)
		time.Sleep(30 * time.Second)
		if n := f.UnusedCount(); n != 100 {
			t.Fatalf("%d unused locks before the volume fell", n)
		}
		slv = 1000 // 30 s * 100 locks are 3,000
		f.fill(500, 1)
		synctest.Wait()
		if n := f.UnusedCount(); n >= 100 || n < 20 {
			t.Errorf("%d unused locks afterwards, about 33 are in the volume", n)
		}
	})
}

func TestLRUOfAnIdleClientHasACeiling(t *testing.T) {
	timed(t, func(o *lockcache.Options) { o.Ceiling = 50 }, func(f *fixture) {
		f.fill(2, 200)
		synctest.Wait()
		if n := f.UnusedCount(); n > 50 {
			t.Errorf("%d unused locks", n)
		}
	})
}

func TestProlongHasACap(t *testing.T) {
	timed(t, func(o *lockcache.Options) { o.LockTimeout = 9 * time.Second; o.EvictTime = time.Hour }, func(f *fixture) {
		g := f.acquire(read(inode(5), ldlm.Update))
		if err := f.blocking(g.Handle, 0x101, inode(5), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		prolongs := func() (n int) {
			for _, l := range f.imp.sent() {
				if l == "prolong [101]" {
					n++
				}
			}
			return n
		}
		if n := prolongs(); n < 6 || n > 10 {
			t.Errorf("%d prolongs in 30 s of a 9 s timeout: every third of it makes 10", n)
		}
		time.Sleep(time.Hour)
		if n := prolongs(); n > 31 {
			t.Errorf("%d prolongs: the cap is ten timeouts", n)
		}
		f.Unpin(g.Handle)
		synctest.Wait()
		if !slices.Contains(f.imp.sent(), "cancel [101]") {
			t.Error("not given back")
		}
		n := prolongs()
		time.Sleep(time.Minute)
		if prolongs() != n {
			t.Error("prolonged after it was given back")
		}
	})
}

func TestSilentTarget(t *testing.T) {
	var heard atomic.Bool
	timed(t, func(o *lockcache.Options) { o.EvictTime = 60 * time.Second }, func(f *fixture) {
		f.fill(2, 3)
		f.imp.on(wire.OpPing, func(*rpc.Request) error {
			if !heard.Load() {
				return errors.New("no answer")
			}
			return nil
		})
		time.Sleep(29 * time.Second)
		w := ldlm.Wanted{Res: inode(2), Modes: ldlm.PR, Bits: ldlm.Update}
		g, ok := f.Match(&w)
		if !ok {
			t.Fatal("no match before half the eviction time")
		}
		f.Unpin(g.Handle)
		time.Sleep(3 * time.Second)
		if _, ok := f.Match(&w); ok {
			t.Error("matched although the target is silent")
		}
		if _, _, silent := f.owner.count(); silent != 1 {
			t.Errorf("told %d times", silent)
		}
		heard.Store(true)
		time.Sleep(3 * time.Second)
		if g, ok = f.Match(&w); !ok {
			t.Fatal("no match although the target is heard again")
		}
		f.Unpin(g.Handle)
		time.Sleep(10 * time.Minute) // pings keep the locks usable; age takes them away in the end
		if _, _, silent := f.owner.count(); silent != 1 {
			t.Errorf("told %d times", silent)
		}
	})
}

func TestGlimpseOfAnIdleLockGivesItBack(t *testing.T) {
	timed(t, nil, func(f *fixture) {
		f.owner.lvb = &ldlm.LVB{Size: 1}
		g := f.acquire(lockcache.Request{Res: object(3), Mode: ldlm.PW, Extent: whole()})
		f.Unpin(g.Handle)
		ast := &wirepb.GlimpseAST{Own: uint64(g.Handle), Lock: 0x101, ResSeq: object(3).Seq, ResOid: object(3).OID}
		for _, used := range []time.Duration{5 * time.Second, 15 * time.Second} {
			time.Sleep(used)
			if _, err := f.call(wire.OpGlimpseAST, ast); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if gone := slices.Contains(f.imp.sent(), "cancel [101]"); gone != (used > 10*time.Second) {
				t.Errorf("after %v: given back %v", used, gone)
			}
		}
	})
}

func TestContentionHintEnds(t *testing.T) {
	timed(t, nil, func(f *fixture) {
		f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
			reply := r.Reply.(*wirepb.EnqueueReply)
			f.imp.grant(r.Body.(*wirepb.EnqueueRequest), reply)
			reply.Contended = true
			return nil
		})
		f.Unpin(f.acquire(lockcache.Request{Res: object(3), Mode: ldlm.PW, Extent: whole()}).Handle)
		if !f.Lockless(object(3)) || f.Lockless(object(4)) {
			t.Error("the hint is for the wrong object")
		}
		time.Sleep(40 * time.Second)
		if f.Lockless(object(3)) {
			t.Error("the hint outlives contention_hold_seconds")
		}
	})
}

func TestParameters(t *testing.T) {
	reg := stats.NewRegistry()
	timed(t, func(o *lockcache.Options) { o.Stats = reg }, func(f *fixture) {
		at := "ldlm.namespaces.strake-MDT0000-mdc."
		find := func(name string) (e stats.Entry) {
			if err := reg.Walk(at+name, func(x stats.Entry) error { e = x; return nil }); err != nil {
				t.Fatal(err)
			}
			if e.Path == "" {
				t.Fatalf("no %s", name)
			}
			return e
		}
		set := func(name, value string) error { e := find(name); return e.Set(value) }
		value := func(name string) string {
			e := find(name)
			if n, ok := e.Value(); ok {
				return fmt.Sprint(n)
			}
			return e.Text()
		}
		f.fill(2, 30)
		for name, want := range map[string]string{
			"lru_size": "30", "lock_count": "30", "lock_unused_count": "30", "resource_count": "30", "lru_max_age": "600000",
			"lru_cancel_batch": "16", "ns_recalc_pct": "10", "dirty_age_limit": "10", "early_lock_cancel": "1", "pool.granted": "30",
			"pool.recalc_period": "10", "pool.lock_volume_factor": "1", "pool.server_lock_volume": "0", "lock_timeout": "20",
			"lock_called_count": "0",
		} {
			if got := value(name); got != want {
				t.Errorf("%s is %s, not %s", name, got, want)
			}
		}
		for _, bad := range []string{"lru_size=-1", "lru_size=many", "lru_max_age=-5", "early_lock_cancel=2", "pool.recalc_period=0"} {
			name, v, _ := strings.Cut(bad, "=")
			if set(name, v) == nil {
				t.Errorf("%s was taken", bad)
			}
		}
		for _, good := range []string{"lru_size=20", "lru_max_age=1000000", "lru_cancel_batch=4", "early_lock_cancel=0", "pool.recalc_period=1"} {
			name, v, _ := strings.Cut(good, "=")
			if err := set(name, v); err != nil {
				t.Errorf("%s: %v", good, err)
			}
		}
		synctest.Wait()
		if got := value("lru_size"); got != "20" {
			t.Errorf("after lru_size=20 there are %s unused locks", got)
		}
		if err := set("lru_size", "clear"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := value("lock_count"); got != "0" {
			t.Errorf("after lru_size=clear there are %s locks", got)
		}
		time.Sleep(2 * time.Second)
		f.Close()
		n := 0
		reg.Walk("ldlm.**", func(stats.Entry) error { n++; return nil })
		if n != 0 {
			t.Errorf("%d figures are left after Close", n)
		}
	})
}

// Clear ends with its context while an owner is busy.
func TestClearIsBounded(t *testing.T) {
	timed(t, nil, func(f *fixture) {
		f.fill(2, 3)
		f.owner.hold = make(chan struct{})
		f.imp.on(wire.OpCancel, func(*rpc.Request) error { <-f.owner.hold; return nil })
		ctx, cancel := context.WithTimeout(f.ctx, time.Minute)
		defer cancel()
		if _, err := f.Clear(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		close(f.owner.hold)
		synctest.Wait()
	})
}
