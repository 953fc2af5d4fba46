package ost

import "github.com/strakefs/strake/fs/fid"

// ObjectOwner returns the file that an object belongs to and its stripe's index in it, for who shows locks. It looks at
// the objects in memory only and never waits for a disk: an object that somebody uses is there. It returns false for others
// and for objects that were not given to a file yet.
func (o *OST) ObjectOwner(id fid.ObjectID) (file fid.FID, stripe uint32, ok bool) {
	ob := o.cache.look(id)
	if ob == nil {
		return fid.FID{}, 0, false
	}
	ob.mu.Lock()
	defer ob.mu.Unlock()
	if !ob.stated || ob.gone || ob.rec.owner.IsZero() {
		return fid.FID{}, 0, false
	}
	return ob.rec.owner, ob.rec.stripe, true
}
