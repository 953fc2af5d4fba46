package fs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fusefs"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/mgc"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Options of a mount.
type Options struct {
	// Network reaches the servers; MGS are the addresses of the MGS in it.
	Network rpc.Transport
	MGS     []string
	FSName  string
	// Kernel says where and how the kernel mounts. Its Client and Root are filled in here.
	Kernel fusefs.MountOptions
	Atime  client.Atime
	// Fileset is the folder that becomes the mount's root, "" or "/" for the file system's.
	Fileset string
	// Timeout bounds the wait for the MGS and the MDT at the start.
	Timeout time.Duration
	// RetryLimit bounds how long an operation waits for a target that is away; 0: as long as it takes.
	RetryLimit time.Duration
	// SavePath keeps the configuration for a start without the MGS; empty keeps none.
	SavePath string
	// Cache is the memory of dirty data, shared by the mounts of a process.
	Cache *osc.Cache
	// Budget bounds the inodes that are cached, shared by the mounts of a process.
	Budget  *client.Budget
	Version string
	Log     *slog.Logger
	Stats   *stats.Registry
	// Number tells the mounts of a process apart in their statistics, from 0.
	Number int
}

// Mount is a mounted file system.
type Mount struct {
	o    Options
	uuid [16]byte

	mgs    *rpc.Import
	mgc    *mgc.MGC
	mdtImp *rpc.Import
	locks  *lockcache.Cache // of the MDT
	owner  client.Owner
	mdc    *mdc.MDC
	data   *lov.Set
	client *client.Client
	kernel *fusefs.Mount

	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu   sync.Mutex
	osts map[uint32]*ost // guarded by mu
	// told is who forgets what it believes when the MDT is not the one it was; nil until there is a client. guarded by mu
	told *client.Client
	// met says that the MDT was connected to before. guarded by mu
	met bool
	// evictAfter is how long the MDT lets this mount be silent, in nanoseconds.
	evictAfter atomic.Int64
}

