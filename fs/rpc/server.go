package rpc

import (
	"context"
	"log/slog"
	"net"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Target is what a server offers under one name.
type Target interface {
	// Connect admits a peer and returns its session, or refuses it with kind status.Refused and a sentence.
	Connect(ctx context.Context, conn *Conn, r *wirepb.ConnectRequest) (Session, *wirepb.ConnectReply, error)
}

// Session is an export as rpc sees it.
type Session interface {
	// Serve runs one request in a worker. Its error becomes the reply's status; ErrHeld says that c.Finish comes later.
	Serve(e *env.Env, c *Call) error
	// LastCommitted is stamped into every reply.
	LastCommitted() wire.Transno
	// Generation of the export; requests that carry another one are answered with status.NotConnected.
	Generation() uint64
	// Disconnected tells that one of the session's connections is gone.
	Disconnected(conn *Conn)
}

// ServerOptions configures a server.
type ServerOptions struct {
	Log *slog.Logger
	// Stats may be nil.
	Stats *stats.Registry
	// Find returns the target of a name, status.WrongTarget if it does not live here.
	Find func(target string) (Target, error)
}

// Server accepts connections and runs their requests.
type Server struct{}

// NewServer makes a server that listens nowhere yet.
func NewServer(o ServerOptions) *Server { panic("rpc: not yet") }

// Serve accepts connections from l until l or the server is closed, and then returns nil.
func (s *Server) Serve(l net.Listener) error { panic("rpc: not yet") }

// Close closes the listeners, lets running requests end while ctx lives, cuts the connections and waits for all goroutines.
func (s *Server) Close(ctx context.Context) error { panic("rpc: not yet") }

// Conn is the server's end of one connection.
type Conn struct{}

// Callback calls the client on this connection, which must be its first, the control connection.
func (cn *Conn) Callback(ctx context.Context, r *Request) error { panic("rpc: not yet") }

// Peer says who is at the other end, for people.
func (cn *Conn) Peer() string { panic("rpc: not yet") }

// Close cuts the connection.
func (cn *Conn) Close() { panic("rpc: not yet") }
