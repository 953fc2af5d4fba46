package server

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/mgc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/config"
	"github.com/strakefs/strake/server/mdt"
	"github.com/strakefs/strake/server/mgs"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
)

// mds is the node's MDT. Its device holds the tables of the MDT, of package target, of package osp and of the MGS, in
// this order.
type mds struct {
	dir     string
	name    string
	dev     *boltdev.Device
	objects *osp.Set
	mdt     *mdt.Handler
	backup  backup
}

func mdsSpecs() (specs []store.Spec, clients, logs, registry store.Table) {
	specs = mdt.Specs()
	clients = store.Table(len(specs))
	specs = append(specs, target.Specs()...)
	logs = store.Table(len(specs))
	specs = append(specs, osp.Specs()...)
	registry = store.Table(len(specs))
	return append(specs, mgs.Spec()), clients, logs, registry
}

// savePath is where this node keeps the configuration: in its first data folder, once that is there.
func (n *Node) savePath() string {
	return filepath.Join(n.o.Config.Targets[0].Dir, "config")
}

// openMDT opens the MDT's device.
func (n *Node) openMDT(ctx context.Context) error {
	if n.mds != nil {
		return nil
	}
	for _, t := range n.o.Config.Targets {
		if t.Kind != config.MDT {
			continue
		}
		specs, clients, _, _ := mdsSpecs()
		dev, err := n.openDevice(t.Dir, store.KindMDT, specs)
		if err != nil {
			return err
		}
		n.mds = &mds{dir: t.Dir, dev: dev}
		if err := target.KeepPoint(dev, clients); err != nil { // Before the MGS publishes.
			return fmt.Errorf("MDT in %s: %w", t.Dir, err)
		}
		if err := takeNote(ctx, dev, n.log); err != nil {
			return fmt.Errorf("MDT in %s: %w", t.Dir, err)
		}
	}
	return nil
}

// checkFolders refuses a data folder that cannot be ours before anything is made or opened.
func (n *Node) checkFolders() error {
	if base := n.o.Config.Base; base != "" {
		if err := checkBase(base); err != nil {
			return err
		}
	}
	for _, t := range n.o.Config.Targets {
		kind := store.KindOST
		if t.Kind == config.MDT {
			kind = store.KindMDT
		}
		err := boltdev.Check(boltdev.Options{Dir: t.Dir, Label: store.Label{FSName: n.o.Config.FSName, Kind: kind}})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkBase refuses a base folder that holds something else than targets.
func checkBase(dir string) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("data folder %s: %w", dir, err)
	}
	for _, e := range names {
		n := e.Name()
		target := strings.HasPrefix(n, "mdt") || strings.HasPrefix(n, "ost")
		if !target && n != "lost+found" {
			return fmt.Errorf("data folder %s: %w: it holds %q (give an empty folder)", dir, boltdev.ErrForeign, n)
		}
	}
	return nil
}

// openDevice opens a data folder, formatted first if it is new.
func (n *Node) openDevice(dir string, kind store.TargetKind, specs []store.Spec) (*boltdev.Device, error) {
	uuid, err := newUUID()
	if err != nil {
		return nil, err
	}
	o := boltdev.Options{
		Dir: dir, Specs: specs, Log: n.log, Stats: n.o.Stats, StatsClass: "osd-strake", StatsName: hex.EncodeToString(uuid[:]),
		Label: store.Label{FSName: n.o.Config.FSName, Kind: kind, Index: -1, UUID: hex.EncodeToString(uuid[:])},
	}
	n.failDevice(&o)
	return boltdev.Open(o)
}

// startMGS opens the registry on the MDT's device and offers it.
func (n *Node) startMGS(ctx context.Context) error {
	if err := n.openMDT(ctx); err != nil {
		return err
	}
	_, _, _, table := mdsSpecs()
	var err error
	n.mgs, err = mgs.Open(ctx, mgs.Options{FSName: n.o.Config.FSName, KV: n.mds.dev, Table: table, Log: n.log})
	if err != nil {
		return err
	}
	if n.o.Stats != nil {
		n.mgs.Register(n.o.Stats)
	}
	n.serve(mgs.Name, n.mgs)
	return nil
}

