package server

import (
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/server/lockd"
)

// lockServed is a target that has a lock server.
type lockServed interface {
	LockServer() *lockd.Server
}

// objectOwned is a target that knows whose its objects are.
type objectOwned interface {
	// ObjectOwner returns the file that an object belongs to and its stripe's index in it, from memory; false when the
	// object is not in use.
	ObjectOwner(o fid.ObjectID) (file fid.FID, stripe uint32, ok bool)
}

// TargetLocks is the lock server of one target.
type TargetLocks struct {
	Target string // "strake-OST0000"
	Locks  *lockd.Server
	owner  objectOwned
}

// Owner returns the file that an object of the target belongs to and its stripe's index in it, as far as the target has it
// in memory.
func (t *TargetLocks) Owner(o fid.ObjectID) (file fid.FID, stripe uint32, ok bool) {
	if t.owner == nil {
		return fid.FID{}, 0, false
	}
	return t.owner.ObjectOwner(o)
}

// Locks returns the lock servers of this node's targets, the MDT's first. Precondition: Start has returned.
func (n *Node) Locks() []TargetLocks {
	var all []TargetLocks
	add := func(name string, target any) {
		t, ok := target.(lockServed)
		if !ok || t.LockServer() == nil {
			return
		}
		owner, _ := target.(objectOwned)
		all = append(all, TargetLocks{Target: name, Locks: t.LockServer(), owner: owner})
	}
	if n.mds != nil && n.mds.mdt != nil {
		add(n.mds.name, n.mds.mdt)
	}
	for _, o := range n.oss {
		if o.ost != nil {
			add(o.name, o.ost)
		}
	}
	return all
}

// HasMDT reports whether this node serves an MDT that [Node.Paths] can ask. Precondition: Start has returned.
func (n *Node) HasMDT() bool { return n.mds != nil && n.mds.mdt != nil }

// Paths returns the paths of a file from the file system's root, without a leading slash but for the root itself, for who
// shows a FID. It may wait for the disk. Precondition: HasMDT.
func (n *Node) Paths(f fid.FID) ([]string, error) { return n.mds.mdt.Paths(f) }
