package bench

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestMedianRatioIsDeterministic(t *testing.T) {
	a, b := []float64{10, 12, 11, 9, 14}, []float64{20, 21, 19, 22, 20}
	first := medianRatio(a, b, 7)
	if first != medianRatio(a, b, 7) {
		t.Error("one seed gives two results")
	}
	if first == medianRatio(a, b, 8) && first.Low == first.High {
		t.Error("the seed does nothing")
	}
	if first.Estimate != 11.0/20 || first.Low > first.Estimate || first.High < first.Estimate {
		t.Errorf("%+v", first)
	}
	if a[2] != 11 || b[4] != 20 {
		t.Error("the rows are changed")
	}
}

func TestMedianRatioOfNothing(t *testing.T) {
	for _, v := range [][]float64{nil, {0}, {0, 0, 0}} {
		if got := medianRatio(v, v, 1); got != (interval{}) {
			t.Errorf("%v: %+v", v, got)
		}
	}
	if got := medianRatio([]float64{3}, []float64{4}, 1); got != (interval{0.75, 0.75, 0.75}) {
		t.Errorf("one pair: %+v", got)
	}
}

// TestMedianRatioCovers: of samples with a known ratio the limits hold it about as often as they say, and what slows both of a
// pair does not count.
func TestMedianRatioCovers(t *testing.T) {
	if testing.Short() {
		t.Skip("60 bootstraps")
	}
	random := rand.New(rand.NewPCG(1, 2))
	const runs, pairs, ratio = 60, 40, 0.98
	held, width := 0, 0.0
	for run := range runs {
		a, b := make([]float64, pairs), make([]float64, pairs)
		for i := range a {
			machine := 1000 * (1 + 0.2*random.Float64())
			a[i] = ratio * machine * (1 + 0.01*random.NormFloat64())
			b[i] = machine * (1 + 0.01*random.NormFloat64())
		}
		got := medianRatio(a, b, uint64(run))
		if got.Low <= ratio && ratio <= got.High {
			held++
		}
		width += got.High - got.Low
	}
	if held < runs*85/100 {
		t.Errorf("the limits hold the ratio in %d runs of %d", held, runs)
	}
	if width /= runs; width > 0.06 || math.IsNaN(width) {
		t.Errorf("the limits are %.3f apart", width)
	}
}

func TestPercentile(t *testing.T) {
	v := []float64{0, 10, 20, 30, 40}
	for p, want := range map[float64]float64{0: 0, 0.5: 20, 1: 40, 0.125: 5, 0.975: 39} {
		if got := percentile(v, p); math.Abs(got-want) > 1e-9 {
			t.Errorf("%v: %v, want %v", p, got, want)
		}
	}
}