// register enters a device's target at the MGS and keeps its place on the device. When the MGS is silent, a device that
// has its place goes on with it.
func (n *Node) register(ctx context.Context, kind uint32, dev *boltdev.Device) (store.Label, error) {
	l := dev.Label()
	uuid, err := hex.DecodeString(l.UUID)
	if err != nil {
		return l, fmt.Errorf("data folder's uuid %q: %w", l.UUID, err)
	}
	fsUUID, err := hex.DecodeString(l.FSUUID)
	if err != nil {
		return l, fmt.Errorf("data folder's file system %q: %w", l.FSUUID, err)
	}
	if n.mgsImp.State() != rpc.StateFull && l.Index >= 0 {
		return l, nil
	}
	limited, cancel := context.WithTimeout(ctx, n.o.Config.MGSTimeout)
	defer cancel()
	r, err := n.mgc.Register(limited, &wirepb.RegisterRequest{
		Fsname: []byte(l.FSName), Kind: kind, Index: l.Index, Uuid: uuid, FsUuid: fsUUID,
		Addresses: n.addresses(), Server: []byte(n.server),
	})
	if err != nil {
		return l, err
	}
	want := l
	want.Index, want.FSUUID = int32(r.Index), hex.EncodeToString(r.FsUuid)
	if len(r.FsKey) > 0 {
		want.FSKey = r.FsKey
	}
	if want.Index == l.Index && want.FSUUID == l.FSUUID && string(want.FSKey) == string(l.FSKey) {
		return l, nil
	}
	return want, dev.SetLabel(want)
}

func (n *Node) startMDS(ctx context.Context) error {
	if n.o.Config.MDTs() == 0 {
		return nil
	}
	if err := n.openMDT(ctx); err != nil {
		return err
	}
	m := n.mds
	label, err := n.register(ctx, mgc.KindMDT, m.dev)
	if err != nil {
		return fmt.Errorf("MDT in %s: %w", m.dir, err)
	}
	m.name = mgs.TargetName(label.FSName, mgs.KindMDT, uint32(label.Index))
	m.dev.SetStatsName(m.name)
	n.fails.name(m.dir, m.name)
	uuid, err := newUUID()
	if err != nil {
		return err
	}
	specs, clients, logs, _ := mdsSpecs()
	m.objects = osp.New(osp.Options{
		Device: m.dev, Tables: osp.TablesAt(logs), Group: uint32(label.Index), FSName: label.FSName, Name: m.name,
		Peer: m.name + " on " + n.server, UUID: uuid, Transport: n.net, Log: n.log, Stats: n.o.Stats,
	})
	m.mdt, err = mdt.New(mdt.Options{
		Name: m.name, FSName: label.FSName, Device: m.dev, Tables: mdt.TablesAt(0), Clients: clients, Slots: clients + 1,
		Inspect: target.NamesOf(specs, "reply_slots", mgs.Spec().Name),
		Key:     label.FSKey, Objects: m.objects, Log: n.log, Stats: n.o.Stats, Locks: n.locks,
		ReplayWindow: target.ReplayWindowDefault, Recovered: m.objects.RecoveryEnded, Noticed: n.noticed,
	})
	if err != nil {
		return err
	}
	m.registerBackup(n)
	n.serve(m.name, m.mdt.Target())
	n.log.Info(m.name+": registered", "dir", m.dir)
	return nil
}

// applyConfig tells the MDT of OSTs that are new or have moved.
func (n *Node) applyConfig(c *wirepb.Config) {
	if n.mds == nil || n.mds.objects == nil {
		return
	}
	for _, t := range c.Targets {
		if t.Kind != mgc.KindOST {
			continue
		}
		var addresses []string
		for _, b := range t.Addresses {
			if a := string(b); rpc.Reaches(n.net, a) {
				addresses = append(addresses, a)
			}
		}
		if len(addresses) == 0 {
			continue
		}
		if err := n.mds.objects.SetOST(layout.OSTIndex(t.Index), addresses, t.Active); err != nil && n.ctx.Err() == nil {
			n.log.Error("OST cannot be used", "target", string(t.Name), "err", err)
		}
	}
}

// stop ends the MDT and its links. The device stays open: the MGS may be on it.
func (m *mds) stop(ctx context.Context) error {
	m.backup.stop()
	var errs []error
	if m.mdt != nil {
		errs = append(errs, m.mdt.Close(ctx))
	}
	if m.objects != nil {
		errs = append(errs, m.objects.Close(ctx))
	}
	return errors.Join(errs...)
}

// noticed reports whether the MGS tells clients of this node's targets now.
func (n *Node) noticed() bool { return n.mgsImp != nil && n.mgsImp.State() == rpc.StateFull }
