package wire_test

import (
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

func modeOf(t *rapid.T, last ldlm.Mode) ldlm.Mode {
	var all []ldlm.Mode
	for m := ldlm.EX; m <= last; m <<= 1 {
		all = append(all, m)
	}
	return rapid.SampledFrom(all).Draw(t, "mode")
}

func bitsOf(t *rapid.T) ldlm.Bits {
	return ldlm.Bits(rapid.Uint16Max(uint16(ldlm.Full)).Draw(t, "bits"))
}

func u64(t *rapid.T) uint64 { return rapid.Uint64().Draw(t, "number") }

func resOf(t *rapid.T, types ...ldlm.Type) ldlm.ResID {
	return ldlm.ResID{Seq: u64(t), OID: u64(t), Hash: u64(t), Type: rapid.SampledFrom(types).Draw(t, "type")}
}

func answerOf(t *rapid.T) ldlm.Answer {
	a := ldlm.Answer{Remote: ldlm.Handle(u64(t)), Blocked: rapid.Bool().Draw(t, "blocked"),
		Desc: ldlm.Desc{Mode: modeOf(t, ldlm.TXN), Bits: bitsOf(t), Extent: extent.Extent{Start: u64(t), End: u64(t)}, GID: u64(t)}}
	if a.Blocked {
		a.Recall = ldlm.Recall{Bits: bitsOf(t), Discard: rapid.Bool().Draw(t, "discard")}
	}
	return a
}

func same(t *rapid.T, got, want any, err error) {
	t.Helper()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v\nwant %+v", got, err, want)
	}
}

// What a client asks and what a server answers survive the wire.
func TestLockRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := ldlm.Request{Res: resOf(t, ldlm.TypePlain, ldlm.TypeExtent, ldlm.TypeInodeBits), Mode: modeOf(t, ldlm.GROUP),
			Remote: ldlm.Handle(u64(t)), Extent: extent.Extent{Start: u64(t), End: u64(t)}, Bits: bitsOf(t), TryBits: bitsOf(t),
			GID: u64(t), Flags: ldlm.Flags(rapid.Uint16Max(63).Draw(t, "flags")), Cancels: []ldlm.Handle{1, 2, 1 << 63}}
		var m wirepb.EnqueueRequest
		wire.PutEnqueue(&m, &r, r.Remote)
		var r2 ldlm.Request
		err := wire.Enqueue(&m, &r2)
		same(t, r2, r, err)

		f := ldlm.FlockRequest{Res: resOf(t, ldlm.TypeFlock), Op: ldlm.FlockOp(rapid.IntRange(0, 1).Draw(t, "op")),
			Wait: rapid.Bool().Draw(t, "wait"), Remote: ldlm.Handle(u64(t))}
		f.Range.Extent, f.Range.PID = r.Extent, 7
		f.Range.Owner = ldlm.FlockOwner{Owner: u64(t), Class: ldlm.FlockClass(rapid.IntRange(0, 2).Draw(t, "class"))}
		m = wirepb.EnqueueRequest{}
		wire.PutFlock(&m, &f, f.Remote)
		var f2 ldlm.FlockRequest
		err = wire.Flock(&m, &f2)
		same(t, f2, f, err)

		a := answerOf(t)
		var em wirepb.EnqueueReply
		wire.PutEnqueueReply(&em, &a)
		var a2 ldlm.Answer
		err = wire.EnqueueReply(&em, &a2)
		same(t, a2, a, err)

		e := ldlm.Effect{Handle: a.Remote, Remote: 5, Res: r.Res, Desc: a.Desc, Cancel: bitsOf(t), Discard: true}
		var bm wirepb.BlockingAST
		wire.PutBlocking(&bm, &e)
		x, recall, by, err := wire.Blocking(&bm)
		want := wire.AST{Own: 5, Remote: a.Remote, Res: r.Res}
		same(t, []any{x, recall, by}, []any{want, ldlm.Recall{Bits: e.Cancel, Discard: true}, a.Desc}, err)

		var cm wirepb.CompletionAST
		wire.PutCompletion(&cm, &e, &a, status.Deadlock)
		x, k, err := wire.Completion(&cm, &a2)
		same(t, []any{x, k, a2}, []any{want, status.Deadlock, a}, err)

		var gm wirepb.LockGrant
		a.Desc.GID, a.Recall.Discard = 0, false
		wire.PutGrant(&gm, r.Res, 9, &a)
		id, own, err := wire.Grant(&gm, &a2)
		same(t, []any{id, own, a2}, []any{r.Res, ldlm.Handle(9), a}, err)
	})
}

