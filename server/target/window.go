package target

import (
	"slices"
	"time"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
)

// stage is how far a client has come in the window.
type stage uint8

// Stages of a client, and of the window: it is at the least stage that a client may be at.
const (
	// stageReplay: it has not connected, or replays its requests.
	stageReplay stage = iota
	// stageLocks: its requests are replayed; it hands back opens and locks.
	stageLocks
	// stageDone: it has handed everything back.
	stageDone
)

// window is the decisions of a replay window, as a step function: which clients are waited for and until when, whose replay runs next,
// and what is served meanwhile. It knows no clock and waits for nobody.
//
// Invariant: replays run in the order of their transnos, one at a time.
//
// Invariant: while a client that may have a replay of a lower number has none queued, only the number after the last one runs.
//
// Invariant: a client is late when it has done nothing for soft and nobody else's doings have given it more time: those that carry
// out a replay up to endless times hard after the stage began, others up to hard.
type window struct {
	soft, hard time.Duration
	at         stage
	members    map[*Export]*waited // clients restored from disk, until they end
	total      int                 // how many there were
	begun      time.Time           // when the present stage began
	deadline   time.Time
	last       wire.Transno // of the last replay that was run; before, the replay point
	running    *replay
}

// waited is a client that is waited for.
type waited struct {
	at       stage
	queue    []*replay // ascending by transno
	deadline time.Time // of its own
}

// replay is one request that an earlier start has answered.
type replay struct {
	x       *Export
	transno wire.Transno
	// generation is the export's when it came.
	generation uint64
	call       *rpc.Call
}

// endless bounds a stage in units of hard, however often a client makes one step more.
const endless = 10

// open begins a window in which the clients among exports are waited for. point is the newest transno that is on disk with all before
// it. With nobody to wait for it is over at once.
func (w *window) open(now time.Time, point wire.Transno, exports []*Export) {
	w.members, w.last, w.at, w.running = map[*Export]*waited{}, point, stageReplay, nil
	for _, x := range exports {
		if x.waitedFor() {
			w.members[x] = &waited{}
		}
	}
	w.total = len(w.members)
	w.enter(now, stageReplay)
	w.advance(now)
}

// waitedFor reports whether a window waits for the export: it is a client's, of an earlier start.
func (x *Export) waitedFor() bool { return x.Kind == rpc.KindClient && x.Restored }

func (w *window) over() bool { return w.at == stageDone }

func (w *window) enter(now time.Time, s stage) { w.at, w.begun, w.deadline = s, now, now.Add(w.soft) }

// advance goes to the next stage if every client has ended the present one. It reports whether it did.
func (w *window) advance(now time.Time) (moved bool) {
	for !w.over() && w.running == nil {
		for _, m := range w.members {
			if m.at <= w.at || len(m.queue) > 0 {
				return moved
			}
		}
		w.enter(now, w.at+1)
		moved = true
	}
	return moved
}

// verdict is what becomes of a replay that has come.
type verdict uint8

const (
	verdictQueued verdict = iota
	// verdictRun: it was run before, or is on disk.
	verdictRun
	// verdictRefused: it is out of order, or its client has no more to replay.
	verdictRefused
)

// add takes in a replay. A client's come in the order of their transnos.
func (w *window) add(now time.Time, r *replay) verdict {
	m := w.members[r.x]
	switch {
	case r.transno <= w.last && (w.running == nil || w.running.transno != r.transno):
		return verdictRun
	case m == nil || m.at != stageReplay || w.at != stageReplay:
		return verdictRefused
	case len(m.queue) > 0 && m.queue[len(m.queue)-1].transno >= r.transno:
		return verdictRefused
	}
	m.queue = append(m.queue, r)
	w.extend(now, r.x, 1)
	return verdictQueued
}

// heard notes that a client has connected, or lost its connection.
func (w *window) heard(now time.Time, x *Export) { w.extend(now, x, 1) }

