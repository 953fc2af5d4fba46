package ost_test

import (
	"testing"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/server/target"
)

// TestObjectOwner: whose an object in use is; nothing of one that nobody has written, or that is destroyed.
func TestObjectOwner(t *testing.T) {
	n := newNode(t, ost.Options{})
	mdt, client := n.connect(rpc.KindMDT, 1), n.connect(rpc.KindClient, 2)
	last := must(mdt.precreate(8))
	if last < 2 {
		t.Fatalf("precreated up to %d", last)
	}
	if _, _, ok := n.ost.ObjectOwner(fid.ObjectID{ID: 1}); ok {
		t.Error("an object that nobody has touched has an owner")
	}
	must(client.write(1, 0, []byte("data")))
	if f, stripe, ok := n.ost.ObjectOwner(fid.ObjectID{ID: 1}); !ok || stripe != 0 || f != (fid.FID{Seq: 0x200000401, OID: 1}) {
		t.Errorf("%v stripe %d, %v", f, stripe, ok)
	}
	must(mdt.destroy(1))
	if f, _, ok := n.ost.ObjectOwner(fid.ObjectID{ID: 1}); ok {
		t.Errorf("a destroyed object belongs to %v", f)
	}
}

// TestObjectTable: the object cache is among the tables of the process, with what it counts and nothing else.
func TestObjectTable(t *testing.T) {
	r := stats.NewRegistry()
	n := newNode(t, ost.Options{Stats: r, Memory: target.NewBudget(1 << 30)})
	mdt, client := n.connect(rpc.KindMDT, 1), n.connect(rpc.KindClient, 2)
	must(mdt.precreate(8))
	for id := uint64(1); id <= 3; id++ {
		must(client.write(id, 0, []byte("data")))
	}
	must(client.write(1, 0, []byte("more")))
	found := false
	if err := r.Walk("obdfilter.*.hash_stats", func(e stats.Entry) error {
		s, ok := e.Table()
		found = ok
		if s.Entries != 3 || s.Hits < 1 || s.Misses < 3 || s.Created != s.Misses || s.Evictions != 0 || s.Busy < 0 || s.Busy > 3 ||
			s.Buckets < 8 || s.Longest < 1 || s.Longest > 3 || s.Empty < s.Buckets-3 || s.Bytes <= 0 || s.LimitBytes != 1<<30/100*20 ||
			!s.HasChains() || s.Chains[0] != s.Empty {
			t.Errorf("%+v", s)
		}
		if want := "lu_cache_percent: 20 % of 1024 MiB of memory, shared by the targets of the process"; s.Rule != want {
			t.Errorf("rule %q, want %q", s.Rule, want)
		}
		return nil
	}); err != nil || !found {
		t.Errorf("table found: %v, %v", found, err)
	}
}
