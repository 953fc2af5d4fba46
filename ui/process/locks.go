package process

import (
	"context"
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/server"
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
	for _, c := range n.Contended(limit) {
		all = append(all, resourceOf(&c))
	}
	return all
}

func resourceOf(c *server.Contended) dash.LockResource {
	r := dash.LockResource{
		Namespace: c.Namespace, Resource: c.Res.String(), Stripe: -1,
		Granted: c.Granted, Waiting: c.Waiting, Converting: c.Converting, Conflicts: c.Conflicts, Contended: c.Lockless,
		Holders: partiesOf(c, false), Waiters: partiesOf(c, true),
	}
	switch c.Res.Type {
	case ldlm.TypeInodeBits:
		r.Type, r.FID, r.Name = "ibits", c.Res.FID(), c.Res.Hash != 0
	case ldlm.TypeFlock:
		r.Type, r.FID = "flock", c.Res.FID()
	case ldlm.TypeExtent:
		r.Type, r.Object = "extent", c.Res.Object().String()
		if !c.File.IsZero() {
			r.FID, r.Stripe = c.File, int(c.Stripe)
		}
	default:
		r.Type = "plain"
	}
	return r
}

func partiesOf(c *server.Contended, waiting bool) []dash.LockParty {
	from := c.Holders
	if waiting {
		from = c.Waiters
	}
	all := make([]dash.LockParty, 0, len(from))
	for _, p := range from {
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
