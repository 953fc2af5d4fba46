package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

func TestRoundTripOfEverySize(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.start()
		for _, bulk := range []bool{false, true} {
			i := c.connect(func(o *rpc.ImportOptions) { o.Bulk = bulk; o.UUID[1] = 1 })
			ctx := testContext(t)
			for _, n := range []int{0, 1, 63, 4096, 60 << 10, 200 << 10} {
				if err := echo(ctx, i, string(bytes.Repeat([]byte("x"), n))); err != nil {
					t.Fatalf("body of %d: %v", n, err)
				}
			}
			for _, n := range []int{0, 1, 4095, 16 << 10, 16<<10 + 1, 64 << 10, 100_000, 1 << 20, wire.BulkMax} {
				into, want := make([]byte, n), make([]byte, n)
				r := &rpc.Request{Op: wire.OpRead, Body: &wirepb.ReadRequest{Length: uint32(n), Offset: 5}, Into: into}
				if err := i.Do(ctx, r); err != nil {
					t.Fatalf("read of %d: %v", n, err)
				}
				if pattern(want, 5); r.N != n || !bytes.Equal(into, want) {
					t.Fatalf("read of %d: %d bytes, equal %v", n, r.N, bytes.Equal(into, want))
				}
				pattern(want, 7)
				var reply wirepb.ObjectReply
				w := &rpc.Request{Op: wire.OpWrite, Reply: &reply, Bulk: pieces(want)}
				if err := i.Do(ctx, w); err != nil || reply.Size != uint64(n) {
					t.Fatalf("write of %d: %d, %v", n, reply.Size, err)
				}
			}
			if err := i.Close(ctx); err != nil {
				t.Error(err)
			}
		}
	})
}

// pieces cuts b into unequal parts.
func pieces(b []byte) (p [][]byte) {
	for n := 1; len(b) > 0; n *= 7 {
		k := min(n, len(b))
		p, b = append(p, b[:k]), b[k:]
	}
	return p
}

func TestErrorsKeepKindAndText(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.target.serve = func(_ *env.Env, call *rpc.Call) error {
			switch call.Header.Op {
			case wire.OpLookup:
				return status.NotExist
			case wire.OpUnlink:
				return fmt.Errorf("mdt: unlink: %w", status.Errorf(status.NotEmpty, "3 entries left"))
			case wire.OpCreate:
				call.RawReply, call.RawStatus = []byte{}, status.Exist
			case wire.OpGetattr:
				call.RawReply = encode(&wirepb.EntryReply{Handle: 42})
			}
			return nil
		}
		c.start()
		i := c.connect(nil)
		ctx := testContext(t)
		err := i.Do(ctx, &rpc.Request{Op: wire.OpLookup})
		var e *status.Error
		if !errors.As(err, &e) || e.Kind != status.NotExist || e.Text != "" {
			t.Errorf("%#v", err)
		}
		err = i.Do(ctx, &rpc.Request{Op: wire.OpUnlink})
		if !errors.Is(err, status.NotEmpty) || err.Error() != "mdt: unlink: 3 entries left" {
			t.Errorf("%v", err)
		}
		if err = i.Do(ctx, &rpc.Request{Op: wire.OpCreate}); !errors.Is(err, status.Exist) {
			t.Errorf("%v", err)
		}
		var reply wirepb.EntryReply
		if err = i.Do(ctx, &rpc.Request{Op: wire.OpGetattr, Reply: &reply}); err != nil || reply.Handle != 42 {
			t.Errorf("%v %v", &reply, err)
		}
		if err = i.Do(ctx, &rpc.Request{Op: wire.Op(0x37f)}); !errors.Is(err, status.NotSystem) {
			t.Errorf("an unknown operation: %v", err)
		}
	})
}

func encode(m rpc.Message) []byte {
	b := make([]byte, m.SizeVT())
	m.MarshalToSizedBufferVT(b)
	return b
}

