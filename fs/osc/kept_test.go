package osc

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// numbering is an OST that numbers changes and commits when told, or when it is asked for a commit and may.
type numbering struct {
	mu        sync.Mutex
	instance  uint64 // guarded by mu
	next      uint64 // guarded by mu
	committed uint64 // guarded by mu
	syncs     int    // guarded by mu: asked to commit
	writes    int    // guarded by mu
	mayCommit bool   // guarded by mu: commits when asked
	stale     bool   // guarded by mu: the next answer is of the instance before
}

func (n *numbering) Do(_ context.Context, r *rpc.Request) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	r.Transno, r.Instance = 0, n.instance
	switch r.Op {
	case wire.OpWrite, wire.OpPunch:
		n.next++
		n.writes++
		r.Transno = wire.Transno(n.next)
	case wire.OpObjectSync:
		n.syncs++
		if n.mayCommit {
			n.committed = n.next
		}
	}
	if n.stale {
		n.stale = false
		r.Instance--
	}
	r.LastCommitted = wire.Transno(n.committed)
	return nil
}

func (n *numbering) figures() (writes, syncs int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.writes, n.syncs
}

func (c *OSC) keptNow() (count int, bytes, spilled int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept.count, c.kept.bytes, c.kept.spilled
}

func keeping(t *testing.T, n *numbering, cacheBytes int64) (*OSC, *Object, *holder) {
	c := New(Options{Import: n, Cache: NewCache(cacheBytes), RPCBytes: 64 << 10})
	c.Connected(&wirepb.ConnectReply{Grant: 1 << 30, Instance: n.instance})
	h, o := new(holder), new(Object)
	o.Init(c, ObjectConfig{ID: fid.ObjectID{ID: 1}, File: fid.FID{Seq: fid.SeqFirst, OID: 1}, Holder: h})
	t.Cleanup(func() { c.Close(bg) })
	return c, o, h
}

func through(t *testing.T, o *Object, off uint64, n int) {
	t.Helper()
	if k, err := o.WriteThrough(bg, make([]byte, n), off, attr.Time{}, 0); k != n || err != nil {
		t.Fatalf("wrote %d of %d: %v", k, n, err)
	}
}

// TestAnsweredBytesAreKeptUntilCommitted: the buffers of answered writes stay until last_committed covers them, half of the memory
// asks for a commit, and a writer waits when all of it, and the memory of dirty data, is full.
func TestAnsweredBytesAreKeptUntilCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &numbering{instance: 1, next: 100, committed: 100}
		c, o, _ := keeping(t, n, 1<<20)
		through(t, o, 0, 64<<10)
		if err := o.Punch(extent.Extent{Start: 1 << 20, End: extent.EOF}, attr.Time{}, 0); err != nil {
			t.Fatal(err)
		}
		if count, bytes, _ := c.keptNow(); count != 2 || bytes != 64<<10 || c.cache.Used() != 0 || c.cache.Kept() != bytes {
			t.Fatalf("%d changes and %d bytes are kept, %d bytes in use, %d kept", count, bytes, c.cache.Used(), c.cache.Kept())
		}
		if want := "unstable_pages:                   16\nunstable_mb:              0"; c.unstableStats() != want {
			t.Errorf("unstable_stats is %q, want %q", c.unstableStats(), want)
		}
		n.mu.Lock()
		n.committed = 101
		n.mu.Unlock()
		through(t, o, 64<<10, 64<<10)
		if count, _, _ := c.keptNow(); count != 2 {
			t.Fatalf("%d changes are kept after one of three was committed", count)
		}
		for i := range 31 { // 2 MiB in all: both memories are full
			through(t, o, uint64(i)<<16, 64<<10)
		}
		synctest.Wait()
		if _, syncs := n.figures(); syncs == 0 {
			t.Error("the OST was not asked to commit")
		}
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			through(t, o, 0, 64<<10)
		}()
		synctest.Wait()
		select {
		case <-wrote:
			_, bytes, spilled := c.keptNow()
			t.Fatalf("a write did not wait with %d bytes kept and %d in use", bytes, spilled)
		default:
		}
		n.mu.Lock()
		n.mayCommit = true
		n.mu.Unlock()
		<-wrote
		synctest.Wait()
		if err := c.Close(bg); err != nil {
			t.Fatal(err)
		}
		if c.cache.used != 0 || c.cache.kept != 0 || c.cache.common != 0 || c.cache.keptCo != 0 {
			t.Errorf("in the end %d bytes are in use, %d kept", c.cache.used, c.cache.kept)
		}
	})
}

