package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/mdc"
)

// retireWorkers bounds the files that are written back at once after their last close.
const retireWorkers = 16

// retireSlice is how long a worker waits for one file before it looks at the next: files on an OST that is away must not
// keep all workers from the others.
const retireSlice = 100 * time.Millisecond

// retirement holds the files to write back after their last close. Its queue is bounded by the memory of dirty data:
// a file in it has some, or leaves at once.
type retirement struct {
	mu   sync.Mutex
	work *sync.Cond // signalled when queue grows or at the stop
	idle *sync.Cond // signalled when busy reaches 0
	// queue holds files from head on. guarded by mu
	queue []*inode
	head  int
	// busy counts files that are queued or at a worker. guarded by mu
	busy    int
	stopped bool // guarded by mu
	workers sync.WaitGroup
}

func (r *retirement) init() { r.work, r.idle = sync.NewCond(&r.mu), sync.NewCond(&r.mu) }

// add hands a file over. It never waits: closing must not wait for an OST.
func (r *retirement) add(in *inode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy++
	r.pushLocked(in)
}

func (r *retirement) pushLocked(in *inode) {
	r.queue = append(r.queue, in)
	r.work.Signal()
}

// next waits for a file; nil at the stop.
func (r *retirement) next() *inode {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.head == len(r.queue) && !r.stopped {
		r.work.Wait()
	}
	if r.stopped {
		return nil
	}
	in := r.queue[r.head]
	r.queue[r.head] = nil
	if r.head++; r.head == len(r.queue) {
		r.queue, r.head = r.queue[:0], 0
	}
	return in
}

// done takes back a file from a worker; again puts it at the end of the queue.
func (r *retirement) done(in *inode, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if again {
		r.pushLocked(in)
		return
	}
	if r.busy--; r.busy == 0 {
		r.idle.Broadcast()
	}
}

// drain waits until no file is left.
func (r *retirement) drain(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.idle.Broadcast()
	})
	defer stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.busy > 0 && ctx.Err() == nil {
		r.idle.Wait()
	}
	if r.busy > 0 {
		return fmt.Errorf("client: %d files are not written back: %w", r.busy, ctx.Err())
	}
	return nil
}

// stop ends the workers.
func (r *retirement) stop() {
	r.mu.Lock()
	r.stopped = true
	r.work.Broadcast()
	r.mu.Unlock()
	r.workers.Wait()
}

// release ends one handle, 0 for a truncate without one. The last one of a file that this mount has written hands it to
// the retiring workers, which write back and report; nothing here waits.
func (c *Client) release(in *inode, handle uint64) {
	retire := in.release(handle)
	if retire {
		c.retire.add(in)
	}
	c.put(in)
}

// release queues the report of a close, unless retire says that the file's retirement has to begin and takes it along.
// Reports are queued under the mutex: the one that ends this mount's part as a writer comes behind every other.
func (in *inode) release(handle uint64) (retire bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.handles--
	last := in.handles == 0
	switch {
	case last && in.writer && !in.retiring:
		in.retiring, in.closing = true, handle
		in.refs++
		return true
	case last && in.retiring:
		in.again = true
	}
	r := mdc.Report{FID: in.fid, Handle: handle, SetattrGen: in.gen}
	if last && in.hasAtime && !in.retiring {
		r.Valid, r.Atime = attr.ValidAtime, in.atime
		r.Notify = in
		in.refs++
	}
	if r.Handle != 0 || r.Valid != 0 {
		in.c.mdc.QueueReport(r)
	}
	return false
}

func (c *Client) retireLoop() {
	defer c.retire.workers.Done()
	for in := c.retire.next(); in != nil; in = c.retire.next() {
		c.retire.done(in, c.retireOne(in))
	}
}

// retireOne writes a file back after its last close and reports that this mount is no writer of it any more, unless it
// was opened again meanwhile. again says that it is not through: its OST is slow or away, or it was closed once more.
func (c *Client) retireOne(in *inode) (again bool) {
	in.mu.Lock()
	in.again = false
	file, gone := in.file, in.gone && in.handles == 0
	in.mu.Unlock()
	var err error
	if file != nil && gone {
		file.Discard()
	} else if file != nil {
		ctx, cancel := context.WithTimeout(c.ctx, retireSlice)
		err = file.Flush(ctx)
		cancel()
	}
	if c.ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if err != nil {
		in.lostLocked(err)
	}
	if in.again && in.handles == 0 && c.ctx.Err() == nil {
		return true // What was written through the handle closed meanwhile may be dirty.
	}
	in.retiring = false
	// Opened again meanwhile: only the handle goes, and a later last close retires the file.
	done := in.handles == 0 && c.ctx.Err() == nil
	r := in.reportLocked(done)
	r.Handle, in.closing = in.closing, 0
	r.Notify = in
	if done {
		in.writer, in.lost = false, false
	}
	c.mdc.QueueReport(r)
	return false
}

// lostLocked notes that data could not be stored: whoever has the file open now is told, else the log.
func (in *inode) lostLocked(err error) {
	c := in.c
	switch {
	case c.ctx.Err() != nil:
	case in.handles > 0:
		in.file.WriteFailed(err)
	default:
		in.lost = true
		c.lost.Inc()
		c.log.Error("data written before the last close could not be stored", "fid", in.fid, "err", err)
	}
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
