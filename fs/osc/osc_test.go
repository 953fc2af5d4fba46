package osc

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

// fakeImport keeps what is written and lets a test hold requests up.
type fakeImport struct {
	hold chan struct{} // if not nil, writes wait for a token or for its close

	mu     sync.Mutex
	data   []byte              // guarded by mu
	writes []extent.Extent     // guarded by mu: as they began
	last   wirepb.WriteRequest // guarded by mu
	err    error               // guarded by mu: of writes
}

func (f *fakeImport) Do(ctx context.Context, r *rpc.Request) error {
	r.N = 0
	switch m := r.Body.(type) {
	case *wirepb.WriteRequest:
		n := 0
		for _, b := range r.Bulk {
			n += len(b)
		}
		f.mu.Lock()
		f.writes = append(f.writes, extent.Extent{Start: m.Offset, End: m.Offset + uint64(n)})
		f.last.Dirty, f.last.GrantUsed, f.last.GrantWant = m.Dirty, m.GrantUsed, m.GrantWant
		f.mu.Unlock()
		if f.hold != nil {
			select {
			case <-f.hold:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.err != nil {
			return f.err
		}
		if grow := int(m.Offset) + n - len(f.data); grow > 0 {
			f.data = append(f.data, make([]byte, grow)...)
		}
		at := m.Offset
		for _, b := range r.Bulk {
			at += uint64(copy(f.data[at:], b))
		}
	case *wirepb.ReadRequest:
		f.mu.Lock()
		defer f.mu.Unlock()
		if m.Offset < uint64(len(f.data)) {
			r.N = copy(r.Into, f.data[m.Offset:])
		}
	}
	return nil
}

func (f *fakeImport) sent() []extent.Extent {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]extent.Extent(nil), f.writes...)
}

type holder struct {
	mu   sync.Mutex
	errs []error  // guarded by mu
	ends []uint64 // guarded by mu
}

func (h *holder) WriteFailed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, err)
}

func (h *holder) Written(_ int, end uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends = append(h.ends, end)
}

func newObject(t testing.TB, o Options) (*fakeImport, *Object, *holder) {
	f, _ := o.Import.(*fakeImport)
	if f == nil {
		f = &fakeImport{}
		o.Import = f
	}
	c := New(o)
	c.Connected(&wirepb.ConnectReply{Grant: 1 << 30})
	h, ob := new(holder), new(Object)
	ob.Init(c, ObjectConfig{ID: fid.ObjectID{ID: 1}, File: fid.FID{Seq: fid.SeqFirst, OID: 1}, Holder: h})
	t.Cleanup(func() { c.Close(bg) })
	return f, ob, h
}

func put(t testing.TB, o *Object, off uint64, b []byte) {
	t.Helper()
	if n, err := o.Write(bg, b, off, attr.Time{}, 0); n != len(b) || err != nil {
		t.Fatalf("wrote %d of %d at %d: %v", n, len(b), off, err)
	}
}

var all = extent.Extent{End: extent.EOF}

// TestCachedBytesAgainstACopy writes, freezes, ends and cuts at random and compares what is cached with a copy of each layer.
func TestCachedBytesAgainstACopy(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const size = 256 << 10
		f := &fakeImport{hold: make(chan struct{})}
		_, o, _ := newObject(t, Options{Import: f, RPCBytes: 64 << 10})
		defer func() { o.osc.Close(bg) }()
		defer close(f.hold)
		want, n := make([]byte, size), byte(0)
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				off := rapid.IntRange(0, size-1).Draw(rt, "off")
				end := min(size, off+rapid.SampledFrom([]int{1, 100, 4096, 20000, 100000}).Draw(rt, "n"))
				n++
				put(t, o, uint64(off), bytes.Repeat([]byte{n}, end-off))
				copy(want[off:end], bytes.Repeat([]byte{n}, end-off))
			},
			"freeze": func(rt *rapid.T) { o.freeze(rapid.Uint64Range(0, 3).Draw(rt, "block")) },
			"answer": func(*rapid.T) {
				select {
				case f.hold <- struct{}{}:
				default:
				}
			},
			"": func(rt *rapid.T) {
				got := make([]byte, size)
				if err := o.Read(bg, got, 0, 0); err != nil {
					rt.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					rt.Fatal("differs")
				}
			},
		})
	})
}

