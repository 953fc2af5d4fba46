package lockd_test

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/lockd"
)

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMemoryPerLock: locks that clients have enqueued cost a server less than 1 KiB each, all told, and the server says so:
// 20,000 of them, and with STRAKE_SOAK 10^6.
func TestMemoryPerLock(t *testing.T) {
	if raceOn {
		t.Skip("the race detector changes sizes")
	}
	n := 20_000
	if os.Getenv("STRAKE_SOAK") != "" {
		n = 1_000_000
	}
	reg := stats.NewRegistry()
	shared := lockd.NewShared(64 << 30)
	c := newCluster(t, lockd.Options{Shared: shared, Stats: reg})
	clients := [4]*client{c.client("a"), c.client("b"), c.client("c"), c.client("d")}
	var m wirepb.EnqueueRequest
	var reply wirepb.EnqueueReply
	ask := func(i int) {
		r := bits(uint32(i/2+1), ldlm.PR, ldlm.Lookup|ldlm.Update) // two clients for each inode
		m.Reset()
		reply.Reset()
		wire.PutEnqueue(&m, &r, ldlm.Handle(1<<40+i))
		if err := clients[i%len(clients)].imp.Do(context.Background(), &rpc.Request{Op: wire.OpEnqueue, Body: &m, Reply: &reply}); err != nil {
			t.Fatal(err)
		}
		if reply.Lock == 0 || reply.Waiting {
			t.Fatalf("lock %d: %v", i, &reply)
		}
	}
	for i := range 1000 {
		ask(i) // buffers of connections and workers
	}
	before := heap()
	for i := 1000; i < n; i++ {
		ask(i)
	}
	got := (heap() - before) / int64(n-1000)
	if held := c.locks.Namespace().LockCount(); held != int64(n) {
		t.Fatalf("%d locks, want %d", held, n)
	}
	said, err := strconv.ParseInt(get(t, reg, "ldlm.namespaces.test.bytes_per_lock"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d locks: %d bytes each by the heap, %d by the server's own count", n, got, said)
	if got >= 1024 || said >= 1024 {
		t.Error("1024 bytes at most")
	}
	if said < got*8/10 || said > got*12/10 {
		t.Errorf("the server counts %d bytes a lock, the heap %d", said, got)
	}
	if shared := c.locks.Namespace().Stats().Table; shared.Entries != n/2 {
		t.Errorf("%d resources, want %d", shared.Entries, n/2)
	}
}
