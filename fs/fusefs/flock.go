package fusefs

import (
	"context"
	"math"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
)

// flockOf translates a request about a lock of an application. The kernel's ranges include their last byte.
func flockOf(in *fuse.LkIn) (client.Flock, bool) {
	l := client.Flock{
		Owner: in.Owner, PID: in.Lk.Pid, BSD: in.LkFlags&fuse.FUSE_LK_FLOCK != 0,
		Extent: extent.Extent{Start: in.Lk.Start, End: extent.EOF},
	}
	if in.Lk.End < math.MaxInt64 {
		l.Extent.End = in.Lk.End + 1
	}
	switch in.Lk.Typ {
	case syscall.F_RDLCK:
		l.Op = ldlm.FlockShared
	case syscall.F_WRLCK:
		l.Op = ldlm.FlockExclusive
	case syscall.F_UNLCK:
		l.Op = ldlm.FlockUnlock
	default:
		return l, false
	}
	return l, !l.Extent.Empty()
}

// GetLk answers fcntl(F_GETLK): the first lock in the way. The holder's process is named only if it is on this mount.
func (f *FS) GetLk(cancel <-chan struct{}, in *fuse.LkIn, out *fuse.LkOut) fuse.Status {
	if f.opts.NoFlock {
		return fuse.ENOSYS
	}
	h, code := f.file(in.Fh)
	if code != fuse.OK {
		return code
	}
	l, ok := flockOf(in)
	if !ok {
		return fuse.EINVAL
	}
	ctx := f.begin(cancel, in.Pid, opFlock)
	defer f.requests.free(ctx)
	held, found, err := h.TestFlock(ctx, &l)
	if err != nil {
		return f.code("getlk", in.NodeId, err)
	}
	out.Lk = in.Lk
	out.Lk.Typ = syscall.F_UNLCK
	if !found {
		return fuse.OK
	}
	out.Lk = fuse.FileLock{Start: held.Range.Start, End: math.MaxInt64, Typ: syscall.F_RDLCK}
	if held.Range.End <= math.MaxInt64 {
		out.Lk.End = held.Range.End - 1
	}
	if held.Range.Write {
		out.Lk.Typ = syscall.F_WRLCK
	}
	if held.Same {
		out.Lk.Pid = held.Range.PID
	}
	return fuse.OK
}

// SetLk answers fcntl(F_SETLK) and flock(LOCK_NB).
func (f *FS) SetLk(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return f.setLk(cancel, in, false)
}

// SetLkw answers fcntl(F_SETLKW) and flock(2). A signal ends the wait.
func (f *FS) SetLkw(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return f.setLk(cancel, in, true)
}

func (f *FS) setLk(cancel <-chan struct{}, in *fuse.LkIn, wait bool) fuse.Status {
	if f.opts.NoFlock {
		return fuse.ENOSYS
	}
	h, code := f.file(in.Fh)
	if code != fuse.OK {
		return code
	}
	l, ok := flockOf(in)
	if !ok {
		return fuse.EINVAL
	}
	l.Wait = wait
	if !wait {
		ctx := f.begin(cancel, in.Pid, opFlock)
		defer f.requests.free(ctx)
		return f.code("setlk", in.NodeId, h.Flock(ctx, &l))
	}
	defer f.counts[opFlock].Since(time.Now())
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-cancel:
			stop()
		case <-over:
		}
	}()
	err := h.Flock(ctx, &l)
	if err != nil && ctx.Err() != nil {
		err = status.Interrupted
	}
	return f.code("setlk", in.NodeId, err)
}
