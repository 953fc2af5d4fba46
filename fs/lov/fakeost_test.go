package lov_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// fakeOST is an OST in memory, reached without a network. Like a real one it runs requests in any order, and goes on
// with one whose caller gave up.
type fakeOST struct {
	t testing.TB

	mu      sync.Mutex
	objects map[fid.ObjectID]*fakeObject // guarded by mu
	rnd     *rand.Rand                   // guarded by mu
	granted int64                        // guarded by mu: promised and not given back
	calls   map[wire.Op]int              // guarded by mu

	// grantMax bounds what is promised. spins is how long requests are held up at most.
	grantMax int64
	spins    int
	// fail answers a request before it runs, nil lets it run.
	fail atomic.Pointer[func(r *rpc.Request) error]
	// away holds all requests up while it is not nil and open.
	away atomic.Pointer[chan struct{}]
	late sync.WaitGroup
}

// grain is the size in which the fake tracks holes.
const grain = 4 << 10

type fakeObject struct {
	data  []byte
	alloc map[uint64]bool
	owner [3]uint32
}

func newFakeOST(t testing.TB, seed uint64) *fakeOST {
	f := &fakeOST{
		t: t, objects: map[fid.ObjectID]*fakeObject{}, rnd: rand.New(rand.NewPCG(seed, 1)),
		calls: map[wire.Op]int{}, grantMax: 1 << 40,
	}
	t.Cleanup(f.late.Wait)
	return f
}

