package client

import (
	"context"
	"strings"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/status"
)

// Lookup finds a name. NotExist if there is none. "." is the folder itself and ".." the one above it, for a server of
// this mount over NFS.
func (c *Client) Lookup(ctx context.Context, who *mdc.Caller, parent fid.FID, entry string, a *attr.Attr) error {
	switch entry {
	case ".":
		return c.Getattr(ctx, who, parent, a)
	case "..":
		return c.lookupParent(ctx, who, parent, a)
	}
	if c.absent(parent, entry) {
		return status.NotExist
	}
	if c.cachedEntry(parent.Ino(), entry, a) {
		return nil
	}
	e := c.entry()
	defer c.putEntry(e)
	// What it led to before is what it leads to now, most likely: then only what is missing is asked for.
	before := fid.FID{}
	if n := c.nodes.byName(parent.Ino(), entry); n != nil {
		before = n.fid
	}
	k, o := c.ask(before, e), c.ahead.lookup(parent.Ino(), entry)
	if err := c.mdc.Lookup(ctx, who, parent, entry, e); err != nil {
		return err
	}
	if e.Attr.FID != before {
		k.n, k.held = nil, 0
	}
	c.keep(&k, e, false, name{parent.Ino(), entry})
	return c.fillStat(ctx, e, nil, a, o)
}

// absent reports whether a folder has no such name for certain.
func (c *Client) absent(parent fid.FID, entry string) bool {
	if !c.names.absent(parent.Ino(), entry) {
		return false
	}
	h, ok := c.match(parent, ldlm.Update)
	if !ok {
		return false
	}
	defer c.locks.Unpin(h)
	return c.names.absent(parent.Ino(), entry)
}

func (c *Client) lookupParent(ctx context.Context, who *mdc.Caller, f fid.FID, a *attr.Attr) error {
	if f == fid.Root {
		return c.Getattr(ctx, who, f, a)
	}
	links, err := c.mdc.Parents(ctx, who, f)
	if err != nil {
		return err
	}
	if len(links) == 0 {
		return status.Stale
	}
	return c.Getattr(ctx, who, links[0].Parent, a)
}

// Make makes a folder, symlink, device, fifo, socket or unopened file.
func (c *Client) Make(ctx context.Context, who *mdc.Caller, parent fid.FID, entry string, what *mdc.Creation, a *attr.Attr) error {
	if c.opts.ReadOnly {
		return status.ReadOnly
	}
	e := c.entry()
	defer c.putEntry(e)
	c.names.add(parent.Ino(), entry)
	k, pk := c.ask(fid.FID{}, e), c.entering(parent)
	if err := c.mdc.Create(ctx, who, parent, entry, what, e); err != nil {
		return err
	}
	c.entered(&pk, parent, &e.Parent, e.Transno)
	c.keep(&k, e, true, name{parent.Ino(), entry})
	*a = e.Attr
	switch {
	case a.IsDir() && e.Bits&ldlm.Update != 0:
		c.names.begin(a.FID.Ino())
	case a.IsFile():
		if err := c.fill(ctx, e, nil, a); err != nil {
			return err
		}
	}
	return c.settle(ctx, &e.Parent, parent)
}

// settle makes a change of a folder durable where the mount or the folder asks for it (dirsync, chattr +D). a are the
// folder's attributes, zero if they were not told.
func (c *Client) settle(ctx context.Context, a *attr.Attr, folder fid.FID) error {
	if !c.opts.DirSync && a.Flags&attr.FlagDirSync == 0 {
		return nil
	}
	return c.mdc.Sync(ctx, folder, false)
}

// Readlink gives a symbolic link's target.
func (c *Client) Readlink(ctx context.Context, who *mdc.Caller, f fid.FID) ([]byte, error) {
	e := c.entry()
	defer c.putEntry(e)
	if err := c.mdc.Readlink(ctx, who, f, e); err != nil {
		return nil, err
	}
	return append([]byte(nil), e.Symlink...), nil
}

// Link gives a file another name.
func (c *Client) Link(ctx context.Context, who *mdc.Caller, f, parent fid.FID, entry string, a *attr.Attr) error {
	if c.opts.ReadOnly {
		return status.ReadOnly
	}
	e := c.entry()
	defer c.putEntry(e)
	c.names.add(parent.Ino(), entry)
	in := c.find(f.Ino())
	if in != nil {
		defer c.put(in)
	}
	k, pk := c.ask(f, e), c.entering(parent)
	c.stale(f.Ino())
	if err := c.mdc.Link(ctx, who, f, parent, entry, e); err != nil {
		return err
	}
	c.entered(&pk, parent, &e.Parent, e.Transno)
	c.keep(&k, e, true, name{parent.Ino(), entry})
	if err := c.fill(ctx, e, in, a); err != nil {
		return err
	}
	return c.settle(ctx, &e.Parent, parent)
}

