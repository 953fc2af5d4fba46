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

// TestSharingDoesNotAllocate: what commit on share adds to an operation whose dependencies are on disk, or its client's own.
func TestSharingDoesNotAllocate(t *testing.T) {
	c := newCluster(t, seldom)
	cl := c.client()
	p := cl.must(fid.Root, "p", dir|0o755)
	d := newDirect(c, cl)
	_ = d.do(wire.OpGetattr, &wirepb.GetattrRequest{Seq: uint64(p.Seq), Oid: p.OID})
	o, s := opOf(d.e), slot{cookie: nameHash(7).cookie(0)}
	last := c.kv.Last()
	r := &c.h.sharing.removed
	r.add(removalKey(p, s.cookie), stamp{last, o.client}, c.kv.Committed())
	n := testing.AllocsPerRun(200, func() {
		o.deps = o.deps[:0]
		o.depends(stamp{last, o.client})
		o.depends(stamp{c.kv.Committed(), o.client + 1})
		o.absent(p, &s)
		if err := o.agree(); err != nil {
			t.Error(err)
		}
		r.add(removalKey(p, s.cookie), stamp{last, o.client}, c.kv.Committed())
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
