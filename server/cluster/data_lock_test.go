package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// newClient is another client of d's OSTs, which uses their objects under locks.
func (d *data) newClient(t testing.TB, tr rpc.Transport, id byte, opt osc.Options) *data {
	t.Helper()
	c := lockedClient(t, tr, d.oss.addr, len(d.oss.dirs), id, opt)
	c.oss = d.oss
	return c
}

// lockedClient is a client of so many OSTs at addr, which keeps what they have answered and takes part in their recovery. Its
// end is the test's, or close's.
func lockedClient(t testing.TB, tr rpc.Transport, addr string, osts int, id byte, opt osc.Options) *data {
	t.Helper()
	c := &data{set: lov.NewSet(), cache: osc.NewCache(64 << 20)}
	for i := range osts {
		var o atomic.Pointer[osc.OSC]
		imp, err := rpc.NewImport(rpc.ImportOptions{
			Transport: tr, Addresses: []string{addr}, FSName: "strake", Target: fmt.Sprintf("strake-OST%04x", i),
			UUID: [16]byte{3, id, byte(i)}, Peer: fmt.Sprintf("client %d", id), Kind: rpc.KindClient, Bulk: true,
			OnConnect:   func(r *wirepb.ConnectReply) { o.Load().Connected(r) },
			OnCommitted: func(n wire.Transno) { o.Load().Committed(n) },
			ReplayMore: func(ctx context.Context, r *rpc.Recovery, after wire.Transno) error {
				return o.Load().Replay(ctx, r, after)
			},
			Restore:  func(ctx context.Context, r *rpc.Recovery) error { return o.Load().Restore(ctx, r) },
			Callback: func(e *env.Env, call *rpc.Call) error { return o.Load().Callback(e, call) },
		})
		if err != nil {
			t.Fatal(err)
		}
		opt.Import, opt.Index, opt.Cache, opt.Name = imp, layout.OSTIndex(i), c.cache, fmt.Sprintf("strake-OST%04x", i)
		opt.Locks = &osc.LockOptions{Seed: uint64(id), Heard: imp.LastHeard}
		o.Store(osc.New(opt))
		if err := imp.Connect(bg); err != nil {
			t.Fatal(err)
		}
		c.set.Add(o.Load())
		c.ends = append(c.ends, func(ctx context.Context) error {
			err := o.Load().Close(ctx)
			return errors.Join(err, imp.Close(ctx))
		})
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		if err := c.close(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}

// close ends the client, once.
func (d *data) close(ctx context.Context) (err error) {
	for _, end := range d.ends {
		err = errors.Join(err, end(ctx))
	}
	d.ends = nil
	return err
}

// lockedSite is four real OSTs and some clients that use them under locks.
func lockedSite(t testing.TB, clients int, opt osc.Options) (*data, []*data) {
	return lockedSiteOver(t, rpc.NewPipe(), "oss", clients, opt)
}

func lockedSiteOver(t testing.TB, tr rpc.Transport, addr string, clients int, opt osc.Options) (*data, []*data) {
	d := newData(t, tr, addr, 4, osc.Options{})
	var list []*data
	for i := range clients {
		list = append(list, d.newClient(t, tr, byte(i+1), opt))
	}
	return d, list
}

// TestClientsOfRealOSTsSeeOneFile: overlapping writes over four stripes by three clients are seen whole, by all.
func TestClientsOfRealOSTsSeeOneFile(t *testing.T) {
	_, clients := lockedSite(t, 3, osc.Options{MaxAge: 3 * time.Millisecond})
	const span = 5*layout.MinStripeSize + 777
	var g sync.WaitGroup
	for i, c := range clients {
		f := c.open(t, 1, 4, layout.MinStripeSize)
		g.Go(func() {
			for k := range 20 {
				b := bytes.Repeat([]byte{byte(1 + i + 3*k)}, span)
				var h lov.How
				if _, err := f.Write(bg, [][]byte{b}, 99, now(), &h); err != nil {
					t.Error(err)
					return
				}
				if n, err := f.ReadAt(bg, b, 99); n != span || err != nil || !bytes.Equal(b, bytes.Repeat(b[:1], span)) {
					t.Errorf("client %d, step %d: a torn read of %d bytes: %v", i, k, n, err)
				}
			}
		})
	}
	g.Wait()
}

// TestRandomCallsOfTwoClientsMatchAShadow: calls of two clients in turn on one file.
func TestRandomCallsOfTwoClientsMatchAShadow(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, stripes := range []int{1, 4} {
		_, clients := lockedSite(t, 2, osc.Options{RPCBytes: 256 << 10, MaxAge: 2 * time.Millisecond})
		files := []*lov.File{clients[0].open(t, 1, stripes, layout.MinStripeSize), clients[1].open(t, 1, stripes, layout.MinStripeSize)}
		rnd := rand.New(rand.NewPCG(seed, uint64(stripes)))
		const span = 1 << 20
		want, size := make([]byte, span), uint64(0)
		for step := range 400 {
			f := files[rnd.IntN(2)]
			off := rnd.Uint64N(span)
			n := min(1+rnd.Uint64N(150000), span-off)
			var err error
			switch k := rnd.IntN(10); {
			case k < 4:
				b := bytes.Repeat([]byte{byte(step + 1)}, int(n))
				h := lov.How{Direct: k == 0}
				if k == 1 {
					if off, _, err = f.Append(bg, [][]byte{b[:min(n, span-size)]}, now(), false); off != size {
						t.Fatalf("step %d: append at %d of %d", step, off, size)
					}
					n = min(n, span-size)
				} else {
					_, err = f.Write(bg, [][]byte{b}, off, now(), &h)
				}
				copy(want[off:], b[:n])
				if n > 0 {
					size = max(size, off+n)
				}
			case k < 5:
				err = f.Truncate(bg, off, now())
				if off < size {
					clear(want[off:size])
				}
				size = off
			case k < 6:
				err = f.Fallocate(bg, lov.PunchHole|lov.KeepSize, off, n, now())
				clear(want[off:min(off+n, span)])
			case k < 7:
				g, gerr := f.Glimpse(bg)
				if err = gerr; err == nil && g.Size != size {
					t.Fatalf("step %d: size %d, want %d", step, g.Size, size)
				}
			default:
				b := make([]byte, n)
				h := lov.How{Direct: k == 9}
				got, rerr := f.Read(bg, b, off, &h)
				err = rerr
				if w := want[min(off, size):min(off+n, size)]; err == nil && !bytes.Equal(b[:got], w) {
					t.Fatalf("step %d: read of %d at %d: %d bytes, want %d", step, n, off, got, len(w))
				}
			}
			if err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
		}
	}
}

// TestDirtyDataOutlivesTheRestartOfARealOST: under its lock, which is handed back before anybody else may write.
func TestDirtyDataOutlivesTheRestartOfARealOST(t *testing.T) {
	d, clients := lockedSite(t, 2, osc.Options{MaxAge: time.Hour})
	fa, fb := clients[0].open(t, 1, 4, layout.MinStripeSize), clients[1].open(t, 1, 4, layout.MinStripeSize)
	want := bytes.Repeat([]byte("dirty over a restart "), 20000)
	write(t, fa, want, 0, false)
	if fa.Dirty() == 0 {
		t.Fatal("nothing is dirty")
	}
	begin := time.Now()
	d.oss.stop()
	d.oss.start()
	got := make([]byte, len(want)+1)
	if n, err := fb.ReadAt(bg, got, 0); err != nil || !bytes.Equal(got[:n], want) {
		t.Fatalf("%d bytes, want %d: %v", n, len(want), err)
	}
	if err := fa.TakeError(); err != nil {
		t.Fatal(err)
	}
	if passed := time.Since(begin); passed > 15*time.Second {
		t.Fatalf("it took %v: the window did not end early", passed)
	}
}

// BenchmarkLocked writes and reads 4 KiB under a cached lock, and reads 4 KiB directly without one.
func BenchmarkLocked(b *testing.B) {
	_, clients := lockedSite(b, 1, osc.Options{})
	f := clients[0].open(b, 1, 1, layout.StripeSizeDefault)
	write(b, f, make([]byte, 1<<20), 0, false)
	buf := make([]byte, 4096)
	data := [][]byte{buf}
	for name, fn := range map[string]func(i uint64){
		"Write4K": func(i uint64) {
			var h lov.How
			if _, err := f.Write(bg, data, i%256*4096, now(), &h); err != nil {
				b.Fatal(err)
			}
		},
		"DirectRead4K": func(i uint64) {
			h := lov.How{Direct: true}
			if _, err := f.Read(bg, buf, i*7%256*4096, &h); err != nil {
				b.Fatal(err)
			}
		},
		"Glimpse": func(uint64) {
			if _, err := f.Glimpse(bg); err != nil {
				b.Fatal(err)
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				fn(i)
			}
		})
	}
}

// far is a network on which what the server says arrives a while later.
type far struct {
	rpc.Transport
	delay time.Duration
}

func (n far) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := n.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	f := &farConn{Conn: c, in: make(chan piece, 1024)}
	go func() {
		defer close(f.in)
		for {
			b := make([]byte, 64<<10)
			k, err := c.Read(b)
			f.in <- piece{b[:k], err, time.Now().Add(n.delay)}
			if err != nil {
				return
			}
		}
	}()
	return f, nil
}

