package lockcache_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

func TestMatchNeedsNoRequest(t *testing.T) {
	f := newFixture(t, nil)
	g := f.acquire(lockcache.Request{Res: inode(5), Mode: ldlm.PR, Bits: ldlm.Lookup, TryBits: ldlm.Update, Data: "file"})
	if g.Matched || g.Desc.Bits != ldlm.Lookup|ldlm.Update {
		t.Errorf("first grant: %+v", g)
	}
	f.Unpin(g.Handle)
	again := f.acquire(read(inode(5), ldlm.Update))
	if !again.Matched || again.Handle != g.Handle || again.Data != "file" {
		t.Errorf("second grant: %+v", again)
	}
	f.Unpin(again.Handle)
	if n := len(f.imp.sent()); n != 1 {
		t.Errorf("%d requests: %q", n, f.imp.sent())
	}
}

func TestServingModes(t *testing.T) {
	for i := range 7 {
		asked := ldlm.Mode(1 << i)
		set := lockcache.Serving(asked)
		for k := range 7 {
			held := ldlm.Mode(1 << k)
			keepsOut := true
			for x := range 9 {
				other := ldlm.Mode(1 << x)
				if !ldlm.Compatible(asked, other) && ldlm.Compatible(held, other) {
					keepsOut = false
				}
			}
			if want := keepsOut && (asked == ldlm.GROUP) == (held == ldlm.GROUP); set&held != 0 && !want {
				t.Errorf("a lock of mode %v serves who asks for %v", held, asked)
			} else if set&held == 0 && want {
				t.Errorf("a lock of mode %v does not serve who asks for %v", held, asked)
			}
		}
	}
}

func TestBlockingASTBeforeTheReply(t *testing.T) {
	f := newFixture(t, nil)
	f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
		m := r.Body.(*wirepb.EnqueueRequest)
		if err := f.blocking(ldlm.Handle(m.Own), 0x77, inode(5), 0); err != nil {
			t.Errorf("blocking AST before the reply: %v", err)
		}
		f.imp.grant(m, r.Reply.(*wirepb.EnqueueReply))
		r.Reply.(*wirepb.EnqueueReply).Lock = 0x77
		return nil
	})
	g := f.acquire(read(inode(5), ldlm.Update))
	if n, _, _ := f.owner.count(); n != 0 {
		t.Fatal("revoked while pinned")
	}
	if _, ok := f.Match(&ldlm.Wanted{Res: inode(5), Modes: ldlm.PR, Bits: ldlm.Update}); ok {
		t.Error("a called-back lock was matched")
	}
	f.Unpin(g.Handle)
	f.imp.await(t, "cancel [77]", 1)
}

func TestCompletionBeforeTheReply(t *testing.T) {
	f := newFixture(t, nil)
	f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
		m := r.Body.(*wirepb.EnqueueRequest)
		if !m.Detach {
			t.Error("an enqueue would hold a slot while it waits")
		}
		done := &wirepb.CompletionAST{Own: m.Own, Lock: 0x88, ResSeq: m.ResSeq, ResOid: m.ResOid, ResType: m.ResType,
			Mode: m.Mode, Start: 0, End: extent.EOF, Lvb: wire.AppendLVB(nil, &ldlm.LVB{Size: 77}), Blocked: true, Contended: true}
		if _, err := f.call(wire.OpCompletionAST, done); err != nil {
			t.Errorf("completion before the reply: %v", err)
		}
		r.Reply.(*wirepb.EnqueueReply).Waiting = true
		return nil
	})
	g := f.acquire(lockcache.Request{Res: object(3), Mode: ldlm.PW, Extent: extent.Extent{Start: 4096, End: 8192}})
	if g.Desc.Extent != whole() || !g.HasLVB || g.LVB.Size != 77 || !g.Contended {
		t.Errorf("granted %+v", g)
	}
	if !f.Lockless(object(3)) {
		t.Error("the hint is not remembered")
	}
	f.Unpin(g.Handle) // the completion carried the blocking AST
	f.imp.await(t, "cancel [88]", 1)
}

