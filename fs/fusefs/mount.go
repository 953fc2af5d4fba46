package fusefs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// MountOptions say where and how the kernel mounts.
type MountOptions struct {
	Options
	// Dir is the mount point, an existing folder.
	Dir string
	// Source is what mount(8) and df(1) show in the first column.
	Source                string
	ReadOnly, AllowOther  bool
	NoSuid, NoDev, NoExec bool
	// NoAtime and StrictAtime are shown among the mount's flags; the client follows them.
	NoAtime, StrictAtime bool
	Sync, DirSync        bool
	// Flock says who sees locks of flock(2) and fcntl(2).
	Flock Flock
}

// Flock says how far locks of applications reach.
type Flock uint8

const (
	// GlobalFlock: all clients see them.
	GlobalFlock Flock = iota
	// LocalFlock: this mount alone sees them.
	LocalFlock
	// NoFlock: they fail with ENOSYS.
	NoFlock
)

// maxWrite is the largest request: 256 pages, the kernel's default bound.
const maxWrite = 1 << 20

// readAheadKB is the kernel's read-ahead for the mount, which it caps at 128 KiB by itself: eight requests of the largest
// size keep several OSTs busy for one sequential reader.
const readAheadKB = 8 << 10

// Mount is a served mount.
type Mount struct {
	fs     *FS
	kernel *kernel
	dir    string
	server *fuse.Server
	served chan struct{}
}

// Errors of Start.
var (
	// ErrNoFuse: the kernel has no FUSE.
	ErrNoFuse = errors.New("cannot open /dev/fuse")
	// ErrMountPoint: the mount point cannot be used.
	ErrMountPoint = errors.New("mount point cannot be used")
)

// Check refuses a mount point that cannot be used, before anything is started. The error says what to do.
func Check(dir string) error {
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w: %s does not exist: create it (mkdir -p %s)", ErrMountPoint, dir, dir)
	case errors.Is(err, syscall.ENOTCONN):
		return fmt.Errorf("%w: %s holds a dead mount: remove it first (umount -l %s)", ErrMountPoint, dir, dir)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrMountPoint, err)
	case !fi.IsDir():
		return fmt.Errorf("%w: %s is not a folder", ErrMountPoint, dir)
	}
	if busy, err := isMountPoint(dir); err == nil && busy {
		return fmt.Errorf("%w: %s is busy, something is mounted there already: unmount it or choose another folder", ErrMountPoint, dir)
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: %w: load the kernel's module (modprobe fuse) and run as root", ErrNoFuse, err)
	}
	return unix.Close(fd)
}

// isMountPoint looks in the kernel's own list, so that it does not have to ask a mount that may not answer.
func isMountPoint(dir string) (bool, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false, err
	}
	if real, err = filepath.Abs(real); err != nil {
		return false, err
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && unescape(f[4]) == real {
			return true, nil
		}
	}
	return false, nil
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Start mounts and serves. The mount can be used when it returns.
func Start(o MountOptions) (*Mount, error) {
	if err := Check(o.Dir); err != nil {
		return nil, err
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoFuse, err)
	}
	k, err := newKernel(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("mount %s: %w", o.Dir, err)
	}
	if k.dir, err = filepath.Abs(o.Dir); err != nil {
		k.close()
		_ = unix.Close(fd)
		return nil, fmt.Errorf("mount %s: %w", o.Dir, err)
	}
	if err := mountKernel(fd, &o); err != nil {
		k.close()
		_ = unix.Close(fd)
		return nil, err
	}
	if k.device, err = deviceOf(o.Dir); err != nil {
		o.Log.Debug("device of the mount is not known", "dir", o.Dir, "err", err)
	}
	o.NoFlock = o.Flock == NoFlock
	m := &Mount{fs: newFS(o.Options, k), kernel: k, dir: o.Dir, served: make(chan struct{})}
	// The server owns fd from here on, whether it starts or not.
	m.server, err = fuse.NewServer(m.fs, "/dev/fd/"+strconv.Itoa(fd), serverOptions(&o))
	if err != nil {
		_ = unix.Unmount(o.Dir, unix.MNT_DETACH)
		m.fs.close()
		return nil, fmt.Errorf("mount %s: %w", o.Dir, err)
	}
	o.Client.SetKernel(m.fs)
	go func() {
		m.server.Serve()
		m.fs.close()
		close(m.served)
	}()
	if err := m.server.WaitMount(); err != nil {
		return nil, fmt.Errorf("mount %s: %w", o.Dir, errors.Join(err, m.Abort()))
	}
	m.raiseReadAhead()
	return m, nil
}

