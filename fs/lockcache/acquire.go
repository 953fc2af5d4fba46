package lockcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

// Request asks for a lock. It is the caller's and not kept.
type Request struct {
	Res  ldlm.ResID
	Mode ldlm.Mode
	// Match are the modes of held locks that also serve; 0 means all that allow what Mode allows.
	Match ldlm.Mode
	// Bits must be granted, TryBits are where they are free.
	Bits, TryBits ldlm.Bits
	Extent        extent.Extent
	GID           uint64
	// Flags go to the server. With ldlm.Glimpse a Grant may have no lock, only the LVB.
	Flags ldlm.Flags
	// Data comes back with the lock, in Grants that match it and in its Revocation.
	Data any
	// Leaving also takes a lock on its way back, until its Revoke is over: for calls that a Revoke may wait for, such as a READ
	// of pages that the kernel is to drop. The Revoke runs again after such a call, so what it put anywhere goes too.
	Leaving bool
	// LeavingModes are the modes of a lock on its way back that also serve such a call; 0 means as Match.
	LeavingModes ldlm.Mode
	// Fresh does not look for a held lock.
	Fresh bool
	// Intent is the opcode of a request that changes nothing, with its body, done under the lock granted; it makes the
	// request Fresh. IntentReply is memory for the reply's body, Into for its bulk.
	Intent      wire.Op
	IntentBody  []byte
	IntentReply []byte
	Into        []byte
}

// Grant is the answer. A lock in it is pinned once: Unpin.
type Grant struct {
	// Handle is 0 when no lock was granted and the LVB, or the intent's reply, is the answer.
	Handle ldlm.Handle
	// Desc is what was granted, which may be more than was asked.
	Desc ldlm.Desc
	Data any
	// Matched: the lock was held already; no request was sent and there is no LVB.
	Matched bool
	// Leaving: the lock is on its way back, for the reason in Why, and held until Unpin.
	Leaving bool
	Why     Why
	// Own names the lock: Handle, or where Leaving the lock that Handle is a use of.
	Own ldlm.Handle
	// HasLVB: LVB is the resource's as the server knew it with the grant.
	HasLVB bool
	LVB    ldlm.LVB
	// Contended: the server asks to read and write this object without locks for a while; see Lockless.
	Contended bool
	// IntentStatus, IntentReply and N, the bytes of bulk in Request.Into, answer the intent.
	IntentStatus status.Kind
	IntentReply  []byte
	N            int
}

// serving holds, for each mode in the order of its constants, the modes that allow a holder all that it does: they keep
// out all that it keeps out. GROUP serves GROUP only.
var serving = [...]ldlm.Mode{
	/* EX    */ ldlm.EX,
	/* PW    */ ldlm.EX | ldlm.PW,
	/* PR    */ ldlm.EX | ldlm.PW | ldlm.PR,
	/* CW    */ ldlm.EX | ldlm.PW | ldlm.CW,
	/* CR    */ ldlm.EX | ldlm.PW | ldlm.PR | ldlm.CW | ldlm.CR,
	/* NL    */ ldlm.EX | ldlm.PW | ldlm.PR | ldlm.CW | ldlm.CR | ldlm.NL,
	/* GROUP */ ldlm.GROUP,
}

// Serving is the set of modes that allow a holder all that m does.
func Serving(m ldlm.Mode) ldlm.Mode {
	for i, set := range serving {
		if m == 1<<i {
			return set
		}
	}
	return m
}

// Match finds and pins a held lock without any request. It takes one mutex and allocates nothing.
func (c *Cache) Match(w *ldlm.Wanted) (Grant, bool) {
	if !c.usable.Load() {
		return Grant{}, false
	}
	m, ok := c.ns.Match(w)
	if !ok {
		return Grant{}, false
	}
	return Grant{Handle: m.Handle, Own: m.Handle, Desc: m.Desc, Data: m.Data, Matched: true}, true
}

