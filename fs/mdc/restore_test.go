package mdc_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// openMDT is a target that keeps opens, and loses them with a restart unless they are handed back.
type openMDT struct {
	t *testing.T

	mu       sync.Mutex
	last     uint64                    // guarded by mu
	handles  map[uint64]*wirepb.Reopen // guarded by mu
	writers  map[uint32]bool           // guarded by mu
	batches  []int                     // of reopens; guarded by mu
	xids     map[wire.XID]bool         // answered closes, which outlive a restart; guarded by mu
	lose     func()                    // in the middle of the next close, after it is done; guarded by mu
	refuse   uint32                    // the object id that is not taken back; guarded by mu
	closedBy map[uint64]int            // how often a handle was closed; guarded by mu
}

func (o *openMDT) serve(c *rpc.Call) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch c.Header.Op {
	case wire.OpOpen:
		var q wirepb.OpenRequest
		if err := c.Decode(&q); err != nil {
			return err
		}
		o.last++
		o.handles[o.last] = &wirepb.Reopen{Oid: q.Oid, Flags: q.Flags}
		c.Reply = &wirepb.EntryReply{Attr: &wirepb.Attr{Seq: q.Seq, Oid: q.Oid, Mode: syscall.S_IFREG}, Handle: o.last}
	case wire.OpReopen:
		return o.reopen(c)
	case wire.OpReportSizes:
		return o.report(c)
	}
	return nil
}

func (o *openMDT) reopen(c *rpc.Call) error {
	var q wirepb.ReopenRequest
	if err := c.Decode(&q); err != nil {
		return err
	}
	o.batches = append(o.batches, len(q.Opens))
	p := &wirepb.ReopenReply{}
	for _, r := range q.Opens {
		k := status.OK
		switch {
		case r.Oid == o.refuse:
			k = status.Stale
		case r.Handle != 0:
			o.handles[r.Handle] = r
		}
		if r.Writer {
			o.writers[r.Oid] = true
		}
		p.Status = append(p.Status, uint32(k))
	}
	c.Reply = p
	return nil
}

func (o *openMDT) report(c *rpc.Call) error {
	var q wirepb.ReportSizesRequest
	if err := c.Decode(&q); err != nil {
		return err
	}
	if o.xids[c.Header.XID] {
		return nil // from the slot
	}
	o.xids[c.Header.XID] = true
	for _, r := range q.Reports {
		if r.Handle != 0 {
			delete(o.handles, r.Handle)
			o.closedBy[r.Handle]++
		}
		if r.Done {
			delete(o.writers, r.Oid)
		}
	}
	if o.lose != nil {
		lose := o.lose
		o.lose = nil
		lose()
		return status.Stopping // the answer that nobody gets
	}
	return nil
}

func newOpenMDT(t *testing.T) (*openMDT, *mdc.MDC, *mdt) {
	o := &openMDT{t: t, handles: map[uint64]*wirepb.Reopen{}, writers: map[uint32]bool{}, xids: map[wire.XID]bool{}, closedBy: map[uint64]int{}}
	c, m := newMDC(t, 0, o.serve)
	return o, c, m
}

// restart loses what is in memory.
func (o *openMDT) restart(m *mdt) {
	m.stop()
	o.mu.Lock()
	o.handles, o.writers = map[uint64]*wirepb.Reopen{}, map[uint32]bool{}
	o.mu.Unlock()
	m.restarts++
	m.stopping.Store(false)
	m.start()
}

func file(i uint32) fid.FID { return fid.FID{Seq: fid.SeqFirst, OID: i} }

// TestOpensAreHandedBack: an MDT that was started again gets every open with its handle and flags, and every file without one that
// this client writes, in batches. What it refuses is told of.
func TestOpensAreHandedBack(t *testing.T) {
	o, c, m := newOpenMDT(t)
	var lost []fid.FID
	m.restore = func(ctx context.Context, v *rpc.Recovery) error {
		return c.Restore(ctx, v, []mdc.Mark{{FID: file(1000), SetattrGen: 7}}, func(f fid.FID, err error) {
			if status.Of(err) != status.Stale {
				t.Errorf("%v: %v", f, err)
			}
			lost = append(lost, f)
		})
	}
	var e mdc.Entry
	for i := range uint32(300) {
		if err := c.Open(t.Context(), &mdc.Caller{}, file(i+1), i%3, &e); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint32(100) {
		c.QueueReport(mdc.Report{FID: file(i + 1), Handle: uint64(i + 1)})
	}
	drain(t, c)
	if c.Opens() != 200 {
		t.Fatalf("%d opens", c.Opens())
	}
	o.refuse = 150
	o.restart(m)
	if err := c.Sync(t.Context(), fid.Root, false); err != nil {
		t.Fatal(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.batches, []int{128, 73}) || len(o.handles) != 199 || !slices.Equal(lost, []fid.FID{file(150)}) {
		t.Errorf("batches %v, %d handles, lost %v", o.batches, len(o.handles), lost)
	}
	for h, r := range o.handles {
		if r.Oid != uint32(h) || r.Flags != uint32(h-1)%3 || r.Writer != (r.Flags != 0) || h <= 100 {
			t.Errorf("handle %d is %v", h, r)
		}
	}
	if !o.writers[1000] || o.writers[100] || len(o.writers) != 134+1 {
		t.Errorf("%d writers", len(o.writers))
	}
}

// TestAnUnansweredCloseLeavesNothingOpen: the MDT has a close on its disk and is started again before it has answered. The open comes back,
// because nobody knows that, and the close is answered from the disk. Then it is closed once more.
func TestAnUnansweredCloseLeavesNothingOpen(t *testing.T) {
	o, c, m := newOpenMDT(t)
	var handed atomic.Int64
	m.restore = func(ctx context.Context, v *rpc.Recovery) error {
		handed.Add(1)
		return c.Restore(ctx, v, nil, func(f fid.FID, err error) { t.Errorf("%v: %v", f, err) })
	}
	var e mdc.Entry
	for i := range uint32(10) {
		if err := c.Open(t.Context(), &mdc.Caller{}, file(i+1), syscall.O_RDWR, &e); err != nil {
			t.Fatal(err)
		}
	}
	restarted := make(chan struct{})
	o.lose = func() {
		m.stopping.Store(true)
		go func() {
			o.restart(m)
			close(restarted)
		}()
	}
	for i := range uint32(10) {
		c.QueueReport(mdc.Report{FID: file(i + 1), Handle: uint64(i + 1), Done: true})
	}
	<-restarted
	drain(t, c)
	if err := c.Sync(t.Context(), fid.Root, false); err != nil {
		t.Fatal(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for h := range uint64(10) {
		if o.closedBy[h+1] != 2 {
			t.Errorf("handle %d was closed %d times", h+1, o.closedBy[h+1])
		}
	}
	if len(o.handles) != 0 || len(o.writers) != 0 || c.Opens() != 0 || handed.Load() != 1 {
		t.Errorf("%d handles, %d writers, %d opens, %d times handed back", len(o.handles), len(o.writers), c.Opens(), handed.Load())
	}
}
