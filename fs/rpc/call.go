package rpc

import (
	"context"
	"errors"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

// ErrHeld is what Session.Serve returns for a call that Finish answers later.
var ErrHeld = errors.New("rpc: the call is answered later")

// Call is one request being served. Calls are reused: nothing may keep one after Serve returned, unless it returned ErrHeld.
type Call struct {
	Header wire.Header
	// Body and Bulk are the request's, valid until Serve returned, or until Finish of a held call.
	Body, Bulk []byte
	Session    Session
	Conn       *Conn
	// Reply is the body of the answer; nil is an empty one. It is encoded before Serve's worker goes on.
	Reply Message
	// ReplyBulk is sent behind it.
	ReplyBulk []byte
	// Transno of the modification.
	Transno wire.Transno
	// RawReply, if not nil, is an already encoded reply body, with RawStatus as its status.
	RawReply  []byte
	RawStatus status.Kind
}

// Decode decodes Body into m, which must be in its reset state. A body that does not parse is kind Protocol.
func (c *Call) Decode(m Message) error { panic("rpc: not yet") }

// BulkBuffer returns a buffer of n bytes for ReplyBulk, which goes back to its pool when it was sent.
// Precondition: 0 <= n <= wire.BulkMax.
func (c *Call) BulkBuffer(n int) []byte { panic("rpc: not yet") }

// Finish answers a held call, once, from any goroutine.
func (c *Call) Finish(err error) { panic("rpc: not yet") }

// Context ends when the connection dies or the server closes.
func (c *Call) Context() context.Context { panic("rpc: not yet") }
