package storetest

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
)

// Tables of the benchmarks.
const (
	benchInode store.Table = iota
	benchDirent
	benchRcvd
)

// BenchSpecs returns the tables of the benchmarks, with the shapes of a metadata target's.
func BenchSpecs() []store.Spec {
	return []store.Spec{{Name: "inode", Merger: inodeSum{}, Ascending: true}, {Name: "dirent"}, {Name: "rcvd"}}
}

// inodeSum adds a delta of 16 bytes to the first two numbers of a record.
type inodeSum struct{}

func (inodeSum) Combine(dst, a, b []byte) []byte {
	dst = append(dst, a...)
	at := dst[len(dst)-len(a):]
	for i := 0; i < 16; i += 8 {
		binary.BigEndian.PutUint64(at[i:], binary.BigEndian.Uint64(at[i:])+binary.BigEndian.Uint64(b[i:]))
	}
	return dst
}

func (m inodeSum) Apply(dst, base, delta []byte) []byte {
	if base == nil {
		return append(dst, delta...)
	}
	return m.Combine(dst, base, delta)
}

// creator builds create-shaped transactions: an inode of 200 bytes, a folder entry of 60, the parent's delta and a reply
// slot. The keys of entries are random, as hashes of names are.
type creator struct {
	inodeKey, direntKey, parentKey, slotKey [16]byte
	inode                                   [200]byte
	dirent                                  [60]byte
	slot                                    [64]byte
	delta                                   [16]byte
	n                                       uint64
}

func newCreator(worker int) *creator {
	c := &creator{n: uint64(worker) << 40}
	binary.BigEndian.PutUint64(c.delta[:], 1)
	binary.BigEndian.PutUint64(c.slotKey[:], uint64(worker))
	return c
}

// direntOf is the key of the n-th entry.
func direntOf(b []byte, n uint64) {
	n *= 0x9e3779b97f4a7c15
	binary.BigEndian.PutUint64(b[8:], n^n>>29)
}

func (c *creator) build(tx *store.Tx) {
	c.n++
	binary.BigEndian.PutUint64(c.inodeKey[:], 1+c.n>>17)
	binary.BigEndian.PutUint64(c.inodeKey[8:], c.n&(1<<17-1))
	direntOf(c.direntKey[:], c.n)
	tx.Put(benchInode, c.inodeKey[:], c.inode[:], 32)
	tx.Put(benchDirent, c.direntKey[:], c.dirent[:])
	tx.Delta(benchInode, c.parentKey[:], c.delta[:])
	tx.Put(benchRcvd, c.slotKey[:], c.slot[:], 0)
}

// publishMany publishes n creates as an operation does.
func publishMany(b testing.TB, d store.Device, c *creator, n int) {
	e := env.New()
	for range n {
		if err := d.Throttle(context.Background(), false); err != nil {
			b.Fatal(err)
		}
		tx := d.Begin(e)
		c.build(tx)
		if _, err := d.Publish(tx); err != nil {
			b.Fatal(err)
		}
	}
}

// Bench runs the benchmarks on disks of one kind.
func Bench(b *testing.B, maker Maker) {
	b.Run("Create", func(b *testing.B) { benchCreate(b, maker) })
	b.Run("CreateSync", func(b *testing.B) { benchCreateSync(b, maker) })
	b.Run("GetOverlay", func(b *testing.B) { benchGet(b, maker, false) })
	b.Run("GetDisk", func(b *testing.B) { benchGet(b, maker, true) })
	b.Run("GetNone", func(b *testing.B) { benchGetNone(b, maker) })
	b.Run("Scan100", func(b *testing.B) { benchScan(b, maker) })
	for _, n := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprintf("Flush%d", n), func(b *testing.B) { benchFlush(b, maker, n) })
	}
	b.Run("ObjectRead4K", func(b *testing.B) { benchObjectRead(b, maker) })
}

