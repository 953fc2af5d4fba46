package osc

import (
	"testing"

	"pgregory.net/rapid"
)

func TestCacheIsSharedFairlyAndBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewCache(1 << 20)
		shares := []*share{c.join(), c.join(), c.join()}
		own := c.limit / 6
		held := make([][]*page, len(shares))
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				i := rapid.IntRange(0, 2).Draw(t, "share")
				size := rapid.SampledFrom([]int64{smallBytes, largeBytes}).Draw(t, "size")
				fits := shares[i].used+size <= own
				if c.take(shares[i], size) {
					held[i] = append(held[i], c.page(size))
				} else if fits {
					t.Fatalf("refused %d of its own part", size)
				}
			},
			"give": func(t *rapid.T) {
				i := rapid.IntRange(0, 2).Draw(t, "share")
				n := rapid.IntRange(0, len(held[i])).Draw(t, "n")
				c.give(shares[i], held[i][:n])
				held[i] = held[i][n:]
			},
			"trim": func(*rapid.T) { c.trim() },
			"": func(t *rapid.T) {
				var sum int64
				for i := range held {
					for _, p := range held[i] {
						sum += int64(len(p.buf))
					}
				}
				if c.used != sum || c.used+c.free > c.limit || c.common > c.limit/2+6 {
					t.Fatalf("%d used, %d free, %d common, %d held", c.used, c.free, c.common, sum)
				}
			},
		})
	})
}
