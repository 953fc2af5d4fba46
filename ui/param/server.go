package param

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/strakefs/strake/fs/stats"
)

// Options of a server.
type Options struct {
	Registry *stats.Registry
	// Role is the process's roles as --role takes them; it names the socket.
	Role    string
	FSName  string
	Version string
	// Permanent keeps a permanent value at the MGS that this process hosts, or removes it when value is empty; nil in a
	// process that hosts none. It may wait for the disk.
	Permanent func(ctx context.Context, name, value string) error
	// Folders are tried in order; nil: [Folders].
	Folders []string
	Log     *slog.Logger
}

// Server is one process's parameter socket.
type Server struct {
	o    Options
	l    *net.UnixListener
	path string

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu    sync.Mutex
	conns map[*net.UnixConn]struct{} // guarded by mu; nil once the server is closed
}

// connsMax is how many peers are served at once: lctl asks on one connection and leaves.
const connsMax = 16

// Listen makes the socket and serves it until Close. It fails when no folder can be used, with the reasons; a folder other
// than the first one is logged, for people look there.
func Listen(o Options) (*Server, error) {
	if o.Folders == nil {
		o.Folders = Folders()
	}
	name := fmt.Sprintf("%s-%d", strings.ReplaceAll(o.Role, ",", "+"), os.Getpid())
	var errs []error
	for i, dir := range o.Folders {
		l, path, err := listen(dir, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if i > 0 {
			o.Log.Warn("parameter socket is not where it should be", "socket", path, "wanted", o.Folders[0], "err", errors.Join(errs...))
		}
		s := &Server{o: o, l: l, path: path, conns: map[*net.UnixConn]struct{}{}}
		s.ctx, s.cancel = context.WithCancel(context.Background())
		s.wait.Go(s.accept)
		return s, nil
	}
	return nil, fmt.Errorf("no folder for the parameter socket: %w", errors.Join(errs...))
}

// Path is where the socket is.
func (s *Server) Path() string { return s.path }

// Close removes the socket, cuts off who is connected and waits, within ctx, for the parameters that are being read or set.
// One that hangs must not keep a process from stopping.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	conns := s.conns
	s.conns = nil
	s.mu.Unlock()
	if conns == nil {
		return nil
	}
	s.cancel()
	err := os.Remove(s.path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil // who removed it had the right to
	}
	err = errors.Join(err, s.l.Close())
	for c := range conns {
		_ = c.Close() // its goroutine closes it too
	}
	done := make(chan struct{})
	go func() { s.wait.Wait(); close(done) }()
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("a parameter is still being read or set: %w", ctx.Err()))
	}
}

// accept serves peers, connsMax at once; the kernel keeps the others waiting.
func (s *Server) accept() {
	slots := make(chan struct{}, connsMax)
	for {
		select {
		case slots <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		c, err := s.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file descriptors, say: others may come free
			<-slots
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.ctx.Done():
			}
			continue
		}
		s.wait.Go(func() {
			defer func() { <-slots }()
			if !s.enter(c) {
				_ = c.Close()
				return
			}
			defer s.leave(c)
			newTalk(s, c).run()
		})
	}
}

func (s *Server) enter(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) leave(c *net.UnixConn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	_ = c.Close()
}

// peerUID asks the kernel who is at the other end: the user that connected.
func peerUID(c *net.UnixConn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return cred.Uid, nil
}

// mayTalk is who is served: root and the user that the process runs as.
func mayTalk(peer uint32, own int) bool { return peer == 0 || int(peer) == own }