// Do implements osc.Import.
func (f *fakeOST) Do(ctx context.Context, r *rpc.Request) error {
	r.N = 0
	done := make(chan error, 1)
	sum := bulkSum(r.Bulk)
	// What an abandoned request would still do, it does with copies.
	op := r.Op
	body, bulk := copyOf(r)
	into := make([]byte, len(r.Into))
	reply := new(wirepb.ObjectReply)
	var n int
	f.late.Go(func() {
		f.hold(ctx)
		var err error
		if fail := f.fail.Load(); fail != nil {
			err = (*fail)(&rpc.Request{Op: op})
		}
		if err == nil {
			n, err = f.run(op, body, bulk, into, reply)
		}
		done <- err
	})
	select {
	case err := <-done:
		if bulkSum(r.Bulk) != sum {
			f.t.Error("data changed while it was being sent")
		}
		r.N = copy(r.Into, into[:n])
		if m, ok := r.Reply.(*wirepb.StatfsReply); ok {
			m.TotalBytes = reply.Size
		}
		if m, ok := r.Reply.(*wirepb.ObjectReply); ok {
			b, _ := reply.MarshalVT()
			if err := m.UnmarshalVT(b); err != nil {
				f.t.Error(err)
			}
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeOST) hold(ctx context.Context) {
	if ch := f.away.Load(); ch != nil {
		select {
		case <-*ch:
		case <-ctx.Done():
		}
	}
	f.mu.Lock()
	n := 0
	if f.spins > 0 {
		n = f.rnd.IntN(f.spins)
	}
	f.mu.Unlock()
	for range n {
		runtime.Gosched()
	}
}

func bulkSum(bulk [][]byte) (s uint32) {
	for _, b := range bulk {
		s = s*31 + wire.Sum(b)
	}
	return s
}

func copyOf(r *rpc.Request) (rpc.Message, []byte) {
	var bulk []byte
	for _, b := range r.Bulk {
		bulk = append(bulk, b...)
	}
	var m rpc.Message
	switch r.Op {
	case wire.OpStatfs:
		return nil, nil
	case wire.OpRead:
		m = new(wirepb.ReadRequest)
	case wire.OpWrite:
		m = new(wirepb.WriteRequest)
	case wire.OpPunch:
		m = new(wirepb.PunchRequest)
	case wire.OpFallocate:
		m = new(wirepb.FallocateRequest)
	case wire.OpSeek:
		m = new(wirepb.SeekRequest)
	case wire.OpGlimpse:
		m = new(wirepb.GlimpseRequest)
	case wire.OpObjectSync:
		m = new(wirepb.ObjectSyncRequest)
	}
	b := make([]byte, r.Body.SizeVT())
	if _, err := r.Body.MarshalToSizedBufferVT(b); err != nil {
		panic(err)
	}
	if err := m.UnmarshalVT(b); err != nil {
		panic(err)
	}
	return m, bulk
}

func (f *fakeOST) object(m *wirepb.Object) *fakeObject {
	id := fid.ObjectID{Group: m.Group, ID: m.Id}
	o := f.objects[id]
	if o == nil {
		o = &fakeObject{alloc: map[uint64]bool{}}
		f.objects[id] = o
	}
	return o
}

func (f *fakeOST) run(op wire.Op, body rpc.Message, bulk, into []byte, reply *wirepb.ObjectReply) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[op]++
	switch m := body.(type) {
	case *wirepb.ReadRequest:
		o := f.object(m.Object)
		if m.Offset >= uint64(len(o.data)) {
			return 0, nil
		}
		return copy(into, o.data[m.Offset:]), nil
	case *wirepb.WriteRequest:
		if m.GrantUsed != 0 && m.GrantUsed != uint64(len(bulk)) {
			return 0, status.Errorf(status.Protocol, "grant %d for %d bytes", m.GrantUsed, len(bulk))
		}
		o := f.object(m.Object)
		o.owner = [3]uint32{m.Uid, m.Gid, m.Project}
		o.write(m.Offset, bulk)
		f.granted -= int64(m.GrantUsed)
		more := min(int64(m.GrantWant), f.grantMax-f.granted)
		if more > 0 {
			f.granted += more
			reply.Grant = uint64(more)
		}
		o.tell(reply)
	case *wirepb.PunchRequest:
		o := f.object(m.Object)
		o.punch(m.Start, m.End)
		o.tell(reply)
	case *wirepb.FallocateRequest:
		o := f.object(m.Object)
		if m.Mode&1 == 0 {
			o.resize(max(uint64(len(o.data)), m.Offset+m.Length))
		}
		if m.Mode&0x12 != 0 {
			o.zero(m.Offset, min(m.Offset+m.Length, uint64(len(o.data))))
		}
		o.tell(reply)
	case *wirepb.SeekRequest:
		pos, ok := f.object(m.Object).seek(m.Offset, m.Hole)
		if !ok {
			return 0, status.NoDevice
		}
		reply.Offset = pos
	case *wirepb.GlimpseRequest:
		f.object(m.Object).tell(reply)
	case *wirepb.ObjectSyncRequest:
	case nil:
		reply.Size = 1000
	default:
		return 0, fmt.Errorf("fake: %v", op)
	}
	return 0, nil
}

func (o *fakeObject) tell(r *wirepb.ObjectReply) {
	r.Exists, r.Size, r.Blocks = true, uint64(len(o.data)), uint64(len(o.alloc))*grain/512
}

func (o *fakeObject) resize(n uint64) {
	for uint64(len(o.data)) < n {
		o.data = append(o.data, make([]byte, n-uint64(len(o.data)))...)
	}
	clear(o.data[n:])
	o.data = o.data[:n]
}

func (o *fakeObject) write(off uint64, b []byte) {
	if end := off + uint64(len(b)); end > uint64(len(o.data)) {
		o.resize(end)
	}
	copy(o.data[off:], b)
	for i := off / grain; i*grain < off+uint64(len(b)); i++ {
		o.alloc[i] = true
	}
}

func (o *fakeObject) punch(start, end uint64) {
	if end != extent.EOF {
		o.zero(start, min(end, uint64(len(o.data))))
		return
	}
	o.resize(start)
	for i := range o.alloc {
		if i*grain >= start {
			delete(o.alloc, i)
		}
	}
}

func (o *fakeObject) zero(start, end uint64) {
	if start >= end {
		return
	}
	clear(o.data[start:end])
	for i := range o.alloc {
		if i*grain >= start && (i+1)*grain <= end {
			delete(o.alloc, i)
		}
	}
}

func (o *fakeObject) seek(off uint64, hole bool) (uint64, bool) {
	if off >= uint64(len(o.data)) {
		return 0, false
	}
	for ; off < uint64(len(o.data)); off = (off/grain + 1) * grain {
		if o.alloc[off/grain] != hole {
			return off, true
		}
	}
	return uint64(len(o.data)), hole
}

func (f *fakeOST) count(op wire.Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}
