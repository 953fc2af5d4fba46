package rpc

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestAnswersRememberTheSlowest compares the bins with a list of all answers: the figure is never below the slowest answer of the time
// remembered, and never above that of the time and one bin more.
func TestAnswersRememberTheSlowest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a answers
		type answer struct {
			at time.Time
			d  time.Duration
		}
		var all []answer
		now := time.Unix(1_000_000, 0)
		history := time.Duration(rapid.IntRange(4, 1000).Draw(t, "history")) * time.Second
		a.figures(now, history)
		for range rapid.IntRange(1, 60).Draw(t, "answers") {
			now = now.Add(time.Duration(rapid.IntRange(0, 200_000).Draw(t, "pause")) * time.Millisecond)
			d := time.Duration(rapid.IntRange(1, 1000).Draw(t, "took")) * time.Millisecond
			a.observe(now, d)
			all = append(all, answer{now, d})
			var low, high time.Duration
			for _, x := range all {
				if age := now.Sub(x.at); age <= history-history/answerBins {
					low = max(low, x.d)
				}
				if age := now.Sub(x.at); age <= history+history/answerBins {
					high = max(high, x.d)
				}
			}
			if f := a.figures(now, history); f.worst < low || f.worst > high {
				t.Fatalf("%v, want %v to %v", f, low, high)
			}
		}
	})
}
