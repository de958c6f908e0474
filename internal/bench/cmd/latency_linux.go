package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// once makes a sandbox, runs a program in it, and deletes it.
func (s *environment) once(ctx context.Context, number int, spec sandbox.Spec, args ...string) (*sandbox.Result, error) {
	id, err := s.manager.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	// A different environment each time, so that a reused result would be noticed.
	p := sandbox.Process{Args: args, Env: map[string]string{"BENCH_RUN": strconv.Itoa(number)}}
	result, err := s.manager.Run(ctx, id, p, sandbox.IO{})
	if err := errors.Join(err, s.manager.Delete(ctx, id)); err != nil {
		return nil, err
	}
	if !result.Success() {
		return nil, fmt.Errorf("%v in the sandbox: %s, %q", args, result.Verdict, result.Stderr.Bytes())
	}
	return result, nil
}

// fresh times once, and checks that the deleted sandbox leaves nothing.
func (s *environment) fresh(spec sandbox.Spec, args ...string) bench.Run {
	return func(ctx context.Context, number int) (bench.Sample, error) {
		return timed(func() error {
			_, err := s.once(ctx, number, spec, args...)
			return err
		}, s.gone.verify)
	}
}

func always(p *program) bench.Run {
	return func(context.Context, int) (bench.Sample, error) { return p.sample() }
}

// library measures rows 1: Create, Run and Delete in this process.
func (s *environment) library(ctx context.Context) ([]bench.Row, error) {
	// Control: the leftovers of one running sandbox are found.
	if err := s.seesLeftovers(ctx); err != nil {
		return nil, err
	}
	var rows []bench.Row
	for _, c := range []struct {
		mode sandbox.ScratchMode
		bar  float64
	}{{sandbox.ScratchMemory, 0.9}, {sandbox.ScratchDisk, 1.6}} {
		s.gone.checks = 0
		ours, ref, err := bench.Pairs(ctx, s.warmup, s.pairs, s.fresh(sandbox.Spec{Scratch: c.mode}, "true"), always(s.reference))
		if err != nil {
			return nil, fmt.Errorf("%s scratch: %w", c.mode, err)
		}
		row := bench.Compare(fmt.Sprintf("fresh sandbox + true + gone, library, %s scratch", c.mode), "bwrap", ours, ref, c.bar)
		row.Note = fmt.Sprintf("cgroups and loop devices seen to be gone after each of %d runs; the library keeps one init ready, used once: "+
			"what that hides, the rows on throughput show", s.gone.checks)
		rows = append(rows, row)
	}
	return rows, nil
}

func (s *environment) seesLeftovers(ctx context.Context) error {
	id, err := s.manager.Create(ctx, sandbox.Spec{Scratch: sandbox.ScratchDisk})
	if err != nil {
		return err
	}
	found, err := s.gone.list()
	if err = errors.Join(err, s.manager.Delete(ctx, id)); err != nil {
		return err
	}
	text := strings.Join(found, ", ")
	if !strings.Contains(text, "cgroup ") || !strings.Contains(text, "loop device ") {
		return fmt.Errorf("of a running sandbox only this is found: %q; leftovers of a deleted one would be missed as well", text)
	}
	return s.gone.verify()
}

// command measures row 2: the whole of `sandbox-run exec -- true`.
func (s *environment) command(ctx context.Context) ([]bench.Row, error) {
	cli := s.program(s.cli, "exec", "--", "true")
	ours, ref, err := bench.Pairs(ctx, s.warmup, s.pairs, always(cli), always(s.reference))
	if err != nil {
		return nil, err
	}
	return []bench.Row{bench.Compare("sandbox-run exec -- true, the whole command", "bwrap", ours, ref, 2.5)}, nil
}

// inits measures row 3: the initialisers of all linked packages at every start.
func (s *environment) inits(ctx context.Context) ([]bench.Row, error) {
	var sums []float64
	for range s.traces {
		cmd := exec.CommandContext(ctx, s.cli, "version")
		cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
		var trace bytes.Buffer
		cmd.Stderr = &trace
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%s version: %w", s.cli, err)
		}
		sum, packages := sumInits(trace.String())
		if packages == 0 {
			return nil, errors.New("no package in the trace of GODEBUG=inittrace=1")
		}
		sums = append(sums, sum)
	}
	return []bench.Row{{
		Name: "init functions of sandbox-run, summed", Unit: "ms", Ours: bench.SummarizeValues(sums), Bar: &bench.Bar{Limit: 2},
	}}, nil
}

// sumInits adds up lines like "init internal/bytealg @0.008 ms, 0.12 ms clock, 0 bytes, 0 allocs".
func sumInits(trace string) (ms float64, packages int) {
	for lines := bufio.NewScanner(strings.NewReader(trace)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 7 || f[0] != "init" || f[5] != "ms" || f[6] != "clock," {
			continue
		}
		if v, err := strconv.ParseFloat(f[4], 64); err == nil {
			ms += v
			packages++
		}
	}
	return ms, packages
}

// bare measures the programs without a sandbox, for information.
func (s *environment) bare(ctx context.Context) ([]bench.Row, error) {
	true_ := s.program("/usr/bin/true")
	samples, err := bench.Series(ctx, s.warmup, s.pairs, always(true_))
	if err != nil {
		return nil, err
	}
	rows := []bench.Row{{Name: "bare true, fork and exec", Unit: "ms", Ours: bench.Summarize(samples)}}
	const python = "/usr/bin/python3"
	if _, err := os.Stat(python); err != nil {
		rows[0].Note = python + " is not here: no row for it"
		return rows, nil
	}
	ours, ref, err := bench.Pairs(ctx, min(3, s.warmup), s.probes, s.fresh(sandbox.Spec{Scratch: sandbox.ScratchMemory}, python, "-c", "1"),
		always(s.program(python, "-c", "1")))
	if err != nil {
		return nil, err
	}
	row := bench.Compare(python+" -c 1, fresh sandbox, library", "bare", ours, ref, 0)
	row.Note = "the same binary and flags inside and bare"
	return append(rows, row), nil
}
