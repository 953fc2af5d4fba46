package osc

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/strakefs/strake/fs/stats"
)

const (
	mib       = 1 << 20
	pageBytes = 4096
)

// registerParams enters the settable parameters under Lustre's names. A change holds for what is written from then on.
func (c *OSC) registerParams(r *stats.Registry) {
	for _, p := range []struct {
		name, help  string
		least, most int64
		get         func() int64
		set         func(int64)
	}{
		{"max_dirty_mb", "Limit of dirty and unanswered data in MiB.", 1, 2047,
			func() int64 { return c.maxDirty.Load() / mib }, func(n int64) { c.maxDirty.Store(n * mib); c.cache.announce() }},
		{"max_rpcs_in_flight", "WRITEs in flight; the import has slots for no more than it began with.", 1, int64(c.o.MaxInFlight),
			c.maxInFlight.Load, func(n int64) { c.maxInFlight.Store(n); c.loose.limit(int(n)) }},
		{"max_pages_per_rpc", "Pages of 4 KiB in a full WRITE.", minRPCBytes / pageBytes, int64(c.block / pageBytes),
			func() int64 { return c.maxRPC.Load() / pageBytes }, func(n int64) { c.maxRPC.Store(n * pageBytes) }},
	} {
		r.Param(c.path(p.name), p.help, func() string { return strconv.FormatInt(p.get(), 10) }, func(text string) error {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil || n < p.least || n > p.most {
				return fmt.Errorf("osc: %s is a number from %d to %d, not %q", p.name, p.least, p.most, text)
			}
			p.set(n)
			return nil
		})
	}
}
