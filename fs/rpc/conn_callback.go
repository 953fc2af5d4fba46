package rpc

import (
	"context"
	"fmt"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

// Callback calls the client on this connection, which must be its first one, and waits for the answer. When ctx ends it
// returns ctx's error, and the call may still be served. Errors: as the client's Callback returned; status.NotConnected
// when the connection is gone. Calls carry no bulk. At most CallbacksMax are on their way; further ones wait.
func (cn *Conn) Callback(ctx context.Context, r *Request) error {
	if cn.bulk || len(r.Bulk) > 0 || len(r.Into) > 0 {
		return status.Errorf(status.Invalid, "rpc: a call to a client with bulk or on its bulk connection")
	}
	index, err := cn.callIDs.acquire(ctx, cn.ctx.Done())
	if err != nil {
		return err
	}
	f := &cn.calls.flights[index]
	f.op, f.pool = r.Op, cn.callIDs
	if err := encodeBody(&f.buf, r.Body); err != nil {
		cn.calls.free(f)
		return fmt.Errorf("rpc: %v: %w", r.Op, err)
	}
	if _, ok := cn.calls.begin(f, cn.l, nil); !ok {
		cn.calls.free(f)
		return status.NotConnected
	}
	h := wire.Header{Flags: wire.FlagCallback, Op: r.Op, XID: f.xid, BodyLen: uint32(len(f.buf) - wire.HeaderSize)}
	h.Put(f.buf, f.buf[wire.HeaderSize:])
	cn.l.send(f.buf, nil, 0) // an error ends the link, and the flight is lost
	select {
	case <-f.done:
	case <-ctx.Done():
		cn.calls.abandon(f)
		return ctx.Err()
	}
	defer cn.calls.free(f)
	switch {
	case f.state == flightLost:
		return status.NotConnected
	case f.hdr.Status != status.OK:
		return errorOf(f.hdr.Status, f.reply)
	case r.Reply == nil:
		return nil
	}
	if err := r.Reply.UnmarshalVT(f.reply); err != nil {
		return fmt.Errorf("rpc: %w: the reply of %s to %v: %w", status.Protocol, cn.peer, r.Op, err)
	}
	return nil
}
