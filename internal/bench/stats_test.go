package bench

import (
	"math"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for _, c := range []struct{ q, want float64 }{{0, 1}, {0.25, 2}, {0.5, 3}, {0.9, 4.6}, {1, 5}, {-1, 1}, {2, 5}} {
		if got := Quantile(values, c.q); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("quantile %v = %v, want %v", c.q, got, c.want)
		}
	}
	if values[0] != 5 {
		t.Error("the values were sorted in place")
	}
	if got := Median([]float64{1, 2, 3, 10}); got != 2.5 {
		t.Errorf("median of an even number = %v, want 2.5", got)
	}
	if got := Median([]float64{7}); got != 7 {
		t.Errorf("median of one = %v", got)
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("the median of nothing is a number")
	}
}

func samples(ms ...float64) []Sample {
	var s []Sample
	for _, v := range ms {
		d := time.Duration(v * float64(time.Millisecond))
		s = append(s, Sample{Wall: d, CPU: 2 * d})
	}
	return s
}

func TestSummarize(t *testing.T) {
	got := Summarize(samples(1, 2, 3, 4, 5))
	if got.P50 != 3 || got.CPU != 6 || got.N != 5 || math.Abs(got.P95-4.8) > 1e-9 {
		t.Errorf("got %+v", got)
	}
	if v := SummarizeValues([]float64{1, 2, 9}); v.P50 != 2 || v.N != 3 || v.CPU != 0 {
		t.Errorf("got %+v", v)
	}
}

func TestRatio(t *testing.T) {
	var a, b []Sample
	for i := range 100 {
		// Both sides are slowed down by the same neighbour: their ratio stays.
		base := 1 + float64(i%10)
		a, b = append(a, samples(2*base)...), append(b, samples(base)...)
	}
	got := Ratio(a, b)
	if math.Abs(got.Value-2) > 1e-9 || math.Abs(got.Low-2) > 1e-9 || math.Abs(got.High-2) > 1e-9 {
		t.Errorf("a constant ratio of 2 gives %+v", got)
	}
	if again := Ratio(a, b); again != got {
		t.Errorf("the same samples give %+v and %+v", got, again)
	}
	noisy := Ratio(samples(1, 2, 3, 4, 5, 6, 7, 8, 9), samples(9, 1, 8, 2, 7, 3, 6, 4, 5))
	if !(noisy.Low < noisy.Value && noisy.Value < noisy.High) {
		t.Errorf("noise has no width: %+v", noisy)
	}
	if none := Ratio(nil, nil); !math.IsNaN(none.Value) || !math.IsNaN(none.Low) {
		t.Errorf("nothing gives %+v", none)
	}
}

// TestRatioCovers checks that the interval holds the truth about as often as it says.
func TestRatioCovers(t *testing.T) {
	const worlds, n = 24, 60
	seed := uint64(42)
	next := func() float64 { // skewed, as latencies are
		seed = seed*6364136223846793005 + 1442695040888963407
		u := float64(seed>>11) / (1 << 53)
		return 1 - math.Log(1-u)
	}
	covered := 0
	for range worlds {
		var a, b []Sample
		for range n {
			a, b = append(a, samples(1.5*next())...), append(b, samples(next())...)
		}
		if r := Ratio(a, b); r.Low <= 1.5 && 1.5 <= r.High {
			covered++
		}
	}
	if covered < worlds*80/100 {
		t.Errorf("the true ratio lay in %d of %d intervals", covered, worlds)
	}
}