// benchCreate is sustained: the time ends when everything is on disk.
func benchCreate(b *testing.B, maker Maker) {
	d := maker(b).Open(b, BenchSpecs(), 500*time.Millisecond)
	defer closeDevice(b, d)
	commits := 0
	d.OnCommitted(func(store.Transno) { commits++ })
	b.ReportAllocs()
	b.ResetTimer()
	publishMany(b, d, newCreator(0), b.N)
	commit(b, d)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
	b.ReportMetric(float64(b.N)/float64(max(commits, 1)), "creates/commit")
}

// benchCreateSync commits each create, in a database of 100,000 entries: what fsync pays.
func benchCreateSync(b *testing.B, maker Maker) {
	d := maker(b).Open(b, BenchSpecs(), time.Hour)
	defer closeDevice(b, d)
	c := newCreator(0)
	for range 10 {
		publishMany(b, d, c, benchKeys/2)
		commit(b, d)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		publishMany(b, d, c, 1)
		commit(b, d)
	}
}

const benchKeys = 20_000

func benchGet(b *testing.B, maker Maker, onDisk bool) {
	d := maker(b).Open(b, BenchSpecs(), Never)
	defer closeDevice(b, d)
	publishMany(b, d, newCreator(0), benchKeys)
	if onDisk {
		commit(b, d)
	}
	e := env.New()
	var key [16]byte
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		e.Reset()
		direntOf(key[:], uint64(i*7919)%benchKeys+1)
		if v, err := d.Get(e, benchDirent, key[:]); err != nil || len(v) != 60 {
			b.Fatal(err)
		}
	}
}

func benchGetNone(b *testing.B, maker Maker) {
	d := maker(b).Open(b, BenchSpecs(), Never)
	defer closeDevice(b, d)
	publishMany(b, d, newCreator(0), benchKeys)
	commit(b, d)
	publishMany(b, d, newCreator(1), benchKeys)
	e := env.New()
	var key [16]byte
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		e.Reset()
		direntOf(key[:], uint64(i+1e9))
		if _, err := d.Get(e, benchDirent, key[:]); err == nil {
			b.Fatal("there is one")
		}
	}
}

func benchScan(b *testing.B, maker Maker) {
	d := maker(b).Open(b, BenchSpecs(), Never)
	defer closeDevice(b, d)
	publishMany(b, d, newCreator(0), benchKeys)
	commit(b, d)
	publishMany(b, d, newCreator(1), benchKeys)
	e := env.New()
	var key [16]byte
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		e.Reset()
		direntOf(key[:], uint64(i))
		n := 0
		if err := d.Scan(e, benchDirent, key[:], nil, func(_, _ []byte) bool { n++; return n < 100 }); err != nil {
			b.Fatal(err)
		}
	}
}

func benchFlush(b *testing.B, maker Maker, n int) {
	d := maker(b).Open(b, BenchSpecs(), Never)
	defer closeDevice(b, d)
	var objects []store.Object
	for i := range n {
		o := openObject(b, d, fid.ObjectID{ID: uint64(i)})
		defer closeObject(b, o)
		objects = append(objects, o)
	}
	data := make([]byte, 64<<10)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		for _, o := range objects {
			if err := o.WriteAt(data, int64(i%16)<<16); err != nil {
				b.Fatal(err)
			}
		}
		if err := d.Objects().Flush(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func benchObjectRead(b *testing.B, maker Maker) {
	d := maker(b).Open(b, BenchSpecs(), Never)
	defer closeDevice(b, d)
	o := openObject(b, d, fid.ObjectID{ID: 1})
	data := make([]byte, 4<<20)
	if err := o.WriteAt(data, 0); err != nil {
		b.Fatal(err)
	}
	closeObject(b, o)
	b.SetBytes(4096)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		o, err := d.Objects().Open(fid.ObjectID{ID: 1})
		if err != nil {
			b.Fatal(err)
		}
		if n, err := o.ReadAt(data[:4096], int64(i*7919%1024)<<12); n != 4096 || err != nil {
			b.Fatal(err)
		}
		closeObject(b, o)
	}
}