func TestCompletionAfterTheReply(t *testing.T) {
	f := newFixture(t, nil)
	own := make(chan uint64, 1)
	f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
		r.Reply.(*wirepb.EnqueueReply).Waiting = true
		own <- r.Body.(*wirepb.EnqueueRequest).Own
		return nil
	})
	go func() {
		f.call(wire.OpCompletionAST, &wirepb.CompletionAST{Own: <-own, Lock: 0x99, ResSeq: inode(5).Seq, ResOid: inode(5).OID,
			ResType: uint32(ldlm.TypeInodeBits), Mode: uint32(ldlm.PR), Bits: uint32(ldlm.Update)})
	}()
	g := f.acquire(read(inode(5), ldlm.Update))
	if g.Handle == 0 || g.Desc.Bits != ldlm.Update {
		t.Errorf("granted %+v", g)
	}
	f.Unpin(g.Handle)
}

func TestDeniedCompletion(t *testing.T) {
	f := newFixture(t, nil)
	f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
		r.Reply.(*wirepb.EnqueueReply).Waiting = true
		f.call(wire.OpCompletionAST, &wirepb.CompletionAST{Own: r.Body.(*wirepb.EnqueueRequest).Own, ResType: uint32(ldlm.TypeExtent),
			Status: uint32(status.NotExist)})
		return nil
	})
	_, err := f.Acquire(f.ctx, &lockcache.Request{Res: object(3), Mode: ldlm.PR, Extent: whole()})
	if !errors.Is(err, status.NotExist) {
		t.Errorf("error %v", err)
	}
	if n := f.Stats().Locks; n != 0 {
		t.Errorf("%d locks are left", n)
	}
}

// A grant of less than was asked would let this client work without a lock.
func TestShortGrantIsRefused(t *testing.T) {
	f := newFixture(t, nil)
	f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
		m, reply := r.Body.(*wirepb.EnqueueRequest), r.Reply.(*wirepb.EnqueueReply)
		f.imp.grant(m, reply)
		reply.Start, reply.End, reply.Mode = 0, 4096, uint32(ldlm.CR)
		return nil
	})
	_, err := f.Acquire(f.ctx, &lockcache.Request{Res: object(3), Mode: ldlm.PR, Extent: whole()})
	if !errors.Is(err, status.Protocol) {
		t.Errorf("error %v", err)
	}
	f.imp.await(t, "cancel [101]", 1)
}

// The cancel crosses a blocking AST: while the answer is not there the AST is for a lock on its way; afterwards for none.
func TestCancelCrossesBlockingAST(t *testing.T) {
	f := newFixture(t, nil)
	crossed := make(chan error, 1)
	var own ldlm.Handle
	f.imp.on(wire.OpCancel, func(*rpc.Request) error {
		crossed <- f.blocking(own, 0x101, inode(5), 0)
		return nil
	})
	g := f.acquire(read(inode(5), ldlm.Update))
	own = g.Handle
	f.Unpin(g.Handle)
	if n, err := f.Clear(f.ctx); n != 1 || err != nil {
		t.Fatalf("cleared %d: %v", n, err)
	}
	if err := <-crossed; err != nil {
		t.Errorf("AST that crosses: %v", err)
	}
	if err := f.blocking(own, 0x101, inode(5), 0); !badHandle(err) {
		t.Errorf("AST afterwards: %v", err)
	}
	if n, _, _ := f.owner.count(); n != 1 {
		t.Errorf("revoked %d times", n)
	}
}

func TestInterruptedWishIsWithdrawn(t *testing.T) {
	f := newFixture(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var own uint64
	f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
		r.Reply.(*wirepb.EnqueueReply).Waiting = true
		own = r.Body.(*wirepb.EnqueueRequest).Own
		cancel()
		return nil
	})
	_, err := f.Acquire(ctx, &lockcache.Request{Res: inode(5), Mode: ldlm.PR, Bits: ldlm.Update})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	f.imp.await(t, "withdraw 1", 1)
	// It had been granted before the withdrawal came.
	_, err = f.call(wire.OpCompletionAST, &wirepb.CompletionAST{Own: own, Lock: 0x55, ResSeq: inode(5).Seq, ResOid: inode(5).OID,
		ResType: uint32(ldlm.TypeInodeBits), Mode: uint32(ldlm.PR), Bits: uint32(ldlm.Update)})
	if !badHandle(err) {
		t.Errorf("completion of a withdrawn wish: %v", err)
	}
	f.imp.await(t, "cancel [55]", 1)
}

