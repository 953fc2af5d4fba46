package lov_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func seed(t testing.TB) uint64 {
	s := uint64(time.Now().UnixNano())
	if v := os.Getenv("STRAKE_SEED"); v != "" {
		s, _ = strconv.ParseUint(v, 10, 64)
	}
	t.Logf("STRAKE_SEED=%d", s)
	return s
}

// world is a set of fake OSTs and their OSCs.
type world struct {
	osts  []*fakeOST
	set   *lov.Set
	cache *osc.Cache
}

type worldOptions struct {
	osts  int
	cache int64
	osc   osc.Options
	grant int64
	spins int
	seed  uint64
}

func newWorld(t testing.TB, o worldOptions) *world {
	w := &world{set: lov.NewSet(), cache: osc.NewCache(o.cache)}
	var oscs []*osc.OSC
	for i := range o.osts {
		ost := newFakeOST(t, o.seed+uint64(i))
		ost.grantMax, ost.spins = o.grant, o.spins
		w.osts = append(w.osts, ost)
		opt := o.osc
		opt.Import, opt.Index, opt.Cache = ost, layout.OSTIndex(i), w.cache
		c := osc.New(opt)
		ost.granted = min(o.grant, 1<<20)
		c.Connected(&wirepb.ConnectReply{Grant: uint64(ost.granted), BrwSize: 4 << 20})
		w.set.Add(c)
		oscs = append(oscs, c)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for _, c := range oscs {
			if err := c.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		if err := w.set.Close(ctx); err != nil {
			t.Error(err)
		}
		if n := w.cache.Used(); n != 0 {
			t.Errorf("%d bytes of the cache never came back", n)
		}
	})
	return w
}

func (w *world) open(t testing.TB, stripes int, size uint64) *lov.File {
	l := layout.Plain(uint32(stripes), size)
	c := &l.Components[0]
	c.Flags |= layout.FlagInit
	for i := range stripes {
		c.Stripes = append(c.Stripes, layout.Stripe{OST: layout.OSTIndex(i), Object: fid.ObjectID{ID: uint64(100 + i)}})
	}
	f, err := w.set.Open(fid.FID{Seq: fid.SeqFirst, OID: 7}, &l, lov.Owner{UID: 1, GID: 2, Project: 3})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

var bg = context.Background()

func now() attr.Time { return attr.TimeOf(time.Now()) }

func mustWrite(t testing.TB, f *lov.File, b []byte, off uint64, direct bool) {
	t.Helper()
	for len(b) > 0 {
		n, err := f.WriteAt(bg, b, off, now(), direct)
		if err != nil {
			t.Fatalf("write of %d at %d: %v", len(b), off, err)
		}
		b, off = b[n:], off+uint64(n)
	}
}

func mustRead(t testing.TB, f *lov.File, n int, off uint64) []byte {
	t.Helper()
	b := bytes.Repeat([]byte{0xee}, n)
	k, err := f.ReadAt(bg, b, off)
	if err != nil {
		t.Fatalf("read of %d at %d: %v", n, off, err)
	}
	return b[:k]
}

// shadow is what the file must hold.
type shadow struct {
	data []byte
	size uint64
}

func (s *shadow) write(b []byte, off uint64) {
	copy(s.data[off:], b)
	s.size = max(s.size, off+uint64(len(b)))
}

func (s *shadow) truncate(n uint64) {
	if n < s.size {
		clear(s.data[n:s.size])
	}
	s.size = n
}

func (s *shadow) zero(off, n uint64) { clear(s.data[min(off, s.size):min(off+n, s.size)]) }

// fsx runs random calls against f and the shadow.
type fsx struct {
	t    testing.TB
	f    *lov.File
	rnd  *rand.Rand
	s    shadow
	max  uint64
	step int
}

func (x *fsx) extent() (off, n uint64) {
	off = x.rnd.Uint64N(x.max)
	n = 1 + x.rnd.Uint64N([]uint64{100, 5000, 70000, 300000}[x.rnd.IntN(4)])
	if x.rnd.IntN(2) == 0 {
		off &^= grain - 1
		n = (n + grain - 1) &^ (grain - 1)
	}
	return off, min(n, x.max-off)
}

func (x *fsx) check(what string, err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatalf("step %d: %s: %v", x.step, what, err)
	}
}

