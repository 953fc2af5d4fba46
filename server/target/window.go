package target

import (
	"time"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
)

// window is the decisions of a replay window, as a step function: which clients are waited for, until when, and what is served
// meanwhile. It knows no clock and waits for nobody.
type window struct {
	deadline time.Time
	waiting  map[*Export]bool // clients restored from disk that have not handed everything back
	total    int              // how many there were
	over     bool
}

// open begins a window in which the clients among exports are waited for until deadline. With none it is over at once.
func (w *window) open(deadline time.Time, exports []*Export) {
	*w = window{deadline: deadline, waiting: map[*Export]bool{}}
	for _, x := range exports {
		if x.Kind == rpc.KindClient && x.Restored {
			w.waiting[x] = true
		}
	}
	w.total = len(w.waiting)
	w.over = w.total == 0
}

// leave takes a client out, because it has handed everything back or has gone. It reports whether that ends the window.
func (w *window) leave(x *Export) (ended bool) {
	if w.over || !w.waiting[x] {
		return false
	}
	delete(w.waiting, x)
	w.over = len(w.waiting) == 0
	return w.over
}

// tick looks at the time. It reports whether it ends the window, and who has not come back in time.
func (w *window) tick(now time.Time) (ended bool, late []*Export) {
	if w.over || now.Before(w.deadline) {
		return false, nil
	}
	w.over = true
	for x := range w.waiting {
		late = append(late, x)
	}
	return true, late
}

// serves reports whether an operation is served during the window: what hands a lock back, or gives one up; what frees those who
// do; and what a metadata target asks that needs nobody's lock. handsBack says that it is an enqueue with Replay.
func serves(kind uint32, op wire.Op, handsBack bool) bool {
	switch {
	case op.Prior():
		return true
	case op == wire.OpEnqueue:
		return handsBack
	}
	return kind == rpc.KindMDT && op != wire.OpGlimpse
}