// Acquire returns a lock pinned, a held one if there is one, otherwise it asks for it and waits until it is granted. The
// caller holds no other lock of this target pinned that stands in the way, and follows the order of DESIGN section 6.
//
// Waiting takes no request slot of the import: the server answers at once, and the completion AST wakes the caller. When
// ctx ends the wish is withdrawn; a lock granted in that very moment is returned all the same.
//
// Errors: of the server as it denied: status.Again (NoWait, Speculative, TryBits alone), status.Stale and status.NotExist
// (the object is gone), status.Invalid, status.NoMemory; status.IO when all locks were lost meanwhile; ctx's error;
// status.NotConnected after Close; those of Import.Do.
func (c *Cache) Acquire(ctx context.Context, r *Request) (Grant, error) {
	if !r.Fresh && r.Intent == 0 {
		w := ldlm.Wanted{Res: r.Res, Modes: r.Match, Bits: r.Bits, Extent: r.Extent, GID: r.GID}
		if w.Modes == 0 {
			w.Modes = Serving(r.Mode)
		}
		if g, ok := c.Match(&w); ok {
			return g, nil
		}
		if r.Leaving {
			if r.LeavingModes != 0 {
				w.Modes = r.LeavingModes
			}
			if g, _ := c.shelter(ctx, &w); g.Handle != 0 {
				return g, nil
			}
		}
	}
	for try := 1; ; try++ {
		g, err := c.enqueue(ctx, r)
		if !errors.Is(err, errAgain) {
			return g, err
		}
		if try == enqueueTries {
			return Grant{}, errEvicted
		}
	}
}

// Pin pins a lock by its handle once more; false when it is gone or on its way back.
func (c *Cache) Pin(h ldlm.Handle) bool { return c.usable.Load() && c.ns.Pin(h) }

// Unpin gives one pin back and never waits. The last one lets a lock that was called back go, in another goroutine. Of a
// lock that is gone, because this client was evicted, nothing happens.
func (c *Cache) Unpin(h ldlm.Handle) {
	if h>>56 == leavingShard>>56 {
		c.leaving.end(h)
		return
	}
	var fx ldlm.Effects
	c.ns.Unpin(c.now(), h, &fx)
	c.carryOut(&fx)
	if most := c.set.most.Load(); most > 0 && c.ns.UnusedCount() > most {
		wake(c.kick)
	}
}

// Release gives up bits of an inode's lock, or a whole lock with bits 0, as soon as nobody uses it, without having been
// asked: what it covers is not worth keeping.
func (c *Cache) Release(h ldlm.Handle, bits ldlm.Bits) {
	var fx ldlm.Effects
	c.ns.CallBack(c.now(), h, &ldlm.Recall{Bits: bits}, &fx)
	c.carryOut(&fx)
}

// enqueueTries is how often a request is sent in all when grants turn out to be of a time before a loss: two losses
// within one request mean that the target throws this client out faster than it can work.
const enqueueTries = 3

// errAgain: what was granted, or answered with waiting, belongs to a time before a loss or restart; ask again.
var errAgain = errors.New("lockcache: answered before the locks were lost")

// enqueue asks the server.
func (c *Cache) enqueue(ctx context.Context, r *Request) (Grant, error) {
	if c.ctx.Err() != nil {
		return Grant{}, errClosed
	}
	w := c.newWaiter(r)
	if c.set.elc.Load() && !c.o.NoEarly && r.Flags&ldlm.Glimpse == 0 && r.Intent == 0 {
		c.Early(ctx, &w.early, &ldlm.Early{Res: r.Res, Mode: r.Mode, Bits: r.Bits, Extent: r.Extent})
	}
	c.life.RLock()
	own := c.ns.Prepare(&w.ask)
	if own != 0 {
		c.beginLocked(own, w)
	}
	c.life.RUnlock()
	if own == 0 {
		c.EarlyDone(&w.early, errAgain)
		c.release(w)
		return Grant{}, status.Errorf(status.Invalid, "lockcache: a request for %v in mode %v that no peer may make", r.Res, r.Mode)
	}
	w.fill(own, r)
	start := c.look()
	err := c.send(ctx, own, w)
	if err == errLeft {
		return Grant{}, fmt.Errorf("lockcache: lock on %v in mode %v: %w", r.Res, r.Mode, ctx.Err())
	}
	g, err := c.settle(ctx, own, w, err)
	c.figs.enqueueTime.Observe(c.look() - start)
	if err != nil && !errors.Is(err, errAgain) && c.ctx.Err() != nil {
		err = errClosed
	}
	return g, err
}