func (x *fsx) run(steps int) {
	for x.step = range steps {
		off, n := x.extent()
		if n == 0 {
			continue
		}
		switch k := x.rnd.IntN(100); {
		case k < 40:
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(x.rnd.Uint32())
			}
			mustWrite(x.t, x.f, b, off, x.rnd.IntN(8) == 0)
			x.s.write(b, off)
		case k < 75:
			x.read(off, n)
		case k < 80:
			x.check("truncate", x.f.Truncate(bg, off, now()))
			x.s.truncate(off)
		case k < 84:
			x.check("punch", x.f.Fallocate(bg, lov.PunchHole|lov.KeepSize, off, n, now()))
			x.s.zero(off, n)
		case k < 87:
			x.check("zero", x.f.Fallocate(bg, lov.ZeroRange, off, n, now()))
			x.s.size = max(x.s.size, off+n)
			x.s.zero(off, n)
		case k < 89:
			x.check("fallocate", x.f.Fallocate(bg, 0, off, n, now()))
			x.s.size = max(x.s.size, off+n)
		case k < 92:
			x.seek(off)
		case k < 95:
			g, err := x.f.Glimpse(bg)
			x.check("glimpse", err)
			if g.Size != x.s.size {
				x.t.Fatalf("step %d: glimpse says %d, want %d", x.step, g.Size, x.s.size)
			}
		case k < 98:
			x.check("flush", x.f.Flush(bg))
			if d := x.f.Dirty(); d != 0 {
				x.t.Fatalf("step %d: %d dirty after a flush", x.step, d)
			}
		default:
			x.check("sync", x.f.Sync(bg))
		}
		if x.f.Size() != x.s.size {
			x.t.Fatalf("step %d: size %d, want %d", x.step, x.f.Size(), x.s.size)
		}
	}
	x.read(0, x.max)
}

func (x *fsx) read(off, n uint64) {
	x.t.Helper()
	got := mustRead(x.t, x.f, int(n), off)
	want := x.s.data[min(off, x.s.size):min(off+n, x.s.size)]
	if !bytes.Equal(got, want) {
		for i := range want {
			if i >= len(got) || got[i] != want[i] {
				x.t.Fatalf("step %d: read of %d at %d: %d bytes, want %d; the byte at %d is wrong",
					x.step, n, off, len(got), len(want), off+uint64(i))
			}
		}
		x.t.Fatalf("step %d: read of %d at %d: %d bytes, want %d", x.step, n, off, len(got), len(want))
	}
}

// seek checks what can be known: a hole holds zeros only, and what is skipped in search of data too.
func (x *fsx) seek(off uint64) {
	hole, err := x.f.Seek(bg, off, true)
	if off >= x.s.size {
		if !errors.Is(err, status.NoDevice) {
			x.t.Fatalf("step %d: seek at %d of %d: %v", x.step, off, x.s.size, err)
		}
		return
	}
	x.check("seek hole", err)
	data, err := x.f.Seek(bg, off, false)
	if errors.Is(err, status.NoDevice) {
		data, err = x.s.size, nil
	}
	x.check("seek data", err)
	if hole > x.s.size || hole < off || data < off || data > x.s.size || (hole == off) == (data == off) {
		x.t.Fatalf("step %d: seek from %d of %d: hole %d, data %d", x.step, off, x.s.size, hole, data)
	}
	for i := off; i < data; i++ {
		if x.s.data[i] != 0 {
			x.t.Fatalf("step %d: no data from %d to %d, but at %d", x.step, off, data, i)
		}
	}
}

