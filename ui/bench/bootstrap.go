package bench

import (
	"math/rand/v2"
	"slices"
)

// resamples is how many bootstrap samples limits are taken from: the 2.5th percentile of 10,000 moves by a tenth of the
// interval's length from one seed to another, at most.
const resamples = 10_000

// interval is an estimate and its 95 % limits.
type interval struct {
	Estimate float64 `json:"estimate"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
}

// medianRatio is the ratio of the medians of two rows that were measured in turn, a[i] beside b[i], with the limits of the
// percentile bootstrap over the pairs (Efron and Tibshirani, "An Introduction to the Bootstrap", chapter 13): what slowed both of
// a pair does not widen them. The same seed gives the same limits. Without a pair, or where b's median is 0, it is zero.
// Precondition: a and b have one length.
func medianRatio(a, b []float64, seed uint64) interval {
	below := median(b)
	if len(a) == 0 || below == 0 {
		return interval{}
	}
	random := rand.New(rand.NewPCG(seed, uint64(len(a))))
	one, other := make([]float64, len(a)), make([]float64, len(a))
	ratios := make([]float64, 0, resamples)
	for range resamples {
		for i := range one {
			k := random.IntN(len(a))
			one[i], other[i] = a[k], b[k]
		}
		if m := sortedMedian(other); m > 0 {
			ratios = append(ratios, sortedMedian(one)/m)
		}
	}
	slices.Sort(ratios)
	return interval{Estimate: median(a) / below, Low: percentile(ratios, 0.025), High: percentile(ratios, 0.975)}
}

// sortedMedian is median; it sorts v itself.
func sortedMedian(v []float64) float64 {
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// percentile is the value below which a share p of the sorted values lies, 0 for none.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := p * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}
