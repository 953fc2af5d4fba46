package lockcache_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// scripted is an import whose answers the test gives. Every request is noted as one line; a request whose operation is in
// hold waits until the test lets it go.
type scripted struct {
	mu      sync.Mutex
	log     []string
	next    uint64 // the next server handle
	answer  map[wire.Op]func(r *rpc.Request) error
	changed chan struct{}
}

func newScripted() *scripted {
	return &scripted{answer: map[wire.Op]func(*rpc.Request) error{}, changed: make(chan struct{}), next: 0x100}
}

func (s *scripted) Do(ctx context.Context, r *rpc.Request) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	m, cancel := r.Body.(*wirepb.CancelRequest)
	if cancel && len(m.Waiting) > 0 {
		s.log = append(s.log, fmt.Sprintf("withdraw %d", len(m.Waiting)))
	}
	if !cancel || len(m.Locks) > 0 {
		s.log = append(s.log, line(r))
	}
	f := s.answer[r.Op]
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	if f != nil {
		return f(r)
	}
	switch m := r.Body.(type) {
	case *wirepb.EnqueueRequest:
		s.grant(m, r.Reply.(*wirepb.EnqueueReply))
	case *wirepb.ConvertRequest:
		reply := r.Reply.(*wirepb.ConvertReply)
		reply.Mode, reply.Bits = uint32(ldlm.PR), m.Bits
	}
	return nil
}

// grant answers as a server without other clients.
func (s *scripted) grant(m *wirepb.EnqueueRequest, r *wirepb.EnqueueReply) {
	s.mu.Lock()
	s.next++
	r.Lock = s.next
	s.mu.Unlock()
	r.Mode, r.Bits, r.Start, r.End = m.Mode, m.Bits|m.TryBits, m.Start, m.End
}

func line(r *rpc.Request) string {
	switch m := r.Body.(type) {
	case *wirepb.EnqueueRequest:
		return fmt.Sprintf("enqueue %v cancels %x", ldlm.Mode(m.Mode), m.Cancels)
	case *wirepb.CancelRequest:
		return fmt.Sprintf("cancel %x", m.Locks)
	case *wirepb.ConvertRequest:
		return fmt.Sprintf("convert %x to %v", m.Lock, ldlm.Bits(m.Bits))
	case *wirepb.ProlongRequest:
		return fmt.Sprintf("prolong %x", m.Locks)
	}
	return r.Op.String()
}

// on sets the answer to an operation.
func (s *scripted) on(op wire.Op, f func(r *rpc.Request) error) {
	s.mu.Lock()
	s.answer[op] = f
	s.mu.Unlock()
}

// sent is what was sent, "[...]" of lines.
func (s *scripted) sent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.log...)
}

// await waits until a line has been sent n times in all.
func (s *scripted) await(t *testing.T, want string, n int) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		s.mu.Lock()
		changed, got := s.changed, 0
		for _, l := range s.log {
			if l == want {
				got++
			}
		}
		s.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("%q was sent %d times, not %d; sent: %q", want, got, n, s.sent())
		}
	}
}

// owner notes what is revoked.
type owner struct {
	mu      sync.Mutex
	revoked []lockcache.Revocation
	lost    int
	silent  int
	hold    chan struct{} // when set, Revoke waits for it
	lvb     *ldlm.LVB
	seen    chan lockcache.Revocation
}

func newOwner() *owner { return &owner{seen: make(chan lockcache.Revocation, 1<<16)} }

func (o *owner) Revoke(ctx context.Context, r *lockcache.Revocation) {
	o.mu.Lock()
	o.revoked = append(o.revoked, *r)
	hold := o.hold
	o.mu.Unlock()
	o.seen <- *r
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
		}
	}
}

func (o *owner) Glimpse(_ ldlm.ResID, _ any, v *ldlm.LVB) bool {
	if o.lvb == nil {
		return false
	}
	*v = *o.lvb
	return true
}

func (o *owner) Lost() {
	o.mu.Lock()
	o.lost++
	o.mu.Unlock()
}

func (o *owner) Silent(context.Context) {
	o.mu.Lock()
	o.silent++
	o.mu.Unlock()
}

func (o *owner) count() (revoked, lost, silent int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.revoked), o.lost, o.silent
}

// fixture is a cache over a scripted import.
type fixture struct {
	*testing.T
	*lockcache.Cache
	imp   *scripted
	owner *owner
	ctx   context.Context
}

func newFixture(t *testing.T, change func(*lockcache.Options)) *fixture {
	f := &fixture{T: t, imp: newScripted(), owner: newOwner(), ctx: t.Context()}
	o := lockcache.Options{Name: "strake-MDT0000-mdc", Import: f.imp, Owner: f.owner, Seed: 1}
	if change != nil {
		change(&o)
	}
	f.Cache = lockcache.New(o)
	f.imp.on(wire.OpPing, func(*rpc.Request) error { return nil })
	t.Cleanup(f.Close)
	return f
}

// call delivers a callback and returns the answer's error.
func (f *fixture) call(op wire.Op, m rpc.Message) (*rpc.Call, error) {
	body := make([]byte, m.SizeVT())
	if _, err := m.MarshalToSizedBufferVT(body); err != nil {
		panic(err)
	}
	c := &rpc.Call{Header: wire.Header{Op: op}, Body: body}
	err := f.Callback(env.New(), c)
	return c, err
}

func (f *fixture) acquire(r lockcache.Request) lockcache.Grant {
	f.Helper()
	g, err := f.Acquire(f.ctx, &r)
	if err != nil {
		f.Fatal(err)
	}
	return g
}

// blocking delivers a blocking AST for a lock with its own handle.
func (f *fixture) blocking(own ldlm.Handle, lock uint64, res ldlm.ResID, bits ldlm.Bits) error {
	_, err := f.call(wire.OpBlockingAST, &wirepb.BlockingAST{Own: uint64(own), Lock: lock, ResSeq: res.Seq, ResOid: res.OID,
		ResHash: res.Hash, ResType: uint32(res.Type), Cancel: uint32(bits), ByMode: uint32(ldlm.EX), ByBits: uint32(bits)})
	return err
}

func inode(n uint64) ldlm.ResID { return ldlm.InodeRes(fid.FromIno(n)) }

func object(n uint64) ldlm.ResID { return ldlm.ObjectRes(fid.ObjectID{ID: n}) }

func read(res ldlm.ResID, bits ldlm.Bits) lockcache.Request {
	return lockcache.Request{Res: res, Mode: ldlm.PR, Bits: bits}
}

func whole() extent.Extent { return extent.Extent{End: extent.EOF} }

func badHandle(err error) bool { return status.Of(err) == status.BadHandle }
