package target_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/rpc/rpctest"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store/memdev"
)

// done is a request that was answered, as its client keeps it.
type done struct {
	op      wire.Op
	xid     wire.XID
	slot    uint32
	transno wire.Transno
	request []byte
	reply   []byte
	key     string
}

func (d *done) replay() *wirepb.ReplayRequest {
	return &wirepb.ReplayRequest{Op: uint32(d.op), Xid: uint64(d.xid), Slot: d.slot, Transno: uint64(d.transno), Request: d.request, Reply: d.reply}
}

// keeper is a client that keeps what was answered.
type keeper struct {
	f    *fixture
	uuid byte
	p    *rpctest.Peer
	xid  wire.XID
	log  []done
}

func (f *fixture) keeper(uuid byte) *keeper {
	k := &keeper{f: f, uuid: uuid}
	k.connect()
	f.t.Cleanup(func() { k.p.Close() })
	return k
}

func (k *keeper) connect() *wirepb.ConnectReply {
	k.f.t.Helper()
	if k.p != nil {
		k.p.Close()
	}
	var err error
	k.p, err = rpctest.Dial(k.f.t.Context(), k.f.pipe, "mds", &wirepb.ConnectRequest{
		Fsname: []byte("strake"), Target: []byte(name), Uuid: append(make([]byte, 15), k.uuid), Kind: rpc.KindClient, Peer: []byte{'k', k.uuid},
	})
	if err != nil {
		k.f.t.Fatal(err)
	}
	return k.p.Connected()
}

// create adds one to a key, in a slot, and keeps that.
func (k *keeper) create(slot uint32, key string) {
	k.f.t.Helper()
	k.xid++
	m := &wirepb.CreateRequest{Name: []byte(key)}
	a, err := k.p.Do(wire.Header{Op: wire.OpCreate, XID: k.xid + 1<<32, Slot: slot}, m, nil)
	if err != nil {
		k.f.t.Fatal(err)
	}
	b, _ := m.MarshalVT()
	k.log = append(k.log, done{wire.OpCreate, a.Header.XID, slot, a.Header.Transno, b, a.Body, key})
}

// after is what is to be replayed behind a transno.
func (k *keeper) after(n uint64) []done {
	return slices.DeleteFunc(slices.Clone(k.log), func(d done) bool { return uint64(d.transno) <= n })
}

func (k *keeper) ends(stage uint32) <-chan rpctest.Answer {
	return k.p.Send(wire.Header{Op: wire.OpReplayDone}, &wirepb.ReplayDoneRequest{Stage: stage})
}

func ok(t *testing.T, a rpctest.Answer) {
	t.Helper()
	if a.Err != nil {
		t.Fatal(a.Err)
	}
}

func waits(t *testing.T, c <-chan rpctest.Answer) {
	t.Helper()
	select {
	case a := <-c:
		t.Fatalf("answered: %v %v", &a.Header, a.Err)
	case <-time.After(20 * time.Millisecond):
	}
}

func (f *fixture) value(key string) byte {
	v, err := f.device.Get(env.New(), tableData, []byte(key))
	if err != nil {
		return 0
	}
	return v[0]
}

