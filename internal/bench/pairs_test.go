package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestPairsAlternate(t *testing.T) {
	var order []string
	seen := map[int]bool{}
	side := func(name string, d time.Duration) Run {
		return func(_ context.Context, number int) (Sample, error) {
			order = append(order, name)
			if seen[number] {
				t.Errorf("number %d came twice", number)
			}
			seen[number] = true
			return Sample{Wall: d}, nil
		}
	}
	a, b, err := Pairs(t.Context(), 1, 3, side("a", 1), side("b", 2))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, ""); got != "abbaabba" {
		t.Errorf("order %s, want abbaabba", got)
	}
	if len(a) != 3 || len(b) != 3 || a[1].Wall != 1 || b[1].Wall != 2 {
		t.Errorf("got %v and %v: warm-up not left out, or sides mixed up", a, b)
	}
}

var errBroken = errors.New("broken")

func TestPairsFail(t *testing.T) {
	fine := func(context.Context, int) (Sample, error) { return Sample{Wall: 1}, nil }
	broken := func(context.Context, int) (Sample, error) { return Sample{}, errBroken }
	if _, _, err := Pairs(t.Context(), 0, 3, fine, broken); !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "reference") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Pairs(ctx, 0, 3, fine, fine); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	if _, err := Series(t.Context(), 0, 3, broken); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
	if s, err := Series(t.Context(), 2, 3, fine); err != nil || len(s) != 3 {
		t.Errorf("got %v, %v", s, err)
	}
}

func TestThroughput(t *testing.T) {
	var calls atomic.Int64
	rate, err := Throughput(t.Context(), 2, 50*time.Millisecond, func(context.Context, int) error {
		calls.Add(1)
		time.Sleep(time.Millisecond)
		return nil
	})
	if err != nil || rate.Done != int(calls.Load()) || rate.Elapsed < 50*time.Millisecond {
		t.Fatalf("got %+v, %v after %d calls", rate, err, calls.Load())
	}
	if want := float64(rate.Done) / rate.Elapsed.Seconds(); rate.PerSecond() != want {
		t.Errorf("%v per second, want %v", rate.PerSecond(), want)
	}
	if rate, err := Throughput(t.Context(), 2, 0, func(context.Context, int) error { return nil }); err != nil || rate.Done != 2 {
		t.Errorf("two workers in no time: %+v, %v", rate, err)
	}
	if (Rate{}).PerSecond() != 0 {
		t.Error("nothing in no time is a rate")
	}
	if _, err := Throughput(t.Context(), 2, time.Minute, func(context.Context, int) error { return errBroken }); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
}

func TestRates(t *testing.T) {
	var order []int
	run := func(i int) func(context.Context, int) error {
		return func(context.Context, int) error {
			if len(order) == 0 || order[len(order)-1] != i {
				order = append(order, i)
			}
			time.Sleep(time.Millisecond)
			return nil
		}
	}
	sums, byRound, err := Rates(t.Context(), 2, 1, 3*time.Millisecond, run(0), run(1))
	if err != nil || len(sums) != 2 || len(byRound[0]) != 2 || sums[1].Done == 0 {
		t.Fatalf("got %v, %v, %v", sums, byRound, err)
	}
	if !slices.Equal(order, []int{0, 1, 0}) { // the second round begins where the first ended
		t.Errorf("order %v", order)
	}
	if _, _, err := Rates(t.Context(), 1, 1, time.Second, func(context.Context, int) error { return errBroken }); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
}

func TestBlocks(t *testing.T) {
	var order []string
	side := func(name string) Run {
		return func(context.Context, int) (Sample, error) {
			order = append(order, name)
			return Sample{Wall: 1}, nil
		}
	}
	set := func(_ context.Context, ours bool) error {
		order = append(order, map[bool]string{true: "A", false: "B"}[ours])
		return nil
	}
	a, b, err := Blocks(context.Background(), 2, 2, set, side("a"), side("b"))
	if got := strings.Join(order, ""); err != nil || got != "AaaBbbBbbAaa" || len(a) != 3 || len(b) != 3 {
		t.Errorf("%s, %d and %d samples, %v", got, len(a), len(b), err)
	}
	no := errors.New("no")
	if _, _, err := Blocks(context.Background(), 1, 1, func(context.Context, bool) error { return no }, side("a"), side("b")); !errors.Is(err,
		no) {
		t.Error(err)
	}
	fails := func(context.Context, int) (Sample, error) { return Sample{}, no }
	if _, _, err := Blocks(context.Background(), 1, 1, set, fails, side("b")); !errors.Is(err, no) {
		t.Error(err)
	}
}
