package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/failpoint"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Target is what a server offers under one name.
type Target interface {
	// Connect admits a peer and returns its session, or refuses it with kind status.Refused and a sentence that tells a
	// person why and what to do. It may wait for the disk. conn stays valid for callbacks until Session.Disconnected.
	// A reply without max_rpcs_in_flight or brw_size gets the defaults.
	Connect(ctx context.Context, conn *Conn, r *wirepb.ConnectRequest) (Session, *wirepb.ConnectReply, error)
}

// Session is an export as rpc sees it. Its methods are called from many goroutines at once.
type Session interface {
	// Serve runs one request in a worker, with the worker's own Env, which is reset afterwards. The error becomes the
	// reply's status. ErrHeld says that c.Finish comes later. CONNECT and PING never come here; DISCONNECT does. OpReplay comes in
	// the order of sending, in the goroutine that reads the connection: Serve holds it, and never waits.
	Serve(e *env.Env, c *Call) error
	// LastCommitted is stamped into every reply.
	LastCommitted() wire.Transno
	// Generation of the export; requests that carry another one are answered with status.NotConnected.
	Generation() uint64
	// Disconnected tells, once for each connection, that it is gone. Requests that came on it may still run.
	Disconnected(conn *Conn)
}

// ServerOptions configures a server. Zero values are the defaults given.
type ServerOptions struct {
	// Log may be nil.
	Log *slog.Logger
	// Stats may be nil; StatsPath is where the figures stand in it, "rpc.server".
	Stats     *stats.Registry
	StatsPath string
	// Find returns the target of a name, status.WrongTarget if it does not live here.
	Find func(target string) (Target, error)
	// MaxConns bounds the connections, 4096: each costs its read buffer of 64 KiB and some goroutines. Past it new ones are closed.
	MaxConns int
	// ConnectTimeout is how long a connection may take until its CONNECT is there, 10 s.
	ConnectTimeout time.Duration
	// StuckTimeout is how long one frame may take to pass in either direction, 60 s.
	StuckTimeout time.Duration
	// SilentTimeout is how long a connection may carry nothing, 90 s: a living import pings every 5 s.
	SilentTimeout time.Duration
	// IdleBulkBytes bounds the bulk buffers kept for reuse, 64 MiB.
	IdleBulkBytes int
	// FailPoints may be nil: requests and replies that are to be lost, late or answered with an error.
	FailPoints *failpoint.Set
}

func (o *ServerOptions) setDefaults() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.StatsPath == "" {
		o.StatsPath = "rpc.server"
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.ConnectTimeout, 10*time.Second)
	def(&o.StuckTimeout, 60*time.Second)
	def(&o.SilentTimeout, 90*time.Second)
	if o.MaxConns == 0 {
		o.MaxConns = 4096
	}
	if o.IdleBulkBytes == 0 {
		o.IdleBulkBytes = 64 << 20
	}
}

// Server accepts connections and runs their requests.
type Server struct {
	o        ServerOptions
	stats    *serverStats
	pool     *buffers
	running  atomic.Int64  // calls inside Serve
	draining atomic.Bool   // new requests are answered with status.Stopping
	drained  chan struct{} // one token: a call ended while draining
	done     chan struct{} // closed by Close when the janitor is to end
	workers  sync.WaitGroup

	mu        sync.Mutex
	listeners map[net.Listener]struct{} // guarded by mu
	conns     map[*Conn]struct{}        // guarded by mu
	closed    bool                      // guarded by mu
	janitor   bool                      // it runs; guarded by mu
}

// NewServer makes a server that listens nowhere yet. Precondition: o.Find is set.
func NewServer(o ServerOptions) *Server {
	o.setDefaults()
	return &Server{
		o: o, stats: newServerStats(o.Stats, o.StatsPath), pool: newBuffers(o.IdleBulkBytes),
		drained: make(chan struct{}, 1), done: make(chan struct{}),
		listeners: map[net.Listener]struct{}{}, conns: map[*Conn]struct{}{},
	}
}

// Serve accepts connections from l, which it then owns, until l or the server is closed, and returns nil then. It may be
// called for several listeners at once. When the process runs out of file descriptors it goes on a little later.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return l.Close()
	}
	s.listeners[l] = struct{}{}
	if !s.janitor {
		s.janitor = true
		s.workers.Go(s.sweep)
	}
	s.mu.Unlock()
	defer l.Close()
	for {
		nc, err := l.Accept()
		var ne net.Error
		switch {
		case err == nil:
			s.accept(nc)
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.As(err, &ne):
			s.o.Log.Warn("cannot accept a connection, trying again", "address", l.Addr(), "error", err)
			select {
			case <-time.After(200 * time.Millisecond):
			case <-s.done:
				return nil
			}
		default:
			return fmt.Errorf("rpc: accepting on %v: %w", l.Addr(), err)
		}
	}
}

func (s *Server) accept(nc net.Conn) {
	cn := newConn(s, nc)
	s.mu.Lock()
	if s.closed || len(s.conns) >= s.o.MaxConns {
		full := !s.closed
		s.mu.Unlock()
		nc.Close()
		if full {
			s.stats.refused.Inc()
			s.o.Log.Warn("connection closed: too many", "peer", nc.RemoteAddr(), "limit", s.o.MaxConns)
		}
		return
	}
	s.conns[cn] = struct{}{}
	s.stats.connections.Add(1)
	cn.startWorker()
	s.mu.Unlock()
}

// forget drops a connection that has ended.
func (s *Server) forget(cn *Conn) {
	s.mu.Lock()
	delete(s.conns, cn)
	s.mu.Unlock()
	s.stats.connections.Add(-1)
}

func (s *Server) connections() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Conn, 0, len(s.conns))
	for cn := range s.conns {
		list = append(list, cn)
	}
	return list
}

// sweepInterval is how often the janitor looks, unless its limits are shorter.
const sweepInterval = 5 * time.Second

// sweep is the janitor: it cuts connections that are stuck or silent, and ends workers that have had nothing to do.
func (s *Server) sweep() {
	tick := time.NewTicker(min(sweepInterval, s.o.StuckTimeout, s.o.SilentTimeout))
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case now := <-tick.C:
			for _, cn := range s.connections() {
				cn.sweep(now)
			}
		}
	}
}

// Close closes the listeners, answers new requests with status.Stopping, lets the running ones end for as long as ctx
// lives, ends every Call's Context, cuts the connections and waits for all goroutines. Held calls are not waited for;
// their Finish does nothing afterwards. A handler that ignores its Context delays Close.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.workers.Wait()
		return nil
	}
	s.closed = true
	for l := range s.listeners {
		l.Close()
	}
	s.mu.Unlock()
	s.draining.Store(true)
	var err error
	for s.running.Load() > 0 && err == nil {
		select {
		case <-s.drained:
		case <-ctx.Done():
			err = fmt.Errorf("rpc: closing the server while requests run: %w", ctx.Err())
		}
	}
	close(s.done)
	for _, cn := range s.connections() {
		cn.l.close(status.Stopping) // first: what the end of the context makes of a request is no answer to it
		cn.cancel()
	}
	s.workers.Wait()
	return err
}
