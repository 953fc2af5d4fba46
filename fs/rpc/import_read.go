package rpc

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/wire"
)

// Each connection of an import has a reader goroutine. To wake a caller for every reply costs a thread switch: 40 µs to
// 35 µs per call of 4 KiB over TCP, and a fifth of the system time (BenchmarkCall/processes, two processes on two busy
// cores, where a bare echo takes 38 µs). So a caller that is alone reads its own reply: the reader has stepped back after
// the last one. Polling the socket for 5 to 50 µs before sleeping was measured beside it and lost on a busy machine.

const (
	// leadLimit is how long a caller may read, and how long nobody does before the reader comes back. It bounds what a
	// cancelled caller waits for.
	leadLimit = time.Millisecond
	// servingLimit is leadLimit where the server calls too: it bounds what such a call waits for, while nobody reads.
	servingLimit = 300 * time.Microsecond
	// servingTime is how long after a call of the server the reader stays, since more may come.
	servingTime = 20 * time.Millisecond
)

// leadBulkMax is the largest room for bulk with which a caller reads for itself: what arrives within one wake-up.
const leadBulkMax = 64 << 10

type roleHolder uint8

const (
	heldByReader roleHolder = iota
	heldByNobody            // the timer is running
	heldByCaller            // the timer is running
)

// role says who reads a connection of an import.
type role struct {
	l     *link
	limit time.Duration
	// back gets one token when the reader has the role again.
	back chan struct{}

	mu     sync.Mutex
	holder roleHolder  // guarded by mu
	timer  *time.Timer // guarded by mu
	armed  bool        // the timer runs; guarded by mu
	// changes counts what happened to the role, seen is changes when the timer was last set. guarded by mu
	changes, seen uint64
	// waiting: the caller waits for a header, of which it has consumed nothing. guarded by mu
	waiting bool
	// kicked: a deadline in the past takes the caller out of that. guarded by mu
	kicked bool
}

func newRole(l *link, limit time.Duration) *role {
	return &role{l: l, limit: limit, back: make(chan struct{}, 1)}
}

// stepBack gives up the reader's role, and waits until it is back.
func (r *role) stepBack() {
	r.mu.Lock()
	r.holder = heldByNobody
	r.changedLocked()
	r.mu.Unlock()
	select {
	case <-r.back:
		return
	case <-r.l.closed:
	}
	r.mu.Lock()
	free := r.holder == heldByNobody
	if free {
		r.holder = heldByReader
	}
	r.mu.Unlock()
	if !free { // with a caller, who gives it back, or given back in this moment
		<-r.back
	}
}

// changedLocked notes that the role has another holder than the reader. The timer is not set for each change: that wakes a
// thread. So it finds what has not changed for limit to twice that.
func (r *role) changedLocked() {
	r.changes++
	if !r.armed {
		r.armLocked()
	}
}

func (r *role) armLocked() {
	r.armed, r.seen = true, r.changes
	if r.timer == nil {
		r.timer = time.AfterFunc(r.limit, r.expired)
		return
	}
	r.timer.Reset(r.limit)
}

// expired is what the timer does.
func (r *role) expired() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed = false
	switch {
	case r.holder == heldByReader:
	case r.seen != r.changes:
		r.armLocked()
	case r.holder == heldByNobody:
		r.returnLocked()
	case r.waiting:
		r.kicked = true
		r.l.nc.SetReadDeadline(time.Unix(1, 0))
	default: // a caller in the middle of a frame
		r.armLocked()
	}
}

func (r *role) returnLocked() {
	r.holder = heldByReader
	r.back <- struct{}{}
}

// summon brings the reader back, because a caller is going to wait.
func (r *role) summon() {
	r.mu.Lock()
	if r.holder == heldByNobody {
		r.returnLocked()
	}
	r.mu.Unlock()
}

// take makes a caller the holder, if nobody is.
func (r *role) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holder != heldByNobody {
		return false
	}
	r.holder = heldByCaller
	r.changedLocked()
	return true
}

// release ends the caller's time. With free nobody reads for a while, else the reader does.
func (r *role) release(free bool) {
	r.mu.Lock()
	if free {
		r.holder = heldByNobody
		r.changedLocked()
	} else {
		r.returnLocked()
	}
	r.mu.Unlock()
}

// await waits, as a caller, until a header is there. It returns false when the reader is to go on instead.
func (r *role) await() (bool, error) {
	r.mu.Lock()
	r.waiting = true
	r.mu.Unlock()
	err := r.l.fill(wire.HeaderSize)
	r.mu.Lock()
	r.waiting = false
	kicked := r.kicked
	if kicked {
		r.kicked = false
		r.l.nc.SetReadDeadline(time.Time{})
		if err == nil {
			r.changedLocked() // A header came in that moment. It may be another's, and this caller waits on.
		}
	}
	r.mu.Unlock()
	if kicked && errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	}
	return err == nil, err
}

// lead lets the caller of f, which it has just sent alone, read until its reply is there. It returns at once when another
// has the role, and early when it takes long; then the reader reads, and f.done tells.
func (i *Import) lead(l *link, f *flight) {
	if !l.role.take() {
		return
	}
	l.eager = true
	for {
		there, err := l.role.await()
		idle := false
		if there {
			idle, err = i.readFrame(l)
		}
		if err != nil {
			l.close(err) // the reader finds it closed, and ends it
		}
		if err != nil || !there {
			l.eager = false
			l.role.release(false)
			return
		}
		if len(f.done) > 0 {
			l.eager = false
			l.role.release(idle)
			return
		}
	}
}

// read is the reader of a connection.
func (i *Import) read(ls *links, l *link) {
	for !l.isClosed() { // what a caller met must end it here, wherever in a frame that was
		idle, err := i.readFrame(l)
		if err != nil {
			l.close(err)
		} else if idle && l.heard.Sub(l.called) > servingTime {
			l.role.stepBack()
		}
	}
	i.heard.Store(ls.control.lastHeard.Load())
	i.full.CompareAndSwap(ls, nil)
	ls.once.Do(func() { close(ls.ended) })
	i.table.drop(l)
	l.role.end()
}

// ponged takes what the answer to a ping tells.
func (i *Import) ponged(l *link, h *wire.Header) {
	if sent := l.pinged.Load(); sent != 0 {
		i.network.observe(l.heard, l.heard.Sub(time.Unix(0, sent)))
	}
	l.pinging.Store(false)
	if ls := i.full.Load(); ls != nil && ls.control == l {
		i.advance(h.LastCommitted)
	}
}

// end stops the timer when the reader has left. No caller leads any more: the reader had the role.
func (r *role) end() {
	r.mu.Lock()
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
}

// readFrame takes one frame. Only who has the role calls it. idle says that it was a reply and that nothing else is on its
// way or in the buffer.
func (i *Import) readFrame(l *link) (idle bool, err error) {
	h := &l.frame
	if err := l.header(h); err != nil {
		return false, err
	}
	switch {
	case h.Flags&wire.FlagCallback != 0 && h.Flags&wire.FlagReply == 0:
		l.called = l.heard
		return false, i.calls.take(l, h)
	case h.Flags&wire.FlagReply != 0 && h.Flags&wire.FlagCallback == 0:
		last, err := i.table.receive(l, h)
		if h.Op == wire.OpPing {
			i.ponged(l, h)
		}
		return last && l.buffered() == 0, err
	}
	return false, errUnasked(h)
}
