package target

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// current is the replay that runs.
type current struct {
	request wirepb.ReplayRequest
	// reply is the body of then, without locks.
	reply []byte
}

// refusedCalls are the replays that were refused: a client that has lost the answer asks again.
type refusedCalls struct {
	byTransno map[wire.Transno]status.Kind
	count     int
}

// refusedMax bounds what is remembered of refused replays. One that is forgotten is answered as if it had been done, and only to a
// client that has lost the first answer.
const refusedMax = 1 << 16

func (f *refusedCalls) add(n wire.Transno, err error) {
	f.count++
	if f.byTransno == nil {
		f.byTransno = map[wire.Transno]status.Kind{}
	}
	if len(f.byTransno) < refusedMax {
		f.byTransno[n] = status.Of(err)
	}
}

// replay queues a replay, or answers one that was run before.
func (r *recovery) replay(x *Export, c *rpc.Call) error {
	var m wirepb.ReplayRequest
	if err := c.Decode(&m); err != nil {
		return err
	}
	n, op := wire.Transno(m.Transno), wire.Op(m.Op)
	switch {
	case n == 0 || n >= r.first:
		return status.Errorf(status.Protocol, "%s: a replay of transno %#x, this start begins with %#x", r.t.o.Name, m.Transno, uint64(r.first))
	case m.Op > 0xffff || !op.Known() || op == wire.OpReplay || op == wire.OpSeq:
		return status.Errorf(status.Protocol, "%s: a replay of %v", r.t.o.Name, op)
	case op.Modifies() == (m.Slot == 0) || m.Slot > MaxSlots:
		return status.Errorf(status.Protocol, "%s: a replay of %v in slot %d", r.t.o.Name, op, m.Slot)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return status.Stopping
	case c.Header.Generation != x.Generation():
		return status.NotConnected // It was on its way when its connection was cut.
	}
	switch r.w.add(time.Now(), &replay{x, n, c.Header.Generation, c}) {
	case verdictRun:
		return r.againLocked(c, n, m.Reply)
	case verdictRefused:
		return status.Errorf(status.Stale, "%s: a replay of transno %#x out of order, or after the end of replays", r.t.o.Name, m.Transno)
	}
	r.poke()
	return rpc.ErrHeld
}

// againLocked answers a replay whose transno was run before, with the reply of then.
func (r *recovery) againLocked(c *rpc.Call, n wire.Transno, reply []byte) error {
	if k, ok := r.refused.byTransno[n]; ok {
		return k
	}
	reply, err := withoutLocks(reply)
	if err != nil {
		return err
	}
	c.RawReply, c.RawStatus, c.Transno = append([]byte{}, reply...), status.OK, n
	return nil
}

// carryOut runs one replay and answers it. Only the goroutine of the window calls it.
func (r *recovery) carryOut(e *env.Env, q *replay, again bool) {
	e.Reset()
	m := &r.now.request
	m.ResetVT()
	err := q.call.Decode(m)
	if err == nil && again {
		r.mu.Lock()
		err = r.againLocked(q.call, q.transno, m.Reply)
		r.mu.Unlock()
		r.finish(q.call, err)
		return
	}
	if err == nil {
		r.now.reply, err = withoutLocks(m.Reply)
	}
	if err == nil {
		err = q.x.serveReplay(e, q)
	}
	decided := err == nil || !undecided(err)
	r.mu.Lock()
	drop := r.w.ran(time.Now(), decided)
	switch {
	case err == nil:
		r.ran++
	case decided:
		r.refused.add(q.transno, err)
	}
	r.mu.Unlock()
	if err != nil && decided {
		r.t.o.Log.Warn("replay refused", "target", r.t.o.Name, "peer", q.x.Peer, "op", wire.Op(m.Op).String(), "transno", m.Transno, "err", err)
	}
	r.finish(q.call, err)
	for _, d := range drop {
		r.finish(d.call, status.NotConnected)
	}
}

// undecided reports whether a replay ended because its connection, or the target, did.
func undecided(err error) bool {
	k := status.Of(err)
	return k == status.NotConnected || k == status.Stopping || errors.Is(err, context.Canceled) || errors.Is(err, store.ErrStopped)
}

