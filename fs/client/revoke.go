package client

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
)

// Entry is a name in a folder of this file system.
type Entry struct {
	Parent fid.FID
	Name   string
}

// Kernel is the side of the mount that keeps what the client told it.
type Kernel interface {
	// DropAttr makes the kernel ask for an inode's attributes and ACLs before it uses them again. recent says that an answer
	// which the kernel may keep can still be on its way there. It waits for some milliseconds at most.
	DropAttr(f fid.FID, recent bool)
	// DropEntries makes the kernel look names up again that led to child, within some milliseconds if it may believe them. Entries
	// of a folder go even if it does not: it keeps them, and cannot follow the folder to another place while it has them.
	DropEntries(child fid.FID, names []Entry, believed bool)
	// DropPages drops an inode's pages from byte off on, n of them, 0 for all. It waits for reads of them under way.
	DropPages(f fid.FID, off, n uint64)
	// DropWritten drops pages of bytes that were just written, in the call that wrote them: it waits for some milliseconds at
	// most, and goes on by itself where a read of them is under way.
	DropWritten(f fid.FID, off, n uint64)
	// DropAll makes the kernel ask for every name, and for attributes and pages of what is open, before it uses them again.
	// It does not wait.
	DropAll()
}

type kernelRef struct{ Kernel }

// SetKernel tells who is told of changes that the kernel does not see. Call it before the kernel asks for anything.
func (c *Client) SetKernel(k Kernel) {
	c.kernel.Store(&kernelRef{k})
	c.data.SetPages(k)
}

// recently is how long after an answer was handed over it may still be on its way to the kernel.
const recently = time.Second

// Owner is what lies under the locks of the MDT: it implements lockcache.Owner for a client that is made after its lock
// cache. The zero value is ready.
type Owner struct{ c atomic.Pointer[Client] }

// Revoke implements lockcache.Owner: what the bits cover is dropped here and in the kernel. It waits for no request.
func (o *Owner) Revoke(_ context.Context, r *lockcache.Revocation) {
	c := o.c.Load()
	if c == nil || r.Res.Type != ldlm.TypeInodeBits {
		return
	}
	f := r.Res.FID()
	ino := f.Ino()
	blocking := r.Why == lockcache.WhyBlocking
	if blocking {
		c.hot.mark(ino)
	}
	if r.Bits&ldlm.Update != 0 {
		c.names.forget(ino)
		c.shared(ino)
	}
	if r.Bits&ldlm.Layout != 0 && blocking {
		c.detach(ino)
	}
	if r.Bits&(ldlm.Xattr|ldlm.Perm) != 0 {
		c.capsChanged(ino)
	}
	if n := c.nodes.find(ino); n != nil {
		c.revoke(n, r.Bits, blocking)
	}
}

// revoke takes bits from a node.
func (c *Client) revoke(n *node, bits ldlm.Bits, blocking bool) {
	n.mu.Lock()
	n.held &^= bits
	n.valid &= n.held
	if n.valid&attrBits != attrBits {
		n.valid &^= attrBits
	}
	n.epoch = c.nodes.nextEpoch()
	n.attr.Under = n.epoch // What is still valid is as it was.
	if bits&ldlm.Xattr != 0 {
		n.xattrs = nil
	}
	var names []link
	dropEntry, dropAttr := false, false
	folder := n.attr.IsDir()
	if bits&ldlm.Lookup != 0 {
		names, n.names = n.names, nil
		c.nodes.unnameLocked(n, names)
		dropEntry = n.told&toldEntry != 0
		n.told &^= toldEntry
	}
	if bits&(attrBits|ldlm.Xattr) != 0 {
		dropAttr = n.told&toldAttr != 0
		n.told &^= toldAttr
	}
	recent := !n.gone && !n.toldAt.IsZero() && time.Since(n.toldAt) < recently
	empty := n.held == 0
	n.mu.Unlock()
	if empty {
		c.nodes.drop(n)
	}
	if blocking {
		for _, l := range names {
			c.hot.mark(l.entry.parent)
		}
	}
	k := c.kernel.Load()
	if k == nil {
		return
	}
	if dropEntry || folder && len(names) > 0 {
		k.DropEntries(n.fid, entries(names), dropEntry)
	}
	if dropAttr {
		k.DropAttr(n.fid, recent)
	}
}

func entries(names []link) []Entry {
	list := make([]Entry, len(names))
	for i, l := range names {
		list[i] = Entry{Parent: fid.FromIno(l.entry.parent), Name: l.entry.name}
	}
	return list
}

// shared notes that others may change an inode's size from now on.
func (c *Client) shared(ino uint64) {
	in := c.find(ino)
	if in == nil {
		return
	}
	in.mu.Lock()
	in.loseSizeLocked()
	in.mu.Unlock()
	c.put(in)
}

// Glimpse implements lockcache.Owner: nothing of an MDT is glimpsed.
func (o *Owner) Glimpse(ldlm.ResID, any, *ldlm.LVB) bool { return false }

// Lost implements lockcache.Owner.
func (o *Owner) Lost() {
	if c := o.c.Load(); c != nil {
		c.Forget()
	}
}

// Silent implements lockcache.Owner: the MDT may have given everything to others, so the kernel asks for all.
func (o *Owner) Silent(context.Context) {
	c := o.c.Load()
	if c == nil {
		return
	}
	c.nodes.each(func(n *node) {
		n.mu.Lock()
		n.told = 0
		n.mu.Unlock()
	})
	if k := c.kernel.Load(); k != nil {
		k.DropAll()
	}
}

// Forget drops everything that is believed without asking: the MDT has dropped this mount, or was started again and may
// have lost its newest changes. It does not wait.
func (c *Client) Forget() {
	c.forgets.Add(1)
	c.names.reset()
	c.changes.markAll()
	c.mdc.ForgetSequences()
	c.nodes.each(func(n *node) {
		n.mu.Lock()
		c.nodes.unnameLocked(n, n.names)
		n.held, n.valid, n.names, n.told = 0, 0, nil, 0
		n.epoch = c.nodes.nextEpoch()
		n.mu.Unlock()
		c.nodes.drop(n)
	})
	c.inodes.each(func(in *inode) {
		in.mu.Lock()
		in.loseSizeLocked()
		in.mu.Unlock()
	})
	if k := c.kernel.Load(); k != nil {
		k.DropAll()
	}
}

// Evicted tells that the MDT has dropped this mount: what is open now is of no use any more. Forget comes beside it.
func (c *Client) Evicted() {
	c.life.Add(1)
	c.log.Warn("evicted by the MDT: what was open fails with EIO, open it again")
}
