package lov

import (
	"context"
	"sync"
)

// gate lets many calls in that share a file's bytes, or one that cuts them. Unlike a sync.RWMutex it gives up when ctx
// ends, and who is inside may be another goroutine than who entered. A call that cuts keeps later ones out while it waits.
type gate struct {
	mu      sync.Mutex
	shared  int           // guarded by mu
	alone   bool          // guarded by mu
	waiting int           // guarded by mu: calls that want to be alone
	wake    chan struct{} // guarded by mu: closed when somebody left; nil when nobody waits
}

// share enters beside others. It allocates only when it has to wait.
func (g *gate) share(ctx context.Context) error {
	g.mu.Lock()
	for g.alone || g.waiting > 0 {
		if err := g.waitLocked(ctx); err != nil {
			g.mu.Unlock()
			return err
		}
	}
	g.shared++
	g.mu.Unlock()
	return nil
}

// own enters alone.
func (g *gate) own(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting++
	defer func() { g.waiting-- }()
	for g.alone || g.shared > 0 {
		if err := g.waitLocked(ctx); err != nil {
			g.wakeLocked() // those whom this one kept out
			return err
		}
	}
	g.alone = true
	return nil
}

// leave ends share or own.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.alone {
		g.alone = false
	} else {
		g.shared--
	}
	g.wakeLocked()
}

func (g *gate) wakeLocked() {
	if g.wake != nil {
		close(g.wake)
		g.wake = nil
	}
}

func (g *gate) waitLocked(ctx context.Context) error {
	if g.wake == nil {
		g.wake = make(chan struct{})
	}
	ch := g.wake
	g.mu.Unlock()
	defer g.mu.Lock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
