package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Run does one run and returns its cost. The number is different for every run, warm-up included,
// so that sources can be varied.
type Run func(ctx context.Context, number int) (Sample, error)

// Pairs runs both sides in turns and returns n samples of each. The first side alternates from
// pair to pair. The first warmup pairs run before the n pairs and do not count.
func Pairs(ctx context.Context, warmup, n int, ours, reference Run) (a, b []Sample, err error) {
	for i := range warmup + n {
		var pair [2]Sample
		sides := [2]Run{ours, reference}
		for k := range sides {
			side := (i + k) % 2
			if err := ctx.Err(); err != nil {
				return nil, nil, err
			}
			if pair[side], err = sides[side](ctx, 2*i+side); err != nil {
				return nil, nil, fmt.Errorf("pair %d, %s: %w", i, [2]string{"ours", "reference"}[side], err)
			}
		}
		if i >= warmup {
			a, b = append(a, pair[0]), append(b, pair[1])
		}
	}
	return a, b, nil
}

// Blocks is Pairs for sides that need a slow change of the environment: set changes it for ours or for the
// reference, and then size runs follow. The first side alternates from round to round. The very first run does not count.
func Blocks(ctx context.Context, rounds, size int, set func(ctx context.Context, ours bool) error, ours, reference Run) (a, b []Sample,
	err error) {
	number := 0
	for round := range rounds {
		for k := range 2 {
			side := (round + k) % 2
			if err := set(ctx, side == 0); err != nil {
				return nil, nil, err
			}
			for i := range size {
				if err := ctx.Err(); err != nil {
					return nil, nil, err
				}
				s, err := [2]Run{ours, reference}[side](ctx, number)
				if err != nil {
					return nil, nil, fmt.Errorf("round %d, run %d, %s: %w", round, i, [2]string{"ours", "reference"}[side], err)
				}
				number++
				if round == 0 && i == 0 && size*rounds > 1 {
					continue
				}
				if side == 0 {
					a = append(a, s)
				} else {
					b = append(b, s)
				}
			}
		}
	}
	return a, b, nil
}

// Series is Pairs with one side only.
func Series(ctx context.Context, warmup, n int, run Run) ([]Sample, error) {
	var samples []Sample
	for i := range warmup + n {
		s, err := run(ctx, i)
		if err != nil {
			return nil, fmt.Errorf("run %d: %w", i, err)
		}
		if i >= warmup {
			samples = append(samples, s)
		}
	}
	return samples, nil
}

// Rate is a number of runs and their time.
type Rate struct {
	Done    int
	Elapsed time.Duration
}

// PerSecond returns the runs per second.
func (r Rate) PerSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Done) / r.Elapsed.Seconds()
}

// Throughput lets workers do one run after another for d, and at least one each, so that a busy machine has a result as well. The measured
// time ends with the last run, so every counted run ended within it.
func Throughput(ctx context.Context, workers int, d time.Duration, run func(ctx context.Context, worker int) error) (Rate, error) {
	var done atomic.Int64
	errs := make(chan error, workers)
	var wg sync.WaitGroup
	began := time.Now()
	for w := range workers {
		wg.Go(func() {
			for first := true; first || time.Since(began) < d && len(errs) == 0; first = false {
				if err := run(ctx, w); err != nil {
					errs <- err
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	select {
	case err := <-errs:
		return Rate{}, err
	default:
		return Rate{Done: int(done.Load()), Elapsed: elapsed}, nil
	}
}

// Rates runs several throughputs in turns, in rounds of alternating order, and returns the sum of each and its rate in every round.
func Rates(ctx context.Context, rounds, workers int, each time.Duration, runs ...func(ctx context.Context, worker int) error) (sums []Rate,
	byRound [][]float64, err error) {
	sums, byRound = make([]Rate, len(runs)), make([][]float64, len(runs))
	for round := range rounds {
		for k := range runs {
			i := (round + k) % len(runs)
			r, err := Throughput(ctx, workers, each, runs[i])
			if err != nil {
				return nil, nil, err
			}
			sums[i].Done += r.Done
			sums[i].Elapsed += r.Elapsed
			byRound[i] = append(byRound[i], r.PerSecond())
		}
	}
	return sums, byRound, nil
}