// serveReplay runs the request of then as the handler ran it then.
func (x *Export) serveReplay(e *env.Env, q *replay) error {
	x.gate.RLock()
	defer x.gate.RUnlock()
	c, m := q.call, &x.t.recovery.now.request
	if x.gone || c.Header.Generation != x.generation.Load() {
		return status.NotConnected
	}
	if err := x.t.serving(); err != nil {
		return err
	}
	header, body := c.Header, c.Body
	c.Header.Op, c.Header.XID, c.Header.Slot, c.Header.Transno = wire.Op(m.Op), wire.XID(m.Xid), m.Slot, q.transno
	c.Header.Flags = wire.FlagReplay
	c.Body = m.Request
	start := time.Now()
	err := x.run(e, c)
	x.t.stats.observe(wire.Op(m.Op), time.Since(start), err)
	c.Header, c.Body = header, body
	switch {
	case errors.Is(err, rpc.ErrHeld):
		panic(fmt.Sprintf("target: %s: the replay of %v was held", x.t.o.Name, wire.Op(m.Op)))
	case err != nil:
		return Status(err)
	}
	// The answer is that of then, in memory of its own: it is sent while the next replay runs.
	c.RawReply, c.RawStatus = append([]byte{}, x.t.recovery.now.reply...), status.OK
	c.Reply, c.ReplyBulk, c.Transno = nil, nil, q.transno
	return nil
}

// Replayed tells a handler that c repeats a request which an earlier start has answered, and gives the reply of then: without locks, to
// be neither changed nor kept. The handler makes the same change with the same result, or refuses. c.Header.Transno is the transno of then, under
// which Commit publishes. Nothing of other clients runs meanwhile.
func (t *Target) Replayed(c *rpc.Call) (reply []byte, ok bool) {
	if c.Header.Flags&wire.FlagReplay == 0 {
		return nil, false
	}
	return t.recovery.now.reply, true
}

// lockField is the number that granted locks have in every reply that may carry some.
const lockField = 40

// withoutLocks cuts the locks off an encoded reply. They are its last fields.
func withoutLocks(b []byte) ([]byte, error) {
	for at := 0; at < len(b); {
		tag, n := binary.Uvarint(b[at:])
		if n <= 0 {
			return nil, errReply
		}
		if tag>>3 >= lockField {
			return b[:at:at], nil
		}
		at += n
		size := uint64(0)
		switch tag & 7 {
		case 0:
			_, n := binary.Uvarint(b[at:])
			if n <= 0 {
				return nil, errReply
			}
			size = uint64(n)
		case 1:
			size = 8
		case 2:
			l, n := binary.Uvarint(b[at:])
			if n <= 0 || l > uint64(len(b)) {
				return nil, errReply
			}
			size = uint64(n) + l
		case 5:
			size = 4
		default:
			return nil, errReply
		}
		if size > uint64(len(b)-at) {
			return nil, errReply
		}
		at += int(size)
	}
	return b, nil
}

// errReply is a peer's reply of then that does not parse.
var errReply = fmt.Errorf("target: %w: the reply of a replay does not parse", status.Protocol)

// pointKey holds the replay point in the clients table, 8 bytes big-endian, from the start that finds clients until its window is over:
// the newest transno of earlier starts that is on disk with all before it.
var pointKey = []byte("replay_point")

// KeepPoint writes the replay point of an MDT's device that has clients and no point, as the newest transno on disk. It is for who
// publishes on the device before New does: once anything of this start is on disk, Committed says nothing of earlier starts any more. So it
// comes before all that a start publishes. clients is the table of clients.
func KeepPoint(dev store.Device, clients store.Table) error {
	found, kept := false, false
	err := dev.Scan(env.New(), clients, nil, nil, func(k, v []byte) bool {
		kept = kept || string(k) == string(pointKey)
		found = found || len(k) == 16 && len(v) >= clientHeader && uint32(v[1]) == rpc.KindClient
		return !kept
	})
	if err != nil || kept || !found {
		return err
	}
	e := env.New()
	tx := dev.Begin(e)
	tx.Put(clients, pointKey, binary.BigEndian.AppendUint64(nil, uint64(dev.Committed())))
	_, err = dev.Publish(tx)
	return err
}

// putPoint moves the replay point in the transaction of a replay.
func (t *Target) putPoint(tx *store.Tx, e *env.Env, n wire.Transno) {
	tx.Put(t.o.Clients, pointKey, binary.BigEndian.AppendUint64(e.Alloc(8)[:0], uint64(n)))
}

// dropPoint publishes the window's last transaction and returns its number.
func (t *Target) dropPoint() (store.Transno, error) {
	tx := t.o.Device.Begin(env.New())
	tx.Delete(t.o.Clients, pointKey)
	n, err := t.o.Device.Publish(tx)
	return n, Status(err)
}
