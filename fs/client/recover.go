package client

import (
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/wire"
)

// Writers lists the files that this mount is a writer of, for an MDT that was started again.
func (c *Client) Writers() (list []mdc.Mark) {
	c.inodes.each(func(in *inode) {
		in.mu.Lock()
		defer in.mu.Unlock()
		if in.writer {
			list = append(list, mdc.Mark{FID: in.fid, SetattrGen: in.gen})
		}
	})
	return list
}

// Vanished tells that an MDT which was started again does not take back that a file is open: its handles fail with EIO.
func (c *Client) Vanished(f fid.FID, err error) {
	c.log.Error("a file that was open is lost: the MDT was started again without it", "fid", f, "err", err)
	c.unbelieve(f)
	if in := c.find(f.Ino()); in != nil {
		in.vanished.Store(true)
		c.put(in)
	}
}

// Refused tells that a change which was answered is lost: an MDT that was started again cannot repeat it. body is the request's.
// What is believed of the files that it names is forgotten.
func (c *Client) Refused(op wire.Op, body []byte, err error) {
	files := mdc.Files(op, body)
	c.log.Error("a change is lost: the MDT was started again and cannot repeat it", "op", op, "files", files, "err", err)
	for _, f := range files {
		c.unbelieve(f)
	}
}

// unbelieve forgets what is kept of an inode, in the kernel too.
func (c *Client) unbelieve(f fid.FID) {
	ino := f.Ino()
	c.changes.mark(ino)
	c.names.forget(ino)
	c.shared(ino)
	c.capsChanged(ino)
	if n := c.nodes.find(ino); n != nil {
		c.revoke(n, wanted, false)
	}
}
