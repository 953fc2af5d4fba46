package osc

import (
	"fmt"
	"math/bits"
	"strings"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
)

// Columns of rpc_stats.
const (
	reads = iota
	writes
	kinds
)

const (
	sizeRows   = 11 // 1 to 1,024 pages, in powers of two
	flightRows = 32 // 1 to 32 in flight; the last row counts more too
)

// rpcSizes counts READs and WRITEs. Its zero value is empty.
type rpcSizes struct {
	now    [kinds]atomic.Int64
	pages  [kinds][sizeRows]atomic.Int64
	flight [kinds][flightRows]atomic.Int64
}

// begin counts a request, and returns its kind for end.
func (s *rpcSizes) begin(r *rpc.Request) int {
	kind, n := reads, len(r.Into)
	if r.Op == wire.OpWrite {
		kind = writes
		for _, b := range r.Bulk {
			n += len(b)
		}
	}
	pages := max(1, (n+pageBytes-1)/pageBytes)
	s.pages[kind][min(sizeRows-1, bits.Len(uint(pages-1)))].Add(1)
	s.flight[kind][min(flightRows, s.now[kind].Add(1))-1].Add(1)
	return kind
}

func (s *rpcSizes) end(kind int) { s.now[kind].Add(-1) }

// rpcStats prints the counts as Lustre does.
func (c *OSC) rpcStats() string {
	s := &c.figs.sizes
	c.mu.Lock()
	pending := (c.dirty + c.pending + pageBytes - 1) / pageBytes
	c.mu.Unlock()
	var b strings.Builder
	now := time.Now()
	fmt.Fprintf(&b, "snapshot_time:         %d.%09d secs.nsecs\n", now.Unix(), now.Nanosecond())
	fmt.Fprintf(&b, "read RPCs in flight:  %d\nwrite RPCs in flight: %d\npending write pages:  %d\n", s.now[reads].Load(), s.now[writes].Load(), pending)
	table(&b, "pages per rpc", s.pages[reads][:], s.pages[writes][:], func(i int) int { return 1 << i })
	table(&b, "rpcs in flight", s.flight[reads][:], s.flight[writes][:], func(i int) int { return i + 1 })
	return b.String()
}

// table prints one histogram: for reads and writes the count, its share and the share up to there in percent.
func table(b *strings.Builder, name string, r, w []atomic.Int64, label func(int) int) {
	fmt.Fprintf(b, "\n\t\t\tread\t\t\twrite\n%-21s rpcs   %% cum %% |       rpcs   %% cum %%\n", name)
	var sum, upTo [kinds]int64
	last := 0
	for i := range r {
		sum[reads], sum[writes] = sum[reads]+r[i].Load(), sum[writes]+w[i].Load()
		if r[i].Load()+w[i].Load() > 0 {
			last = i
		}
	}
	share := func(n, of int64) int64 { return n * 100 / max(1, of) }
	for i := 0; i <= last; i++ {
		n := [kinds]int64{r[i].Load(), w[i].Load()}
		upTo[reads], upTo[writes] = upTo[reads]+n[reads], upTo[writes]+n[writes]
		fmt.Fprintf(b, "%d:\t\t%10d %3d %3d   | %10d %3d %3d\n", label(i), n[reads], share(n[reads], sum[reads]), share(upTo[reads], sum[reads]),
			n[writes], share(n[writes], sum[writes]), share(upTo[writes], sum[writes]))
	}
}
