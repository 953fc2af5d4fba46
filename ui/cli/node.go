package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/strakefs/strake/server/config"
)

// The time a stop may take. A node is asked to be done in closeLimit; what is left until stopLimit is for it to give
// up, and then the process leaves without it.
const (
	stopLimit  = 10 * time.Second
	closeLimit = 9 * time.Second
)

// errForced says that a stop was cut short.
var errForced = errors.New("forced to stop: what a mount had not written back is lost, what the servers had committed is kept")

// runNode runs a node until a signal or a failure of its own stops it.
func runNode(ctx context.Context, deps Deps, cfg config.Config) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := preflight(cfg); err != nil {
		return fmt.Errorf("cannot start: %w", err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if !signal.Ignored(syscall.SIGHUP) { // nohup and the like stay in force
		signal.Notify(signals, syscall.SIGHUP)
	}
	defer signal.Stop(signals)
	// A reader of the log that went away must not end a file system.
	signal.Ignore(syscall.SIGPIPE)

	log, held := newLogger(deps.Stderr, cfg.LogLevel)
	prepared := prepareProcess(cfg, deps.Environ, log)
	log.Info("strake starts", "version", BuildVersion(deps.Version), "roles", cfg.Roles.String(), "fsname", cfg.FSName)
	for _, note := range cfg.Notes {
		log.Warn(note)
	}
	r := runner{deps: deps, cfg: cfg, log: log, held: held, signals: signals, prepared: prepared}
	return r.run(ctx)
}

// runner is one run of a node.
type runner struct {
	deps    Deps
	cfg     config.Config
	log     *slog.Logger
	held    *heldWriter
	signals <-chan os.Signal
	// prepared ends what belongs to the process only while the node starts.
	prepared func()
}

// started is what Deps.Start returned.
type started struct {
	node Node
	err  error
}

func (r *runner) run(ctx context.Context) error {
	startCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	result := make(chan started, 1)
	go func() {
		node, err := r.deps.Start(startCtx, r.cfg, r.log)
		result <- started{node, err}
	}()
	var s started
	select {
	case s = <-result:
	case sig := <-r.signals:
		return r.abandon(sig, cancel, result)
	}
	if s.err != nil {
		r.held.drop()
		return fmt.Errorf("cannot start: %w", s.err)
	}
	r.held.release()
	r.prepared()
	r.log.Info("strake is up", "mounts", len(r.cfg.Mounts), "http", r.cfg.HTTP, "listen", r.cfg.Listen)
	notifyReady(r.deps.Environ, r.log)
	return r.serve(s.node)
}

// abandon stops a start that a signal came into.
func (r *runner) abandon(sig os.Signal, cancel func(), result <-chan started) error {
	r.held.release()
	r.log.Info("stopping before the start is done", "signal", sig.String())
	cancel()
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case s := <-result:
		if s.err == nil {
			return r.stop(s.node)
		}
		if errors.Is(s.err, context.Canceled) {
			return nil
		}
		return s.err
	case <-r.signals:
		return errForced
	case <-limit.C:
		return fmt.Errorf("did not stop within %v: %w", stopLimit, errForced)
	}
}

// serve waits for a signal or the node's own end.
func (r *runner) serve(node Node) error {
	ended := make(chan error, 1)
	go func() { ended <- node.Wait() }()
	select {
	case sig := <-r.signals:
		r.log.Info("stopping", "signal", sig.String())
		return r.stop(node)
	case err := <-ended:
		// A part that failed has stopped the node; Close ends the rest of it in order.
		return errors.Join(err, r.stop(node))
	}
}

// stop closes the node within the limits.
func (r *runner) stop(node Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- node.Close(ctx) }()
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case err := <-closed:
		if err != nil {
			return fmt.Errorf("stop: %w", err)
		}
		r.log.Info("stopped")
		return nil
	case <-r.signals:
		detachMounts(r.cfg, r.log)
		return errForced
	case <-limit.C:
		detachMounts(r.cfg, r.log)
		return fmt.Errorf("did not stop within %v: %w", stopLimit, errForced)
	}
}
