package client

import (
	"fmt"

	"github.com/puzpuzpuz/xsync/v4"
	"github.com/strakefs/strake/fs/stats"
)

// nameBytes is what an entry of the table of names costs, the name itself counted with its node.
const nameBytes = 24

// register enters the client's tables and figures into a registry.
func (c *Client) register(reg *stats.Registry, at string) {
	reg.Func(at+"inodes", "files with a handle, dirty data or an unanswered report", func() int64 { return int64(c.inodes.len()) })
	reg.Func(at+"names", "names remembered to answer lookups of absent ones", func() int64 { return int64(c.names.len()) })
	reg.Table(at+"objects", "Inodes known under locks of the MDT.", func(s *stats.TableStats) {
		t := &c.nodes
		fill(s, t.inos)
		s.Hits, s.Misses, s.Evictions, s.Created = t.hits.Load(), t.misses.Load(), t.purged.Load(), t.created.Load()
		s.Bytes = s.Entries * objectBytes
		if b := c.opts.Budget; b != nil {
			s.LimitBytes = b.share()
			s.Rule = fmt.Sprintf("max_cached_objects_mb: 1/%d of the memory, %d MiB at most, shared by the mounts of the process",
				budgetPart, budgetMost>>20)
		}
	})
	reg.Table(at+"entries", "Names that lead to inodes known under locks.", func(s *stats.TableStats) {
		fill(s, c.nodes.names)
		s.Bytes = s.Entries * nameBytes
		s.Rule = "names of the inodes in the table objects"
	})
	reg.Table(at+"pages", "Pages of folders, as READDIR answered them, under the folders' locks.", func(s *stats.TableStats) {
		p := &c.pages
		fill(s, p.byKey)
		s.Hits, s.Misses, s.Evictions, s.Created = p.hits.Load(), p.misses.Load(), p.evicted.Load(), p.created.Load()
		s.Bytes, s.LimitBytes = p.size(), p.limit.Load()
		s.Rule = fmt.Sprintf("1/%d of the mount's share of max_cached_objects_mb", pagesPart)
	})
}

// fill takes over what a map says of itself.
func fill[V any](s *stats.TableStats, m *xsync.Map[uint64, V]) {
	st := m.Stats()
	s.Buckets, s.Entries, s.Empty = int64(st.RootBuckets), int64(st.Size), int64(st.EmptyBuckets)
	s.Longest, s.Grows, s.Shrinks = int64(st.MaxEntries), st.TotalGrowths, st.TotalShrinks
}
