package ldlm_test

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
)

// TestParallelMirror matches, trims and calls back one mirror from several goroutines.
func TestParallelMirror(t *testing.T) {
	ns := ldlm.New(ldlm.Config{Mirror: true, Shards: 2})
	var wg sync.WaitGroup
	drop := func(list []ldlm.Cancel) {
		for _, c := range list {
			ns.Drop(c.Handle)
		}
	}
	for g := range uint64(4) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(g, 1))
			var fx ldlm.Effects
			for range 3000 {
				fx.Reset()
				res := ldlm.InodeRes(fid.FromIno(uint64(2 + r.IntN(20))))
				m, ok := ns.Match(&ldlm.Wanted{Res: res, Modes: ldlm.PR, Bits: ldlm.Lookup})
				if !ok {
					m.Handle = ns.Prepare(&ldlm.Request{Res: res, Mode: ldlm.PR, Bits: ldlm.Full})
					ns.Settle(m.Handle, &ldlm.Answer{Remote: 1, Desc: ldlm.Desc{Mode: ldlm.PR, Bits: ldlm.Full}})
				}
				if r.IntN(4) == 0 {
					ns.CallBack(0, m.Handle, &ldlm.Recall{Bits: ldlm.Bits(r.IntN(128))}, &fx)
				}
				ns.Unpin(0, m.Handle, &fx)
				for _, e := range fx.List {
					if e.Kind == ldlm.EffectConvert && r.IntN(2) == 0 {
						ns.Converted(0, e.Handle, ldlm.Desc{Mode: ldlm.PR, Bits: e.Desc.Bits &^ e.Cancel}, &fx)
					} else {
						ns.Drop(e.Handle)
					}
				}
				if r.IntN(50) == 0 {
					drop(ns.Trim(0, &ldlm.LRU{Max: 3}, make([]ldlm.Cancel, 0, 4)))
				}
			}
		})
	}
	wg.Wait()
	if err := ns.Verify(); err != nil {
		t.Fatal(err)
	}
	for ns.UnusedCount() > 0 {
		drop(ns.TrimAll(make([]ldlm.Cancel, 0, 8)))
	}
	for _, l := range ns.Locks(ldlm.Local, nil) { // called back a second time after its conversion: its effect was the last
		if l.Pins != 0 {
			t.Errorf("still pinned: %+v", l)
		}
	}
}

// TestParallelFlock takes and waits for ranges of several files from several goroutines.
func TestParallelFlock(t *testing.T) {
	ns := ldlm.New(ldlm.Config{Shards: 4})
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(g, 2))
			var fx ldlm.Effects
			for range 2000 {
				fx.Reset()
				req := ldlm.FlockRequest{Res: ldlm.FlockRes(fid.FID{Seq: fid.SeqFirst, OID: uint32(1 + r.IntN(6))}),
					Op: ldlm.FlockOp(r.IntN(3)), Wait: r.IntN(2) == 0}
				req.Range.Owner = ldlm.FlockOwner{Client: ldlm.ClientID(g + 1), Owner: uint64(r.IntN(3))}
				req.Range.Extent = extent.Extent{Start: uint64(r.IntN(5)), End: uint64(6 + r.IntN(5))}
				if reply := ns.Flock(0, &req, &fx); reply.Outcome == ldlm.Waiting && r.IntN(2) == 0 {
					ns.Cancel(0, ldlm.ClientID(g+1), []ldlm.Handle{reply.Handle}, &fx)
				}
			}
		})
	}
	wg.Wait()
	if err := ns.Verify(); err != nil {
		t.Fatal(err)
	}
	var fx ldlm.Effects
	for c := range ldlm.ClientID(5) {
		ns.Evict(0, c, &fx)
	}
	if s := ns.Stats(); s.Locks != 0 || s.Resources != 0 || ns.WaitNodes() != 0 {
		t.Fatalf("left over: %d locks, %d resources, %d nodes", s.Locks, s.Resources, ns.WaitNodes())
	}
}
