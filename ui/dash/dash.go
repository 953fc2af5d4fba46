package dash

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/strakefs/strake/assets"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/stats"
)

// ErrNotLoopback is returned by [Server.Start] for an address that others can reach.
var ErrNotLoopback = errors.New("the dashboard has no login yet and listens on loopback only")

// closeTimeout is how long Close lets answers finish before it cuts their connections.
const closeTimeout = 2 * time.Second

// Options configure [New]. Registry and Log are required.
type Options struct {
	Registry *stats.Registry
	Log      *slog.Logger
	// Listen is the address, "" for "127.0.0.1:9881". Port 0 takes a free one; see Addr.
	Listen string
	// AnyAddress admits an address that is not loopback, and then any Host header.
	AnyAddress bool
	// Cluster returns what is known of the file system, at once: it should answer from
	// memory, and must return when ctx ends. It is called at most twice per Interval, never
	// twice at a time. Nil on a process that knows none: only the host is shown.
	Cluster func(ctx context.Context) (ClusterView, error)
	// Locks returns the resources that several want of the lock servers of this process, at most limit of each, at once:
	// it answers from memory. Nil on a process that has none.
	Locks func(limit int) []LockResource
	// Recovery returns where the targets of this process are in getting their clients back, from memory. Nil on a process that has none.
	Recovery func() []RecoveryTarget
	// Paths returns the paths of a file from the file system's root, or an error; it may ask a target, and must return
	// when ctx ends. It is never called twice at a time. Nil: files are shown by FID.
	Paths func(ctx context.Context, f fid.FID) ([]string, error)
	// Metrics serves /metrics (ui/metrics.Handler); nil leaves the route out.
	Metrics http.Handler
	// Assets is the page's bundle; nil for the one in the binary.
	Assets fs.FS
	// Interval between ticks; 0 for one second.
	Interval time.Duration
}

// Server serves the dashboard. Make it with [New], then Start it, then Close it.
type Server struct {
	opts     Options
	feed     *feed
	listener net.Listener
	loopback bool
	http     *http.Server
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// New checks the options. It opens nothing.
func New(opts Options) (*Server, error) {
	if opts.Registry == nil || opts.Log == nil {
		return nil, errors.New("dash: needs a registry and a logger")
	}
	if opts.Listen == "" {
		opts.Listen = "127.0.0.1:9881"
	}
	if opts.Interval == 0 {
		opts.Interval = time.Second
	}
	if opts.Assets == nil {
		opts.Assets = assets.FS()
	}
	s := &Server{opts: opts}
	s.feed = &feed{
		registry: opts.Registry, poller: newPoller(opts.Cluster, opts.Interval), interval: opts.Interval,
		host:   func() hostView { return readHost(opts.Registry, time.Now()) },
		wanted: &wanted{ask: opts.Locks, keep: opts.Interval / 2}, paths: newResolver(opts.Paths),
		recoveries:  newRecoveries(opts.Recovery),
		subscribers: map[*subscriber]struct{}{},
		dropped:     opts.Registry.Counter("dash.pages_dropped", "Pages dropped because they read the live feed too slowly."),
	}
	return s, nil
}

// Start opens the listener and serves in the background. It returns an error that wraps
// [ErrNotLoopback], or that says which address could not be opened and why; then nothing is
// left running.
func (s *Server) Start() error {
	listener, err := net.Listen("tcp", s.opts.Listen)
	if err != nil {
		return fmt.Errorf("dash: cannot listen on %s: %w", s.opts.Listen, err)
	}
	addr, ok := listener.Addr().(*net.TCPAddr)
	s.loopback = ok && addr.IP.IsLoopback()
	if !s.loopback && !s.opts.AnyAddress {
		return errors.Join(fmt.Errorf("dash: %s: %w", s.opts.Listen, ErrNotLoopback), listener.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.listener, s.cancel = listener, cancel
	s.http = &http.Server{
		Handler:           s.routes(),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second, // the live feed sets its own for each write
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelDebug),
	}
	s.wg.Go(func() { s.feed.run(ctx) })
	s.wg.Go(func() {
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.opts.Log.Error("dashboard stopped", "err", err)
		}
	})
	return nil
}

// Addr returns the address that is listened on. Precondition: Start succeeded.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close stops serving: the live feeds end at once, other answers get two seconds, and every
// goroutine has ended when it returns. Without a Start it does nothing.
func (s *Server) Close() error {
	if s.http == nil {
		return nil
	}
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	s.wg.Wait()
	s.opts.Registry.Unregister("dash")
	if err != nil {
		return fmt.Errorf("dash: close: %w", err)
	}
	return nil
}
