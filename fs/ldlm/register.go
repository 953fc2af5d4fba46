package ldlm

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

// Register enters the namespace's figures and parameters into a registry under ldlm.namespaces.<name>, with the names
// that Lustre gives them. The figures are read when they are asked for. What belongs to the LRU's and pool's policy is
// registered by who runs them.
func (ns *Namespace) Register(reg *stats.Registry, name string) {
	at := "ldlm.namespaces." + stats.Element(name) + "."
	ns.registerCounts(reg, at)
	reg.Func(at+"lock_count", "Locks known, waiting ones included.", ns.LockCount, stats.Metric("lustre_lock_count_total"))
	reg.Func(at+"lock_waiting_count", "Locks that wait to be granted.", ns.WaitingCount)
	reg.Func(at+"resource_count", "Resources known.", ns.ResourceCount)
	if ns.mirror {
		reg.Func(at+"lock_unused_count", "Granted locks without a user.", ns.UnusedCount)
	}
	reg.Table(strings.TrimSuffix(at, "."), "The resource table.", ns.tableStats)
	reg.Param(at+"contended_locks", "Conflicts in a window that make a resource contended.", func() string {
		return strconv.FormatInt(ns.Limits().ContendedLocks, 10)
	}, func(text string) error {
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 32)
		if err != nil || n < 1 {
			return fmt.Errorf("ldlm: contended_locks is a number from 1, not %q", text)
		}
		ns.contendedLocks.Store(n)
		return nil
	})
	ns.registerTimes(reg, at)
}

// registerTimes enters the parameters in seconds.
func (ns *Namespace) registerTimes(reg *stats.Registry, at string) {
	for _, p := range []struct {
		name, help string
		low, high  int64
		get        func(*Limits) *time.Duration
	}{
		{"contention_seconds", "Window of the count of conflicts in seconds, 1 to 16.", 1, 16,
			func(l *Limits) *time.Duration { return &l.ContentionWindow }},
		{"contention_hold_seconds", "How long a resource stays contended in seconds, 10 to 60.", 10, 60,
			func(l *Limits) *time.Duration { return &l.ContentionHold }},
		{"lock_timeout", "Seconds that the holder of a called-back lock has before it is evicted, 1 to 3600.", 1, 3600,
			func(l *Limits) *time.Duration { return &l.LockTimeout }},
	} {
		reg.Param(at+p.name, p.help, func() string {
			l := ns.Limits()
			return strconv.FormatInt(int64(*p.get(&l)/time.Second), 10)
		}, func(text string) error {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 32)
			if err != nil || n < p.low || n > p.high {
				return fmt.Errorf("ldlm: %s is %d to %d seconds, not %q", p.name, p.low, p.high, text)
			}
			l := ns.Limits()
			*p.get(&l) = time.Duration(n) * time.Second
			ns.SetLimits(l)
			return nil
		})
	}
}

func (ns *Namespace) registerCounts(reg *stats.Registry, at string) {
	for _, c := range []struct {
		name, help string
		get        func(*Counts) uint64
	}{
		{"enqueued", "Lock requests.", func(c *Counts) uint64 { return c.Enqueued }},
		{"granted", "Locks granted, at once or later.", func(c *Counts) uint64 { return c.Granted }},
		{"cancelled", "Locks given back or taken away.", func(c *Counts) uint64 { return c.Cancelled }},
		{"waited", "Lock requests that had to wait.", func(c *Counts) uint64 { return c.Waited }},
		{"blocking_asts", "Locks called back.", func(c *Counts) uint64 { return c.Blocking }},
		{"glimpse_asts", "Glimpse ASTs.", func(c *Counts) uint64 { return c.Glimpses }},
		{"converted", "Lock conversions.", func(c *Counts) uint64 { return c.Converted }},
		{"lock_timeouts", "Called-back locks that were not given back in time.", func(c *Counts) uint64 { return c.Expired }},
		{"contention_events", "Times that a resource became contended.", func(c *Counts) uint64 { return c.Contended }},
		{"deadlocks", "Requests denied because they would wait for themselves.", func(c *Counts) uint64 { return c.Deadlocks }},
		{"lock_lru_hits", "Matches that found a lock.", func(c *Counts) uint64 { return c.Matched }},
		{"lock_lru_misses", "Matches that found none.", func(c *Counts) uint64 { return c.Missed }},
	} {
		var labels []stats.Label
		switch c.name { // the names that boards for Lustre know
		case "lock_timeouts":
			labels = append(labels, stats.Metric("lustre_lock_timeout_total"))
		case "contention_events":
			labels = append(labels, stats.Metric("lustre_lock_contended_total"))
		}
		reg.Func(at+c.name, c.help, func() int64 {
			n := ns.Counts()
			return int64(c.get(&n))
		}, labels...)
	}
}

// Counts adds up what the shards have done.
func (ns *Namespace) Counts() Counts {
	var c Counts
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		c.add(&sh.count)
		sh.mu.Unlock()
	}
	return c
}

// ResourceCount is the number of resources known.
func (ns *Namespace) ResourceCount() int64 {
	n := 0
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		n += sh.table.n
		sh.mu.Unlock()
	}
	return int64(n)
}

// tableStats gives the registry the figures of the resource tables of all shards.
func (ns *Namespace) tableStats(to *stats.TableStats) {
	s := ns.Stats()
	t := &s.Table
	to.Name, to.ShrinkTheta, to.GrowTheta = "LDLM_RESOURCES", shrinkTheta, growTheta
	to.Buckets, to.Entries, to.Empty = int64(t.Buckets), int64(t.Entries), int64(t.Empty)
	to.Longest, to.Grows, to.Shrinks = int64(t.MaxDepth), int64(t.Grows), int64(t.Shrinks)
	to.Hits, to.Misses, to.Bytes = int64(t.Hits), int64(t.Misses), t.Bytes
	for i, n := range t.Distribution {
		to.Chains[i] = int64(n)
	}
	to.Rule = "grows with the resources that have locks"
}
