package ost_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/memdev"
)

// pair is an OST with 32 objects, its MDT and a client.
func pair(t testing.TB, o ost.Options) (*node, *peer, *peer) {
	n := newNode(t, o)
	mdt, client := n.connect(rpc.KindMDT, 1), n.connect(rpc.KindClient, 2)
	if last := must(mdt.precreate(32)); last != 32 {
		t.Fatalf("precreate gave %d", last)
	}
	return n, mdt, client
}

func TestReadWhatWasWritten(t *testing.T) {
	_, _, c := pair(t, ost.Options{})
	data := bytes.Repeat([]byte("strake"), 1000)
	a := must(c.write(1, 4096, data))
	b := must(c.write(1, 0, []byte("x")))
	if a == 0 || b <= a {
		t.Fatalf("numbers %d, %d", a, b)
	}
	if got := must(c.read(1, 4096, 10000)); !bytes.Equal(got, data) {
		t.Fatalf("read %d bytes", len(got))
	}
	if got := must(c.read(1, 1, 10)); !bytes.Equal(got, make([]byte, 10)) {
		t.Fatalf("the hole reads %q", got)
	}
	if got := must(c.read(1, 1<<30, 10)); len(got) != 0 {
		t.Fatalf("past the end: %q", got)
	}
	g := must(c.glimpse(1))
	if !g.Exists || g.Size != uint64(4096+len(data)) || g.Blocks == 0 || g.MtimeSec != 100 {
		t.Fatalf("glimpse %v", g)
	}
	if err := c.truncate(1, 5); err != nil {
		t.Fatal(err)
	}
	if g := must(c.glimpse(1)); g.Size != 5 || g.MtimeSec != 101 {
		t.Fatalf("after truncate %v", g)
	}
}

func TestObjectThatIsNotThere(t *testing.T) {
	_, mdt, c := pair(t, ost.Options{})
	_, err := c.write(33, 0, []byte("x"))
	wantKind(t, err, status.NotExist)
	must(mdt.destroy(5, 6))
	must(mdt.destroy(5)) // Again.
	must(c.write(5, 0, []byte("x")))
	if err := c.truncate(5, 7); err != nil {
		t.Fatal(err)
	}
	if err := c.sync(5); err != nil {
		t.Fatal(err)
	}
	if g := must(c.glimpse(5)); g.Exists || g.Size != 0 {
		t.Fatalf("glimpse of a destroyed object: %v", g)
	}
	_, err = c.read(5, 0, 10)
	wantKind(t, err, status.NotExist)
	_, err = mdt.destroy(33)
	wantKind(t, err, status.Invalid)
	_, err = c.write(0, 0, []byte("x"))
	wantKind(t, err, status.Invalid)
}

func TestLimitsAreCheckedFirst(t *testing.T) {
	_, mdt, c := pair(t, ost.Options{})
	_, err := c.write(1, ost.MaxObjectBytes, []byte("x"))
	wantKind(t, err, status.FileTooBig)
	_, err = c.write(1, ^uint64(0), []byte("x"))
	wantKind(t, err, status.FileTooBig)
	wantKind(t, c.truncate(1, ost.MaxObjectBytes+1), status.FileTooBig)
	for mode, kind := range map[uint32]error{0x8: status.NotSupport, 0x20: status.NotSupport, 0x40: status.NotSupport, 0x2: status.NotSupport, 0: status.FileTooBig} {
		_, err := c.do(wire.OpFallocate, &wirepb.FallocateRequest{Object: object(1), Mode: mode, Offset: 1 << 43, Length: 1 << 43}, nil, nil)
		if mode == 0 && errors.Is(err, status.NoSpace) {
			continue
		}
		wantKind(t, err, kind)
	}
	_, err = c.precreate(64)
	wantKind(t, err, status.Perm)
	_, err = c.destroy(1)
	wantKind(t, err, status.Perm)
	_, err = mdt.precreate(1 << 63)
	wantKind(t, err, status.Invalid)
}

