package lov_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

const stripe = layout.MinStripeSize

func TestReaderSeesWhatAnotherClientWrote(t *testing.T) {
	s := newSite(t, siteOptions{osts: 4})
	a, b := s.join(osc.Options{MaxAge: time.Hour}), s.join(osc.Options{MaxAge: time.Hour})
	fa, fb := a.open(7, 4), b.open(7, 4)
	want := bytes.Repeat([]byte("strake! "), 40000)
	mustWrite(t, fa, want, 100, false)
	if fa.Dirty() == 0 {
		t.Fatal("nothing was gathered")
	}
	// Glimpse while it is dirty, without a call-back.
	g, err := fb.Glimpse(bg)
	if err != nil || g.Size != 100+uint64(len(want)) || fa.Dirty() == 0 || g.Mtime.Sec == 0 || g.Ctime.Sec == 0 {
		t.Fatalf("%+v, %d dirty: %v", g, fa.Dirty(), err)
	}
	if got := mustRead(t, fb, len(want)+1000, 100); !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, want %d", len(got), len(want))
	}
	if fa.Dirty() != 0 {
		t.Fatal("read over dirty data")
	}
	mustWrite(t, fb, []byte("B"), 100, false)
	if got := mustRead(t, fa, 1, 100); got[0] != 'B' {
		t.Fatalf("%q", got)
	}
	if err := fb.Truncate(bg, 5, now()); err != nil {
		t.Fatal(err)
	}
	if err := fb.Truncate(bg, 200000, now()); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*lov.File{fa, fb} {
		if got := mustRead(t, f, 300000, 0); !bytes.Equal(got, make([]byte, 200000)) {
			t.Fatalf("%d bytes after shrinking and growing", len(got))
		}
	}
}

// TestFileClosedWithDirtyDataIsOpenedAgain: the new File sees what the old one has not written back.
func TestFileClosedWithDirtyDataIsOpenedAgain(t *testing.T) {
	s := newSite(t, siteOptions{osts: 1})
	a := s.join(osc.Options{MaxAge: time.Hour})
	old := a.open(7, 1)
	mustWrite(t, old, []byte("first"), 0, false)
	f := a.open(7, 1)
	if g, err := f.Glimpse(bg); err != nil || g.Size != 5 {
		t.Fatalf("%+v: %v", g, err)
	}
	if got := mustRead(t, f, 10, 0); string(got) != "first" {
		t.Fatalf("%q", got)
	}
	mustWrite(t, old, []byte("XXXXX"), 0, false)
	mustWrite(t, f, []byte("y"), 2, false)
	if err := f.Flush(bg); err != nil {
		t.Fatal(err)
	}
	if got := mustRead(t, s.join(osc.Options{}).open(7, 1), 10, 0); string(got) != "XXyXX" {
		t.Fatalf("%q", got)
	}
}

// TestOverlappingWritesAreAtomic: two clients write the same bytes over several stripes; who reads sees one of them whole.
func TestOverlappingWritesAreAtomic(t *testing.T) {
	s := newSite(t, siteOptions{osts: 4})
	const span = 5 * stripe
	var g sync.WaitGroup
	for i := range 3 {
		n := s.join(osc.Options{MaxAge: 5 * time.Millisecond})
		f := n.open(7, 4)
		g.Go(func() {
			h := lov.How{}
			for k := range 25 {
				b := bytes.Repeat([]byte{byte(1 + i + 3*k)}, span)
				if _, err := f.Write(bg, [][]byte{b[:1000], b[1000:]}, 300, now(), &h); err != nil {
					t.Error(err)
				}
				got := make([]byte, span)
				m, err := f.ReadAt(bg, got, 300)
				if err != nil || m != span {
					t.Errorf("%d: %v", m, err)
					return
				}
				for j := range got {
					if got[j] != got[0] {
						t.Errorf("byte %d is %d, the first %d", j, got[j], got[0])
						return
					}
				}
			}
		})
	}
	g.Wait()
	if n := s.evictions(); n != 0 {
		t.Fatalf("%d evictions", n)
	}
}

