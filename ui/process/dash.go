package process

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/mgc"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server"
	"github.com/strakefs/strake/server/config"
	"github.com/strakefs/strake/ui/dash"
	"github.com/strakefs/strake/ui/metrics"
)

// startDash opens the dashboard's port and serves, before there is anything to show.
func (p *Process) startDash() error {
	if p.cfg.HTTP == "" {
		return nil
	}
	v := &viewer{p: p, since: make(map[string]state)}
	d, err := dash.New(dash.Options{
		Registry: p.stats, Log: p.log, Listen: p.cfg.HTTP, AnyAddress: p.cfg.Insecure == config.InsecureAny,
		Cluster: v.view, Metrics: metrics.Handler(p.stats, p.log), Locks: p.contended, Paths: p.paths,
		Recovery: p.recovery,
	})
	if err != nil {
		return err
	}
	if err := d.Start(); err != nil {
		return err
	}
	p.dash = d
	p.log.Info("dashboard", "address", "http://"+d.Addr().String()+"/")
	return nil
}

// startSampler measures the host and the data folders.
func (p *Process) startSampler() error {
	if p.dash == nil {
		return nil
	}
	var dirs []string
	for _, t := range p.cfg.Targets {
		dirs = append(dirs, t.Dir)
	}
	var err error
	p.sampler, err = metrics.StartSampler(metrics.SamplerOptions{Registry: p.stats, Log: p.log, DataDirs: dirs})
	return err
}

// viewer turns the MGS's view into the dashboard's.
type viewer struct {
	p  *Process
	mu sync.Mutex
	// since remembers when each target entered its state, as seen from here. guarded by mu
	since map[string]state
}

type state struct {
	word string
	from time.Time
}

// viewTime bounds one look at the MGS.
const viewTime = 2 * time.Second

func (v *viewer) view(ctx context.Context) (dash.ClusterView, error) {
	n := v.p.node.Load()
	if n == nil {
		return dash.ClusterView{FSName: v.p.cfg.FSName}, errors.New("the node is starting")
	}
	ctx, cancel := context.WithTimeout(ctx, viewTime)
	defer cancel()
	c, err := n.View(ctx)
	if err != nil {
		return dash.ClusterView{FSName: v.p.cfg.FSName}, err
	}
	out := dash.ClusterView{FSName: v.p.cfg.FSName}
	nodes := make(map[string]int)
	for _, t := range c.Targets {
		target := v.target(t)
		out.Targets = append(out.Targets, target)
		server, role := string(t.Server), "oss"
		if t.Kind == mgc.KindMDT {
			role = "mds"
		}
		i, ok := nodes[server]
		if !ok {
			i = len(out.Nodes)
			nodes[server] = i
			out.Nodes = append(out.Nodes, dash.Node{Host: server, Address: target.Address, Age: target.Age})
		}
		if r := out.Nodes[i].Roles; len(r) == 0 || r[len(r)-1] != role {
			out.Nodes[i].Roles = append(r, role)
		}
	}
	return out, nil
}

func (v *viewer) target(t *wirepb.Target) dash.Target {
	d := dash.Target{
		Name: string(t.Name), Kind: "OST", Index: int(t.Index), State: string(t.State), Address: server.Place(t),
		Age: time.Duration(t.AgeMsec) * time.Millisecond,
	}
	if t.Kind == mgc.KindMDT {
		d.Kind = "MDT"
	}
	switch d.State {
	case "serving":
		d.State = dash.StateActive
	case "disconnected":
		d.State, d.Reason = dash.StateUnreachable, "its connection to the MGS is gone"
	case "":
		d.State, d.Reason = dash.StateUnreachable, "it has not reported since the MGS started"
	}
	if s := t.Statfs; s != nil {
		d.TotalBytes, d.FreeBytes, d.AvailBytes = s.TotalBytes, s.FreeBytes, s.AvailBytes
		d.Inodes, d.FreeInodes = s.Inodes, s.FreeInodes
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if have := v.since[d.Name]; have.word != d.State {
		v.since[d.Name] = state{word: d.State, from: time.Now()}
	}
	d.Since = v.since[d.Name].from
	return d
}
