package ldlm_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
)

const mib = 1 << 20

func enqueueExtent(ns *ldlm.Namespace, c ldlm.ClientID, m ldlm.Mode, start, end uint64, f ldlm.Flags) ldlm.Reply {
	var fx ldlm.Effects
	return ns.Enqueue(0, &ldlm.Request{Res: ldlm.ObjectRes(fid.ObjectID{ID: 1}), Mode: m, Client: c,
		Extent: extent.Extent{Start: start, End: end}, Flags: f}, &fx)
}

// TestGrowManyConflicts holds rule 2: with more than 32 conflicting granted locks a write lock gets 32 MiB at most.
func TestGrowManyConflicts(t *testing.T) {
	for _, c := range []struct {
		name string
		held int
		mode ldlm.Mode
		end  uint64
	}{
		{"32 locks", 32, ldlm.PW, extent.EOF},
		{"33 locks", 33, ldlm.PW, 1024*mib + 32*mib},
		{"33 locks, read", 33, ldlm.PR, extent.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := ldlm.New(ldlm.Config{})
			for i := range uint64(c.held) {
				if r := enqueueExtent(ns, 1, ldlm.PW, i*mib, (i+1)*mib, ldlm.NoExpansion); r.Outcome != ldlm.Granted {
					t.Fatal(r)
				}
			}
			r := enqueueExtent(ns, 2, c.mode, 1024*mib, 1025*mib, 0)
			if want := (extent.Extent{Start: 1024 * mib, End: c.end}); r.Desc.Extent != want {
				t.Fatalf("%v, want %v", r.Desc.Extent, want)
			}
			// A request longer than 32 MiB is not cut.
			if r := enqueueExtent(ns, 3, ldlm.PW, 2048*mib, 2148*mib, 0); c.mode == ldlm.PW && c.held == 33 &&
				r.Desc.Extent != (extent.Extent{Start: 2048 * mib, End: 2148 * mib}) {
				t.Fatal(r.Desc.Extent)
			}
		})
	}
}

// TestGrowManyWaiters holds rule 3: more than 4 incompatible waiting locks forbid growth downwards.
func TestGrowManyWaiters(t *testing.T) {
	for waiters, start := range map[int]uint64{4: 3 * mib, 5: 512 * mib} {
		ns := ldlm.New(ldlm.Config{})
		// Two readers: one is waited for, the other one's bytes are free.
		enqueueExtent(ns, 1, ldlm.PR, mib, 3*mib, ldlm.NoExpansion)
		for range waiters {
			enqueueExtent(ns, 2, ldlm.PW, 2*mib, 3*mib, ldlm.NoExpansion)
		}
		r := enqueueExtent(ns, 3, ldlm.PR, 512*mib, 513*mib, 0)
		if want := (extent.Extent{Start: start, End: extent.EOF}); r.Desc.Extent != want {
			t.Errorf("%d waiting: %v, want %v", waiters, r.Desc.Extent, want)
		}
	}
}

// TestGrowNeverConflicts: whatever is held and waiting, a granted extent contains its request, overlaps no conflicting
// granted lock and no waiting lock's range that the request does not overlap itself.
func TestGrowNeverConflicts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := ldlm.New(ldlm.Config{Shards: 1})
		var fx ldlm.Effects
		res := ldlm.ObjectRes(fid.ObjectID{ID: 1})
		var held, asked []ldlm.LockInfo
		n := rapid.IntRange(1, 60).Draw(t, "n")
		for range n {
			r := &ldlm.Request{Res: res, Client: ldlm.ClientID(rapid.IntRange(1, 5).Draw(t, "client")),
				Mode:  rapid.SampledFrom([]ldlm.Mode{ldlm.EX, ldlm.PW, ldlm.PR, ldlm.CW, ldlm.CR}).Draw(t, "mode"),
				Flags: rapid.SampledFrom([]ldlm.Flags{0, 0, ldlm.NoExpansion}).Draw(t, "flags")}
			r.Extent.Start = rapid.Uint64Range(0, 400).Draw(t, "start") * 512
			r.Extent.End = r.Extent.Start + rapid.Uint64Range(1, 40).Draw(t, "len")*512
			fx.Reset()
			reply := ns.Enqueue(0, r, &fx)
			if reply.Outcome == ldlm.Granted {
				got := reply.Desc.Extent
				if !got.Contains(r.Extent) || r.Flags&ldlm.NoExpansion != 0 && got != r.Extent {
					t.Fatalf("asked %v, got %v", r.Extent, got)
				}
				for _, h := range held {
					if !ldlm.Compatible(h.Desc.Mode, r.Mode) && h.Desc.Extent.Overlaps(got) {
						t.Fatalf("%v %v granted over %v %v", r.Mode, got, h.Desc.Mode, h.Desc.Extent)
					}
				}
				for _, w := range asked {
					if !ldlm.Compatible(w.Desc.Mode, r.Mode) && w.Asked.Overlaps(got) && !w.Asked.Overlaps(r.Extent) {
						t.Fatalf("%v %v grew over the waiting %v %v", r.Mode, got, w.Desc.Mode, w.Asked)
					}
				}
			}
			held, asked = held[:0], asked[:0]
			for c := range ldlm.ClientID(6) {
				for _, l := range ns.Locks(c, nil) {
					if l.Granted {
						held = append(held, l)
					} else {
						asked = append(asked, l)
					}
				}
			}
			if err := ns.Verify(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
