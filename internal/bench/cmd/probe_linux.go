package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// probeWord is the first argument with which this executable is the probe: the same file inside and bare. The probe times itself, so that
// its start-up is not in the figure, and prints nanoseconds.
const probeWord = "sandbox-run-bench-probe"

func isProbe(args []string) bool { return len(args) > 1 && args[1] == probeWord }

// networkWork is what networkProbe does.
var networkWork = map[string]bool{"wait": true, "upload": true, "download": true, "connects": true, "hold": true}

const syscallRounds = 200_000

// probe does one kind of work and prints its duration.
func probe(args []string, stdout io.Writer) int {
	if len(args) > 0 && networkWork[args[0]] {
		if err := networkProbe(args, stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return exitFailed
		}
		return exitMet
	}
	work := map[string]func() error{"cpu": burn, "syscalls": calls, "refused": refused}[strings.Join(args, " ")]
	if work == nil {
		return exitFailed
	}
	began := time.Now() // CLOCK_MONOTONIC
	if err := work(); err != nil {
		fmt.Fprintln(stdout, err)
		return exitFailed
	}
	fmt.Fprintln(stdout, time.Since(began).Nanoseconds())
	return exitMet
}

// sink keeps the compiler from removing work without a visible result.
var sink atomic.Uint64

// burn computes and sorts: arithmetic, branches and memory, no system calls. It takes about as long as calls. In a shorter run, the start
// of the next spare init, which takes a millisecond, would count as overhead of the program.
func burn() error {
	x := uint64(88172645463325252)
	data := make([]uint64, 1<<15)
	for range 60 {
		for i := range data {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			data[i] = x
		}
		slices.Sort(data)
		sink.Add(data[x%uint64(len(data))])
	}
	return nil
}

// calls repeats getppid and a read of one byte.
func calls() error {
	zero, err := os.Open("/dev/zero")
	if err != nil {
		return err
	}
	defer zero.Close()
	fd, buf, last := int(zero.Fd()), make([]byte, 1), 0
	for range syscallRounds {
		last = unix.Getppid()
		if _, err := unix.Read(fd, buf); err != nil {
			return err
		}
	}
	sink.Add(uint64(last))
	return nil
}

// probeEnv keeps a probe that was built with the race detector, as tests are, from sleeping for a
// second at its end.
var probeEnv = map[string]string{"GORACE": "atexit_sleep_ms=0"}

// probeAt is the path of the probe inside.
const probeAt = "/opt/bench/probe"

// overhead measures row 6: the same work inside and bare, timed by the probe itself.
func (s *environment) overhead(ctx context.Context) ([]bench.Row, error) {
	spec := sandbox.Spec{
		Scratch: sandbox.ScratchMemory,
		Volumes: []sandbox.Volume{{Source: s.self, Target: probeAt}},
		Env:     probeEnv,
		// Two cores: with one, the Go runtime's other threads would use a part of the quota.
		Limits: sandbox.Limits{CPUs: float64(min(2, machine().Cores))},
	}
	var rows []bench.Row
	for _, c := range []struct {
		work, name string
		bar        float64
	}{
		{"cpu", "CPU-bound work inside vs bare", 1.03},
		{"syscalls", "getppid + read of 1 byte, 200 000 times, inside vs bare", 1.2},
	} {
		inside := func(ctx context.Context, number int) (bench.Sample, error) {
			result, err := s.once(ctx, number, spec, probeAt, probeWord, c.work)
			if err != nil {
				return bench.Sample{}, err
			}
			return selfTimed(result.Stdout.Bytes())
		}
		bare := s.program(s.self, probeWord, c.work)
		outside := func(context.Context, int) (bench.Sample, error) {
			out, err := bare.output()
			if err != nil {
				return bench.Sample{}, err
			}
			return selfTimed(out)
		}
		ours, ref, err := bench.Pairs(ctx, min(3, s.warmup), s.probes, inside, outside)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.work, err)
		}
		row := bench.Compare(c.name, "bare", ours, ref, c.bar)
		row.Note = fmt.Sprintf("timed by the probe itself, start-up not counted; --cpus %v so that the quota is not what is measured; nothing "+
			"is pinned; %d warm-up pairs", spec.Limits.CPUs, min(3, s.warmup))
		rows = append(rows, row)
	}
	return rows, nil
}

// selfTimed parses the output of a probe.
func selfTimed(out []byte) (bench.Sample, error) {
	ns, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil || ns <= 0 {
		return bench.Sample{}, fmt.Errorf("the probe said %q", out)
	}
	return bench.Sample{Wall: time.Duration(ns)}, nil
}

// output runs the program to its successful end and returns its output.
func (p *program) output() ([]byte, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	pid, err := p.start(w, "GORACE="+probeEnv["GORACE"])
	_ = w.Close() // this process's end; the program has its own
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.path, err)
	}
	out, readErr := io.ReadAll(r)
	return out, errors.Join(readErr, p.await(pid))
}
