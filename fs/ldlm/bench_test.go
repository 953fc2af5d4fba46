package ldlm_test

import (
	"fmt"
	"testing"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
)

func BenchmarkSteady(b *testing.B) {
	for _, c := range cycles() {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.run()
			}
		})
	}
}

// BenchmarkSharedFile takes and gives back disjoint ranges of an object on which n others are held.
func BenchmarkSharedFile(b *testing.B) {
	for _, n := range []uint64{10, 1000, 100000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ns := ldlm.New(ldlm.Config{})
			for i := range n {
				enqueueExtent(ns, 1, ldlm.PW, 2*i*4096, (2*i+1)*4096, ldlm.NoExpansion)
			}
			var fx ldlm.Effects
			i := uint64(0)
			handles := make([]ldlm.Handle, 1)
			b.ReportAllocs()
			for b.Loop() {
				fx.Reset()
				i = (i + 7919) % n
				handles[0] = ns.Enqueue(0, &ldlm.Request{Res: ldlm.ObjectRes(fid.ObjectID{ID: 1}), Mode: ldlm.PW, Client: 2,
					Extent: extent.Extent{Start: (2*i + 1) * 4096, End: (2*i + 2) * 4096}}, &fx).Handle
				if ns.Cancel(0, 2, handles, &fx) != 1 {
					b.Fatal("not granted")
				}
			}
		})
	}
}

// BenchmarkQueue hands one lock down a queue of n writers: each cancel walks the queue.
func BenchmarkQueue(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ns := ldlm.New(ldlm.Config{})
			var fx ldlm.Effects
			var queue []ldlm.Handle
			req := &ldlm.Request{Res: ldlm.ObjectRes(fid.ObjectID{ID: 1}), Mode: ldlm.PW, Client: 1,
				Extent: extent.Extent{End: extent.EOF}}
			for range n + 1 {
				queue = append(queue, ns.Enqueue(0, req, &fx).Handle)
			}
			b.ReportAllocs()
			for b.Loop() {
				fx.Reset()
				ns.Cancel(0, 1, queue[:1], &fx)
				copy(queue, queue[1:])
				queue[n] = ns.Enqueue(0, req, &fx).Handle
			}
		})
	}
}

func BenchmarkParallel(b *testing.B) {
	ns := ldlm.New(ldlm.Config{})
	var next = make(chan uint32, 64)
	for i := range uint32(64) {
		next <- i + 1
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		me := <-next
		var fx ldlm.Effects
		handles := make([]ldlm.Handle, 1)
		for i := uint32(0); pb.Next(); i++ {
			fx.Reset()
			handles[0] = ns.Enqueue(0, &ldlm.Request{Res: ldlm.InodeRes(fid.FID{Seq: fid.Seq(me), OID: i%1000 + 1}),
				Mode: ldlm.PR, Bits: ldlm.Lookup, Client: ldlm.ClientID(me)}, &fx).Handle
			ns.Cancel(0, ldlm.ClientID(me), handles, &fx)
		}
	})
}
