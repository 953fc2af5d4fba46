package client

import (
	"context"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/status"
)

// Bounds of the extended attributes that are cached of one inode: the kernel asks for few names again and again, for
// security.capability above all.
const (
	xattrsMax     = 8
	xattrValueMax = 1024
)

// Getxattr appends an extended attribute's value to dst. NoData if there is none.
func (c *Client) Getxattr(ctx context.Context, who *mdc.Caller, f fid.FID, name string, dst []byte) ([]byte, error) {
	b, _, err := c.TellXattr(ctx, who, f, name, dst)
	return b, err
}

// TellXattr is Getxattr, and tells whether the kernel may keep the answer, which it does with ACLs: what it keeps is taken
// back before the lock goes.
func (c *Client) TellXattr(ctx context.Context, who *mdc.Caller, f fid.FID, name string, dst []byte) (b []byte, keep bool, err error) {
	if Virtual(name) {
		b, err = c.GetVirtual(ctx, who, f, name, dst)
		return b, false, err
	}
	n := c.nodes.find(f.Ino())
	if v, ok := c.cachedXattr(n, name); ok {
		if v == nil {
			return dst, true, status.NoData
		}
		return append(dst, v...), true, nil
	}
	var epoch uint32
	if n != nil {
		n.mu.Lock()
		epoch = n.epoch
		n.mu.Unlock()
	}
	at := c.changes.now()
	out, err := c.mdc.Getxattr(ctx, who, f, name, dst)
	if n != nil && len(out)-len(dst) <= xattrValueMax && (err == nil || status.Of(err) == status.NoData) {
		var v []byte
		if err == nil {
			v = append([]byte{}, out[len(dst):]...)
		}
		keep = c.keepXattr(n, epoch, at, name, v)
	}
	return out, keep, err
}

// cachedXattr returns a value, nil for an absent name; false when it is not known.
func (c *Client) cachedXattr(n *node, name string) ([]byte, bool) {
	if n == nil {
		return nil, false
	}
	h, ok := c.match(n.fid, ldlm.Xattr)
	if !ok {
		return nil, false
	}
	defer c.locks.Unpin(h)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.valid&ldlm.Xattr == 0 {
		return nil, false
	}
	known := n.valid&attrBits == attrBits
	if known && (n.attr.NoXattr || name == attr.XattrACLAccess && !n.attr.HasACL) {
		n.toldACLLocked(name)
		return nil, true
	}
	v, ok := n.xattrs[name]
	if ok {
		n.toldACLLocked(name)
	}
	return v, ok
}

// toldACLLocked notes that the kernel caches an ACL, or that there is none.
func (n *node) toldACLLocked(name string) {
	if isACL(name) {
		n.told |= toldAttr
		n.toldAt = time.Now()
	}
}

func isACL(name string) bool { return name == attr.XattrACLAccess || name == attr.XattrACLDefault }

// keepXattr caches a value that was asked for at a time and in an epoch, and reports whether it can.
func (c *Client) keepXattr(n *node, epoch uint32, at uint64, name string, v []byte) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	need := ldlm.Xattr
	if isACL(name) {
		need |= ldlm.Perm // chmod changes it too
	}
	if n.epoch != epoch || n.valid&ldlm.Xattr == 0 || n.held&need != need || c.changes.since(n.fid.Ino(), at) {
		return false
	}
	if n.xattrs == nil || len(n.xattrs) >= xattrsMax {
		n.xattrs = make(map[string][]byte)
	}
	n.xattrs[name] = v
	n.toldACLLocked(name)
	return true
}

// changed notes that this mount has changed an inode.
func (c *Client) changed(ino uint64) {
	c.changes.mark(ino)
	c.stale(ino)
}

// Listxattr appends the names that the MDT stores to dst, each ended by NUL. Virtual ones are not listed: a copy of all
// attributes must not try to set them elsewhere.
func (c *Client) Listxattr(ctx context.Context, who *mdc.Caller, f fid.FID, dst []byte) ([]byte, error) {
	if n := c.nodes.find(f.Ino()); n != nil {
		if h, ok := c.match(f, ldlm.Xattr); ok {
			n.mu.Lock()
			none := n.valid&(ldlm.Xattr|attrBits) == ldlm.Xattr|attrBits && n.attr.NoXattr
			n.mu.Unlock()
			c.locks.Unpin(h)
			if none {
				return dst, nil
			}
		}
	}
	return c.mdc.Listxattr(ctx, who, f, dst)
}

// Setxattr sets an extended attribute.
func (c *Client) Setxattr(ctx context.Context, who *mdc.Caller, f fid.FID, x mdc.Xattr) error {
	if Virtual(x.Name) {
		return c.SetVirtual(ctx, who, f, x.Name, x.Value)
	}
	if c.opts.ReadOnly {
		return status.ReadOnly
	}
	c.stale(f.Ino())
	defer c.changed(f.Ino())
	if x.Name == attr.XattrCapability {
		defer c.capsChanged(f.Ino())
	}
	return c.mdc.Setxattr(ctx, who, f, x)
}

// Removexattr removes an extended attribute.
func (c *Client) Removexattr(ctx context.Context, who *mdc.Caller, f fid.FID, name string) error {
	if Virtual(name) {
		return c.SetVirtual(ctx, who, f, name, nil)
	}
	if c.opts.ReadOnly {
		return status.ReadOnly
	}
	c.stale(f.Ino())
	defer c.changed(f.Ino())
	return c.mdc.Removexattr(ctx, who, f, name)
}
