package storetest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// openObject makes an object and opens it.
func openObject(t testing.TB, d store.Device, id fid.ObjectID) store.Object {
	t.Helper()
	if err := d.Objects().Create([]fid.ObjectID{id}); err != nil {
		t.Fatal(err)
	}
	o, err := d.Objects().Open(id)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func closeObject(t testing.TB, o store.Object) {
	t.Helper()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, o store.Object, s string, off int64) {
	t.Helper()
	if err := o.WriteAt([]byte(s), off); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, o store.Object, n int, off int64) string {
	t.Helper()
	b := bytes.Repeat([]byte{0xee}, n)
	m, err := o.ReadAt(b, off)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:m])
}

func size(t testing.TB, o store.Object) int64 {
	t.Helper()
	n, _, err := o.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func testObjectLife(t *testing.T, maker Maker) {
	d := maker(t).Open(t, Specs(), Never)
	defer closeDevice(t, d)
	id := fid.ObjectID{Group: 3, ID: 1<<63 + 77}
	if _, err := d.Objects().Open(id); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("open of none: %v", err)
	}
	if err := d.Objects().Remove(id); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("remove of none: %v", err)
	}
	o := openObject(t, d, id)
	if got := read(t, o, 10, 0); got != "" || size(t, o) != 0 {
		t.Fatalf("a new object holds %q", got)
	}
	write(t, o, "hello", 3)
	if got := read(t, o, 10, 0); got != "\x00\x00\x00hello" {
		t.Fatalf("%q", got)
	}
	if got := read(t, o, 3, 4); got != "ell" {
		t.Fatalf("%q", got)
	}
	if got := read(t, o, 3, 100); got != "" {
		t.Fatalf("behind the end: %q", got)
	}
	// Creating it again leaves it; a second handle sees the same bytes.
	o2 := openObject(t, d, id)
	if got := read(t, o2, 10, 3); got != "hello" {
		t.Fatalf("%q", got)
	}
	closeObject(t, o)
	closeObject(t, o2)
	var ids []fid.ObjectID
	for i := range uint64(70) {
		ids = append(ids, fid.ObjectID{Group: 4, ID: i + 1})
	}
	if err := d.Objects().Create(ids); err != nil {
		t.Fatal(err)
	}
	var seen []fid.ObjectID
	walk := func(group uint32, n int) []fid.ObjectID {
		seen = nil
		if err := d.Objects().Walk(group, func(id fid.ObjectID) bool { seen = append(seen, id); return len(seen) < n }); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(seen, fid.ObjectID.Compare)
		return seen
	}
	if got := walk(4, 1000); !slices.Equal(got, ids) {
		t.Fatalf("walk: %v", got)
	}
	if got := walk(4, 5); len(got) != 5 {
		t.Fatalf("stopped walk: %v", got)
	}
	if got := walk(3, 1000); !slices.Equal(got, []fid.ObjectID{id}) {
		t.Fatalf("walk: %v", got)
	}
	if got := walk(5, 1000); got != nil {
		t.Fatalf("walk of no group: %v", got)
	}
}

func testObjectRemovedWhileOpen(t *testing.T, maker Maker) {
	d := maker(t).Open(t, Specs(), Never)
	defer closeDevice(t, d)
	id := fid.ObjectID{ID: 5}
	o := openObject(t, d, id)
	write(t, o, "data", 0)
	if err := d.Objects().Remove(id); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Objects().Open(id); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("open after remove: %v", err)
	}
	write(t, o, "more", 4)
	if got := read(t, o, 10, 0); got != "datamore" {
		t.Fatalf("%q", got)
	}
	if err := errors.Join(o.Sync(), d.Objects().Flush(context.Background())); err != nil {
		t.Fatal(err)
	}
	closeObject(t, o)
	if err := d.Objects().Remove(id); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("second remove: %v", err)
	}
}

func testObjectHoles(t *testing.T, maker Maker) {
	d := maker(t).Open(t, Specs(), Never)
	defer closeDevice(t, d)
	o := openObject(t, d, fid.ObjectID{ID: 6})
	defer closeObject(t, o)
	seek := func(f func(int64) (int64, error), off, want int64) {
		t.Helper()
		got, err := f(off)
		if errors.Is(err, store.ErrNotFound) {
			got = -1
		} else if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("from %d: %d, want %d", off, got, want)
		}
	}
	seek(o.SeekData, 0, -1)
	seek(o.SeekHole, 0, -1)
	write(t, o, "x", 1<<20)
	seek(o.SeekData, 0, 1<<20)
	seek(o.SeekHole, 0, 0)
	seek(o.SeekHole, 1<<20, 1<<20+1)
	seek(o.SeekData, 1<<20+1, -1)
	seek(o.SeekHole, 1<<20+1, -1)
	if err := o.Truncate(2 << 20); err != nil {
		t.Fatal(err)
	}
	seek(o.SeekData, 1<<20+4096, -1)
	seek(o.SeekHole, 1<<20+4096, 1<<20+4096)
	// A size taken down and up again reads as zeros.
	if err := errors.Join(o.Truncate(1<<20), o.Truncate(1<<20+10)); err != nil {
		t.Fatal(err)
	}
	if got := read(t, o, 20, 1<<20); got != string(make([]byte, 10)) {
		t.Fatalf("%q", got)
	}
}

