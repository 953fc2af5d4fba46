package client

import (
	"context"
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/mdc"
)

// release ends one handle. The last one of a file that this mount has written hands it to the retiring workers, which
// write back and report; nothing here waits for the OSTs.
func (c *Client) release(in *inode, handle uint64) {
	in.mu.Lock()
	in.handles--
	last := in.handles == 0
	if last && in.writer && !in.retiring {
		in.retiring = true
		in.closing = handle
		in.refs++
		in.mu.Unlock()
		c.retireLater(in)
		c.put(in)
		return
	}
	r := mdc.Report{FID: in.fid, Handle: handle, SetattrGen: in.gen}
	if last && in.hasAtime {
		r.Valid, r.Atime = attr.ValidAtime, in.atime
		r.Notify = in
		in.refs++
	}
	in.mu.Unlock()
	c.mdc.QueueReport(r)
	c.put(in)
}

func (c *Client) retireLater(in *inode) {
	c.busyMu.Lock()
	c.busy++
	c.busyMu.Unlock()
	c.retire <- in
}

func (c *Client) retireLoop() {
	defer c.workers.Done()
	for {
		select {
		case in := <-c.retire:
			c.retireOne(in)
			c.busyMu.Lock()
			if c.busy--; c.busy == 0 {
				c.idle.Broadcast()
			}
			c.busyMu.Unlock()
		case <-c.ctx.Done():
			return
		}
	}
}

// retireOne writes a file back after its last close and reports that this mount is no writer of it any more, unless it
// was opened again meanwhile.
func (c *Client) retireOne(in *inode) {
	in.mu.Lock()
	file, gone := in.file, in.gone && in.handles == 0
	in.mu.Unlock()
	var err error
	if file != nil {
		if gone {
			file.Discard()
		} else if err = file.Flush(c.ctx); err != nil && c.ctx.Err() == nil {
			c.lost.Inc()
			c.log.Error("data written before the last close could not be stored", "fid", in.fid, "err", err)
		}
	}
	in.mu.Lock()
	in.retiring = false
	// Opened again meanwhile: only the handle goes, and a later last close retires the file.
	done := in.handles == 0 && err == nil
	r := in.reportLocked(done)
	r.Handle, in.closing = in.closing, 0
	r.Notify = in
	in.writer = in.writer && !done
	in.mu.Unlock()
	c.mdc.QueueReport(r)
}

// Reported ends the reference that a queued report holds: the MDT knows now what this mount knew.
func (in *inode) Reported(error) { in.c.put(in) }

// syncReport tells the MDT size and times and waits for the answer; this mount stays a writer.
func (c *Client) syncReport(ctx context.Context, in *inode) error {
	in.mu.Lock()
	r := in.reportLocked(false)
	in.mu.Unlock()
	if r.Valid == 0 {
		return nil
	}
	if err := c.mdc.Report(ctx, &r); err != nil {
		return fmt.Errorf("client: report of %v: %w", in.fid, err)
	}
	return nil
}
