package mdc_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mdt is a target that answers as a test says.
type mdt struct {
	t    *testing.T
	net  *rpc.Pipe
	stop func()
	life uint64
	// restarts counts new instances, each with a recovery window.
	restarts uint64
	stopping atomic.Bool
	serve    func(c *rpc.Call) error
	restore  func(ctx context.Context, v *rpc.Recovery) error
}

func (m *mdt) Connect(context.Context, *rpc.Conn, *wirepb.ConnectRequest) (rpc.Session, *wirepb.ConnectReply, error) {
	if m.stopping.Load() {
		return nil, nil, status.Stopping
	}
	return m, &wirepb.ConnectReply{Version: wire.Version, Generation: m.life, Instance: 1 + m.restarts, MaxRpcsInFlight: 16,
		BrwSize: wire.BulkMax, Recovered: true, Recovering: m.restarts > 0}, nil
}
func (m *mdt) LastCommitted() wire.Transno         { return 0 }
func (m *mdt) Generation() uint64                  { return m.life }
func (m *mdt) Disconnected(*rpc.Conn)              {}
func (m *mdt) Serve(_ *env.Env, c *rpc.Call) error { return m.serve(c) }
func (m *mdt) find(string) (rpc.Target, error)     { return m, nil }

func (m *mdt) start() {
	m.life++
	s := rpc.NewServer(rpc.ServerOptions{Find: m.find})
	l, err := m.net.Listen("mdt")
	if err != nil {
		m.t.Fatal(err)
	}
	var g sync.WaitGroup
	g.Go(func() { _ = s.Serve(l) })
	m.stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx)
		g.Wait()
	}
}