func testObjectFallocate(t *testing.T, maker Maker) {
	d := maker(t).Open(t, Specs(), Never)
	defer closeDevice(t, d)
	o := openObject(t, d, fid.ObjectID{ID: 7})
	defer closeObject(t, o)
	do := func(mode uint32, off, n, wantSize int64) {
		t.Helper()
		if err := o.Fallocate(mode, off, n); err != nil {
			t.Fatalf("mode %#x: %v", mode, err)
		}
		if got := size(t, o); got != wantSize {
			t.Fatalf("mode %#x: size %d, want %d", mode, got, wantSize)
		}
	}
	do(0, 0, 10000, 10000)
	do(store.FallocKeepSize, 0, 1<<20, 10000)
	if _, blocks, err := o.Stat(); err != nil || blocks < 1<<20/512 {
		t.Fatalf("1 MiB allocated, %d blocks: %v", blocks, err)
	}
	if got := read(t, o, 20000, 0); got != string(make([]byte, 10000)) {
		t.Fatalf("allocated space does not read as zeros: %d bytes", len(got))
	}
	write(t, o, string(bytes.Repeat([]byte{'a'}, 20000)), 0)
	do(store.FallocPunchHole|store.FallocKeepSize, 100, 9000, 20000)
	do(store.FallocZeroRange|store.FallocKeepSize, 19000, 5000, 20000)
	do(store.FallocZeroRange, 19500, 1000, 20500)
	want := bytes.Repeat([]byte{'a'}, 20500)
	clear(want[100:9100])
	clear(want[19000:])
	if got := read(t, o, 30000, 0); got != string(want) {
		t.Fatal("content after punch and zero")
	}
	do(store.FallocPunchHole|store.FallocKeepSize, 0, 1<<62, 20500)
	if got := read(t, o, 30000, 0); got != string(make([]byte, 20500)) {
		t.Fatal("content after a punch of all")
	}
}

func testObjectBadArguments(t *testing.T, maker Maker) {
	d := maker(t).Open(t, Specs(), Never)
	defer closeDevice(t, d)
	o := openObject(t, d, fid.ObjectID{ID: 8})
	defer closeObject(t, o)
	_, readErr := o.ReadAt(make([]byte, 1), -1)
	for i, c := range []struct{ err, want error }{
		{o.Fallocate(0x8, 0, 4096), unix.EOPNOTSUPP},
		{o.Fallocate(store.FallocPunchHole, 0, 4096), unix.EOPNOTSUPP},
		{o.Fallocate(1<<31, 0, 4096), unix.EOPNOTSUPP},
		{o.Fallocate(0, -1, 1), unix.EINVAL},
		{o.Fallocate(0, 0, 0), unix.EINVAL},
		{o.Fallocate(0, 0, -1), unix.EINVAL},
		{o.Fallocate(store.FallocPunchHole|store.FallocKeepSize, 1<<62, 1<<62), unix.EFBIG},
		{readErr, unix.EINVAL},
		{o.WriteAt([]byte("x"), -1), unix.EINVAL},
		{o.Truncate(-1), unix.EINVAL},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("call %d: %v, want %v", i, c.err, c.want)
		}
	}
	if size(t, o) != 0 || d.Err() != nil {
		t.Fatalf("size %d, %v", size(t, o), d.Err())
	}
}