func TestRandomCallsMatchAShadow(t *testing.T) {
	for _, c := range []struct {
		name    string
		stripes int
		o       worldOptions
	}{
		{"1 stripe", 1, worldOptions{grant: 1 << 30}},
		{"4 stripes", 4, worldOptions{grant: 1 << 30}},
		{"tiny cache", 4, worldOptions{grant: 1 << 30, cache: 1, osc: osc.Options{RPCBytes: 64 << 10}}},
		{"tiny grant", 1, worldOptions{grant: 100 << 10, osc: osc.Options{RPCBytes: 64 << 10}}},
		{"no grant", 4, worldOptions{osc: osc.Options{RPCBytes: 256 << 10}}},
		{"at once", 4, worldOptions{grant: 1 << 30, osc: osc.Options{MaxAge: time.Microsecond, MaxDirtyBytes: 200 << 10, RPCBytes: 128 << 10}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.seed, c.o.osts, c.o.spins = seed(t), 4, 200
			w := newWorld(t, c.o)
			f := w.open(t, c.stripes, layout.MinStripeSize)
			const size = 2 << 20
			x := &fsx{t: t, f: f, rnd: rand.New(rand.NewPCG(c.o.seed, 2)), max: size, s: shadow{data: make([]byte, size)}}
			x.run(800)
			checkObjects(t, w, f, x.s.data[:x.s.size])
		})
	}
}

// checkObjects compares what lies on the OSTs with what must.
func checkObjects(t *testing.T, w *world, f *lov.File, want []byte) {
	t.Helper()
	if err := f.Flush(bg); err != nil {
		t.Fatal(err)
	}
	for i, ost := range w.osts {
		ost.mu.Lock()
		for id, o := range ost.objects {
			if o.owner != [3]uint32{1, 2, 3} && len(o.alloc) > 0 {
				t.Errorf("OST %d object %v belongs to %v", i, id, o.owner)
			}
		}
		ost.mu.Unlock()
	}
	f.Discard()
	got := mustRead(t, f, len(want)+1, 0)
	if !bytes.Equal(got, want) {
		t.Fatal("what lies on the OSTs is not what was written")
	}
}

// TestParallelCallsMatchAShadow runs several goroutines, each with lanes of its own, between truncates and punches.
func TestParallelCallsMatchAShadow(t *testing.T) {
	for _, stripes := range []int{1, 4} {
		t.Run(fmt.Sprint(stripes), func(t *testing.T) {
			sd := seed(t)
			w := newWorld(t, worldOptions{
				osts: 4, seed: sd, spins: 300, grant: 3 << 20, cache: 1 << 20,
				osc: osc.Options{RPCBytes: 64 << 10, MaxAge: time.Millisecond},
			})
			f := w.open(t, stripes, layout.MinStripeSize)
			p := &parallel{t: t, f: f, data: make([]byte, 1<<20)}
			mustWrite(t, f, p.data, 0, false)
			var g sync.WaitGroup
			for i := range lanes {
				g.Go(func() { p.lane(i, rand.New(rand.NewPCG(sd, uint64(i))), 400) })
			}
			g.Go(func() { p.whole(rand.New(rand.NewPCG(sd, 99)), 60) })
			g.Wait()
			if got := mustRead(t, f, len(p.data), 0); !bytes.Equal(got, p.data) {
				t.Fatal("the file differs in the end")
			}
			if err := f.Sync(bg); err != nil {
				t.Fatal(err)
			}
		})
	}
}

const (
	lanes    = 5
	laneSize = 7001 // odd, so that lanes share pages, blocks and stripes
)

type parallel struct {
	t    *testing.T
	f    *lov.File
	all  sync.RWMutex // held exclusively by what changes all lanes
	data []byte
}

