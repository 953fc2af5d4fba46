package ldlm_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
)

// soak reports whether long runs were asked for.
func soak() bool { return os.Getenv("STRAKE_SOAK") != "" }

// pick is how a random run chooses: rand or rapid.
type pick interface {
	IntN(n int) int
}

// held is what the test knows of a lock.
type held struct {
	handle  ldlm.Handle
	client  ldlm.ClientID
	res     ldlm.ResID
	granted bool
}

// world drives one namespace with random requests and believes only its effects.
type world struct {
	ns    *ldlm.Namespace
	p     pick
	now   time.Duration
	locks []*held
	by    map[ldlm.Handle]*held
	fx    ldlm.Effects
	res   int // resources
	// called is how many blocking ASTs each granted lock has got since it was granted or converted.
	called map[ldlm.Handle]int
	modes  []ldlm.Mode
	// dense: one inode, one bit a request, more enqueues than cancels: many granted locks on one resource.
	dense bool
}

func newWorld(p pick, resources int) *world {
	return &world{p: p, res: resources, by: map[ldlm.Handle]*held{}, called: map[ldlm.Handle]int{},
		ns:    ldlm.New(ldlm.Config{Shards: 4, Seed: 7}),
		modes: []ldlm.Mode{ldlm.EX, ldlm.PW, ldlm.PR, ldlm.CW, ldlm.CR, ldlm.NL, ldlm.GROUP}}
}

func (w *world) request() *ldlm.Request {
	n := w.p.IntN(w.res)
	if w.dense {
		n = 1
	}
	r := &ldlm.Request{Mode: w.modes[w.p.IntN(len(w.modes))], Client: ldlm.ClientID(w.p.IntN(6)),
		GID: uint64(1 + w.p.IntN(2))}
	if n%2 == 0 {
		r.Res = ldlm.ObjectRes(fid.ObjectID{ID: uint64(n)})
		start := uint64(w.p.IntN(64)) * 4096
		r.Extent = extent.Extent{Start: start, End: start + uint64(1+w.p.IntN(8))*4096}
		switch w.p.IntN(10) {
		case 0:
			r.Extent = extent.Extent{End: extent.EOF}
		case 1:
			r.Extent.End = extent.EOF
		}
	} else {
		r.Res = ldlm.InodeRes(fid.FID{Seq: fid.SeqFirst, OID: uint32(n)})
		r.Bits, r.TryBits = ldlm.Bits(1+w.p.IntN(127)), ldlm.Bits(w.p.IntN(128))
		if w.dense {
			r.Bits = 1 << w.p.IntN(7)
			r.TryBits &= 1 << w.p.IntN(7)
		}
	}
	r.Flags = []ldlm.Flags{0, 0, 0, 0, ldlm.NoWait, ldlm.NoExpansion, ldlm.Speculative, ldlm.Replay}[w.p.IntN(8)]
	if r.Client == ldlm.Local && r.Mode != ldlm.GROUP && w.p.IntN(3) > 0 {
		r.Flags |= ldlm.Own
		r.Cause = ldlm.ClientID(1 + w.p.IntN(5))
	}
	return r
}

