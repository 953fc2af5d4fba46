package process

import (
	"context"
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/server"
	"github.com/strakefs/strake/server/lockd"
	"github.com/strakefs/strake/ui/dash"
)

// errNobody says that nobody here can be asked for a path.
var errNobody = errors.New("this process has neither an MDT nor a mount")

// contended gives the dashboard the resources that several want, up to limit of each target.
func (p *Process) contended(limit int) []dash.LockResource {
	n := p.node.Load()
	if n == nil {
		return nil
	}
	var all []dash.LockResource
	targets := n.Locks()
	for i := range targets {
		for _, c := range targets[i].Locks.Contended(limit) {
			all = append(all, resourceOf(&targets[i], &c))
		}
	}
	return all
}

func resourceOf(t *server.TargetLocks, c *lockd.Contended) dash.LockResource {
	r := dash.LockResource{
		Namespace: t.Locks.Name(), Resource: c.Res.String(), Stripe: -1,
		Granted: c.Granted, Waiting: c.Waiting, Converting: c.Converting, Conflicts: c.Conflicts, Contended: c.Lockless,
		Holders: partiesOf(c, c.Holders), Waiters: partiesOf(c, c.Waiters),
	}
	switch c.Res.Type {
	case ldlm.TypeInodeBits:
		r.Type, r.FID, r.Name = "ibits", c.Res.FID(), c.Res.Hash != 0
	case ldlm.TypeFlock:
		r.Type, r.FID = "flock", c.Res.FID()
	case ldlm.TypeExtent:
		r.Type, r.Object = "extent", c.Res.Object().String()
		if f, stripe, ok := t.Owner(c.Res.Object()); ok {
			r.FID, r.Stripe = f, int(stripe)
		}
	default:
		r.Type = "plain"
	}
	return r
}

func partiesOf(c *lockd.Contended, parties []lockd.Party) []dash.LockParty {
	all := make([]dash.LockParty, 0, len(parties))
	for _, p := range parties {
		d := dash.LockParty{Client: p.Client, Mode: p.Mode.String(), CalledBack: p.Blocked}
		switch c.Res.Type {
		case ldlm.TypeInodeBits:
			d.Bits = p.Bits.String()
		case ldlm.TypeExtent, ldlm.TypeFlock:
			d.Extent = extentOf(p.Extent)
		}
		all = append(all, d)
	}
	return all
}

// extentOf is a range of bytes in words, half open.
func extentOf(e extent.Extent) string {
	if e.End == extent.EOF {
		return fmt.Sprintf("[%d, EOF)", e.Start)
	}
	return fmt.Sprintf("[%d, %d)", e.Start, e.End)
}

// paths finds the paths of a file at this process's MDT, or through a mount.
func (p *Process) paths(ctx context.Context, f fid.FID) ([]string, error) {
	if n := p.node.Load(); n != nil && n.HasMDT() {
		return n.Paths(f)
	}
	if m := p.first.Load(); m != nil {
		return m.Paths(ctx, f)
	}
	return nil, errNobody
}