func TestFallocateAndSeek(t *testing.T) {
	_, _, c := pair(t, ost.Options{})
	if _, err := c.do(wire.OpFallocate, &wirepb.FallocateRequest{Object: object(1), Length: 1 << 20}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if g := must(c.glimpse(1)); g.Size != 1<<20 {
		t.Fatalf("size %d", g.Size)
	}
	must(c.write(2, 1<<20, []byte("data")))
	seek := func(off uint64, hole bool) (uint64, error) {
		r := &wirepb.ObjectReply{}
		_, err := c.do(wire.OpSeek, &wirepb.SeekRequest{Object: object(2), Offset: off, Hole: hole}, r, nil)
		return r.Offset, err
	}
	if at := must(seek(0, false)); at != 1<<20 {
		t.Fatalf("data at %d", at)
	}
	if at := must(seek(0, true)); at != 0 {
		t.Fatalf("hole at %d", at)
	}
	_, err := seek(1<<21, false)
	wantKind(t, err, status.NoDevice)
	if _, err := c.do(wire.OpPunch, &wirepb.PunchRequest{Object: object(2), Start: 1 << 20, End: 1<<20 + 2}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := must(c.read(2, 1<<20, 4)); !bytes.Equal(got, []byte("\x00\x00ta")) {
		t.Fatalf("after the punch %q", got)
	}
}

func TestCommittedFollowsFlush(t *testing.T) {
	n, _, c := pair(t, ost.Options{})
	w := must(c.write(1, 0, []byte("x")))
	if n.ost.Committed() >= w {
		t.Fatal("committed before any flush")
	}
	if err := c.sync(0); err != nil {
		t.Fatal(err)
	}
	if n.ost.Committed() < w || c.i.LastCommitted() < w {
		t.Fatalf("committed %d, told %d, written %d", n.ost.Committed(), c.i.LastCommitted(), w)
	}
}

func TestCommitComesByItself(t *testing.T) {
	n, _, c := pair(t, ost.Options{CommitEvery: 5 * time.Millisecond})
	w := must(c.write(1, 0, []byte("x")))
	deadline := time.Now().Add(10 * time.Second)
	for n.ost.Committed() < w || n.rows(tableHot) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("committed %d of %d", n.ost.Committed(), w)
		}
		time.Sleep(time.Millisecond)
	}
}

func usage(n *node, kind byte, id uint32) (blocks, objects int64) {
	v, err := n.device.Get(env.New(), tableUsage, binary.BigEndian.AppendUint32([]byte{kind}, id))
	if err != nil {
		return 0, 0
	}
	return int64(binary.BigEndian.Uint64(v)), int64(binary.BigEndian.Uint64(v[8:]))
}

