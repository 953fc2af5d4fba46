package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// ErrHeld is what Session.Serve returns for a call that Finish answers later. Such a call holds no worker.
var ErrHeld = errors.New("rpc: the call is answered later")

// Call is one request being served. Calls are reused: nothing may keep one after Serve returned, unless it returned
// ErrHeld, and then not after Finish.
type Call struct {
	// Header is the request's. With FlagResent it may have been executed before: the slot knows.
	Header wire.Header
	// Body and Bulk are the request's, valid until Serve returned, or until Finish of a held call. The crc32c of Bulk has
	// been checked.
	Body, Bulk []byte
	// Session is the export that asks and Conn the connection that the request came on; both nil in a client's callback.
	Session Session
	Conn    *Conn

	// Reply is the body of the answer; nil is an empty one. It is encoded in the goroutine that returns from Serve or
	// calls Finish, before anything else runs there, so it may lie in the worker's Env.
	Reply Message
	// ReplyBulk is sent behind it, from memory of BulkBuffer or any that stays unchanged until it is sent: use BulkBuffer
	// for what is reused.
	ReplyBulk []byte
	// Transno of the modification, 0 for none.
	Transno wire.Transno
	// RawReply, if not nil, is an already encoded body that goes out instead of Reply and the error, with RawStatus: the
	// reply of an earlier execution. It is copied at once.
	RawReply  []byte
	RawStatus status.Kind

	owner    callOwner
	pool     *buffers
	start    time.Time
	buf      []byte    // memory of Body
	out      []byte    // the reply's header and body
	vec      [1][]byte // the reply's bulk
	bulkBuf  []byte    // memory of Bulk, of pool
	replyBuf []byte    // memory of ReplyBulk, of pool
	prior    bool
	// held is 1 when Serve has said ErrHeld and 2 when Finish has run too; whoever comes second gives the call back.
	held atomic.Int32
}

// callOwner is where a call came from.
type callOwner interface {
	// answer sends the reply of c; it does not give c back.
	answer(c *Call, err error)
	// recycle gives c back.
	recycle(c *Call)
	context() context.Context
}

// Decode decodes Body into m, which must be in its reset state. A body that does not parse is an error of kind
// status.Protocol; fields that this version does not know are kept or ignored.
func (c *Call) Decode(m Message) error {
	if err := m.UnmarshalVT(c.Body); err != nil {
		return fmt.Errorf("rpc: %w: the body of %v: %w", status.Protocol, c.Header.Op, err)
	}
	return nil
}

// BulkBuffer returns a buffer of n bytes with undefined content, for ReplyBulk, which goes back to its pool when it was
// sent. A second call gives the first buffer back. Precondition: 0 <= n <= wire.BulkMax.
func (c *Call) BulkBuffer(n int) []byte {
	if c.replyBuf != nil {
		c.pool.put(c.replyBuf)
	}
	c.replyBuf = c.pool.get(n)
	return c.replyBuf
}

// Context ends when the connection dies or the server closes. It does not allocate.
func (c *Call) Context() context.Context { return c.owner.context() }

// Finish answers a held call, with the reply set before and err as Serve would have returned it. It is called exactly once
// and may be called before Serve has returned ErrHeld, from any goroutine. It waits for the connection to take the reply;
// a connection that is dead takes it at once.
func (c *Call) Finish(err error) {
	owner := c.owner
	if c.Conn != nil {
		c.Conn.s.stats.held.Add(-1) // serve adds where Serve said ErrHeld, maybe later
	}
	owner.answer(c, err)
	if c.held.Add(1) == 2 {
		owner.recycle(c)
	}
}

// encode puts the reply into c.out and returns its bulk.
func (c *Call) encode(err error, committed wire.Transno, generation uint64) ([][]byte, int) {
	h := wire.Header{
		Flags: wire.FlagReply | c.Header.Flags&wire.FlagCallback, Op: c.Header.Op, XID: c.Header.XID, Slot: c.Header.Slot,
		Transno: c.Transno, LastCommitted: committed, Generation: generation,
	}
	if c.RawReply == nil && err == nil {
		if err = encodeBody(&c.out, c.Reply); err == nil && len(c.ReplyBulk) > wire.BulkMax {
			err = status.Errorf(status.TooBig, "rpc: reply bulk of %d bytes", len(c.ReplyBulk))
		}
	}
	var bulk [][]byte
	switch {
	case c.RawReply != nil:
		h.Status = c.RawStatus
		c.out = append(append(c.out[:0], make([]byte, wire.HeaderSize)...), c.RawReply...)
	case err != nil:
		c.encodeError(&h, err)
	case len(c.ReplyBulk) > 0:
		c.vec[0] = c.ReplyBulk
		bulk = c.vec[:]
		h.Flags |= wire.FlagBulkSum
		h.BulkLen, h.BulkSum = uint32(len(c.ReplyBulk)), wire.Sum(c.ReplyBulk)
	}
	h.BodyLen = uint32(len(c.out) - wire.HeaderSize)
	h.Put(c.out, c.out[wire.HeaderSize:])
	return bulk, int(h.BulkLen)
}

// encodeError makes the body of a reply whose status is not 0. A bare Kind says all by its number.
func (c *Call) encodeError(h *wire.Header, err error) {
	h.Status = status.Of(err)
	if h.Status == status.OK {
		h.Status = status.IO
	}
	var m Message
	if _, bare := err.(status.Kind); !bare {
		text := err.Error()
		m = &wirepb.ErrorReply{Text: []byte(text[:min(len(text), wire.TextMax)])}
	}
	if err := encodeBody(&c.out, m); err != nil {
		panic(err) // its size is bounded
	}
}

// reset makes c ready for its next request and keeps its memory.
func (c *Call) reset() {
	if c.bulkBuf != nil {
		c.pool.put(c.bulkBuf)
	}
	if c.replyBuf != nil {
		c.pool.put(c.replyBuf)
	}
	c.Body, c.Bulk, c.bulkBuf, c.replyBuf = nil, nil, nil, nil
	c.Session, c.Reply, c.ReplyBulk, c.Transno = nil, nil, nil, 0
	c.RawReply, c.RawStatus, c.vec[0] = nil, 0, nil
	c.held.Store(0)
	shrink(&c.buf)
	shrink(&c.out)
}
