package ldlm_test

import (
	"testing"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
)

// TestMostContended holds the order: the most wanted first, with holders and waiters.
func TestMostContended(t *testing.T) {
	ns := ldlm.New(ldlm.Config{Shards: 8})
	var fx ldlm.Effects
	for id := range uint64(20) {
		for range id + 1 {
			ns.Enqueue(0, &ldlm.Request{Res: ldlm.ObjectRes(fid.ObjectID{ID: id}), Mode: ldlm.PW, Client: 1,
				Extent: extent.Extent{End: 4096}}, &fx)
		}
	}
	got := ns.MostContended(0, 3)
	if len(got) != 3 {
		t.Fatal(len(got))
	}
	for i, r := range got {
		if want := uint64(19 - i); r.Res.Object().ID != want || r.Waiting != int(want) || len(r.Holders) != 1 ||
			len(r.Waiters) != min(16, int(want)) || !r.Contended || r.Conflicts == 0 {
			t.Errorf("%d: %+v", i, r)
		}
	}
	if n := ns.ClientLockCount(1); n != 210 {
		t.Errorf("%d locks of client 1", n)
	}
	if n := len(ns.Locks(1, nil)); n != 210 {
		t.Errorf("%d locks of client 1 listed", n)
	}
	ns.Forget(1) // has locks: stays
	if n := ns.ClientLockCount(1); n != 210 {
		t.Errorf("%d locks of client 1", n)
	}
	ns.Evict(0, 1, &fx)
	ns.Forget(1)
	if n := len(ns.MostContended(0, 3)); n != 0 {
		t.Errorf("%d contended of nothing", n)
	}
}

func TestResIDNames(t *testing.T) {
	f := fid.FID{Seq: fid.SeqFirst, OID: 5, Ver: 2}
	o := fid.ObjectID{Group: 3, ID: 9}
	for _, c := range []struct {
		id   ldlm.ResID
		want string
	}{
		{ldlm.InodeRes(f), "[0x200000401:0x5:0x2].0x0 ibits"},
		{ldlm.NameRes(f, 77), "[0x200000401:0x5:0x2].0x4d ibits"},
		{ldlm.FlockRes(f), "[0x200000401:0x5:0x2] flock"},
		{ldlm.ObjectRes(o), "[0x9:0x3] extent"},
		{ldlm.PlainRes(1, 2), "[0x1:0x2] plain"},
	} {
		if got := c.id.String(); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	if ldlm.InodeRes(f).FID() != f || ldlm.ObjectRes(o).Object() != o {
		t.Error("a name does not come back")
	}
}

// TestHandlesAfterRush holds that slots given back to the runtime are used again, with other handles.
func TestHandlesAfterRush(t *testing.T) {
	ns := ldlm.New(ldlm.Config{Shards: 1})
	var fx ldlm.Effects
	seen := map[ldlm.Handle]bool{}
	for range 3 {
		all := fillTable(ns, 3000)
		for _, h := range all {
			if seen[h] || h == 0 {
				t.Fatalf("handle %v again", h)
			}
			seen[h] = true
		}
		if n := ns.Cancel(0, 1, all, &fx); n != 3000 {
			t.Fatal(n)
		}
	}
	if b := ns.Stats().LockBytes; b > 100_000 {
		t.Fatalf("%d bytes kept for no lock", b)
	}
}
