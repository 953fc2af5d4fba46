package rpc

import (
	"context"
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// checksumTries is how often a bulk transfer that arrives damaged is sent in all. One damaged frame is the network's
// doing; five in a row are broken memory or a broken card, and hiding that would only slow it down.
const checksumTries = 5

func (i *Import) slotsOf(op wire.Op) *slots {
	switch {
	case op.Prior() && op.Modifies():
		return i.priorMods
	case op.Prior():
		return i.priorRead
	case op.Modifies():
		return i.mods
	}
	return i.reads
}

// Do sends r and waits for its reply. A request whose connection is lost, or whose target is stopping, is sent again after
// the reconnect, under the same xid and slot; a bulk transfer that arrives damaged is sent again a few times.
//
// Errors: a status other than 0 is a *status.Error that wraps its Kind. status.IO (of kind Evicted by errors.As) when this
// client was evicted while the request was in flight; status.TimedOut when the target was away for longer than RetryLimit;
// ctx's own error when ctx ends: then what was asked may still happen, and the request keeps its slot until its reply comes
// or the target is gone. After Do returned, nothing touches r or its memory.
//
// With ImportOptions.Replay a modifying request waits while the replay log is full, but for those of wire.Op.Prior.
//
// Do waits for a free slot, for the connection, for the reply. ctx may be any implementation; only Done and Err are used.
// Its end interrupts each of the waits, but neither a frame that is half written nor, for a caller that reads its own
// reply (up to 64 KiB of bulk), one that is half read; such a caller notices within a millisecond.
func (i *Import) Do(ctx context.Context, r *Request) error {
	if len(r.Bulk) > 0 && r.Op.Modifies() {
		// Its resending by others, when Do has left, would need the caller's memory.
		return status.Errorf(status.Invalid, "rpc: %v with bulk", r.Op)
	}
	bulkLen := bulkSize(r.Bulk)
	if bulkLen > wire.BulkMax || len(r.Into) > wire.BulkMax {
		return status.Errorf(status.Invalid, "rpc: %v with bulk of %d bytes and room for %d", r.Op, bulkLen, len(r.Into))
	}
	if i.kept != nil && r.Op.Modifies() && !r.Op.Prior() {
		if err := i.kept.room(ctx, i.closing); err != nil {
			return err
		}
	}
	pool := i.slotsOf(r.Op)
	if r.Reserve && !r.Op.Modifies() {
		pool = i.priorRead
	}
	index, err := pool.acquire(ctx, i.closing)
	if err != nil {
		return err
	}
	f := i.prepare(index, r.Op, pool)
	if err := encodeBody(&f.buf, r.Body); err != nil {
		i.table.free(f)
		return fmt.Errorf("rpc: %v: %w", r.Op, err)
	}
	i.stats.inFlight.Add(1)
	start := time.Now()
	x := exchange{i: i, f: f, r: r, bulkLen: bulkLen}
	x.h.Op, x.h.BulkLen = r.Op, uint32(bulkLen)
	if bulkLen > 0 {
		x.h.Flags = wire.FlagBulkSum
		x.h.BulkSum = sumOf(r.Bulk)
	}
	x.sentAt = start
	err = x.run(ctx)
	i.stats.times.observe(r.Op, time.Since(start))
	i.stats.inFlight.Add(-1)
	return err
}

// prepare makes the flight of an index of a pool ready for an operation.
func (i *Import) prepare(index uint32, op wire.Op, pool *slots) *flight {
	f := &i.table.flights[index]
	f.op, f.pool, f.slot = op, pool, 0
	if op.Modifies() {
		f.slot = index + 1
	}
	return f
}

func sumOf(bulk [][]byte) uint32 {
	sum := wire.Sum(bulk[0])
	for _, b := range bulk[1:] {
		sum = wire.SumMore(sum, b)
	}
	return sum
}

// exchange is one Do under way.
type exchange struct {
	i       *Import
	f       *flight
	r       *Request
	h       wire.Header
	bulkLen int
	// evictions is the import's count when the request was first sent.
	evictions uint64
	damaged   int
	// sentAt is when it was last sent.
	sentAt time.Time
	// limit is when waiting for an absent target ends; zero until the first wait, and for ever without a RetryLimit.
	limit time.Time
}

// errEvicted ends the requests that were in flight when this client was evicted: nobody knows whether they happened.
var errEvicted error = &status.Error{Kind: status.IO, Text: "rpc: this client was evicted by the target while the request was in flight"}

// run sends until there is an answer, and gives the flight back.
func (x *exchange) run(ctx context.Context) error {
	for {
		ls, err := x.send(ctx)
		if err != nil {
			x.i.leave(x.f, err)
			return err
		}
		select {
		case <-x.f.done:
		case <-ctx.Done():
			x.i.leave(x.f, ctx.Err())
			return ctx.Err()
		}
		if x.f.state == flightLost && x.f.op != wire.OpDisconnect {
			continue
		}
		again, err := x.answered(ls)
		if !again {
			x.i.table.free(x.f)
			return err
		}
		x.i.table.refused(x.f)
	}
}

// leave is how Do goes away before there is an answer.
func (i *Import) leave(f *flight, why error) {
	if why == errEvicted {
		i.table.free(f)
		return
	}
	if i.table.abandon(f) {
		i.mu.Lock()
		i.want.resend = true
		i.mu.Unlock()
		wake(i.kick)
	}
}

// send waits until requests flow and sends on the connections returned. What becomes of a failed write, the flight's done
// tells.
func (x *exchange) send(ctx context.Context) (*links, error) {
	i, f := x.i, x.f
	for {
		ls := i.full.Load()
		if ls == nil {
			if x.limit.IsZero() && i.o.RetryLimit > 0 {
				x.limit = time.Now().Add(i.o.RetryLimit)
			}
			var err error
			if ls, err = i.await(ctx, f.op, x.limit); err != nil {
				return nil, err
			}
			x.sentAt = time.Now()
		}
		if err := i.off(f.op, true); err != nil {
			return nil, err
		}
		if n := i.evictions.Load(); !f.sent {
			x.evictions = n
		} else if n != x.evictions {
			return nil, errEvicted
		}
		if f.sent && !f.op.Modifies() && f.pool.over(f.index) {
			if err := x.move(ctx); err != nil {
				return nil, err
			}
			f = x.f
			continue
		}
		// When the link is dead, its reader has taken ls out of i.full before it said so.
		if i.transmit(f, ls, &x.h, x.r) {
			return ls, nil
		}
	}
}

// move gives a lost request another flight, because the target now allows fewer in flight. A modifying one stays in its
// slot, which the target's disk knows; servers let resent ones pass.
func (x *exchange) move(ctx context.Context) error {
	index, err := x.f.pool.acquire(ctx, x.i.closing)
	if err != nil {
		return err
	}
	f := x.i.prepare(index, x.f.op, x.f.pool)
	f.buf, x.f.buf = x.f.buf, f.buf
	x.i.table.free(x.f)
	x.f = f
	return nil
}

// transmit sends f with what h says of operation and bulk. It returns false when the link is dead. r is nil for an orphan.
func (i *Import) transmit(f *flight, ls *links, h *wire.Header, r *Request) bool {
	p := posting{f: f, l: ls.of(f.op), generation: ls.generation}
	if r != nil {
		p.into, p.bulk = r.Into, r.Bulk
	}
	alone, ok := i.post(&p, h)
	switch {
	case !ok:
		return false
	case r == nil:
	case alone && len(p.into) <= leadBulkMax:
		i.lead(p.l, f)
	default:
		p.l.role.summon()
	}
	return true
}

// posting is a flight about to go out.
type posting struct {
	f          *flight
	l          *link
	generation uint64
	into       []byte
	bulk       [][]byte
}

// post sends a flight with what h says of operation and bulk, and returns whether it is alone on its way. ok is false when the
// link is dead.
func (i *Import) post(p *posting, h *wire.Header) (alone, ok bool) {
	f := p.f
	if alone, ok = i.table.begin(f, p.l, p.into); !ok {
		return false, false
	}
	h.Flags &= wire.FlagBulkSum
	if alone {
		h.Flags |= wire.FlagAlone
	}
	if f.sent {
		h.Flags |= wire.FlagResent
		i.stats.resends.Inc()
	}
	f.sent = true
	h.XID, h.Slot, h.Generation, h.BodyLen = f.xid, f.slot, p.generation, uint32(len(f.buf)-wire.HeaderSize)
	h.Put(f.buf, f.buf[wire.HeaderSize:])
	i.stats.sent.Add(int64(h.BodyLen + h.BulkLen))
	p.l.send(f.buf, p.bulk, int(h.BulkLen)) // an error closes the link, and the flight is lost
	return alone, true
}

// answered looks at the reply. again says that the request must go out once more.
func (x *exchange) answered(ls *links) (again bool, err error) {
	i, f, r := x.i, x.f, x.r
	if f.state == flightLost {
		return false, status.NotConnected
	}
	h := &f.hdr
	i.advance(h.LastCommitted)
	i.stats.received.Add(int64(h.BodyLen + h.BulkLen))
	if !waits(f.op) {
		now := time.Now()
		i.service.observe(now, now.Sub(x.sentAt))
	}
	switch h.Status {
	case status.OK:
		if h.Flags&wire.FlagBulkSum != 0 && h.BulkLen > 0 && wire.Sum(r.Into[:f.n]) != h.BulkSum {
			return x.wasDamaged()
		}
		r.N, r.Transno, r.LastCommitted, r.Instance = f.n, h.Transno, h.LastCommitted, ls.instance
		err := i.take(f, r)
		if err == nil && r.Answered != nil {
			r.Answered(r)
		}
		return false, err
	case status.Checksum:
		return x.wasDamaged()
	case status.NotConnected, status.Stopping:
		if f.op == wire.OpDisconnect {
			return false, h.Status
		}
		i.full.CompareAndSwap(ls, nil)
		ls.close(fmt.Errorf("rpc: the target says: %w", h.Status))
		return true, nil
	case status.Evicted:
		i.evict(ls)
		return false, errEvicted
	}
	return false, errorOf(h.Status, f.reply)
}

// take decodes a reply of status 0.
func (i *Import) take(f *flight, r *Request) error {
	if r.Reply == nil {
		return nil
	}
	if err := r.Reply.UnmarshalVT(f.reply); err != nil {
		return fmt.Errorf("rpc: %w: the reply of %s to %v: %w", status.Protocol, i.o.Target, f.op, err)
	}
	return nil
}

// wasDamaged counts a bulk transfer that did not match its checksum.
func (x *exchange) wasDamaged() (again bool, err error) {
	x.i.stats.checksums.Inc()
	x.damaged++
	if x.damaged < checksumTries {
		return true, nil
	}
	return false, status.Errorf(status.IO, "rpc: bulk of %v with %s did not match its crc32c %d times", x.f.op, x.i.o.Target, x.damaged)
}

// errorOf is the error that a reply carries.
func errorOf(k status.Kind, body []byte) error {
	e := &status.Error{Kind: k}
	if len(body) > 0 {
		var m wirepb.ErrorReply
		if m.UnmarshalVT(body) == nil {
			e.Text = string(m.Text[:min(len(m.Text), wire.TextMax)])
		}
	}
	return e
}

// advance notes what the target says is on its disk.
func (i *Import) advance(n wire.Transno) {
	for {
		old := i.committed.Load()
		if uint64(n) <= old {
			return
		}
		if i.committed.CompareAndSwap(old, uint64(n)) {
			break
		}
	}
	if i.kept != nil {
		i.kept.drop(n)
	}
	if i.o.OnCommitted != nil {
		i.o.OnCommitted(n)
	}
}

// evict tells the driver that the target has thrown this client out.
func (i *Import) evict(ls *links) {
	if !i.full.CompareAndSwap(ls, nil) {
		return
	}
	i.mu.Lock()
	i.want.evicted = true
	i.mu.Unlock()
	wake(i.kick)
}
