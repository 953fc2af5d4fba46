package ldlm

import (
	"math/bits"
	"time"
)

// The pool keeps the number of locks that clients hold near what a server's memory is meant for. The server's half
// states a lock volume (SLV) that falls as locks near the limit; it goes out with every reply. A client's half compares
// it with the volume of its own unused locks: age times number. Rules and numbers are those of LUSTRE.md, section 1.
const (
	// poolLocksPerMB is the limit's default: locks per MiB of memory.
	poolLocksPerMB = 50
	// slvPerLock bounds the SLV: limit times this, in lock seconds.
	slvPerLock = 36000
	// minPlanStep and maxPlanStep bound how much of the free room, in percent, a period plans to grant.
	minPlanStep, maxPlanStep = 1, 30
	// slvShift is the precision of the factor by which the SLV changes.
	slvShift = 10
)

// DefaultPoolLimit is a server's limit of locks for its memory in bytes.
func DefaultPoolLimit(memoryBytes uint64) int64 {
	return int64(max(1, memoryBytes>>20*poolLocksPerMB))
}

// ServerPool is the server's half. Recalc is its step; the caller guards it.
type ServerPool struct {
	// Limit is how many granted locks the memory is meant for (pool.limit).
	Limit int64
	// Period is the shortest time between recalculations (pool.recalc_period); 0 means a second.
	Period time.Duration

	// SLV is the server lock volume: lock seconds. 0 until the first Recalc.
	SLV uint64
	// Plan is how many locks are meant to be granted by the end of the period (pool.grant_plan).
	Plan int64
	// GrantSpeed, GrantRate and CancelRate are locks per second over the last period.
	GrantSpeed, GrantRate, CancelRate int64

	last               time.Duration
	started            bool
	granted, cancelled uint64 // at the last Recalc
}

// planStep is the percentage of the free room planned for a period: the longer, the less.
func planStep(period time.Duration) int64 {
	quarters := min(int64(period/(4*time.Second)), 30)
	return minPlanStep + (maxPlanStep-minPlanStep)>>quarters
}

// maxSLV is the SLV of an idle server.
func (p *ServerPool) maxSLV() uint64 { return uint64(max(1, p.Limit)) * slvPerLock }

// Recalc brings the pool up to date with the number of locks held and with all that were ever granted and cancelled. It
// does nothing within a period. It reports whether the SLV fell by more than a tenth: tell clients soon.
func (p *ServerPool) Recalc(now time.Duration, held int64, c *Counts) bool {
	period := max(p.Period, time.Second)
	if !p.started {
		p.started, p.last, p.SLV = true, now, p.maxSLV()
		p.granted, p.cancelled = c.Granted, c.Cancelled
		p.Plan = held + (p.Limit-held)*planStep(period)/100
		return false
	}
	passed := now - p.last
	if passed < period {
		return false
	}
	sec := max(1, int64(passed/time.Second))
	p.GrantRate, p.CancelRate = int64(c.Granted-p.granted)/sec, int64(c.Cancelled-p.cancelled)/sec
	p.GrantSpeed = p.GrantRate - p.CancelRate
	p.last, p.granted, p.cancelled = now, c.Granted, c.Cancelled

	old := p.SLV
	limit := max(1, p.Limit)
	// The room left beside what exceeds the plan, as a share of the limit: more than all of it raises the SLV.
	room := max(1, limit-(held-p.Plan))
	factor := uint64(room) << slvShift / uint64(limit)
	if d := held - limit; 2*max(d, -d) > limit { // far from the limit: faster
		factor = max(1, factor*factor>>slvShift)
	}
	hi, lo := bits.Mul64(max(1, p.SLV), factor)
	slv := lo>>slvShift | hi<<(64-slvShift)
	if hi>>slvShift != 0 {
		slv = p.maxSLV()
	}
	p.SLV = min(max(1, slv), p.maxSLV())
	p.Plan = held + (limit-held)*planStep(period)/100
	return p.SLV < old-old/10
}

// ClientPool is a client's half: what the server said last.
type ClientPool struct {
	// SLV is the server lock volume of the newest reply; 0: none was said, keep all.
	SLV uint64
	// Factor is lock_volume_factor; 0 means 1.
	Factor uint64
}

// Exceeds reports whether an unused lock of this age is too much, beside unused ones in all.
func (p *ClientPool) Exceeds(age time.Duration, unused int64) bool {
	if p.SLV == 0 || age < time.Second {
		return false
	}
	return p.Volume(age, unused) >= p.SLV
}

// Volume is the client lock volume: age in seconds times unused locks times the factor; it stops at the largest number.
func (p *ClientPool) Volume(age time.Duration, unused int64) uint64 {
	hi, lo := bits.Mul64(uint64(age/time.Second), uint64(max(0, unused)))
	if hi != 0 {
		return ^uint64(0)
	}
	if hi, lo = bits.Mul64(lo, max(1, p.Factor)); hi != 0 {
		return ^uint64(0)
	}
	return lo
}

// Observe enters the SLV and limit of a reply. It reports whether the SLV fell by more than percent: trim now.
func (p *ClientPool) Observe(slv uint64, percent uint64) bool {
	old := p.SLV
	p.SLV = slv
	return old != 0 && slv < old-old/100*min(percent, 100)
}
