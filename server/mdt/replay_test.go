package mdt

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/rpc/rpctest"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// kept is a request that was answered, as its client keeps it.
type kept struct {
	wirepb.ReplayRequest
	refused error
}

// keeper keeps all requests that were answered with a transno, and can replay them.
type keeper struct {
	t     testing.TB
	c     *cluster
	uuid  [16]byte
	p     *rpctest.Peer
	slots chan uint32

	mu  sync.Mutex
	xid wire.XID // guarded by mu
	log []*kept  // by transno, once sorted; guarded by mu
	// opens are what it hands back.
	opens []*wirepb.Reopen
}

// keeper makes a client that keeps what was answered.
func (c *cluster) keeper() *client {
	n := clientNumber.Add(1)
	k := &keeper{t: c.t, c: c, uuid: [16]byte{byte(n >> 8), byte(n), 9}, slots: make(chan uint32, 16)}
	for i := range cap(k.slots) {
		k.slots <- uint32(i + 1)
	}
	cl := &client{t: c.t, c: c, uuid: k.uuid, keeps: k}
	k.connect()
	c.t.Cleanup(func() { k.p.Close() })
	return cl
}

func (k *keeper) connect() *wirepb.ConnectReply {
	k.t.Helper()
	if k.p != nil {
		k.p.Close()
	}
	var err error
	if k.p, err = rpctest.Dial(k.t.Context(), k.c.net, "mdt", &wirepb.ConnectRequest{
		Fsname: []byte(testFS), Target: []byte(testMDT), Uuid: k.uuid[:], Kind: rpc.KindClient, Peer: fmt.Appendf(nil, "keeper %x", k.uuid[:2]),
	}); err != nil {
		k.t.Fatal(err)
	}
	return k.p.Connected()
}

func (k *keeper) send(r *rpc.Request) error {
	h := wire.Header{Op: r.Op}
	if r.Op.Modifies() {
		h.Slot = <-k.slots
		defer func() { k.slots <- h.Slot }()
	}
	k.mu.Lock()
	k.xid++
	h.XID = k.xid + 1<<32
	k.mu.Unlock()
	a := <-k.p.Send(h, r.Body)
	if a.Err != nil {
		return a.Err
	}
	r.N, r.Transno = copy(r.Into, a.Bulk), a.Header.Transno
	if r.Transno != 0 {
		e := &kept{}
		e.Op, e.Xid, e.Slot, e.Transno, e.Reply = uint32(r.Op), uint64(h.XID), h.Slot, uint64(r.Transno), a.Body
		if r.Body != nil {
			e.Request = make([]byte, r.Body.SizeVT())
			_, _ = r.Body.MarshalToSizedBufferVT(e.Request)
		}
		k.mu.Lock()
		k.log = append(k.log, e)
		k.mu.Unlock()
	}
	if r.Reply == nil {
		return nil
	}
	return r.Reply.UnmarshalVT(a.Body)
}

// replay connects and replays what is not on disk, some at a time.
func (k *keeper) replay() error {
	r := k.connect()
	if !r.Recovered || !r.Recovering {
		return fmt.Errorf("recovered %v, recovering %v", r.Recovered, r.Recovering)
	}
	k.mu.Lock()
	slices.SortFunc(k.log, func(a, b *kept) int { return cmp.Compare(a.Transno, b.Transno) })
	log := k.log
	k.mu.Unlock()
	type flight struct {
		e *kept
		c <-chan rpctest.Answer
	}
	var flying []flight
	land := func(n int) error {
		for len(flying) > n {
			a := <-flying[0].c
			e := flying[0].e
			flying = flying[1:]
			switch {
			case status.Of(a.Err) == status.NotConnected || status.Of(a.Err) == status.Stopping:
				return a.Err
			case a.Err == nil && uint64(a.Header.Transno) != e.Transno:
				return fmt.Errorf("replayed as %x, was %x", a.Header.Transno, e.Transno)
			}
			e.refused = a.Err
		}
		return nil
	}
	for _, e := range log {
		if e.Transno <= r.LastCommitted {
			continue
		}
		flying = append(flying, flight{e, k.p.Send(wire.Header{Op: wire.OpReplay}, &e.ReplayRequest)})
		if err := land(7); err != nil {
			return err
		}
	}
	return land(0)
}