// TestIdleClientHearsOfTheCommit: without other requests the log asks for news.
func TestIdleClientHearsOfTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &numbering{instance: 1, next: 100, committed: 100}
		c, o, _ := keeping(t, n, 1<<20)
		through(t, o, 0, 64<<10)
		n.mu.Lock()
		n.committed = 101
		n.mu.Unlock()
		for ch := c.cache.waiter(); ; ch = c.cache.waiter() {
			if count, _, _ := c.keptNow(); count == 0 {
				break
			}
			<-ch
		}
		c.Close(bg)
	})
}

// TestAnswerOfAnEarlierStartIsNotHeard: the replay to the start that runs may have begun without it.
func TestAnswerOfAnEarlierStartIsNotHeard(t *testing.T) {
	n := &numbering{instance: 7, next: 100, committed: 100, stale: true}
	c, o, _ := keeping(t, n, 1<<20)
	through(t, o, 0, 4096)
	n.mu.Lock()
	n.stale = true
	n.mu.Unlock()
	if err := o.Punch(extent.Extent{Start: 0, End: extent.EOF}, attr.Time{}, 0); err != nil {
		t.Fatal(err)
	}
	writes, _ := n.figures()
	if count, _, _ := c.keptNow(); writes != 4 || count != 2 {
		t.Fatalf("%d requests were sent and %d changes are kept, want 4 and 2", writes, count)
	}
}

// TestWhatIsKeptAfterAReconnect goes through the answers to a connect.
func TestWhatIsKeptAfterAReconnect(t *testing.T) {
	type reply = wirepb.ConnectReply
	for _, x := range []struct {
		name    string
		replies []*reply
		kept    int
		bytes   int64
		told    int
	}{
		{"same start, export there", []*reply{{Instance: 1, Recovered: true, LastCommitted: 100}}, 3, 3 << 12, 0},
		{"later start, all on disk", []*reply{{Instance: 2, Recovered: true, LastCommitted: 103}}, 0, 0, 0},
		{"later start that replays", []*reply{{Instance: 2, Recovered: true, Recovering: true, LastCommitted: 101}}, 2, 2 << 12, 0},
		{"two starts that replay", []*reply{{Instance: 2, Recovered: true, Recovering: true, LastCommitted: 101},
			{Instance: 3, Recovered: true, Recovering: true, LastCommitted: 102}}, 1, 1 << 12, 0},
		{"replayed, and the window's end not heard", []*reply{{Instance: 2, Recovered: true, Recovering: true, LastCommitted: 101},
			{Instance: 2, Recovered: true, LastCommitted: 101}}, 0, 0, 0},
		{"later start without a window", []*reply{{Instance: 2, Recovered: true, LastCommitted: 102}}, 0, 0, 1},
		{"evicted by a later start", []*reply{{Instance: 2, LastCommitted: 101}}, 0, 0, 1},
		{"evicted in the window", []*reply{{Instance: 2, Recovered: true, Recovering: true, LastCommitted: 101},
			{Instance: 2, LastCommitted: 101}}, 0, 0, 1},
		{"evicted by the same start", []*reply{{Instance: 1, LastCommitted: 100}}, 3, 0, 0},
		{"evicted, then all on disk", []*reply{{Instance: 1, LastCommitted: 100}, {Instance: 1, Recovered: true, LastCommitted: 103}}, 0, 0, 0},
		{"evicted, then lost", []*reply{{Instance: 1, LastCommitted: 100},
			{Instance: 2, Recovered: true, Recovering: true, LastCommitted: 102}}, 0, 0, 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			n := &numbering{instance: 1, next: 100, committed: 100, mayCommit: true}
			c, o, h := keeping(t, n, 1<<20)
			for i := range 3 {
				through(t, o, uint64(i)<<12, 4096)
			}
			for _, r := range x.replies {
				c.Connected(r)
			}
			count, bytes, _ := c.keptNow()
			if count != x.kept || bytes != x.bytes || c.cache.Kept() != bytes {
				t.Errorf("%d changes with %d bytes are kept, want %d with %d", count, bytes, x.kept, x.bytes)
			}
			if len(h.errs) != x.told || x.told > 0 && (status.Of(h.errs[0]) != status.IO || !strings.Contains(h.errs[0].Error(), "lost")) {
				t.Errorf("the file was told %v, want %d errors", h.errs, x.told)
			}
		})
	}
}
