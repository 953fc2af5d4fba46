package fusefs

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/status"
)

// aheadTries bounds how often one LOOKUP follows a name that is given to other files all the time.
const aheadTries = 16

// aheadOpens keep files alive, and remember symbolic links, between the LOOKUP and the OPEN or READLINK of one open(2). A name that others are renamed over all the
// time leads to an inode that is gone when the OPEN comes: the kernel is told ESTALE then and looks once more, and a second
// ESTALE it would give to its caller, though the name was never absent. So the thread's LOOKUPs from then on open what they
// find, until its OPEN has come or a while has passed.
type aheadOpens struct {
	n  atomic.Int32 // len of m, so that others look at nothing else
	mu sync.Mutex
	m  map[uint32]*aheadOpen // by thread; guarded by mu
}

// aheadOpen is one thread's. Its fields are guarded by the table's mu.
type aheadOpen struct {
	timer *time.Timer
	h     *client.Handle // of the file that a LOOKUP has found, nil for none
	// link and target are of the symbolic link that it has found, target nil for none.
	link   attr.Attr
	target []byte
}

// ask notes that a thread's OPEN came too late.
func (a *aheadOpens) ask(tid uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.m[tid]; ok {
		return
	}
	if a.m == nil {
		a.m = make(map[uint32]*aheadOpen)
	}
	o := &aheadOpen{}
	o.timer = time.AfterFunc(retryTime, func() { a.end(tid, o) })
	a.m[tid] = o
	a.n.Store(int32(len(a.m)))
}

// asked reports whether a thread's LOOKUP should open what it finds.
func (a *aheadOpens) asked(tid uint32) bool {
	if a.n.Load() == 0 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.m[tid]
	return ok
}

// keep holds a file, or a link and its target, for what the thread asks next; what was held before is let go.
func (a *aheadOpens) keep(tid uint32, h *client.Handle, link *attr.Attr, target []byte) {
	a.mu.Lock()
	if o, ok := a.m[tid]; ok {
		o.h, h = h, o.h
		o.link, o.target = *link, target
	}
	a.mu.Unlock()
	if h != nil {
		h.Release()
	}
}

// linkOf gives the symbolic link that the thread's LOOKUP has found, if it was f.
func (a *aheadOpens) linkOf(tid uint32, f fid.FID) (link attr.Attr, target []byte, ok bool) {
	if a.n.Load() == 0 {
		return attr.Attr{}, nil, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if o := a.m[tid]; o != nil && o.target != nil && o.link.FID == f {
		return o.link, o.target, true
	}
	return attr.Attr{}, nil, false
}

// done lets go what is held for a thread, whose OPEN has come.
func (a *aheadOpens) done(tid uint32) {
	if a.n.Load() == 0 {
		return
	}
	a.mu.Lock()
	o := a.m[tid]
	a.mu.Unlock()
	if o != nil {
		a.end(tid, o)
	}
}

func (a *aheadOpens) end(tid uint32, o *aheadOpen) {
	a.mu.Lock()
	h := o.h
	o.h = nil
	if a.m[tid] == o {
		delete(a.m, tid)
	}
	a.n.Store(int32(len(a.m)))
	a.mu.Unlock()
	o.timer.Stop()
	if h != nil {
		h.Release()
	}
}

// close lets everything go: the mount ends.
func (a *aheadOpens) close() {
	a.mu.Lock()
	all := a.m
	a.m = nil
	a.n.Store(0)
	a.mu.Unlock()
	for tid, o := range all {
		a.end(tid, o)
	}
}

// lookup finds a name, and opens the file for a thread whose OPEN came too late.
func (f *FS) lookup(ctx context.Context, who *mdc.Caller, parent uint64, name string, a *attr.Attr) error {
	for try := 0; ; try++ {
		err := f.c.Lookup(ctx, who, f.node(parent), name, a)
		if err != nil || !f.ahead.asked(who.PID) {
			return err
		}
		var h *client.Handle
		var opened attr.Attr
		var target []byte
		switch a.Type() {
		case attr.TypeFile:
			h, err = f.c.Open(ctx, who, a.FID, syscall.O_RDONLY, &opened)
		case attr.TypeLink:
			target, err = f.c.Readlink(ctx, who, a.FID)
		}
		switch k := status.Of(err); {
		case err == nil:
			f.ahead.keep(who.PID, h, a, target)
			return nil
		case k != status.NotExist && k != status.Stale || try == aheadTries:
			return nil // What the kernel asks next will say why.
		}
	}
}
