package ost

import (
	"context"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
)

// Replays of writes, punches and the like run in the order of their numbers of then, whoever sends them, before anything else of a
// client is served. They need no lock: the locks of then have ordered them. One that its object has reached is not run: it could
// undo a later change that another client has synced and does not replay.

// replayOf is the number that a replayed request had in an earlier start, 0 for any other request.
func replayOf(c *rpc.Call) wire.Transno {
	if c.Header.Flags&wire.FlagReplay == 0 {
		return 0
	}
	return c.Header.Transno
}

// reached reports whether the object is at the change that had the number then in an earlier start, or at a later one; 0 is no replay.
// Precondition: ob is loaded and ob.io is held.
func (ob *object) reached(then wire.Transno) bool {
	if then == 0 {
		return false
	}
	ob.mu.Lock()
	defer ob.mu.Unlock()
	return uint64(then) <= max(ob.rec.upTo, ob.said)
}

// reachLocked notes in the record what is on disk of the object: all changes up to number covers, of this start. Between replays those
// have other numbers for their clients; the newest one's counts when it is covered, and nothing when it is not.
// Precondition: ob.mu is held.
func (o *OST) reachLocked(ob *object, covers uint64) {
	switch {
	case covers >= ob.seq:
		ob.rec.upTo = max(ob.rec.upTo, ob.said)
	case ob.said > o.start:
		ob.rec.upTo = max(ob.rec.upTo, covers)
	}
}

// replayWrite repeats a write. It needs no grant and may use what is kept free: an earlier start has taken it.
func (o *OST) replayWrite(e *env.Env, c *rpc.Call, id fid.ObjectID) error {
	if err := o.store(e, c, id, 0); err != nil {
		return err
	}
	return o.updateLVB(e, id, false)
}

// flushReplayed brings everything that was replayed to disk.
func (o *OST) flushReplayed(ctx context.Context) error { return o.waitCommitted(ctx, o.seq.Load()) }
