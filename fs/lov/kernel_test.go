package lov_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/osc"
)

const page = 4096

// kernel is a model of a mount's page cache: a READ keeps its pages locked and not valid until it is answered, and to drop
// pages waits for each, writing it back first when it is dirty by a mapping.
type kernel struct {
	t testing.TB
	f *lov.File

	mu    sync.Mutex
	pages map[uint64]*kernelPage // guarded by mu
	drops atomic.Int64
	inode sync.Mutex // of calls that change the file
}

type kernelPage struct {
	mu    sync.Mutex
	valid bool // guarded by mu
	dirty bool // guarded by mu
	data  [page]byte
}

func newKernel(n *node, f *lov.File) *kernel {
	k := &kernel{t: n, f: f, pages: map[uint64]*kernelPage{}}
	n.set.SetPages(k)
	return k
}

func (k *kernel) page(i uint64) *kernelPage {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pages[i]
	if p == nil {
		p = new(kernelPage)
		k.pages[i] = p
	}
	return p
}

// DropPages implements osc.Pages.
func (k *kernel) DropPages(_ fid.FID, off, n uint64) {
	k.drops.Add(1)
	last := (off + n - 1) / page
	k.mu.Lock()
	var list []uint64
	for i := range k.pages {
		if i >= off/page && (n == 0 || i <= last) {
			list = append(list, i)
		}
	}
	k.mu.Unlock()
	for _, i := range list {
		p := k.page(i)
		p.mu.Lock()
		k.clean(i, p)
		p.valid = false
		p.mu.Unlock()
	}
}

// clean writes a dirty page back, with its lock held, as the kernel does.
func (k *kernel) clean(i uint64, p *kernelPage) {
	if p.valid && p.dirty {
		h := lov.How{Mapped: true}
		if _, err := k.f.Write(bg, [][]byte{p.data[:]}, i*page, now(), &h); err != nil {
			k.t.Errorf("write of a mapped page: %v", err)
		}
		p.dirty = false
	}
}

// read returns pages [first, first+n): each from the cache, or with one READ of it and those behind it that are not there. Like
// the kernel it waits for no page while it holds others.
func (k *kernel) read(first, n uint64) []byte {
	out := make([]byte, n*page)
	for i := uint64(0); i < n; {
		p := k.page(first + i)
		p.mu.Lock()
		if p.valid {
			copy(out[i*page:], p.data[:])
			p.mu.Unlock()
			i++
			continue
		}
		held := []*kernelPage{p}
		for i+uint64(len(held)) < n {
			p := k.page(first + i + uint64(len(held)))
			if !p.mu.TryLock() {
				break
			}
			if p.valid {
				p.mu.Unlock()
				break
			}
			held = append(held, p)
		}
		k.fill(first+i, held, out[i*page:])
		i += uint64(len(held))
	}
	return out
}

func (k *kernel) fill(first uint64, held []*kernelPage, out []byte) {
	h := lov.How{Paged: true}
	b := make([]byte, len(held)*page)
	n, err := k.f.Read(bg, b, first*page, &h)
	if err != nil || n != len(b) {
		k.t.Errorf("READ of %d: %d: %v", len(b), n, err)
	}
	for i, p := range held {
		copy(p.data[:], b[i*page:])
		p.valid = !h.Uncached
		p.mu.Unlock()
	}
	copy(out, b)
}

// write writes whole pages through the cache.
func (k *kernel) write(first uint64, b []byte) {
	h := lov.How{}
	if n, err := k.f.Write(bg, [][]byte{b}, first*page, now(), &h); err != nil || n != len(b) {
		k.t.Errorf("WRITE: %d: %v", n, err)
	}
	k.DropPages(fid.FID{}, first*page, uint64(len(b)))
}

// store changes a page by a mapping; false when it is not in the cache.
func (k *kernel) store(i uint64, change func(b []byte)) bool {
	p := k.page(i)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.valid {
		change(p.data[:])
		p.dirty = true
	}
	return p.valid
}