func TestRefusalComesBackAtOnce(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.target.refuse.Store(&status.Error{Kind: status.Refused, Text: "a second mount"})
		c.start()
		i, err := rpc.NewImport(c.options4(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer closeImport(t, i)
		if err := i.Connect(testContext(t)); !errors.Is(err, status.Refused) {
			t.Fatal(err)
		}
		if err := echo(testContext(t), i, "x"); !errors.Is(err, status.Refused) {
			t.Fatal(err)
		}
		c.target.refuse.Store(nil)
		if err := i.Connect(testContext(t)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestConnectSaysWhatTheLastTryMet(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.start()
		i, _ := rpc.NewImport(c.options4(func(o *rpc.ImportOptions) { o.Target = "strake-OST0009" }))
		defer closeImport(t, i)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := i.Connect(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, status.WrongTarget) {
			t.Fatal(err)
		}
	})
}

// A modifying request is executed once, although its server is crashed and started again under it all the time.
func TestRestartsExecuteNothingTwice(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.start()
		i := c.connect(nil)
		ctx := testContext(t)
		var wg sync.WaitGroup
		var done atomic.Int64
		for range 8 {
			wg.Go(func() {
				for range 200 {
					r := &rpc.Request{Op: wire.OpSetattr}
					if err := i.Do(ctx, r); err != nil || r.Transno == 0 {
						t.Errorf("transno %d: %v", r.Transno, err)
						return
					}
					done.Add(1)
				}
			})
		}
		finished := make(chan struct{})
		go func() { wg.Wait(); close(finished) }()
		for restarts := 0; ; restarts++ {
			select {
			case <-finished:
				d := c.target.disk
				d.mu.Lock()
				defer d.mu.Unlock()
				for xid, n := range d.executed {
					if n != 1 {
						t.Errorf("xid %d was executed %d times", xid, n)
					}
				}
				if int64(len(d.executed)) != done.Load() {
					t.Errorf("%d executed, %d answered", len(d.executed), done.Load())
				}
				return
			case <-time.After(10 * time.Millisecond):
				if restarts < 10 {
					c.crash()
					c.restart()
				}
			}
		}
	})
}

// A new instance allows fewer requests than are lost: they go out in turn.
func TestRestartWithALowerLimit(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		const n = 16
		arrived := make(chan struct{}, 4*n)
		var open atomic.Bool
		c.target.serve = func(e *env.Env, call *rpc.Call) error {
			arrived <- struct{}{}
			if !open.Load() {
				<-call.Context().Done()
			}
			return nil
		}
		c.start()
		i := c.connect(nil)
		var wg sync.WaitGroup
		for k := range 2 * n {
			wg.Go(func() {
				op := wire.OpGetattr
				if k%2 == 0 {
					op = wire.OpSetattr
				}
				if err := i.Do(testContext(t), &rpc.Request{Op: op}); err != nil {
					t.Error(err)
				}
			})
		}
		for range 2 * n {
			<-arrived
		}
		c.crash()
		open.Store(true)
		c.target.maxInFlight = 2
		c.restart()
		wg.Wait()
	})
}

func TestEvictionFailsWhatIsInFlightAndConnectsAnew(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		arrived, release := make(chan struct{}), make(chan struct{})
		c.target.serve = func(e *env.Env, call *rpc.Call) error {
			if call.Header.Op == wire.OpSync {
				close(arrived)
				<-call.Context().Done()
				<-release
				return nil
			}
			return serveEcho(e, call)
		}
		c.start()
		i := c.connect(nil)
		failed := make(chan error, 1)
		go func() { failed <- i.Do(testContext(t), &rpc.Request{Op: wire.OpSync}) }()
		<-arrived
		c.target.evict()
		if err := echo(testContext(t), i, "x"); err != nil && !errors.Is(err, status.IO) {
			t.Fatal(err)
		}
		close(release)
		if err := <-failed; !errors.Is(err, status.IO) {
			t.Fatalf("in flight: %v", err)
		}
		if err := echo(testContext(t), i, "y"); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRetryLimit(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.start()
		i := c.connect(func(o *rpc.ImportOptions) { o.RetryLimit = 100 * time.Millisecond })
		c.crash()
		if err := echo(testContext(t), i, "x"); !errors.Is(err, status.TimedOut) {
			t.Fatal(err)
		}
		c.restart()
		if err := i.Connect(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if err := echo(testContext(t), i, "x"); err != nil {
			t.Fatal(err)
		}
	})
}

