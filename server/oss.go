package server

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/strakefs/strake/fs/mgc"
	"github.com/strakefs/strake/server/config"
	"github.com/strakefs/strake/server/lockd"
	"github.com/strakefs/strake/server/mgs"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
)

// oss is one of the node's OSTs.
type oss struct {
	dir   string
	name  string
	index uint32
	dev   *boltdev.Device
	ost   *ost.OST
}

// startOSS opens, registers and serves every OST of the node. All data folders are opened before the first is
// registered, so that a bad one keeps the node from half starting.
func (n *Node) startOSS(ctx context.Context) error {
	for _, t := range n.o.Config.Targets {
		if t.Kind != config.OST {
			continue
		}
		dev, err := n.openDevice(t.Dir, store.KindOST, ost.Specs())
		if err != nil {
			return err
		}
		n.oss = append(n.oss, &oss{dir: t.Dir, dev: dev})
	}
	n.shareSpace()
	for _, o := range n.oss {
		label, err := n.register(ctx, mgc.KindOST, o.dev)
		if err != nil {
			return fmt.Errorf("OST in %s: %w", o.dir, err)
		}
		o.index = uint32(label.Index)
		o.name = mgs.TargetName(label.FSName, mgs.KindOST, o.index)
		o.dev.SetStatsName(o.name)
		n.fails.name(o.dir, o.name)
		o.ost, err = ost.New(ctx, ost.Options{
			Name: o.name, FSName: label.FSName, Device: o.dev, Log: n.log, Stats: n.o.Stats,
			Locks: lockd.Options{Shared: n.locks}, Memory: n.objects, FailPoints: n.o.FailPoints,
			Noticed: n.noticed,
		})
		if err != nil {
			return err
		}
		n.serve(o.name, o.ost)
		n.log.Info(o.name+": registered", "dir", o.dir)
	}
	return nil
}

func (o *oss) stop(ctx context.Context) error {
	if o.ost == nil {
		return nil
	}
	return o.ost.Close(ctx)
}

// shareSpace lets OSTs of this node that are on one file system show their part of it each: a disk with two OSTs is not
// twice as large.
func (n *Node) shareSpace() {
	on := make(map[uint64][]*oss)
	for _, o := range n.oss {
		var st unix.Stat_t
		if err := unix.Stat(o.dir, &st); err == nil {
			on[st.Dev] = append(on[st.Dev], o)
		}
	}
	for _, together := range on {
		for _, o := range together {
			o.dev.SetShares(len(together))
		}
	}
}