// extend gives everybody more time because a client has done something, and that client too, up to so many times hard.
func (w *window) extend(now time.Time, x *Export, hards time.Duration) {
	d := now.Add(w.soft)
	if limit := w.begun.Add(hards * w.hard); d.After(limit) {
		d = limit
	}
	if m := w.members[x]; m != nil {
		m.deadline = later(m.deadline, d)
		w.deadline = later(w.deadline, d)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// next takes the replay that runs now out of the queue; nil if none may. The lowest one runs when nobody can have a lower one, or when
// there is none between it and the last. One whose number was run before, by whoever, comes back with again.
func (w *window) next() (r *replay, again bool) {
	if w.running != nil || w.at != stageReplay {
		return nil, false
	}
	var first *waited
	complete := true
	for _, m := range w.members {
		switch {
		case len(m.queue) == 0:
			complete = complete && m.at != stageReplay
		case first == nil || m.queue[0].transno < first.queue[0].transno:
			first = m
		}
	}
	if first == nil || !complete && first.queue[0].transno > w.last+1 {
		return nil, false
	}
	r, first.queue = first.queue[0], first.queue[1:]
	if r.transno <= w.last {
		return r, true
	}
	w.running = r
	return r, false
}

// ran ends the replay that runs. With decided it was carried out or refused for good; else its connection was lost in the middle, and
// what its client has queued behind it is dropped: it comes again.
func (w *window) ran(now time.Time, decided bool) (drop []*replay) {
	r := w.running
	w.running = nil
	if decided {
		w.last = r.transno
		w.extend(now, r.x, endless)
		return nil
	}
	return w.lose(now, r.x, r.generation)
}

// lose takes out what a client has queued under a generation: its connection is lost. It has time to come back.
func (w *window) lose(now time.Time, x *Export, generation uint64) (drop []*replay) {
	if m := w.members[x]; m != nil {
		m.queue = slices.DeleteFunc(m.queue, func(r *replay) bool {
			if r.generation > generation {
				return false
			}
			drop = append(drop, r)
			return true
		})
		w.extend(now, x, 1)
	}
	return drop
}

// end notes that a client has ended a stage.
func (w *window) end(now time.Time, x *Export, s stage) {
	if m := w.members[x]; m != nil && s >= m.at {
		m.at = min(s+1, stageDone)
		w.extend(now, x, 1)
	}
}

// leave takes a client out, because it has gone, and returns what it had queued.
func (w *window) leave(x *Export) (drop []*replay) {
	if m := w.members[x]; m != nil {
		drop = m.queue
		delete(w.members, x)
	}
	return drop
}

// late is who keeps the others waiting when time is up: who has a replay queued waits itself.
func (w *window) late(now time.Time) (late []*Export) {
	if w.over() || w.running != nil || now.Before(w.deadline) {
		return nil
	}
	all := !now.Before(w.begun.Add(endless * w.hard))
	for x, m := range w.members {
		if m.at <= w.at && (len(m.queue) == 0 && !now.Before(m.deadline) || all) {
			late = append(late, x)
		}
	}
	if late == nil {
		w.deadline = now.Add(w.soft / 8)
	}
	return late
}

// count is how many clients have come as far as a stage.
func (w *window) count(s stage) int {
	n := 0
	for _, m := range w.members {
		if m.at >= s {
			n++
		}
	}
	return n
}

// queued is how many replays wait, and the lowest of them; 0 without.
func (w *window) queued() (n int, lowest wire.Transno) {
	for _, m := range w.members {
		n += len(m.queue)
		if len(m.queue) > 0 && (lowest == 0 || m.queue[0].transno < lowest) {
			lowest = m.queue[0].transno
		}
	}
	return n, lowest
}

// serves reports whether an operation is served during the window, beside replays and what ends a stage: what hands a lock or an open
// back, or gives a lock up; what frees those who do; and what a metadata target asks that needs nobody's lock. handsBack says that it is
// an enqueue with Replay.
func serves(kind uint32, op wire.Op, handsBack bool) bool {
	switch {
	case op == wire.OpEnqueue:
		return handsBack
	case kind == rpc.KindMDT:
		return op != wire.OpGlimpse
	}
	return op.Prior() && !op.Modifies()
}