// step does one random thing.
func (w *world) step() error {
	w.fx.Reset()
	w.now += time.Duration(w.p.IntN(1000)) * time.Millisecond
	switch op := w.p.IntN(20); {
	case op < 9 || len(w.locks) == 0:
		r := w.request()
		reply := w.ns.Enqueue(w.now, r, &w.fx)
		if reply.Outcome == ldlm.Granted || reply.Outcome == ldlm.Waiting {
			h := &held{handle: reply.Handle, client: r.Client, res: r.Res, granted: reply.Outcome == ldlm.Granted}
			if w.by[h.handle] != nil {
				return fmt.Errorf("handle %v given twice", h.handle)
			}
			w.locks, w.by[h.handle] = append(w.locks, h), h
		}
	case op < 16 && (!w.dense || op < 15):
		h := w.take(w.p.IntN(len(w.locks)))
		if n := w.ns.Cancel(w.now, h.client, []ldlm.Handle{h.handle}, &w.fx); n != 1 {
			return fmt.Errorf("cancel of %v found %d", h.handle, n)
		}
	case op < 18:
		h := w.locks[w.p.IntN(len(w.locks))]
		info, _ := w.ns.Lock(h.client, h.handle)
		c := ldlm.Conversion{Client: h.client, Handle: h.handle, Mode: w.modes[w.p.IntN(6)]}
		if info.Desc.Bits != 0 {
			c.Bits = ldlm.Bits(1 + w.p.IntN(127))
		}
		if reply := w.ns.Convert(w.now, &c, &w.fx); reply.Outcome == ldlm.Granted {
			delete(w.called, h.handle)
		}
	case op == 18 && (!w.dense || w.p.IntN(10) == 0):
		c := ldlm.ClientID(w.p.IntN(6))
		w.ns.Evict(w.now, c, &w.fx)
		for i := len(w.locks) - 1; i >= 0; i-- {
			if w.locks[i].client == c {
				w.take(i)
			}
		}
	default:
		// Somebody names a handle of another one's: nothing may happen.
		h := w.locks[w.p.IntN(len(w.locks))]
		if n := w.ns.Cancel(w.now, h.client+1, []ldlm.Handle{h.handle, h.handle + 1, ^h.handle}, &w.fx); n != 0 {
			return fmt.Errorf("client %d cancelled a lock of %d", h.client+1, h.client)
		}
	}
	return w.effects()
}

func (w *world) take(i int) *held {
	h := w.locks[i]
	w.locks[i] = w.locks[len(w.locks)-1]
	w.locks = w.locks[:len(w.locks)-1]
	delete(w.by, h.handle)
	delete(w.called, h.handle)
	return h
}

func (w *world) effects() error {
	for i := range w.fx.List {
		e := &w.fx.List[i]
		h := w.by[e.Handle]
		if h == nil {
			return fmt.Errorf("%v for a lock that is gone", e.Kind)
		}
		switch e.Kind {
		case ldlm.EffectCompletion:
			h.granted = true
			delete(w.called, e.Handle)
			if a, ok := w.ns.Told(e.Client, e.Handle); !ok {
				return fmt.Errorf("completion of a lock that is not granted")
			} else if a.Blocked {
				w.called[e.Handle]++
			}
		case ldlm.EffectBlocking:
			if w.called[e.Handle]++; !h.granted || w.called[e.Handle] > 1 {
				return fmt.Errorf("lock %v called back %d times, granted %v", e.Handle, w.called[e.Handle], h.granted)
			}
		}
	}
	return w.check()
}

func (w *world) check() error {
	for _, h := range w.locks {
		info, ok := w.ns.Lock(h.client, h.handle)
		if !ok || info.Granted != h.granted {
			return fmt.Errorf("lock %v: found %v, granted %v; the effects said %v", h.handle, ok, info.Granted, h.granted)
		}
	}
	return w.ns.Verify()
}

func (w *world) run(t *testing.T, seed uint64, steps int) {
	for i := range steps {
		if err := w.step(); err != nil {
			t.Fatalf("seed %d, step %d: %v", seed, i, err)
		}
	}
}

// TestRandomFew drives few resources, so that queues are long.
func TestRandomFew(t *testing.T) {
	rounds := 60
	if soak() {
		rounds = 20000
	}
	for i := range rounds {
		seed := uint64(i)
		if i >= rounds/2 {
			seed = rand.Uint64()
		}
		w := newWorld(rand.New(rand.NewPCG(seed, 1)), 1+i%4)
		w.run(t, seed, 250)
	}
}

// TestRandomDense drives one inode with so many locks that they are counted by mode and bit.
func TestRandomDense(t *testing.T) {
	most := 0
	for i := range 20 {
		seed := uint64(i)
		if i >= 10 {
			seed = rand.Uint64()
		}
		w := newWorld(rand.New(rand.NewPCG(seed, 4)), 2)
		w.dense, w.modes = true, []ldlm.Mode{ldlm.PR, ldlm.CR, ldlm.NL, ldlm.PR, ldlm.CR, ldlm.CW, ldlm.EX}
		for range 10 {
			w.run(t, seed, 40)
			info, _ := w.ns.Resource(w.now, ldlm.InodeRes(fid.FID{Seq: fid.SeqFirst, OID: 1}))
			most = max(most, info.Granted)
		}
	}
	if most < 20 { // counted from 16
		t.Errorf("at most %d granted: too few to mean anything", most)
	}
}

