package mdc

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
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
	// Transno numbers the change, 0 for an answer that changed nothing.
	Transno wire.Transno
	// Want are the bits of a lock on the inode that the answer should bring. Set it before each call; 0 asks for none.
	Want ldlm.Bits
	// Lock is the lock that the answer brought, of mode PR, and Bits what of it was granted; 0 for none. It is pinned until
	// Settle, so that what is cached under it is dropped when it goes.
	Lock   ldlm.Handle
	Bits   ldlm.Bits
	window lockcache.Window
}

// Options of a new MDC.
type Options struct {
	Import *rpc.Import
	// Locks is the import's; nil asks for no locks.
	Locks *lockcache.Cache
	Log   *slog.Logger
	// Stats gets the parameters, below StatsPrefix; it may be nil.
	Stats       *stats.Registry
	StatsPrefix string
}

// MDC is one MDT seen from a client.
type MDC struct {
	imp   *rpc.Import
	locks *lockcache.Cache
	log   *slog.Logger

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
	opens  opens
	// answered and reported are opens' methods, bound once.
	answered, reported func(*rpc.Request)
}

// New starts an MDC over a connected import. Close stops it.
func New(o Options) *MDC {
	m := &MDC{imp: o.Import, locks: o.Locks, log: o.Log}
	m.requests.New = func() any { return new(rpc.Request) }
	m.opens.init()
	m.answered, m.reported = m.opens.answered, m.opens.reported
	m.closes.start(m)
	if o.Stats != nil {
		m.register(o.Stats, o.StatsPrefix)
	}
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

// Late closes what a request has opened, and gives back the locks that it has brought, whose caller was killed before the
// answer came. Give it to rpc.ImportOptions.OnLate.
func (m *MDC) Late(op wire.Op, body []byte) {
	switch op {
	case wire.OpLookup, wire.OpGetattr, wire.OpOpen, wire.OpCreate, wire.OpLink, wire.OpSetattr, wire.OpSetLayout:
	default:
		return
	}
	p := wirepb.EntryReplyFromVTPool()
	defer p.ReturnToVTPool()
	if err := p.UnmarshalVT(body); err != nil {
		return
	}
	for _, g := range p.Locks {
		if m.locks != nil {
			m.locks.Return(g)
		}
	}
	if p.Attr == nil || p.Handle == 0 {
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
	r := m.request(op, body, reply)
	r.Into = into
	err := m.imp.Do(ctx, r)
	n := r.N
	m.done(r)
	return n, err
}

// change runs a request that changes something, and returns the number of the change.
func (m *MDC) change(ctx context.Context, op wire.Op, body, reply rpc.Message) (wire.Transno, error) {
	r := m.request(op, body, reply)
	if op == wire.OpOpen || op == wire.OpCreate {
		r.Answered = m.answered
	}
	err := m.imp.Do(ctx, r)
	n := r.Transno
	m.done(r)
	return n, err
}

func (m *MDC) request(op wire.Op, body, reply rpc.Message) *rpc.Request {
	r := m.requests.Get().(*rpc.Request)
	r.Op, r.Body, r.Reply, r.Into, r.Answered = op, body, reply, nil, nil
	return r
}

func (m *MDC) done(r *rpc.Request) {
	r.Body, r.Reply, r.Into = nil, nil, nil
	m.requests.Put(r)
}

// want is what a request says of the lock that it would like, nil for none.
func (m *MDC) want(bits ldlm.Bits) *wirepb.LockWant {
	if bits == 0 || m.locks == nil {
		return nil
	}
	w := wirepb.LockWantFromVTPool()
	w.Mode, w.TryBits = uint32(ldlm.PR), uint32(bits)
	return w
}

// entry runs a request that is answered with an EntryReply. Settle out afterwards.
func (m *MDC) entry(ctx context.Context, op wire.Op, body rpc.Message, out *Entry) error {
	p := wirepb.EntryReplyFromVTPool()
	defer p.ReturnToVTPool()
	out.Lock, out.Bits = 0, 0
	if out.Want != 0 && m.locks != nil {
		m.locks.Expect(&out.window)
	}
	var err error
	if out.Transno, err = m.change(ctx, op, body, p); err == nil {
		err = out.take(op, p)
	}
	if out.Want != 0 && m.locks != nil {
		for _, g := range p.Locks {
			m.adopt(out, g, err)
		}
		m.locks.Done(&out.window)
	}
	return err
}

// adopt enters a lock that an answer has brought. One on another inode than the answer's is given back.
func (m *MDC) adopt(out *Entry, g *wirepb.LockGrant, err error) {
	if err != nil || out.Lock != 0 || g.ResSeq != uint64(out.Attr.FID.Seq) || ldlm.InodeRes(out.Attr.FID).OID != g.ResOid {
		m.locks.Return(g)
		return
	}
	if got, ok := m.locks.Adopt(&out.window, g, nil); ok {
		// A lock that was held already may have more bits, some of them on their way back.
		out.Lock, out.Bits = got.Handle, got.Desc.Bits&ldlm.Bits(g.Bits)
	}
}

// Settle ends the use of the lock that an answer has brought: what it covers is in the cache, or will not be.
func (m *MDC) Settle(e *Entry) {
	if e.Lock != 0 {
		m.locks.Unpin(e.Lock)
		e.Lock, e.Bits = 0, 0
	}
}

// take decodes the answer.
func (e *Entry) take(op wire.Op, p *wirepb.EntryReply) error {
	if p.Attr == nil {
		return fmt.Errorf("mdc: %v answered without attributes", op)
	}
	if err := wire.Attr(p.Attr, &e.Attr); err != nil {
		return fmt.Errorf("mdc: %v: %w", op, err)
	}
	e.Layout = append(e.Layout[:0], p.Layout...)
	e.Symlink = append(e.Symlink[:0], p.Symlink...)
	e.Handle, e.Created = p.Handle, p.Created
	e.HasParent = p.Parent != nil
	return wire.Attr(p.Parent, &e.Parent)
}

func caller(c *Caller) *wirepb.Caller {
	p := wirepb.CallerFromVTPool()
	wire.PutCaller(p, &c.Cred)
	p.Pid = c.PID
	return p
}
