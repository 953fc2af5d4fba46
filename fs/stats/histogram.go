package stats

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// HistogramBuckets is the number of buckets of every [Histogram]: one for each power of two
// that a positive time.Duration can hold.
const HistogramBuckets = 64

// Histogram is the distribution of durations in buckets that double in width. Bucket i
// counts durations in (2^(i-1), 2^i] nanoseconds; bucket 0 counts 0 and 1 ns. Its zero value
// is empty and ready. Safe for concurrent use; Observe does not allocate or block.
type Histogram struct {
	sumNs      atomic.Int64
	sumSqUs    atomic.Int64 // in square microseconds
	minPlus1Ns atomic.Int64 // smallest observation + 1; 0 means none yet
	maxNs      atomic.Int64
	buckets    [HistogramBuckets]atomic.Uint64
}

// Observe adds one duration. A negative one (a clock that stepped back) counts as 0.
func (h *Histogram) Observe(d time.Duration) {
	ns := max(int64(d), 0)
	for cur := h.minPlus1Ns.Load(); (cur == 0 || ns < cur-1) && ns < 1<<63-1; cur = h.minPlus1Ns.Load() {
		if h.minPlus1Ns.CompareAndSwap(cur, ns+1) {
			break
		}
	}
	for cur := h.maxNs.Load(); ns > cur; cur = h.maxNs.Load() {
		if h.maxNs.CompareAndSwap(cur, ns) {
			break
		}
	}
	h.sumNs.Add(ns)
	h.sumSqUs.Add((ns / 1000) * (ns / 1000))
	h.buckets[bucketOf(ns)].Add(1)
}

// bucketOf returns the bucket of ns >= 0.
func bucketOf(ns int64) int {
	if ns <= 1 {
		return 0
	}
	return bits.Len64(uint64(ns - 1))
}

// BucketEndNs returns the inclusive upper end of bucket i in nanoseconds.
// Precondition: 0 <= i < HistogramBuckets.
func BucketEndNs(i int) uint64 { return 1 << i }

// HistogramSnapshot is a [Histogram] at one moment. Count is the sum of Buckets; an
// observation that runs at the same time may be in SumNs, MinNs and MaxNs and not in Count
// yet, never the other way round.
type HistogramSnapshot struct {
	Count   uint64
	SumNs   int64
	SumSqUs int64 // of whole microseconds, squared; wraps past 2^63
	MinNs   int64 // 0 when Count is 0
	MaxNs   int64
	Buckets [HistogramBuckets]uint64
}

// Snapshot copies the histogram. It does not block observers.
func (h *Histogram) Snapshot() HistogramSnapshot {
	var s HistogramSnapshot
	for i := range h.buckets {
		s.Buckets[i] = h.buckets[i].Load()
		s.Count += s.Buckets[i]
	}
	if s.Count == 0 {
		return s
	}
	s.SumNs = h.sumNs.Load()
	s.SumSqUs = h.sumSqUs.Load()
	s.MaxNs = h.maxNs.Load()
	s.MinNs = max(h.minPlus1Ns.Load()-1, 0)
	return s
}

// Quantile returns an estimate of the q-quantile, 0 <= q <= 1; see
// [HistogramSnapshot.Quantile].
func (h *Histogram) Quantile(q float64) time.Duration {
	s := h.Snapshot()
	return s.Quantile(q)
}

// Quantile returns the duration that a share q of the observations does not exceed,
// interpolated inside its bucket and held between the smallest and the largest one seen. q
// outside [0, 1] is clamped. 0 when nothing was observed.
func (s *HistogramSnapshot) Quantile(q float64) time.Duration {
	if s.Count == 0 {
		return 0
	}
	rank := min(max(q, 0), 1) * float64(s.Count)
	var below float64
	for i, n := range s.Buckets {
		if n == 0 || below+float64(n) < rank {
			below += float64(n)
			continue
		}
		start, end := 0.0, float64(BucketEndNs(i))
		if i > 0 {
			start = end / 2
		}
		ns := start + (end-start)*(rank-below)/float64(n)
		return time.Duration(min(max(ns, float64(s.MinNs)), float64(s.MaxNs)))
	}
	return time.Duration(s.MaxNs)
}