func serverOptions(o *MountOptions) *fuse.MountOptions {
	extra := uint64(fuse.CAP_ATOMIC_O_TRUNC | fuse.CAP_EXPORT_SUPPORT | fuse.CAP_DONT_MASK | fuse.CAP_HANDLE_KILLPRIV_V2 |
		fuse.CAP_READDIRPLUS_AUTO | fuse.CAP_ASYNC_DIO | fuse.CAP_DIRECT_IO_ALLOW_MMAP)
	return &fuse.MountOptions{
		MaxWrite: maxWrite, MaxBackground: 64, Name: "strake", FsName: o.Source,
		EnableAcl: o.ACL, EnableSymlinkCaching: true, ExplicitDataCacheControl: true,
		ExtraCapabilities: extra, DisableSplice: true, EnableLocks: o.Flock != LocalFlock,
		Logger: log.New(io.Discard, "", 0),
	}
}

func mountKernel(fd int, o *MountOptions) error {
	var st unix.Stat_t
	if err := unix.Stat(o.Dir, &st); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrMountPoint, o.Dir, err)
	}
	data := fmt.Sprintf("fd=%d,rootmode=%o,user_id=%d,group_id=%d,default_permissions,max_read=%d",
		fd, st.Mode&unix.S_IFMT, os.Geteuid(), os.Getegid(), maxWrite)
	if o.AllowOther {
		data += ",allow_other"
	}
	var flags uintptr
	for _, b := range []struct {
		on   bool
		flag uintptr
	}{
		{o.ReadOnly, unix.MS_RDONLY}, {o.NoSuid, unix.MS_NOSUID}, {o.NoDev, unix.MS_NODEV}, {o.NoExec, unix.MS_NOEXEC},
		{o.NoAtime, unix.MS_NOATIME}, {o.StrictAtime, unix.MS_STRICTATIME}, {o.Sync, unix.MS_SYNCHRONOUS}, {o.DirSync, unix.MS_DIRSYNC},
	} {
		if b.on {
			flags |= b.flag
		}
	}
	if err := unix.Mount(o.Source, o.Dir, "fuse.strake", flags, data); err != nil {
		return fmt.Errorf("mount %s: %w (mounting needs root)", o.Dir, err)
	}
	return nil
}

// raiseReadAhead lets the kernel read further ahead. It is a matter of speed only: where /sys does not allow it, nothing
// is lost.
func (m *Mount) raiseReadAhead() {
	path := fmt.Sprintf("/sys/class/bdi/%s/read_ahead_kb", m.kernel.device)
	if err := os.WriteFile(path, []byte(strconv.Itoa(readAheadKB)), 0); err != nil {
		m.fs.log.Debug("read-ahead stays at the kernel's default", "err", err)
	}
}

// deviceOf gives the major:minor of the mount at dir from the kernel's list, without asking the mount.
func deviceOf(dir string) (string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	id := ""
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && unescape(f[4]) == abs {
			id = f[2]
		}
	}
	if id == "" {
		return "", os.ErrNotExist
	}
	return id, nil
}

// Done is closed when the mount is gone, by Unmount or from outside.
func (m *Mount) Done() <-chan struct{} { return m.served }

// Dir is the mount point.
func (m *Mount) Dir() string { return m.dir }

// abortWait bounds the wait for the requests under way after the connection to the kernel was ended: they notice within
// watchEvery.
const abortWait = 3 * time.Second

// Unmount unmounts. While files are open there it tries until ctx ends, then takes the mount away from under them. Then
// it waits for the requests under way. An error says that the mount is still there, or that requests do not end.
func (m *Mount) Unmount(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-m.served:
			return nil // And what is mounted there now is not ours.
		default:
		}
		err := unix.Unmount(m.dir, 0)
		switch {
		case err == nil, errors.Is(err, unix.EINVAL):
			return m.settle(ctx)
		case !errors.Is(err, unix.EBUSY):
			return fmt.Errorf("unmount %s: %w", m.dir, err)
		}
		select {
		case <-m.served:
			return nil
		case <-tick.C:
		case <-ctx.Done():
			m.fs.log.Warn("mount is busy, taken away from under its users", "dir", m.dir)
			return m.Abort()
		}
	}
}

// settle waits for the end of a mount that has no place any more. One that was detached from outside (umount -l) lives on
// while files are open in it: when ctx ends it is taken away from them.
func (m *Mount) settle(ctx context.Context) error {
	select {
	case <-m.served:
		return nil
	case <-ctx.Done():
	}
	if m.kernel.gone() {
		return m.aborted()
	}
	if err := m.kernel.abort(); err != nil {
		return fmt.Errorf("unmount %s: it was detached and is in use: %w", m.dir, err)
	}
	return m.aborted()
}

// Abort ends the connection to the kernel: every request in the mount fails. Then it detaches the mount point.
func (m *Mount) Abort() error {
	// MNT_FORCE aborts the connection, and answers EBUSY while files are open.
	_ = unix.Unmount(m.dir, unix.MNT_FORCE)
	_ = unix.Unmount(m.dir, unix.MNT_DETACH)
	return m.aborted()
}

func (m *Mount) aborted() error {
	limit := time.NewTimer(abortWait)
	defer limit.Stop()
	select {
	case <-m.served:
		return nil
	case <-limit.C:
		return fmt.Errorf("unmount %s: requests under way do not end", m.dir)
	}
}