// TestReplayInOrder: after a crash that loses what two clients had done in turn, their replays run in the order of the transnos, however
// they come; every one is done once, keeps its number, and its slot answers it. A second crash in the middle loses nothing either.
func TestReplayInOrder(t *testing.T) {
	f := newFixture(t, target.Options{ReplayWindow: time.Hour})
	a, b := f.keeper(1), f.keeper(2)
	a.create(5, "x")
	if err := f.device.Commit(); err != nil {
		t.Fatal(err)
	}
	point := a.log[0].transno
	for i := range 20 {
		k := []*keeper{a, b}[i%2]
		k.create(uint32(1+i%4), fmt.Sprint("k", i%3))
	}
	f.crash()
	ra, rb := a.connect(), b.connect()
	if !ra.Recovered || !ra.Recovering || wire.Transno(ra.LastCommitted) != point || ra.LastCommitted != rb.LastCommitted {
		t.Fatalf("%+v, want a window at %d", ra, point)
	}
	var answers []<-chan rpctest.Answer
	for _, d := range b.after(rb.LastCommitted)[:6] {
		answers = append(answers, b.p.Send(wire.Header{Op: wire.OpReplay}, d.replay()))
	}
	waits(t, answers[0]) // a has the one before.
	for _, d := range a.after(ra.LastCommitted)[:6] {
		answers = append(answers, a.p.Send(wire.Header{Op: wire.OpReplay}, d.replay()))
	}
	for _, c := range answers[:5] { // The sixth of b is passed by nothing that a may have.
		ok(t, <-c)
	}
	if got := <-answers[6]; got.Err != nil || got.Header.Transno != a.log[1].transno || string(got.Body) != string(a.log[1].reply) || got.Header.LastCommitted != point {
		t.Fatalf("%v %q %v", &got.Header, got.Body, got.Err)
	}
	f.handler.mu.Lock()
	order := slices.Clone(f.handler.again)
	f.handler.mu.Unlock()
	if len(order) < 10 || !slices.IsSorted(order) {
		t.Fatalf("ran %v", order)
	}
	if err := f.device.Commit(); err != nil {
		t.Fatal(err)
	}
	f.crash()
	ra, _ = a.connect(), b.connect()
	if n := wire.Transno(ra.LastCommitted); n <= point || n < order[9] || n > b.log[5].transno {
		t.Fatalf("the replay point is %d", n)
	}
	for _, k := range []*keeper{a, b} {
		for _, d := range k.after(ra.LastCommitted) {
			answers = append(answers, k.p.Send(wire.Header{Op: wire.OpReplay}, d.replay()))
		}
	}
	for _, c := range answers[12:] {
		ok(t, <-c)
	}
	one := a.ends(1)
	waits(t, one)
	ok(t, <-b.ends(1))
	ok(t, <-one)
	two := a.ends(2)
	waits(t, two)
	c := f.keeper(3)
	held := c.p.Send(wire.Header{Op: wire.OpGetattr}, nil)
	waits(t, held)
	syncs := f.device.Committed()
	ok(t, <-b.ends(2))
	got := <-two
	ok(t, got)
	ok(t, <-held)
	if f.device.Committed() <= syncs || got.Header.LastCommitted < wire.Transno(f.device.Committed()) {
		t.Error("the end of the window is not on disk when it is told")
	}
	if x := f.value("x") + f.value("k0") + f.value("k1") + f.value("k2"); x != 21 {
		t.Errorf("%d changes, 21 were answered", x)
	}
	// A resent request is answered from its slot, as then.
	last := b.log[len(b.log)-1]
	if again, err := b.p.Do(wire.Header{Op: last.op, XID: last.xid, Slot: last.slot, Flags: wire.FlagResent}, &wirepb.CreateRequest{Name: []byte(last.key)}, nil); err != nil ||
		again.Header.Transno != last.transno || string(again.Body) != string(last.reply) {
		t.Errorf("resent: %v %v", &again.Header, err)
	}
	f.crash()
	if r := a.connect(); !r.Recovering || r.LastCommitted < uint64(syncs) {
		t.Errorf("after the window the point is of this start: %+v", r)
	}
}

// TestPointBeforeOthers: what others publish on the device before the target, and commit, hides nothing that is to be replayed: not even
// when the target dies before it has begun.
func TestPointBeforeOthers(t *testing.T) {
	f := newFixture(t, target.Options{ReplayWindow: time.Hour})
	a := f.keeper(1)
	if err := f.device.Commit(); err != nil {
		t.Fatal(err)
	}
	committed := f.device.Committed()
	a.create(1, "a")
	f.device.Crash()
	f.stop()
	for range 2 {
		d, err := memdev.Open(f.disk, memdev.Options{Specs: specs(), CommitInterval: -1})
		if err != nil {
			t.Fatal(err)
		}
		if err := target.KeepPoint(d, 0); err != nil {
			t.Fatal(err)
		}
		tx := d.Begin(env.New())
		tx.Put(tableData, []byte("other"), []byte{1})
		if _, err := d.Publish(tx); err != nil {
			t.Fatal(err)
		}
		if err := d.Commit(); err != nil {
			t.Fatal(err)
		}
		d.Crash()
	}
	f.start()
	if r := a.connect(); !r.Recovering || r.LastCommitted != uint64(committed) {
		t.Fatalf("%+v, want a window at %d", r, committed)
	}
	ok(t, <-a.p.Send(wire.Header{Op: wire.OpReplay}, a.log[0].replay()))
	if f.value("a") != 1 {
		t.Error("not replayed")
	}
}

