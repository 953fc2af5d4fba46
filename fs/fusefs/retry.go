package fusefs

import (
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/strakefs/strake/fs/status"
)

// retryTime is how long after an ESTALE the same thread's next request counts as the kernel's second try.
const retryTime = 2 * time.Second

// retries knows the threads that were told that a folder is gone. The kernel then walks the path again, once; a folder that
// is gone again by then was removed while the call was running, and that is what its caller is told.
type retries struct {
	mu sync.Mutex
	m  map[uint32]time.Time // by thread; guarded by mu
}

// second reports whether a thread was told a moment ago, and else notes it.
func (r *retries) second(tid uint32) bool {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if t, ok := r.m[tid]; ok {
		delete(r.m, tid)
		if now.Sub(t) < retryTime {
			return true
		}
	}
	if r.m == nil || len(r.m) >= 1024 {
		r.m = make(map[uint32]time.Time)
	}
	r.m[tid] = now
	return false
}

// pathCode is code for requests of calls that walk a path.
func (f *FS) pathCode(op string, h *fuse.InHeader, err error) fuse.Status {
	if err != nil && status.Of(err) == status.Stale && f.retries.second(h.Pid) {
		err = status.NotExist
	}
	return f.code(op, h.NodeId, err)
}
