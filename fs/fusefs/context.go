package fusefs

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

// requestContext is a request's context, without an allocation. It ends when the kernel has interrupted the request and
// its caller is being killed, or the mount is gone.
type requestContext struct {
	cancel <-chan struct{}
	pid    uint32
	since  time.Time
	// tally gets the time of the request when it is freed; nil for none.
	tally *stats.Tally
	// ended is closed by the watcher; a context whose channel was closed is not used again.
	ended      chan struct{}
	prev, next *requestContext
}

// watchEvery is how often requests that have been running for longer than that are looked at.
const watchEvery = 200 * time.Millisecond

// watcher ends the contexts of callers that are being killed, and all when the mount is gone. Most requests end long before it looks at them.
type watcher struct {
	pool sync.Pool
	stop chan struct{}
	done chan struct{}
	// gone tells whether the kernel's side has ended, by abort or unmount: then nobody waits for an answer. nil never.
	gone func() bool

	mu sync.Mutex
	// head is a ring of the contexts in use. guarded by mu
	head requestContext
}

func (w *watcher) start() {
	w.head.prev, w.head.next = &w.head, &w.head
	w.pool.New = func() any { return &requestContext{ended: make(chan struct{})} }
	w.stop, w.done = make(chan struct{}), make(chan struct{})
	go w.run()
}

func (w *watcher) close() {
	close(w.stop)
	<-w.done
}

func (w *watcher) run() {
	defer close(w.done)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var look []suspect
	for {
		select {
		case <-w.stop:
			return
		case now := <-tick.C:
			look = w.interrupted(now, look[:0])
		}
		gone := len(look) > 0 && w.gone != nil && w.gone()
		for _, s := range look {
			// Without the lock: the context may be freed meanwhile, which end sees.
			if gone || s.pid == 0 || dying(s.pid) {
				w.end(s.c, s.pid)
			}
		}
	}
}

// suspect is an interrupted request and its caller's thread.
type suspect struct {
	c   *requestContext
	pid uint32
}

// interrupted collects the contexts that have run for a while and were interrupted.
func (w *watcher) interrupted(now time.Time, out []suspect) []suspect {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := w.head.next; c != &w.head; c = c.next {
		if now.Sub(c.since) < watchEvery {
			continue
		}
		select {
		case <-c.cancel:
			out = append(out, suspect{c, c.pid})
		default:
		}
	}
	return out
}

func (w *watcher) end(c *requestContext, pid uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.next == nil || c.pid != pid {
		return
	}
	select {
	case <-c.cancel:
	default:
		return
	}
	select {
	case <-c.ended:
	default:
		close(c.ended)
	}
}

// begin makes a request's context; free gives it back, and reads the clock for its tally.
func (w *watcher) begin(cancel <-chan struct{}, pid uint32) *requestContext {
	c := w.pool.Get().(*requestContext)
	now := time.Now()
	w.mu.Lock()
	c.cancel, c.pid, c.since = cancel, pid, now
	c.prev, c.next = w.head.prev, &w.head
	c.prev.next, c.next.prev = c, c
	w.mu.Unlock()
	return c
}

func (w *watcher) free(c *requestContext) {
	w.mu.Lock()
	c.prev.next, c.next.prev = c.next, c.prev
	c.prev, c.next, c.cancel = nil, nil, nil
	w.mu.Unlock()
	if c.tally != nil {
		c.tally.Since(c.since)
		c.tally = nil
	}
	select {
	case <-c.ended:
	default:
		w.pool.Put(c)
	}
}

// Deadline is never set.
func (c *requestContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done is closed when the caller is being killed.
func (c *requestContext) Done() <-chan struct{} { return c.ended }

// Value keeps nothing.
func (c *requestContext) Value(any) any { return nil }

// Err is context.Canceled once Done is closed.
func (c *requestContext) Err() error {
	select {
	case <-c.ended:
		return context.Canceled
	default:
		return nil
	}
}

// dying reports whether a thread is gone or has SIGKILL pending: the kernel turns every fatal signal into that.
func dying(tid uint32) bool {
	b, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/status")
	if err != nil {
		return true
	}
	const sigkill = 1 << (9 - 1)
	for _, field := range []string{"\nSigPnd:\t", "\nShdPnd:\t"} {
		if v, ok := statusField(b, field); ok {
			if n, err := strconv.ParseUint(string(v), 16, 64); err == nil && n&sigkill != 0 {
				return true
			}
		}
	}
	return false
}

func statusField(b []byte, field string) ([]byte, bool) {
	i := bytes.Index(b, []byte(field))
	if i < 0 {
		return nil, false
	}
	v := b[i+len(field):]
	if j := bytes.IndexByte(v, '\n'); j >= 0 {
		v = v[:j]
	}
	return bytes.TrimSpace(v), true
}
