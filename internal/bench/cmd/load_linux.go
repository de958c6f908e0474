package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// throughput measures row 4: the rate of fresh sandboxes on all cores.
func (s *environment) throughput(ctx context.Context) ([]bench.Row, error) {
	// No other goroutine may reap orphans while workers wait for their own children.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
		return nil, err
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }()
	var number atomic.Int64
	ours := func(mode sandbox.ScratchMode) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error {
			_, err := s.once(ctx, int(number.Add(1)), sandbox.Spec{Scratch: mode}, "true")
			return err
		}
	}
	reference := func(context.Context, int) error { return s.reference.run() }
	// Both sides have several workers per core, because a sandbox waits for the kernel part of the time.
	workers := 4 * runtime.GOMAXPROCS(0)
	warm := func(run func(context.Context, int) error) error {
		_, err := bench.Throughput(ctx, workers, s.each/5, run)
		return err
	}
	memory, disk := ours(sandbox.ScratchMemory), ours(sandbox.ScratchDisk)
	if err := errors.Join(warm(memory), warm(disk), warm(reference)); err != nil {
		return nil, err
	}
	sums, byRound, err := bench.Rates(ctx, s.rounds, workers, s.each, memory, disk, reference)
	if err != nil {
		return nil, err
	}
	if err := s.gone.verify(); err != nil {
		return nil, err
	}
	stat := func(i int) bench.Stat { return bench.Stat{P50: sums[i].PerSecond(), N: sums[i].Done} }
	row := func(i int, mode sandbox.ScratchMode, least float64) bench.Row {
		ref := stat(2)
		return bench.Row{
			Name: fmt.Sprintf("throughput of fresh true sandboxes, %d workers, %s scratch", workers, mode), Unit: "/s",
			Ours: stat(i), Reference: &ref, Versus: "bwrap", Bar: &bench.Bar{Limit: least, AtLeast: true},
			Ratio: roundRatio(sums[i], sums[2], byRound[i], byRound[2]),
			Note: fmt.Sprintf("the mean rate over %d rounds of %v, higher is better; bwrap's sandboxes may outlive its return, ours do not",
				s.rounds, s.each),
		}
	}
	single, err := s.backToBack(ctx, memory, reference)
	return []bench.Row{row(0, sandbox.ScratchMemory, 350), row(1, sandbox.ScratchDisk, 250), single}, err
}

// backToBack measures one sandbox after another, for information. There is no pause in which the next spare init starts without cost.
func (s *environment) backToBack(ctx context.Context, ours, reference func(context.Context, int) error) (bench.Row, error) {
	sums, byRound, err := bench.Rates(ctx, s.rounds, 1, s.each, ours, reference)
	if err != nil {
		return bench.Row{}, err
	}
	each := func(i int) bench.Stat { return bench.Stat{P50: 1000 / sums[i].PerSecond(), N: sums[i].Done} }
	ref := each(1)
	return bench.Row{
		Name: "the same with 1 worker, memory scratch: time per sandbox", Unit: "ms", Ours: each(0), Reference: &ref, Versus: "bwrap",
		Ratio: roundRatio(sums[1], sums[0], byRound[1], byRound[0]),
		Note:  "mean, back to back: no pause in which the next init could be made ready; the interval is the range of the rounds",
	}, nil
}

// roundRatio compares rates; rounds are too few for more than their range.
func roundRatio(a, b bench.Rate, as, bs []float64) *bench.Interval {
	v := bench.Interval{Value: a.PerSecond() / b.PerSecond()}
	for i := range as {
		r := as[i] / bs[i]
		if i == 0 {
			v.Low, v.High = r, r
		}
		v.Low, v.High = min(v.Low, r), max(v.High, r)
	}
	return &v
}

// idle measures row 5: the memory of a sandbox that does nothing.
func (s *environment) idle(ctx context.Context) (rows []bench.Row, err error) {
	if _, err := s.once(ctx, 0, sandbox.Spec{}, "true"); err != nil { // the first run makes what the manager makes once
		return nil, err
	}
	before, err := footprint()
	if err != nil {
		return nil, err
	}
	var ids []string
	defer func() {
		for _, id := range ids {
			err = errors.Join(err, s.manager.Delete(ctx, id))
		}
	}()
	for range s.options.idle {
		id, err := s.manager.Create(ctx, sandbox.Spec{})
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	after, err := footprint()
	if err != nil {
		return nil, err
	}
	n := float64(len(ids))
	if after.inits < len(ids) {
		return nil, fmt.Errorf("%d sandboxes have only %d inits", len(ids), after.inits)
	}
	// Per process: a spare init may be among those of the sandboxes.
	init, own := after.initPSS/float64(after.inits), max(0, after.own-before.own)/n
	return []bench.Row{
		{
			Name: "idle sandbox, PSS of init and supervisor's share", Unit: "MB", Ours: bench.Stat{P50: init + own, N: len(ids)},
			Bar:  &bench.Bar{Limit: 3},
			Note: fmt.Sprintf("of %d at once: inits %.2f MB each, the supervisor grew by %.2f MB each", len(ids), init, own),
		},
		{
			Name: "idle sandbox, the kernel's part included", Unit: "MB",
			Ours: bench.Stat{P50: (before.available - after.available) / n, N: len(ids)},
			Note: "fall of MemAvailable; everything else on the machine is in it too",
		},
	}, nil
}

// memory is the memory of the processes, in MB (10^6 bytes).
type memory struct {
	own       float64 // this process, garbage returned
	inits     int     // its children: inits of sandboxes
	initPSS   float64
	available float64 // what the machine has left
}

func footprint() (m memory, err error) {
	debug.FreeOSMemory()
	pids, err := children()
	if err != nil {
		return m, err
	}
	for _, pid := range pids {
		pss, err := pssOf(strconv.Itoa(pid))
		if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) {
			continue // dead, and not reaped yet
		}
		if err != nil {
			return m, err
		}
		m.inits++
		m.initPSS += pss
	}
	if m.own, err = pssOf("self"); err != nil {
		return m, err
	}
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m, err
	}
	m.available, err = megabytes(text, "MemAvailable:")
	return m, err
}

// pssOf returns the proportional set size of a process in MB.
func pssOf(pid string) (float64, error) {
	text, err := os.ReadFile("/proc/" + pid + "/smaps_rollup")
	if err != nil {
		return 0, err
	}
	return megabytes(text, "Pss:")
}

// megabytes parses a line like "Pss:  1234 kB", in which the kernel counts KiB.
func megabytes(text []byte, name string) (float64, error) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) == 3 && f[0] == name && f[2] == "kB" {
			n, err := strconv.ParseFloat(f[1], 64)
			return n * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("no line %s", name)
}
