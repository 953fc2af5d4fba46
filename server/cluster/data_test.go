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

// data is a client's data path over real OSTs on real folders.
type data struct {
	set   *lov.Set
	cache *osc.Cache
}

func newData(t testing.TB, tr rpc.Transport, addr string, osts int, opt osc.Options) *data {
	t.Helper()
	targets := map[string]rpc.Target{}
	for i := range osts {
		name := fmt.Sprintf("strake-OST%04x", i)
		dev, err := boltdev.Open(boltdev.Options{
			Dir: t.TempDir(), Specs: ost.Specs(), Label: boltdev.Label{FSName: "strake", Kind: "OST"},
		})
		if err != nil {
			t.Fatal(err)
		}
		o, err := ost.New(bg, ost.Options{Name: name, FSName: "strake", Device: dev})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := o.Close(bg); err != nil {
				t.Error(err)
			}
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
		targets[name] = o
	}
	srv := rpc.NewServer(rpc.ServerOptions{Find: func(n string) (rpc.Target, error) { return targets[n], nil }})
	l, err := tr.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	addr = l.Addr().String()
	var g sync.WaitGroup
	g.Go(func() {
		if err := srv.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { srv.Close(bg); g.Wait() })
	d := &data{set: lov.NewSet(), cache: osc.NewCache(64 << 20)}
	for i := range osts {
		d.connect(t, tr, addr, i, opt)
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
			const max = 2 << 20
			want, size := make([]byte, max), uint64(0)
			for step := range 600 {
				off := rnd.Uint64N(max)
				n := min(1+rnd.Uint64N(200000), max-off)
				var err error
				switch k := rnd.IntN(20); {
				case k < 9:
					b := make([]byte, n)
					for i := range b {
						b[i] = byte(rnd.Uint32())
					}
					write(t, f, b, off, k == 0)
					copy(want[off:], b)
					size = max2(size, off+n)
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
					size = max2(size, off+n)
				case k == 17:
					err = f.Fallocate(bg, 0, off, n, now())
					size = max2(size, off+n)
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
			cold := d.open(t, 1, stripes, layout.MinStripeSize)
			g, err := cold.Glimpse(bg)
			if err != nil || g.Size != size {
				t.Fatalf("a cold glimpse says %d, want %d: %v", g.Size, size, err)
			}
			cold.SetSize(g.Size)
			b := make([]byte, max)
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

func max2(a, b uint64) uint64 { return max(a, b) }

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