func (p *parallel) lane(id int, rnd *rand.Rand, steps int) {
	rows := len(p.data) / (laneSize * lanes)
	for range steps {
		off := (rnd.IntN(rows)*lanes + id) * laneSize
		from := off + rnd.IntN(laneSize)
		to := from + rnd.IntN(off+laneSize-from) + 1
		p.all.RLock()
		switch rnd.IntN(10) {
		case 0, 1, 2, 3, 4:
			b := make([]byte, to-from)
			for i := range b {
				b[i] = byte(rnd.Uint32())
			}
			mustWrite(p.t, p.f, b, uint64(from), rnd.IntN(10) == 0)
			copy(p.data[from:], b)
		case 5:
			if err := p.f.Flush(bg); err != nil {
				p.t.Error(err)
			}
		default:
			// A wide read, of which this lane's bytes are known.
			start := max(0, from-rnd.IntN(50000))
			end := min(len(p.data), to+rnd.IntN(50000))
			got := mustRead(p.t, p.f, end-start, uint64(start))
			if !bytes.Equal(got[from-start:to-start], p.data[from:to]) {
				p.t.Errorf("lane %d: [%d, %d) is wrong", id, from, to)
			}
		}
		p.all.RUnlock()
	}
}

func (p *parallel) whole(rnd *rand.Rand, steps int) {
	for range steps {
		off := rnd.IntN(len(p.data))
		n := rnd.IntN(len(p.data)-off) + 1
		p.all.Lock()
		var err error
		if rnd.IntN(2) == 0 {
			err = p.f.Truncate(bg, uint64(off), now())
			if err == nil {
				err = p.f.Truncate(bg, uint64(len(p.data)), now())
			}
			n = len(p.data) - off
		} else {
			err = p.f.Fallocate(bg, lov.PunchHole|lov.KeepSize, uint64(off), uint64(n), now())
		}
		clear(p.data[off : off+n])
		p.all.Unlock()
		if err != nil {
			p.t.Error(err)
		}
	}
}

func failWrites(err error) *func(*rpc.Request) error {
	fn := func(r *rpc.Request) error {
		if r.Op == wire.OpWrite {
			return err
		}
		return nil
	}
	return &fn
}

func TestDelayedErrorIsToldOnce(t *testing.T) {
	for name, tell := range map[string]func(*lov.File) error{
		"write": func(f *lov.File) error { _, err := f.WriteAt(bg, []byte("x"), 0, now(), false); return err },
		"flush": func(f *lov.File) error { return f.Flush(bg) },
		"sync":  func(f *lov.File) error { return f.Sync(bg) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldOptions{osts: 2, grant: 1 << 30})
			f := w.open(t, 2, layout.MinStripeSize)
			mustWrite(t, f, make([]byte, 300<<10), 0, false)
			w.osts[0].fail.Store(failWrites(status.IO))
			if name == "write" { // make it a delayed one
				ctx, cancel := context.WithCancel(bg)
				cancel()
				_ = f.Flush(ctx)
				if err := w.set.SyncAll(bg); err != nil {
					t.Fatal(err)
				}
			}
			err := tell(f)
			if !errors.Is(err, status.IO) {
				t.Fatalf("told %v", err)
			}
			w.osts[0].fail.Store(nil)
			if err := tell(f); err != nil {
				t.Fatalf("told again: %v", err)
			}
			if err := f.Sync(bg); err != nil {
				t.Fatalf("told again: %v", err)
			}
		})
	}
}

func TestWithoutGrantTheWriterHearsOfAFullOST(t *testing.T) {
	w := newWorld(t, worldOptions{osts: 1, grant: 8 << 10})
	f := w.open(t, 1, layout.StripeSizeDefault)
	mustWrite(t, f, make([]byte, 8<<10), 0, false) // against the grant
	w.osts[0].fail.Store(failWrites(status.NoSpace))
	w.osts[0].mu.Lock()
	w.osts[0].grantMax = 0
	w.osts[0].mu.Unlock()
	n, err := f.WriteAt(bg, make([]byte, 64<<10), 1<<20, now(), false)
	if n != 0 || !errors.Is(err, status.NoSpace) {
		t.Fatalf("wrote %d: %v", n, err)
	}
	if f.Size() != 8<<10 {
		t.Fatalf("a refused write left a size of %d", f.Size())
	}
	if err := f.Flush(bg); !errors.Is(err, status.NoSpace) { // the granted data, which this fake refuses too
		t.Fatal(err)
	}
}

