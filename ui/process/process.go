package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shirou/gopsutil/v4/mem"
	"github.com/strakefs/strake/fs"
	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/failpoint"
	"github.com/strakefs/strake/fs/fusefs"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/server"
	"github.com/strakefs/strake/server/config"
	"github.com/strakefs/strake/ui/dash"
	"github.com/strakefs/strake/ui/metrics"
	"github.com/strakefs/strake/ui/param"
)

// Process is what runs in this process.
type Process struct {
	cfg     config.Config
	log     *slog.Logger
	version string
	started time.Time
	stats   *stats.Registry
	sampler *metrics.Sampler
	dash    *dash.Server
	param   *param.Server
	node    atomic.Pointer[server.Node]
	mounts  []*fs.Mount
	first   atomic.Pointer[fs.Mount] // of mounts, for who asks while they start
	gone    chan struct{}            // closed when every mount is gone
}

// closeLimit bounds the stop of what had started when a later part could not.
const closeLimit = 5 * time.Second

// Start starts what cfg asks for and returns when it can be used. An error leaves nothing running.
func Start(ctx context.Context, cfg config.Config, version string, log *slog.Logger) (*Process, error) {
	p := &Process{
		cfg: cfg, log: log, version: version, started: time.Now(), stats: stats.NewRegistry(), gone: make(chan struct{}),
	}
	if err := p.start(ctx); err != nil {
		bye, cancel := context.WithTimeout(context.Background(), closeLimit)
		defer cancel()
		if bad := p.Close(bye); bad != nil {
			log.Debug("stopping what had started", "err", bad)
		}
		return nil, err
	}
	return p, nil
}

func (p *Process) start(ctx context.Context) error {
	metrics.RegisterProcess(p.stats, p.started)
	var fails *failpoint.Set
	if p.cfg.FaultInjection {
		fails = failpoint.New()
	}
	failpoint.Register(p.stats, fails)
	// The dashboard first: a port in use must change nothing on disk.
	if err := p.startDash(); err != nil {
		return err
	}
	p.startParam()
	node, err := server.Start(ctx, server.Options{Config: p.cfg, Log: p.log, Stats: p.stats, FailPoints: fails})
	if err != nil {
		return err
	}
	p.node.Store(node)
	if err := p.startSampler(); err != nil {
		return err
	}
	return p.startMounts(ctx, node)
}

// memoryBytes is the machine's memory, 0 where it is not known.
func memoryBytes() uint64 {
	m, err := mem.VirtualMemory()
	if err != nil {
		return 0
	}
	return m.Total
}

// dirtyBytes bounds the dirty data of all mounts of a process. keptBytes bounds what is answered and not on an OST's disk, beside
// it: a stream runs at the speed of memory until a disk is that far behind. 512 MiB took 10 % more processor time to write 512 MiB with,
// for buffers that were never touched before.
const (
	dirtyBytes = 256 << 20
	keptBytes  = 256 << 20
	// keptPart is the part of the machine's memory that it is at most.
	keptPart = 32
)

func (p *Process) startMounts(ctx context.Context, node *server.Node) error {
	if len(p.cfg.Mounts) == 0 {
		return nil
	}
	cache := osc.NewCache(dirtyBytes)
	if m := memoryBytes(); m != 0 {
		cache.SetKeptLimit(min(keptBytes, int64(m/keptPart)))
	}
	budget := client.NewBudget(memoryBytes())
	for i := range p.cfg.Mounts {
		o := p.mountOptions(node, cache, i)
		o.Budget = budget
		m, err := fs.New(ctx, o)
		if err != nil {
			return err
		}
		p.mounts = append(p.mounts, m)
		p.first.CompareAndSwap(nil, m)
		p.log.Info("mounted", "dir", m.Dir())
	}
	go func() {
		for _, m := range p.mounts {
			<-m.Done()
		}
		close(p.gone)
	}()
	return nil
}

// saveDir is where a pure client keeps the configuration.
const saveDir = "/var/lib/strake"

func (p *Process) mountOptions(node *server.Node, cache *osc.Cache, i int) fs.Options {
	m := p.cfg.Mounts[i]
	o := fs.Options{
		Network: node.Network(), MGS: node.MGSAddresses(), FSName: p.cfg.FSName, Fileset: m.Options.Fileset,
		Timeout: p.cfg.MGSTimeout, RetryLimit: m.Options.IOTimeout, Cache: cache, Version: p.version, Log: p.log,
		Stats: p.stats, Number: i,
		Kernel: fusefs.MountOptions{
			Options: fusefs.Options{ACL: m.Options.ACL, UserXattr: m.Options.UserXattr},
			Dir:     m.Dir, ReadOnly: m.Options.ReadOnly, AllowOther: m.Options.AllowOther,
			NoSuid: m.Options.NoSuid, NoDev: m.Options.NoDev, NoExec: m.Options.NoExec,
			NoAtime: m.Options.Atime == config.AtimeNever, StrictAtime: m.Options.Atime == config.AtimeStrict,
			Sync: m.Options.Sync, DirSync: m.Options.DirSync, Flock: flockOf(m.Options.Flock),
		},
	}
	switch m.Options.Atime {
	case config.AtimeNever:
		o.Atime = client.NoAtime
	case config.AtimeStrict:
		o.Atime = client.StrictAtime
	}
	if m.Options.UID.Set {
		o.Kernel.UID = &m.Options.UID.ID
	}
	if m.Options.GID.Set {
		o.Kernel.GID = &m.Options.GID.ID
	}
	if m.Options.Umask.Set {
		o.Kernel.Umask = &m.Options.Umask.Mode
	}
	if len(p.cfg.Targets) == 0 {
		name := strings.Map(func(r rune) rune {
			if r == '/' || r == ':' || r == '[' || r == ']' {
				return '_'
			}
			return r
		}, strings.Join(p.cfg.MGS, ",")+"-"+p.cfg.FSName)
		o.SavePath = filepath.Join(saveDir, name+".config")
	}
	return o
}

// Wait blocks until a part has failed, or until a process without targets has no mount left.
func (p *Process) Wait() error {
	gone := p.gone
	if len(p.cfg.Targets) > 0 {
		gone = nil
	}
	select {
	case err := <-p.node.Load().Failed():
		return err
	case <-gone:
		return nil
	}
}

// Close takes the parameter socket away, unmounts, then stops the targets, then the dashboard.
func (p *Process) Close(ctx context.Context) error {
	errs := []error{p.closeParam(ctx)}
	for _, m := range p.mounts {
		if err := m.Unmount(ctx); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m.Dir(), err))
		}
	}
	if n := p.node.Load(); n != nil {
		errs = append(errs, n.Close(ctx))
	}
	if p.dash != nil {
		errs = append(errs, p.dash.Close())
	}
	if p.sampler != nil {
		p.sampler.Close()
	}
	return errors.Join(errs...)
}

// flockOf is how far locks of applications reach.
func flockOf(f config.FlockMode) fusefs.Flock {
	switch f {
	case config.FlockLocal:
		return fusefs.LocalFlock
	case config.FlockNone:
		return fusefs.NoFlock
	}
	return fusefs.GlobalFlock
}
