package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/mdc"
)

// retireWorkers bounds the files that are waited for at once after their last close; lateWorkers of them look first at
// those that took long before.
const (
	retireWorkers = 16
	lateWorkers   = 4
)

// Files on an OST that is away must not keep the workers from the others: a worker waits for a file for freshSlice when it
// is new, and for lateSlice when it comes round again.
const (
	freshSlice = 10 * time.Millisecond
	lateSlice  = 100 * time.Millisecond
)

// fifo is a queue whose memory is used again when it is empty.
type fifo struct {
	files []*inode
	head  int
}

func (q *fifo) push(in *inode) { q.files = append(q.files, in) }

// pop returns nil when the queue is empty.
func (q *fifo) pop() *inode {
	if q.head == len(q.files) {
		return nil
	}
	in := q.files[q.head]
	q.files[q.head] = nil
	if q.head++; q.head == len(q.files) {
		q.files, q.head = q.files[:0], 0
	}
	return in
}

// retirement holds the files to write back after their last close. Its queues are bounded by the memory of dirty data: a
// file in them has some, or leaves soon.
type retirement struct {
	mu   sync.Mutex
	work *sync.Cond // signalled when a queue grows and at the stop
	idle *sync.Cond // signalled when busy reaches 0
	// fresh holds files that nobody has waited for, late those that were waited for in vain. guarded by mu
	fresh, late fifo
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
	r.fresh.push(in)
	r.work.Signal()
}

// next waits for a file; nil at the stop. lateFirst says which queue is looked at first, slice how long to wait for it.
func (r *retirement) next(lateFirst bool) (in *inode, slice time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.stopped {
		if lateFirst {
			if in = r.late.pop(); in != nil {
				return in, lateSlice
			}
		}
		if in = r.fresh.pop(); in != nil {
			return in, freshSlice
		}
		if in = r.late.pop(); in != nil {
			return in, lateSlice
		}
		r.work.Wait()
	}
	return nil, 0
}

// done takes back a file from a worker; again keeps it.
func (r *retirement) done(in *inode, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if again {
		r.late.push(in)
		r.work.Signal()
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
	r := mdc.Report{FID: in.fid, Handle: handle, SetattrGen: in.gen, Urgent: in.gone || in.unnamed}
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

func (c *Client) retireLoop(lateFirst bool) {
	defer c.retire.workers.Done()
	for {
		in, slice := c.retire.next(lateFirst)
		if in == nil {
			return
		}
		c.retire.done(in, c.retireOne(in, slice))
	}
}

// retireOne writes a file back after its last close and reports that this mount is no writer of it any more, unless it
// was opened again meanwhile. It waits for slice at most. again says that it is not through: its OST is slow or away, or
// it was closed once more.
func (c *Client) retireOne(in *inode, slice time.Duration) (again bool) {
	in.mu.Lock()
	in.again = false
	file, gone := in.file, in.gone && in.handles == 0
	in.mu.Unlock()
	var err error
	if file != nil && gone {
		file.Discard()
	} else if file != nil {
		ctx, cancel := context.WithTimeout(c.ctx, slice)
		err = file.Flush(ctx)
		cancel()
	}
	var seen lov.Sizes
	sized := false
	if err == nil && file != nil && !gone && !in.knows() {
		// Others write the file too, so the OSTs say how long it is; the MDT believes the longest of the last reports.
		ctx, cancel := context.WithTimeout(c.ctx, lateSlice)
		seen, err = file.Glimpse(ctx)
		cancel()
		sized = err == nil
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
	if sized && !in.lost && in.writer && !r.Valid.Has(attr.ValidSize) {
		r.Valid |= attr.ValidSize
		r.Size, r.Blocks = seen.Size, seen.Blocks
	}
	r.Handle, in.closing = in.closing, 0
	r.Urgent = in.gone || in.unnamed
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
func (in *inode) Reported(error) {
	// What is cached of its attributes is of before.
	in.c.changes.mark(in.fid.Ino())
	in.c.stale(in.fid.Ino())
	in.c.put(in)
}

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
