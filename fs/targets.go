package fs

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/mgc"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/virtual"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// ost is one OST of the mount.
type ost struct {
	imp  *rpc.Import
	osc  *osc.OSC
	name string
}

// apply follows a configuration: new OSTs are entered, moved ones are looked for where they are now, those that were started again are
// connected to at once. An OST that is away
// keeps nothing else waiting.
func (m *Mount) apply(c *wirepb.Config) {
	for _, t := range c.Targets {
		switch t.Kind {
		case mgc.KindMDT:
			if t.Index == 0 {
				m.mdtImp.SetAddresses(m.addresses(t))
				m.mdtImp.NewInstance(t.Instance)
			}
		case mgc.KindOST:
			if err := m.applyOST(t); err != nil {
				m.o.Log.Error("OST cannot be used", "target", string(t.Name), "err", err)
			}
		}
	}
}

func (m *Mount) applyOST(t *wirepb.Target) error {
	addresses := m.addresses(t)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.osts == nil || m.ctx.Err() != nil {
		return nil
	}
	if have := m.osts[t.Index]; have != nil {
		have.imp.SetAddresses(addresses)
		have.imp.NewInstance(t.Instance)
		return nil
	}
	n := &ost{name: string(t.Name)}
	seed, err := newSeed()
	if err != nil {
		return err
	}
	o := m.importOptions(n.name, addresses)
	o.Bulk = true
	o.OnConnect = func(r *wirepb.ConnectReply) { n.osc.Connected(r) }
	o.ReplayMore = func(ctx context.Context, r *rpc.Recovery, after wire.Transno) error {
		return n.osc.Replay(ctx, r, after)
	}
	o.Restore = func(ctx context.Context, r *rpc.Recovery) error { return n.osc.Restore(ctx, r) }
	o.OnCommitted = func(t wire.Transno) { n.osc.Committed(t) }
	o.Callback = func(e *env.Env, c *rpc.Call) error { return n.osc.Callback(e, c) }
	imp, err := rpc.NewImport(o)
	if err != nil {
		return err
	}
	n.imp = imp
	n.osc = osc.New(osc.Options{
		Import: imp, Index: layout.OSTIndex(t.Index), Name: m.figureName(n.name), Cache: m.o.Cache, Log: m.o.Log, Stats: m.o.Stats,
		Locks: &osc.LockOptions{Seed: seed, Heard: imp.LastHeard},
	})
	m.osts[t.Index] = n
	m.data.Add(n.osc)
	m.wait.Add(1)
	go m.connectOST(n)
	return nil
}

// newSeed is random.
func newSeed() (uint64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("mount: %w", err)
	}
	return binary.NativeEndian.Uint64(b[:]), nil
}

// figureName names an OST in the statistics: those of a process's second mount must not be the first one's.
func (m *Mount) figureName(target string) string {
	if m.o.Number == 0 {
		return target
	}
	return fmt.Sprintf("%s-mount%d", target, m.o.Number)
}

// connectOST connects for the first time, for as long as it takes; afterwards the import reconnects by itself.
func (m *Mount) connectOST(n *ost) {
	defer m.wait.Done()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := n.imp.Connect(m.ctx)
		if err == nil || m.ctx.Err() != nil {
			return
		}
		m.o.Log.Warn("OST does not answer, trying again", "target", n.name, "err", err)
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// info describes the mount for the tools.
func (m *Mount) info() *client.Info {
	i := &client.Info{FSName: m.o.FSName, Version: m.o.Version, Client: hex.EncodeToString(m.uuid[:])}
	def := layout.Plain(1, layout.StripeSizeDefault)
	i.Default = def.Append(nil)
	i.Targets = append(i.Targets, client.Target{
		Name: "MGS", Kind: virtual.KindMGS, State: stateOf(m.mgs), Server: strings.Join(m.o.MGS, ","),
	})
	c := m.mgc.Last()
	if c == nil {
		return i
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range c.Targets {
		v := client.Target{Name: string(t.Name), Kind: virtual.KindMDT, Index: t.Index, Server: string(t.Server)}
		imp := m.mdtImp
		if t.Kind == mgc.KindOST {
			v.Kind, imp = virtual.KindOST, nil
			if o := m.osts[t.Index]; o != nil {
				imp = o.imp
			}
		}
		v.State = stateOf(imp)
		i.Targets = append(i.Targets, v)
	}
	return i
}

// stateOf is how the tools name the state of a connection.
func stateOf(i *rpc.Import) string {
	switch {
	case i == nil || i.State() != rpc.StateFull:
		return "INACTIVE"
	case !i.Active():
		return virtual.Deactivated
	}
	return virtual.Active
}
