package native

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The wall clock jumps by hours and decades, forward and back, while sandboxes are created, reach their limits and are
// removed. None of that depends on the wall clock.
func TestFaultClockJumps(t *testing.T) {
	if os.Getenv("SANDBOXTEST_GUEST") == "" {
		t.Skip("sets the clock of the whole machine: only in a virtual one (scripts/guest.sh)")
	}
	b, m := managed(t, Options{})
	ctx := context.Background()

	var before, now unix.Timespec
	began := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &before); err != nil {
		t.Fatal(err)
	}
	set := func(seconds int64) {
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Sec: seconds}); err != nil {
			t.Error(err)
		}
	}
	defer func() { set(before.Sec + int64(time.Since(began).Seconds())) }()
	stop := make(chan struct{})
	var jumper sync.WaitGroup
	jumps := 0
	jumper.Go(func() {
		const hour, year = 3600, 365 * 24 * 3600
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(30 * time.Millisecond):
			}
			set(before.Sec + []int64{hour, -2 * hour, 10 * year, -20 * year, 24 * hour, 1 - before.Sec + year}[n%6])
			jumps++
		}
	})

	for round := range 5 {
		id, err := m.Create(ctx, smallSpec())
		if err != nil {
			t.Fatal(err)
		}
		run := func(p sandbox.Process) (*sandbox.Result, time.Duration) {
			start := time.Now() // with its monotonic part, which Since uses
			var last time.Time
			res, err := m.Run(ctx, id, p, sandbox.IO{OnEvent: func(ev sandbox.Event) {
				if ev.Time.Before(last) {
					t.Errorf("round %d: events go back in time by %v", round, last.Sub(ev.Time))
				}
				last = ev.Time
			}})
			if err != nil {
				t.Fatalf("round %d: %q: %v", round, p.Args, err)
			}
			return res, time.Since(start)
		}
		// Emulated processors are slow, but the clock jumps are hours.
		const slack = 15 * time.Second
		sane := func(what string, got, least time.Duration) {
			if got < least || got > least+slack {
				t.Errorf("round %d: %s took %v, not about %v", round, what, got, least)
			}
		}
		res, took := run(sandbox.Process{Args: []string{"sh", "-c", "echo one; sleep 0.4; echo two"}})
		if res.Verdict != sandbox.VerdictOK {
			t.Errorf("round %d: %s", round, res.Verdict)
		}
		sane("a run", took, 400*time.Millisecond)
		sane("a run, by its own metrics,", res.Metrics.WallTime.Duration(), 400*time.Millisecond)
		if cpu := res.Metrics.CPUTime.Duration(); cpu < 0 || cpu > slack {
			t.Errorf("round %d: CPU time %v", round, cpu)
		}
		res, took = run(sandbox.Process{Args: []string{"sleep", "600"}, Limits: sandbox.Limits{Wall: 500 * time.Millisecond}})
		if res.Verdict != sandbox.VerdictTimeLimit {
			t.Errorf("round %d: %s", round, res.Verdict)
		}
		sane("a wall limit", took, 500*time.Millisecond)
		res, took = run(sandbox.Process{Args: []string{"sh", "-c", "while :; do :; done"},
			Limits: sandbox.Limits{CPUTime: 300 * time.Millisecond}})
		if res.Verdict != sandbox.VerdictCPULimit {
			t.Errorf("round %d: %s", round, res.Verdict)
		}
		sane("a limit on CPU time", took, 300*time.Millisecond)
		start := time.Now()
		if err := m.Delete(ctx, id); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		if _, err := b.Collect(ctx, false); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		sane("deleting", time.Since(start), 0)
	}
	close(stop)
	jumper.Wait()
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil || jumps < 20 {
		t.Errorf("%d jumps, %v", jumps, err)
	}
	if left := groupsOf(b); len(left) > 0 {
		t.Errorf("left: %s", strings.Join(left, " "))
	}
}