func TestConversionGivesUpBits(t *testing.T) {
	f := newFixture(t, nil)
	g := f.acquire(read(inode(5), ldlm.Lookup|ldlm.Update|ldlm.Perm))
	f.Unpin(g.Handle)
	f.owner.hold = make(chan struct{})
	if err := f.blocking(g.Handle, 0x101, inode(5), ldlm.Update); err != nil {
		t.Fatal(err)
	}
	r := <-f.owner.seen
	if r.Bits != ldlm.Update || r.Why != lockcache.WhyBlocking {
		t.Errorf("revoked %+v", r)
	}
	// While UPDATE is on its way back, the others serve on, and the lock is one to replay.
	other, ok := f.Match(&ldlm.Wanted{Res: inode(5), Modes: ldlm.PR, Bits: ldlm.Lookup})
	if !ok {
		t.Fatal("LOOKUP is not matched during the conversion")
	}
	if held := f.Held(nil); len(held) != 1 {
		t.Errorf("held for replay: %+v", held)
	}
	close(f.owner.hold)
	f.imp.await(t, "convert 101 to LOOKUP|PERM", 1)
	f.Unpin(other.Handle)
	if _, ok := f.Match(&ldlm.Wanted{Res: inode(5), Modes: ldlm.PR, Bits: ldlm.Update}); ok {
		t.Error("UPDATE is matched after it was given up")
	}
	if slices.Contains(f.imp.sent(), "cancel [101]") {
		t.Error("the whole lock was given up")
	}
}

func TestFailedConversionGivesTheLockBack(t *testing.T) {
	f := newFixture(t, nil)
	f.imp.on(wire.OpConvert, func(*rpc.Request) error { return status.Invalid })
	g := f.acquire(read(inode(5), ldlm.Lookup|ldlm.Update))
	f.Unpin(g.Handle)
	if err := f.blocking(g.Handle, 0x101, inode(5), ldlm.Update); err != nil {
		t.Fatal(err)
	}
	f.imp.await(t, "cancel [101]", 1)
	f.wait(func() bool { return f.Stats().Locks == 0 })
}

// wait waits for what no message tells; it gives up after a while.
func (f *fixture) wait(is func() bool) {
	f.Helper()
	limit := time.Now().Add(10 * time.Second)
	for !is() {
		if time.Now().After(limit) {
			f.Fatal("waited in vain")
		}
		select {
		case <-time.After(time.Millisecond):
		case <-f.ctx.Done():
		}
	}
}

func TestEarlyCancelTravelsWithTheRequest(t *testing.T) {
	f := newFixture(t, nil)
	for _, bits := range []ldlm.Bits{ldlm.Update, ldlm.Lookup} {
		f.Unpin(f.acquire(read(inode(5), bits)).Handle)
	}
	var e lockcache.Early
	f.Early(f.ctx, &e, &ldlm.Early{Res: inode(5), Mode: ldlm.EX, Bits: ldlm.Update})
	if len(e.Handles) != 1 || e.Handles[0] != 0x101 {
		t.Errorf("early cancels %x", e.Handles)
	}
	f.EarlyDone(&e, nil)
	f.Early(f.ctx, &e, &ldlm.Early{Res: inode(5), Mode: ldlm.EX, Bits: ldlm.Lookup})
	f.EarlyDone(&e, status.TimedOut) // the request may not have come through
	f.imp.await(t, "cancel [102]", 1)
	if slices.Contains(f.imp.sent(), "cancel [101]") {
		t.Error("a cancel that went with the request was sent again")
	}
	// An enqueue carries them too.
	f.Unpin(f.acquire(read(inode(6), ldlm.Update)).Handle)
	f.Unpin(f.acquire(lockcache.Request{Res: inode(6), Mode: ldlm.EX, Bits: ldlm.Update}).Handle)
	f.imp.await(t, "enqueue EX cancels [103]", 1)
}