func TestRandomSmallWritesTakeSmallMemory(t *testing.T) {
	_, o, _ := newObject(t, Options{})
	for i := range uint64(64) {
		put(t, o, i*(1<<20)+12288, make([]byte, 4096))
	}
	if n := o.osc.cache.Used(); n != 64*4096 {
		t.Fatalf("%d bytes of memory for 64 writes of 4 KiB", n)
	}
}

func TestStreamIsSentWhileItIsWritten(t *testing.T) {
	f := &fakeImport{hold: make(chan struct{})}
	_, o, _ := newObject(t, Options{Import: f, RPCBytes: 64 << 10})
	for off := uint64(100); off < 200<<10; off += 4096 {
		put(t, o, off, make([]byte, 4096))
	}
	close(f.hold)
	if err := o.Settle(bg, all); err != nil {
		t.Fatal(err)
	}
	got := f.sent()
	if len(got) != 3 || o.Dirty() == 0 {
		t.Fatalf("sent %v, %d left", got, o.Dirty())
	}
}

// TestOverlappingWritesStayInOrder: data that overlaps an unanswered write is sent after its answer.
func TestOverlappingWritesStayInOrder(t *testing.T) {
	f := &fakeImport{hold: make(chan struct{})}
	_, o, _ := newObject(t, Options{Import: f})
	put(t, o, 0, []byte("aaaa"))
	o.freeze(0)
	put(t, o, 2, []byte("bbbb"))
	o.freeze(0)
	put(t, o, 100, []byte("c")) // overlaps nothing
	o.freeze(0)
	f.hold <- struct{}{}
	f.hold <- struct{}{}
	f.hold <- struct{}{}
	if err := o.Flush(bg, all); err != nil {
		t.Fatal(err)
	}
	got := f.sent()
	first, second := -1, -1
	for i, e := range got {
		switch e.Start {
		case 0:
			first = i
		case 2:
			second = i
		}
	}
	if len(got) != 3 || first > second || string(f.data[:6]) != "aabbbb" {
		t.Fatalf("sent %v, data %q", got, f.data[:6])
	}
}

func TestOldDataIsWrittenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, o, _ := newObject(t, Options{MaxAge: 3 * time.Second})
		defer o.osc.Close(bg)
		put(t, o, 0, []byte("x"))
		time.Sleep(2900 * time.Millisecond)
		synctest.Wait()
		put(t, o, 5<<20, []byte("y"))
		if n := len(f.sent()); n != 0 {
			t.Fatalf("%d writes before their time", n)
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if n := len(f.sent()); n != 1 {
			t.Fatalf("%d writes, want the old one", n)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := len(f.sent()); n != 2 || o.Dirty() != 0 {
			t.Fatalf("%d writes, %d dirty", n, o.Dirty())
		}
	})
}

func TestInterruptedWriteThroughIsHeardOf(t *testing.T) {
	for _, fail := range []error{nil, status.NoSpace} {
		f := &fakeImport{hold: make(chan struct{}), err: fail}
		_, o, h := newObject(t, Options{Import: f})
		ctx, cancel := context.WithCancel(bg)
		cancel()
		if n, err := o.WriteThrough(ctx, []byte("late"), 10, attr.Time{}, 0); n != 0 || status.Of(err) != status.Interrupted {
			t.Fatalf("%d %v", n, err)
		}
		close(f.hold)
		if err := o.Settle(bg, all); err != nil {
			t.Fatal(err)
		}
		if fail == nil && (len(h.ends) != 1 || h.ends[0] != 14 || len(h.errs) != 0) ||
			fail != nil && (len(h.errs) != 1 || !errors.Is(h.errs[0], fail)) {
			t.Fatalf("ends %v, errors %v", h.ends, h.errs)
		}
	}
}

func TestCloseTellsWhatIsLost(t *testing.T) {
	f := &fakeImport{hold: make(chan struct{})}
	_, o, h := newObject(t, Options{Import: f})
	put(t, o, 0, []byte("abc"))
	ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
	defer cancel()
	if err := o.osc.Close(ctx); err == nil {
		t.Fatal("nothing said")
	}
	if len(h.errs) != 1 || o.Dirty() != 0 || o.osc.cache.Used() != 0 {
		t.Fatalf("%v, %d dirty, %d bytes of memory", h.errs, o.Dirty(), o.osc.cache.Used())
	}
	if _, err := o.Write(bg, []byte("x"), 0, attr.Time{}, 0); !errors.Is(err, status.IO) {
		t.Fatalf("wrote to a closed one: %v", err)
	}
}

