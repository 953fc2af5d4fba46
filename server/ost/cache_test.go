package ost

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
	"github.com/strakefs/strake/store/memdev"
)

// bare is an OST with count objects, without a server before it.
func bare(t testing.TB, dev store.Device, count uint64, o Options) *OST {
	t.Helper()
	o.Name, o.FSName, o.Device = "strake-OST0000", "strake", dev
	o.CommitEvery, o.ReplayWindow = time.Hour, -1
	s, err := New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	g := s.group(0)
	for last := g.last.Load(); last < count; last = g.last.Load() {
		if err := s.precreate(context.Background(), g, min(count, last+PrecreateMax)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func inMemory(t testing.TB) store.Device {
	t.Helper()
	dev, err := memdev.Open(memdev.NewDisk(), memdev.Options{Specs: Specs(), CommitInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

func onDisk(t testing.TB) store.Device {
	t.Helper()
	dev, err := boltdev.Open(boltdev.Options{Dir: filepath.Join(t.TempDir(), "ost"), Specs: Specs(),
		Label: store.Label{FSName: "strake", Kind: store.KindOST}})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// look makes the OST know an object, as a glimpse does.
func look(t testing.TB, o *OST, e *env.Env, id uint64) {
	var v ldlm.LVB
	if err := (objects{o}).LVB(e, fid.ObjectID{ID: id}, &v); err != nil {
		t.Error(err)
	}
	e.Reset()
}

func tableOf(o *OST) (s stats.TableStats) {
	o.cache.tableStats(&s)
	return s
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestBytesPerObject holds objectBytes, which the budget counts with, to what the heap says.
func TestBytesPerObject(t *testing.T) {
	if raceOn {
		t.Skip("the race detector changes sizes")
	}
	const n = 60000
	o := bare(t, inMemory(t), n, Options{MaxOpen: 1})
	e := env.New()
	before := heap()
	for id := uint64(1); id <= n; id++ {
		look(t, o, e, id)
	}
	got := float64(heap()-before) / n
	s := tableOf(o)
	said := float64(s.Bytes) / n
	t.Logf("%.0f bytes an object by the heap, %.0f by the table's own count; %d entries in %d buckets, longest chain %d", got, said, s.Entries, s.Buckets, s.Longest)
	if s.Entries != n || said < 0.9*got || said > 1.1*got {
		t.Errorf("%d entries; the table counts %.0f bytes each, the heap %.0f", s.Entries, said, got)
	}
	if s.Longest > 10 || s.Grows < 6 {
		t.Errorf("%+v", s)
	}
	if err := o.o.Memory.SetPercent(1); err != nil {
		t.Fatal(err)
	}
	runtime.KeepAlive(o)
}

// TestObjectsWithinTheBudget: two OSTs under one budget. It bounds both together at every moment, the one that is used gets
// what the other does not need, and a smaller percentage works at once. No object is refused.
func TestObjectsWithinTheBudget(t *testing.T) {
	const n = 12000
	memory := target.NewBudget(256 << 20)
	if err := memory.SetPercent(1); err != nil {
		t.Fatal(err)
	}
	limit := memory.Limit() // 2.6 MiB
	first, second := bare(t, inMemory(t), n, Options{Memory: memory, MaxOpen: 64}), bare(t, inMemory(t), n, Options{Memory: memory, MaxOpen: 64})
	e := env.New()
	// A shard that doubles its chains takes them all at once.
	const slack = 256 << 10
	for i, o := range []*OST{first, second} {
		for id := uint64(1); id <= n; id++ {
			look(t, o, e, id)
			if used := memory.Used(); used > limit+slack {
				t.Fatalf("OST %d, object %d: %d bytes of %d", i, id, used, limit)
			}
		}
	}
	a, b := tableOf(first), tableOf(second)
	if a.Entries < b.Entries-200 || b.Entries < a.Entries-200 {
		t.Errorf("%d and %d objects of OSTs as busy as each other", a.Entries, b.Entries)
	}
	memory.Look(256 << 20)
	look(t, second, e, 1)
	memory.Look(256 << 20) // The first is idle now.
	for id := uint64(1); id <= n; id++ {
		look(t, second, e, id)
	}
	a, b = tableOf(first), tableOf(second)
	if a.Entries > 300 || b.Bytes < limit*9/10 {
		t.Errorf("the idle OST keeps %d objects, the busy one has %d", a.Entries, b.Entries)
	}
	t.Logf("limit %d: first %d objects, %d bytes; second %d objects, %d bytes, %d purged", limit, a.Entries, a.Bytes, b.Entries, b.Bytes, b.Evictions)
	if a.Evictions == 0 || b.Evictions == 0 || a.Bytes+b.Bytes != memory.Used() || a.Bytes+b.Bytes < limit/2 || a.LimitBytes != limit {
		t.Errorf("%+v\n%+v", a, b)
	}
	if first.cache.handles() > 64 {
		t.Errorf("%d files are open", first.cache.handles())
	}
	for id := uint64(n - 100); id <= n; id++ { // used last, so they are there
		look(t, second, e, id)
	}
	if c := tableOf(second); c.Misses != b.Misses {
		t.Errorf("%d of the last 100 objects are gone", c.Misses-b.Misses)
	}
	memory.Look(0)
	if used := memory.Used(); used > max(limit/4*3, 1<<20)+slack {
		t.Errorf("%d bytes while memory is short", used)
	}
	memory.Look(256 << 20)
	if err := memory.SetPercent(50); err != nil {
		t.Fatal(err)
	}
	for id := uint64(1); id <= n; id++ {
		look(t, first, e, id)
		look(t, second, e, id)
	}
	if a, b = tableOf(first), tableOf(second); a.Entries != n || b.Entries != n {
		t.Errorf("%d and %d objects of %d with room for all", a.Entries, b.Entries, n)
	}
	if err := memory.SetPercent(1); err != nil {
		t.Fatal(err)
	}
	if a = tableOf(first); memory.Used() > limit || a.Shrinks == 0 {
		t.Errorf("%d bytes of %d; %+v", memory.Used(), limit, a)
	}
}

// TestInUseIsNeverPurged: with no room at all, objects in use keep their identity, and those that are pinned stay.
func TestInUseIsNeverPurged(t *testing.T) {
	memory := target.NewBudget(1 << 20)
	if err := memory.SetPercent(1); err != nil {
		t.Fatal(err)
	}
	var c cache
	c.init(memory, 1)
	memory.Join(&c)
	const n = 200
	owner := make([]atomic.Pointer[object], n)
	var wg sync.WaitGroup
	for g := range 4 {
		seed := rand.Uint64()
		t.Logf("user %d: seed %d", g, seed)
		r := rand.New(rand.NewPCG(seed, 1))
		wg.Go(func() {
			for range 5000 {
				i := r.IntN(n)
				ob := c.get(fid.ObjectID{Group: uint32(i % 3), ID: uint64(i)})
				ob.mu.Lock()
				if i%10 != 0 {
					ob.stated = true
				}
				if i%50 == 1 && !ob.pinned {
					c.pin(ob)
					owner[i].Store(ob)
				}
				ob.mu.Unlock()
				again := c.get(ob.id)
				if again != ob {
					t.Errorf("object %v twice", ob.id)
				}
				if was := owner[i].Load(); was != nil && was != ob {
					t.Errorf("pinned object %v was purged", ob.id)
				}
				c.put(again)
				c.put(ob)
			}
		})
	}
	wg.Wait()
	var s stats.TableStats
	c.tableStats(&s)
	if s.Busy != 0 || s.Evictions == 0 || s.Bytes > memory.Limit()+s.Buckets*bucketBytes+5*objectBytes {
		t.Errorf("%+v, limit %d", s, memory.Limit())
	}
	left := 0
	c.each(func(*object) bool { return true }, func(*object) { left++ })
	if int64(left) != s.Entries {
		t.Errorf("%d objects walked, %d counted", left, s.Entries)
	}
	c.close()
	if memory.Used() != 0 {
		t.Errorf("%d bytes are charged by nobody", memory.Used())
	}
}

// TestKnownWithoutItsFile: the lock value of an object whose file was closed for room comes from memory, and is right.
func TestKnownWithoutItsFile(t *testing.T) {
	o := bare(t, onDisk(t), 200, Options{MaxOpen: 1})
	e := env.New()
	for id := uint64(1); id <= 200; id++ {
		look(t, o, e, id)
	}
	if got := o.cache.handles(); got > cacheShards {
		t.Errorf("%d files are open", got)
	}
	shut := 0
	for id := uint64(1); id <= 200; id++ {
		ob := o.cache.look(fid.ObjectID{ID: id})
		if ob == nil {
			t.Fatalf("object %d is not in the table", id)
		}
		if !ob.loaded.Load() {
			shut++
		}
		look(t, o, e, id)
		if ob.loaded.Load() && o.cache.handles() > cacheShards {
			t.Fatal("a glimpse has opened a file that it does not need")
		}
	}
	if shut < 200-cacheShards {
		t.Errorf("%d of 200 files were closed", shut)
	}
}

// BenchmarkGlimpseOf the state of an object: from memory, and as it is without a table, from the host and the tables.
func BenchmarkGlimpseOf(b *testing.B) {
	const n = 20000
	for _, known := range []bool{true, false} {
		b.Run(map[bool]string{true: "known", false: "unknown"}[known], func(b *testing.B) {
			memory := target.NewBudget(1 << 30)
			o := bare(b, onDisk(b), n, Options{Memory: memory, MaxOpen: 1})
			e := env.New()
			if !known {
				memory = target.NewBudget(1)
				o.cache.budget = memory
				memory.Join(&o.cache)
			}
			for id := uint64(1); id <= n; id++ {
				look(b, o, e, id)
			}
			id := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				id = (id + 7919) % n
				look(b, o, e, id+1)
			}
		})
	}
}

// BenchmarkObjectTable is a search that finds its object, by all processors at once.
func BenchmarkObjectTable(b *testing.B) {
	const n = 1 << 16
	var c cache
	c.init(target.NewBudget(1<<30), 1)
	for id := range uint64(n) {
		ob := c.get(fid.ObjectID{ID: id})
		ob.stated = true
		c.put(ob)
	}
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		id := rand.Uint64()
		for p.Next() {
			id++
			c.put(c.get(fid.ObjectID{ID: id % n}))
		}
	})
}
