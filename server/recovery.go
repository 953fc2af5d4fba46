package server

import (
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// TargetRecovery is where a target of this node is in getting its clients back.
type TargetRecovery struct {
	target.Recovery
	Name string
	Kind store.TargetKind
	// Newest is the newest transaction, Committed the newest one on disk with all before it.
	Newest, Committed uint64
}

// Recovery tells of every target of this node. Precondition: Start has returned.
func (n *Node) Recovery() []TargetRecovery {
	var all []TargetRecovery
	if n.HasMDT() {
		all = append(all, TargetRecovery{Recovery: n.mds.mdt.Target().Recovery(), Name: n.mds.name, Kind: store.KindMDT,
			Newest: uint64(n.mds.dev.Last()), Committed: uint64(n.mds.dev.Committed())})
	}
	for _, o := range n.oss {
		if o.ost != nil {
			all = append(all, TargetRecovery{Recovery: o.ost.Target().Recovery(), Name: o.name, Kind: store.KindOST,
				Newest: o.ost.Newest(), Committed: uint64(o.ost.Committed())})
		}
	}
	return all
}
