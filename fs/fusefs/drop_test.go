package fusefs

import (
	"encoding/binary"
	"log/slog"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/strakefs/strake/fs/fid"
	"golang.org/x/sys/unix"
)

// TestTheAppendsOwnPageIsDropped: an append goes past the kernel's cache, so the kernel has no page of it locked, and the page that
// it begins in is dropped like any other. The last page of a write through the cache is left alone.
func TestTheAppendsOwnPageIsDropped(t *testing.T) {
	g := fid.FID{Seq: fid.SeqFirst, OID: 7}
	for _, c := range []struct {
		direct bool
		want   [][2]uint64 // offset and length
	}{{true, [][2]uint64{{5000, 200}}}, {false, nil}} {
		f, notes := listened(t)
		in := &fuse.WriteIn{InHeader: fuse.InHeader{NodeId: g.Ino()}, Offset: 5000, Size: 200}
		w := f.writes.begin(in, c.direct)
		f.DropWritten(g, 5000, 200)
		f.writes.end(g.Ino(), w)
		f.wait.Wait()
		for _, want := range c.want {
			b := make([]byte, 40)
			if n, err := unix.Read(notes, b); err != nil || n != len(b) {
				t.Fatalf("direct %v: read of a notification: %d, %v; want one for the page", c.direct, n, err)
			}
			if off, n := binary.NativeEndian.Uint64(b[24:]), binary.NativeEndian.Uint64(b[32:]); off != want[0] || n != want[1] {
				t.Errorf("direct %v: %d bytes from %d are dropped, want %d from %d", c.direct, n, off, want[1], want[0])
			}
		}
		if n, err := unix.Read(notes, make([]byte, 40)); err != unix.EAGAIN {
			t.Errorf("direct %v: one more notification (%d, %v)", c.direct, n, err)
		}
	}
}

// listened is an FS whose notifications come out of a socket.
func listened(t *testing.T) (*FS, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	k, err := newKernel(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.close(); unix.Close(fds[0]); unix.Close(fds[1]) })
	return &FS{kernel: k, log: slog.New(slog.DiscardHandler), drops: make(chan struct{}, dropsMax)}, fds[1]
}