func TestCancelsGoTogether(t *testing.T) {
	f := newFixture(t, nil)
	const n = 100
	for i := range uint64(n) {
		f.Unpin(f.acquire(read(inode(5+i), ldlm.Update)).Handle)
	}
	if got, err := f.Clear(f.ctx); got != n || err != nil {
		t.Fatalf("cleared %d: %v", got, err)
	}
	requests := 0
	for _, l := range f.imp.sent() {
		if strings.HasPrefix(l, "cancel") {
			requests++
		}
	}
	if requests > n/2 {
		t.Errorf("%d CANCELs for %d locks", requests, n)
	}
	if s := f.Stats(); s.Locks != 0 || s.Resources != 0 {
		t.Errorf("left: %d locks, %d resources", s.Locks, s.Resources)
	}
}

func TestGlimpseIsAnsweredByTheOwner(t *testing.T) {
	f := newFixture(t, nil)
	g := f.acquire(lockcache.Request{Res: object(3), Mode: ldlm.PW, Extent: whole()})
	ast := &wirepb.GlimpseAST{Own: uint64(g.Handle), Lock: 0x101, ResSeq: object(3).Seq, ResOid: object(3).OID}
	if _, err := f.call(wire.OpGlimpseAST, ast); status.Of(err) != status.NoData {
		t.Errorf("the owner knows nothing: %v", err)
	}
	f.owner.lvb = &ldlm.LVB{Size: 4711, Mtime: 3}
	c, err := f.call(wire.OpGlimpseAST, ast)
	if err != nil {
		t.Fatal(err)
	}
	if v := wire.LVB(c.Reply.(*wirepb.GlimpseReply).Lvb); v != *f.owner.lvb {
		t.Errorf("answer %+v", v)
	}
	f.Unpin(g.Handle)
	if _, err := f.call(wire.OpGlimpseAST, &wirepb.GlimpseAST{Own: 0xffff, Lock: 1, ResSeq: 1}); !badHandle(err) {
		t.Errorf("of an unknown lock: %v", err)
	}
}

func grantOf(res ldlm.ResID, lock uint64, bits ldlm.Bits) *wirepb.LockGrant {
	m := &wirepb.LockGrant{}
	wire.PutGrant(m, res, 0, &ldlm.Answer{Remote: ldlm.Handle(lock), Desc: ldlm.Desc{Mode: ldlm.PR, Bits: bits}})
	return m
}

func TestAdoptedLocks(t *testing.T) {
	f := newFixture(t, nil)
	var w lockcache.Window
	f.Expect(&w)
	g, ok := f.Adopt(&w, grantOf(inode(5), 0x201, ldlm.Update), "five")
	if !ok || g.Desc.Bits != ldlm.Update {
		t.Fatalf("adopted %+v", g)
	}
	f.Unpin(g.Handle)
	// A second lock on the same bits goes back, the older one stays.
	again, ok := f.Adopt(&w, grantOf(inode(5), 0x202, ldlm.Update), "five again")
	if !ok || again.Handle != g.Handle || again.Data != "five" {
		t.Errorf("adopted again %+v", again)
	}
	f.imp.await(t, "cancel [202]", 1)
	f.Unpin(again.Handle)
	f.Done(&w)
	// It is called back by the server's handle alone.
	if err := f.blocking(0, 0x201, inode(5), 0); err != nil {
		t.Fatal(err)
	}
	f.imp.await(t, "cancel [201]", 1)
	f.wait(func() bool { return badHandle(f.blocking(0, 0x201, inode(5), 0)) })
}