// New mounts. The mount can be used when it returns. On an error nothing is left behind.
func New(ctx context.Context, o Options) (*Mount, error) {
	if err := fusefs.Check(o.Kernel.Dir); err != nil {
		return nil, err
	}
	m := &Mount{o: o, osts: make(map[uint32]*ost)}
	if _, err := rand.Read(m.uuid[:]); err != nil {
		return nil, fmt.Errorf("mount: %w", err)
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	if err := m.start(ctx); err != nil {
		m.stop(ctx)
		return nil, err
	}
	return m, nil
}

func (m *Mount) start(ctx context.Context) error {
	c, err := m.configure(ctx)
	if err != nil {
		return err
	}
	if err := m.connectMDT(ctx, c); err != nil {
		return err
	}
	if m.o.SavePath != "" {
		m.mgc.Keep()
	}
	m.data = lov.NewSet()
	m.apply(c)
	m.mgc.Watch(m.apply)
	prefix := fmt.Sprintf("llite.%s-%d.", m.o.FSName, m.o.Number)
	m.client = client.New(client.Options{
		MDC: m.mdc, Data: m.data, Locks: m.locks, Owner: &m.owner, Budget: m.o.Budget, Cache: m.o.Cache, Alive: m.alive, ReadOnly: m.o.Kernel.ReadOnly, Atime: m.o.Atime,
		Sync: m.o.Kernel.Sync, DirSync: m.o.Kernel.Sync || m.o.Kernel.DirSync,
		NamesMax: namesMax, Info: m.info, Log: m.o.Log, Stats: m.o.Stats, StatsPrefix: prefix,
	})
	m.mu.Lock()
	m.told = m.client
	m.mu.Unlock()
	root, err := m.client.Resolve(ctx, m.o.Fileset)
	if err != nil {
		return fmt.Errorf("mount %s: fileset %q: %w", m.o.Kernel.Dir, m.o.Fileset, err)
	}
	k := m.o.Kernel
	k.Client, k.Root, k.Log, k.Stats, k.StatsPrefix = m.client, root, m.o.Log, m.o.Stats, prefix
	k.Source = m.source()
	m.kernel, err = fusefs.Start(k)
	return err
}

// namesMax bounds the names remembered to answer lookups of absent ones: some 30 MiB.
const namesMax = 1 << 20

// source is what df(1) shows: HOST:/fsname, as mount(8) is told it.
func (m *Mount) source() string {
	host := strings.Join(m.o.MGS, ",")
	if strings.HasPrefix(host, rpc.PipePrefix) {
		host = "local"
	}
	return host + ":/" + m.o.FSName + strings.TrimSuffix(m.o.Fileset, "/")
}

// importOptions are what all of the mount's imports have in common.
func (m *Mount) importOptions(target string, addresses []string) rpc.ImportOptions {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return rpc.ImportOptions{
		Transport: m.o.Network, Addresses: addresses, FSName: m.o.FSName, Target: target, UUID: m.uuid,
		Peer: fmt.Sprintf("%s:%s (pid %d)", host, m.o.Kernel.Dir, os.Getpid()), Kind: rpc.KindClient, ReadOnly: m.o.Kernel.ReadOnly,
		RetryLimit: m.o.RetryLimit, Log: m.o.Log, Stats: m.o.Stats,
	}
}

// configure connects to the MGS and fetches the configuration; without an answer it takes the one kept from last time.
// A configuration without an MDT is waited for: the MDT may be starting.
func (m *Mount) configure(ctx context.Context) (*wirepb.Config, error) {
	var err error
	if m.mgs, err = rpc.NewImport(m.importOptions("MGS", m.o.MGS)); err != nil {
		return nil, err
	}
	m.mgc = mgc.New(mgc.Options{Import: m.mgs, FSName: m.o.FSName, SavePath: m.o.SavePath, Log: m.o.Log, Stats: m.o.Stats})
	limited, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	c, err := m.mgc.First(limited, func(c *wirepb.Config) bool { return target(c, mgc.KindMDT, 0) != nil })
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return nil, fmt.Errorf("mount %s: the MGS at %s did not answer within %v: start it, or check --mgs", m.o.Kernel.Dir, strings.Join(m.o.MGS, ","), m.o.Timeout)
	}
	return nil, fmt.Errorf("mount %s: %w", m.o.Kernel.Dir, err)
}

// target finds a target in a configuration, nil if it is not there.
func target(c *wirepb.Config, kind, index uint32) *wirepb.Target {
	for _, t := range c.Targets {
		if t.Kind == kind && t.Index == index {
			return t
		}
	}
	return nil
}

// addresses are a target's addresses that this process can reach.
func (m *Mount) addresses(t *wirepb.Target) []string {
	out := make([]string, 0, len(t.Addresses))
	for _, b := range t.Addresses {
		if a := string(b); !strings.HasPrefix(a, rpc.PipePrefix) || rpc.Reaches(m.o.Network, a) {
			out = append(out, a)
		}
	}
	return out
}

func (m *Mount) connectMDT(ctx context.Context, c *wirepb.Config) error {
	t := target(c, mgc.KindMDT, 0)
	if t == nil {
		return fmt.Errorf("mount %s: the file system has no MDT yet: start one (strake --role=mds)", m.o.Kernel.Dir)
	}
	name := string(t.Name)
	o := m.importOptions(name, m.addresses(t))
	o.OnLate = func(op wire.Op, body []byte) { m.mdc.Late(op, body) }
	o.OnConnect = m.connectedMDT
	o.Replay, o.Restore, o.OnRefused = true, m.restoreMDT, m.refused
	o.Callback = func(e *env.Env, c *rpc.Call) error { return m.locks.Callback(e, c) }
	var err error
	if m.mdtImp, err = rpc.NewImport(o); err != nil {
		return err
	}
	seed, err := newSeed()
	if err != nil {
		return err
	}
	m.locks = lockcache.New(lockcache.Options{
		Name: m.figureName(name) + "-mdc", Import: m.mdtImp, Owner: &m.owner, Seed: seed,
		Heard: m.mdtImp.LastHeard, Log: m.o.Log, Stats: m.o.Stats,
	})
	m.mdc = mdc.New(mdc.Options{
		Import: m.mdtImp, Locks: m.locks, Log: m.o.Log, Stats: m.o.Stats, StatsPrefix: "mdc." + stats.Element(m.figureName(name)) + "-mdc.",
	})
	limited, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	if err := m.mdtImp.Connect(limited); err != nil {
		return fmt.Errorf("mount %s: %s: %w", m.o.Kernel.Dir, t.Name, err)
	}
	return nil
}

