package ost_test

import (
	"context"
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/ost"
)

func BenchmarkRead4K(b *testing.B) {
	_, _, c := pair(b, ost.Options{})
	must(c.write(1, 0, make([]byte, 1<<20)))
	req := rpc.Request{
		Op: wire.OpRead, Body: &wirepb.ReadRequest{Object: object(1), Length: 4096}, Into: make([]byte, 4096),
	}
	ctx := context.Background()
	b.SetBytes(4096)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.i.Do(ctx, &req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWrite1M(b *testing.B) {
	_, _, c := pair(b, ost.Options{})
	req := rpc.Request{
		Op: wire.OpWrite, Body: &wirepb.WriteRequest{Object: object(1), Uid: 1}, Bulk: [][]byte{make([]byte, 1<<20)},
	}
	ctx := context.Background()
	b.SetBytes(1 << 20)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.i.Do(ctx, &req); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGlimpse is the path of a lock value block, from the namespace to the host's file, with the worker's env, and as a control with
// one made for every call.
func BenchmarkGlimpse(b *testing.B) {
	for _, fresh := range []bool{false, true} {
		b.Run(map[bool]string{false: "env kept", true: "env per call"}[fresh], func(b *testing.B) {
			n, _, c := pair(b, ost.Options{})
			must(c.write(1, 0, make([]byte, 4096))) // not committed: the host is asked for its blocks
			ctx, e := context.Background(), env.New()
			b.ReportAllocs()
			for b.Loop() {
				if fresh {
					e = env.New()
				}
				if v, err := n.ost.Locks().Glimpse(ctx, e, fid.ObjectID{ID: 1}); err != nil || v.Size != 4096 {
					b.Fatal(v, err)
				}
				e.Reset()
			}
		})
	}
}

// BenchmarkRead4KLocked is BenchmarkRead4K under a lock of the client, and without one, where the OST takes its own.
func BenchmarkRead4KLocked(b *testing.B) {
	for _, locked := range []bool{true, false} {
		b.Run(map[bool]string{false: "lockless", true: "lock"}[locked], func(b *testing.B) {
			n, _, c := pair(b, ost.Options{})
			must(c.write(1, 0, make([]byte, 1<<20)))
			m := n.mount(10)
			g, remote := m.acquire(1, ldlm.PR, extent.EOF)
			defer m.cache.Unpin(g.Handle)
			if !locked {
				remote = 0
			}
			req := rpc.Request{
				Op: wire.OpRead, Body: &wirepb.ReadRequest{Object: object(1), Length: 4096, Lock: uint64(remote)}, Into: make([]byte, 4096),
			}
			ctx := context.Background()
			b.SetBytes(4096)
			b.ReportAllocs()
			for b.Loop() {
				if err := m.i.Do(ctx, &req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
