package fusefs

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/strakefs/strake/fs/fid"
	"golang.org/x/sys/unix"
)

// TestReadBehindASizeToldMeanwhileIsDropped: the kernel zeroes what a READ has brought behind a size that it was told while the READ ran.
func TestReadBehindASizeToldMeanwhileIsDropped(t *testing.T) {
	node := fid.FID{Seq: fid.SeqFirst, OID: 7}.Ino()
	for _, c := range []struct {
		what     string
		told     []uint64
		off, end uint64
		from     uint64 // what is dropped, to the end of the READ; 0 for nothing
	}{
		{"nothing", nil, 4096, 9000, 0},
		{"the size", []uint64{9000}, 4096, 9000, 0},
		{"a size before", []uint64{5000}, 4096, 9000, 5000},
		{"a size before, and the size", []uint64{5000, 9000}, 4096, 9000, 5000},
		{"a size in front of the READ", []uint64{5000}, 8192, 9000, 8192},
		{"no bytes", []uint64{5000}, 8192, 8192, 0},
		{"more than is kept", []uint64{100, 9000, 9000, 9000, 9000}, 4096, 9000, 4096},
	} {
		f, notes := listened(t)
		began := time.Now()
		for _, size := range c.told {
			f.kernel.told.tellAttr(node, size)
		}
		r := f.uncut(fuse.ReadResultData(make([]byte, c.end-c.off)), node, c.off, c.end, began)
		b := make([]byte, 40)
		if n, err := unix.Read(notes, b); err != unix.EAGAIN {
			t.Errorf("%s: dropped before the answer (%d, %v)", c.what, n, err)
		}
		of := &f.kernel.told.slots[slotOf(node)]
		if held := of.tails.Load() > 0; held != (c.from != 0) {
			t.Errorf("%s: sizes are held back: %v", c.what, held)
		}
		r.Done()
		f.wait.Wait()
		n, err := unix.Read(notes, b)
		switch {
		case c.from == 0 && err != unix.EAGAIN:
			t.Errorf("%s: something is dropped (%d, %v)", c.what, n, err)
		case c.from == 0:
		case err != nil || n != len(b):
			t.Errorf("%s: read of a notification: %d, %v", c.what, n, err)
		default:
			if off, n := binary.NativeEndian.Uint64(b[24:]), binary.NativeEndian.Uint64(b[32:]); off != c.from || n != c.end-c.from {
				t.Errorf("%s: %d bytes from %d are dropped, want %d from %d", c.what, n, off, c.end-c.from, c.from)
			}
		}
		if of.tails.Load() != 0 {
			t.Errorf("%s: sizes are held back for ever", c.what)
		}
		if f.kernel.told.least(node, time.Now().Add(time.Hour)) != ^uint64(0) {
			t.Errorf("%s: a size from before a READ counts", c.what)
		}
	}
}

// TestQuestionsWaitForTheTail: attributes are asked for again when the pages that an older size has cut are gone; but not while a READ
// waits for the kernel's size, which may hold these pages.
func TestQuestionsWaitForTheTail(t *testing.T) {
	node := fid.FID{Seq: fid.SeqFirst, OID: 7}.Ino()
	f, _ := listened(t)
	told := &f.kernel.told
	began := time.Now()
	told.tellAttr(node, 5000)
	r := f.uncut(fuse.ReadResultData(make([]byte, 4096)), node, 4096, 8192, began)
	of := &told.slots[slotOf(node)]
	of.settles.Add(1)
	if told.awaitTails(node) {
		t.Error("a question waits though a READ waits for its answer")
	}
	of.settles.Add(-1)
	waited := make(chan bool)
	go func() { waited <- told.awaitTails(node) }()
	r.Done()
	f.wait.Wait()
	<-waited
	if of.tails.Load() != 0 || told.awaitTails(node) {
		t.Error("a question waits for what is gone")
	}
}