// errLeft: the caller has left before the reply, and w is the goroutine's that waits for it.
var errLeft = errors.New("lockcache: left before the reply")

// send sends the request and waits for its reply. A request must not be given up whose reply may say what nobody says again:
// that the lock is granted, and called back already. So one whose caller may leave is sent by another goroutine, which then
// does with the reply what the caller would have done.
func (c *Cache) send(ctx context.Context, own ldlm.Handle, w *waiter) error {
	if ctx.Done() == nil || w.rpc.Into != nil {
		err := c.do(ctx, &w.rpc)
		c.EarlyDone(&w.early, err)
		return err
	}
	w.own = own
	w.fate.Store(fateOpen)
	if !c.spawnAsk(w) {
		c.EarlyDone(&w.early, errClosed)
		return errClosed
	}
	select {
	case err := <-w.replied:
		return err
	case <-ctx.Done():
	}
	if w.fate.CompareAndSwap(fateOpen, fateLeft) {
		return errLeft
	}
	return <-w.replied
}

// askServer is the goroutine that sends w's request.
func (w *waiter) askServer() {
	c := w.c
	defer c.wg.Done()
	err := c.do(c.ctx, &w.rpc)
	c.EarlyDone(&w.early, err)
	if w.fate.CompareAndSwap(fateOpen, fateReplied) {
		w.replied <- err
		return
	}
	w.into, w.leaving = nil, false
	ended, cancel := context.WithCancel(c.ctx)
	cancel()
	if g, err := c.settle(ended, w.own, w, err); err == nil && g.Handle != 0 {
		c.Unpin(g.Handle)
	}
}

// settle makes of the server's answer, or its absence, what Acquire returns, and gives w back.
func (c *Cache) settle(ctx context.Context, own ldlm.Handle, w *waiter, err error) (Grant, error) {
	r := &w.reply
	if err == nil {
		c.observe(r.Slv, r.LockLimit)
	}
	if err == nil && r.Waiting {
		c.figs.waits.Inc()
		if c.park(own, w) {
			var sheltered Grant
			if sheltered, err = c.await(ctx, w); err == nil && sheltered.Handle == 0 {
				return c.woken(own, w)
			}
			if sheltered.Handle != 0 {
				return c.instead(own, w, sheltered)
			}
		} else {
			c.cancels.withdraw(own)
			err = errAgain
		}
	}
	if c.waiters.take(own) == nil { // a completion, or a loss, was first
		<-w.done
		if err == nil && r.Lock != 0 && w.err != nil {
			c.cancels.push(0, ldlm.Handle(r.Lock))
			return c.drop(own, w, errAgain)
		}
		if err == nil && r.Waiting && w.err != nil {
			c.cancels.withdraw(own)
		}
		return c.woken(own, w)
	}
	switch {
	case errors.Is(err, errAgain):
		return c.drop(own, w, err)
	case err != nil:
		if uncertain(ctx, err) {
			c.cancels.withdraw(own)
		}
		return c.drop(own, w, fmt.Errorf("lockcache: lock on %v in mode %v: %w", w.ask.Res, w.ask.Mode, err))
	case r.Lock == 0:
		g := w.grant(0, ldlm.Desc{})
		c.contended(w.ask.Res, g.Contended)
		_, err := c.drop(own, w, nil)
		return g, err
	}
	var a ldlm.Answer
	if err = wire.EnqueueReply(r, &a); err == nil {
		err = c.enter(own, w, &a)
	}
	if err != nil {
		return c.drop(own, w, err)
	}
	g := w.grant(own, a.Desc)
	c.contended(w.ask.Res, g.Contended)
	c.release(w)
	return g, nil
}