// TestReplayRefused: a refusal is that one's alone, and told again to who has lost the answer.
func TestReplayRefused(t *testing.T) {
	f := newFixture(t, target.Options{ReplayWindow: time.Hour})
	a := f.keeper(1)
	if err := f.device.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"a", "!b", "c"} {
		a.create(1, k)
	}
	f.crash()
	for range 2 {
		a.connect()
		for _, d := range a.log {
			got := <-a.p.Send(wire.Header{Op: wire.OpReplay}, d.replay())
			if want := d.key[0] == '!'; want != (status.Of(got.Err) == status.Stale) || !want && got.Err != nil {
				t.Errorf("%s: %v", d.key, got.Err)
			}
		}
	}
	if f.value("a") != 1 || f.value("!b") != 0 || f.value("c") != 1 {
		t.Error("not each once")
	}
	if s := f.target.Recovery(); s.Replayed != 2 || s.Refused != 1 || s.Clients != 1 || s.Connected != 1 || s.Replaying != 1 || s.Status != "RECOVERING" {
		t.Errorf("%+v", s)
	}
	ok(t, <-a.ends(1))
	ok(t, <-a.ends(2))
	for _, c := range []struct {
		what string
		d    *wirepb.ReplayRequest
		kind status.Kind
	}{
		{"after the window", a.log[0].replay(), status.Stale},
	} {
		if got := <-a.p.Send(wire.Header{Op: wire.OpReplay}, c.d); status.Of(got.Err) != c.kind {
			t.Errorf("%s: %v", c.what, got.Err)
		}
	}
	f.crash()
	a.connect()
	for what, change := range map[string]func(*wirepb.ReplayRequest){
		"a number of this start":   func(r *wirepb.ReplayRequest) { r.Transno = 1 << 60 },
		"number 0":                 func(r *wirepb.ReplayRequest) { r.Transno = 0 },
		"no slot":                  func(r *wirepb.ReplayRequest) { r.Slot = 0 },
		"a high slot":              func(r *wirepb.ReplayRequest) { r.Slot = target.MaxSlots + 1 },
		"an unknown operation":     func(r *wirepb.ReplayRequest) { r.Op = 0xffff },
		"a huge operation":         func(r *wirepb.ReplayRequest) { r.Op = 1<<16 | uint32(wire.OpCreate) },
		"a replay of a replay":     func(r *wirepb.ReplayRequest) { r.Op = uint32(wire.OpReplay); r.Slot = 0 },
		"a reply that is no reply": func(r *wirepb.ReplayRequest) { r.Reply = []byte{0xff} },
		"a request that is none":   func(r *wirepb.ReplayRequest) { r.Request = []byte{0xff} },
	} {
		d := a.log[2]
		d.transno = f.nextReplay()
		r := d.replay()
		r.Xid += 1 << 40
		change(r)
		if got := <-a.p.Send(wire.Header{Op: wire.OpReplay}, r); status.Of(got.Err) != status.Protocol {
			t.Errorf("%s: %v", what, got.Err)
		}
	}
	// The header's flag is the target's own word.
	if _, err := a.p.Do(wire.Header{Op: wire.OpReplayDone, Flags: wire.FlagReplay}, nil, nil); err != nil {
		t.Error(err)
	}
	if _, err := a.p.Do(wire.Header{Op: wire.OpCreate, Slot: 9, XID: 1 << 50, Flags: wire.FlagReplay, Transno: 7}, &wirepb.CreateRequest{Name: []byte("!z")}, nil); err != nil {
		t.Error(err)
	}
}

// nextReplay is a number of an earlier start that was not replayed.
func (f *fixture) nextReplay() wire.Transno { return f.target.Recovery().Last + 1 }

