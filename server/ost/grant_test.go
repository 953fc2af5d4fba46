package ost

import (
	"errors"
	"testing"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
	"pgregory.net/rapid"
)

// roomy is a device that only tells its space.
type roomy struct {
	store.Device
	avail uint64
}

func (d *roomy) Statfs() (store.Statfs, error) { return store.Statfs{Avail: d.avail}, nil }

// TestGrantedWritesAlwaysFit cites the invariant that the sum of grants stays below the free space: whatever clients do,
// a write against grant finds its space, and the sums agree.
func TestGrantedWritesAlwaysFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &roomy{avail: 1 << 20}
		var s space
		s.init(d)
		exports := []*grants{{}, {}, {}}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			g := exports[rapid.IntRange(0, 2).Draw(t, "export")]
			s.figure.Store(nil) // As old as it may be: taken anew.
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				s.topUp(g, rapid.Uint64Range(0, 1<<21).Draw(t, "want"), 1<<19)
			case 1:
				n := rapid.IntRange(1, 1<<17).Draw(t, "size")
				used := min(int64(n), g.granted)
				err := s.take(g, &wirepb.WriteRequest{GrantUsed: uint64(used)}, n)
				if err != nil && used == int64(n) {
					t.Fatalf("a write of %d bytes against grant: %v", n, err)
				}
				if err != nil && !errors.Is(err, status.NoSpace) {
					t.Fatal(err)
				}
				if err == nil {
					if uint64(n) > d.avail {
						t.Fatalf("%d bytes let in, %d free", n, d.avail)
					}
					d.avail -= uint64(n)
				}
			case 2:
				s.drop(g)
			case 3:
				// A peer may say anything.
				_ = s.take(g, &wirepb.WriteRequest{GrantUsed: ^uint64(0), Dirty: ^uint64(0)}, 0)
			}
			var sum int64
			for _, g := range exports {
				if g.granted < 0 {
					t.Fatalf("a grant of %d", g.granted)
				}
				sum += g.granted
			}
			if sum != s.granted || uint64(sum) > d.avail {
				t.Fatalf("grants sum to %d, %d noted, %d free", sum, s.granted, d.avail)
			}
		}
	})
}
