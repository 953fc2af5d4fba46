package rpc_test

import (
	"testing"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Both halves run in this process, so the figure is of the whole path: Do, framing, worker, reply.
func TestSteadyPathDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.start()
		i := c.connect(func(o *rpc.ImportOptions) { o.Bulk, o.Replay, o.ReplayMax = true, true, 4<<20 })
		reply := wirepb.XattrReply{}
		for name, r := range map[string]*rpc.Request{
			"4 KiB body": {Op: wire.OpGetxattr, Body: &wirepb.XattrRequest{Name: make([]byte, 4096)}, Reply: &reply},
			"4 KiB read": {Op: wire.OpRead, Body: &wirepb.ReadRequest{Length: 4096}, Into: make([]byte, 4096)},
			"change":     {Op: wire.OpSetattr, Body: &wirepb.SetattrRequest{Oid: 7}},
			"1 MiB read": {Op: wire.OpRead, Body: &wirepb.ReadRequest{Length: 1 << 20}, Into: make([]byte, 1<<20)},
		} {
			ctx := t.Context()
			run := func() {
				reply.Value = reply.Value[:0]
				if err := i.Do(ctx, r); err != nil {
					t.Fatal(err)
				}
				c.target.committed.Store(max(uint64(r.Transno), 1000) - 1000) // four chunks of the log are in use
			}
			warm := 50
			if r.Op.Modifies() {
				warm = 3000 // the log's chunks too
			}
			for range warm { // buffers, histograms and workers come into being
				run()
			}
			// Timers and the runtime's own work may add a fraction.
			if n := testing.AllocsPerRun(200, run); n >= 1 {
				t.Errorf("%s: %v allocations", name, n)
			}
		}
	})
}
