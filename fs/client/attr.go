package client

import (
	"context"
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/status"
)

// Getattr tells an inode's attributes: from the cache where a lock covers it, the size from whoever knows it.
func (c *Client) Getattr(ctx context.Context, who *mdc.Caller, f fid.FID, a *attr.Attr) error {
	n := c.nodes.find(f.Ino())
	if c.cachedAttr(n, a) {
		return nil
	}
	e := c.entry()
	defer c.putEntry(e)
	in := c.find(f.Ino())
	var o *overlap
	if in != nil {
		defer c.put(in)
	} else {
		o = c.ahead.stat(f.Ino())
	}
	k := c.ask(f, e)
	if err := c.mdc.Getattr(ctx, who, f, e); err != nil {
		return err
	}
	c.keep(&k, e, false, name{})
	return c.fillStat(ctx, e, in, a, o)
}

// fill completes an answer's attributes: from the inode in use (found before the request was sent, so that a report that
// was answered meanwhile is not missed), else from the OSTs if the MDT does not know the size.
func (c *Client) fill(ctx context.Context, e *mdc.Entry, in *inode, a *attr.Attr) error {
	return c.fillStat(ctx, e, in, a, nil)
}

// fillStat is fill for a stat, with the glimpse that ran meanwhile; nil for none.
func (c *Client) fillStat(ctx context.Context, e *mdc.Entry, in *inode, a *attr.Attr, o *overlap) error {
	*a = e.Attr
	if in != nil {
		in.complete(a)
		if a.Volatile {
			in.file.SettleBlocks(ctx)
			in.complete(a)
		}
	}
	if !a.IsFile() || len(e.Layout) == 0 {
		return nil
	}
	if in == nil {
		if in = c.find(a.FID.Ino()); in != nil {
			defer c.put(in)
			in.complete(a)
		}
	}
	if known := in == nil && c.ahead.answered(ctx, o, e, a) || a.SizeValid; !known {
		if err := c.glimpse(ctx, e, in, a); err != nil {
			return err
		}
	}
	if in != nil {
		in.follows(a)
	}
	return nil
}

// glimpse asks the OSTs for a file's size and the time of its last write. Of two times of modification the one counts that
// was set last, by a write or by utimes.
func (c *Client) glimpse(ctx context.Context, e *mdc.Entry, in *inode, a *attr.Attr) error {
	var file *lov.File
	if in != nil {
		in.mu.Lock()
		file = in.file
		in.mu.Unlock()
	}
	if file == nil {
		var err error
		if file, err = c.openData(e); err != nil {
			return err
		}
		defer file.Close()
	}
	s, err := file.Glimpse(ctx)
	if err != nil {
		return fmt.Errorf("client: size of %v: %w", a.FID, err)
	}
	sized(a, &s)
	return nil
}

// sized completes attributes with what the OSTs know.
func sized(a *attr.Attr, s *lov.Sizes) {
	a.Size, a.Blocks = s.Size, s.Blocks
	if s.Ctime.Compare(a.Ctime) > 0 {
		a.Ctime, a.Mtime = s.Ctime, s.Mtime
	}
}

// Setting is what a Setattr changes. Handle is what it goes through, nil for none.
type Setting struct {
	Valid  attr.Valid
	Attr   attr.Attr
	Handle *Handle
}

// Setattr changes attributes; a gets all of them after the change.
func (c *Client) Setattr(ctx context.Context, who *mdc.Caller, f fid.FID, s *Setting, a *attr.Attr) error {
	valid, want := s.Valid, &s.Attr
	if c.opts.ReadOnly {
		return status.ReadOnly
	}
	if valid.Has(attr.ValidSize) && want.Size > attr.SizeMax {
		return status.FileTooBig
	}
	e := c.entry()
	defer c.putEntry(e)
	set := mdc.Setting{Valid: valid, Attr: s.Attr}
	if s.Handle != nil {
		set.Handle = s.Handle.id
		if s.Handle.write {
			set.Valid |= attr.ValidOpenHandle
		}
	}
	var in *inode
	if valid.Has(attr.ValidSize) {
		in = c.get(f)
		in.mu.Lock()
		// The MDT will count this mount as a writer; the mark keeps the report of another handle from ending that.
		in.handles++
		in.mu.Unlock()
		defer c.release(in, 0)
		if err := c.checkSize(ctx, who, in, want.Size); err != nil {
			return err
		}
	} else if in = c.find(f.Ino()); in != nil {
		defer c.put(in)
	}
	if in != nil && valid.Any(attr.ValidAtime|attr.ValidAtimeNow) && !valid.Any(attr.ValidMtime|attr.ValidMtimeNow) {
		// A report of an earlier read, on its way, would move the access time after this: only changes of mtime open a
		// generation.
		in.mu.Lock()
		in.hasAtime = false
		in.mu.Unlock()
		if err := c.mdc.DrainReports(ctx); err != nil {
			return err
		}
	}
	k := c.ask(f, e)
	c.stale(f.Ino())
	if err := c.mdc.Setattr(ctx, who, f, &set, e); err != nil {
		return err
	}
	c.keep(&k, e, true, name{})
	if in != nil {
		in.follow(e, valid)
	}
	if valid.Has(attr.ValidSize) {
		in.mu.Lock()
		in.writer = true
		in.mu.Unlock()
		if err := in.attach(ctx, e); err != nil {
			return err
		}
		if err := c.truncateData(ctx, in, want.Size); err != nil {
			return err
		}
		c.changes.mark(f.Ino())
	}
	return c.fill(ctx, e, in, a)
}

// follow takes over what a setattr has changed.
func (in *inode) follow(e *mdc.Entry, valid attr.Valid) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.last = e.Attr
	if e.Attr.SetattrGen > in.gen {
		in.gen = e.Attr.SetattrGen
		in.hasMtime = in.hasMtime && !valid.Any(attr.ValidMtime|attr.ValidMtimeNow)
	}
	in.hasAtime = in.hasAtime && !valid.Any(attr.ValidAtime|attr.ValidAtimeNow)
	if in.file != nil && valid.Any(attr.ValidUID|attr.ValidGID|attr.ValidProjID) {
		in.file.Chown(lov.Owner{UID: e.Attr.UID, GID: e.Attr.GID, Project: e.Attr.ProjID})
	}
}

// checkSize refuses a size that the file's layout cannot hold, before anything is changed.
func (c *Client) checkSize(ctx context.Context, who *mdc.Caller, in *inode, size uint64) error {
	if size <= layout.MaxObjectSize/2 {
		return nil
	}
	e := c.entry()
	defer c.putEntry(e)
	if err := c.mdc.Getattr(ctx, who, in.fid, e); err != nil {
		return err
	}
	var l layout.Layout
	if err := l.Decode(e.Layout); err != nil {
		return fmt.Errorf("client: layout of %v: %w", in.fid, err)
	}
	if e.Attr.IsFile() && size > l.MaxSize() {
		return status.FileTooBig
	}
	return nil
}

// truncateData cuts or extends the data and notes the change.
func (c *Client) truncateData(ctx context.Context, in *inode, size uint64) error {
	if err := in.io.lock(ctx); err != nil {
		return err
	}
	defer in.io.unlock()
	t := now()
	if err := in.file.Truncate(ctx, size, t); err != nil {
		return fmt.Errorf("client: truncate of %v: %w", in.fid, err)
	}
	in.wrote(t)
	return nil
}
