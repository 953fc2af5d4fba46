// Package cluster_test tests the client's data path against real OSTs in one process.
package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/store/boltdev"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

// oss is a server with OSTs in real folders, which can be stopped and started again.
type oss struct {
	t    testing.TB
	tr   rpc.Transport
	addr string
	dirs []string
	stop func()
}

func newOSS(t testing.TB, tr rpc.Transport, addr string, osts int) *oss {
	s := &oss{t: t, tr: tr, addr: addr}
	for range osts {
		s.dirs = append(s.dirs, t.TempDir())
	}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *oss) start() {
	t := s.t
	t.Helper()
	targets := map[string]rpc.Target{}
	var stops []func() error
	for i, dir := range s.dirs {
		name := fmt.Sprintf("strake-OST%04x", i)
		dev, err := boltdev.Open(boltdev.Options{
			Dir: dir, Specs: ost.Specs(), Label: boltdev.Label{FSName: "strake", Kind: "OST"},
		})
		if err != nil {
			t.Fatal(err)
		}
		o, err := ost.New(bg, ost.Options{Name: name, FSName: "strake", Device: dev})
		if err != nil {
			t.Fatal(err)
		}
		stops = append(stops, func() error { return o.Close(bg) }, dev.Close)
		targets[name] = o
	}
	srv := rpc.NewServer(rpc.ServerOptions{Find: func(n string) (rpc.Target, error) { return targets[n], nil }})
	l, err := s.tr.Listen(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	var g sync.WaitGroup
	g.Go(func() {
		if err := srv.Serve(l); err != nil {
			t.Error(err)
		}
	})
	s.stop = func() {
		ctx, cancel := context.WithTimeout(bg, 5*time.Second)
		defer cancel()
		_ = srv.Close(ctx)
		g.Wait()
		for _, stop := range stops {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	}
}

// data is a client's data path.
type data struct {
	set   *lov.Set
	cache *osc.Cache
	oss   *oss
	ends  []func(context.Context) error // of a lockedClient
}

func newData(t testing.TB, tr rpc.Transport, addr string, osts int, opt osc.Options) *data {
	t.Helper()
	d := &data{set: lov.NewSet(), cache: osc.NewCache(64 << 20), oss: newOSS(t, tr, addr, osts)}
	for i := range osts {
		d.connect(t, tr, d.oss.addr, i, opt)
	}
	return d
}

func (d *data) connect(t testing.TB, tr rpc.Transport, addr string, i int, opt osc.Options) {
	t.Helper()
	io := rpc.ImportOptions{
		Transport: tr, Addresses: []string{addr}, FSName: "strake", Target: fmt.Sprintf("strake-OST%04x", i),
		UUID: [16]byte{1, byte(i)}, Peer: "mds", Kind: rpc.KindMDT,
	}
	mds, err := rpc.NewImport(io)
	if err != nil {
		t.Fatal(err)
	}
	defer mds.Close(bg)
	if err := mds.Connect(bg); err != nil {
		t.Fatal(err)
	}
	var r wirepb.PrecreateReply
	err = mds.Do(bg, &rpc.Request{Op: wire.OpPrecreate, Body: &wirepb.PrecreateRequest{Upto: 32}, Reply: &r})
	if err != nil {
		t.Fatal(err)
	}
	io.UUID, io.Peer, io.Kind, io.Bulk = [16]byte{2, byte(i)}, "client", rpc.KindClient, true
	var c *osc.OSC
	io.OnConnect = func(r *wirepb.ConnectReply) { c.Connected(r) }
	io.OnCommitted = func(n wire.Transno) { c.Committed(n) }
	io.ReplayMore = func(ctx context.Context, r *rpc.Recovery, after wire.Transno) error { return c.Replay(ctx, r, after) }
	io.Restore = func(ctx context.Context, r *rpc.Recovery) error { return c.Restore(ctx, r) }
	imp, err := rpc.NewImport(io)
	if err != nil {
		t.Fatal(err)
	}
	opt.Import, opt.Index, opt.Cache = imp, layout.OSTIndex(i), d.cache
	c = osc.New(opt)
	if err := imp.Connect(bg); err != nil {
		t.Fatal(err)
	}
	d.set.Add(c)
	t.Cleanup(func() {
		if err := c.Close(bg); err != nil {
			t.Error(err)
		}
		if err := imp.Close(bg); err != nil {
			t.Error(err)
		}
	})
}

func (d *data) open(t testing.TB, id, stripes int, size uint64) *lov.File {
	t.Helper()
	l := layout.Plain(uint32(stripes), size)
	c := &l.Components[0]
	c.Flags |= layout.FlagInit
	for i := range stripes {
		c.Stripes = append(c.Stripes, layout.Stripe{OST: layout.OSTIndex(i), Object: fid.ObjectID{ID: uint64(id)}})
	}
	f, err := d.set.Open(fid.FID{Seq: fid.SeqFirst, OID: uint32(id)}, &l, lov.Owner{UID: 1, GID: 2})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func now() attr.Time { return attr.TimeOf(time.Now()) }

func write(t testing.TB, f *lov.File, b []byte, off uint64, direct bool) {
	t.Helper()
	for len(b) > 0 {
		n, err := f.WriteAt(bg, b, off, now(), direct)
		if err != nil {
			t.Fatal(err)
		}
		b, off = b[n:], off+uint64(n)
	}
}

// TestDataOverRealOSTs runs random calls against a shadow copy and reads all back through a second, cold client view.
func TestDataOverRealOSTs(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("STRAKE_SEED"); v != "" {
		seed, _ = strconv.ParseUint(v, 10, 64)
	}
	t.Logf("STRAKE_SEED=%d", seed)
	for _, stripes := range []int{1, 4} {
		t.Run(fmt.Sprint(stripes), func(t *testing.T) {
			d := newData(t, rpc.NewPipe(), "oss", 4, osc.Options{RPCBytes: 256 << 10, MaxAge: 2 * time.Millisecond})
			f := d.open(t, 1, stripes, layout.MinStripeSize)
			rnd := rand.New(rand.NewPCG(seed, uint64(stripes)))
			const span = 2 << 20
			want, size := make([]byte, span), uint64(0)
			for step := range 600 {
				off := rnd.Uint64N(span)
				n := min(1+rnd.Uint64N(200000), span-off)
				var err error
				switch k := rnd.IntN(20); {
				case k < 9:
					b := make([]byte, n)
					for i := range b {
						b[i] = byte(rnd.Uint32())
					}
					write(t, f, b, off, k == 0)
					copy(want[off:], b)
					size = max(size, off+n)
				case k < 14:
					b := make([]byte, n)
					var got int
					got, err = f.ReadAt(bg, b, off)
					if !bytes.Equal(b[:got], want[min(off, size):min(off+n, size)]) {
						t.Fatalf("step %d: read of %d at %d is wrong", step, n, off)
					}
				case k == 14:
					err = f.Truncate(bg, off, now())
					clear(want[min(off, size):size])
					size = off
				case k == 15:
					err = f.Fallocate(bg, lov.PunchHole|lov.KeepSize, off, n, now())
					clear(want[min(off, size):min(off+n, size)])
				case k == 16:
					err = f.Fallocate(bg, lov.ZeroRange, off, n, now())
					clear(want[off : off+n])
					size = max(size, off+n)
				case k == 17:
					err = f.Fallocate(bg, 0, off, n, now())
					size = max(size, off+n)
				case k == 18:
					var g lov.Sizes
					if g, err = f.Glimpse(bg); err == nil && g.Size != size {
						t.Fatalf("step %d: glimpse says %d, want %d", step, g.Size, size)
					}
				default:
					err = f.Sync(bg)
				}
				if err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
			}
			if err := f.Sync(bg); err != nil {
				t.Fatal(err)
			}
			if g, err := f.Glimpse(bg); err != nil || f.Blocks() != g.Blocks {
				t.Fatalf("%d blocks, the OSTs say %d: %v", f.Blocks(), g.Blocks, err)
			}
			cold := d.open(t, 1, stripes, layout.MinStripeSize)
			g, err := cold.Glimpse(bg)
			if err != nil || g.Size != size {
				t.Fatalf("a cold glimpse says %d, want %d: %v", g.Size, size, err)
			}
			cold.SetSize(g.Size)
			b := make([]byte, span)
			n, err := cold.ReadAt(bg, b, 0)
			if err != nil || !bytes.Equal(b[:n], want[:size]) {
				t.Fatalf("what lies on the OSTs is wrong: %v", err)
			}
			if _, err := d.set.Statfs(bg); err != nil {
				t.Fatal(err)
			}
			if err := d.set.SyncAll(bg); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestBlocksAreKnownWithoutAsking: a plain small file's blocks are right as soon as it is flushed.
func TestBlocksAreKnownWithoutAsking(t *testing.T) {
	d := newData(t, rpc.NewPipe(), "oss", 2, osc.Options{})
	for id, size := range []int{1, 100, 4096, 5000, 300000, 3 << 20} {
		f := d.open(t, 1+id, 2, layout.MinStripeSize)
		write(t, f, make([]byte, size), 0, false)
		dirty := f.Blocks()
		if err := f.Flush(bg); err != nil {
			t.Fatal(err)
		}
		flushed := f.Blocks()
		if err := f.Sync(bg); err != nil {
			t.Fatal(err)
		}
		g, err := f.Glimpse(bg)
		if err != nil || dirty != g.Blocks || flushed != g.Blocks {
			t.Errorf("%d bytes: %d blocks dirty, %d flushed, %d on disk: %v", size, dirty, flushed, g.Blocks, err)
		}
		again := d.open(t, 1+id, 2, layout.MinStripeSize)
		again.SetKnown(g.Size, g.Blocks)
		write(t, again, make([]byte, size), 0, false)
		if n := again.Blocks(); n != g.Blocks {
			t.Errorf("%d bytes overwritten: %d blocks, want %d", size, n, g.Blocks)
		}
		if err := again.Flush(bg); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRestartedServerLosesNothing stops and starts the server while two files are written and read.
func TestRestartedServerLosesNothing(t *testing.T) {
	d := newData(t, rpc.NewTCP(), "127.0.0.1:0", 2, osc.Options{RPCBytes: 128 << 10, MaxAge: 5 * time.Millisecond})
	stop := make(chan struct{})
	var g sync.WaitGroup
	for id := range 2 {
		f := d.open(t, 1+id, 2, layout.MinStripeSize)
		g.Go(func() {
			rnd := rand.New(rand.NewPCG(7, uint64(id)))
			want := make([]byte, 1<<20)
			write(t, f, want, 0, false)
			for running := true; running; {
				select {
				case <-stop:
					running = false
				default:
				}
				off := rnd.IntN(len(want) - 70000)
				b := bytes.Repeat([]byte{byte(rnd.Uint32())}, 1+rnd.IntN(70000))
				write(t, f, b, uint64(off), rnd.IntN(5) == 0)
				copy(want[off:], b)
				got := make([]byte, 70000)
				off = rnd.IntN(len(want) - len(got))
				if _, err := f.ReadAt(bg, got, uint64(off)); err != nil || !bytes.Equal(got, want[off:off+len(got)]) {
					t.Errorf("file %d: read at %d is wrong: %v", id, off, err)
					return
				}
			}
			if err := f.Sync(bg); err != nil {
				t.Error(err)
			}
			f.Discard()
			got := make([]byte, len(want))
			if _, err := f.ReadAt(bg, got, 0); err != nil || !bytes.Equal(got, want) {
				t.Errorf("file %d differs: %v", id, err)
			}
		})
	}
	for range 2 {
		time.Sleep(150 * time.Millisecond) // some work under way
		d.oss.stop()
		d.oss.start()
	}
	time.Sleep(150 * time.Millisecond)
	close(stop)
	g.Wait()
}

func TestSteadyReadsAllocateNothing(t *testing.T) {
	d := newData(t, rpc.NewPipe(), "oss", 1, osc.Options{})
	f := d.open(t, 1, 1, layout.StripeSizeDefault)
	write(t, f, make([]byte, 1<<20), 0, true)
	b := make([]byte, 4<<10)
	read := func() {
		if _, err := f.ReadAt(bg, b, 64<<10); err != nil {
			t.Error(err)
		}
	}
	read()
	if n := testing.AllocsPerRun(500, read); n >= 1 {
		t.Errorf("%v allocations in a 4 KiB read, client and server together", n)
	}
}

func BenchmarkRead4K(b *testing.B) {
	for name, tr := range map[string]rpc.Transport{"tcp": rpc.NewTCP(), "pipe": rpc.NewPipe()} {
		b.Run(name, func(b *testing.B) {
			d := newData(b, tr, "127.0.0.1:0", 1, osc.Options{})
			f := d.open(b, 1, 1, layout.StripeSizeDefault)
			const size = 64 << 20
			write(b, f, make([]byte, size), 0, false)
			if err := f.Sync(bg); err != nil {
				b.Fatal(err)
			}
			buf := make([]byte, 4<<10)
			b.SetBytes(int64(len(buf)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f.ReadAt(bg, buf, rand.Uint64N(size/4096)*4096); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20} {
		for _, rpcBytes := range []int{1 << 20, 2 << 20, 4 << 20} {
			for _, direct := range []bool{false, true} {
				b.Run(fmt.Sprintf("tcp/write=%dK/rpc=%dM/direct=%v", size>>10, rpcBytes>>20, direct), func(b *testing.B) {
					d := newData(b, rpc.NewTCP(), "127.0.0.1:0", 1, osc.Options{RPCBytes: rpcBytes})
					f := d.open(b, 1, 1, layout.StripeSizeDefault)
					buf := make([]byte, size)
					b.SetBytes(int64(size))
					b.ReportAllocs()
					off := uint64(0)
					for b.Loop() {
						write(b, f, buf, off%(256<<20), direct)
						off += uint64(size)
					}
					if err := f.Flush(bg); err != nil {
						b.Fatal(err)
					}
				})
			}
		}
	}
}

func BenchmarkRead1M(b *testing.B) {
	d := newData(b, rpc.NewTCP(), "127.0.0.1:0", 1, osc.Options{})
	f := d.open(b, 1, 1, layout.StripeSizeDefault)
	const size = 128 << 20
	write(b, f, make([]byte, size), 0, false)
	if err := f.Sync(bg); err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	b.SetBytes(1 << 20)
	b.ReportAllocs()
	off := uint64(0)
	for b.Loop() {
		if _, err := f.ReadAt(bg, buf, off%size); err != nil {
			b.Fatal(err)
		}
		off += 1 << 20
	}
}
