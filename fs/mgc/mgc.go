package mgc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Kinds of targets on the wire.
const (
	KindMDT = 1
	KindOST = 2
)

// Options of a new MGC.
type Options struct {
	// Import reaches the MGS. It belongs to the caller.
	Import *rpc.Import
	FSName string
	// SavePath is where the last configuration is kept; empty keeps none.
	SavePath string
	Log      *slog.Logger
	// Stats is the process's tree, which gets the permanent parameters of every configuration; nil: they are ignored.
	Stats *stats.Registry
}

// MGC is the MGS as seen from one process.
type MGC struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup

	// applyMu keeps configurations in order while their parameters are applied.
	applyMu sync.Mutex
	applied *wirepb.Config // the last one; guarded by applyMu

	mu   sync.Mutex
	last *wirepb.Config // guarded by mu; never changed once it is here
	keep bool           // guarded by mu
}

// New makes an MGC.
func New(o Options) *MGC {
	m := &MGC{o: o}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// Close ends Watch and every other goroutine.
func (m *MGC) Close() {
	m.cancel()
	m.wait.Wait()
}

// Last is the newest configuration seen, nil if there is none. It must not be changed.
func (m *MGC) Last() *wirepb.Config {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// Fetch asks the MGS for the configuration now and keeps it.
func (m *MGC) Fetch(ctx context.Context) (*wirepb.Config, error) { return m.fetch(ctx, 0, 0) }

func (m *MGC) fetch(ctx context.Context, known uint64, wait time.Duration) (*wirepb.Config, error) {
	q := &wirepb.ConfigRequest{Fsname: []byte(m.o.FSName), Known: known, WaitMsec: uint32(wait.Milliseconds())}
	c := new(wirepb.Config)
	if err := m.o.Import.Do(ctx, &rpc.Request{Op: wire.OpConfig, Body: q, Reply: c}); err != nil {
		return nil, fmt.Errorf("mgc: configuration: %w", err)
	}
	m.mu.Lock()
	newer := m.last == nil || m.last.Version != c.Version
	m.last = c
	keep := m.keep && newer
	m.mu.Unlock()
	m.applyParams()
	if keep {
		m.saveOrWarn(c)
	}
	return c, nil
}

// applyParams makes the last configuration's permanent parameters the process's. What registers later gets its own then.
func (m *MGC) applyParams() {
	if m.o.Stats == nil {
		return
	}
	m.applyMu.Lock()
	defer m.applyMu.Unlock()
	c := m.Last()
	if m.applied != nil && m.applied.Version == c.Version {
		return
	}
	m.applied = c
	settings := make([]stats.Setting, len(c.Params))
	for i, p := range c.Params {
		settings[i] = stats.Setting{Pattern: string(p.Name), Value: string(p.Value)}
	}
	m.o.Stats.SetPermanent(settings, func(path string, err error) {
		m.o.Log.Warn("permanent parameter refused", "name", path, "err", err)
	})
}

// Keep writes the configuration to the file from now on, with the last one at once. Before it nothing is written: a data
// folder must be ours first.
func (m *MGC) Keep() {
	m.mu.Lock()
	m.keep = true
	c := m.last
	m.mu.Unlock()
	if c != nil {
		m.saveOrWarn(c)
	}
}

func (m *MGC) saveOrWarn(c *wirepb.Config) {
	if err := m.save(c); err != nil {
		m.o.Log.Warn("configuration not kept", "file", m.o.SavePath, "err", err)
	}
}

// silentTime is how long an MGS may be silent before a process that has a configuration kept starts from that.
const silentTime = 3 * time.Second

// First gets the configuration to start from: the MGS's as soon as ready says that it is enough, else the one kept from
// last time, after a short while if there is one. Without either it returns ctx's error, or the MGS's refusal at once.
func (m *MGC) First(ctx context.Context, ready func(*wirepb.Config) bool) (*wirepb.Config, error) {
	if c, err := m.Saved(); err == nil && ready(c) {
		short, cancel := context.WithTimeout(ctx, silentTime)
		defer cancel()
		ctx = short
	}
	err := m.o.Import.Connect(ctx)
	var known uint64 // none at first: the answer must not wait because we have kept what the MGS has
	for err == nil {
		var c *wirepb.Config
		if c, err = m.fetch(ctx, known, watchTime); err == nil {
			if ready(c) {
				return c, nil
			}
			known = c.Version
		}
	}
	if status.Of(err) == status.Refused {
		return nil, err
	}
	if c, saveErr := m.Saved(); saveErr == nil && ready(c) {
		m.o.Log.Warn("the MGS does not answer, starting from the configuration kept", "err", err)
		m.applyParams()
		return c, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, err
}

// save replaces the file whole: a crash leaves the old one or the new one.
func (m *MGC) save(c *wirepb.Config) error {
	if m.o.SavePath == "" {
		return nil
	}
	b, err := c.MarshalVT()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(m.o.SavePath), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(m.o.SavePath), ".config-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), m.o.SavePath)
}

// configMax bounds a kept configuration that is believed.
const configMax = wire.BodyMax

// Saved reads the configuration kept at path; os.ErrNotExist if there is none. It is also Last then.
func (m *MGC) Saved() (*wirepb.Config, error) {
	if m.o.SavePath == "" {
		return nil, os.ErrNotExist
	}
	fi, err := os.Stat(m.o.SavePath)
	if err != nil {
		return nil, err
	}
	if fi.Size() > configMax {
		return nil, fmt.Errorf("mgc: %s has %d bytes, more than a configuration can have", m.o.SavePath, fi.Size())
	}
	b, err := os.ReadFile(m.o.SavePath)
	if err != nil {
		return nil, err
	}
	c := new(wirepb.Config)
	if err := c.UnmarshalVT(b); err != nil {
		return nil, fmt.Errorf("mgc: %s is no configuration: %w", m.o.SavePath, err)
	}
	if string(c.Fsname) != m.o.FSName {
		return nil, fmt.Errorf("mgc: %s is the configuration of file system %q, not %q", m.o.SavePath, c.Fsname, m.o.FSName)
	}
	m.mu.Lock()
	m.last = c
	m.mu.Unlock()
	return c, nil
}

// watchTime is how long the MGS holds a request for news; retryTime is the pause after one that failed.
const (
	watchTime = 30 * time.Second
	retryTime = time.Second
)

// Watch calls fn with each newer configuration, from one goroutine, until Close. fn must not change it.
func (m *MGC) Watch(fn func(*wirepb.Config)) {
	var seen uint64
	if c := m.Last(); c != nil { // now, not when the goroutine runs: a Fetch meanwhile is news to fn
		seen = c.Version
	}
	m.wait.Add(1)
	go func() {
		defer m.wait.Done()
		for m.ctx.Err() == nil {
			c, err := m.fetch(m.ctx, seen, watchTime)
			if err != nil {
				select {
				case <-m.ctx.Done():
				case <-time.After(retryTime):
				}
				continue
			}
			if c.Version != seen {
				seen = c.Version
				fn(c)
			}
		}
	}()
}

// Register enters a target and returns its place. It waits until the MGS has it on disk.
func (m *MGC) Register(ctx context.Context, q *wirepb.RegisterRequest) (*wirepb.RegisterReply, error) {
	r := new(wirepb.RegisterReply)
	if err := m.o.Import.Do(ctx, &rpc.Request{Op: wire.OpRegister, Body: q, Reply: r}); err != nil {
		return nil, fmt.Errorf("mgc: register: %w", err)
	}
	return r, nil
}

// Report tells the MGS how targets are.
func (m *MGC) Report(ctx context.Context, targets []*wirepb.Target) error {
	q := &wirepb.ReportRequest{Fsname: []byte(m.o.FSName), Targets: targets}
	if err := m.o.Import.Do(ctx, &rpc.Request{Op: wire.OpReport, Body: q}); err != nil {
		return fmt.Errorf("mgc: report: %w", err)
	}
	return nil
}