// TestReadsThatHoldPagesDoNotStopRevocation: READs, writes and mapped stores of three clients over the edges of four stripes.
// A READ that waits for one stripe holds pages that the Revoke of another stripe's lock is to drop, and whose holder waits.
func TestReadsThatHoldPagesDoNotStopRevocation(t *testing.T) {
	s := newSite(t, siteOptions{osts: 4, timeout: 20 * time.Second})
	const span = 8 * stripe / page
	sd := seed(t)
	first := s.join(osc.Options{}).open(7, 4)
	mustWrite(t, first, make([]byte, span*page), 0, false)
	var g sync.WaitGroup
	begin := time.Now()
	for i := range 3 {
		n := s.join(osc.Options{MaxAge: 5 * time.Millisecond})
		k := newKernel(n, n.open(7, 4))
		for j := range 3 {
			g.Go(func() {
				rnd := rand.New(rand.NewPCG(sd, uint64(i*3+j)))
				for range 80 {
					at := (1+rnd.Uint64N(6))*(stripe/page) - 1 - rnd.Uint64N(3)
					count := 2 + rnd.Uint64N(20)
					switch rnd.IntN(5) {
					case 0:
						k.write(at, bytes.Repeat([]byte{byte(i)}, int(count)*page))
					case 1:
						k.store(at, func(b []byte) { b[7] = byte(i) })
					default:
						k.read(at, count)
					}
				}
			})
		}
	}
	g.Wait()
	t.Logf("%v", time.Since(begin))
	if n := s.evictions(); n != 0 {
		t.Fatalf("%d evictions", n)
	}
}

// TestCachedPagesAreCoherent: a number that is written once per step, by any client, is never read older than it was when the
// read began, through every client's page cache.
func TestCachedPagesAreCoherent(t *testing.T) {
	s := newSite(t, siteOptions{osts: 2})
	const at = stripe/page - 1 // two pages on two stripes
	mustWrite(t, s.join(osc.Options{}).open(7, 2), make([]byte, 2*stripe), 0, false)
	var done atomic.Uint64
	var turn sync.Mutex
	var g sync.WaitGroup
	for range 3 {
		n := s.join(osc.Options{})
		k := newKernel(n, n.open(7, 2))
		g.Go(func() {
			for range 40 {
				turn.Lock()
				v := done.Load() + 1
				b := make([]byte, 2*page)
				binary.LittleEndian.PutUint64(b, v)
				binary.LittleEndian.PutUint64(b[page:], v)
				k.write(at, b)
				done.Store(v)
				turn.Unlock()
				for range 3 {
					least := done.Load()
					b := k.read(at, 2)
					if got := min(binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[page:])); got < least {
						t.Errorf("read %d, %d was there", got, least)
					}
				}
			}
		})
	}
	g.Wait()
}

// TestMappedStoresGoBackWithTheirLock: a page read under a read lock and changed by a mapping reaches who asks for the lock.
func TestMappedStoresGoBackWithTheirLock(t *testing.T) {
	s := newSite(t, siteOptions{osts: 2, timeout: 20 * time.Second})
	a, b := s.join(osc.Options{MaxAge: time.Hour}), s.join(osc.Options{})
	fa, fb := a.open(7, 2), b.open(7, 2)
	mustWrite(t, fb, make([]byte, 2*stripe), 0, false)
	k := newKernel(a, fa)
	for round := range byte(20) {
		edge := uint64(stripe/page - 1)
		k.read(edge, 2)
		for i := range uint64(2) {
			if !k.store(edge+i, func(b []byte) { b[0] = round + 1 }) {
				t.Fatal("page is not cached")
			}
		}
		// Whoever writes beside the stores, or only looks in a way that takes the lock, gets them.
		mustWrite(t, fb, []byte{round + 100}, edge*page+1, false)
		mustWrite(t, fb, []byte{round + 100}, (edge+1)*page+1, false)
		got := mustRead(t, fb, 2*page, edge*page)
		if got[0] != round+1 || got[page] != round+1 || got[1] != round+100 {
			t.Fatalf("round %d: %d %d %d", round, got[0], got[page], got[1])
		}
	}
	// A lock that goes for its age: the store is written back all the same.
	fa, fb = a.open(8, 1), b.open(8, 1)
	mustWrite(t, fb, make([]byte, page), 0, false)
	k = newKernel(a, fa)
	k.read(0, 1)
	if !k.store(0, func(b []byte) { b[9] = 77 }) {
		t.Fatal("page is not cached")
	}
	for _, c := range a.oscs {
		if _, err := c.Locks().Clear(bg); err != nil {
			t.Fatal(err)
		}
	}
	if got := mustRead(t, fb, page, 0); got[9] != 77 {
		t.Fatal("a mapped store went with its lock")
	}
	if s.evictions() != 0 {
		t.Fatal("evictions")
	}
}

