//go:build !race

package mdt

import (
	"testing"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// TestReadsDoNotAllocate: a worker in steady state (LU-11164).
func TestReadsDoNotAllocate(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	f := cl.must(fid.Root, "f", reg|0o644)
	d := newDirect(c, cl)
	caller := who{uid: 1000, gid: 1000, groups: []uint32{1, 2, 3}}.pb()
	for op, m := range map[wire.Op]rpc.Message{
		wire.OpLookup:    &wirepb.LookupRequest{Caller: caller, ParentSeq: uint64(fid.Root.Seq), ParentOid: 1, Name: []byte("f")},
		wire.OpGetattr:   &wirepb.GetattrRequest{Caller: caller, Seq: uint64(f.Seq), Oid: f.OID},
		wire.OpGetxattr:  &wirepb.XattrRequest{Caller: caller, Seq: uint64(f.Seq), Oid: f.OID, Name: []byte("security.capability")},
		wire.OpListxattr: &wirepb.XattrRequest{Caller: caller, Seq: uint64(f.Seq), Oid: f.OID},
	} {
		_ = d.do(op, m)
		if n := testing.AllocsPerRun(200, func() { _ = d.do(op, m) }); n != 0 {
			t.Errorf("%v: %v allocations", op, n)
		}
	}
	absent := &wirepb.LookupRequest{Caller: caller, ParentSeq: uint64(fid.Root.Seq), ParentOid: 1, Name: []byte("absent")}
	if n := testing.AllocsPerRun(200, func() { _ = d.do(wire.OpLookup, absent) }); n != 0 {
		t.Errorf("lookup of an absent name: %v allocations", n)
	}
}
