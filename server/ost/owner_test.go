package ost_test

import (
	"testing"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/server/ost"
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
	n := newNode(t, ost.Options{Stats: r})
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
		if s.Entries != 3 || s.Hits < 1 || s.Misses < 3 || s.Evictions != 0 || s.LimitEntries != 2048 || s.Busy < 0 || s.Busy > 3 ||
			s.Buckets != stats.NotMeasured || s.HasChains() {
			t.Errorf("%+v", s)
		}
		return nil
	}); err != nil || !found {
		t.Errorf("table found: %v, %v", found, err)
	}
}