func TestRecallBeforeTheAdoptedLock(t *testing.T) {
	f := newFixture(t, nil)
	var w, other lockcache.Window
	f.Expect(&w)
	if err := f.blocking(0, 0x201, inode(5), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.blocking(0, 0x202, inode(6), 0); err != nil {
		t.Fatal(err)
	}
	f.Expect(&other)
	g, ok := f.Adopt(&w, grantOf(inode(5), 0x201, ldlm.Update), nil)
	if !ok {
		t.Fatal("not adopted")
	}
	if _, ok := f.Match(&ldlm.Wanted{Res: inode(5), Modes: ldlm.PR, Bits: ldlm.Update}); ok {
		t.Error("matched although it is called back")
	}
	f.Unpin(g.Handle)
	f.imp.await(t, "cancel [201]", 1)
	f.Done(&w)
	f.imp.await(t, "cancel [202]", 1) // it did not come with any answer
	f.Done(&other)
	if err := f.blocking(0, 0x203, inode(7), 0); !badHandle(err) {
		t.Errorf("no request is under way: %v", err)
	}
}

func TestEvictionDropsEverything(t *testing.T) {
	f := newFixture(t, nil)
	f.Connected(&wirepb.ConnectReply{Generation: 1, Instance: 1})
	pinned := f.acquire(read(inode(5), ldlm.Update))
	f.Unpin(f.acquire(read(inode(6), ldlm.Update)).Handle)
	var w lockcache.Window
	f.Expect(&w)
	waiting := make(chan struct{})
	f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
		r.Reply.(*wirepb.EnqueueReply).Waiting = true
		close(waiting)
		return nil
	})
	failed := make(chan error, 1)
	go func() {
		r := read(inode(7), ldlm.Update)
		_, err := f.Acquire(f.ctx, &r)
		failed <- err
	}()
	<-waiting
	f.Connected(&wirepb.ConnectReply{Generation: 1, Instance: 1, Recovered: true}) // an ordinary reconnect
	if _, lost, _ := f.owner.count(); lost != 0 {
		t.Fatal("lost at a reconnect")
	}
	f.Connected(&wirepb.ConnectReply{Generation: 2, Instance: 1})
	if err := <-failed; !errors.Is(err, status.IO) {
		t.Errorf("who waited: %v", err)
	}
	for range 2 {
		if r := <-f.owner.seen; r.Why != lockcache.WhyEvicted {
			t.Errorf("revoked %+v", r)
		}
	}
	f.Unpin(pinned.Handle) // its holder did not know yet
	if _, ok := f.Adopt(&w, grantOf(inode(8), 0x301, ldlm.Update), nil); ok {
		t.Error("adopted a lock of the lost export")
	}
	f.Done(&w)
	if s, n := f.Stats(), len(f.Held(nil)); s.Locks != 0 || n != 0 {
		t.Errorf("left: %d locks, %d to replay", s.Locks, n)
	}
	if _, lost, _ := f.owner.count(); lost != 1 {
		t.Errorf("lost %d times", lost)
	}
}

// What was granted by the lost export, and entered only afterwards, is asked for again.
func TestGrantThatCrossesAnEviction(t *testing.T) {
	f := newFixture(t, nil)
	f.Connected(&wirepb.ConnectReply{Generation: 1, Instance: 1})
	first := true
	f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
		f.imp.grant(r.Body.(*wirepb.EnqueueRequest), r.Reply.(*wirepb.EnqueueReply))
		if first {
			first = false
			f.Connected(&wirepb.ConnectReply{Generation: 2, Instance: 1})
		}
		return nil
	})
	g := f.acquire(read(inode(5), ldlm.Update))
	f.imp.await(t, "enqueue PR cancels []", 2)
	f.imp.await(t, "cancel [101]", 1)
	f.Unpin(g.Handle)
	if n := f.UnusedCount(); n != 1 {
		t.Errorf("%d unused locks", n)
	}
}

