package stats

import "sync/atomic"

// Counter is a figure that only grows. Its zero value is 0 and ready. Safe for concurrent
// use; no method allocates or blocks.
type Counter struct {
	v atomic.Int64
}

// Add adds n. Precondition: n >= 0; what a counter counts is never taken back.
func (c *Counter) Add(n int64) { c.v.Add(n) }

// Inc adds 1.
func (c *Counter) Inc() { c.v.Add(1) }

// Load returns the count so far.
func (c *Counter) Load() int64 { return c.v.Load() }

// Gauge is a figure that goes both ways. Its zero value is 0 and ready. Safe for concurrent
// use; no method allocates or blocks.
type Gauge struct {
	v atomic.Int64
}

// Set makes n the value.
func (g *Gauge) Set(n int64) { g.v.Store(n) }

// Add adds n, which may be negative.
func (g *Gauge) Add(n int64) { g.v.Add(n) }

// Load returns the value.
func (g *Gauge) Load() int64 { return g.v.Load() }