// newMDC gives a client of a target whose requests serve answers.
func newMDC(t *testing.T, limit time.Duration, serve func(c *rpc.Call) error) (*mdc.MDC, *mdt) {
	t.Helper()
	m := &mdt{t: t, net: rpc.NewPipe(), serve: serve}
	m.start()
	i, err := rpc.NewImport(rpc.ImportOptions{
		Transport: m.net, Addresses: []string{"mdt"}, FSName: "strake", Target: "strake-MDT0000", UUID: [16]byte{1},
		Kind: rpc.KindClient, RetryLimit: limit, Restore: func(ctx context.Context, v *rpc.Recovery) error { return m.restore(ctx, v) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := mdc.New(mdc.Options{Import: i, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_ = c.Close(ctx)
		_ = i.Close(ctx)
		m.stop()
	})
	return c, m
}

// told counts what became of reports.
type told struct{ ok, bad atomic.Int64 }

func (r *told) Reported(err error) {
	if err != nil {
		r.bad.Add(1)
	} else {
		r.ok.Add(1)
	}
}

func drain(t *testing.T, c *mdc.MDC) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := c.DrainReports(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestABadReportTakesNoOtherAlong: a batch that is refused is sent one by one.
func TestABadReportTakesNoOtherAlong(t *testing.T) {
	const bad = 7
	c, _ := newMDC(t, 0, func(call *rpc.Call) error {
		var q wirepb.ReportSizesRequest
		if err := call.Decode(&q); err != nil {
			return err
		}
		for _, r := range q.Reports {
			if r.Oid == bad {
				return status.Invalid
			}
		}
		return nil
	})
	var n told
	for i := range 100 {
		c.QueueReport(mdc.Report{FID: fid.FID{Seq: fid.SeqFirst, OID: uint32(i + 1)}, Notify: &n})
	}
	drain(t, c)
	if n.ok.Load() != 99 || n.bad.Load() != 1 {
		t.Fatalf("%d reports arrived, %d did not", n.ok.Load(), n.bad.Load())
	}
}

// TestReportsOutliveTheRetryLimit: the limit is for callers. A close that was given up would be one that never happens.
func TestReportsOutliveTheRetryLimit(t *testing.T) {
	c, m := newMDC(t, 20*time.Millisecond, func(*rpc.Call) error { return nil })
	m.stop()
	var n told
	c.QueueReport(mdc.Report{FID: fid.Root, Handle: 1, Notify: &n})
	time.Sleep(100 * time.Millisecond) // several limits
	m.start()
	drain(t, c)
	if n.ok.Load() != 1 {
		t.Fatal("the report was given up")
	}
}

// TestQueueBoundsOpens: queueing never waits; opens do when the MDT does not keep up, until their context ends.
func TestQueueBoundsOpens(t *testing.T) {
	held := make(chan struct{})
	c, _ := newMDC(t, 0, func(call *rpc.Call) error {
		if call.Header.Op == wire.OpReportSizes {
			<-held
			return nil
		}
		return status.NotExist
	})
	for i := range 9000 {
		c.QueueReport(mdc.Report{FID: fid.FID{Seq: fid.SeqFirst, OID: uint32(i + 1)}})
	}
	var e mdc.Entry
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Open(ctx, &mdc.Caller{}, fid.Root, 0, &e); err != context.DeadlineExceeded {
		t.Fatalf("an open ran ahead of the closes: %v", err)
	}
	close(held)
	if err := c.Open(t.Context(), &mdc.Caller{}, fid.Root, 0, &e); status.Of(err) != status.NotExist {
		t.Fatalf("an open with room again: %v", err)
	}
	drain(t, c)
}

// TestNoIdentifiersIsAnError: a refusal of new sequences is the create's error.
func TestNoIdentifiersIsAnError(t *testing.T) {
	var asked atomic.Int64
	c, _ := newMDC(t, 0, func(*rpc.Call) error {
		asked.Add(1)
		return status.NoSpace
	})
	var e mdc.Entry
	err := c.Create(t.Context(), &mdc.Caller{}, fid.Root, "x", &mdc.Creation{Mode: attr.TypeFile}, &e)
	if status.Of(err) != status.NoSpace {
		t.Fatalf("a create without identifiers: %v", err)
	}
	if n := asked.Load(); n != 1 {
		t.Fatalf("asked %d times", n)
	}
}

// TestOvertakenIdentifierIsReplaced: an operation whose identifier has fallen too far behind others on its way is sent again
// under a fresh one, and not for ever.
func TestOvertakenIdentifierIsReplaced(t *testing.T) {
	var refuse, asked atomic.Int64
	seen := make(map[uint32]bool) // of the server's, one request at a time
	c, _ := newMDC(t, 0, func(call *rpc.Call) error {
		overtaken := func(oid uint32) error {
			if seen[oid] || oid == 0 {
				t.Errorf("identifier %d comes twice", oid)
			}
			seen[oid] = true
			if asked.Add(1) <= refuse.Load() {
				return status.Overtaken
			}
			return nil
		}
		switch call.Header.Op {
		case wire.OpSeq:
			call.Reply = &wirepb.SeqReply{First: uint64(fid.SeqFirst), Count: 1}
			return nil
		case wire.OpCreate:
			var q wirepb.CreateRequest
			if err := call.Decode(&q); err != nil {
				return err
			}
			if err := overtaken(q.Oid); err != nil {
				return err
			}
			call.Reply = &wirepb.EntryReply{Attr: &wirepb.Attr{Seq: q.Seq, Oid: q.Oid, Mode: q.Mode}}
			return nil
		case wire.OpRename:
			var q wirepb.RenameRequest
			if err := call.Decode(&q); err != nil {
				return err
			}
			if err := overtaken(q.WhiteoutOid); err != nil {
				return err
			}
			return status.NotExist
		}
		return status.NotSupport
	})
	create := func(n int64) (fid.FID, error) {
		refuse.Store(n)
		asked.Store(0)
		var e mdc.Entry
		err := c.Create(t.Context(), &mdc.Caller{}, fid.Root, "n", &mdc.Creation{Mode: attr.TypeFifo}, &e)
		return e.Attr.FID, err
	}
	if f, err := create(1); err != nil || asked.Load() != 2 || !seen[f.OID] {
		t.Errorf("create of %v: %v after %d requests", f, err, asked.Load())
	}
	if _, err := create(1 << 20); !errors.Is(err, status.Overtaken) || asked.Load() > 8 {
		t.Errorf("create that is always overtaken: %v after %d requests", err, asked.Load())
	}
	refuse.Store(1)
	asked.Store(0)
	var out mdc.Renamed
	const whiteout = 4
	err := c.Rename(t.Context(), &mdc.Caller{}, &mdc.Renaming{From: fid.Root, To: fid.Root, FromName: "a", ToName: "b", Flags: whiteout}, &out)
	if status.Of(err) != status.NotExist || asked.Load() != 2 {
		t.Errorf("rename: %v after %d requests", err, asked.Load())
	}
}