// TestReplayWithoutTheAbsent: who does not come back is evicted when time is up, and then the queue goes on over what it had.
func TestReplayWithoutTheAbsent(t *testing.T) {
	f := newFixture(t, target.Options{ReplayWindow: 300 * time.Millisecond})
	a, b := f.keeper(1), f.keeper(2)
	if err := f.device.Commit(); err != nil {
		t.Fatal(err)
	}
	a.create(1, "a")
	b.create(1, "b")
	a.create(1, "c")
	f.crash()
	b.p.Close()
	a.connect()
	first := <-a.p.Send(wire.Header{Op: wire.OpReplay}, a.log[0].replay())
	ok(t, first)
	last := a.p.Send(wire.Header{Op: wire.OpReplay}, a.log[1].replay())
	waits(t, last)
	ok(t, <-last)
	if n := f.handler.gone.Load(); n != 1 {
		t.Errorf("%d evicted", n)
	}
	ok(t, <-a.ends(1))
	ok(t, <-a.ends(2))
	if f.value("a") != 1 || f.value("b") != 0 || f.value("c") != 1 {
		t.Error("not what was replayed")
	}
	s := f.target.Recovery()
	if s.Status != "COMPLETE" || s.Evicted != 1 || s.Completed != 1 || !s.Versions || s.Replayed != 2 {
		t.Errorf("%+v", s)
	}
	if r := b.connect(); r.Recovered {
		t.Error("an evicted client has its export")
	}
}

// flight is a replay whose answer is looked for without waiting.
type flight struct {
	c   <-chan rpctest.Answer
	had bool
}

func (f *flight) answered(t *testing.T) bool {
	if !f.had {
		select {
		case a := <-f.c:
			ok(t, a)
			f.had = true
		default:
		}
	}
	return f.had
}

func (f *flight) wait(t *testing.T) {
	if !f.had {
		ok(t, <-f.c)
	}
}

