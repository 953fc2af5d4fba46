package mdc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Report is what a client tells the MDT of a file it has read or written.
type Report struct {
	FID fid.FID
	// Valid says which of the attributes below are meant: ValidSize (with Blocks), ValidMtime, ValidAtime.
	Valid      attr.Valid
	Size       uint64
	Blocks     uint64
	Mtime      attr.Time
	Atime      attr.Time
	SetattrGen uint32
	// Done ends this client's part as a writer of the file.
	Done bool
	// Handle is closed with the report, 0 for none.
	Handle uint64
	// Urgent sends the report at once, with those queued before it: a file without a name ends with its last close.
	Urgent bool
	// Notify is told when a queued report was answered, nil for nobody.
	Notify Reporter
}

// Reporter hears of a report's fate. Reported must not wait.
type Reporter interface {
	Reported(err error)
}

func (r *Report) put(p *wirepb.SizeReport) {
	p.Seq, p.Oid = uint64(r.FID.Seq), r.FID.OID
	p.Size, p.Blocks = r.Size, r.Blocks
	p.MtimeSec, p.MtimeNsec = r.Mtime.Sec, r.Mtime.Nsec
	p.AtimeSec, p.AtimeNsec = r.Atime.Sec, r.Atime.Nsec
	p.SetattrGen, p.Valid, p.Done, p.Handle = r.SetattrGen, uint32(r.Valid), r.Done, r.Handle
}

// Report sends one report and waits for the answer.
func (m *MDC) Report(ctx context.Context, r *Report) error {
	return m.send(ctx, []Report{*r})
}

func (m *MDC) send(ctx context.Context, reports []Report) error {
	q := wirepb.ReportSizesRequestFromVTPool()
	defer q.ReturnToVTPool()
	for i := range reports {
		p := wirepb.SizeReportFromVTPool()
		reports[i].put(p)
		q.Reports = append(q.Reports, p)
	}
	r := m.request(wire.OpReportSizes, q, nil)
	r.Answered = m.reported
	err := m.imp.Do(ctx, r)
	m.done(r)
	return err
}

// Queue and batch of reports. A request carries up to batchMax. Queueing never waits, since a close must not; it is opens
// that wait while queueMax reports are queued, so that the queue holds as many as there are open files at most. A lone
// report leaves after gatherTime.
const (
	batchMax   = 128
	queueMax   = 8192
	gatherTime = 10 * time.Millisecond
)

// closer gathers reports and sends them from one goroutine.
type closer struct {
	mu sync.Mutex
	// queue holds reports in the order they came. guarded by mu
	queue []Report
	// queued counts reports ever queued, answered those whose fate is known. guarded by mu
	queued, answered uint64
	// moved is closed when answered grows or the queue ends; nil when nobody waits. guarded by mu
	moved  chan struct{}
	closed bool // guarded by mu
	urgent bool // whether the queue does not gather; guarded by mu
	// inBatch is scratch of take: a request holds one report of a file at most, so that their order needs no rule.
	inBatch map[fid.FID]bool
	wake    chan struct{}
	hurry   chan struct{}   // ends the gathering
	ctx     context.Context // of the queue's requests
	cancel  context.CancelFunc
	done    chan struct{}
}

func (q *closer) context() context.Context { return q.ctx }

func (q *closer) start(m *MDC) {
	q.wake = make(chan struct{}, 1)
	q.hurry = make(chan struct{}, 1)
	q.inBatch = make(map[fid.FID]bool, batchMax)
	q.done = make(chan struct{})
	q.ctx, q.cancel = context.WithCancel(context.Background())
	go q.run(m)
}