// await waits until w is completed. It returns early with an error, or with a lock on its way back that serves as well.
func (c *Cache) await(ctx context.Context, w *waiter) (Grant, error) {
	for {
		var changed <-chan struct{}
		if w.leaving {
			want := ldlm.Wanted{Res: w.ask.Res, Modes: w.shelters, Bits: w.ask.Bits, Extent: w.ask.Extent, GID: w.ask.GID}
			var g Grant
			if g, changed = c.shelter(ctx, &want); g.Handle != 0 {
				return g, nil
			}
		}
		select {
		case <-w.done:
			return Grant{}, nil
		case <-ctx.Done():
			return Grant{}, ctx.Err()
		case <-c.ctx.Done():
			return Grant{}, errClosed
		case <-changed:
		}
	}
}

// instead gives a wish up for a lock on its way back, which g holds.
func (c *Cache) instead(own ldlm.Handle, w *waiter, g Grant) (Grant, error) {
	if c.waiters.take(own) == nil {
		<-w.done
		c.leaving.end(g.Handle)
		return c.woken(own, w)
	}
	c.cancels.withdraw(own)
	c.drop(own, w, nil)
	return g, nil
}

// woken is settle after somebody else has completed w.
func (c *Cache) woken(own ldlm.Handle, w *waiter) (Grant, error) {
	if w.err != nil {
		return c.drop(own, w, w.err)
	}
	g := w.grant(own, w.desc)
	c.contended(w.ask.Res, g.Contended)
	c.release(w)
	return g, nil
}

// drop forgets a lock that was not granted, or of whose grant this client does not know. Such a one may have been called
// back, and the AST answered, while it was still waited for: then its cancel is what the server waits for.
func (c *Cache) drop(own ldlm.Handle, w *waiter, err error) (Grant, error) {
	c.ns.Drop(own)
	if remote := c.called.take(own); remote != 0 {
		c.cancels.push(0, remote)
	}
	c.release(w)
	return Grant{}, err
}

// enter puts a granted lock into the mirror. A lock granted before a loss is given back and errAgain returned.
func (c *Cache) enter(own ldlm.Handle, w *waiter, a *ldlm.Answer) error {
	if !fits(w, &a.Desc) {
		c.cancels.push(0, a.Remote)
		return status.Errorf(status.Protocol, "lockcache: asked for %v in mode %v, the server granted %+v", w.ask.Res, w.ask.Mode, a.Desc)
	}
	c.life.RLock()
	ok := c.epoch == w.epoch && c.ns.Settle(own, a)
	c.life.RUnlock()
	if !ok {
		c.cancels.push(0, a.Remote)
		return errAgain
	}
	if a.Blocked {
		c.called.add(own, a.Remote, c.now())
	}
	return nil
}

// fits reports whether a grant is at least what was asked; anything else would let this client work without a lock.
func fits(w *waiter, d *ldlm.Desc) bool {
	if !d.Mode.Valid() || Serving(w.ask.Mode)&d.Mode == 0 {
		return false
	}
	switch w.ask.Res.Type {
	case ldlm.TypeExtent:
		return d.Extent.Contains(w.ask.Extent)
	case ldlm.TypeInodeBits:
		return d.Bits&w.ask.Bits == w.ask.Bits && d.Bits != 0
	}
	return true
}

// uncertain reports whether the server may grant the lock although the request has failed here.
func uncertain(ctx context.Context, err error) bool {
	k := status.Of(err)
	return ctx.Err() != nil || k == status.TimedOut || k == status.Interrupted
}

// Lockless reports whether the server asked, within contention_hold_seconds, to read and write an object without locks.
func (c *Cache) Lockless(res ldlm.ResID) bool { return c.hints.has(res, c.now()) }

func (c *Cache) contended(res ldlm.ResID, is bool) {
	if is {
		c.figs.contended.Inc()
		c.hints.set(res, c.now(), c.ns.Limits().ContentionHold)
	}
}