// The caller's memory is its own again as soon as Do has returned, in the middle of a transfer too.
func TestCancelledRequestsLeaveTheCallersMemoryAlone(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.start()
		i := c.connect(func(o *rpc.ImportOptions) { o.Bulk = true })
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		var wg sync.WaitGroup
		for g := range 6 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, uint64(g)))
				into := make([]byte, 4<<20)
				for range 30 {
					ctx, cancel := context.WithCancel(context.Background())
					stop := time.AfterFunc(time.Duration(rnd.IntN(3000))*time.Microsecond, cancel)
					n := 1 + rnd.IntN(len(into))
					r := &rpc.Request{Op: wire.OpRead, Body: &wirepb.ReadRequest{Length: uint32(n)}, Into: into[:n]}
					err := i.Do(ctx, r)
					clear(into[:n]) // the race detector sees a reader that still writes
					if stop.Stop(); err != nil && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		if err := echo(testContext(t), i, "still there"); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCancelledModificationKeepsItsSlot(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		arrived, release := make(chan uint32, 4), make(chan struct{})
		c.target.serve = func(_ *env.Env, call *rpc.Call) error {
			arrived <- call.Header.Slot
			select {
			case <-release:
			case <-call.Context().Done():
			}
			return nil
		}
		c.start()
		i := c.connect(func(o *rpc.ImportOptions) { o.MaxInFlight = 1 })
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- i.Do(ctx, &rpc.Request{Op: wire.OpSetattr}) }()
		slot := <-arrived
		cancel()
		if err := <-first; status.Of(err) != status.Interrupted {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := i.Do(short, &rpc.Request{Op: wire.OpSetattr}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a second request in the slot: %v", err)
		}
		// The orphan is resent to a new instance and frees the slot when that answers.
		c.crash()
		c.restart()
		if again := <-arrived; again != slot {
			t.Fatalf("slot %d came back as %d", slot, again)
		}
		close(release)
		if err := i.Do(testContext(t), &rpc.Request{Op: wire.OpSetattr}); err != nil {
			t.Fatal(err)
		}
	})
}

// What a request has opened for a caller that did not wait is told, once, with the reply's body.
func TestLateReplyIsToldWithItsBody(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		arrived, release := make(chan struct{}, 1), make(chan struct{})
		c.target.serve = func(_ *env.Env, call *rpc.Call) error {
			arrived <- struct{}{}
			<-release
			call.Reply = &wirepb.EntryReply{Handle: 77}
			return nil
		}
		c.start()
		late := make(chan uint64, 2)
		i := c.connect(func(o *rpc.ImportOptions) {
			o.OnLate = func(op wire.Op, body []byte) {
				var r wirepb.EntryReply
				if err := r.UnmarshalVT(body); err != nil || op != wire.OpOpen {
					t.Errorf("%v: %v", op, err)
				}
				late <- r.Handle
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- i.Do(ctx, &rpc.Request{Op: wire.OpOpen}) }()
		<-arrived
		cancel()
		if err := <-left; status.Of(err) != status.Interrupted {
			t.Fatal(err)
		}
		close(release)
		select {
		case h := <-late:
			if h != 77 {
				t.Fatalf("handle %d", h)
			}
		case <-testContext(t).Done():
			t.Fatal("nobody was told")
		}
		var r wirepb.EntryReply
		if err := i.Do(testContext(t), &rpc.Request{Op: wire.OpOpen, Reply: &r}); err != nil || r.Handle != 77 {
			t.Fatalf("%v %v", err, r.Handle)
		}
		if len(late) != 0 {
			t.Fatal("a reply that was waited for is told too")
		}
	})
}