// QueueReport hands a report to the queue and does not wait. Reports of one file arrive in the order they were queued.
func (m *MDC) QueueReport(r Report) {
	q := &m.closes
	q.mu.Lock()
	q.queue = append(q.queue, r)
	q.queued++
	first := len(q.queue) == 1 || len(q.queue) == batchMax
	q.urgent = q.urgent || r.Urgent
	q.mu.Unlock()
	if first {
		signal(q.wake)
	}
	if r.Urgent {
		signal(q.hurry)
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// DrainReports waits until every report queued before is answered.
func (m *MDC) DrainReports(ctx context.Context) error {
	q := &m.closes
	q.mu.Lock()
	upto := q.queued
	q.mu.Unlock()
	return q.wait(ctx, func() bool { return q.answered >= upto })
}

// room waits until the queue can take the close of another open.
func (q *closer) room(ctx context.Context) error {
	return q.wait(ctx, func() bool { return len(q.queue) < queueMax })
}

// wait waits until ok, which runs under mu, or until the queue has ended.
func (q *closer) wait(ctx context.Context, ok func() bool) error {
	for {
		q.mu.Lock()
		if ok() || q.closed {
			q.mu.Unlock()
			return nil
		}
		if q.moved == nil {
			q.moved = make(chan struct{})
		}
		moved := q.moved
		q.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (q *closer) movedLocked() {
	if q.moved != nil {
		close(q.moved)
		q.moved = nil
	}
}

func (q *closer) run(m *MDC) {
	defer close(q.done)
	batch := make([]Report, 0, batchMax)
	timer := time.NewTimer(gatherTime)
	defer timer.Stop()
	for {
		select {
		case <-q.wake:
		case <-q.ctx.Done():
			return
		}
		for {
			q.mu.Lock()
			n, urgent := len(q.queue), q.urgent
			q.mu.Unlock()
			if n == 0 {
				break
			}
			if n < batchMax && !urgent {
				timer.Reset(gatherTime)
				select {
				case <-timer.C:
				case <-q.hurry:
				case <-q.ctx.Done():
					return
				}
			}
			batch = q.take(batch[:0])
			before := m.opens.sending(batch)
			m.deliver(q.ctx, batch)
			if m.opens.sent(batch, before) {
				m.closeAgain(q.ctx, batch)
			}
			q.mu.Lock()
			q.answered += uint64(len(batch))
			q.movedLocked()
			q.mu.Unlock()
			clear(batch)
		}
	}
}

// deliver sends reports until their fate is known, and tells who wants to hear of it. A target that is away is waited
// for: a close that is given up would leave the file open at the MDT as long as the mount lives. One bad report does not
// take those beside it along.
func (m *MDC) deliver(ctx context.Context, batch []Report) {
	err := m.send(ctx, batch)
	for status.Of(err) == status.TimedOut && ctx.Err() == nil {
		err = m.send(ctx, batch)
	}
	if err != nil && ctx.Err() == nil && len(batch) > 1 && status.Of(err) != status.IO {
		for i := range batch {
			m.deliver(ctx, batch[i:i+1])
		}
		return
	}
	if err != nil && ctx.Err() == nil {
		m.log.Error("sizes and closes not reported to the MDT", "files", len(batch), "fid", batch[0].FID.String(), "err", err)
	}
	for i := range batch {
		if n := batch[i].Notify; n != nil {
			n.Reported(err)
		}
	}
}

// closeAgain closes what was handed back to a restarted MDT while its close was on the way: that had the close on its disk, it may
// be, and has answered it from there.
func (m *MDC) closeAgain(ctx context.Context, batch []Report) {
	again := make([]Report, 0, len(batch))
	for i := range batch {
		if r := &batch[i]; r.Handle != 0 || r.Done {
			again = append(again, Report{FID: r.FID, Handle: r.Handle, Done: r.Done, SetattrGen: r.SetattrGen})
		}
	}
	if len(again) > 0 {
		m.deliver(ctx, again)
	}
}

func (q *closer) take(batch []Report) []Report {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	clear(q.inBatch)
	for n < min(len(q.queue), batchMax) && !q.inBatch[q.queue[n].FID] {
		q.inBatch[q.queue[n].FID] = true
		n++
	}
	batch = append(batch, q.queue[:n]...)
	rest := copy(q.queue, q.queue[n:])
	clear(q.queue[rest:])
	q.queue = q.queue[:rest]
	q.urgent = q.urgent && rest > 0
	return batch
}

// stop sends what is queued, for as long as ctx allows, and ends the queue.
func (q *closer) stop(ctx context.Context) error {
	err := q.wait(ctx, func() bool { return q.answered == q.queued })
	q.mu.Lock()
	q.closed = true
	left := q.queued - q.answered
	q.movedLocked()
	q.mu.Unlock()
	q.cancel()
	<-q.done
	if err != nil {
		return fmt.Errorf("mdc: %d closes and sizes are not reported: %w", left, err)
	}
	return nil
}
