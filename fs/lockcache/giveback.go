package lockcache

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// action is what follows the owner's Revoke.
type action uint8

const (
	actRevoke action = iota // nothing: the lock is gone already
	actCancel
	actConvert
)

// job is one lock on its way back. bits are those given up; of an inode's lock with actConvert, fewer than it has.
type job struct {
	act         action
	why         Why
	discard     bool
	bits        ldlm.Bits
	own, remote ldlm.Handle
	res         ldlm.ResID
	desc        ldlm.Desc
	data        any
	batch       *batch // told when all is done; may be nil
	leave       *leave // nil when the lock is gone already
}

// batch waits for some jobs.
type batch struct {
	left atomic.Int64
	over chan struct{} // closed when none is left
}

func newBatch(n int) *batch {
	b := &batch{over: make(chan struct{})}
	b.left.Store(int64(n))
	return b
}

func (b *batch) done() {
	if b.left.Add(-1) == 0 {
		close(b.over)
	}
}

// carryOut hands the effects of a mirror's step to workers. It never waits.
func (c *Cache) carryOut(fx *ldlm.Effects) {
	for i := range fx.List {
		e := &fx.List[i]
		j := job{act: actCancel, why: WhyBlocking, own: e.Handle, remote: e.Remote, res: e.Res, desc: e.Desc, data: e.Data,
			discard: e.Discard, bits: bitsOf(e.Res, e.Desc.Bits)}
		if e.Kind == ldlm.EffectConvert {
			j.act, j.bits = actConvert, e.Cancel
			c.called.convert(e.Handle, true)
		}
		j.leave = c.leaving.add(&j)
		c.revokes.push(&j)
	}
}

// perform runs a job in a worker.
func (c *Cache) perform(j *job) {
	if j.act != actConvert || j.bits != 0 {
		c.revoke(c.ctx, j)
	} else { // an AST that came late named bits that are gone
		for !c.leaving.finish(c.ctx, j.leave) {
		}
	}
	if j.batch != nil {
		defer j.batch.done()
	}
	switch j.act {
	case actCancel:
		remote := j.remote
		if h, ok := c.Remote(j.own); ok { // handed back meanwhile, the lock has another one
			remote = h
		}
		c.cancels.push(j.own, remote)
	case actConvert:
		c.convert(j)
	}
}

// revoke lets the owner clear what a job's lock covers.
func (c *Cache) revoke(ctx context.Context, j *job) {
	r, _ := c.revocations.Get().(*Revocation)
	if r == nil {
		r = new(Revocation)
	}
	c.figs.revoked[j.why].Inc()
	for over := false; !over; {
		if j.leave != nil {
			c.leaving.begin(j.leave)
		}
		*r = Revocation{Lock: j.own, Res: j.res, Desc: j.desc, Bits: j.bits, Discard: j.discard, Why: j.why, Data: j.data}
		c.o.Owner.Revoke(ctx, r)
		over = j.leave == nil || c.leaving.finish(ctx, j.leave)
	}
	*r = Revocation{}
	c.revocations.Put(r)
}

// convert gives up the bits of a job and keeps the rest of the lock.
func (c *Cache) convert(j *job) {
	keep := j.desc.Bits &^ j.bits
	var reply wirepb.ConvertReply
	err := c.do(c.ctx, &rpc.Request{Op: wire.OpConvert, Reply: &reply,
		Body: &wirepb.ConvertRequest{Lock: uint64(j.remote), Bits: uint32(keep)}})
	c.called.convert(j.own, false)
	d, bad := wire.ConvertReply(&reply)
	if err == nil {
		err = bad
	}
	d.Bits &= keep // what was revoked here is not covered, whatever the server says
	var fx ldlm.Effects
	if err == nil && d.Bits != 0 && d.Mode.Valid() {
		c.called.forget(j.own)
		c.observe(reply.Slv, reply.LockLimit)
		c.ns.Converted(c.now(), j.own, d, &fx)
		c.figs.converts.Inc()
		if l, ok := c.ns.Lock(ldlm.Local, j.own); ok && l.Blocked { // called back for more meanwhile
			c.called.add(j.own, j.remote, c.now())
		}
		c.carryOut(&fx)
		return
	}
	if k := status.Of(err); err != nil && k != status.BadHandle && c.ctx.Err() == nil {
		c.log.Warn("a lock could not be converted and is given back", "lock", j.remote, "resource", j.res, "error", err)
	}
	c.surrender(j)
}

// surrender gives the rest of a lock back whose conversion failed.
func (c *Cache) surrender(j *job) {
	var fx ldlm.Effects
	c.ns.CallBack(c.now(), j.own, &ldlm.Recall{}, &fx)
	// The mirror waits for an answer to the conversion: that nothing changed. Then all of it is called back.
	c.ns.Converted(c.now(), j.own, j.desc, &fx)
	c.carryOut(&fx)
}

// pool runs jobs in at most max goroutines, which end when there is nothing to do. Its queue is bounded by the locks that
// this client holds: each is in it once.
type pool struct {
	c       *Cache
	max     int
	workers sync.WaitGroup

	mu      sync.Mutex
	queue   []job // guarded by mu
	head    int   // jobs before it are taken; guarded by mu
	running int   // guarded by mu
	closed  bool  // guarded by mu
}

func (p *pool) init(c *Cache, most int) { p.c, p.max = c, most }

// push takes a job; it never waits. After close its batch is told and nothing else happens.
func (p *pool) push(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		if j.batch != nil {
			j.batch.done()
		}
		return
	}
	p.queue = append(p.queue, *j)
	if p.running < p.max {
		p.running++
		p.workers.Go(p.work)
	}
}

// take is the next job; false when the worker is to end.
func (p *pool) take(j *job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.head == len(p.queue) || p.closed {
		p.running--
		return false
	}
	*j = p.queue[p.head]
	p.queue[p.head] = job{}
	if p.head++; p.head == len(p.queue) {
		p.queue, p.head = p.queue[:0], 0
		if cap(p.queue) > poolKept {
			p.queue = nil
		}
	} else if p.head >= poolKept && p.head*2 >= len(p.queue) {
		n := copy(p.queue, p.queue[p.head:])
		clear(p.queue[n:])
		p.queue, p.head = p.queue[:n], 0
	}
	return true
}

// poolKept is the length of a queue whose memory is kept.
const poolKept = 1024

func (p *pool) work() {
	var j job
	for p.take(&j) {
		p.c.perform(&j)
	}
}

// depth is the number of jobs queued and running.
func (p *pool) depth() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(len(p.queue) - p.head + p.running)
}

// close drops what is queued and waits for the workers.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	for i := p.head; i < len(p.queue); i++ {
		if b := p.queue[i].batch; b != nil {
			b.done()
		}
	}
	p.queue, p.head = nil, 0
	p.mu.Unlock()
	p.workers.Wait()
}