func TestHeldCallsHoldNoWorker(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		held := make(chan *rpc.Call, 16)
		c.target.serve = func(e *env.Env, call *rpc.Call) error {
			if call.Header.Op == wire.OpGetattr {
				held <- call
				return rpc.ErrHeld
			}
			return serveEcho(e, call)
		}
		reg := stats.NewRegistry()
		c.options.Stats = reg
		c.start()
		i := c.connect(nil)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				var reply wirepb.EntryReply
				if err := i.Do(testContext(t), &rpc.Request{Op: wire.OpGetattr, Reply: &reply}); err != nil || reply.Handle != 9 {
					t.Errorf("%v %v", &reply, err)
				}
			})
		}
		calls := make([]*rpc.Call, 0, 10)
		for range 10 {
			calls = append(calls, <-held)
		}
		if err := echo(testContext(t), i, "x"); err != nil {
			t.Fatal(err)
		}
		if n := reg.Gauge("rpc.server.threads_started", "").Load(); n > 6 {
			t.Errorf("%d workers for ten held calls", n)
		}
		for _, call := range calls {
			call.Reply = &wirepb.EntryReply{Handle: 9}
			call.Finish(nil)
		}
		wg.Wait()
		if n := reg.Gauge("rpc.server.req_held", "").Load(); n != 0 {
			t.Errorf("%d held", n)
		}
	})
}

// Two clients fill every slot with requests that wait for each other; an operation of the reserve releases them
// (DESIGN §3: no waiting request may keep out what it waits for).
func TestPriorOperationsPassFullSlots(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		const clients, inFlight = 2, 4
		var waiting sync.WaitGroup
		waiting.Add(2 * clients * inFlight)
		closed := make(chan struct{})
		var closes atomic.Int64
		c.target.maxInFlight = inFlight
		c.target.serve = func(_ *env.Env, call *rpc.Call) error {
			if call.Header.Op == wire.OpClose {
				if closes.Add(1) == clients {
					close(closed)
				}
				return nil
			}
			waiting.Done()
			select {
			case <-closed:
			case <-call.Context().Done():
			}
			return nil
		}
		c.start()
		var wg sync.WaitGroup
		imports := make([]*rpc.Import, clients)
		for n := range imports {
			imports[n] = c.connect(func(o *rpc.ImportOptions) { o.UUID[1] = byte(n) })
			for k := range 4 * inFlight { // more than there are slots
				wg.Go(func() {
					op := wire.OpSetattr
					if k%2 == 0 {
						op = wire.OpGetattr
					}
					if k >= 2*inFlight {
						return
					}
					if err := imports[n].Do(testContext(t), &rpc.Request{Op: op}); err != nil {
						t.Error(err)
					}
				})
			}
		}
		waiting.Wait()
		for _, i := range imports {
			if err := i.Do(testContext(t), &rpc.Request{Op: wire.OpClose}); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
	})
}

