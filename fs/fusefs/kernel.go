package fusefs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// kernel is a second hold on the mount's connection, for what the server of requests does not send or tell.
type kernel struct {
	// device is the mount's "major:minor"; the minor one names the connection in fusectl. Set before requests are served.
	device string
	// dir is the mount point. Set before requests are served.
	dir string
	// told is what the kernel was told last.
	told tellings
	// opener is the thread that opens the root for openRoot, 0 for none; rootMu lets one at a time.
	rootMu sync.Mutex
	opener atomic.Int64

	mu sync.Mutex
	fd int // guarded by mu; -1 once closed
}

// newKernel holds the connection of fd, which stays the caller's.
func newKernel(fd int) (*kernel, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("hold on the connection to the kernel: %w", err)
	}
	return &kernel{fd: own}, nil
}

func (k *kernel) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fd >= 0 {
		_ = unix.Close(k.fd)
		k.fd = -1
	}
}

// gone reports whether the kernel has ended the connection: nobody waits for an answer any more.
func (k *kernel) gone() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fd < 0 {
		return true
	}
	p := []unix.PollFd{{Fd: int32(k.fd)}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
}

// Messages that the kernel takes without having asked: struct fuse_out_header of 16 bytes (length, code, and 8 bytes 0),
// then the message's own struct. All in the machine's byte order.
const (
	outHeaderSize    = 16
	notifyInvalNode  = 2 // node(8) offset(8) length(8)
	notifyInvalEntry = 3 // folder(8) length of the name(4) flags(4) name, NUL
	notifyIncEpoch   = 8 // nothing
)

// notify sends a message. Precondition: payload is that of code.
func (k *kernel) notify(code uint32, payload ...uint64) error {
	b := make([]byte, outHeaderSize, outHeaderSize+24)
	binary.NativeEndian.PutUint32(b[4:], code)
	for _, v := range payload {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	return k.send(b)
}

// send sends a message whose length is filled in here.
func (k *kernel) send(b []byte) error {
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	k.mu.Lock()
	fd, err := -1, error(nil)
	if k.fd >= 0 {
		// Invalidation of pages waits for reads under way: not under the mutex.
		fd, err = unix.FcntlInt(uintptr(k.fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	k.mu.Unlock()
	if fd < 0 || err != nil {
		return errors.Join(err, unix.ENOTCONN)
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, b)
	return err
}

// invalidate drops a node's attributes, and its pages from off on for n bytes, 0 for all; a negative off drops none.
// ENOENT: the kernel does not know the node.
func (k *kernel) invalidate(node uint64, off, n int64) error {
	k.told.await(node)
	defer k.told.take(node)
	return k.notify(notifyInvalNode, node, uint64(off), uint64(n))
}

// dropEntry makes the kernel look a name up again. It waits for the folder's lock. ENOENT: the kernel has no such entry.
func (k *kernel) dropEntry(parent uint64, name string) error {
	b := make([]byte, outHeaderSize, outHeaderSize+16+len(name)+1)
	binary.NativeEndian.PutUint32(b[4:], notifyInvalEntry)
	b = binary.NativeEndian.AppendUint64(b, parent)
	b = binary.NativeEndian.AppendUint32(b, uint32(len(name)))
	b = binary.NativeEndian.AppendUint32(b, 0) // flags: the entry stays if it is used
	b = append(append(b, name...), 0)
	return k.send(b)
}

// newEpoch makes the kernel look every name up again. Kernels before 6.16 do not know it.
func (k *kernel) newEpoch() error { return k.notify(notifyIncEpoch) }

// abort ends the connection of a mount that has no place in the tree any more, through fusectl.
func (k *kernel) abort() error {
	_, minor, ok := strings.Cut(k.device, ":")
	if !ok {
		return fmt.Errorf("device %q of the mount is not known", k.device)
	}
	const usual = "/sys/fs/fuse/connections"
	err := os.WriteFile(filepath.Join(usual, minor, "abort"), []byte("1"), 0)
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// Nobody has mounted fusectl here.
	dir, err := os.MkdirTemp("", "strake-fusectl-")
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	if err := unix.Mount("none", dir, "fusectl", 0, ""); err != nil {
		return fmt.Errorf("fusectl: %w", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	return os.WriteFile(filepath.Join(dir, minor, "abort"), []byte("1"), 0)
}
