package lockcache

import (
	"context"

	"github.com/strakefs/strake/fs/ldlm"
)

// earlyMax bounds the cancels that travel with one request: Lustre's batch. What does not fit is called back as usual.
const earlyMax = 16

// Early is the list of this client's own locks that a request cancels (early lock cancel). Its zero value is empty; it is
// the caller's and may be used again after EarlyDone.
type Early struct {
	// Handles are the server's, for the request's field cancels.
	Handles []uint64
	locks   [earlyMax]ldlm.Cancel
	n       int
}

// Early appends to e this client's unused locks that conflict with what a request is about to take, after the owner has
// revoked what they cover, in this goroutine; that is not cut short when ctx ends. They go with the request, so that no blocking AST comes back for them. Call
// EarlyDone with what became of the request.
func (c *Cache) Early(ctx context.Context, e *Early, about *ldlm.Early) {
	if !c.set.elc.Load() || ctx.Err() != nil {
		return
	}
	first := e.n
	e.n = len(c.ns.EarlyCancel(about, e.locks[:e.n:earlyMax]))
	for i := first; i < e.n; i++ {
		l := &e.locks[i]
		j := job{why: WhyEarly, own: l.Handle, remote: l.Remote, res: l.Res, desc: l.Desc, data: l.Data,
			bits: bitsOf(l.Res, l.Desc.Bits)}
		j.leave = c.leaving.add(&j)
		c.revoke(c.ctx, &j)
		e.Handles = append(e.Handles, uint64(l.Remote))
		c.figs.early.Inc()
	}
}

// EarlyDone forgets the locks of e: their cancels went with a request that was answered without an error. After any
// other end they are sent by themselves.
func (c *Cache) EarlyDone(e *Early, err error) {
	for i := range e.locks[:e.n] {
		l := &e.locks[i]
		if err == nil {
			c.forget(l.Handle)
		} else {
			c.cancels.push(l.Handle, l.Remote)
		}
		*l = ldlm.Cancel{}
	}
	e.n, e.Handles = 0, e.Handles[:0]
}
