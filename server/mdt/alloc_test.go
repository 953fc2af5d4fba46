//go:build !race

package mdt

import (
	"testing"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
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
	wish := &wirepb.LockWant{Mode: uint32(ldlm.PR), TryBits: uint32(allBits)}
	for op, m := range map[wire.Op]rpc.Message{
		wire.OpLookup:    &wirepb.LookupRequest{Caller: caller, ParentSeq: uint64(fid.Root.Seq), ParentOid: 1, Name: []byte("f"), Want: wish},
		wire.OpGetattr:   &wirepb.GetattrRequest{Caller: caller, Seq: uint64(f.Seq), Oid: f.OID, Want: wish},
		wire.OpListxattr: &wirepb.XattrRequest{Caller: caller, Seq: uint64(f.Seq), Oid: f.OID, Want: wish},
	} {
		cancel := &wirepb.CancelRequest{Locks: make([]uint64, 1)}
		do := func() {
			_ = d.do(op, m)
			var g *wirepb.LockGrant
			switch r := d.call.Reply.(type) {
			case *wirepb.EntryReply:
				g = r.Locks[0]
			case *wirepb.XattrReply:
				g = r.Locks[0]
			}
			cancel.Locks[0] = g.Lock
			_ = d.do(wire.OpCancel, cancel)
		}
		for range sentMax + 10 {
			do()
		}
		if n := testing.AllocsPerRun(200, do); n != 0 {
			t.Errorf("%v with a lock, and its cancel: %v allocations", op, n)
		}
	}
	if n := c.h.ldlm.Namespace().LockCount(); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	absent := &wirepb.LookupRequest{Caller: caller, ParentSeq: uint64(fid.Root.Seq), ParentOid: 1, Name: []byte("absent")}
	if n := testing.AllocsPerRun(200, func() { _ = d.do(wire.OpLookup, absent) }); n != 0 {
		t.Errorf("lookup of an absent name: %v allocations", n)
	}
}
