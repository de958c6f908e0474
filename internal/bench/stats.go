package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Sample is the wall-clock time of one run, and its CPU time on all cores together.
type Sample struct {
	Wall, CPU time.Duration
}

// Stat summarizes the samples of one side, in the unit of its row.
type Stat struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95,omitempty"`
	CPU float64 `json:"cpu_ms,omitempty"` // median CPU time per run, milliseconds
	N   int     `json:"n"`
}

// Interval is an estimate with its 95 % confidence interval.
type Interval struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Quantile returns the q-th quantile (0…1) of values, interpolated between neighbours; NaN without values. It does not change values.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	return sortedQuantile(slices.Sorted(slices.Values(values)), q)
}

func sortedQuantile(sorted []float64, q float64) float64 {
	at := max(0, min(1, q)) * float64(len(sorted)-1)
	below := int(at)
	if below == len(sorted)-1 {
		return sorted[below]
	}
	return sorted[below] + (at-float64(below))*(sorted[below+1]-sorted[below])
}

// Median returns the 0.5 quantile.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// Summarize returns the statistics of samples in milliseconds.
func Summarize(samples []Sample) Stat {
	wall, cpu := milliseconds(samples)
	return Stat{P50: Median(wall), P95: Quantile(wall, 0.95), CPU: Median(cpu), N: len(samples)}
}

// SummarizeValues returns the statistics of values that are not times.
func SummarizeValues(values []float64) Stat {
	return Stat{P50: Median(values), P95: Quantile(values, 0.95), N: len(values)}
}

func milliseconds(samples []Sample) (wall, cpu []float64) {
	for _, s := range samples {
		wall = append(wall, Milliseconds(s.Wall))
		cpu = append(cpu, Milliseconds(s.CPU))
	}
	return wall, cpu
}

// Milliseconds returns d as a number.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

const (
	resamples  = 2000
	confidence = 0.95
)

// Ratio returns the ratio of the medians of both sides of pairs. The interval is a percentile bootstrap over whole pairs. The random
// numbers have a fixed seed, so the same samples have the same interval.
func Ratio(ours, reference []Sample) Interval {
	a, _ := milliseconds(ours)
	b, _ := milliseconds(reference)
	n := min(len(a), len(b))
	value := Interval{Value: Median(a) / Median(b)}
	if n == 0 {
		return Interval{Value: math.NaN(), Low: math.NaN(), High: math.NaN()}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	ratios := make([]float64, resamples)
	x, y := make([]float64, n), make([]float64, n)
	for r := range ratios {
		for i := range n {
			pick := rng.IntN(n)
			x[i], y[i] = a[pick], b[pick]
		}
		slices.Sort(x)
		slices.Sort(y)
		ratios[r] = sortedQuantile(x, 0.5) / sortedQuantile(y, 0.5)
	}
	value.Low, value.High = Quantile(ratios, (1-confidence)/2), Quantile(ratios, (1+confidence)/2)
	return value
}