func TestUsageFollowsOwner(t *testing.T) {
	n, mdt, c := pair(t, ost.Options{})
	must(c.write(1, 0, make([]byte, 64<<10)))
	if err := c.sync(0); err != nil {
		t.Fatal(err)
	}
	blocks, objects := usage(n, 'u', 1)
	if blocks != 128 || objects != 1 {
		t.Fatalf("uid 1 is charged %d blocks, %d objects", blocks, objects)
	}
	chown := func(uid uint32, version uint64) {
		if _, err := mdt.do(wire.OpObjectSetattr, &wirepb.ObjectSetattrRequest{
			Object: object(1), Valid: uint32(attr.ValidUID), Uid: uid, Version: version,
		}, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	chown(7, 10)
	chown(8, 9) // Older: ignored.
	if b, o := usage(n, 'u', 7); b != 128 || o != 1 {
		t.Fatalf("uid 7 is charged %d, %d", b, o)
	}
	if b, o := usage(n, 'u', 1); b != 0 || o != 0 {
		t.Fatalf("uid 1 is charged %d, %d", b, o)
	}
	must(mdt.destroy(1))
	if r := n.rows(tableUsage); r != 0 {
		t.Fatalf("%d usage rows left", r)
	}
}

func TestOrphansGoAndIDsAreNotReused(t *testing.T) {
	_, mdt, c := pair(t, ost.Options{})
	must(c.write(3, 0, []byte("kept")))
	must(c.write(20, 0, []byte("orphan")))
	r := &wirepb.PrecreateReply{}
	if _, err := mdt.do(wire.OpPrecreate, &wirepb.PrecreateRequest{Orphans: true, Used: 10}, r, nil); err != nil {
		t.Fatal(err)
	}
	if r.Last != 32 {
		t.Fatalf("last %d", r.Last)
	}
	if g := must(c.glimpse(20)); g.Exists {
		t.Fatal("the orphan is there")
	}
	if got := must(c.read(3, 0, 10)); string(got) != "kept" {
		t.Fatalf("%q", got)
	}
	if last := must(mdt.precreate(40)); last != 40 {
		t.Fatalf("last %d", last)
	}
}

func TestReadOnlyClientChangesNothing(t *testing.T) {
	n, _, _ := pair(t, ost.Options{})
	s, reply, err := n.ost.Connect(t.Context(), nil, &wirepb.ConnectRequest{
		Version: wire.Version, Uuid: make([]byte, 16), Kind: rpc.KindClient, ReadOnly: true,
	})
	if err != nil || reply.Grant != 0 {
		t.Fatalf("%v grant %d", err, reply.GetGrant())
	}
	c := &rpc.Call{Header: wire.Header{Op: wire.OpPunch, Generation: reply.Generation}, Session: s}
	wantKind(t, s.Serve(env.New(), c), status.ReadOnly)
}

func TestGrantKeepsPromises(t *testing.T) {
	n, _, c := pair(t, ost.Options{GrantMax: 64 << 20})
	if c.granted == 0 {
		t.Fatal("no grant at connect")
	}
	r := &wirepb.ObjectReply{}
	ask := func(used, want uint64, data []byte) error {
		r.Reset()
		_, err := c.do(wire.OpWrite, &wirepb.WriteRequest{Object: object(1), GrantUsed: used, GrantWant: want}, r, data)
		return err
	}
	if err := ask(0, 1<<40, []byte("x")); err != nil || r.Grant+c.granted != 64<<20 {
		t.Fatalf("%v: %d and %d", err, c.granted, r.Grant)
	}
	n.device.SetFull(true)
	time.Sleep(250 * time.Millisecond) // The figure of free space may be that old.
	wantKind(t, ask(0, 1<<20, make([]byte, 4096)), status.NoSpace)
	if n.ost.State() != "full" {
		t.Fatalf("state %s", n.ost.State())
	}
	_, err := n.connect(rpc.KindMDT, 9).precreate(64)
	wantKind(t, err, status.NoSpace)
}

func TestColdObjectIsMarkedBeforeItsWrite(t *testing.T) {
	n, _, c := pair(t, ost.Options{FreshMax: 8})
	mdt := n.connect(rpc.KindMDT, 1)
	for upto := uint64(33); upto < 80; upto += 8 {
		must(mdt.precreate(upto)) // The fresh range moves past object 1.
	}
	syncs := n.device.Syncs()
	must(c.write(1, 0, []byte("x")))
	if n.rows(tableHot) != 1 || n.device.Syncs() == syncs {
		t.Fatalf("%d marks, %d syncs", n.rows(tableHot), n.device.Syncs()-syncs)
	}
	syncs = n.device.Syncs()
	must(c.write(1, 1, []byte("y")))
	if n.device.Syncs() != syncs {
		t.Fatal("a hot object was marked again")
	}
	for range 3 {
		must(c.write(2, 0, []byte("z"))) // Commits go by in which object 1 does not change.
		if err := c.sync(0); err != nil {
			t.Fatal(err)
		}
	}
	v, err := n.device.Get(env.New(), tableHot, fid.ObjectID{ID: 1}.AppendKey(nil))
	if !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("the mark is still there: %v %v", v, err)
	}
}

// TestCrashAtEverySync runs a script of changes, stops at each sync in turn, starts again and checks what was promised:
// objects of an answered precreate are there, data that a sync or last_committed covered is there, destroyed objects whose
// destroy was committed are gone, and records and usage agree with the files.
func TestCrashAtEverySync(t *testing.T) {
	for stop := 1; ; stop++ {
		n := &node{t: t, disk: memdev.NewDisk(), pipe: rpc.NewPipe(), options: ost.Options{CommitEvery: time.Hour, FreshMax: 16}}
		count, crashed := 0, false
		ctx, end := context.WithCancel(t.Context())
		n.onSync = func(memdev.Sync) error {
			if count++; count == stop {
				crashed = true
				n.device.Crash()
				end()
			}
			return nil
		}
		p := script(ctx, n)
		end()
		n.onSync = nil
		if n.ost != nil {
			n.crash()
		} else {
			n.device.Crash()
		}
		n.start()
		p.check(t, n, fmt.Sprint("stopped at sync ", stop))
		n.stop()
		if !crashed {
			if stop < 8 {
				t.Fatalf("only %d syncs", stop)
			}
			return
		}
	}
}

// promises is what the script was told.
type promises struct {
	last    uint64
	data    map[uint64][]byte // what must be there, by object
	gone    map[uint64]bool
	touched map[uint64]bool // changed since it was last promised: may be anything
}

// script runs until ctx ends, with the device.
func script(ctx context.Context, n *node) promises {
	p := promises{data: map[uint64][]byte{}, gone: map[uint64]bool{}, touched: map[uint64]bool{}}
	if n.tryStart() != nil {
		n.ost = nil
		return p
	}
	mdt, err := n.tryConnect(ctx, rpc.KindMDT, 1)
	if err != nil {
		return p
	}
	c, err := n.tryConnect(ctx, rpc.KindClient, 2)
	failed := err != nil
	ok := func(err error) bool { failed = failed || err != nil; return !failed }
	make := func(upto uint64) {
		if !failed {
			if last, err := mdt.precreate(upto); ok(err) {
				p.last = last
			}
		}
	}
	pending := map[uint64][]byte{}
	write := func(id uint64, b []byte) {
		if !failed {
			p.touched[id] = true
			if _, err := c.write(id, 0, b); ok(err) {
				pending[id] = b
			}
		}
	}
	sync := func(id uint64) {
		if failed || !ok(c.sync(id)) {
			return
		}
		for o, b := range pending {
			if id == 0 || id == o {
				p.data[o] = b
				delete(p.touched, o)
				delete(pending, o)
			}
		}
	}
	make(8)
	write(1, bytes.Repeat([]byte("a"), 5000))
	write(2, bytes.Repeat([]byte("b"), 9000))
	sync(1)
	write(1, bytes.Repeat([]byte("A"), 70000))
	sync(0)
	make(24)
	make(40) // The fresh range moves.
	for range 3 {
		write(9, []byte("tick"))
		sync(0)
	}
	write(2, bytes.Repeat([]byte("B"), 12000)) // Cold by now: needs a mark.
	write(3, []byte("three"))
	sync(2)
	if !failed {
		p.touched[1], p.touched[4] = true, true
		if _, err := mdt.destroy(1, 4); ok(err) {
			delete(p.data, 1)
			if ok(c.sync(0)) {
				p.gone[1], p.gone[4] = true, true
			}
		}
	}
	write(9, []byte("tock"))
	return p
}

func (p promises) check(t *testing.T, n *node, when string) {
	t.Helper()
	mdt, c := n.connect(rpc.KindMDT, 1), n.connect(rpc.KindClient, 2)
	last := must(mdt.precreate(0))
	if last < p.last {
		t.Fatalf("%s: last id %d, promised %d", when, last, p.last)
	}
	for id := uint64(1); id <= p.last; id++ {
		g := must(c.glimpse(id))
		switch {
		case p.gone[id] && g.Exists:
			t.Fatalf("%s: object %d was destroyed and is there", when, id)
		case !g.Exists && !p.gone[id] && !p.touched[id]:
			t.Fatalf("%s: object %d was made and is gone", when, id)
		}
	}
	for id, want := range p.data {
		if p.touched[id] {
			continue
		}
		if got := must(c.read(id, 0, 1<<20)); !bytes.Equal(got, want) {
			t.Fatalf("%s: object %d has %d bytes, %d were synced", when, id, len(got), len(want))
		}
	}
	n.agree(when)
}

// agree checks that records and usage say what the files say.
func (n *node) agree(when string) {
	n.t.Helper()
	var blocks, objects int64
	_ = n.device.Scan(env.New(), tableObjects, nil, nil, func(k, v []byte) bool {
		id, _ := fid.ObjectFromKey(k)
		recorded := int64(binary.BigEndian.Uint64(v[56:]))
		onDisk := recorded // A destroy that was not committed may have taken the file alone: it comes again.
		if h, err := n.device.Objects().Open(id); err == nil {
			_, onDisk, _ = h.Stat()
			_ = h.Close()
		}
		if recorded != onDisk {
			n.t.Errorf("%s: object %v has %d blocks in its record, %d on disk", when, id, recorded, onDisk)
		}
		if v[1] == 1 {
			blocks += recorded
			objects++
		}
		return true
	})
	for _, of := range []struct {
		kind byte
		id   uint32
	}{{'u', 1}, {'g', 2}, {'p', 3}} {
		if b, o := usage(n, of.kind, of.id); b != blocks || o != objects {
			n.t.Errorf("%s: usage %c%d is %d blocks, %d objects; records sum to %d, %d", when, of.kind, of.id, b, o, blocks, objects)
		}
	}
}

func TestCleanStopNeedsNoRescan(t *testing.T) {
	n, _, c := pair(t, ost.Options{})
	must(c.write(1, 0, []byte("x")))
	w := must(c.write(2, 0, []byte("y")))
	n.stop()
	n.start()
	if n.ost.Committed() < w {
		t.Fatalf("committed %d, written %d", n.ost.Committed(), w)
	}
	c = n.connect(rpc.KindClient, 2)
	if got := must(c.read(2, 0, 10)); string(got) != "y" {
		t.Fatalf("%q", got)
	}
	if again := must(c.write(2, 0, []byte("z"))); again <= w {
		t.Fatalf("number %d after %d", again, w)
	}
	n.agree("after a clean stop")
}

// TestRandomAgainstShadow runs random changes of a few objects from several goroutines, one object each, with commits,
// destroys and evictions from a small cache, against copies in memory.
func TestRandomAgainstShadow(t *testing.T) {
	t.Run("one open file", func(t *testing.T) { randomAgainstShadow(t, ost.Options{MaxOpen: 1}) })
	// Room for no object: what nobody uses leaves at once.
	t.Run("no memory", func(t *testing.T) { randomAgainstShadow(t, ost.Options{Memory: target.NewBudget(1)}) })
}

func randomAgainstShadow(t *testing.T, o ost.Options) {
	o.CommitEvery, o.FreshMax = time.Millisecond, 4
	n, mdt, _ := pair(t, o)
	must(mdt.precreate(48))
	var wg sync.WaitGroup
	for g := range 4 {
		c := n.connect(rpc.KindClient, byte(10+g))
		seed := rand.Uint64()
		t.Logf("client %d: seed %d", g, seed)
		wg.Go(func() { shadow(t, c, rand.New(rand.NewPCG(seed, 1)), uint64(g*8+1)) })
	}
	wg.Wait()
	if err := n.connect(rpc.KindClient, 99).sync(0); err != nil {
		t.Fatal(err)
	}
	n.agree("at the end")
}

func shadow(t *testing.T, c *peer, r *rand.Rand, first uint64) {
	const span = 100 << 10
	copies := map[uint64][]byte{}
	grow := func(b []byte, n int) []byte {
		if len(b) < n {
			b = append(b, make([]byte, n-len(b))...)
		}
		return b
	}
	for range 300 {
		id, off, size := first+r.Uint64N(8), r.IntN(span), 1+r.IntN(20000)
		switch r.IntN(6) {
		case 0, 1:
			data := bytes.Repeat([]byte{byte(r.Uint32())}, size)
			must(c.write(id, uint64(off), data))
			copies[id] = grow(copies[id], off+size)
			copy(copies[id][off:], data)
		case 2:
			if err := c.truncate(id, uint64(off)); err != nil {
				t.Error(err)
				return
			}
			copies[id] = grow(copies[id], off)[:off]
		case 3:
			if _, err := c.do(wire.OpPunch, &wirepb.PunchRequest{Object: object(id), Start: uint64(off), End: uint64(off + size)}, nil, nil); err != nil {
				t.Error(err)
				return
			}
			if off < len(copies[id]) {
				clear(copies[id][off:min(off+size, len(copies[id]))])
			}
		case 4:
			if err := c.sync(id); err != nil {
				t.Error(err)
				return
			}
		}
		got := must(c.read(id, 0, span+20000))
		if !bytes.Equal(got, copies[id]) {
			t.Errorf("object %d has %d bytes, the copy %d", id, len(got), len(copies[id]))
			return
		}
	}
}

func TestFailedFlushStopsTheTarget(t *testing.T) {
	n, _, c := pair(t, ost.Options{})
	w := must(c.write(1, 0, []byte("x")))
	n.device.Crash()
	if err := c.sync(0); err == nil {
		t.Fatal("the sync of a dead device succeeded")
	}
	if n.ost.Committed() >= w {
		t.Fatal("committed without a flush")
	}
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	n, mdt, c := pair(t, ost.Options{})
	data := make([]byte, 4096)
	must(c.write(1, 0, data))
	m := n.mount(10)
	g, remote := m.acquire(1, ldlm.PW, extent.EOF)
	defer m.cache.Unpin(g.Handle)
	ctx := context.Background()
	reply, readReply := &wirepb.ObjectReply{}, &wirepb.ReadReply{}
	under := func(lock ldlm.Handle) (read, write *rpc.Request) {
		return &rpc.Request{Op: wire.OpRead, Body: &wirepb.ReadRequest{Object: object(1), Length: 4096, Lock: uint64(lock)}, Into: make([]byte, 4096), Reply: readReply},
			&rpc.Request{Op: wire.OpWrite, Body: &wirepb.WriteRequest{Object: object(1), GrantWant: 1, Lock: uint64(lock)}, Reply: reply, Bulk: [][]byte{data}}
	}
	read, write := under(remote)
	lockless, locklessWrite := under(0) // the mount's own lock is no obstacle
	glimpse := &rpc.Request{Op: wire.OpGlimpse, Body: &wirepb.GlimpseRequest{Object: object(2)}, Reply: reply}
	for _, r := range []struct {
		name  string
		limit float64
		i     *rpc.Import
		r     *rpc.Request
	}{
		{"read", 0, m.i, read}, {"write", memdevAllocs, m.i, write},
		{"read without a lock", 0, m.i, lockless}, {"write without a lock", memdevAllocs, m.i, locklessWrite},
		{"glimpse", 0, mdt.i, glimpse},
	} {
		n := testing.AllocsPerRun(2000, func() {
			reply.Reset()
			readReply.Reset()
			if err := r.i.Do(ctx, r.r); err != nil {
				t.Fatal(err)
			}
		})
		// memdev copies what is written; the rest of both ends is what is counted here.
		t.Logf("%s: %v allocations, client and server", r.name, n)
		if n > r.limit {
			t.Errorf("%s: %v allocations", r.name, n)
		}
	}
}

// memdevAllocs is the one block that a write of memdev copies.
const memdevAllocs = 1

// TestRecordsOfOrphansGo: a crash between the end of an orphan's file and that of its record leaves the record; the next clean-up takes
// it, with what it is charged.
func TestRecordsOfOrphansGo(t *testing.T) {
	n, mdt, _ := pair(t, ost.Options{})
	r := &wirepb.PrecreateReply{}
	id := fid.ObjectID{ID: 15}
	o := ost.Object{ID: id, Owner: fid.FID{Seq: fid.SeqFirst, OID: 3}, Owned: true, UID: 7, Size: 5000, Blocks: 16}
	if err := errors.Join(ost.NewRepairer(n.device).SetObject(t.Context(), o), n.device.Objects().Remove(id)); err != nil {
		t.Fatal(err)
	}
	if _, err := mdt.do(wire.OpPrecreate, &wirepb.PrecreateRequest{Orphans: true, Used: 10}, r, nil); err != nil {
		t.Fatal(err)
	}
	state, problems, err := ost.Check(t.Context(), target.DeviceRecords{KV: n.device}, nil)
	if err != nil || state.Objects != 0 || len(problems) > 0 {
		t.Errorf("%+v %v %v", state, problems, err)
	}
	if err := n.device.Scan(env.New(), tableUsage, nil, nil, func(k, _ []byte) bool { t.Errorf("%q is charged", k); return true }); err != nil {
		t.Error(err)
	}
}
