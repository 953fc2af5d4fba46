package rpc

import (
	"context"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

// CallbacksMax is how many calls of a server one connection carries at once. The server waits for a free one; a client
// serves as many at the same time, so that the goroutine that reads never waits.
const CallbacksMax = 16

// callbacks serves the server's calls to an import.
type callbacks struct {
	i       *Import
	ctx     context.Context // ends with the import
	cancel  context.CancelFunc
	pool    *buffers
	workers sync.WaitGroup

	mu     sync.Mutex
	active int             // calls taken and not answered; guarded by mu
	idle   []chan *calling // workers that wait; guarded by mu
	free   []*calling      // guarded by mu
	closed bool            // guarded by mu
}

// calling is a call with the connection that its reply goes to.
type calling struct {
	Call
	k *callbacks
	l *link
}

func (k *callbacks) init(i *Import) {
	k.i, k.pool = i, newBuffers(0)
	k.ctx, k.cancel = context.WithCancel(context.Background())
}

// take reads a call whose header came on l and gives it to a worker. It never waits for one.
func (k *callbacks) take(l *link, h *wire.Header) error {
	k.mu.Lock()
	if k.active++; k.active > CallbacksMax || h.BulkLen > 0 {
		k.active--
		k.mu.Unlock()
		return status.Errorf(status.Protocol, "rpc: a call of the server over what was agreed: %v", h)
	}
	var c *calling
	if n := len(k.free); n > 0 {
		c, k.free = k.free[n-1], k.free[:n-1]
	}
	k.mu.Unlock()
	if c == nil {
		c = &calling{k: k}
		c.owner, c.pool = c, k.pool
	}
	c.Header, c.l, c.start = *h, l, time.Now()
	body, err := l.body(&c.buf, h)
	if err != nil {
		k.mu.Lock()
		k.active--
		k.mu.Unlock()
		return err
	}
	l.frameDone()
	c.Body = body
	k.dispatch(c)
	return nil
}

func (k *callbacks) dispatch(c *calling) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		k.active--
		return
	}
	if n := len(k.idle); n > 0 {
		ch := k.idle[n-1]
		k.idle = k.idle[:n-1]
		ch <- c
		return
	}
	k.workers.Go(func() { k.work(c) })
}

// work serves calls, c first, until the import closes.
func (k *callbacks) work(c *calling) {
	e := env.New()
	ch := make(chan *calling, 1)
	for c != nil {
		err := error(status.NotSystem)
		if k.i.o.Callback != nil {
			err = k.i.o.Callback(e, &c.Call)
		}
		if err == ErrHeld {
			if c.held.Add(1) == 2 {
				c.recycle(&c.Call)
			}
		} else {
			c.answer(&c.Call, err)
			c.recycle(&c.Call)
		}
		e.Reset()
		k.mu.Lock()
		if k.closed {
			k.mu.Unlock()
			return
		}
		k.idle = append(k.idle, ch)
		k.mu.Unlock()
		c = <-ch
	}
}

// answer implements callOwner.
func (c *calling) answer(_ *Call, err error) {
	bulk, n := c.encode(err, 0, 0)
	c.k.mu.Lock()
	c.k.active--
	c.k.mu.Unlock()
	c.l.send(c.out, bulk, n) // an error ends the link; the server sees that
}

// recycle implements callOwner.
func (c *calling) recycle(*Call) {
	c.reset()
	c.l = nil
	c.k.mu.Lock()
	c.k.free = append(c.k.free, c)
	c.k.mu.Unlock()
}

func (c *calling) context() context.Context { return c.k.ctx }

// wait ends the workers and waits for them.
func (k *callbacks) wait() {
	k.cancel()
	k.mu.Lock()
	k.closed = true
	for _, ch := range k.idle {
		ch <- nil
	}
	k.idle = nil
	k.mu.Unlock()
	k.workers.Wait()
}
