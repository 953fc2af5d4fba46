package server

import (
	"context"
	"time"

	"github.com/strakefs/strake/fs/mgc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// reportEvery is how often the MGS hears how the node's targets are.
const reportEvery = 2 * time.Second

// reportLoop tells the MGS how the targets are, and registers them again when the MGS has started anew.
func (n *Node) reportLoop() {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		ctx, cancel := context.WithTimeout(n.ctx, 3*reportEvery)
		err := n.mgc.Report(ctx, n.reports())
		if status.Of(err) == status.Refused {
			err = n.registerAgain(ctx)
		}
		cancel()
		if err != nil && n.ctx.Err() == nil {
			n.log.Debug("report to the MGS", "err", err)
		}
		select {
		case <-tick.C:
		case <-n.ctx.Done():
			return
		}
	}
}

func (n *Node) registerAgain(ctx context.Context) error {
	if n.mds != nil {
		if _, err := n.register(ctx, mgc.KindMDT, n.mds.dev); err != nil {
			return err
		}
	}
	for _, o := range n.oss {
		if _, err := n.register(ctx, mgc.KindOST, o.dev); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) reports() []*wirepb.Target {
	var out []*wirepb.Target
	if n.mds != nil {
		state := "active"
		if err := n.mds.dev.Err(); err != nil {
			state = "stopped"
			n.fail(err)
		}
		t := report(mgc.KindMDT, uint32(n.mds.dev.Label().Index), n.mds.dev, state)
		if n.HasMDT() {
			t.Instance = n.mds.mdt.Target().Instance()
		}
		out = append(out, t)
	}
	for _, o := range n.oss {
		if err := o.ost.Err(); err != nil {
			n.fail(err)
		}
		t := report(mgc.KindOST, o.index, o.dev, o.ost.State())
		t.Instance = o.ost.Target().Instance()
		out = append(out, t)
	}
	return out
}

func report(kind, index uint32, dev store.Device, state string) *wirepb.Target {
	t := &wirepb.Target{Kind: kind, Index: index, State: []byte(state)}
	if s, err := dev.Statfs(); err == nil {
		t.Statfs = &wirepb.StatfsReply{
			TotalBytes: s.Total, FreeBytes: s.Free, AvailBytes: s.Avail, Inodes: s.Inodes, FreeInodes: s.FreeInodes,
		}
	}
	return t
}

// View is the cluster as the MGS knows it now.
func (n *Node) View(ctx context.Context) (*wirepb.Config, error) { return n.mgc.Fetch(ctx) }

// Place is where a target of a view is, for people.
func Place(t *wirepb.Target) string { return place(t.Addresses) }
