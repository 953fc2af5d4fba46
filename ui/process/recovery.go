package process

import "github.com/strakefs/strake/ui/dash"

// recovery gives the dashboard where the targets are in getting their clients back.
func (p *Process) recovery() []dash.RecoveryTarget {
	n := p.node.Load()
	if n == nil {
		return nil
	}
	all := n.Recovery()
	out := make([]dash.RecoveryTarget, len(all))
	for i, t := range all {
		out[i] = dash.RecoveryTarget{
			Name: t.Name, Kind: string(t.Kind), Status: t.Status, Started: t.Started, Ended: t.Ended, Left: t.Left,
			Known: t.Clients, Connected: t.Connected, Replaying: t.Replaying, Locking: t.Locking, Completed: t.Completed, Evicted: t.Evicted,
			Missing: t.Missing, Queued: t.Queued, Held: t.Held, Replayed: t.Replayed, Refused: t.Refused, Locks: t.Locks,
			LastTransno: t.Newest, LastCommitted: t.Committed, Versions: t.Versions,
		}
	}
	return out
}
