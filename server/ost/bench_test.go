package ost_test

import (
	"context"
	"testing"

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
