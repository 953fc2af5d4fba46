package stats_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

func BenchmarkCounterAdd(b *testing.B) {
	b.ReportAllocs()
	c := stats.NewRegistry().Counter("a.b", "")
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c.Add(1)
		}
	})
}

func BenchmarkHistogramObserve(b *testing.B) {
	b.ReportAllocs()
	h := stats.NewRegistry().Histogram("a.b", "")
	d := time.Duration(0)
	for b.Loop() {
		d += 997
		h.Observe(d & (1<<24 - 1))
	}
}

// BenchmarkWalk walks 5,000 paths with a pattern that 1,000 of them match.
func BenchmarkWalk(b *testing.B) {
	b.ReportAllocs()
	r := stats.NewRegistry()
	for t := range 1000 {
		for s := range 5 {
			r.Counter(fmt.Sprintf("obdfilter.strake-OST%04x.s%d", t, s), "")
		}
	}
	for b.Loop() {
		if err := r.Walk("*.*.s3", func(stats.Entry) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStatsFolders reads the stats files of 1,000 OSTs with 20 operations each, as `lctl get_param osc.*.stats` does.
func BenchmarkStatsFolders(b *testing.B) {
	b.ReportAllocs()
	r := stats.NewRegistry()
	for t := range 1000 {
		for s := range 20 {
			r.Histogram(fmt.Sprintf("osc.strake-OST%04x-osc.stats.op%d", t, s), "").Observe(time.Millisecond)
		}
	}
	for b.Loop() {
		nodes, err := r.List("osc.*.stats", false)
		if err != nil || len(nodes) != 1000 {
			b.Fatal(len(nodes), err)
		}
		for i := range nodes {
			if _, ok := nodes[i].Text(); !ok {
				b.Fatal("no text")
			}
		}
	}
}
