package ldlm_test

import (
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
)

// cycle is one steady piece of work.
type cycle struct {
	name string
	run  func()
}

// cycles are the hot paths in steady state, for the allocation test and the benchmarks.
func cycles() []cycle {
	object, inode := ldlm.ObjectRes(fid.ObjectID{ID: 1}), ldlm.InodeRes(fid.Root)
	return []cycle{
		{"enqueue-grant-cancel/extent", enqueueCancel(&ldlm.Request{Res: object, Mode: ldlm.PW, Client: 1,
			Extent: extent.Extent{End: 4096}})},
		{"enqueue-grant-cancel/ibits", enqueueCancel(&ldlm.Request{Res: inode, Mode: ldlm.PR, Client: 1,
			Bits: ldlm.Lookup, TryBits: ldlm.Layout | ldlm.Perm})},
		{"enqueue-grant-cancel/local", enqueueCancel(&ldlm.Request{Res: inode, Mode: ldlm.EX, Bits: ldlm.Update})},
		{"enqueue-grant-cancel/own", ownBeside(inode)},
		{"enqueue-grant-cancel/own-extent", ownBeside(object)},
		{"enqueue-block-cancel-grant", handOver(object)},
		{"match", matchUnpin(object)},
		{"glimpse", glimpse(object)},
		{"flock", flockCycle()},
	}
}

func enqueueCancel(r *ldlm.Request) func() {
	ns := ldlm.New(ldlm.Config{})
	var fx ldlm.Effects
	handles := make([]ldlm.Handle, 1)
	now := time.Duration(0)
	return func() {
		fx.Reset()
		now++
		handles[0] = ns.Enqueue(now, r, &fx).Handle
		if ns.Cancel(now, r.Client, handles, &fx) != 1 {
			panic("not granted")
		}
	}
}

// ownBeside takes an operation's lock beside one that its client holds.
func ownBeside(res ldlm.ResID) func() {
	ns := ldlm.New(ldlm.Config{})
	var fx ldlm.Effects
	handles := make([]ldlm.Handle, 1)
	req := ldlm.Request{Res: res, Mode: ldlm.EX, Bits: ldlm.Update, Extent: extent.Extent{End: extent.EOF}, Cause: 1, Flags: ldlm.Own}
	held := req
	held.Mode, held.Client, held.Cause, held.Flags = ldlm.PR, 1, 0, 0
	ns.Enqueue(0, &held, &fx)
	return func() {
		fx.Reset()
		r := ns.Enqueue(0, &req, &fx)
		handles[0] = r.Handle
		if r.Outcome != ldlm.Granted || ns.Cancel(0, ldlm.Local, handles, &fx) != 1 {
			panic("not granted")
		}
	}
}

// handOver lets two clients take one lock from each other.
func handOver(res ldlm.ResID) func() {
	ns := ldlm.New(ldlm.Config{})
	var fx ldlm.Effects
	handles := make([]ldlm.Handle, 1)
	req := &ldlm.Request{Res: res, Mode: ldlm.PW, Client: 1, Extent: extent.Extent{End: 4096}}
	last := ns.Enqueue(0, req, &fx).Handle
	return func() {
		fx.Reset()
		holder := req.Client
		req.Client = 3 - holder
		next := ns.Enqueue(0, req, &fx).Handle
		handles[0] = last
		ns.Cancel(0, holder, handles, &fx)
		if _, ok := ns.Told(req.Client, next); !ok || len(fx.List) != 2 {
			panic("not handed over")
		}
		last = next
	}
}

func settled(ns *ldlm.Namespace, r *ldlm.Request, d ldlm.Desc) {
	var fx ldlm.Effects
	h := ns.Prepare(r)
	ns.Settle(h, &ldlm.Answer{Remote: 1, Desc: d})
	ns.Unpin(0, h, &fx)
}

func matchUnpin(res ldlm.ResID) func() {
	ns := ldlm.New(ldlm.Config{Mirror: true})
	settled(ns, &ldlm.Request{Res: res, Mode: ldlm.PW, Extent: extent.Extent{End: 4096}},
		ldlm.Desc{Mode: ldlm.PW, Extent: extent.Extent{End: extent.EOF}})
	var fx ldlm.Effects
	want := &ldlm.Wanted{Res: res, Modes: ldlm.PW | ldlm.PR, Extent: extent.Extent{Start: 1 << 20, End: 1<<20 + 4096}}
	return func() {
		m, ok := ns.Match(want)
		if !ok {
			panic("no match")
		}
		ns.Unpin(0, m.Handle, &fx)
	}
}

// fakeLVB is a store whose object grows.
type fakeLVB struct{ size uint64 }

func (f *fakeLVB) Init(e *env.Env, _ ldlm.ResID, v *ldlm.LVB) error {
	e.Alloc(64)
	*v = ldlm.LVB{Size: f.size, Blocks: f.size / 512}
	return nil
}

func (f *fakeLVB) Update(e *env.Env, id ldlm.ResID, v *ldlm.LVB) error { return f.Init(e, id, v) }

func (f *fakeLVB) Fill(_ *env.Env, _ ldlm.ResID, v *ldlm.LVB, b []byte) []byte {
	return append(b, byte(v.Size), byte(v.Size>>8))
}

// glimpse is the server's path: the LVB, the request, the AST, the answer merged, the reply filled.
func glimpse(res ldlm.ResID) func() {
	ns := ldlm.New(ldlm.Config{LVB: &fakeLVB{size: 4096}})
	var fx ldlm.Effects
	ns.Enqueue(0, &ldlm.Request{Res: res, Mode: ldlm.PW, Client: 1, Extent: extent.Extent{End: 4096}}, &fx)
	e := env.New()
	req := &ldlm.Request{Res: res, Mode: ldlm.PR, Client: 2, Extent: extent.Extent{End: extent.EOF}, Flags: ldlm.Glimpse}
	answer := &ldlm.LVB{Size: 8192}
	return func() {
		e.Reset()
		fx.Reset()
		v, err := ns.GetLVB(e, res)
		req.KnownSize = v.Size
		if ns.Enqueue(0, req, &fx).Outcome != ldlm.Asking || err != nil {
			panic("nobody asked")
		}
		if err := ns.UpdateLVB(e, res, answer, true); err != nil {
			panic(err)
		}
		if b, err := ns.FillLVB(e, res, e.Alloc(64)[:0]); err != nil || len(b) != 2 {
			panic("not filled")
		}
	}
}

func flockCycle() func() {
	ns := ldlm.New(ldlm.Config{})
	var fx ldlm.Effects
	res := ldlm.FlockRes(fid.Root)
	owner := ldlm.FlockOwner{Client: 1, Owner: 1}
	return func() {
		fx.Reset()
		r := ldlm.FlockRequest{Res: res, Op: ldlm.FlockExclusive}
		r.Range.Owner, r.Range.Extent = owner, extent.Extent{Start: 10, End: 20}
		ns.Flock(0, &r, &fx)
		r.Op = ldlm.FlockUnlock
		ns.Flock(0, &r, &fx)
	}
}

// TestSteadyStateAllocs holds that the hot paths allocate nothing.
func TestSteadyStateAllocs(t *testing.T) {
	if raceOn {
		t.Skip("the race detector allocates")
	}
	for _, c := range cycles() {
		t.Run(c.name, func(t *testing.T) {
			for range 100 {
				c.run()
			}
			if n := testing.AllocsPerRun(1000, c.run); n != 0 {
				t.Errorf("%v allocations per run", n)
			}
		})
	}
}
