package ost_test

import (
	"testing"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
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