func TestInterruptedCallsLoseNothing(t *testing.T) {
	w := newWorld(t, worldOptions{osts: 1, grant: 1 << 30, cache: osc.MinCacheBytes, osc: osc.Options{RPCBytes: 64 << 10}})
	f := w.open(t, 1, layout.StripeSizeDefault)
	back := make(chan struct{})
	w.osts[0].away.Store(&back)
	want := bytes.Repeat([]byte("strake!"), 1<<20/7)
	ctx, cancel := context.WithTimeout(bg, 30*time.Millisecond)
	n, err := f.WriteAt(ctx, want, 0, now(), false)
	cancel()
	if status.Of(err) != status.TimedOut || n == 0 || n == len(want) {
		t.Fatalf("wrote %d: %v", n, err)
	}
	ctx, cancel = context.WithTimeout(bg, 10*time.Millisecond)
	if k, err := f.WriteAt(ctx, want[n:], uint64(n), now(), false); k != 0 || status.Of(err) != status.TimedOut {
		t.Fatalf("wrote %d: %v", k, err)
	}
	cancel()
	for what, call := range map[string]func(context.Context) error{
		"flush":    f.Flush,
		"sync":     f.Sync,
		"truncate": func(ctx context.Context) error { return f.Truncate(ctx, 0, now()) },
		"punch":    func(ctx context.Context) error { return f.Fallocate(ctx, 3, 0, 100, now()) },
		"glimpse":  func(ctx context.Context) error { _, err := f.Glimpse(ctx); return err },
		"seek":     func(ctx context.Context) error { _, err := f.Seek(ctx, 0, true); return err },
	} {
		ctx, cancel := context.WithCancel(bg)
		time.AfterFunc(5*time.Millisecond, cancel)
		if err := call(ctx); status.Of(err) != status.Interrupted {
			t.Fatalf("%s: %v", what, err)
		}
	}
	w.osts[0].away.Store(nil)
	close(back)
	if err := f.Sync(bg); err != nil {
		t.Fatal(err)
	}
	f.Discard()
	if got := mustRead(t, f, len(want), 0); !bytes.Equal(got, want[:n]) {
		t.Fatalf("%d bytes, want %d", len(got), n)
	}
}

// TestInterruptedTruncateStaysInOrder: the cut that nobody waits for any more must not hit what is written after it.
func TestInterruptedTruncateStaysInOrder(t *testing.T) {
	w := newWorld(t, worldOptions{osts: 4, grant: 1 << 30})
	f := w.open(t, 4, layout.MinStripeSize)
	mustWrite(t, f, make([]byte, 1<<20), 0, true)
	back := make(chan struct{})
	w.osts[2].away.Store(&back)
	ctx, cancel := context.WithCancel(bg)
	time.AfterFunc(5*time.Millisecond, cancel)
	if err := f.Truncate(ctx, 0, now()); status.Of(err) != status.Interrupted {
		t.Fatal(err)
	}
	time.AfterFunc(5*time.Millisecond, func() { w.osts[2].away.Store(nil); close(back) })
	want := bytes.Repeat([]byte("after"), 100000)
	mustWrite(t, f, want, 0, false)
	if err := f.Sync(bg); err != nil {
		t.Fatal(err)
	}
	if got := mustRead(t, f, 1<<20, 0); !bytes.Equal(got, want) {
		t.Fatal("the truncate hit what was written after it")
	}
}