// Unlink removes a name, of a folder if rmdir.
func (c *Client) Unlink(ctx context.Context, who *mdc.Caller, parent fid.FID, entry string, rmdir bool) error {
	if c.opts.ReadOnly {
		return status.ReadOnly
	}
	var out mdc.Unlinked
	e := name{parent.Ino(), entry}
	if n := c.nodes.hide(e).n; n != nil {
		c.stale(n.fid.Ino())
	}
	pk := c.entering(parent)
	if err := c.mdc.Unlink(ctx, who, parent, entry, rmdir, &out); err != nil {
		return err
	}
	c.entered(&pk, parent, &out.Parent, out.Transno)
	c.nodes.removed(e)
	c.names.remove(parent.Ino(), entry)
	c.left(&out.Child)
	return c.settle(ctx, &out.Parent, parent)
}

// left notes that an inode has lost a name.
func (c *Client) left(child *attr.Attr) {
	if child.FID.IsZero() {
		return
	}
	ino := child.FID.Ino()
	c.changes.mark(ino)
	c.stale(ino)
	if child.IsDir() {
		c.names.forget(ino)
	}
	if child.Nlink > 0 {
		return
	}
	if n := c.nodes.find(ino); n != nil {
		n.mu.Lock()
		n.gone = true
		n.mu.Unlock()
	}
	c.giveBack(child.FID)
	in := c.find(ino)
	if in == nil {
		return
	}
	in.mu.Lock()
	in.gone = true
	in.mu.Unlock()
	c.put(in)
}

// giveBack gives up the locks on an inode without a name: nobody will ask for them any more.
func (c *Client) giveBack(f fid.FID) {
	r, ok := c.locks.Resource(ldlm.InodeRes(f))
	if !ok {
		return
	}
	for i := range r.Holders {
		c.locks.Release(r.Holders[i].Handle, 0)
	}
}

// Flags of renameat2(2).
const (
	RenameNoReplace = 1
	RenameExchange  = 2
	RenameWhiteout  = 4
)

// Rename moves a name as renameat2(2) does.
func (c *Client) Rename(ctx context.Context, who *mdc.Caller, r *mdc.Renaming) error {
	if c.opts.ReadOnly {
		return status.ReadOnly
	}
	if r.Flags&^(RenameNoReplace|RenameExchange|RenameWhiteout) != 0 {
		return status.Invalid
	}
	c.names.add(r.To.Ino(), r.ToName)
	source, dest := name{r.From.Ino(), r.FromName}, name{r.To.Ino(), r.ToName}
	moved, target := c.nodes.hide(source), c.nodes.hide(dest)
	for _, h := range []hidden{moved, target} {
		if h.n != nil {
			c.stale(h.n.fid.Ino())
		}
	}
	from, to := c.entering(r.From), c.entering(r.To)
	c.renames.Add(1)
	defer c.renamed()
	var out mdc.Renamed
	if err := c.mdc.Rename(ctx, who, r, &out); err != nil {
		return err
	}
	c.entered(&from, r.From, &out.FromParent, out.Transno)
	if r.To != r.From {
		c.entered(&to, r.To, &out.ToParent, out.Transno)
	}
	c.nodes.removed(source)
	c.nodes.removed(dest)
	if r.Flags&RenameExchange != 0 {
		c.nodes.moved(target, out.Target.FID, source)
	}
	c.nodes.moved(moved, out.Moved.FID, dest)
	if r.Flags&(RenameExchange|RenameWhiteout) == 0 && out.Moved.FID != out.Target.FID {
		c.names.remove(r.From.Ino(), r.FromName)
	}
	c.changed(out.Moved.FID.Ino())
	switch {
	case out.Target.FID.IsZero():
	case r.Flags&RenameExchange != 0:
		c.changed(out.Target.FID.Ino())
	case out.Moved.FID != out.Target.FID:
		c.left(&out.Target)
	}
	if err := c.settle(ctx, &out.FromParent, r.From); err != nil {
		return err
	}
	return c.settle(ctx, &out.ToParent, r.To)
}

// SyncDir waits until the newest change of a folder and of its entries is on the MDT's disk.
func (c *Client) SyncDir(ctx context.Context, f fid.FID) error { return c.mdc.Sync(ctx, f, false) }

// Resolve finds the folder at a path from the root, as root; "" and "/" are the root.
func (c *Client) Resolve(ctx context.Context, path string) (fid.FID, error) {
	var who mdc.Caller
	a := attr.Attr{FID: fid.Root}
	if err := c.Getattr(ctx, &who, fid.Root, &a); err != nil {
		return fid.FID{}, err
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == "" {
			continue
		}
		if err := c.Lookup(ctx, &who, a.FID, name, &a); err != nil {
			return fid.FID{}, err
		}
	}
	if !a.IsDir() {
		return fid.FID{}, status.NotDir
	}
	return a.FID, nil
}
