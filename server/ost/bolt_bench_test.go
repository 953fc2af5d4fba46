package ost_test

import (
	"context"
	"testing"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
)

// boltPair is as pair, on a folder of the disk, without the harness's crashes.
func boltPair(b *testing.B) (mdt, client *peer) {
	d, err := boltdev.Open(boltdev.Options{
		Dir: b.TempDir(), Specs: ost.Specs(), Label: store.Label{FSName: "strake", Kind: store.KindOST},
	})
	if err != nil {
		b.Fatal(err)
	}
	o, err := ost.New(context.Background(), ost.Options{Name: name, FSName: "strake", Device: d})
	if err != nil {
		b.Fatal(err)
	}
	n := &node{t: b, pipe: rpc.NewPipe(), ost: o}
	n.server = rpc.NewServer(rpc.ServerOptions{Find: func(string) (rpc.Target, error) { return o, nil }})
	l, err := n.pipe.Listen("oss")
	if err != nil {
		b.Fatal(err)
	}
	n.served.Go(func() { _ = n.server.Serve(l) })
	b.Cleanup(func() {
		for _, p := range n.peers {
			_ = p.i.Close(context.Background())
		}
		_ = n.server.Close(context.Background())
		n.served.Wait()
		if err := o.Close(context.Background()); err != nil {
			b.Error(err)
		}
		if err := d.Close(); err != nil {
			b.Error(err)
		}
	})
	return n.connect(rpc.KindMDT, 1), n.connect(rpc.KindClient, 2)
}

// BenchmarkPrecreate makes 4,096 objects per operation, flushed.
func BenchmarkPrecreate(b *testing.B) {
	mdt, _ := boltPair(b)
	upto := uint64(0)
	for b.Loop() {
		upto += 4096
		if _, err := mdt.precreate(upto); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(upto)/b.Elapsed().Seconds(), "objects/s")
}

// BenchmarkSmallFiles writes one page to a fresh object each, with the commits that the timer brings.
func BenchmarkSmallFiles(b *testing.B) {
	mdt, c := boltPair(b)
	page := make([]byte, 4096)
	last, id := uint64(0), uint64(0)
	for b.Loop() {
		if id == last {
			b.StopTimer()
			last += 16384
			must(mdt.precreate(last))
			b.StartTimer()
		}
		id++
		if _, err := c.write(id, 0, page); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSync writes a page and makes the object durable.
func BenchmarkSync(b *testing.B) {
	mdt, c := boltPair(b)
	must(mdt.precreate(32))
	page := make([]byte, 4096)
	for b.Loop() {
		must(c.write(1, 0, page))
		if err := c.sync(1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDiskRead4K(b *testing.B) {
	mdt, c := boltPair(b)
	must(mdt.precreate(32))
	must(c.write(1, 0, make([]byte, 4<<20)))
	m := &wirepb.ReadRequest{Object: object(1), Length: 4096}
	req := rpc.Request{Op: wire.OpRead, Body: m, Into: make([]byte, 4096)}
	b.SetBytes(4096)
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		m.Offset = i * 40960 % (4 << 20) &^ 4095
		if err := c.i.Do(context.Background(), &req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDiskWrite1M(b *testing.B) {
	mdt, c := boltPair(b)
	must(mdt.precreate(32))
	data := make([]byte, 1<<20)
	b.SetBytes(1 << 20)
	for i := uint64(0); b.Loop(); i++ {
		must(c.write(1+i/256%16, i%256<<20, data))
	}
}
