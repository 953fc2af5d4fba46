package mdc

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Caller is who asks for an operation.
type Caller struct {
	attr.Cred
	// PID is the calling thread's group, 0 for the kernel itself.
	PID uint32
}

// Entry is what the MDT says of one inode. Byte slices are its own and reused by the next call that fills it.
type Entry struct {
	Attr    attr.Attr
	Layout  []byte
	Symlink []byte
	Handle  uint64
	// Created says that this request made the file.
	Created bool
	// Parent holds the folder's attributes after the change if HasParent.
	Parent    attr.Attr
	HasParent bool
}

// Options of a new MDC.
type Options struct {
	Import *rpc.Import
	Log    *slog.Logger
}

// MDC is one MDT seen from a client.
type MDC struct {
	imp *rpc.Import
	log *slog.Logger

	requests sync.Pool

	seqMu sync.Mutex
	// next and end bound the identifiers left of the sequence in use; spare is the sequence after it. guarded by seqMu
	next, end fid.FID
	spare     fid.Seq
	// fetching is closed when the request for the next sequence has ended, nil while there is none. guarded by seqMu
	fetching chan struct{}
	// seqErr is why the last one failed; life counts the times that all sequences were forgotten. guarded by seqMu
	seqErr error
	life   uint64
	wait   sync.WaitGroup

	closes closer
}

// New starts an MDC over a connected import. Close stops it.
func New(o Options) *MDC {
	m := &MDC{imp: o.Import, log: o.Log}
	m.requests.New = func() any { return new(rpc.Request) }
	m.closes.start(m)
	return m
}

// Import gives the connection below.
func (m *MDC) Import() *rpc.Import { return m.imp }

// Close sends the reports still queued, for as long as ctx allows, and ends the queue's goroutine.
func (m *MDC) Close(ctx context.Context) error {
	err := m.closes.stop(ctx)
	m.wait.Wait()
	return err
}

// Late closes what a request has opened whose caller was killed before the answer came. Give it to
// rpc.ImportOptions.OnLate.
func (m *MDC) Late(op wire.Op, body []byte) {
	if op != wire.OpOpen && op != wire.OpCreate {
		return
	}
	p := wirepb.EntryReplyFromVTPool()
	defer p.ReturnToVTPool()
	if err := p.UnmarshalVT(body); err != nil || p.Attr == nil || p.Handle == 0 {
		return
	}
	f, err := wire.FID(p.Attr.Seq, p.Attr.Oid)
	if err != nil {
		return
	}
	m.QueueReport(Report{FID: f, Handle: p.Handle, Done: true})
}

// call runs one request: body goes out, reply is filled.
func (m *MDC) call(ctx context.Context, op wire.Op, body, reply rpc.Message, into []byte) (int, error) {
	r := m.requests.Get().(*rpc.Request)
	r.Op, r.Body, r.Reply, r.Into = op, body, reply, into
	err := m.imp.Do(ctx, r)
	n := r.N
	r.Body, r.Reply, r.Into = nil, nil, nil
	m.requests.Put(r)
	return n, err
}

// entry runs a request that is answered with an EntryReply.
func (m *MDC) entry(ctx context.Context, op wire.Op, body rpc.Message, out *Entry) error {
	p := wirepb.EntryReplyFromVTPool()
	defer p.ReturnToVTPool()
	if _, err := m.call(ctx, op, body, p, nil); err != nil {
		return err
	}
	if p.Attr == nil {
		return fmt.Errorf("mdc: %v answered without attributes", op)
	}
	if err := wire.Attr(p.Attr, &out.Attr); err != nil {
		return fmt.Errorf("mdc: %v: %w", op, err)
	}
	out.Layout = append(out.Layout[:0], p.Layout...)
	out.Symlink = append(out.Symlink[:0], p.Symlink...)
	out.Handle, out.Created = p.Handle, p.Created
	out.HasParent = p.Parent != nil
	return wire.Attr(p.Parent, &out.Parent)
}

func caller(c *Caller) *wirepb.Caller {
	p := wirepb.CallerFromVTPool()
	wire.PutCaller(p, &c.Cred)
	p.Pid = c.PID
	return p
}
