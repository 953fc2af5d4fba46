package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/failpoint"
	"github.com/strakefs/strake/fs/mgc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/config"
	"github.com/strakefs/strake/server/lockd"
	"github.com/strakefs/strake/server/mgs"
	"github.com/strakefs/strake/server/target"
)

// Options of a node.
type Options struct {
	Config config.Config
	Log    *slog.Logger
	Stats  *stats.Registry
	// FailPoints is nil in a process that allows no fault injection. Close closes it.
	FailPoints *failpoint.Set
}

// Node is one process's targets.
type Node struct {
	o      Options
	log    *slog.Logger
	id     string // names this process in the network
	server string // says who that is, for people
	net    *rpc.Network
	rpc    *rpc.Server
	listen []net.Listener
	mgs    *mgs.MGS
	mgsImp *rpc.Import
	mgc    *mgc.MGC
	mds    *mds
	oss    []*oss
	// What the targets share: the bounds of the memory of locks, and of that of cached objects.
	locks   *lockd.Shared
	objects *target.Budget
	fails   fails

	ctx    context.Context // ends with Close; for the loops
	cancel context.CancelFunc
	wait   sync.WaitGroup
	failed chan error // the first failure of a part, capacity 1

	mu      sync.Mutex
	targets map[string]rpc.Target // guarded by mu
	closed  bool                  // guarded by mu
}

// Start starts what the configuration asks for and returns when every target is registered and serves. An error is one
// sentence that says what, where and what to do; nothing is left running then.
func Start(ctx context.Context, o Options) (*Node, error) {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	n := &Node{
		o: o, log: o.Log, id: hex.EncodeToString(id[:]), server: fmt.Sprintf("%s (pid %d)", host, os.Getpid()),
		net: rpc.NewNetwork(), targets: make(map[string]rpc.Target), failed: make(chan error, 1),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	total := memory(o.Log)
	n.locks, n.objects = lockd.NewShared(total), target.NewBudget(total)
	if o.Stats != nil {
		n.locks.Register(o.Stats)
		n.objects.Register(o.Stats)
	}
	n.rpc = rpc.NewServer(rpc.ServerOptions{Log: o.Log, Stats: o.Stats, Find: n.find, FailPoints: o.FailPoints})
	if err := n.start(ctx); err != nil {
		bye, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		if bad := n.Close(bye); bad != nil {
			o.Log.Debug("stopping what had started", "err", bad)
		}
		return nil, err
	}
	return n, nil
}

// closeTime bounds the stop of a node that did not start.
const closeTime = 5 * time.Second

func (n *Node) start(ctx context.Context) error {
	if n.o.Config.MDTs()+n.o.Config.OSTs() == 0 {
		return nil
	}
	if err := n.checkFolders(); err != nil {
		return err
	}
	if err := n.openPorts(); err != nil {
		return err
	}
	if n.o.Config.HostMGS {
		if err := n.startMGS(ctx); err != nil {
			return err
		}
	}
	for _, l := range n.listen {
		n.wait.Go(func() {
			if err := n.rpc.Serve(l); err != nil {
				n.fail(fmt.Errorf("listener %s: %w", l.Addr(), err))
			}
		})
	}
	c, err := n.configure(ctx)
	if err != nil {
		return err
	}
	if err := n.startMDS(ctx); err != nil {
		return err
	}
	if err := n.startOSS(ctx); err != nil {
		return err
	}
	n.mgc.Keep()
	n.applyConfig(c)
	n.mgc.Watch(n.applyConfig)
	n.wait.Go(n.reportLoop)
	n.wait.Go(n.memoryLoop)
	return nil
}

// fail notes why the node cannot go on; Wait returns it.
func (n *Node) fail(err error) {
	select {
	case n.failed <- err:
	default:
	}
}

// Failed gives the error of the first part that failed.
func (n *Node) Failed() <-chan error { return n.failed }

// Network reaches this node's targets from inside the process, and others over TCP.
func (n *Node) Network() *rpc.Network { return n.net }

// MGSAddresses are where the MGS is, as seen from this process.
func (n *Node) MGSAddresses() []string {
	if n.o.Config.HostMGS {
		return []string{n.pipeAddress()}
	}
	return n.o.Config.MGS
}

func (n *Node) pipeAddress() string { return rpc.PipePrefix + n.id }

// find is the rpc server's way to a target.
func (n *Node) find(name string) (rpc.Target, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t := n.targets[name]; t != nil {
		return t, nil
	}
	return nil, status.Errorf(status.WrongTarget, "%q does not live here", name)
}

func (n *Node) serve(name string, t rpc.Target) {
	n.mu.Lock()
	n.targets[name] = t
	n.mu.Unlock()
}

// configure gets the configuration to start from. A node that holds no target with a saved configuration needs the MGS.
func (n *Node) configure(ctx context.Context) (*wirepb.Config, error) {
	uuid, err := newUUID()
	if err != nil {
		return nil, err
	}
	n.mgsImp, err = rpc.NewImport(rpc.ImportOptions{
		Transport: n.net, Addresses: n.MGSAddresses(), FSName: n.o.Config.FSName, Target: mgs.Name, UUID: uuid,
		Peer: n.server, Kind: rpc.KindOST, Log: n.log, Stats: n.o.Stats,
	})
	if err != nil {
		return nil, err
	}
	n.mgc = mgc.New(mgc.Options{Import: n.mgsImp, FSName: n.o.Config.FSName, SavePath: n.savePath(), Log: n.log, Stats: n.o.Stats})
	limited, cancel := context.WithTimeout(ctx, n.o.Config.MGSTimeout)
	defer cancel()
	c, err := n.mgc.First(limited, func(*wirepb.Config) bool { return true })
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return nil, fmt.Errorf("the MGS at %v did not answer within %v and no configuration is saved yet: start it, or check --mgs", n.o.Config.MGS, n.o.Config.MGSTimeout)
	}
	return nil, fmt.Errorf("the MGS at %v: %w", n.o.Config.MGS, err)
}

// Close stops everything within ctx: what was answered is on disk when it returns nil.
func (n *Node) Close(ctx context.Context) error {
	n.mu.Lock()
	closed := n.closed
	n.closed = true
	n.mu.Unlock()
	if closed {
		return nil
	}
	n.cancel()
	n.o.FailPoints.Close() // a commit that is paused would keep the devices open
	var errs []error
	if n.mgc != nil {
		n.mgc.Close()
	}
	if n.mds != nil {
		errs = append(errs, n.mds.stop(ctx))
	}
	for _, o := range n.oss {
		errs = append(errs, o.stop(ctx))
	}
	if n.mgs != nil {
		n.mgs.Close()
	}
	if n.mgsImp != nil {
		errs = append(errs, n.mgsImp.Close(ctx))
	}
	errs = append(errs, n.rpc.Close(ctx))
	for _, l := range n.listen {
		// The rpc server has closed those that it served; one of a start that failed is still open.
		_ = l.Close()
	}
	n.wait.Wait()
	if n.mds != nil {
		errs = append(errs, n.mds.dev.Close())
	}
	for _, o := range n.oss {
		errs = append(errs, o.dev.Close())
	}
	return errors.Join(errs...)
}

func newUUID() (u [16]byte, err error) {
	_, err = rand.Read(u[:])
	return u, err
}
