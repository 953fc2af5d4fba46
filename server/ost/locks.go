package ost

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"math"
	"sync"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/server/lockd"
	"github.com/strakefs/strake/server/target"
)

// peer is what the OST keeps of an export.
type peer struct {
	grants
	locks *lockd.Client // nil for those who get no locks: all but client mounts

	mu      sync.Mutex
	working []fid.ObjectID // objects that its requests work on under locks of its own, one entry each; guarded by mu
}

func peerOf(x *target.Export) *peer { return x.State.(*peer) }

// openLocks makes the namespace, empty.
func (o *OST) openLocks() {
	l := o.o.Locks
	l.Name, l.Objects, l.Evict, l.Busy = "filter-"+o.o.Name, objects{o}, o.evict, o.busy
	l.Log, l.Stats = o.o.Log, o.o.Stats
	if l.Seed == 0 {
		var b [8]byte
		rand.Read(b[:]) //nolint:errcheck // It never fails.
		l.Seed = binary.LittleEndian.Uint64(b[:])
	}
	o.locks = lockd.New(l)
}

// newExport gives an export its state, and a client mount its place in the namespace.
func (o *OST) newExport(x *target.Export) {
	p := &peer{}
	x.State = p
	if x.Kind == rpc.KindClient {
		p.locks = o.locks.Join(x.Peer)
		o.exportsMu.Lock()
		o.exports[p.locks] = x
		o.exportsMu.Unlock()
	}
}

func (o *OST) connected(x *target.Export, conn *rpc.Conn) {
	if p := peerOf(x); p.locks != nil {
		p.locks.Connected(conn)
	}
}

func (o *OST) disconnected(x *target.Export, conn *rpc.Conn) {
	if p := peerOf(x); p.locks != nil {
		p.locks.Disconnected(conn)
	}
}

// exportGone ends what the OST keeps of an export. Nothing of it runs.
func (o *OST) exportGone(x *target.Export) {
	p := peerOf(x)
	if p.locks != nil {
		p.locks.Gone()
		o.exportsMu.Lock()
		delete(o.exports, p.locks)
		o.exportsMu.Unlock()
	}
	o.space.drop(&p.grants)
}

func (o *OST) exportOf(cl *lockd.Client) *target.Export {
	o.exportsMu.Lock()
	defer o.exportsMu.Unlock()
	return o.exports[cl]
}

// evict is the namespace's way to end a client.
func (o *OST) evict(cl *lockd.Client, why string) {
	if x := o.exportOf(cl); x != nil {
		o.t.Evict(x, why)
	}
}

// busy reports whether a request of a client works on an object under a lock of the client.
func (o *OST) busy(cl *lockd.Client, id ldlm.ResID) bool {
	x := o.exportOf(cl)
	if x == nil {
		return false
	}
	p := peerOf(x)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ob := range p.working {
		if ob == id.Object() {
			return true
		}
	}
	return false
}

// serveLocks does a lock request of a client mount.
func (o *OST) serveLocks(e *env.Env, x *target.Export, c *rpc.Call) error {
	p := peerOf(x)
	if p.locks == nil {
		return status.Errorf(status.Perm, "%s: locks are for client mounts, not for %s", o.o.Name, x.Peer)
	}
	return o.locks.Serve(e, p.locks, c)
}

// cancelEarly gives back the locks that a request names.
func (o *OST) cancelEarly(e *env.Env, x *target.Export, cancels []uint64) error {
	if p := peerOf(x); p.locks != nil {
		return o.locks.CancelEarly(e, p.locks, cancels)
	}
	return nil
}

// access is the bytes that a request needs, and the lock that it needs them under: one of the sender's, or a local one of the OST
// for as long as it runs. It lives in the worker's scratch.
type access struct {
	local  lockd.LocalLock
	client *peer // set while working counts the request
	id     fid.ObjectID
	lock   ldlm.Handle
	called bool // the sender's lock was called back when the request came
}

// wanted is what a request says of its lock.
type wanted struct {
	id    fid.ObjectID
	ext   extent.Extent
	write bool
	lock  uint64
}

// lock finds the lock of a request, or takes a local one and waits for it until the request's context ends. Every error leaves nothing
// held; otherwise unlock follows. An object that is destroyed meanwhile needs no lock.
//
// A request that waits here can close no circle: it holds no lock of the OST, and what its sender holds elsewhere comes before this
// object in the order that all follow (README.md).
func (o *OST) lock(ctx context.Context, e *env.Env, x *target.Export, w wanted) error {
	a := &scratchOf(e).access
	p := peerOf(x)
	if w.lock != 0 {
		return o.useLock(e, a, p, w)
	}
	if w.ext.Empty() {
		return nil
	}
	l := &a.local
	l.Res, l.Mode, l.Extent, l.Cause, l.Own = ldlm.ObjectRes(w.id), ldlm.PR, w.ext, ldlm.Local, false
	if w.write {
		l.Mode = ldlm.PW
	}
	if p.locks != nil {
		l.Cause, l.Own = p.locks.ID(), true
	}
	err := o.locks.Lock(ctx, e, l)
	if err == status.NotExist {
		return nil
	}
	return err
}

