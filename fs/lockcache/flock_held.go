package lockcache

import (
	"context"
	"errors"
	"sync"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// heldFlocks is what applications of this client hold, as the server knows it: for a server that was started again. It is changed
// with the answers, before a recovery of the import can begin.
type heldFlocks struct {
	mu    sync.Mutex
	files map[ldlm.ResID]*ldlm.FlockTable // guarded by mu
}

// change takes or clears a range of a file.
func (f *heldFlocks) change(r *ldlm.FlockRequest, set bool) {
	if r.Range.Owner.Class == ldlm.BSD {
		r.Range.Extent = extent.Extent{End: extent.EOF}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.files[r.Res]
	if t == nil {
		if !set {
			return
		}
		if f.files == nil {
			f.files = map[ldlm.ResID]*ldlm.FlockTable{}
		}
		t = new(ldlm.FlockTable)
		f.files[r.Res] = t
	}
	if set {
		t.Set(&r.Range)
	} else {
		t.Clear(&r.Range)
	}
	if len(t.Ranges()) == 0 {
		delete(f.files, r.Res)
	}
}

// granted notes what a wish has brought.
func (f *heldFlocks) granted(m *wirepb.EnqueueRequest) {
	var r ldlm.FlockRequest
	if wire.Flock(m, &r) == nil {
		r.Range.Write = r.Op == ldlm.FlockExclusive
		f.change(&r, true)
	}
}

// denied notes that a wish waits or was denied: flock(2) gives up what is held in the other mode first.
func (f *heldFlocks) denied(m *wirepb.EnqueueRequest) {
	var r ldlm.FlockRequest
	if wire.Flock(m, &r) == nil && r.Range.Owner.Class == ldlm.BSD {
		f.change(&r, false)
	}
}

// enqueued is Request.Answered of a wish.
func (f *heldFlocks) enqueued(r *rpc.Request) {
	if m := r.Body.(*wirepb.EnqueueRequest); r.Reply.(*wirepb.EnqueueReply).Waiting {
		f.denied(m)
	} else {
		f.granted(m)
	}
}

// unlocked is Request.Answered of an unlock.
func (f *heldFlocks) unlocked(r *rpc.Request) {
	var q ldlm.FlockRequest
	if wire.FlockRequest(r.Body.(*wirepb.FlockRequest), &q) == nil {
		f.change(&q, false)
	}
}

// clear forgets all.
func (f *heldFlocks) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files = nil
}

// list returns all that is held, as wishes without waiting.
func (f *heldFlocks) list() (all []ldlm.FlockRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for res, t := range f.files {
		for _, r := range t.Ranges() {
			op := ldlm.FlockShared
			if r.Write {
				op = ldlm.FlockExclusive
			}
			all = append(all, ldlm.FlockRequest{Res: res, Op: op, Range: r})
		}
	}
	return all
}

// RestoreFlocks hands the locks of applications back to a target that was started again, through a recovery of the import. One
// that the target refuses is lost, and logged. It returns the number of those, and the error that ended it: the connection's loss, or
// ctx's.
func (c *Cache) RestoreFlocks(ctx context.Context, v *rpc.Recovery) (lost int, err error) {
	all := c.mine.list()
	var m wirepb.EnqueueRequest
	for i := range all {
		r := &all[i]
		m.ResetVT()
		wire.PutFlock(&m, r, flockShard|ldlm.Handle(c.flocks.Add(1))&(1<<56-1))
		m.Flags |= uint32(ldlm.Replay)
		err := v.Do(ctx, &rpc.Request{Op: wire.OpEnqueue, Body: &m})
		switch {
		case err == nil:
		case ctx.Err() != nil, errors.Is(err, status.NotConnected):
			return lost, err
		default:
			lost++
			c.log.Error("an application's lock could not be handed back", "fid", r.Res.FID(), "pid", r.Range.PID, "error", err)
			c.mine.change(r, false)
		}
	}
	return lost, nil
}
