package client

import (
	"context"
	"sync"
)

// ioLock is a mutex whose wait ends with a context: its holder may wait for an OST that is away, and who is being killed
// meanwhile must not wait with it. The zero value is free. It allocates only for who waits.
type ioLock struct {
	mu   sync.Mutex
	held bool          // guarded by mu
	wake chan struct{} // guarded by mu: closed when the lock is given back; nil when nobody waits
}

// lock takes the lock, or returns ctx's error.
func (l *ioLock) lock(ctx context.Context) error {
	for {
		l.mu.Lock()
		if !l.held {
			l.held = true
			l.mu.Unlock()
			return nil
		}
		if l.wake == nil {
			l.wake = make(chan struct{})
		}
		wake := l.wake
		l.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *ioLock) unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = false
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}
