package osc

import (
	"testing"

	"pgregory.net/rapid"
)

func TestCacheIsSharedFairlyAndBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewCache(1 << 20)
		shares := []*share{c.join(), c.join(), c.join()}
		own := c.limit.Load() / 6
		held, kept := make([][]*page, len(shares)), make([][]*page, len(shares))
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
			"keep": func(t *rapid.T) {
				i := rapid.IntRange(0, 2).Draw(t, "share")
				n := rapid.IntRange(0, len(held[i])).Draw(t, "n")
				bytes := bytesOf(held[i][:n])
				fits := shares[i].kept+bytes <= own
				if moved, half := c.keep(shares[i], bytes); moved {
					kept[i] = append(kept[i], held[i][:n]...)
					held[i] = held[i][n:]
				} else if fits || !half {
					t.Fatalf("refused to keep %d of its own part, half %v", bytes, half)
				}
			},
			"unkeep": func(t *rapid.T) {
				i := rapid.IntRange(0, 2).Draw(t, "share")
				n := rapid.IntRange(0, len(kept[i])).Draw(t, "n")
				c.unkeep(shares[i], kept[i][:n])
				kept[i] = kept[i][n:]
			},
			"trim": func(*rapid.T) { c.trim() },
			"": func(t *rapid.T) {
				var sum, sumKept int64
				for i := range held {
					sum += bytesOf(held[i])
					sumKept += bytesOf(kept[i])
				}
				if c.used != sum || c.kept != sumKept || c.used+c.kept+c.free > c.limit.Load()+c.keptLimit.Load() {
					t.Fatalf("%d used, %d kept, %d free; %d held, %d kept", c.used, c.kept, c.free, sum, sumKept)
				}
				if c.common > c.limit.Load()/2+6 || c.keptCo > c.keptLimit.Load()/2+6 || c.kept > c.keptLimit.Load() {
					t.Fatalf("%d used, %d of it common; %d kept, %d of it common", c.used, c.common, c.kept, c.keptCo)
				}
			},
		})
	})
}

// TestCacheLimitCanBeChanged: a lowered limit lets nothing in until enough was given back, and frees buffers at once; a raised
// one lets in at once and wakes who waits.
func TestCacheLimitCanBeChanged(t *testing.T) {
	c := NewCache(2 * LeastLimit)
	s := c.join()
	var held []*page
	for c.take(s, largeBytes) {
		held = append(held, c.page(largeBytes))
	}
	if got := c.Used(); got != 2*LeastLimit {
		t.Fatalf("%d bytes fit into %d", got, int64(2*LeastLimit))
	}
	c.SetLimit(1) // the least instead
	if c.Limit() != LeastLimit || c.take(s, smallBytes) {
		t.Fatalf("limit %d: a full cache took more", c.Limit())
	}
	select {
	case <-s.press:
	default:
		t.Error("nobody was asked to write back")
	}
	half := len(held) / 2
	c.give(s, held[:half])
	if c.take(s, smallBytes) {
		t.Error("took more than the new limit")
	}
	c.SetLimit(LeastLimit)
	if c.used+c.free > c.Limit() || c.free != 0 {
		t.Errorf("%d bytes in use and %d free, of %d", c.used, c.free, c.Limit())
	}
	wake := c.waiter()
	c.SetLimit(4 * LeastLimit)
	select {
	case <-wake:
	default:
		t.Error("who waits for room did not hear of it")
	}
	if !c.take(s, largeBytes) {
		t.Error("the raised limit does not hold")
	}
	c.give(s, []*page{c.page(largeBytes)})
	c.give(s, held[half:])
	if c.used != 0 || c.common != 0 || s.used != 0 {
		t.Errorf("used %d, common %d, share %d at the end", c.used, c.common, s.used)
	}
}
