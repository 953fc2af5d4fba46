package server

import (
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
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

// Contended is a resource that several want, with what the node knows of it.
type Contended struct {
	lockd.Contended
	Namespace string // ldlm.namespaces.<that>
	// File and Stripe say what an object belongs to; the zero FID when that is not known, or when it is no object.
	File   fid.FID
	Stripe uint32
}

// Contended returns the resources that several want, up to limit of each target of this node. It walks the resource tables:
// it is for people. Precondition: Start has returned.
func (n *Node) Contended(limit int) []Contended {
	var all []Contended
	add := func(target any) {
		t, ok := target.(lockServed)
		if !ok || t.LockServer() == nil {
			return
		}
		locks := t.LockServer()
		for _, c := range locks.Contended(limit) {
			d := Contended{Contended: c, Namespace: locks.Name()}
			if owner, ok := target.(objectOwned); ok && c.Res.Type == ldlm.TypeExtent {
				d.File, d.Stripe, _ = owner.ObjectOwner(c.Res.Object())
			}
			all = append(all, d)
		}
	}
	if n.HasMDT() {
		add(n.mds.mdt)
	}
	for _, o := range n.oss {
		if o.ost != nil {
			add(o.ost)
		}
	}
	return all
}

// HasMDT reports whether this node serves an MDT that [Node.Paths] can ask. Precondition: Start has returned.
func (n *Node) HasMDT() bool { return n.mds != nil && n.mds.mdt != nil }

// Paths returns the paths of a file from the file system's root, without a leading slash but for the root itself, for who
// shows a FID. It may wait for the disk. Precondition: HasMDT.
func (n *Node) Paths(f fid.FID) ([]string, error) { return n.mds.mdt.Paths(f) }
