package mdt

import (
	"testing"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/stats"
)

// TestOpenTableFigures: the table of open inodes among the tables of the process.
func TestOpenTableFigures(t *testing.T) {
	r := stats.NewRegistry()
	c := newCluster(t, func(c *cluster) { c.stats = r })
	x := exportOf(c, c.client()).State.(*export)
	read := func() (s stats.TableStats) {
		c.h.opens.tableStats(&s)
		return s
	}
	found := 0
	if err := r.Walk("mdt.*.open_files.hash_stats", func(stats.Entry) error { found++; return nil }); err != nil || found != 1 {
		t.Fatalf("%d tables, %v", found, err)
	}
	if s := read(); s.Entries != 0 {
		t.Errorf("%+v", s)
	}
	for oid := uint32(1); oid <= 100; oid++ {
		f := fid.FID{Seq: fid.SeqFirst, OID: oid}
		c.h.opens.shard(f).with(f, func(v *openFile) {
			v.handles = 1
			if oid <= 10 {
				v.writers = append(v.writers, writer{x: x, handles: 1})
			}
		})
	}
	full := read()
	if full.Entries != 100 || full.Busy != 100 || full.Bytes < 100*60 || full.Bytes > 100*200 {
		t.Errorf("%+v", full)
	}
	for oid := uint32(1); oid <= 100; oid++ {
		f := fid.FID{Seq: fid.SeqFirst, OID: oid}
		c.h.opens.shard(f).with(f, func(v *openFile) { v.handles, v.writers = 0, v.writers[:0] })
	}
	if s := read(); s.Entries != 0 || s.Bytes >= full.Bytes {
		t.Errorf("%+v", s)
	}
}