// testObjectModel does random changes on an object and compares it with a byte slice.
func testObjectModel(t *testing.T, maker Maker) {
	d := maker(t).Open(t, Specs(), Never)
	defer closeDevice(t, d)
	var next uint64
	rapid.Check(t, func(r *rapid.T) {
		next++
		o := openObject(t, d, fid.ObjectID{Group: 9, ID: next})
		defer closeObject(t, o)
		var want []byte
		grow := func(n int) {
			if n > len(want) {
				want = append(want, make([]byte, n-len(want))...)
			}
		}
		for i := range rapid.IntRange(1, 20).Draw(r, "changes") {
			off := rapid.IntRange(0, 40000).Draw(r, "off")
			n := rapid.IntRange(1, 20000).Draw(r, "n")
			var err error
			switch what := rapid.SampledFrom([]string{"write", "write", "truncate", "punch", "zero", "flush"}).Draw(r, "do"); what {
			case "write":
				b := bytes.Repeat([]byte{byte('a' + i)}, n)
				grow(off + n)
				copy(want[off:], b)
				err = o.WriteAt(b, int64(off))
			case "truncate":
				grow(off)
				want = want[:off]
				err = o.Truncate(int64(off))
			case "punch", "zero":
				mode := uint32(store.FallocPunchHole)
				if what == "zero" {
					mode = store.FallocZeroRange
				}
				clear(want[min(off, len(want)):min(off+n, len(want))])
				err = o.Fallocate(mode|store.FallocKeepSize, int64(off), int64(n))
			case "flush":
				err = o.Sync()
			}
			if err != nil {
				r.Fatal(err)
			}
			if got := read(t, o, 70000, 0); got != string(want) || size(t, o) != int64(len(want)) {
				r.Fatalf("content: %d bytes, size %d, want %d", len(got), size(t, o), len(want))
			}
			// Whatever is called a hole reads as zeros, and data is found where it is not zero.
			if at := bytes.IndexFunc(want, func(c rune) bool { return c != 0 }); at >= 0 {
				if got, err := o.SeekData(0); err != nil || got > int64(at) {
					r.Fatalf("data at %d, SeekData: %d %v", at, got, err)
				}
			}
		}
	})
}

func testObjectsSurviveFlush(t *testing.T, maker Maker) {
	disk := maker(t)
	for round, n := range []uint64{1, 100} { // few files and many
		d := disk.Open(t, Specs(), Never)
		id := func(i uint64) fid.ObjectID { return fid.ObjectID{Group: uint32(round), ID: i} }
		for i := range n {
			o := openObject(t, d, id(i))
			write(t, o, "flushed", int64(i))
			closeObject(t, o)
		}
		if err := d.Objects().Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		o := openObject(t, d, id(n))
		write(t, o, "synced", 0)
		if err := o.Sync(); err != nil {
			t.Fatal(err)
		}
		closeObject(t, o)
		disk.Crash(t)
		d = disk.Open(t, Specs(), Never)
		for i := range n + 1 {
			want := string(make([]byte, i)) + "flushed"
			if i == n {
				want = "synced"
			}
			o, err := d.Objects().Open(id(i))
			if err != nil {
				t.Fatalf("object %d of %d: %v", i, n, err)
			}
			if got := read(t, o, 1000, 0); got != want {
				t.Fatalf("object %d of %d: %q", i, n, got)
			}
			closeObject(t, o)
		}
		if err := d.Objects().Remove(id(0)); err != nil {
			t.Fatal(err)
		}
		closeDevice(t, d)
		d = disk.Open(t, Specs(), Never)
		if _, err := d.Objects().Open(id(0)); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("removed: %v", err)
		}
		closeDevice(t, d)
	}
}

func testObjectsParallel(t *testing.T, maker Maker) {
	d := maker(t).Open(t, Specs(), Never)
	defer closeDevice(t, d)
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for i := range 200 {
				id := fid.ObjectID{ID: rnd.Uint64N(20)}
				if i%20 == 0 {
					if err := d.Objects().Flush(context.Background()); err != nil {
						t.Error(err)
					}
				}
				if rnd.IntN(4) == 0 {
					if err := d.Objects().Remove(id); err != nil && !errors.Is(err, store.ErrNotFound) {
						t.Error(err)
					}
					continue
				}
				if err := d.Objects().Create([]fid.ObjectID{id}); err != nil {
					t.Error(err)
				}
				o, err := d.Objects().Open(id)
				if errors.Is(err, store.ErrNotFound) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				b := make([]byte, 100)
				n, readErr := o.ReadAt(b, 0)
				if err := errors.Join(readErr, o.WriteAt([]byte{byte(id.ID)}, int64(i)), o.Close()); err != nil {
					t.Error(err)
				}
				for _, c := range b[:n] {
					if c != 0 && c != byte(id.ID) {
						t.Errorf("object %v holds %d", id, c)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

func testStatfs(t *testing.T, maker Maker) {
	d := maker(t).Open(t, Specs(), Never)
	defer closeDevice(t, d)
	s, err := d.Statfs()
	if err != nil || s.Total == 0 || s.Free > s.Total || s.Avail > s.Free || s.Inodes == 0 || s.FreeInodes > s.Inodes {
		t.Fatalf("%+v %v", s, err)
	}
}
