package ost_test

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/rpc/rpctest"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/store"
)

// change is what a keeper keeps.
type change struct {
	op      wire.Op
	transno wire.Transno
	body    rpc.Message
	bulk    []byte
}

// keeper is a client that keeps what the OST has answered.
type keeper struct {
	n    *node
	uuid byte
	p    *rpctest.Peer
	log  []change
}

func (n *node) keeper(uuid byte) *keeper {
	k := &keeper{n: n, uuid: uuid}
	k.connect()
	n.t.Cleanup(func() { k.p.Close() })
	return k
}

func (k *keeper) connect() *wirepb.ConnectReply {
	k.n.t.Helper()
	if k.p != nil {
		k.p.Close()
	}
	k.p = must(rpctest.Dial(k.n.t.Context(), k.n.pipe, "oss", &wirepb.ConnectRequest{
		Fsname: []byte("strake"), Target: []byte(name), Uuid: append(make([]byte, 15), k.uuid), Kind: rpc.KindClient, Peer: []byte{'k', k.uuid},
	}))
	return k.p.Connected()
}

// do does a change and keeps it.
func (k *keeper) do(op wire.Op, body rpc.Message, bulk []byte) {
	k.n.t.Helper()
	a := <-k.p.Send(wire.Header{Op: op}, body, bulk)
	if a.Err != nil {
		k.n.t.Fatal(a.Err)
	}
	k.log = append(k.log, change{op, a.Header.Transno, body, bulk})
}

func (k *keeper) write(id, off uint64, data []byte) {
	k.n.t.Helper()
	k.do(wire.OpWrite, &wirepb.WriteRequest{Object: object(id), Offset: off, MtimeSec: 100, Uid: 1, Gid: 2, Project: 3}, data)
}

func (k *keeper) punch(id, start, end uint64) {
	k.n.t.Helper()
	k.do(wire.OpPunch, &wirepb.PunchRequest{Object: object(id), Start: start, End: end, MtimeSec: 101}, nil)
}

func (k *keeper) replay(c *change) <-chan rpctest.Answer {
	b := must(c.body.(interface{ MarshalVT() ([]byte, error) }).MarshalVT())
	return k.p.Send(wire.Header{Op: wire.OpReplay}, &wirepb.ReplayRequest{Op: uint32(c.op), Transno: uint64(c.transno), Request: b}, c.bulk)
}

func (k *keeper) ends(stage uint32) <-chan rpctest.Answer {
	return k.p.Send(wire.Header{Op: wire.OpReplayDone}, &wirepb.ReplayDoneRequest{Stage: stage})
}

func answered(t testing.TB, answers ...<-chan rpctest.Answer) {
	t.Helper()
	for _, c := range answers {
		if a := <-c; a.Err != nil {
			t.Fatal(a.Err)
		}
	}
}

// restart ends the keepers' connections, crashes the OST and starts it again.
func (n *node) restart(keepers ...*keeper) {
	n.t.Helper()
	n.crash()
	n.start()
	for _, k := range keepers {
		if r := k.connect(); !r.Recovered || !r.Recovering {
			n.t.Fatalf("after the restart: recovered %v, recovering %v", r.Recovered, r.Recovering)
		}
	}
}

// replayAll replays what the keeper has above the replay point, a few at a time, until the connection ends.
func (k *keeper) replayAll() {
	window := make(chan (<-chan rpctest.Answer), 4)
	var g sync.WaitGroup
	g.Go(func() {
		for c := range window {
			<-c
		}
	})
	for i := range k.log {
		if uint64(k.log[i].transno) > k.p.Connected().LastCommitted {
			window <- k.replay(&k.log[i])
		}
	}
	close(window)
	g.Wait()
}

// recover replays what each keeper has and ends the window.
func (n *node) recover(keepers ...*keeper) {
	n.t.Helper()
	var g sync.WaitGroup
	all := make([]<-chan rpctest.Answer, len(keepers))
	for i, k := range keepers {
		g.Go(func() {
			k.replayAll()
			all[i] = k.ends(1)
		})
	}
	g.Wait()
	answered(n.t, all...)
	for i, k := range keepers {
		all[i] = k.ends(2)
	}
	answered(n.t, all...)
}

func (n *node) bytes(id uint64) []byte {
	n.t.Helper()
	p := n.connect(rpc.KindMDT, 99)
	return must(p.read(id, 0, 1<<20))
}

func replaying(t *testing.T) (*node, *peer, *keeper, *keeper) {
	n := newNode(t, ost.Options{ReplayWindow: time.Hour})
	mds := n.connect(rpc.KindMDT, 50)
	must(mds.precreate(32))
	return n, mds, n.keeper(1), n.keeper(2)
}