func TestAppendFromFourClients(t *testing.T) {
	for _, stripes := range []int{1, 3} {
		s := newSite(t, siteOptions{osts: 3})
		const size, each = 1000, 60
		var g sync.WaitGroup
		for i := range 4 {
			f := s.join(osc.Options{}).open(7, stripes)
			g.Go(func() {
				for k := range each {
					rec := bytes.Repeat([]byte{byte(i*each + k)}, size)
					off, n, err := f.Append(bg, [][]byte{rec[:10], rec[10:]}, now(), k%7 == 0)
					if err != nil || n != size || off%size != 0 {
						t.Errorf("append at %d of %d: %v", off, n, err)
						return
					}
				}
			})
		}
		g.Wait()
		got := mustRead(t, s.join(osc.Options{}).open(7, stripes), 5*each*size, 0)
		if len(got) != 4*each*size {
			t.Fatalf("%d bytes, want %d", len(got), 4*each*size)
		}
		seen := map[byte]bool{}
		for r := 0; r < len(got); r += size {
			if !bytes.Equal(got[r:r+size], bytes.Repeat(got[r:r+1], size)) || seen[got[r]] {
				t.Fatalf("record at %d is torn, or there twice", r)
			}
			seen[got[r]] = true
		}
	}
}

// TestTruncateAgainstWriter: nothing that was cut off comes back, and nothing written afterwards is lost.
func TestTruncateAgainstWriter(t *testing.T) {
	s := newSite(t, siteOptions{osts: 3})
	fa, fb := s.join(osc.Options{}).open(7, 3), s.join(osc.Options{}).open(7, 3)
	rnd := rand.New(rand.NewPCG(seed(t), 1))
	for range 60 {
		size := 1 + rnd.Uint64N(5*stripe)
		mustWrite(t, fa, bytes.Repeat([]byte{1}, 5*stripe), 0, false)
		if err := fb.Truncate(bg, size, now()); err != nil {
			t.Fatal(err)
		}
		g, err := fa.Glimpse(bg)
		if err != nil || g.Size != size {
			t.Fatalf("size %d, cut at %d: %v", g.Size, size, err)
		}
		mustWrite(t, fa, []byte{2}, 5*stripe, false)
		got := mustRead(t, fb, 6*stripe, 0)
		if len(got) != 5*stripe+1 || got[5*stripe] != 2 || bytes.Count(got, []byte{1}) != int(size) {
			t.Fatalf("%d bytes, %d ones of %d", len(got), bytes.Count(got, []byte{1}), size)
		}
	}
}

// TestSizeIsNotTorn: a file of several stripes is truncated to and fro as fast as it goes; another client sees one of the two sizes.
// Who looks twice and sees the same may still have met two truncates alike: one such in tens of thousands is seen here.
func TestSizeIsNotTorn(t *testing.T) {
	s := newSite(t, siteOptions{osts: 4})
	const long, short = 3*stripe + 700, stripe/2 + 1
	a, b := s.join(osc.Options{}).open(7, 4), s.join(osc.Options{}).open(7, 4)
	at := int64(0)
	cut := func(size uint64) {
		at++
		if err := a.Truncate(bg, size, attr.Time{Sec: at}); err != nil {
			t.Error(err)
		}
	}
	cut(long)
	looks := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		for range looks { // so that a look meets a few truncates, not all
			cut(short)
			cut(long)
		}
	})
	seen := map[uint64]int{}
	for range 300 {
		looks <- struct{}{}
		for range 2 {
			z, err := b.Glimpse(bg)
			if err != nil {
				t.Fatal(err)
			}
			seen[z.Size]++
		}
	}
	close(looks)
	g.Wait()
	torn := 600 - seen[long] - seen[short]
	if torn > 2 {
		t.Errorf("%d of 600 looks saw a size that the file never had: %v", torn, seen)
	}
}

// TestOneRevocationWithThreeDirtyFiles: a lock that covers much goes back while three objects are dirty.
func TestOneRevocationWithThreeDirtyFiles(t *testing.T) {
	s := newSite(t, siteOptions{osts: 1})
	a, b := s.join(osc.Options{MaxAge: time.Hour}), s.join(osc.Options{})
	for i := range uint64(3) {
		mustWrite(t, a.open(10+i, 1), bytes.Repeat([]byte{byte(i + 1)}, 100000), 5, false)
	}
	for i := range uint64(3) {
		got := mustRead(t, b.open(10+i, 1), 200000, 5)
		if !bytes.Equal(got, bytes.Repeat([]byte{byte(i + 1)}, 100000)) {
			t.Fatalf("file %d: %d bytes", i, len(got))
		}
	}
}