func TestCallbacks(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.target.serve = func(_ *env.Env, call *rpc.Call) error {
			if call.Header.Op != wire.OpSync {
				return nil
			}
			// The answer to the client's request waits for the client's answer to ours.
			var reply wirepb.Config
			err := call.Conn.Callback(call.Context(), &rpc.Request{Op: wire.OpConfigChanged, Body: &wirepb.Config{Version: 3}, Reply: &reply})
			if err == nil && reply.Version != 4 {
				err = status.Errorf(status.Invalid, "version %d", reply.Version)
			}
			return err
		}
		c.start()
		i := c.connect(func(o *rpc.ImportOptions) {
			o.Callback = func(_ *env.Env, call *rpc.Call) error {
				var m wirepb.Config
				if err := call.Decode(&m); err != nil {
					return err
				}
				call.Reply = &wirepb.Config{Version: m.Version + 1}
				return nil
			}
		})
		var wg sync.WaitGroup
		for range 40 { // more than CallbacksMax
			wg.Go(func() {
				if err := i.Do(testContext(t), &rpc.Request{Op: wire.OpSync}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

func TestCallbackErrors(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		results := make(chan error, 1)
		c.target.serve = func(_ *env.Env, call *rpc.Call) error {
			results <- call.Conn.Callback(call.Context(), &rpc.Request{Op: wire.OpConfigChanged})
			return nil
		}
		c.start()
		i := c.connect(nil) // without a Callback
		if err := i.Do(testContext(t), &rpc.Request{Op: wire.OpSync}); err != nil {
			t.Fatal(err)
		}
		if err := <-results; !errors.Is(err, status.NotSystem) {
			t.Fatal(err)
		}
	})
}

// corrupting damages the nth large write that passes.
type corrupting struct {
	rpc.Transport
	every atomic.Int64
	count atomic.Int64
}

type corruptConn struct {
	net.Conn
	t *corrupting
}

func (c *corrupting) Dial(ctx context.Context, addr string) (net.Conn, error) {
	nc, err := c.Transport.Dial(ctx, addr)
	return &corruptConn{nc, c}, err
}

func (c *corruptConn) damage(b []byte) bool {
	n := c.t.every.Load()
	return n > 0 && len(b) >= 50_000 && c.t.count.Add(1)%n == 0
}

func (c *corruptConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if len(b) < 64<<10 && c.damage(b[:n]) { // not the buffer that headers arrive in
		b[n/2] ^= 0x10
	}
	return n, err
}

func (c *corruptConn) Write(b []byte) (int, error) {
	if c.damage(b) {
		b = bytes.Clone(b)
		b[len(b)/2] ^= 0x10
	}
	return c.Conn.Write(b)
}

func TestDamagedBulkIsSentAgain(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.start()
		reg := stats.NewRegistry()
		tr := &corrupting{Transport: c.transport}
		i := c.connect(func(o *rpc.ImportOptions) { o.Transport, o.Bulk, o.Stats = tr, true, reg })
		want := make([]byte, 60_000)
		pattern(want, 7)
		tr.every.Store(2)
		for range 20 {
			if err := i.Do(testContext(t), &rpc.Request{Op: wire.OpWrite, Bulk: [][]byte{want}}); err != nil {
				t.Fatal(err)
			}
		}
		if n := reg.Counter("rpc."+targetName+".checksum_errors", "").Load(); n == 0 {
			t.Error("nothing was damaged")
		}
		tr.every.Store(1)
		if err := i.Do(testContext(t), &rpc.Request{Op: wire.OpWrite, Bulk: [][]byte{want}}); !errors.Is(err, status.IO) {
			t.Errorf("always damaged: %v", err)
		}
	})
}

func TestCloseWhileRequestsWait(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.target.serve = func(_ *env.Env, call *rpc.Call) error {
			<-call.Context().Done()
			return nil
		}
		c.start()
		i := c.connect(func(o *rpc.ImportOptions) { o.MaxInFlight = 2 })
		errs := make(chan error, 6)
		for range 6 {
			go func() { errs <- i.Do(context.Background(), &rpc.Request{Op: wire.OpGetattr}) }()
		}
		if err := i.Close(testContext(t)); err != nil {
			t.Error(err)
		}
		for range 6 {
			if err := <-errs; err == nil {
				t.Error("a request ended well")
			}
		}
		if err := echo(testContext(t), i, "x"); err == nil || i.State() != rpc.StateClosed {
			t.Error(err, i.State())
		}
	})
}

func TestListenAndDialErrors(t *testing.T) {
	for name, f := range transports {
		t.Run(name, func(t *testing.T) {
			tr, addr := f()
			l, err := tr.Listen(addr)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tr.Listen(l.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("listening twice: %v", err)
			}
			l.Close()
			if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("accept: %v", err)
			}
			if _, err := tr.Dial(t.Context(), l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("dial: %v", err)
			}
		})
	}
}