func TestReplayAfterRestart(t *testing.T) {
	f := newFixture(t, func(o *lockcache.Options) { o.Replay = true })
	f.Connected(&wirepb.ConnectReply{Generation: 1, Instance: 1})
	keep := f.acquire(read(inode(5), ldlm.Update))
	f.Unpin(f.acquire(read(inode(6), ldlm.Update)).Handle)
	f.Connected(&wirepb.ConnectReply{Generation: 1, Instance: 2, Recovered: true})
	held := f.Held(nil)
	if len(held) != 2 {
		t.Fatalf("held %+v", held)
	}
	for _, l := range held {
		if l.Handle == keep.Handle {
			f.Restored(l.Handle, 0x900, nil)
		} else {
			f.Restored(l.Handle, 0, status.Stale)
		}
	}
	if r := <-f.owner.seen; r.Why != lockcache.WhyEvicted || r.Res != inode(6) {
		t.Errorf("revoked %+v", r)
	}
	f.Unpin(keep.Handle)
	if err := f.blocking(keep.Handle, 0x900, inode(5), 0); err != nil {
		t.Fatal(err)
	}
	f.imp.await(t, "cancel [900]", 1)
}

func TestFlock(t *testing.T) {
	f := newFixture(t, nil)
	r := &ldlm.FlockRequest{Res: ldlm.FlockRes(inode(5).FID()), Op: ldlm.FlockExclusive, Wait: true,
		Range: ldlm.FlockRange{Extent: whole(), PID: 9}}
	f.imp.on(wire.OpEnqueue, func(q *rpc.Request) error {
		m := q.Body.(*wirepb.EnqueueRequest)
		q.Reply.(*wirepb.EnqueueReply).Waiting = true
		f.call(wire.OpCompletionAST, &wirepb.CompletionAST{Own: m.Own, ResSeq: m.ResSeq, ResOid: m.ResOid, ResType: m.ResType})
		return nil
	})
	if err := f.Flock(f.ctx, r); err != nil {
		t.Error(err)
	}
	// Interrupted, but granted in the very moment: the completion is still on its way when the withdrawal is answered.
	ctx, cancel := context.WithCancel(t.Context())
	var own uint64
	f.imp.on(wire.OpEnqueue, func(q *rpc.Request) error {
		own = q.Body.(*wirepb.EnqueueRequest).Own
		q.Reply.(*wirepb.EnqueueReply).Waiting = true
		cancel()
		return nil
	})
	f.imp.on(wire.OpCancel, func(q *rpc.Request) error {
		q.Reply.(*wirepb.CancelReply).Ended = []uint64{own}
		go f.call(wire.OpCompletionAST, &wirepb.CompletionAST{Own: own, ResSeq: 1, ResType: uint32(ldlm.TypeFlock)})
		return nil
	})
	if err := f.Flock(ctx, r); err != nil {
		t.Error(err)
	}
	f.imp.on(wire.OpCancel, nil)
	if err := f.Flock(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	f.imp.on(wire.OpFlock, func(q *rpc.Request) error {
		if m := q.Body.(*wirepb.FlockRequest); m.Test {
			p := q.Reply.(*wirepb.FlockReply)
			p.Held, p.End, p.Pid, p.Same = true, 10, 4, true
		}
		return nil
	})
	if err := f.Unflock(f.ctx, r); err != nil {
		t.Error(err)
	}
	if h, held, err := f.TestFlock(f.ctx, r); err != nil || !held || h.Range.PID != 4 || !h.Same {
		t.Errorf("in the way: %+v %v %v", h, held, err)
	}
}

func TestClose(t *testing.T) {
	f := newFixture(t, nil)
	f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
		r.Reply.(*wirepb.EnqueueReply).Waiting = true
		go f.Close()
		return nil
	})
	r := read(inode(5), ldlm.Update)
	if _, err := f.Acquire(f.ctx, &r); !errors.Is(err, status.NotConnected) {
		t.Errorf("who waited: %v", err)
	}
	if _, err := f.Acquire(f.ctx, &r); !errors.Is(err, status.NotConnected) {
		t.Errorf("who came later: %v", err)
	}
}