func TestOSTThatIsAwayLeavesOthersRoom(t *testing.T) {
	w := newWorld(t, worldOptions{osts: 2, grant: 1 << 30, cache: 1 << 20, osc: osc.Options{RPCBytes: 64 << 10}})
	back := make(chan struct{})
	w.osts[1].away.Store(&back)
	both, one := w.open(t, 2, layout.MinStripeSize), w.open(t, 1, layout.MinStripeSize)
	ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
	defer cancel()
	for off := uint64(0); ctx.Err() == nil; off += 128 << 10 {
		_, _ = both.WriteAt(ctx, make([]byte, 64<<10), off+64<<10, now(), false)
	}
	mustWrite(t, one, make([]byte, 4<<20), 0, false)
	if err := one.Sync(bg); err != nil {
		t.Fatal(err)
	}
	w.osts[1].away.Store(nil)
	close(back)
}

func TestCacheStaysWithinItsLimit(t *testing.T) {
	w := newWorld(t, worldOptions{osts: 4, grant: 1 << 30, cache: 1 << 20, spins: 100, osc: osc.Options{RPCBytes: 128 << 10}})
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if n := w.cache.Used(); n > w.cache.Limit() {
					t.Errorf("%d bytes of %d", n, w.cache.Limit())
					return
				}
			}
		}
	})
	var g sync.WaitGroup
	for i := range 6 {
		g.Go(func() {
			f := w.open(t, 4, layout.MinStripeSize)
			rnd := rand.New(rand.NewPCG(1, uint64(i)))
			for range 200 {
				mustWrite(t, f, make([]byte, 1+rnd.IntN(100000)), rnd.Uint64N(1<<24), i == 0)
			}
			if err := f.Flush(bg); err != nil {
				t.Error(err)
			}
		})
	}
	g.Wait()
	close(stop)
	watch.Wait()
}

func TestDiscardSendsNothingMore(t *testing.T) {
	w := newWorld(t, worldOptions{osts: 1, grant: 1 << 30})
	f := w.open(t, 1, layout.StripeSizeDefault)
	mustWrite(t, f, make([]byte, 100<<10), 0, false)
	f.Discard()
	f.Close()
	if err := w.set.SyncAll(bg); err != nil {
		t.Fatal(err)
	}
	if n := w.osts[0].count(wire.OpWrite); n != 0 {
		t.Fatalf("%d writes of a discarded file", n)
	}
}

func TestMissingOSTIsFoundLater(t *testing.T) {
	w := newWorld(t, worldOptions{osts: 1, grant: 1 << 30})
	f := w.open(t, 2, layout.MinStripeSize)
	if _, err := f.WriteAt(bg, []byte("x"), 0, now(), false); !errors.Is(err, status.IO) {
		t.Fatal(err)
	}
	ost := newFakeOST(t, 1)
	c := osc.New(osc.Options{Import: ost, Index: 1})
	defer c.Close(bg)
	w.set.Add(c)
	mustWrite(t, f, make([]byte, 1<<20), 0, false)
	if err := f.Sync(bg); err != nil {
		t.Fatal(err)
	}
}

