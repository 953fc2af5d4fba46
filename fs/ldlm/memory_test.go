package ldlm_test

import (
	"runtime"
	"testing"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
)

// heap returns the live heap in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMemoryPerLock holds that a granted lock takes less than 1 KiB on a server, whatever the resources: 10^5 locks, and
// with STRAKE_SOAK 10^6.
func TestMemoryPerLock(t *testing.T) {
	if raceOn {
		t.Skip("the race detector changes sizes")
	}
	n := uint64(100_000)
	if soak() {
		n = 1_000_000
	}
	var fx ldlm.Effects
	for _, c := range []struct {
		name string
		req  func(i uint64) ldlm.Request
	}{
		{"one inode each", func(i uint64) ldlm.Request {
			return ldlm.Request{Res: ldlm.InodeRes(fid.FromIno(i + 2)), Mode: ldlm.PR, Bits: ldlm.Lookup | ldlm.Update}
		}},
		{"one object each", func(i uint64) ldlm.Request {
			return ldlm.Request{Res: ldlm.ObjectRes(fid.ObjectID{ID: i}), Mode: ldlm.PW, Extent: extent.Extent{End: 4096}}
		}},
		{"one inode for all", func(uint64) ldlm.Request {
			return ldlm.Request{Res: ldlm.InodeRes(fid.Root), Mode: ldlm.PR, Bits: ldlm.Lookup | ldlm.Update}
		}},
		{"one object for all", func(i uint64) ldlm.Request {
			return ldlm.Request{Res: ldlm.ObjectRes(fid.ObjectID{ID: 1}), Mode: ldlm.PW, Flags: ldlm.NoExpansion,
				Extent: extent.Extent{Start: i * 4096, End: (i + 1) * 4096}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := heap()
			ns := ldlm.New(ldlm.Config{Seed: 99})
			for i := range n {
				r := c.req(i)
				r.Client = ldlm.ClientID(1 + i%50)
				if reply := ns.Enqueue(0, &r, &fx); reply.Outcome != ldlm.Granted {
					t.Fatal(reply)
				}
			}
			got := float64(heap()-before) / float64(n)
			s := ns.Stats()
			said := float64(s.LockBytes+s.Table.Bytes) / float64(n)
			t.Logf("%d locks: %.0f bytes a lock (heap), %.0f by its own count; lock %d, resource %d bytes; theta %.3f, longest chain %d, empty %d of %d",
				n, got, said, ldlm.LockSize, ldlm.ResourceSize, s.Table.Theta, s.Table.MaxDepth, s.Table.Empty, s.Table.Buckets)
			if got >= 1024 {
				t.Errorf("%.0f bytes a lock, 1024 at most", got)
			}
			if said < 0.8*got || said > 1.2*got {
				t.Errorf("the namespace counts %.0f bytes a lock, the heap %.0f", said, got)
			}
			for client := range ldlm.ClientID(51) {
				ns.Evict(0, client, &fx)
			}
			left := heap() - before
			t.Logf("after the last lock: %d bytes", left)
			if left > int64(n)*40 { // slots, the free list, and the caller's effects
				t.Errorf("%d bytes are kept for no lock", left)
			}
			runtime.KeepAlive(ns)
		})
	}
}

// TestIdleNamespace bounds what a mount without locks costs.
func TestIdleNamespace(t *testing.T) {
	if raceOn {
		t.Skip("the race detector changes sizes")
	}
	before := heap()
	const n = 100
	all := make([]*ldlm.Namespace, n)
	for i := range all {
		all[i] = ldlm.New(ldlm.Config{Mirror: true})
	}
	each := (heap() - before) / n
	t.Logf("%d bytes an idle mirror", each)
	if each > 16<<10 {
		t.Errorf("%d bytes an idle mirror, 16 KiB at most", each)
	}
	runtime.KeepAlive(all)
}