type piece struct {
	b   []byte
	err error
	at  time.Time
}

type farConn struct {
	net.Conn
	in   chan piece
	left piece
}

func (f *farConn) Read(b []byte) (int, error) {
	if len(f.left.b) == 0 && f.left.err == nil {
		p, ok := <-f.in
		if !ok {
			return 0, net.ErrClosed
		}
		if d := time.Until(p.at); d > 0 {
			<-time.After(d)
		}
		f.left = p
	}
	n := copy(b, f.left.b)
	f.left.b = f.left.b[n:]
	if n == 0 {
		return 0, f.left.err
	}
	return n, nil
}

// BenchmarkReadAhead reads 64 MiB in one thread, without and with read-ahead of the client: records in strides of four, as IO500's
// hard read has them for one of four processes, small reads in order, and reads as large as the kernel's; over loopback, and on a
// network of half a millisecond.
func BenchmarkReadAhead(b *testing.B) {
	for where, tr := range map[string]rpc.Transport{"loopback": rpc.NewTCP(), "far": far{rpc.NewTCP(), 500 * time.Microsecond}} {
		b.Run(where, func(b *testing.B) { benchReadAhead(b, tr) })
	}
}

func benchReadAhead(b *testing.B, tr rpc.Transport) {
	_, clients := lockedSiteOver(b, tr, "127.0.0.1:0", 1, osc.Options{})
	f := clients[0].open(b, 1, 4, layout.StripeSizeDefault)
	const size = 64 << 20
	write(b, f, make([]byte, size), 0, false)
	if err := f.Sync(bg); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		n, step uint64
	}{{"strided47008", 47008, 4 * 47008}, {"inorder128K", 128 << 10, 128 << 10}, {"inorder1M", 1 << 20, 1 << 20}} {
		for _, l := range []lov.ReadAhead{{}, {Max: 32 << 20, PerFile: 8 << 20}} {
			b.Run(fmt.Sprintf("%s/ahead=%d", c.name, l.PerFile), func(b *testing.B) {
				clients[0].set.SetReadAhead(l)
				buf := make([]byte, c.n)
				b.SetBytes(int64(c.n))
				h := lov.How{Paged: true, Reader: new(lov.Reader)}
				off := uint64(0)
				for b.Loop() {
					if _, err := f.Read(bg, buf, off, &h); err != nil {
						b.Fatal(err)
					}
					if off += c.step; off+c.n > size {
						off = 0
					}
				}
			})
		}
	}
}