// TestManyTasksOnFewFiles: more calls at once than there are slots, on files of two stripes that two clients write, read, cut and
// sync through their page caches.
func TestManyTasksOnFewFiles(t *testing.T) {
	s := newSite(t, siteOptions{osts: 2, timeout: 20 * time.Second})
	const files, tasks = 3, 20
	sd := seed(t)
	var g sync.WaitGroup
	for i := range 2 {
		n := s.join(osc.Options{MaxAge: 5 * time.Millisecond})
		k := &kernels{of: map[fid.FID]*kernel{}}
		n.set.SetPages(k)
		var list []*kernel
		for j := range uint64(files) {
			x := &kernel{t: t, f: n.open(20+j, 2), pages: map[uint64]*kernelPage{}}
			k.of[fid.FID{Seq: fid.SeqFirst, OID: uint32(20 + j)}] = x
			list = append(list, x)
		}
		for task := range tasks {
			g.Go(func() {
				rnd := rand.New(rand.NewPCG(sd, uint64(i*tasks+task)))
				for range 25 {
					x := list[rnd.IntN(files)]
					off := rnd.Uint64N(3 * stripe)
					switch rnd.IntN(8) {
					case 0, 1:
						x.inode.Lock()
						h := lov.How{}
						if _, err := x.f.Write(bg, [][]byte{make([]byte, 2*stripe)}, off, now(), &h); err != nil {
							t.Error(err)
						}
						x.inode.Unlock()
						x.DropPages(fid.FID{}, off, 2*stripe)
					case 2, 3:
						x.readShort(off/page, 2*stripe/page)
					case 4:
						if err := x.f.Sync(bg); err != nil {
							t.Error(err)
						}
					case 5:
						x.inode.Lock()
						if err := x.f.Truncate(bg, off, now()); err != nil {
							t.Error(err)
						}
						x.inode.Unlock()
					default:
						if _, err := x.f.Glimpse(bg); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
	}
	g.Wait()
	if n := s.evictions(); n != 0 {
		t.Fatalf("%d evictions", n)
	}
}

// kernels are the page caches of several files.
type kernels struct{ of map[fid.FID]*kernel }

func (k *kernels) DropPages(f fid.FID, off, n uint64) { k.of[f].DropPages(f, off, n) }

// readShort reads pages that may lie behind the file's end.
func (k *kernel) readShort(first, n uint64) {
	p := k.page(first)
	p.mu.Lock()
	held := []*kernelPage{p}
	for i := uint64(1); i < n; i++ {
		q := k.page(first + i)
		if !q.mu.TryLock() {
			break
		}
		held = append(held, q)
	}
	h := lov.How{Paged: true}
	b := make([]byte, len(held)*page)
	if _, err := k.f.Read(bg, b, first*page, &h); err != nil {
		k.t.Error(err)
	}
	for _, q := range held {
		q.valid = !h.Uncached
		q.mu.Unlock()
	}
}
