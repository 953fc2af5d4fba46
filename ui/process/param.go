package process

import (
	"context"
	"errors"
	"time"

	"github.com/strakefs/strake/ui/param"
)

// startParam opens the parameter socket, before there is anything to show. A process whose socket cannot be made works,
// unseen by lctl.
func (p *Process) startParam() {
	o := param.Options{
		Registry: p.stats, Role: p.cfg.Roles.String(), FSName: p.cfg.FSName, Version: p.version, Log: p.log,
	}
	if p.cfg.HostMGS {
		o.Permanent = p.setPermanent
	}
	var err error
	if p.param, err = param.Listen(o); err != nil {
		p.log.Warn("lctl cannot reach this process", "err", err)
	}
}

// setPermanent is `lctl set_param -P` at the MGS of this process.
func (p *Process) setPermanent(ctx context.Context, name, value string) error {
	n := p.node.Load()
	if n == nil {
		return errors.New("the MGS is starting, try again")
	}
	return n.SetPermanent(ctx, name, value)
}

// ParamSocket is where lctl reaches this process, "" if it cannot.
func (p *Process) ParamSocket() string {
	if p.param == nil {
		return ""
	}
	return p.param.Path()
}

// paramLimit bounds the wait for a parameter that is being read or set while the process stops.
const paramLimit = time.Second

// closeParam ends what lctl is doing.
func (p *Process) closeParam(ctx context.Context) error {
	if p.param == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, paramLimit)
	defer cancel()
	return p.param.Close(ctx)
}
