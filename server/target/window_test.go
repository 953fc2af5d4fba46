package target

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
)

// opened is a window of two clients, with a metadata target and a new client that do not count.
func opened() (w *window, a, b *Export, start time.Time) {
	start = time.Unix(1000, 0)
	a, b = &Export{Kind: rpc.KindClient, Restored: true}, &Export{Kind: rpc.KindClient, Restored: true}
	m, c := &Export{Kind: rpc.KindMDT, Restored: true}, &Export{Kind: rpc.KindClient}
	w = &window{soft: time.Second, hard: 3 * time.Second}
	w.open(start, 10, []*Export{a, m, b, c})
	return w, a, b, start
}

func TestWindowStages(t *testing.T) {
	w, a, b, at := opened()
	if w.over() || w.total != 2 {
		t.Fatalf("%+v", w)
	}
	for _, s := range []stage{stageReplay, stageLocks} {
		w.end(at, a, s)
		w.end(at, a, s)
		w.end(at, &Export{}, s)
		if w.advance(at) {
			t.Fatalf("stage %d ended while b is away", s)
		}
		w.end(at, b, s)
		if !w.advance(at) || w.at != s+1 {
			t.Fatalf("stage %d did not end with the last one", s)
		}
	}
	if !w.over() || w.late(at.Add(time.Hour)) != nil {
		t.Error("not over")
	}
	w.open(at, 10, []*Export{{Kind: rpc.KindClient}, {Kind: rpc.KindMDT, Restored: true}})
	if !w.over() {
		t.Error("open with nobody to wait for")
	}
}

// TestWindowGaps: a gap in the numbers is skipped only when nobody can have what is missing.
func TestWindowGaps(t *testing.T) {
	w, a, b, at := opened()
	add := func(x *Export, n wire.Transno, want verdict) {
		t.Helper()
		if got := w.add(at, &replay{x: x, transno: n}); got != want {
			t.Fatalf("replay of %d: %d, want %d", n, got, want)
		}
	}
	next := func(want wire.Transno) {
		t.Helper()
		r, again := w.next()
		if got := r != nil && !again; got != (want != 0) || got && r.transno != want {
			t.Fatalf("next is %+v, want %d", r, want)
		}
		if r != nil {
			if other, _ := w.next(); other != nil {
				t.Fatal("two at once")
			}
			w.ran(at, true)
		}
	}
	add(a, 9, verdictRun)
	add(a, 12, verdictQueued)
	next(0)
	add(a, 12, verdictRefused)
	add(b, 11, verdictQueued)
	next(11)
	next(12) // It follows on the last one.
	add(a, 14, verdictQueued)
	next(0) // b may have 13.
	add(b, 17, verdictQueued)
	next(14)
	w.end(at, a, stageReplay)
	next(17) // a has no more.
	add(a, 18, verdictRefused)
	if w.advance(at) {
		t.Error("b has not ended")
	}
	add(b, 20, verdictQueued)
	if drop := w.lose(at, b, 0); len(drop) != 1 {
		t.Error("a lost connection keeps its queue")
	}
	add(b, 20, verdictQueued)
	if r, _ := w.next(); r == nil || w.late(at.Add(time.Hour)) != nil {
		t.Error("somebody is late while a replay runs")
	}
	add(b, 21, verdictQueued)
	if drop := w.ran(at, false); len(drop) != 1 || w.last != 17 {
		t.Errorf("a replay that was broken off: %d dropped, last %d", len(drop), w.last)
	}
	w.leave(b)
	if !w.advance(at) || w.at != stageLocks {
		t.Error("a stage waits for who has gone")
	}
}

// TestWindowTimes: who keeps others waiting is late; who waits is not.
func TestWindowTimes(t *testing.T) {
	w, a, b, at := opened()
	w.add(at.Add(900*time.Millisecond), &replay{x: a, transno: 15})
	if w.late(at.Add(1899*time.Millisecond)) != nil {
		t.Error("late before its time")
	}
	if late := w.late(at.Add(1900 * time.Millisecond)); len(late) != 1 || late[0] != b {
		t.Errorf("late: %v", late)
	}
	// Whatever comes but replays that are carried out, hard is the end.
	for i := range 6 {
		w.lose(at, a, 0)
		w.add(at.Add(time.Duration(i)*time.Second/2), &replay{x: a, transno: 15})
	}
	if late := w.late(at.Add(3 * time.Second)); len(late) != 1 {
		t.Errorf("late after hard: %v", late)
	}
	w.end(at.Add(3*time.Second), b, stageReplay)
	for i := range wire.Transno(endless) {
		now := at.Add(time.Duration(3+i) * time.Second)
		w.lose(now, a, 0)
		w.add(now, &replay{x: a, transno: 15 + i})
		if r, _ := w.next(); r == nil {
			t.Fatal("nothing runs")
		}
		w.ran(now, true)
		if late := w.late(now.Add(999 * time.Millisecond)); late != nil {
			t.Fatalf("%v: late: %v", now, late)
		}
	}
	if late := w.late(at.Add(endless * 3 * time.Second)); len(late) != 1 || late[0] != a {
		t.Errorf("one more step each second goes on for ever: %v", late)
	}
}

// actor is a client in TestWindowAnyOrder.
type actor struct {
	x         *Export
	log       []wire.Transno
	connected bool
	answered  map[wire.Transno]bool
	dead      bool
	evicted   bool
	at        stage
	sent      int
}

