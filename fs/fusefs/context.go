package fusefs

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"sync"
	"time"
)

// requestContext is a request's context without an allocation. Done is closed when the kernel interrupts the request;
// Err stays nil after that until the caller is being killed: whoever waits looks again from time to time.
type requestContext struct {
	cancel <-chan struct{}
	pid    uint32
}

var contexts = sync.Pool{New: func() any { return new(requestContext) }}

func newContext(cancel <-chan struct{}, pid uint32) *requestContext {
	c := contexts.Get().(*requestContext)
	c.cancel, c.pid = cancel, pid
	return c
}

func (c *requestContext) free() { contexts.Put(c) }

// Deadline is never set.
func (c *requestContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done is closed when the request was interrupted.
func (c *requestContext) Done() <-chan struct{} { return c.cancel }

// Value keeps nothing.
func (c *requestContext) Value(any) any { return nil }

// Err is context.Canceled once the request was interrupted by a signal that kills the caller.
func (c *requestContext) Err() error {
	select {
	case <-c.cancel:
	default:
		return nil
	}
	if c.pid == 0 || dying(c.pid) {
		return context.Canceled
	}
	return nil
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