// TestReplayStorm: clients lose their connections and the target crashes at any moment of its window; in the end everything was
// done exactly once.
func TestReplayStorm(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	f := newFixture(t, target.Options{ReplayWindow: time.Hour})
	var all []*keeper
	for i := range 3 {
		all = append(all, f.keeper(byte(i+1)))
	}
	if err := f.device.Commit(); err != nil {
		t.Fatal(err)
	}
	total := map[string]int{}
	for i := range 120 {
		k := all[rnd.IntN(3)]
		key := fmt.Sprint("k", rnd.IntN(4))
		k.create(uint32(1+rnd.IntN(4)), key)
		total[key]++
		if i == 30 || i == 70 {
			if err := f.device.Commit(); err != nil {
				t.Fatal(err)
			}
		}
	}
	crashes := 0
	f.crash()
	for _, k := range all {
		k.connect()
	}
	flying := map[*keeper][]*flight{}
	next := map[*keeper]int{}
	for left := len(all); left > 0; {
		k := all[rnd.IntN(3)]
		todo := k.after(k.p.Connected().LastCommitted)
		switch at := next[k]; {
		case at < 0:
		case rnd.IntN(150) == 0 && crashes < 5:
			crashes++
			if rnd.IntN(2) == 0 {
				if err := f.device.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			f.crash()
			for _, k := range all {
				k.connect()
			}
			clear(next)
			clear(flying)
			left = len(all)
		case rnd.IntN(60) == 0:
			k.connect()
			next[k], flying[k] = 0, nil
		case at < len(todo):
			if at < 8 || flying[k][at-8].answered(t) {
				flying[k] = append(flying[k], &flight{c: k.p.Send(wire.Header{Op: wire.OpReplay}, todo[at].replay())})
				next[k]++
			}
		default:
			next[k] = -1
			left--
		}
	}
	for _, k := range all {
		for _, c := range flying[k] {
			c.wait(t)
		}
	}
	var ends []<-chan rpctest.Answer
	for s := range uint32(2) {
		for _, k := range all {
			ends = append(ends, k.ends(s+1))
		}
	}
	for _, c := range ends {
		ok(t, <-c)
	}
	for key, n := range total {
		if got := f.value(key); int(got) != n {
			t.Errorf("%s: %d changes, %d were answered", key, got, n)
		}
	}
	t.Logf("%d crashes", crashes)
}

// TestRecoveryVerbs: the parameters that end clients, and recovery itself.
func TestRecoveryVerbs(t *testing.T) {
	f := newFixture(t, target.Options{ReplayWindow: time.Hour})
	a, b := f.keeper(1), f.keeper(2)
	a.create(1, "a")
	set := func(param, value string) error {
		return f.registry.Walk("mdt."+name+"."+param, func(e stats.Entry) error { return e.Set(value) })
	}
	for _, bad := range []string{"", "00", "nid:", "nid:nowhere"} {
		if err := set("evict_client", bad); status.Of(err) != status.NotExist {
			t.Errorf("evict_client=%q: %v", bad, err)
		}
	}
	if err := set("evict_client", "00000000-0000-0000-0000-000000000002"); err != nil {
		t.Fatal(err)
	}
	if f.target.Count() != 1 {
		t.Fatalf("%d exports", f.target.Count())
	}
	if r := b.connect(); r.Recovered {
		t.Error("it is there still")
	}
	if err := f.device.Commit(); err != nil {
		t.Fatal(err)
	}
	f.crash()
	a.connect()
	text := ""
	read := func() string {
		if err := f.registry.Walk("mdt."+name+".recovery_status", func(e stats.Entry) error { text = e.Text(); return nil }); err != nil {
			t.Fatal(err)
		}
		return text
	}
	for _, want := range []string{"status: RECOVERING\n", "recovery_start: ", "time_remaining: ", "connected_clients: 1/2\n", "req_replay_clients: 2\n",
		"lock_replay_clients: 0\n", "completed_clients: 0/2\n", "evicted_clients: 0\n", "replayed_requests: 0\n", "queued_requests: 0\n",
		"next_transno: 0\n", "last_transno: ", "VBR: DISABLED\n", "IR: DISABLED"} {
		if !strings.Contains(read(), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	one := a.ends(1)
	waits(t, one) // b has not come.
	if err := set("abort_recovery", "yes"); err == nil {
		t.Error("abort_recovery takes anything")
	}
	if err := set("abort_recovery", "1"); err != nil {
		t.Fatal(err)
	}
	<-one
	two := a.ends(2) // who is back finishes
	eventually(t, "recovery has ended", func() bool { return !f.target.Recovering() })
	<-two
	if s := f.target.Recovery(); s.Evicted != 1 || s.Completed != 1 || f.target.Count() != 1 {
		t.Errorf("%+v", s)
	}
	if !strings.Contains(read(), "status: COMPLETE\n") || !strings.Contains(text, "recovery_duration: ") || !strings.Contains(text, "VBR: ENABLED") {
		t.Error(text)
	}
}

// TestEndsOfRecovery: what the target does at the end comes while nothing is served, is on disk before anybody is told, and a
// failure of the disk tells nobody anything.
func TestEndsOfRecovery(t *testing.T) {
	v := &events{}
	var f *fixture
	var fail error
	f = newFixture(t, target.Options{
		ReplayWindow: time.Hour,
		EndReplay:    func() error { v.add("end"); return nil },
		Flush:        func(context.Context) error { v.add("flush"); return fail },
		Recovered:    func() { v.add("recovered") },
	})
	if !v.has("end", "recovered") {
		t.Fatalf("without a window: %v", v.list)
	}
	a := f.keeper(1)
	if err := f.device.Commit(); err != nil {
		t.Fatal(err)
	}
	f.crash()
	a.connect()
	ok(t, <-a.ends(1))
	ok(t, <-a.ends(2))
	eventually(t, "it is told", func() bool { return v.has("end", "recovered", "end", "flush", "recovered") })
	fail = status.IO
	f.crash()
	a.connect()
	ok(t, <-a.ends(1))
	if got := <-a.ends(2); status.Of(got.Err) != status.Stopping || !f.target.Recovering() {
		t.Errorf("the flush failed: %v", got.Err)
	}
	if got := <-a.p.Send(wire.Header{Op: wire.OpGetattr}, nil); status.Of(got.Err) != status.Stopping {
		t.Errorf("new work after a flush that failed: %v", got.Err)
	}
}