// connectedMDT follows a connect to the MDT. One that does not know this mount any more has given what it held to others.
func (m *Mount) connectedMDT(r *wirepb.ConnectReply) {
	m.evictAfter.Store(int64(r.EvictAfterMsec) * int64(time.Millisecond))
	m.mu.Lock()
	evicted := m.met && !r.Recovered
	m.met = true
	told := m.told
	m.mu.Unlock()
	if evicted && told != nil {
		told.Evicted()
	}
	m.locks.Connected(r)
}

// restoreMDT hands opens and applications' locks back to an MDT that was started again.
func (m *Mount) restoreMDT(ctx context.Context, v *rpc.Recovery) error {
	m.mu.Lock()
	told := m.told
	m.mu.Unlock()
	if told == nil {
		return nil
	}
	if err := m.mdc.Restore(ctx, v, told.Writers(), told.Vanished); err != nil {
		return err
	}
	_, err := m.locks.RestoreFlocks(ctx, v)
	return err
}

// refused tells of a change that an MDT which was started again cannot repeat.
func (m *Mount) refused(op wire.Op, body []byte, err error) {
	m.mu.Lock()
	told := m.told
	m.mu.Unlock()
	if told != nil {
		told.Refused(op, body, err)
	}
}

// alive asks for a sign of life of an MDT that has not been heard for half the time in which it would evict this mount.
func (m *Mount) alive(ctx context.Context) error {
	limit := time.Duration(m.evictAfter.Load()) / 2
	if limit == 0 || time.Since(m.mdtImp.LastHeard()) < limit {
		return nil
	}
	return m.mdtImp.Do(ctx, &rpc.Request{Op: wire.OpPing})
}

// Done is closed when the kernel's side is gone, by Unmount or by umount(8).
func (m *Mount) Done() <-chan struct{} { return m.kernel.Done() }

// Dir is the mount point.
func (m *Mount) Dir() string { return m.o.Kernel.Dir }

// busyTime is how long a busy mount is asked politely.
const busyTime = 2 * time.Second

// Unmount unmounts, writes back what is dirty and disconnects, within ctx. A mount that stays busy is taken away from
// its users.
func (m *Mount) Unmount(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, busyTime)
	defer cancel()
	err := m.kernel.Unmount(limited)
	return errors.Join(err, m.stop(ctx))
}

// farewellTime is kept of the time for a stop when data cannot be written back, for the reports to the MDT and for saying
// good-bye: a mount that does not keeps the next one out for a while.
const farewellTime = 3 * time.Second

// reserve is ctx, ended a little earlier.
func reserve(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-min(farewellTime, time.Until(end)/2)))
}

// stop ends what start began, in the reverse order.
func (m *Mount) stop(ctx context.Context) error {
	var errs []error
	data, cancel := reserve(ctx)
	defer cancel()
	if m.client != nil {
		errs = append(errs, m.client.Close(data))
	}
	if m.mgc != nil {
		m.mgc.Close()
	}
	m.cancel()
	m.wait.Wait()
	if m.mdc != nil {
		errs = append(errs, m.mdc.Close(ctx))
	}
	if m.locks != nil {
		m.locks.Close() // Locks go with the disconnect.
	}
	m.mu.Lock()
	osts := m.osts
	m.osts = nil
	m.mu.Unlock()
	for _, o := range osts {
		errs = append(errs, o.osc.Close(data))
	}
	if m.data != nil {
		errs = append(errs, m.data.Close(ctx))
	}
	for _, o := range osts {
		errs = append(errs, o.imp.Close(ctx))
	}
	for _, i := range []*rpc.Import{m.mdtImp, m.mgs} {
		if i != nil {
			errs = append(errs, i.Close(ctx))
		}
	}
	return errors.Join(errs...)
}
