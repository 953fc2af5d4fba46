package client

import (
	"context"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
)

// Flock is a lock of an application, as flock(2) and fcntl(2) ask for it. All clients see it.
type Flock struct {
	// Owner is the kernel's number of the process (fcntl) or of the open file.
	Owner uint64
	PID   uint32
	// BSD is flock(2)'s: the whole file.
	BSD    bool
	Op     ldlm.FlockOp
	Extent extent.Extent
	// Wait waits until the lock is free.
	Wait bool
}

// flockOwners are owners of application locks.
type flockOwners map[flockOwner]struct{}

type flockOwner struct {
	owner uint64
	class ldlm.FlockClass
}

func (l *Flock) owner() flockOwner {
	if l.BSD {
		return flockOwner{l.Owner, ldlm.BSD}
	}
	return flockOwner{l.Owner, ldlm.Posix}
}

func (h *Handle) flockRequest(l *Flock) ldlm.FlockRequest {
	return ldlm.FlockRequest{
		Res: ldlm.FlockRes(h.in.fid), Op: l.Op, Wait: l.Wait,
		Range: ldlm.FlockRange{
			Extent: l.Extent, Owner: ldlm.FlockOwner{Owner: l.Owner, Class: l.owner().class}, PID: l.PID,
		},
	}
}

// Flock takes or gives up a lock. Again without Wait where another one is in the way; Deadlock when waiting for it would
// never end; ctx's error.
func (h *Handle) Flock(ctx context.Context, l *Flock) error {
	if err := h.alive(ctx); err != nil {
		return err
	}
	r := h.flockRequest(l)
	if l.Op == ldlm.FlockUnlock {
		if !h.in.locks(l.owner()) {
			return nil
		}
		return h.c.locks.Unflock(ctx, &r)
	}
	// Who asks is noted before: a lock that is granted while its asker is killed is found at the close.
	h.in.mu.Lock()
	if h.in.flocks == nil {
		h.in.flocks = make(flockOwners)
	}
	h.in.flocks[l.owner()] = struct{}{}
	if h.flocks == nil {
		h.flocks = make(flockOwners)
	}
	h.flocks[l.owner()] = struct{}{}
	h.in.mu.Unlock()
	return h.c.locks.Flock(ctx, &r)
}

// locks reports whether an owner may hold locks on the file.
func (in *inode) locks(o flockOwner) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	_, ok := in.flocks[o]
	return ok
}

// flocked reports whether any application lock was taken on the file since it is in use.
func (in *inode) flocked() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.flocks != nil
}

// TestFlock finds a lock that would be in the way of l.
func (h *Handle) TestFlock(ctx context.Context, l *Flock) (lockcache.FlockHolder, bool, error) {
	if err := h.alive(ctx); err != nil {
		return lockcache.FlockHolder{}, false, err
	}
	r := h.flockRequest(l)
	return h.c.locks.TestFlock(ctx, &r)
}

// Unlock gives up all locks of an owner on the file: a process gives up its fcntl locks with the first close of the file,
// through whichever handle.
func (h *Handle) Unlock(ctx context.Context, owner uint64, bsd bool) error {
	l := Flock{Owner: owner, BSD: bsd, Op: ldlm.FlockUnlock, Extent: extent.Extent{End: extent.EOF}}
	return h.unlock(ctx, &l)
}

func (h *Handle) unlock(ctx context.Context, l *Flock) error {
	o := l.owner()
	h.in.mu.Lock()
	_, ok := h.in.flocks[o]
	delete(h.in.flocks, o)
	delete(h.flocks, o)
	h.in.mu.Unlock()
	if !ok {
		return nil
	}
	r := h.flockRequest(l)
	return h.c.locks.Unflock(ctx, &r)
}

// unlockAll gives up what is left of locks taken through the handle when it ends: flock(2)'s and those of open file
// descriptions.
func (h *Handle) unlockAll() {
	h.in.mu.Lock()
	left := make([]flockOwner, 0, len(h.flocks))
	for o := range h.flocks {
		left = append(left, o)
	}
	h.in.mu.Unlock()
	for _, o := range left {
		if err := h.Unlock(h.c.ctx, o.owner, o.class == ldlm.BSD); err != nil && h.c.ctx.Err() == nil {
			h.c.log.Warn("locks of a closed file are not given up", "fid", h.in.fid, "err", err)
		}
	}
}
