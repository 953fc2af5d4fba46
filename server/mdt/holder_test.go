package mdt

import (
	"maps"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// holder keeps the locks of one client: it asks for some with every request, and gives back what is called back.
type holder struct {
	cl *client
	// late is how long it waits before it gives back; never: it does not. lost is called, under mu, with what goes.
	late  time.Duration
	never bool
	lost  func(fid.FID, ldlm.Bits)
	// transport is the client's own, nil for the cluster's.
	transport rpc.Transport

	mu     sync.Mutex
	bits   ldlm.Bits                  // wanted; guarded by mu
	locks  map[uint64]heldLock        // guarded by mu
	early  map[uint64]bool            // called back before they came; guarded by mu
	called map[ldlm.ResID]ldlm.Bits   // what was called back; guarded by mu
	asts   map[ldlm.ResID]int         // guarded by mu
	wakes  map[chan struct{}]struct{} // guarded by mu
	forgot map[uint64]bool            // guarded by mu
	giving sync.WaitGroup
}

type heldLock struct {
	fid  fid.FID
	bits ldlm.Bits
}

// allBits is what a client caches.
const allBits = ldlm.Lookup | ldlm.Update | ldlm.Perm | ldlm.Layout | ldlm.Xattr

// holding makes a client that asks for locks.
func (c *cluster) holding(opts ...func(*holder)) *client {
	h := &holder{bits: allBits, locks: map[uint64]heldLock{}, early: map[uint64]bool{}, forgot: map[uint64]bool{}, called: map[ldlm.ResID]ldlm.Bits{},
		asts: map[ldlm.ResID]int{}, wakes: map[chan struct{}]struct{}{}}
	for _, o := range opts {
		o(h)
	}
	cl := c.client(func(o *rpc.ImportOptions) {
		o.Callback = h.callback
		if h.transport != nil {
			o.Transport = h.transport
		}
	})
	h.cl, cl.h = cl, h
	c.t.Cleanup(h.giving.Wait)
	return cl
}

func (h *holder) wish() *wirepb.LockWant {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bits == 0 {
		return nil
	}
	return &wirepb.LockWant{Mode: uint32(ldlm.PR), TryBits: uint32(h.bits)}
}

// take enters the locks of an answer. Those that add nothing to what is held go back at once.
func (h *holder) take(locks []*wirepb.LockGrant) {
	var again []uint64
	defer func() {
		for len(again) > 0 {
			n := min(len(again), wire.CancelsMax)
			h.cancel(again[:n])
			again = again[n:]
		}
	}()
	for _, g := range locks {
		var a ldlm.Answer
		id, _, err := wire.Grant(g, &a)
		if err != nil {
			h.cl.t.Errorf("a grant that makes no sense: %v", err)
			continue
		}
		h.mu.Lock()
		if h.early[g.Lock] {
			delete(h.early, g.Lock)
			h.mu.Unlock()
			h.giveBack(g.Lock)
			continue
		}
		if h.holdsLocked(id.FID())&a.Desc.Bits == a.Desc.Bits {
			again = append(again, g.Lock)
			h.forgot[g.Lock] = true
			h.mu.Unlock()
			continue
		}
		h.locks[g.Lock] = heldLock{id.FID(), a.Desc.Bits}
		h.mu.Unlock()
	}
}

// callback serves a blocking AST.
func (h *holder) callback(_ *env.Env, c *rpc.Call) error {
	if c.Header.Op != wire.OpBlockingAST {
		return nil
	}
	m := &wirepb.BlockingAST{}
	if err := c.Decode(m); err != nil {
		return err
	}
	id := ldlm.ResID{Seq: m.ResSeq, OID: m.ResOid, Hash: m.ResHash, Type: ldlm.Type(m.ResType)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.called[id] |= ldlm.Bits(m.Cancel)
	h.asts[id]++
	for w := range h.wakes {
		close(w)
		delete(h.wakes, w)
	}
	if h.forgot[m.Lock] {
		return status.BadHandle
	}
	if _, ok := h.locks[m.Lock]; !ok {
		h.early[m.Lock] = true
		return nil
	}
	if h.never {
		return nil
	}
	h.giving.Go(func() {
		if h.late > 0 {
			<-time.After(h.late)
		}
		h.giveBack(m.Lock)
	})
	return nil
}

// giveBack forgets a lock, then tells the server.
func (h *holder) giveBack(lock uint64) {
	h.mu.Lock()
	l := h.locks[lock]
	delete(h.locks, lock)
	if h.lost != nil {
		h.lost(l.fid, l.bits)
	}
	h.mu.Unlock()
	h.cancel([]uint64{lock})
}

func (h *holder) cancel(locks []uint64) {
	err := h.cl.do(wire.OpCancel, &wirepb.CancelRequest{Locks: locks}, &wirepb.CancelReply{})
	if k := status.Of(err); err != nil && k != status.NotConnected && k != status.Stopping && h.cl.t.Context().Err() == nil {
		h.cl.t.Errorf("cancel: %v", err)
	}
}

// holds is the union of the bits held on an inode.
func (h *holder) holds(f fid.FID) ldlm.Bits {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holdsLocked(f)
}

func (h *holder) holdsLocked(f fid.FID) (b ldlm.Bits) {
	for _, l := range h.locks {
		if l.fid == f {
			b |= l.bits
		}
	}
	return b
}

// forget forgets the locks on an inode, as if they had never come.
func (h *holder) forget(f fid.FID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for lock, l := range h.locks {
		if l.fid == f {
			delete(h.locks, lock)
			h.forgot[lock] = true
		}
	}
}

// recalled returns what was called back of inodes since the last call.
func (h *holder) recalled() map[ldlm.ResID]ldlm.Bits {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := maps.Clone(h.called)
	clear(h.called)
	return m
}

// next returns a channel that closes at the next AST.
func (h *holder) next() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := make(chan struct{})
	h.wakes[w] = struct{}{}
	return w
}

// lockOf is the handle of some lock on an inode that has a bit.
func (h *holder) lockOf(f fid.FID, b ldlm.Bits) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for lock, l := range h.locks {
		if l.fid == f && l.bits&b != 0 {
			return lock
		}
	}
	return 0
}

// has reports whether a lock is still held.
func (h *holder) has(lock uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.locks[lock]
	return ok
}
