package osc

import (
	"context"
	"sync"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
)

// loose bounds the reads and writes in flight that go under no lock of this client. Such a request may wait at the OST for who
// wants a lock of this client; what is written back before that lock goes must find a slot of the import all the same.
type loose struct {
	mu   sync.Mutex
	n    int           // guarded by mu
	most int           // guarded by mu
	wake chan struct{} // guarded by mu: closed when a place is free; nil when nobody waits
}

// looseKept is how many slots are kept for requests under locks, which wait for nobody.
const looseKept = 2

// limit sets the bound from the slots there are.
func (l *loose) limit(slots int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most = max(1, slots-looseKept)
	l.wakeLocked()
}

func (l *loose) wakeLocked() {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// enter waits for a place. It allocates only when it has to wait.
func (l *loose) enter(ctx context.Context) error {
	l.mu.Lock()
	for l.n >= l.most {
		if l.wake == nil {
			l.wake = make(chan struct{})
		}
		ch := l.wake
		l.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
		l.mu.Lock()
	}
	l.n++
	l.mu.Unlock()
	return nil
}

func (l *loose) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n--
	l.wakeLocked()
}

// doUnder is do for a read or write under the lock that the OST knows as remote; 0 is a loose one.
func (c *OSC) doUnder(ctx context.Context, remote uint64, r *rpc.Request) error {
	kind := c.figs.sizes.begin(r)
	defer c.figs.sizes.end(kind)
	if remote != 0 || c.locks == nil {
		return c.do(ctx, r)
	}
	if err := c.loose.enter(ctx); err != nil {
		return err
	}
	defer c.loose.leave()
	err := c.do(ctx, r)
	if err == nil && r.Op == wire.OpWrite {
		for _, b := range r.Bulk {
			c.figs.looseWrite.Add(int64(len(b)))
		}
	} else if err == nil {
		c.figs.looseRead.Add(int64(r.N))
	}
	return err
}
