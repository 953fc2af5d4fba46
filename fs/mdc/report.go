package mdc

import (
	"context"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
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
	_, err := m.call(ctx, wire.OpReportSizes, q, nil, nil)
	return err
}

// Queue and batch of reports. A request carries up to batchMax; the queue holds queueMax, and one more makes its
// sender wait, so that closing never runs ahead of the MDT without bound. A lone report leaves after gatherTime.
const (
	batchMax   = 128
	queueMax   = 8192
	gatherTime = 5 * time.Millisecond
)

// closer gathers reports and sends them from one goroutine.
type closer struct {
	mu    sync.Mutex
	room  *sync.Cond
	empty *sync.Cond
	// queue holds reports in the order they came. guarded by mu
	queue []Report
	// inBatch is scratch of take: a request holds one report of a file at most, so that their order needs no rule.
	inBatch map[fid.FID]bool
	sending bool
	closed  bool
	wake    chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}
}

func (q *closer) context() context.Context { return q.ctx }

func (q *closer) start(m *MDC) {
	q.room, q.empty = sync.NewCond(&q.mu), sync.NewCond(&q.mu)
	q.wake = make(chan struct{}, 1)
	q.inBatch = make(map[fid.FID]bool, batchMax)
	q.done = make(chan struct{})
	q.ctx, q.cancel = context.WithCancel(context.Background())
	go q.run(m)
}

// QueueReport hands a report to the queue. Reports of one file arrive in the order they were queued. It waits only while
// the queue is full.
func (m *MDC) QueueReport(r Report) {
	q := &m.closes
	q.mu.Lock()
	for len(q.queue) >= queueMax && !q.closed {
		q.room.Wait()
	}
	q.queue = append(q.queue, r)
	first := len(q.queue) == 1 || len(q.queue) == batchMax
	q.mu.Unlock()
	if first {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// DrainReports waits until every report queued before is answered.
func (m *MDC) DrainReports() {
	q := &m.closes
	q.mu.Lock()
	for (len(q.queue) > 0 || q.sending) && !q.closed {
		q.empty.Wait()
	}
	q.mu.Unlock()
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
		q.mu.Lock()
		few := len(q.queue) < batchMax && !q.closed
		q.mu.Unlock()
		if few {
			timer.Reset(gatherTime)
			select {
			case <-timer.C:
			case <-q.ctx.Done():
				return
			}
		}
		for {
			batch = q.take(batch[:0])
			if len(batch) == 0 {
				break
			}
			err := m.send(q.ctx, batch)
			if err != nil && q.ctx.Err() == nil {
				m.log.Error("sizes and closes not reported to the MDT", "files", len(batch), "err", err)
			}
			for i := range batch {
				if n := batch[i].Notify; n != nil {
					n.Reported(err)
				}
			}
			clear(batch)
		}
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
	q.sending = n > 0
	if n == 0 {
		q.empty.Broadcast()
	}
	q.room.Broadcast()
	return batch
}

func (q *closer) stop(ctx context.Context) error {
	drained := make(chan struct{})
	go func() {
		q.mu.Lock()
		for (len(q.queue) > 0 || q.sending) && !q.closed {
			q.empty.Wait()
		}
		q.mu.Unlock()
		close(drained)
	}()
	var err error
	select {
	case <-drained:
	case <-ctx.Done():
		err = ctx.Err()
	}
	q.mu.Lock()
	q.closed = true
	q.room.Broadcast()
	q.empty.Broadcast()
	q.mu.Unlock()
	q.cancel()
	<-q.done
	<-drained
	return err
}