// TestReplayWritesInOrder: after power cuts that lose what two clients had written in turn over each other, cut and freed, their replays
// give the same bytes, a second power cut in the middle of them included; and when the window is over they are on disk.
func TestReplayWritesInOrder(t *testing.T) {
	n, _, a, b := replaying(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	want := []byte{}
	for i := range 60 {
		k := []*keeper{a, b}[random.IntN(2)]
		off, size := random.IntN(6000), 1+random.IntN(3000)
		switch random.IntN(6) {
		case 0:
			k.punch(1, uint64(off), extent.EOF)
			want = append(want[:min(off, len(want))], make([]byte, max(0, off-len(want)))...)
		case 1:
			k.do(wire.OpFallocate, &wirepb.FallocateRequest{Object: object(1), Mode: store.FallocPunchHole | store.FallocKeepSize,
				Offset: uint64(off), Length: uint64(size)}, nil)
			clear(want[min(off, len(want)):min(off+size, len(want))])
		default:
			data := bytes.Repeat([]byte{byte(i + 1)}, size)
			k.write(1, uint64(off), data)
			want = append(want, make([]byte, max(0, off+size-len(want)))...)
			copy(want[off:], data)
		}
		if i == 20 {
			if err := n.connect(rpc.KindMDT, 51).sync(0); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.restart(a, b)
	point := a.p.Connected().LastCommitted
	var half sync.WaitGroup
	half.Go(func() { a.replayAll() })
	half.Go(func() { b.replayAll() })
	for n.ost.Target().Recovery().Replayed < 5 {
		runtime.Gosched()
	}
	n.crash()
	half.Wait()
	n.start()
	a.connect()
	b.connect()
	if got := a.p.Connected().LastCommitted; got != point {
		t.Errorf("the second start replays from %d, the first from %d", got, point)
	}
	n.recover(b, a)
	if got := n.bytes(1); !bytes.Equal(got, want) {
		t.Fatalf("after the replay: %d bytes, want %d; first difference at %d", len(got), len(want), differ(got, want))
	}
	a.log, b.log = nil, nil
	n.restart(a, b)
	n.recover(a, b)
	if got := n.bytes(1); !bytes.Equal(got, want) {
		t.Fatalf("after the window's end and another power cut: %d bytes, want %d", len(got), len(want))
	}
}

func differ(a, b []byte) int {
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	return i
}

// TestReplayDoesNotUndoWhatWasSynced: what one client has synced stays, though it replays nothing and the other one an older write.
func TestReplayDoesNotUndoWhatWasSynced(t *testing.T) {
	n, mds, a, b := replaying(t)
	a.write(1, 0, []byte("older, never synced"))
	b.write(1, 0, []byte("newer"))
	if err := mds.sync(1); err != nil {
		t.Fatal(err)
	}
	a.write(1, 19, []byte("!"))
	b.log = nil
	n.restart(a, b)
	n.recover(a, b)
	if got := n.bytes(1); string(got) != "newer, never synced!" {
		t.Errorf("the object holds %q", got)
	}
}

// TestReplayToDestroyedObject succeeds and does nothing.
func TestReplayToDestroyedObject(t *testing.T) {
	n, mds, a, b := replaying(t)
	a.write(1, 0, []byte("gone"))
	a.punch(1, 2, extent.EOF)
	a.write(2, 0, []byte("there"))
	must(mds.destroy(1))
	if err := n.device.Commit(); err != nil { // the removal is on disk, the OST's numbers are not
		t.Fatal(err)
	}
	n.restart(a, b)
	n.recover(a, b)
	if _, err := n.connect(rpc.KindMDT, 98).read(1, 0, 4); status.Of(err) != status.NotExist {
		t.Errorf("the destroyed object: %v", err)
	}
	if got := n.bytes(2); string(got) != "there" {
		t.Errorf("the other object holds %q", got)
	}
}

// TestReplayWhoseAnswerWasLost is repeated on the next connection, after another client's later write has run, and does not undo that.
func TestReplayWhoseAnswerWasLost(t *testing.T) {
	n, _, a, b := replaying(t)
	a.write(1, 0, []byte("aaaa"))
	b.write(1, 0, []byte("bbbb"))
	a.write(1, 4, []byte("AAAA"))
	n.restart(a, b)
	first := []<-chan rpctest.Answer{a.replay(&a.log[0]), b.replay(&b.log[0]), b.ends(1)}
	answered(t, first[:2]...)
	a.connect()
	answered(t, a.replay(&a.log[0]), a.replay(&a.log[1]), a.ends(1), first[2], a.ends(2), b.ends(2))
	if got := n.bytes(1); string(got) != "bbbbAAAA" {
		t.Errorf("the object holds %q", got)
	}
}
