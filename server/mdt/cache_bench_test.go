package mdt

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"golang.org/x/sys/unix"
)

// BenchmarkInodeCache asks whether a cache of inode records in front of the store would pay (README, "No inode cache"). Over
// random ones of many inodes on a local file system: a getattr as a client has it, in the handler alone, what of it is the store's
// Get, and what a cache's hit would cost instead, with the record copied out as Get copies it.
func BenchmarkInodeCache(b *testing.B) {
	const many = 300_000
	c := newCluster(b, onBolt(b))
	cl := c.client()
	f := cl.must(fid.Root, "f", reg|0o644)
	inodes := c.h.tables.Inode
	e := env.New()
	record, err := c.kv.Get(e, inodes, f.AppendKey(nil))
	if err != nil {
		b.Fatal(err)
	}
	record = append([]byte(nil), record...)
	fill(b, c, f, record, many)
	ino := func(i uint64) fid.FID { return filled(f, i%many) }

	client := func(imp *rpc.Import) func(b *testing.B) {
		return func(b *testing.B) {
			m, reply, ctx := &wirepb.GetattrRequest{Caller: root.pb()}, &wirepb.EntryReply{}, context.Background()
			b.ReportAllocs()
			began := cpu(b)
			for b.Loop() {
				at := ino(rand.Uint64())
				m.Seq, m.Oid = uint64(at.Seq), at.OID
				reply.Reset()
				if err := imp.Do(ctx, &rpc.Request{Op: wire.OpGetattr, Body: m, Reply: reply}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
		}
	}
	b.Run("client, pipe", client(cl.imp))
	b.Run("client, tcp", client(overTCP(b, c)))
	b.Run("handler", func(b *testing.B) {
		d := newDirect(c, cl)
		m := &wirepb.GetattrRequest{Caller: root.pb()}
		b.ReportAllocs()
		for b.Loop() {
			at := ino(rand.Uint64())
			m.Seq, m.Oid = uint64(at.Seq), at.OID
			if err := d.do(wire.OpGetattr, m); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("store", func(b *testing.B) {
		var key [fid.KeySize]byte
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.kv.Get(e, inodes, ino(rand.Uint64()).AppendKey(key[:0])); err != nil {
				b.Fatal(err)
			}
			e.Reset()
		}
	})
	b.Run("cache", func(b *testing.B) {
		var t trial
		t.init()
		for i := range uint64(many) {
			t.put(ino(i), append([]byte(nil), record...))
		}
		b.ReportAllocs()
		b.ResetTimer()
		for b.Loop() {
			if v := t.get(e, ino(rand.Uint64())); len(v) != len(record) {
				b.Fatal("not there")
			}
			e.Reset()
		}
	})
}

// cpu is the processor time of the process, both ends of a request.
func cpu(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// overTCP is another client, over the loopback.
func overTCP(b *testing.B, c *cluster) *rpc.Import {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := c.srv
	go srv.Serve(l) //nolint:errcheck // It ends with the cluster.
	imp, err := rpc.NewImport(rpc.ImportOptions{
		Transport: rpc.NewTCP(), Addresses: []string{l.Addr().String()}, FSName: testFS, Target: testMDT, UUID: [16]byte{77},
		Peer: "tcp", Kind: rpc.KindClient,
	})
	if err == nil {
		err = imp.Connect(context.Background())
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = imp.Close(context.Background()) })
	return imp
}

// filled is the FID of a copy that fill has made.
func filled(f fid.FID, i uint64) fid.FID {
	const each = 100_000
	return fid.FID{Seq: f.Seq + 1 + fid.Seq(i/each), OID: uint32(i%each) + 1}
}

// fill puts count copies of a record into the store and waits for the commit.
func fill(b *testing.B, c *cluster, f fid.FID, record []byte, count int) {
	e := env.New()
	for at := 0; at < count; {
		tx := c.kv.Begin(e)
		for range 1000 {
			tx.Put(c.h.tables.Inode, filled(f, uint64(at)).AppendKey(e.Alloc(fid.KeySize)[:0]), record)
			at++
		}
		n, err := c.kv.Publish(tx)
		if err == nil && at >= count {
			err = c.kv.WaitCommitted(context.Background(), n)
		}
		if err != nil {
			b.Fatal(err)
		}
		e.Reset()
	}
}

// trial is the hit path of a cache: shards with a lock, a map and an LRU, without anything that would keep it right.
type trial struct{ shards [64]trialShard }

type trialShard struct {
	mu   sync.Mutex
	all  map[fid.FID]*trialEntry // guarded by mu
	ring trialEntry              // guarded by mu
}

type trialEntry struct {
	record     []byte
	next, prev *trialEntry
}

func (t *trial) init() {
	for i := range t.shards {
		s := &t.shards[i]
		s.all = map[fid.FID]*trialEntry{}
		s.ring.next, s.ring.prev = &s.ring, &s.ring
	}
}

func (t *trial) shard(f fid.FID) *trialShard { return &t.shards[f.Ino()*0x9e3779b97f4a7c15>>58] }

func (s *trialShard) newest(n *trialEntry) {
	n.prev, n.next = s.ring.prev, &s.ring
	n.prev.next, s.ring.prev = n, n
}

func (t *trial) put(f fid.FID, record []byte) {
	s := t.shard(f)
	n := &trialEntry{record: record}
	s.all[f] = n
	s.newest(n)
}

func (t *trial) get(e *env.Env, f fid.FID) []byte {
	s := t.shard(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.all[f]
	if n == nil {
		return nil
	}
	n.next.prev, n.prev.next = n.prev, n.next
	s.newest(n)
	return e.Copy(n.record)
}