func TestEvictedClientDropsWhatItHasNotWritten(t *testing.T) {
	s := newSite(t, siteOptions{osts: 2})
	a, b := s.join(osc.Options{MaxAge: time.Hour}), s.join(osc.Options{})
	fa, fb := a.open(7, 2), b.open(7, 2)
	mustWrite(t, fa, bytes.Repeat([]byte("A"), 2*stripe), 0, false)
	if err := fa.Sync(bg); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, fa, bytes.Repeat([]byte("S"), 2*stripe), 0, false)
	s.osts[0].evictClient(a)
	mustWrite(t, fb, bytes.Repeat([]byte("B"), 2*stripe), 0, false)
	if err := fb.Sync(bg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(bg, 10*time.Second)
	defer cancel()
	for err := error(nil); err == nil; {
		if err = fa.Flush(ctx); err != nil && !errors.Is(err, status.IO) {
			t.Fatal(err)
		}
	}
	if err := fa.Sync(bg); err != nil {
		t.Fatalf("told twice: %v", err)
	}
	want := bytes.Repeat([]byte("B"), 2*stripe)
	if got := mustRead(t, fa, 3*stripe, 0); !bytes.Equal(got, want) {
		t.Fatal("stale data reached the file")
	}
	if got := mustRead(t, s.join(osc.Options{}).open(7, 2), 3*stripe, 0); !bytes.Equal(got, want) {
		t.Fatal("stale data reached the file")
	}
}

// TestRestartedOSTGetsTheLocksBack: dirty data outlives the OST's restart under its lock; requests on their way too.
func TestRestartedOSTGetsTheLocksBack(t *testing.T) {
	s := newSite(t, siteOptions{osts: 2})
	a, b := s.join(osc.Options{MaxAge: time.Hour, MaxInFlight: 8}), s.join(osc.Options{})
	fa, fb := a.open(7, 2), b.open(7, 2)
	mustWrite(t, fb, []byte("x"), 20*stripe, false)
	if err := fb.Sync(bg); err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("dirty"), 100000)
	mustWrite(t, fa, want, 0, false)
	// All slots are full of writes when the OST goes.
	hold := make(chan struct{})
	x := s.osts[0]
	x.mu.Lock()
	x.hold = hold
	x.mu.Unlock()
	var g sync.WaitGroup
	for i := range 12 {
		f := a.open(uint64(100+i), 1)
		g.Go(func() {
			mustWrite(t, f, bytes.Repeat([]byte{byte(i)}, 1000), 0, false)
			if err := f.Sync(bg); err != nil {
				t.Error(err)
			}
		})
	}
	for x.count(wire.OpWrite) < 8 {
		time.Sleep(time.Millisecond)
	}
	x.mu.Lock()
	x.hold = nil
	x.mu.Unlock()
	x.restart()
	close(hold)
	if got := mustRead(t, fb, len(want), 0); !bytes.Equal(got, want) {
		t.Fatal("dirty data did not outlive the restart")
	}
	g.Wait()
	for i := range 12 {
		if got := mustRead(t, b.open(uint64(100+i), 1), 2000, 0); !bytes.Equal(got, bytes.Repeat([]byte{byte(i)}, 1000)) {
			t.Fatalf("file %d: %d bytes", i, len(got))
		}
	}
	if err := fa.TakeError(); err != nil {
		t.Fatal(err)
	}
}