func (k *keeper) ends(stage uint32) error {
	a := <-k.p.Send(wire.Header{Op: wire.OpReplayDone}, &wirepb.ReplayDoneRequest{Stage: stage})
	return a.Err
}

// recover does all that a client does after a restart. It returns the states of the opens that it has handed back.
func (k *keeper) recover() (*wirepb.ReopenReply, error) {
	if err := k.replay(); err != nil {
		return nil, err
	}
	if err := k.ends(1); err != nil {
		return nil, err
	}
	r := &wirepb.ReopenReply{}
	if len(k.opens) > 0 {
		if _, err := k.p.Do(wire.Header{Op: wire.OpReopen}, &wirepb.ReopenRequest{Opens: k.opens}, r); err != nil {
			return nil, err
		}
	}
	return r, k.ends(2)
}

func (k *keeper) refused() (n int) {
	for _, e := range k.log {
		if e.refused != nil {
			n++
		}
	}
	return n
}

// recoverAll lets clients recover side by side.
func recoverAll(t *testing.T, clients ...*client) {
	t.Helper()
	var all sync.WaitGroup
	for _, cl := range clients {
		all.Go(func() {
			if _, err := cl.keeps.recover(); err != nil {
				t.Errorf("client %x: %v", cl.uuid[:2], err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// dump is all that the MDT has on its device, to compare byte by byte.
func dump(t *testing.T, dev store.Device) map[string]string {
	t.Helper()
	all := map[string]string{}
	for i, spec := range testSpecs() {
		switch spec.Name {
		case "clients", "reply_slots", "ost_last_used", "destroy_log", "object_setattr_log":
			continue
		}
		if err := dev.Scan(env.New(), store.Table(i), nil, nil, func(k, v []byte) bool {
			// Whether a change followed one that was not on disk is no more so after the restart.
			switch v = bytes.Clone(v); spec.Name {
			case "inode":
				clear(v[atOwnStamp+8 : atContentNo])
				clear(v[atContentCli:recordFixed])
			case "dirent":
				clear(v[direntAtStamp+8 : direntFixed])
			}
			all[fmt.Sprintf("%s %x", spec.Name, k)] = fmt.Sprintf("%x", v)
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func compareDumps(t *testing.T, was, is map[string]string) {
	t.Helper()
	n := 0
	for k, v := range was {
		if is[k] != v {
			t.Errorf("%s was\n  %s, is\n  %s", k, v, is[k])
			n++
		}
		if n > 5 {
			t.FailNow()
		}
	}
	for k, v := range is {
		if was[k] == "" {
			t.Errorf("%s is %s and was not", k, v)
			n++
		}
		if n > 5 {
			t.FailNow()
		}
	}
}

// windowed makes an MDT with a window, which commits when it is told.
func windowed(c *cluster) { c.window, c.ivl = time.Hour, -1 }

// changes runs random operations of every kind that changes something.
func changes(cl *client, rnd *rand.Rand, n int, dirs []fid.FID) {
	name := func() string { return string(rune('a' + rnd.IntN(6))) }
	folder := func() fid.FID { return dirs[rnd.IntN(len(dirs))] }
	big := bytes.Repeat([]byte("x"), 2000)
	plain := layout.Plain(2, 1<<20)
	template := plain.Append(nil)
	for range n {
		p, q, a, b := folder(), folder(), name(), name()
		at := func(fn func(f fid.FID)) {
			if r, err := cl.lookup(root, p, a); err == nil {
				fn(fidOf(r.Attr))
			}
		}
		switch rnd.IntN(16) {
		case 0:
			_, _ = cl.make(root, p, a, dir|0o755)
		case 1:
			_, _ = cl.make(who{uid: 1000, gid: 1000, umask: 0o022}, p, a, attr.TypeFifo|0o644)
		case 2:
			_, _ = cl.make(root, p, a, slnk|0o777, withLink("to"))
		case 3:
			_, _ = cl.make(root, p, a, reg|0o644, func(m *wirepb.CreateRequest) { m.Layout = template })
		case 4, 5: // written, and sometimes reported when it has no name any more
			r, err := cl.make(root, p, a, reg|0o6644, withOpen(oRdwr))
			if err != nil {
				break
			}
			if rnd.IntN(3) == 0 {
				_, _ = cl.unlink(root, p, a, false)
			}
			_ = cl.closeFile(fidOf(r.Attr), r.Handle, &wirepb.SizeReport{Done: true, Size: uint64(rnd.IntN(1000)), Blocks: 8, MtimeSec: 1e9, Valid: uint32(attr.ValidSize | attr.ValidMtime)})
		case 6:
			_, _ = cl.unlink(root, p, a, false)
		case 7:
			_, _ = cl.unlink(root, p, a, true)
		case 8:
			at(func(f fid.FID) { _, _ = cl.link(root, f, q, b) })
		case 9, 10:
			_, _ = cl.rename(root, p, a, q, b, 0)
		case 11:
			_, _ = cl.rename(root, p, a, q, b, []uint32{renameExchange, renameWhiteout}[rnd.IntN(2)])
		case 12:
			at(func(f fid.FID) {
				_, _ = cl.setattr(root, f, attr.ValidUID|attr.ValidGID, &wirepb.Attr{Uid: 1000, Gid: uint32(rnd.IntN(3))}, 0)
				_, _ = cl.setattr(root, f, attr.ValidMtime, &wirepb.Attr{MtimeSec: int64(rnd.IntN(100))}, 0)
				_, _ = cl.setattr(root, f, attr.ValidMode, &wirepb.Attr{Mode: 0o700 + uint32(rnd.IntN(64))}, 0)
				_, _ = cl.xattr(wire.OpSetxattr, root, f, "trusted.x", big[:rnd.IntN(len(big))], 0)
				if rnd.IntN(2) == 0 {
					_, _ = cl.xattr(wire.OpRemovexattr, root, f, "trusted.x", nil, 0)
				}
			})
		case 13:
			at(func(f fid.FID) {
				if _, err := cl.setattr(root, f, attr.ValidSize, &wirepb.Attr{Size: uint64(rnd.IntN(5000))}, 0); err != nil {
					return
				}
				_ = cl.do(wire.OpReportSizes, &wirepb.ReportSizesRequest{Reports: []*wirepb.SizeReport{{Seq: uint64(f.Seq), Oid: f.OID, Done: true,
					Size: 77, Valid: uint32(attr.ValidSize), SetattrGen: 1}}}, nil)
			})
		case 14:
			at(func(f fid.FID) {
				flags := []uint32{oWronly, oWronly | oTrunc, oRdwr}[rnd.IntN(3)]
				r, err := cl.open(root, f, flags)
				if err == nil {
					_ = cl.closeFile(f, r.Handle, &wirepb.SizeReport{Done: true, Size: uint64(rnd.IntN(1000)), Valid: uint32(attr.ValidSize), SetattrGen: r.Attr.SetattrGen})
				}
			})
		default:
			if r, err := cl.make(root, p, "", reg|0o600, func(m *wirepb.CreateRequest) { m.Tmpfile, m.Open, m.Flags = true, true, oRdwr }); err == nil {
				_, _ = cl.link(root, fidOf(r.Attr), q, b)
				_ = cl.closeFile(fidOf(r.Attr), r.Handle, &wirepb.SizeReport{Done: true, Valid: uint32(attr.ValidSize)})
			}
			at(func(f fid.FID) {
				_ = cl.do(wire.OpSetLayout, &wirepb.LayoutRequest{Caller: root.pb(), Seq: uint64(f.Seq), Oid: f.OID, Layout: template}, nil)
				_, _ = cl.xattr(wire.OpSetxattr, root, f, attr.XattrACLDefault, testACLs()[1], 0)
			})
		}
	}
}

// TestReplayOfEverything: after a crash that loses what several clients have done, their replays make every record what it was, byte by
// byte; with more crashes in the middle of the window too (DESIGN §8).
func TestReplayOfEverything(t *testing.T) {
	for _, crashes := range []int{0, 0, 1, 3} {
		seed := uint64(time.Now().UnixNano())
		t.Run(fmt.Sprintf("%d crashes, seed %d", crashes, seed), func(t *testing.T) { replayEverything(t, seed, crashes) })
	}
}

func replayEverything(t *testing.T, seed uint64, crashes int) {
	c := newCluster(t, windowed)
	clients := []*client{c.keeper(), c.keeper(), c.keeper()}
	dirs := stormTree(clients[0])
	n := 400
	if testing.Short() {
		n = 150
	}
	run := func(part uint64) {
		var all sync.WaitGroup
		for i, cl := range clients {
			all.Go(func() { changes(cl, rand.New(rand.NewPCG(seed+part, uint64(i))), n, dirs) })
		}
		all.Wait()
	}
	run(0)
	if err := c.dev.Commit(); err != nil {
		t.Fatal(err)
	}
	run(1)
	checkDevice(t, c.dev)
	was := dump(t, c.dev)
	objects := c.lastUsed()
	c.restart(true)
	for i := range crashes {
		var all sync.WaitGroup
		for _, cl := range clients {
			all.Go(func() {
				if err := cl.keeps.replay(); err != nil && status.Of(err) != status.NotConnected && status.Of(err) != status.Stopping {
					t.Error(err)
				}
			})
		}
		var finished atomic.Bool
		go func() { all.Wait(); finished.Store(true) }()
		for !finished.Load() && c.h.Target().Recovery().Replayed < 20+15*i {
			runtime.Gosched()
		}
		if i%2 == 0 {
			if err := c.dev.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		c.halt(true)
		all.Wait()
		c.start()
	}
	recoverAll(t, clients...)
	for _, cl := range clients {
		for _, e := range cl.keeps.log {
			if e.refused != nil {
				t.Errorf("%v of transno %x: %v", wire.Op(e.Op), e.Transno, e.refused)
			}
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	compareDumps(t, was, dump(t, c.dev))
	checkDevice(t, c.dev)
	if now := c.lastUsed(); !slices.Equal(now, objects) {
		t.Errorf("last used objects were %v, are %v", objects, now)
	}
	if n := c.h.stats.vbrRefused.Load(); n != 0 {
		t.Errorf("%d refused", n)
	}
	// All of it was on disk before the window's end was told: one more crash needs no replay.
	c.restart(true)
	recoverAll(t, clients...)
	if n := c.h.Target().Recovery().Replayed; n != 0 {
		t.Errorf("%d replayed after the end of recovery", n)
	}
	compareDumps(t, was, dump(t, c.dev))
	// And it goes on.
	clients[0].must(fid.Root, "after", reg|0o644)
	checkDevice(t, c.dev)
}

// lastUsed is the highest object that each OST has given.
func (c *cluster) lastUsed() (all []uint64) {
	for i := range testSpecs() {
		if testSpecs()[i].Name == "ost_last_used" {
			_ = c.dev.Scan(env.New(), store.Table(i), nil, nil, func(_, v []byte) bool {
				n := uint64(0)
				for _, b := range v {
					n = n<<8 | uint64(b)
				}
				all = append(all, n)
				return true
			})
		}
	}
	return all
}

// BenchmarkReplay is what one replay of a create costs, both ends, of eight clients that did theirs in turn.
func BenchmarkReplay(b *testing.B) {
	c := newCluster(b, windowed)
	var clients []*client
	for range 8 {
		clients = append(clients, c.keeper())
		clients[len(clients)-1].next()
	}
	c.commit()
	for i := range b.N {
		clients[i%8].must(fid.Root, fmt.Sprint(i), reg|0o644)
	}
	c.restart(true)
	b.ReportAllocs()
	b.ResetTimer()
	var all sync.WaitGroup
	for _, cl := range clients {
		all.Go(func() {
			if _, err := cl.keeps.recover(); err != nil {
				b.Error(err)
			}
		})
	}
	all.Wait()
}
