package osc

import (
	"fmt"

	"github.com/strakefs/strake/fs/stats"
)

// figures counts what an OSC did.
type figures struct {
	rpcs, readBytes, writeBytes *stats.Counter
	inFlight                    *stats.Gauge
	looseRead, looseWrite       *stats.Counter
	sizes                       rpcSizes
}

func (c *OSC) path(name string) string { return "osc." + stats.Element(c.o.Name) + "-osc." + name }

// register enters the OSC's figures under the field's names; without a registry they are counted all the same.
func (c *OSC) register(r *stats.Registry) {
	if r == nil {
		c.figs.rpcs, c.figs.readBytes, c.figs.writeBytes = new(stats.Counter), new(stats.Counter), new(stats.Counter)
		c.figs.looseRead, c.figs.looseWrite, c.figs.inFlight = new(stats.Counter), new(stats.Counter), new(stats.Gauge)
		return
	}
	f := &c.figs
	f.rpcs = r.Counter(c.path("rpcs"), "Requests sent to the OST.")
	f.readBytes = r.Counter(c.path("read_bytes"), "Bytes asked of the OST by reads.")
	f.writeBytes = r.Counter(c.path("write_bytes"), "Bytes written to the OST.")
	f.looseRead = r.Counter(c.path("lockless_read_bytes"), "Bytes read under no lock of this client.")
	f.looseWrite = r.Counter(c.path("lockless_write_bytes"), "Bytes written under no lock of this client.")
	f.inFlight = r.Gauge(c.path("rpcs_in_flight"), "Requests of the OST that are not answered yet.")
	c.registerParams(r)
	r.Text(c.path("rpc_stats"), "READs and WRITEs by pages and by how many were in flight.", c.rpcStats)
	r.Text(c.path("unstable_stats"), "Answered data that is kept until it is on the OST's disk, in pages of 4 KiB.", c.unstableStats)
	r.Func(c.path("cur_dirty_bytes"), "Bytes of dirty and unanswered data.", func() int64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return int64(c.dirty + c.pending)
	})
	r.Func(c.path("cur_grant_bytes"), "Bytes promised by the OST and not used.", func() int64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return int64(c.grant.avail)
	})
	r.Func(c.path("cur_cache_bytes"), "Bytes of memory that hold dirty and unanswered data.", func() int64 {
		c.cache.mu.Lock()
		defer c.cache.mu.Unlock()
		return c.share.used
	})
}

// unstableStats prints what is kept as Lustre does.
func (c *OSC) unstableStats() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.kept.bytes
	return fmt.Sprintf("unstable_pages: %20d\nunstable_mb: %14d", (n+pageBytes-1)/pageBytes, n/mib)
}

func (c *OSC) unregister(r *stats.Registry) {
	if r != nil {
		r.Unregister("osc." + stats.Element(c.o.Name) + "-osc")
	}
}
