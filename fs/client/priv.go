package client

import (
	"context"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/status"
)

// caps is what is known of a file's capabilities, which live in an extended attribute of the kernel's name.
type caps uint8

const (
	capsUnknown caps = iota
	capsNone
)

// unprivileged is who if a change of data by it clears set-uid and set-gid, else nil.
func unprivileged(who *mdc.Caller) *mdc.Caller {
	if who.Root() {
		return nil
	}
	return who
}

// killPriv clears what a change of an inode's data clears, if there is anything: capabilities always, set-uid and set-gid
// if who is not nil. The kernel leaves both to the file system (FUSE_HANDLE_KILLPRIV_V2). A file that was not made here is
// asked for capabilities once.
func (c *Client) killPriv(ctx context.Context, who *mdc.Caller, in *inode) error {
	in.mu.Lock()
	mode, known := in.last.Mode, in.caps
	in.mu.Unlock()
	suid := who != nil && mode&(attr.SetUID|attr.SetGID) != 0
	if !suid && known == capsNone {
		return nil
	}
	root := new(mdc.Caller)
	if !suid {
		// That it has none is remembered while the lock on its attributes is held.
		h, held := c.match(in.fid, ldlm.Xattr)
		if held {
			defer c.locks.Unpin(h)
		}
		_, err := c.Getxattr(ctx, root, in.fid, attr.XattrCapability, nil)
		if err != nil {
			if status.Of(err) != status.NoData {
				return err
			}
			if held {
				in.mu.Lock()
				in.caps = capsNone
				in.mu.Unlock()
			}
			return nil
		}
		who = root
	}
	c.stale(in.fid.Ino())
	e := c.entry()
	defer c.putEntry(e)
	if err := c.mdc.Setattr(ctx, who, in.fid, &mdc.Setting{Valid: attr.ValidKillSuid}, e); err != nil {
		return err
	}
	c.changes.mark(in.fid.Ino())
	in.mu.Lock()
	in.last, in.caps = e.Attr, capsNone
	in.mu.Unlock()
	if k := c.kernel.Load(); k != nil {
		k.DropAttr(in.fid, false) // The kernel does not know that the mode has changed.
	}
	return nil
}

// capsChanged notes that a file's capabilities may have been set.
func (c *Client) capsChanged(ino uint64) {
	in := c.find(ino)
	if in == nil {
		return
	}
	in.mu.Lock()
	in.caps = capsUnknown
	in.mu.Unlock()
	c.put(in)
}
