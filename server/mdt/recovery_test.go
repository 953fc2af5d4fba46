package mdt

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

func (c *cluster) commit() {
	c.t.Helper()
	if err := c.dev.Commit(); err != nil {
		c.t.Fatal(err)
	}
}

// TestReplayWithoutTheAbsent cites DESIGN §8: a client missing at the end of the window is evicted, and replays whose stamps do not match
// are refused one by one, not wholesale. What another client did in the same folder does not matter, since a folder's times and
// entries are no dependency.
//
// With commit on share nothing is refused.
func TestReplayWithoutTheAbsent(t *testing.T) {
	t.Run("commit_on_sharing 0", func(t *testing.T) { absent(t, false) })
	t.Run("commit_on_sharing 1", func(t *testing.T) { absent(t, true) })
}

func absent(t *testing.T, shares bool) {
	c := newCluster(t, windowed, func(c *cluster) { c.shares = shares })
	a, b := c.keeper(), c.keeper()
	shared := a.must(fid.Root, "shared", dir|0o777)
	old := a.must(shared, "old", reg|0o644)
	b.next()
	c.commit()
	made := a.must(shared, "made", dir|0o777)
	b.must(shared, "own", reg|0o644) // Beside what a does.
	b.must(made, "in", reg|0o644)    // In what a has made.
	if _, err := a.setattr(root, old, attr.ValidMode, &wirepb.Attr{Mode: 0o600}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.link(root, old, fid.Root, "linked"); err != nil { // On an inode that a has changed.
		t.Fatal(err)
	}
	if _, err := b.rename(root, shared, "own", fid.Root, "kept", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := a.unlink(root, shared, "made", true); status.Of(err) != status.NotEmpty {
		t.Fatal(err)
	}
	if _, err := a.make(root, shared, "name", reg|0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := b.unlink(root, shared, "name", false); err != nil { // What a has made.
		t.Fatal(err)
	}
	b.must(shared, "name", reg|0o600) // In its place.
	c.window = 200 * time.Millisecond
	a.keeps.p.Close()
	c.restart(true)
	if _, err := b.keeps.recover(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range b.keeps.log {
		if e.refused != nil {
			got = append(got, wire.Op(e.Op).String())
			wantKind(t, "the refusal", e.refused, status.Stale)
		}
	}
	want, lost := []string{"create", "link", "unlink"}, status.NotExist
	if shares {
		want, lost = nil, status.OK
	}
	if !slices.Equal(got, want) {
		t.Errorf("refused %v, want %v", got, want)
	}
	if n := c.h.stats.vbrRefused.Load(); int(n) != len(want) {
		t.Errorf("%d counted", n)
	}
	for name, want := range map[string]status.Kind{"kept": status.OK, "linked": lost} {
		_, err := b.lookup(root, fid.Root, name)
		wantKind(t, name, err, want)
	}
	for name, want := range map[string]status.Kind{"old": status.OK, "own": status.NotExist, "made": lost, "name": status.OK} {
		_, err := b.lookup(root, shared, name)
		wantKind(t, name, err, want)
	}
	checkDevice(t, c.dev)
	if r := a.keeps.connect(); r.Recovered {
		t.Error("the absent client was not evicted")
	}
}

// TestReopen cites DESIGN §4, "Open files": handles are replayed after a restart, of what has no name too; what nobody hands back ends
// with recovery.
func TestReopen(t *testing.T) {
	for _, committed := range []bool{false, true} {
		t.Run(fmt.Sprintf("committed %v", committed), func(t *testing.T) { reopens(t, committed) })
	}
}

func reopens(t *testing.T, committed bool) {
	c := newCluster(t, windowed)
	a, b := c.keeper(), c.keeper()
	made := func(cl *client, name string, flags uint32) *wirepb.EntryReply {
		r, err := cl.make(root, fid.Root, name, reg|0o644, withOpen(flags))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a.next()
	b.next()
	c.commit()
	gone, dropped, named, writes := made(a, "gone", oRdwr), made(a, "dropped", 0), made(a, "named", 0), made(a, "writes", oWronly)
	for _, name := range []string{"gone", "dropped"} {
		if _, err := b.unlink(root, fid.Root, name, false); err != nil {
			t.Fatal(err)
		}
	}
	cut := b.must(fid.Root, "cut", reg|0o644)
	ro, err := b.setattr(root, cut, attr.ValidSize, &wirepb.Attr{Size: 10}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if committed {
		c.commit()
	}
	open := func(r *wirepb.EntryReply, flags uint32) *wirepb.Reopen {
		return &wirepb.Reopen{Seq: r.Attr.Seq, Oid: r.Attr.Oid, Handle: r.Handle, Flags: flags, Writer: flags != 0}
	}
	a.keeps.opens = []*wirepb.Reopen{open(gone, oRdwr), open(named, 0), open(writes, oWronly), {Seq: 99, Oid: 9, Handle: 1 << 40},
		{Seq: uint64(fid.Root.Seq), Oid: fid.Root.OID, Handle: 1 << 41}, open(gone, oRdwr), open(named, 0)}
	a.keeps.opens[6].Handle = gone.Handle
	b.keeps.opens = []*wirepb.Reopen{{Seq: uint64(cut.Seq), Oid: cut.OID, Writer: true, SetattrGen: ro.Attr.SetattrGen}}
	c.restart(true)
	var all sync.WaitGroup
	all.Go(func() {
		if _, err := b.keeps.recover(); err != nil {
			t.Error(err)
		}
	})
	r, err := a.keeps.recover()
	all.Wait()
	ok, stale, bad := uint32(status.OK), uint32(status.Stale), uint32(status.BadHandle)
	if err != nil || !slices.Equal(r.Status, []uint32{ok, ok, ok, stale, ok, ok, bad}) {
		t.Fatalf("%v %v", r, err)
	}
	checkDevice(t, c.dev)
	if _, err := a.getattr(fidOf(dropped.Attr)); status.Of(err) != status.Stale {
		t.Errorf("an orphan that nobody has open: %v", err)
	}
	if r, err := a.getattr(fidOf(gone.Attr)); err != nil || r.Attr.Nlink != 0 {
		t.Fatalf("an orphan that is open: %v", err)
	}
	if n := c.h.stats.orphans.Load(); n != 1 {
		t.Errorf("%d orphans", n)
	}
	if n := c.h.stats.opens.Load(); n != 4 {
		t.Errorf("%d opens", n)
	}
	// A handle is good for what it was good for.
	if _, err := a.setattr(who{uid: 77}, fidOf(gone.Attr), attr.ValidSize|attr.ValidOpenHandle, &wirepb.Attr{Size: 3}, gone.Handle); err != nil {
		t.Errorf("truncate by an open that was handed back: %v", err)
	}
	if err := a.closeFile(fidOf(gone.Attr), gone.Handle, &wirepb.SizeReport{Done: true, SetattrGen: 1, Valid: uint32(attr.ValidSize), Size: 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.getattr(fidOf(gone.Attr)); status.Of(err) != status.Stale {
		t.Errorf("an orphan after its last close: %v", err)
	}
	// Others may have written the file before the restart: one report is not the whole truth.
	if err := a.closeFile(fidOf(writes.Attr), writes.Handle, &wirepb.SizeReport{Done: true, Valid: uint32(attr.ValidSize), Size: 5}); err != nil {
		t.Fatal(err)
	}
	if r, err := a.getattr(fidOf(writes.Attr)); err != nil || r.Attr.SizeValid || r.Attr.Size != 5 {
		t.Errorf("after the report: %v %v", r.Attr, err)
	}
	if mine, _ := c.h.opens.writers(cut, exportOf(c, b).State.(*export)); !mine {
		t.Error("who cut a file and has not reported is no writer any more")
	}
	// New handles are new.
	if r, err := a.open(root, fidOf(named.Attr), 0); err != nil || r.Handle == named.Handle {
		t.Errorf("%v %v", r.Handle, err)
	}
	checkDevice(t, c.dev)
}

// TestFlocksComeBack: application locks are handed back before anybody else may ask.
func TestFlocksComeBack(t *testing.T) {
	c := newCluster(t, windowed)
	a, b := c.keeper(), c.keeper()
	f := a.must(fid.Root, "f", reg|0o644)
	if _, err := a.enqueue(flockOf(f, 1, 0)); err != nil {
		t.Fatal(err)
	}
	c.commit()
	c.restart(true)
	b.keeps.connect()
	got := make(chan error, 1)
	go func() { _, err := b.enqueue(flockOf(f, 2, ldlm.NoWait)); got <- err }()
	for _, cl := range []*client{a, b} {
		if cl == a {
			if err := a.keeps.replay(); err != nil {
				t.Fatal(err)
			}
		}
	}
	bEnds := make(chan error, 1)
	go func() { bEnds <- b.keeps.ends(1) }()
	if err := a.keeps.ends(1); err != nil {
		t.Fatal(err)
	}
	if err := <-bEnds; err != nil {
		t.Fatal(err)
	}
	if _, err := a.enqueue(flockOf(f, 1, ldlm.Replay)); err != nil {
		t.Fatalf("handing back: %v", err)
	}
	if _, err := b.enqueue(flockOf(f, 2, ldlm.Replay)); err == nil {
		t.Error("a lock that another one has was handed back")
	}
	go func() { bEnds <- b.keeps.ends(2) }()
	if err := a.keeps.ends(2); err != nil {
		t.Fatal(err)
	}
	if err := <-bEnds; err != nil {
		t.Fatal(err)
	}
	if err := <-got; status.Of(err) != status.Again {
		t.Errorf("another client's lock: %v", err)
	}
}

// TestCrashInFlight: a crash while clients work loses nothing that was answered, whatever was on its way.
func TestCrashInFlight(t *testing.T) {
	for round := range 6 {
		c := newCluster(t, windowed, func(c *cluster) { c.ivl = 3 * time.Millisecond })
		clients := []*client{c.keeper(), c.keeper(), c.keeper()}
		var mu sync.Mutex
		there := map[string]bool{}
		answered := 0
		enough := make(chan struct{})
		var all sync.WaitGroup
		for i, cl := range clients {
			cl.next()
			for j := range 3 {
				all.Go(func() {
					for k := 0; ; k++ {
						name := fmt.Sprintf("%d-%d-%d", i, j, k)
						m := cl.next()
						r := &wirepb.EntryReply{}
						if cl.do(wire.OpCreate, &wirepb.CreateRequest{Caller: root.pb(), ParentSeq: uint64(fid.Root.Seq), ParentOid: fid.Root.OID,
							Name: []byte(name), Seq: uint64(m.Seq), Oid: m.OID, Mode: reg | 0o644}, r) != nil {
							return
						}
						last := name
						if k%2 == 0 {
							last = name + "r"
							mu.Lock()
							there[name] = true // or the other one, if this rename is not answered
							mu.Unlock()
							if _, err := cl.rename(root, fid.Root, name, fid.Root, last, 0); err != nil {
								mu.Lock()
								delete(there, name)
								mu.Unlock()
								return
							}
						}
						mu.Lock()
						delete(there, name)
						there[last] = true
						if answered++; answered == 200*(round+1) {
							close(enough)
						}
						mu.Unlock()
					}
				})
			}
		}
		<-enough
		c.halt(true)
		all.Wait()
		c.start()
		recoverAll(t, clients...)
		for _, cl := range clients {
			if n := cl.keeps.refused(); n != 0 {
				t.Errorf("%d of client %x refused", n, cl.uuid[:2])
			}
		}
		for name := range there {
			if _, err := clients[0].lookup(root, fid.Root, name); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		checkDevice(t, c.dev)
		c.stop()
		if t.Failed() {
			return
		}
	}
}