// useLock checks the sender's own lock. One that is not there any more was taken away: what the request brings is too old.
func (o *OST) useLock(e *env.Env, a *access, p *peer, w wanted) error {
	if p.locks == nil {
		return status.Errorf(status.Protocol, "%s: a lock named by a peer that gets none", o.o.Name)
	}
	h := ldlm.Handle(w.lock)
	l, ok := o.locks.Namespace().Lock(p.locks.ID(), h)
	switch {
	case !ok || !l.Granted || l.Res != ldlm.ObjectRes(w.id):
		return status.BadHandle
	case !l.Desc.Extent.Overlaps(w.ext) && !w.ext.Empty(), w.write && !mayWrite(&l), l.Desc.Mode == ldlm.NL:
		return status.Errorf(status.Invalid, "%s: bytes %v of object %v under a %v lock on %v", o.o.Name, w.ext, w.id, l.Desc.Mode, l.Desc.Extent)
	}
	if w.write && l.Desc.Mode == ldlm.PR {
		// Its bytes change under other readers. Whoever wants the lock has called them back too; the memory guard has not.
		o.locks.Recall(e, &lockd.LocalLock{Res: l.Res, Mode: ldlm.PW, Extent: w.ext, Cause: p.locks.ID(), Own: true})
	}
	a.client, a.id, a.lock, a.called = p, w.id, h, l.Blocked
	p.mu.Lock()
	p.working = append(p.working, w.id)
	p.mu.Unlock()
	return nil
}

// mayWrite reports whether a lock allows its holder to write. A read lock does while it is called back: pages that were read under
// it and changed by a mapping are written back before it goes. They could not wait for a write lock: who waits for the
// read lock is ahead of it.
func mayWrite(l *ldlm.LockInfo) bool {
	return l.Desc.Mode&(ldlm.PW|ldlm.EX|ldlm.CW|ldlm.GROUP) != 0 || l.Desc.Mode == ldlm.PR && l.Blocked
}

// unlock ends what lock began. A lock that was called back gets more time: its holder is at work giving it back.
func (o *OST) unlock(e *env.Env) {
	a := &scratchOf(e).access
	o.locks.Unlock(e, &a.local)
	p := a.client
	if p == nil {
		return
	}
	a.client = nil
	p.mu.Lock()
	for i, id := range p.working {
		if id == a.id {
			last := len(p.working) - 1
			p.working[i] = p.working[last]
			p.working = p.working[:last]
			break
		}
	}
	p.mu.Unlock()
	if a.called {
		o.locks.Prolong(p.locks, a.lock)
	}
}

// objects is the OST as its namespace sees it.
type objects struct{ o *OST }

// LVB implements lockd.Objects.
func (s objects) LVB(e *env.Env, id fid.ObjectID, v *ldlm.LVB) error {
	o := s.o
	ob := o.cache.get(id)
	defer o.cache.put(ob)
	if ob.lvbFromMemory(v) {
		return nil
	}
	there, err := o.load(e, ob)
	if err != nil {
		return err
	}
	if !there {
		return status.NotExist
	}
	ob.mu.Lock()
	defer ob.mu.Unlock()
	if ob.gone || ob.h == nil {
		return status.NotExist
	}
	blocks, err := ob.blocksLocked()
	if err != nil {
		return err
	}
	ob.lvbLocked(v, blocks)
	return nil
}

// lvbFromMemory fills v without a file when all of it is known: the object has not changed since its record.
func (ob *object) lvbFromMemory(v *ldlm.LVB) bool {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	if !ob.stated || ob.gone || ob.seq > ob.covered {
		return false
	}
	ob.lvbLocked(v, ob.rec.blocks)
	return true
}

func (ob *object) lvbLocked(v *ldlm.LVB, blocks uint64) {
	*v = ldlm.LVB{Size: uint64(ob.size.Load()), Blocks: blocks, Mtime: nanoseconds(ob.rec.mtime), Atime: nanoseconds(ob.rec.atime),
		Ctime: nanoseconds(ob.rec.ctime)}
}

// updateLVB tells the namespace of a change. An object that was destroyed meanwhile has nothing to tell.
func (o *OST) updateLVB(e *env.Env, id fid.ObjectID, shrink bool) error {
	if err := o.locks.Changed(e, id, shrink); !errors.Is(err, status.NotExist) {
		return err
	}
	return nil
}

// nanoseconds is a time in a lock value block; one outside of what 64 bits hold, years 1678 to 2262, is the nearest that they do.
func nanoseconds(t attr.Time) int64 {
	const most = math.MaxInt64/1_000_000_000 - 1
	return min(max(t.Sec, -most), most)*1_000_000_000 + int64(t.Nsec)
}

// Locks is the namespace, for figures and dumps.
func (o *OST) Locks() *lockd.Server { return o.locks }
