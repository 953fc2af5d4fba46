package stats_test

import (
	"math"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

func TestHistogramBuckets(t *testing.T) {
	tests := []struct {
		d      time.Duration
		bucket int
	}{
		{-5, 0}, {0, 0}, {1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {1024, 10}, {1025, 11}, {math.MaxInt64, 63},
	}
	for _, tt := range tests {
		var h stats.Histogram
		h.Observe(tt.d)
		s := h.Snapshot()
		if s.Buckets[tt.bucket] != 1 || s.Count != 1 {
			t.Errorf("%d is not in bucket %d: %v", tt.d, tt.bucket, s.Buckets)
		}
		if ns := uint64(max(tt.d, 0)); ns > stats.BucketEndNs(tt.bucket) {
			t.Errorf("%d is past the end of bucket %d", ns, tt.bucket)
		}
		if want := max(int64(tt.d), 0); s.MaxNs != want || s.SumNs != want {
			t.Errorf("%d: max %d sum %d", tt.d, s.MaxNs, s.SumNs)
		}
	}
}

func TestHistogramSnapshotAndQuantile(t *testing.T) {
	var h stats.Histogram
	if s := h.Snapshot(); s.Count != 0 || s.MinNs != 0 || h.Quantile(0.5) != 0 {
		t.Fatalf("empty: %+v", s)
	}
	for i := 1; i <= 1000; i++ {
		h.Observe(time.Duration(i) * time.Microsecond)
	}
	s := h.Snapshot()
	if s.Count != 1000 || s.MinNs != 1000 || s.MaxNs != 1e6 || s.SumNs != 500500*1000 {
		t.Fatalf("%d %d %d %d", s.Count, s.MinNs, s.MaxNs, s.SumNs)
	}
	// A bucket is a factor of two wide; even data interpolate well inside it.
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond} {
		if got := s.Quantile(q); got < want*9/10 || got > want*11/10 {
			t.Errorf("q%.2f = %v, want about %v", q, got, want)
		}
	}
	if s.Quantile(0) != time.Microsecond || s.Quantile(1) != time.Millisecond || s.Quantile(7) != time.Millisecond {
		t.Errorf("ends: %v %v %v", s.Quantile(0), s.Quantile(1), s.Quantile(7))
	}
}

func TestUpdatesDoNotAllocate(t *testing.T) {
	r := stats.NewRegistry()
	c, g, h := r.Counter("a.b", ""), r.Gauge("a.c", ""), r.Histogram("a.d", "")
	d := time.Duration(0)
	tests := map[string]func(){
		"counter":   func() { c.Inc(); c.Add(3); _ = c.Load() },
		"gauge":     func() { g.Set(3); g.Add(-1); _ = g.Load() },
		"histogram": func() { d += 1234; h.Observe(d) },
		"snapshot":  func() { s := h.Snapshot(); _ = s.Quantile(0.99) },
	}
	for name, f := range tests {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