// TestWindowAnyOrder: whatever clients do, each number is run once, in order, none that a client may have is passed by, who lives and
// goes on is not evicted and has everything replayed, and the window ends.
func TestWindowAnyOrder(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	for i := range rounds {
		anyOrder(t, rand.New(rand.NewPCG(seed, uint64(i))))
		if t.Failed() {
			t.Fatalf("round %d", i)
		}
	}
}

func anyOrder(t *testing.T, rnd *rand.Rand) {
	now := time.Unix(1000, 0)
	w := &window{soft: time.Second, hard: 10 * time.Second}
	var actors []*actor
	var exports []*Export
	for range 1 + rnd.IntN(4) {
		a := &actor{x: &Export{Kind: rpc.KindClient, Restored: true}, answered: map[wire.Transno]bool{}, dead: rnd.IntN(5) == 0}
		actors, exports = append(actors, a), append(exports, a.x)
	}
	point := wire.Transno(100)
	for n := range wire.Transno(rnd.IntN(40)) {
		if who := rnd.IntN(len(actors) + 1); who < len(actors) {
			actors[who].log = append(actors[who].log, point+1+n)
		}
	}
	w.open(now, point, exports)
	ran := map[wire.Transno]bool{}
	last := point
	of := func(x *Export) *actor { return actors[slices.Index(exports, x)] }
	lose := func(a *actor) {
		w.lose(now, a.x, 0)
		a.connected, a.sent = false, 0
	}
	for step := 0; !w.over(); step++ {
		if step > 20000 {
			t.Errorf("never over: %+v", w)
			return
		}
		for _, a := range actors {
			switch {
			case a.dead || a.evicted || rnd.IntN(3) == 0:
			case !a.connected:
				a.connected = true
				w.heard(now, a.x)
			case rnd.IntN(40) == 0:
				lose(a)
				a.dead = rnd.IntN(4) == 0
			case a.at == stageReplay && a.sent < len(a.log):
				r := &replay{x: a.x, transno: a.log[a.sent]}
				v := w.add(now, r)
				if v == verdictRun {
					a.answered[r.transno] = true
				}
				if v == verdictRefused || (v == verdictRun) != ran[r.transno] {
					t.Errorf("replay of %d: %d, was run: %v", r.transno, v, ran[r.transno])
					return
				}
				a.sent++
			case a.at == stageReplay && len(a.answered) == len(a.log), a.at == stageLocks && w.at > stageReplay:
				w.end(now, a.x, a.at)
				a.at++
			}
		}
		if rnd.IntN(2) == 0 {
			now = now.Add(time.Duration(rnd.IntN(50)) * time.Millisecond)
		}
		for range rnd.IntN(3) {
			mayHave := fmt.Sprint()
			for _, a := range actors {
				if m := w.members[a.x]; m != nil && m.at == stageReplay && len(m.queue) == 0 {
					mayHave += "x"
				}
			}
			r, again := w.next()
			if r == nil {
				break
			}
			a := of(r.x)
			if again {
				a.answered[r.transno] = true
				continue
			}
			if ran[r.transno] || r.transno <= last || mayHave != "" && r.transno != last+1 {
				t.Errorf("%d runs after %d with %q that may have lower ones", r.transno, last, mayHave)
				return
			}
			decided := rnd.IntN(20) > 0
			w.ran(now, decided)
			if !decided {
				lose(a)
				continue
			}
			ran[r.transno], last = true, r.transno
			if rnd.IntN(10) == 0 { // The answer is lost.
				lose(a)
			} else {
				a.answered[r.transno] = true
			}
		}
		w.advance(now)
		for _, x := range w.late(now) {
			a := of(x)
			if !a.dead && now.Before(w.begun.Add(w.hard)) {
				t.Errorf("a client that goes on is late: %+v, %+v at %v, window %+v", a, w.members[x], now, w)
				return
			}
			a.evicted = true
			w.leave(x)
		}
	}
	for _, a := range actors {
		for _, n := range a.log {
			if !a.dead && !a.evicted && !ran[n] {
				t.Errorf("%d was not replayed", n)
			}
		}
	}
}

func TestServes(t *testing.T) {
	for _, x := range []struct {
		kind uint32
		op   wire.Op
		back bool
		want bool
	}{
		{rpc.KindClient, wire.OpEnqueue, false, false}, {rpc.KindClient, wire.OpEnqueue, true, true},
		{rpc.KindClient, wire.OpCancel, false, true}, {rpc.KindClient, wire.OpConvert, false, true},
		{rpc.KindClient, wire.OpReopen, false, true}, {rpc.KindClient, wire.OpClose, false, false},
		{rpc.KindClient, wire.OpReportSizes, false, false}, {rpc.KindClient, wire.OpWrite, false, false},
		{rpc.KindClient, wire.OpRead, false, false}, {rpc.KindTool, wire.OpRead, false, false},
		{rpc.KindMDT, wire.OpPrecreate, false, true}, {rpc.KindMDT, wire.OpDestroy, false, true},
		{rpc.KindMDT, wire.OpGlimpse, false, false},
	} {
		if got := serves(x.kind, x.op, x.back); got != x.want {
			t.Errorf("%+v: served %v", x, got)
		}
	}
}