// TestInterruptedCallsInParallel: writers, truncates and punches that are interrupted at random leave a file whose size is
// what the OSTs say, with nothing behind it and no byte that nobody wrote.
func TestInterruptedCallsInParallel(t *testing.T) {
	sd := seed(t)
	w := newWorld(t, worldOptions{
		osts: 4, seed: sd, spins: 400, grant: 2 << 20, cache: 512 << 10,
		osc: osc.Options{RPCBytes: 64 << 10, MaxAge: time.Millisecond},
	})
	f := w.open(t, 4, layout.MinStripeSize)
	const span = 1 << 20
	stamp := func(b []byte, off int) {
		for i := range b {
			b[i] = byte((off+i)*7%251) + 1
		}
	}
	var g sync.WaitGroup
	for id := range 5 {
		g.Go(func() {
			rnd := rand.New(rand.NewPCG(sd, uint64(id)))
			for range 150 {
				ctx, cancel := context.WithTimeout(bg, time.Duration(rnd.IntN(3000))*time.Microsecond)
				off, n := rnd.IntN(span), 1+rnd.IntN(80000)
				var err error
				switch k := rnd.IntN(12); {
				case k < 7:
					b := make([]byte, min(n, span-off))
					stamp(b, off)
					_, err = f.WriteAt(ctx, b, uint64(off), now(), k == 0)
				case k < 9:
					err = f.Truncate(ctx, uint64(off), now())
				case k == 9:
					err = f.Fallocate(ctx, lov.PunchHole|lov.KeepSize, uint64(off), uint64(n), now())
				case k == 10:
					_, err = f.ReadAt(ctx, make([]byte, n), uint64(off))
				default:
					err = f.Flush(ctx)
				}
				cancel()
				if k := status.Of(err); err != nil && k != status.TimedOut {
					t.Errorf("%v", err)
				}
			}
		})
	}
	g.Wait()
	if err := f.Flush(bg); err != nil {
		t.Fatal(err)
	}
	// The gate is free only after what was interrupted has ended.
	if _, err := f.Seek(bg, 0, true); err != nil && !errors.Is(err, status.NoDevice) {
		t.Fatal(err)
	}
	cold := w.open(t, 4, layout.MinStripeSize)
	s, err := cold.Glimpse(bg)
	if err != nil || s.Size != f.Size() {
		t.Fatalf("size %d, the OSTs say %d: %v", f.Size(), s.Size, err)
	}
	if err := f.Truncate(bg, 2*span, now()); err != nil {
		t.Fatal(err)
	}
	cold.SetSize(2 * span)
	warm, want := mustRead(t, f, 2*span, 0), make([]byte, 2*span)
	if !bytes.Equal(warm, mustRead(t, cold, 2*span, 0)) {
		t.Fatal("the cache and the OSTs differ")
	}
	stamp(want[:s.Size], 0)
	for i, b := range warm {
		if b != 0 && b != want[i] {
			t.Fatalf("byte %d is %d, want %d or 0; the size was %d", i, b, want[i], s.Size)
		}
	}
}

func TestStatfsLeavesOutWhoIsAway(t *testing.T) {
	w := newWorld(t, worldOptions{osts: 3})
	back := make(chan struct{})
	defer close(back)
	w.osts[1].away.Store(&back)
	ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
	defer cancel()
	s, err := w.set.Statfs(ctx)
	if err != nil || s.Total != 2000 || len(s.OSTs) != 3 || s.OSTs[0].Err != nil || status.Of(s.OSTs[1].Err) != status.TimedOut {
		t.Fatalf("%+v: %v", s, err)
	}
}

func TestBounds(t *testing.T) {
	w := newWorld(t, worldOptions{osts: 1, grant: 1 << 30})
	f := w.open(t, 1, layout.MinStripeSize)
	if _, err := f.WriteAt(bg, []byte("x"), 1<<60, now(), false); !errors.Is(err, status.FileTooBig) {
		t.Error(err)
	}
	if _, err := f.WriteAt(bg, []byte("x"), extent.EOF, now(), true); !errors.Is(err, status.FileTooBig) {
		t.Error(err)
	}
	if err := f.Truncate(bg, 1<<60, now()); !errors.Is(err, status.FileTooBig) {
		t.Error(err)
	}
	if err := f.Fallocate(bg, 8, 0, 1, now()); !errors.Is(err, status.NotSupport) {
		t.Error(err)
	}
	if f.Size() != 0 || len(mustRead(t, f, 10, 0)) != 0 {
		t.Error("refused calls left something")
	}
	empty, err := w.set.Open(fid.FID{Seq: fid.SeqFirst, OID: 9}, &layout.Layout{}, lov.Owner{})
	if err != nil {
		t.Fatal(err)
	}
	empty.SetSize(100)
	if b := mustRead(t, empty, 200, 10); !bytes.Equal(b, make([]byte, 90)) {
		t.Errorf("%d bytes", len(b))
	}
	if _, err := empty.WriteAt(bg, []byte("x"), 0, now(), false); !errors.Is(err, status.Invalid) {
		t.Error(err)
	}
}