// TestContendedObjectIsUsedWithoutLocks: the OST asks for it, and calls that can tell their caller go without.
func TestContendedObjectIsUsedWithoutLocks(t *testing.T) {
	s := newSite(t, siteOptions{osts: 1, limits: ldlm.Limits{ContendedLocks: 2, ContentionWindow: time.Minute, ContentionHold: time.Minute}})
	const rec = 47008
	var g sync.WaitGroup
	uncached := make([]int, 4)
	for i := range 4 {
		f := s.join(osc.Options{}).open(7, 1)
		g.Go(func() {
			h := lov.How{}
			for k := range 40 {
				b := bytes.Repeat([]byte{byte(1 + i*40 + k)}, rec)
				off := uint64((k*4 + i) * rec)
				if _, err := f.Write(bg, [][]byte{b}, off, now(), &h); err != nil {
					t.Error(err)
				}
				if h.Uncached {
					uncached[i]++
				}
				if _, err := f.Write(bg, [][]byte{b}, 160*rec, now(), &h); err != nil {
					t.Error(err)
				}
				if h.Uncached {
					uncached[i]++
				}
				got := make([]byte, rec)
				if n, err := f.Read(bg, got, 160*rec, &h); n != rec || err != nil || !bytes.Equal(got, bytes.Repeat(got[:1], rec)) {
					t.Errorf("%d of the record that all write: %v", n, err)
				}
				if n, err := f.Read(bg, got, off, &h); n != rec || err != nil || !bytes.Equal(got, b) {
					t.Errorf("%d of record %d: %v", n, k, err)
				}
			}
		})
	}
	g.Wait()
	total := 0
	for _, n := range uncached {
		total += n
	}
	if total == 0 {
		t.Fatal("no write went without a lock")
	}
	t.Logf("%d of 320 writes without a lock", total)
	got := mustRead(t, s.join(osc.Options{}).open(7, 1), 200*rec, 0)
	for r := 0; r < 160; r++ {
		if want := byte(1 + r%4*40 + r/4); !bytes.Equal(got[r*rec:(r+1)*rec], bytes.Repeat([]byte{want}, rec)) {
			t.Fatalf("record %d is wrong", r)
		}
	}
}

// TestDirectIOIsCoherent: direct calls take no lock of their own, and see and are seen all the same.
func TestDirectIOIsCoherent(t *testing.T) {
	s := newSite(t, siteOptions{osts: 1})
	a, b := s.join(osc.Options{MaxAge: time.Hour}), s.join(osc.Options{MaxAge: time.Hour})
	fa, fb := a.open(7, 1), b.open(7, 1)
	mustWrite(t, fa, bytes.Repeat([]byte("a"), 8192), 0, false)
	h := lov.How{Direct: true}
	got := make([]byte, 8192)
	if n, err := fb.Read(bg, got, 0, &h); n != 8192 || err != nil || got[5000] != 'a' {
		t.Fatalf("%d: %v", n, err)
	}
	if _, err := fb.Write(bg, [][]byte{bytes.Repeat([]byte("b"), 4096)}, 0, now(), &h); err != nil {
		t.Fatal(err)
	}
	enqueues := s.osts[0].count(wire.OpEnqueue)
	if got := mustRead(t, fa, 8192, 0); got[0] != 'b' || got[4096] != 'a' {
		t.Fatalf("%c %c", got[0], got[4096])
	}
	for i := range 20 {
		if n, err := fb.Read(bg, got[:4096], 4096, &h); n != 4096 || err != nil || got[0] != 'a' {
			t.Fatalf("read %d: %d: %v", i, n, err)
		}
	}
	if n := s.osts[0].count(wire.OpEnqueue) - enqueues; n > 1 { // that of fa's read
		t.Fatalf("%d locks asked for by direct reads", n)
	}
	// The one who wrote without a lock knows his size.
	if _, err := fb.Write(bg, [][]byte{got[:4096]}, 1<<20, now(), &h); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*lov.File{fa, fb} {
		if g, err := f.Glimpse(bg); err != nil || g.Size != 1<<20+4096 {
			t.Fatalf("%+v: %v", g, err)
		}
	}
}