func TestLVBRoundTrip(t *testing.T) {
	v := ldlm.LVB{Size: 1 << 50, Blocks: 9, Mtime: -1, Atime: 1, Ctime: 1 << 60}
	b := wire.AppendLVB([]byte("x"), &v)
	if got, err := wire.ParseLVB(b[1:]); err != nil || got != v {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := wire.ParseLVB(nil); err != nil || got != (ldlm.LVB{}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := wire.ParseLVB([]byte{0xff}); status.Of(err) != status.Protocol {
		t.Error(err)
	}
}

// What no peer may say is a protocol violation, and no panic.
func TestHostileLocks(t *testing.T) {
	good := wirepb.EnqueueRequest{ResType: 13, Mode: 4, Bits: 1}
	for name, spoil := range map[string]func(m *wirepb.EnqueueRequest){
		"type":    func(m *wirepb.EnqueueRequest) { m.ResType = 14 + 256 },
		"flock":   func(m *wirepb.EnqueueRequest) { m.ResType = 12 },
		"no mode": func(m *wirepb.EnqueueRequest) { m.Mode = 0 },
		"modes":   func(m *wirepb.EnqueueRequest) { m.Mode = 3 },
		"cos":     func(m *wirepb.EnqueueRequest) { m.Mode = uint32(ldlm.COS) },
		"wide":    func(m *wirepb.EnqueueRequest) { m.Mode = 1<<16 | 1 },
		"bits":    func(m *wirepb.EnqueueRequest) { m.TryBits = 1 << 20 },
		"flags":   func(m *wirepb.EnqueueRequest) { m.Flags = 1 << 16 },
		"cancels": func(m *wirepb.EnqueueRequest) { m.Cancels = make([]uint64, wire.CancelsMax+1) },
	} {
		m := &wirepb.EnqueueRequest{ResType: good.ResType, Mode: good.Mode, Bits: good.Bits}
		var r ldlm.Request
		if err := wire.Enqueue(m, &r); err != nil {
			t.Fatal(err)
		}
		spoil(m)
		if err := wire.Enqueue(m, &r); !errors.Is(err, status.Protocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzLocks puts any numbers through the conversions of both sides and into the engine.
func FuzzLocks(f *testing.F) {
	f.Add(uint32(13), uint32(1), uint32(2), uint32(0), uint64(0), uint64(10), []byte("seed"))
	f.Add(uint32(12), uint32(2), uint32(0), uint32(2), uint64(5), ^uint64(0), []byte{8, 1})
	f.Fuzz(func(t *testing.T, kind, mode, bits, flags uint32, start, end uint64, lvb []byte) {
		ns := ldlm.New(ldlm.Config{Shards: 1})
		var fx ldlm.Effects
		m := &wirepb.EnqueueRequest{ResSeq: uint64(fid.Root.Seq), ResType: kind, Mode: mode, Bits: bits, TryBits: flags, Flags: flags,
			Start: start, End: end, Gid: start, FlockClass: bits, FlockOwner: end}
		var r ldlm.Request
		if wire.Enqueue(m, &r) == nil {
			r.Client = 1
			ns.Enqueue(0, &r, &fx)
		}
		var fr ldlm.FlockRequest
		if wire.Flock(m, &fr) == nil {
			fr.Range.Owner.Client = 1
			ns.Flock(0, &fr, &fx)
		}
		if wire.FlockRequest(&wirepb.FlockRequest{Start: start, End: end, Class: kind % 4, Test: mode&1 == 1}, &fr) == nil {
			if fr.Op == ldlm.FlockUnlock {
				ns.Flock(0, &fr, &fx)
			} else {
				ns.TestFlock(&fr)
			}
		}
		var a ldlm.Answer
		wire.EnqueueReply(&wirepb.EnqueueReply{Mode: mode, Bits: bits, RecallBits: flags, Start: start, End: end}, &a)
		wire.Grant(&wirepb.LockGrant{ResType: kind, Mode: mode, Bits: bits, RecallBits: flags}, &a)
		wire.Blocking(&wirepb.BlockingAST{ResType: kind, Cancel: bits, ByMode: mode, ByBits: flags})
		wire.Completion(&wirepb.CompletionAST{ResType: kind, Mode: mode, Bits: bits, RecallBits: flags}, &a)
		var c ldlm.Conversion
		if wire.Conversion(&wirepb.ConvertRequest{Lock: start, Mode: mode, Bits: bits}, &c) == nil {
			ns.Convert(0, &c, &fx)
		}
		if v, err := wire.ParseLVB(lvb); err == nil {
			if again, err := wire.ParseLVB(wire.AppendLVB(nil, &v)); err != nil || again != v {
				t.Fatalf("%+v became %+v, %v", v, again, err)
			}
		}
	})
}