func (o *Object) grant() grant {
	o.osc.mu.Lock()
	defer o.osc.mu.Unlock()
	return o.osc.grant
}

func TestGrantGoesWithTheWrites(t *testing.T) {
	f, o, _ := newObject(t, Options{})
	put(t, o, 0, make([]byte, 10000))
	put(t, o, 5000, make([]byte, 1000)) // dirty already
	o.Cut(8000)
	if g := o.grant(); g.charged != 8000 || g.avail != 1<<30-8000 {
		t.Fatalf("%+v", g)
	}
	if err := o.Flush(bg, all); err != nil {
		t.Fatal(err)
	}
	if f.last.GrantUsed != 8000 || f.last.Dirty != 8000 {
		t.Fatalf("used %d of %d", f.last.GrantUsed, f.last.Dirty)
	}
	if g := o.grant(); g.charged != 0 || g.avail != 1<<30-8000 {
		t.Fatalf("%+v", g)
	}
}

func TestFigures(t *testing.T) {
	r := stats.NewRegistry()
	_, o, _ := newObject(t, Options{Name: "strake-OST0000", Stats: r})
	put(t, o, 0, make([]byte, 4096))
	got := map[string]string{}
	if err := r.Walk("osc.strake-OST0000-osc.*", func(e stats.Entry) error { got[e.Path] = e.Text(); return nil }); err != nil {
		t.Fatal(err)
	}
	if got["osc.strake-OST0000-osc.cur_dirty_bytes"] != "4096" || got["osc.strake-OST0000-osc.max_dirty_mb"] != "512" {
		t.Fatalf("%v", got)
	}
	if err := o.Flush(bg, all); err != nil {
		t.Fatal(err)
	}
	set := func(name, value string) (err error) {
		werr := r.Walk("osc.strake-OST0000-osc."+name, func(e stats.Entry) error { err = e.Set(value); return nil })
		if werr != nil {
			t.Fatal(werr)
		}
		return err
	}
	if err := set("max_dirty_mb", "3"); err != nil || o.osc.maxDirty.Load() != 3<<20 {
		t.Fatalf("%v, %d", err, o.osc.maxDirty.Load())
	}
	for _, bad := range [][2]string{{"max_dirty_mb", "0"}, {"max_rpcs_in_flight", "9"}, {"max_pages_per_rpc", "257"}, {"max_pages_per_rpc", "x"}} {
		if set(bad[0], bad[1]) == nil {
			t.Errorf("%s may be %s", bad[0], bad[1])
		}
	}
	if err := set("max_pages_per_rpc", "16"); err != nil {
		t.Fatal(err)
	}
	put(t, o, 0, make([]byte, 128<<10))
	if err := o.Flush(bg, all); err != nil {
		t.Fatal(err)
	}
	if text := o.osc.rpcStats(); !strings.Contains(text, "1:\t\t         0   0   0   |          1  33  33\n") ||
		!strings.Contains(text, "16:\t\t         0   0   0   |          2  66 100\n") {
		t.Fatal(text)
	}
}

func TestSteadyCallsDoNotAllocate(t *testing.T) {
	_, o, _ := newObject(t, Options{MaxAge: time.Hour})
	b := make([]byte, 4096)
	put(t, o, 0, b)
	for name, fn := range map[string]func() error{
		"overwrite":   func() error { _, err := o.Write(bg, b, 0, attr.Time{}, 0); return err },
		"cached read": func() error { return o.Read(bg, b, 0, 0) },
		"read":        func() error { return o.Read(bg, b, 8<<20, 0) },
	} {
		if err := fn(); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(200, func() { _ = fn() }); n >= 1 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkWriteCached4K(b *testing.B) {
	_, o, _ := newObject(b, Options{})
	buf := make([]byte, 4096)
	b.SetBytes(4096)
	b.ReportAllocs()
	off := uint64(0)
	for b.Loop() {
		put(b, o, off%(64<<20), buf)
		off += 4096
	}
}