// TestReadAhead: strides and small reads in order are read ahead under the lock that is held; what another client, or this
// one, writes meanwhile is seen.
func TestReadAhead(t *testing.T) {
	for _, stripes := range []int{1, 4} {
		s := newSite(t, siteOptions{osts: 4})
		a, b := s.join(osc.Options{MaxAge: time.Millisecond, AheadWait: 1}), s.join(osc.Options{})
		a.set.SetReadAhead(lov.ReadAhead{Max: 16 << 20, PerFile: 4 << 20})
		fa, fb := a.open(7, stripes), b.open(7, stripes)
		rnd := rand.New(rand.NewPCG(seed(t), uint64(stripes)))
		want := make([]byte, 4<<20)
		for i := range want {
			want[i] = byte(rnd.Uint32())
		}
		mustWrite(t, fb, want, 0, false)
		mustRead(t, fa, len(want), 0) // the lock
		for round := range 4 {
			const rec = 47008
			h := lov.How{Paged: true, Reader: new(lov.Reader)}
			step := uint64(4 * rec)
			if round%2 == 1 {
				step = rec
			}
			for off := uint64(round); off+rec < uint64(len(want)); off += step {
				got := make([]byte, rec)
				if n, err := fa.Read(bg, got, off, &h); n != rec || err != nil || !bytes.Equal(got, want[off:off+rec]) {
					t.Fatalf("round %d: %d at %d differ: %v", round, n, off, err)
				}
				if round > 1 && rnd.IntN(5) == 0 {
					f := fa
					if rnd.IntN(2) == 0 {
						f = fb
					}
					at := min(off+rnd.Uint64N(3*step), uint64(len(want)-1000))
					data := bytes.Repeat([]byte{byte(off)}, 1000)
					mustWrite(t, f, data, at, rnd.IntN(2) == 0)
					copy(want[at:], data)
				}
			}
		}
		var hits uint64
		for _, c := range a.oscs {
			hits += c.AheadHits()
		}
		if hits == 0 {
			t.Fatal("nothing was read ahead")
		}
		t.Logf("%d bytes of read-ahead used\n%s", hits, a.set.ReadAheadStats())
	}
}

// TestBlocksOfAFileOpenedAgain: a File opened under the lock that its writer left knows its blocks: 0 of a file with data would
// make an archiver take it for a hole.
func TestBlocksOfAFileOpenedAgain(t *testing.T) {
	s := newSite(t, siteOptions{osts: 1})
	a, b := s.join(osc.Options{}), s.join(osc.Options{})
	f := a.open(7, 1)
	mustWrite(t, f, make([]byte, 40960), 0, false)
	if err := f.Sync(bg); err != nil {
		t.Fatal(err)
	}
	enqueues := s.osts[0].count(wire.OpEnqueue)
	if g, err := a.open(7, 1).Glimpse(bg); err != nil || g.Size != 40960 || g.Blocks < 80 {
		t.Fatalf("%+v: %v", g, err)
	}
	if n := s.osts[0].count(wire.OpEnqueue); n != enqueues {
		t.Fatal("a lock that is held was not used")
	}
	if err := b.open(7, 1).Truncate(bg, 4096, now()); err != nil {
		t.Fatal(err)
	}
	if g, err := f.Glimpse(bg); err != nil || g.Size != 4096 || g.Blocks != 8 {
		t.Fatalf("%+v: %v", g, err)
	}
}

// TestSlotsFullOfLocklessWaits: more requests without locks than there are slots wait at the OST for who wants this client's lock;
// what is dirty under it is written back all the same.
func TestSlotsFullOfLocklessWaits(t *testing.T) {
	s := newSite(t, siteOptions{osts: 1})
	a, b := s.join(osc.Options{MaxAge: time.Hour}), s.join(osc.Options{})
	fa, fb := a.open(7, 1), b.open(7, 1)
	for range 5 {
		mustWrite(t, fa, bytes.Repeat([]byte("d"), 1<<20), 0, false)
		var g sync.WaitGroup
		g.Go(func() { mustWrite(t, fb, bytes.Repeat([]byte("b"), 4<<20), 0, false) })
		for i := range uint64(24) {
			g.Go(func() {
				h := lov.How{Direct: true}
				var err error
				if i%2 == 0 {
					_, err = fa.Read(bg, make([]byte, 4096), i*4096, &h)
				} else {
					_, err = fa.Write(bg, [][]byte{make([]byte, 4096)}, 2<<20+i*4096, now(), &h)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		g.Wait()
	}
	if n := s.evictions(); n != 0 {
		t.Fatalf("%d evictions", n)
	}
}