// A wish is given up whose lock was granted, and called back, before its reply came: the AST was answered, so the server
// waits for the cancel.
func TestInterruptedWishThatWasCalledBack(t *testing.T) {
	f := newFixture(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
		if err := f.blocking(ldlm.Handle(r.Body.(*wirepb.EnqueueRequest).Own), 0x66, inode(5), 0); err != nil {
			t.Errorf("blocking AST before the reply: %v", err)
		}
		cancel()
		return ctx.Err()
	})
	if _, err := f.Acquire(ctx, &lockcache.Request{Res: inode(5), Mode: ldlm.PR, Bits: ldlm.Update}); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	f.imp.await(t, "cancel [66]", 1)
	f.imp.await(t, "withdraw 1", 1)
}

// A completion AST that comes twice takes no application's lock away.
func TestFlockCompletionTwice(t *testing.T) {
	f := newFixture(t, nil)
	var m wirepb.CompletionAST
	f.imp.on(wire.OpEnqueue, func(q *rpc.Request) error {
		e := q.Body.(*wirepb.EnqueueRequest)
		q.Reply.(*wirepb.EnqueueReply).Waiting = true
		m.Own, m.Lock, m.ResSeq, m.ResOid, m.ResType = e.Own, 0x70, e.ResSeq, e.ResOid, e.ResType
		f.call(wire.OpCompletionAST, &m)
		return nil
	})
	r := &ldlm.FlockRequest{Res: ldlm.FlockRes(inode(5).FID()), Wait: true, Range: ldlm.FlockRange{Extent: whole()}}
	if err := f.Flock(f.ctx, r); err != nil {
		t.Fatal(err)
	}
	if _, err := f.call(wire.OpCompletionAST, &m); err != nil {
		t.Errorf("the second one: %v", err)
	}
	m.Own++
	if _, err := f.call(wire.OpCompletionAST, &m); !badHandle(err) {
		t.Errorf("one that nobody waits for: %v", err)
	}
	if n := len(f.imp.sent()); n != 1 {
		t.Errorf("sent %q", f.imp.sent())
	}
}

// What waits at a target that restarts is asked for again.
func TestWaitingWishAfterRestart(t *testing.T) {
	f := newFixture(t, func(o *lockcache.Options) { o.Replay = true })
	f.Connected(&wirepb.ConnectReply{Generation: 1, Instance: 1})
	waiting := make(chan struct{}, 2)
	var again atomic.Bool
	f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
		m, reply := r.Body.(*wirepb.EnqueueRequest), r.Reply.(*wirepb.EnqueueReply)
		if again.Load() {
			f.imp.grant(m, reply)
			return nil
		}
		reply.Waiting = true
		waiting <- struct{}{}
		return nil
	})
	results := make(chan error, 2)
	go func() {
		r := read(inode(7), ldlm.Update)
		g, err := f.Acquire(f.ctx, &r)
		if err == nil {
			f.Unpin(g.Handle)
		}
		results <- err
	}()
	go func() {
		results <- f.Flock(f.ctx, &ldlm.FlockRequest{Res: ldlm.FlockRes(inode(5).FID()), Wait: true, Range: ldlm.FlockRange{Extent: whole()}})
	}()
	<-waiting
	<-waiting
	again.Store(true)
	f.Connected(&wirepb.ConnectReply{Generation: 1, Instance: 2, Recovered: true})
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

// The asker leaves before the reply, which grants the lock and is the only word that it is called back.
func TestLeftBeforeTheReply(t *testing.T) {
	for _, blocked := range []bool{true, false} {
		f := newFixture(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		reply := make(chan struct{})
		f.imp.on(wire.OpEnqueue, func(r *rpc.Request) error {
			cancel()
			<-reply
			f.imp.grant(r.Body.(*wirepb.EnqueueRequest), r.Reply.(*wirepb.EnqueueReply))
			r.Reply.(*wirepb.EnqueueReply).Blocked = blocked
			return nil
		})
		if _, err := f.Acquire(ctx, &lockcache.Request{Res: inode(5), Mode: ldlm.PR, Bits: ldlm.Update}); !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
		close(reply)
		if blocked {
			f.imp.await(t, "cancel [101]", 1)
		} else { // it is worth keeping
			f.wait(func() bool { return f.UnusedCount() == 1 })
		}
	}
}