// TestRandomMany drives thousands of resources; the invariants are checked every so often.
func TestRandomMany(t *testing.T) {
	seed := rand.Uint64()
	w := newWorld(rand.New(rand.NewPCG(seed, 2)), 4000)
	w.run(t, seed, 1)
	var fx ldlm.Effects
	for i := range 30000 {
		fx.Reset()
		r := w.request()
		r.Client++
		w.ns.Enqueue(w.now, r, &fx)
		if i%10 == 9 {
			w.ns.Evict(w.now, ldlm.ClientID(1+w.p.IntN(7)), &fx)
		}
		if i%3000 == 0 {
			if err := w.ns.Verify(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, i, err)
			}
		}
	}
	for c := range ldlm.ClientID(9) {
		w.ns.Evict(w.now, c, &fx)
	}
	if s := w.ns.Stats(); s.Locks != 0 || s.Resources != 0 || s.Unused != 0 || s.Called != 0 {
		t.Fatalf("seed %d: left over: %+v", seed, s)
	}
}

// TestParallel runs steps of several clients at once; the race detector and the invariants judge.
func TestParallel(t *testing.T) {
	ns := ldlm.New(ldlm.Config{Shards: 4, Seed: 3})
	var wg sync.WaitGroup
	for c := range ldlm.ClientID(4) {
		wg.Go(func() {
			w := newWorld(rand.New(rand.NewPCG(uint64(c), 3)), 40)
			var fx ldlm.Effects
			var mine []ldlm.Handle
			for range 3000 {
				fx.Reset()
				r := w.request()
				r.Client = c + 1
				if reply := ns.Enqueue(0, r, &fx); reply.Handle != 0 {
					mine = append(mine, reply.Handle)
				}
				if len(mine) > 20 {
					ns.Cancel(0, c+1, mine[:10], &fx)
					mine = append(mine[:0], mine[10:]...)
				}
			}
		})
	}
	wg.Wait()
	if err := ns.Verify(); err != nil {
		t.Fatal(err)
	}
}

// TestHostile holds that no request of a peer breaks anything.
func TestHostile(t *testing.T) {
	ns := ldlm.New(ldlm.Config{Shards: 1})
	var fx ldlm.Effects
	inode, object := ldlm.InodeRes(fid.Root), ldlm.ObjectRes(fid.ObjectID{ID: 1})
	for _, r := range []ldlm.Request{
		{}, {Res: inode, Mode: 3, Bits: 1}, {Res: inode, Mode: ldlm.COS, Bits: 1}, {Res: inode, Mode: 512, Bits: 1},
		{Res: inode, Mode: ldlm.PR}, {Res: inode, Mode: ldlm.PR, Bits: 128}, {Res: object, Mode: ldlm.PR},
		{Res: object, Mode: ldlm.PW, Extent: extent.Extent{Start: 9, End: 9}}, {Res: object, Mode: ldlm.GROUP},
		{Res: ldlm.FlockRes(fid.Root), Mode: ldlm.PR, Bits: 1}, {Res: ldlm.ResID{Type: 9}, Mode: ldlm.PR},
		{Res: inode, Mode: ldlm.PR, Bits: 1, Flags: ldlm.Glimpse},
		{Res: inode, Mode: ldlm.PR, Bits: 1, Flags: ldlm.Own, Client: 1, Cause: 1}, {Res: inode, Mode: ldlm.PR, Bits: 1, Flags: ldlm.Own},
		{Res: object, Mode: ldlm.GROUP, GID: 1, Flags: ldlm.Own, Cause: 1},
	} {
		if reply := ns.Enqueue(0, &r, &fx); reply.Outcome != ldlm.Denied || reply.Status != status.Invalid {
			t.Errorf("%+v: %+v", r, reply)
		}
	}
	for h := ldlm.Handle(1); h != 0; h <<= 1 {
		if ns.Cancel(0, 1, []ldlm.Handle{h}, &fx) != 0 || ns.Prolong(1, h, 1) {
			t.Errorf("handle %v", h)
		}
		if reply := ns.Convert(0, &ldlm.Conversion{Client: 1, Handle: h}, &fx); reply.Status != status.BadHandle {
			t.Errorf("handle %v: %+v", h, reply)
		}
	}
	if s := ns.Stats(); s.Locks != 0 || s.Resources != 0 {
		t.Errorf("left over: %+v", s)
	}
}
