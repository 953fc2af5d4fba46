package lockcache

import (
	"sync"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

const (
	// cancelBatch bounds the handles of one request; beyond it others of the server's workers wait too long.
	cancelBatch = 512
	// cancelSenders is how many CANCELs are in flight at once: one alone goes without waiting for the one before, and what
	// comes while two are away goes together.
	cancelSenders = 2
)

// cancelled is a lock whose cancel is to be sent. own is 0 when the mirror does not have it.
type cancelled struct{ own, remote ldlm.Handle }

// canceller sends cancels, many in a request.
//
// Invariant: the mirror has a lock until the answer to its cancel is there, so that a blocking AST which crosses finds it.
type canceller struct {
	c       *Cache
	workers sync.WaitGroup

	mu       sync.Mutex
	locks    []cancelled   // guarded by mu
	waiting  []ldlm.Handle // wishes to withdraw; guarded by mu
	senders  int           // guarded by mu
	inFlight int           // handles; guarded by mu
	idle     chan struct{} // closed when all is sent; nil when nobody waits; guarded by mu
	closed   bool          // guarded by mu
}

// push queues a cancel; it never waits.
func (k *canceller) push(own, remote ldlm.Handle) {
	k.mu.Lock()
	k.locks = append(k.locks, cancelled{own, remote})
	k.startLocked()
	k.mu.Unlock()
}

// withdraw queues the end of a wish whose answer this client does not have, or not wait for any more.
func (k *canceller) withdraw(own ldlm.Handle) {
	k.mu.Lock()
	k.waiting = append(k.waiting, own)
	k.startLocked()
	k.mu.Unlock()
}

func (k *canceller) startLocked() {
	if k.senders < cancelSenders && !k.closed {
		k.senders++
		k.workers.Go(k.send)
	}
}

// cancelling is what one sender works with.
type cancelling struct {
	batch []cancelled
	req   wirepb.CancelRequest
	reply wirepb.CancelReply
}

// send sends what is queued until nothing is.
func (k *canceller) send() {
	s, _ := k.c.cancelMemory.Get().(*cancelling)
	if s == nil {
		s = new(cancelling)
	}
	for k.take(s) {
		s.reply.ResetVT()
		err := k.c.do(k.c.ctx, &rpc.Request{Op: wire.OpCancel, Body: &s.req, Reply: &s.reply})
		if err == nil {
			k.c.observe(s.reply.Slv, s.reply.LockLimit)
		} else if k.c.ctx.Err() == nil {
			// Lost with the export, or refused: nothing that was in it is held there any more, or the target ends it.
			k.c.log.Debug("cancels were not answered", "locks", len(s.batch), "error", err)
		}
		k.c.figs.cancelRPCs.Inc()
		k.c.figs.cancelledLocks.Add(int64(len(s.req.Locks)))
		for _, l := range s.batch {
			if l.own != 0 {
				k.c.forget(l.own)
			}
		}
	}
	k.c.cancelMemory.Put(s)
}

// forget drops a lock that has been given back.
func (c *Cache) forget(own ldlm.Handle) {
	c.ns.Drop(own)
	c.called.forget(own)
}

// take fills a request with what is queued; false when the sender is to end.
func (k *canceller) take(s *cancelling) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inFlight -= len(s.batch)
	s.batch, s.req.Locks, s.req.Waiting = s.batch[:0], s.req.Locks[:0], s.req.Waiting[:0]
	n := min(len(k.locks), cancelBatch)
	for _, l := range k.locks[:n] {
		s.batch = append(s.batch, l)
		s.req.Locks = append(s.req.Locks, uint64(l.remote))
	}
	k.locks = k.locks[:copy(k.locks, k.locks[n:])]
	w := min(len(k.waiting), cancelBatch)
	for _, h := range k.waiting[:w] {
		s.req.Waiting = append(s.req.Waiting, uint64(h))
	}
	k.waiting = k.waiting[:copy(k.waiting, k.waiting[w:])]
	k.inFlight += n
	if n+w > 0 && !k.closed {
		return true
	}
	k.senders--
	if k.idle != nil && k.senders == 0 {
		close(k.idle)
		k.idle = nil
	}
	return false
}

// forgetAll drops what is queued: the locks are lost.
func (k *canceller) forgetAll() {
	k.mu.Lock()
	k.locks, k.waiting = k.locks[:0], k.waiting[:0]
	k.mu.Unlock()
}

// flushed is closed when all that is queued now has been answered.
func (k *canceller) flushed() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.senders == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if k.idle == nil {
		k.idle = make(chan struct{})
	}
	return k.idle
}

// depth is the number of locks whose cancel is queued or not answered.
func (k *canceller) depth() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return int64(len(k.locks) + k.inFlight)
}

// close drops what is queued and waits for the senders.
func (k *canceller) close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.workers.Wait()
}
