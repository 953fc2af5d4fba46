package osc

import (
	"testing"

	"pgregory.net/rapid"
)

// TestGrantIsNeverExceeded lets a client and a model of its OST talk: what is charged and available is never more than
// what the OST holds promised.
func TestGrantIsNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g grant
		var promised, flying uint64
		t.Repeat(map[string]func(*rapid.T){
			"connect": func(t *rapid.T) {
				promised = max(promised, rapid.Uint64Range(0, 1000).Draw(t, "total"))
				g.connected(promised)
			},
			"take": func(t *rapid.T) {
				n := rapid.Uint64Range(0, 300).Draw(t, "n")
				if avail := g.avail; g.take(n) != (n <= avail) {
					t.Fatal("taken beyond what was promised")
				}
			},
			"send": func(t *rapid.T) { flying = rapid.Uint64Range(flying, g.charged).Draw(t, "n") },
			"answer": func(t *rapid.T) {
				n := rapid.Uint64Range(0, flying).Draw(t, "n")
				more := rapid.Uint64Range(0, g.want(1000)).Draw(t, "more")
				promised += more - n
				flying -= n
				g.answered(n, more)
			},
			"drop": func(t *rapid.T) { g.refund(rapid.Uint64Range(0, g.charged-flying).Draw(t, "n")) },
			"": func(t *rapid.T) {
				if g.avail+g.charged > promised {
					t.Fatalf("%d available, %d charged, %d promised", g.avail, g.charged, promised)
				}
			},
		})
	})
}
