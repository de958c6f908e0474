package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// neighbourBar is row R13 of the threats: the largest ratio of a run's time while another sandbox misbehaves.
const neighbourBar = 1.5

// nuisance is a program that never ends by itself, and uses up its limits: one core, 128 MiB, 100 processes and 256 MiB of disk.
type nuisance struct {
	name string
	args []string
	// worst fails while the nuisance has not reached its limit.
	worst func(monitor.Metrics) error
}

const python3 = "/usr/bin/python3"

var nuisances = []nuisance{
	{
		"a fork bomb", []string{python3, "-c", "import os\nwhile True:\n try: os.fork()\n except OSError: pass"},
		func(m monitor.Metrics) error { return some("forks refused", m.ProcessLimitHits) },
	},
	{
		"a memory bomb", []string{python3, "-c", `import os
while True:
 if os.fork() == 0:
  kept = []
  while True: kept.append(bytearray(b"x" * (1 << 20)))
 os.wait()`},
		func(m monitor.Metrics) error { return some("OOM kills", m.OOMKills) },
	},
	{
		"a disk fill", []string{"/bin/sh", "-c", "while :; do cat /dev/zero > $HOME/x; rm $HOME/x; done 2>/dev/null"},
		func(m monitor.Metrics) error { return some("64 MiB on its disk", m.DiskUsed>>26) },
	},
	{
		"an output flood", []string{"/bin/cat", "/dev/zero"},
		func(m monitor.Metrics) error {
			return some("CPU time", uint64(m.CPUTime.Duration()/(10*time.Millisecond)))
		},
	},
	{
		"a flood of refused calls", []string{probeAt, probeWord, "refused"},
		// The program ends at the first system call that is allowed.
		func(m monitor.Metrics) error {
			return some("CPU time", uint64(m.CPUTime.Duration()/(10*time.Millisecond)))
		},
	},
}

func some(what string, n uint64) error {
	if n == 0 {
		return fmt.Errorf("no %s: it was no nuisance", what)
	}
	return nil
}

// refused makes system calls that no sandbox allows, without end.
func refused() error {
	for {
		if _, _, errno := unix.RawSyscall(unix.SYS_KEYCTL, 0, 0, 0); errno != unix.EPERM && errno != unix.ENOSYS {
			return fmt.Errorf("keyctl: %w", errno)
		}
	}
}

// nuisanceAlive is a started nuisance, which setQuiet stops and continues.
type nuisanceAlive struct {
	s    *environment
	id   string
	quit context.CancelFunc
	over chan struct{}
	err  error

	quiet bool
	used  struct {
		cpu, wall time.Duration // while it was not stopped
	}
	since struct {
		cpu  time.Duration
		wall time.Time
	}
	ending sync.Once
}

func (s *environment) nuisance(ctx context.Context, n nuisance) (*nuisanceAlive, error) {
	id, err := s.manager.Create(ctx, sandbox.Spec{
		Volumes: []sandbox.Volume{{Source: s.self, Target: probeAt}},
		Env:     probeEnv,
		Limits: sandbox.Limits{Wall: time.Hour, Grace: time.Millisecond, CPUs: 1, Memory: 128 * sandbox.MiB, Disk: 256 * sandbox.MiB,
			Processes: 100},
	})
	if err != nil {
		return nil, err
	}
	ctx, quit := context.WithCancel(ctx)
	a := &nuisanceAlive{s: s, id: id, quit: quit, over: make(chan struct{})}
	a.since.wall = time.Now()
	go func() {
		defer close(a.over)
		_, a.err = s.manager.Run(ctx, id, sandbox.Process{Args: n.args}, sandbox.IO{})
	}()
	return a, nil
}

// A nuisance that continues first spends the CPU time that it could not use while it was stopped, on all cores: the kernel
// hands out CPU time by periods of 100 ms. The effects of its calls end sooner.
const (
	resumed  = 150 * time.Millisecond
	calmed   = 20 * time.Millisecond
	inABlock = 5
)

// await waits until the nuisance is at work.
func (a *nuisanceAlive) await(worst func(monitor.Metrics) error) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(resumed) {
		m, err := a.s.manager.GetMetrics(a.id)
		if err == nil {
			err = worst(m)
		}
		if err == nil || time.Now().After(end) {
			return err
		}
		select {
		case <-a.over:
			return errors.Join(errors.New("the nuisance has ended"), a.err)
		default:
		}
	}
}

// setQuiet stops or continues the nuisance.
func (a *nuisanceAlive) setQuiet(quiet bool) error {
	select {
	case <-a.over:
		return errors.Join(errors.New("the nuisance has ended"), a.err)
	default:
	}
	if quiet == a.quiet {
		return nil
	}
	m, err := a.s.manager.GetMetrics(a.id)
	if err != nil {
		return err
	}
	if quiet {
		a.used.cpu += m.CPUTime.Duration() - a.since.cpu
		a.used.wall += time.Since(a.since.wall)
	}
	err = signalBelow(quiet)
	a.quiet = quiet
	if quiet {
		time.Sleep(calmed)
		return err
	}
	time.Sleep(resumed)
	// Count its CPU time from here on.
	if m, metricsErr := a.s.manager.GetMetrics(a.id); metricsErr == nil {
		a.since.cpu, a.since.wall = m.CPUTime.Duration(), time.Now()
	}
	return err
}

// signalBelow stops or continues every descendant of this process but its children. Between two measured runs these are the
// nuisance's programs; the children are inits, among them the spare one of the next measured run.
func signalBelow(stop bool) error {
	signal := unix.SIGCONT
	if stop {
		signal = unix.SIGSTOP
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		active := 0 // processes that may have forked since: the search is repeated for their children
		for pid, state := range processesBelow(os.Getpid()) {
			if state == "Z" || stop == (state == "T") {
				continue
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue // ended
			}
			active++
			err = unix.PidfdSendSignal(fd, signal, nil, 0)
			_ = unix.Close(fd)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("signal the nuisance: %w", err)
			}
		}
		if active == 0 || !stop {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d processes of the nuisance do not stop", active)
		}
	}
}

// processesBelow lists the descendants of a process, but not its children, with their states, as in /proc/PID/stat.
func processesBelow(top int) map[int]string {
	states, children := map[int]string{}, map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text, _ := os.ReadFile(name) // empty: ended
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil || len(fields) < 2 {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		states[pid], children[parent] = fields[0], append(children[parent], pid)
	}
	below := map[int]string{}
	for next := children[top]; len(next) > 0; next = next[1:] {
		for _, child := range children[next[0]] {
			below[child] = states[child]
		}
		next = append(next, children[next[0]]...)
	}
	return below
}

// end ends the nuisance. It may be called twice.
func (a *nuisanceAlive) end() (err error) {
	a.ending.Do(func() {
		a.quit()
		err = a.s.manager.Delete(context.Background(), a.id)
		<-a.over
		err = errors.Join(err, a.err)
	})
	return err
}

// neighbours measures row R13: a fresh sandbox while a nuisance runs, against the same while the nuisance is stopped.
func (s *environment) neighbours(ctx context.Context) ([]bench.Row, error) {
	if _, err := os.Stat(python3); err != nil {
		return nil, fmt.Errorf("%w; try: scripts/deps.sh bench", err)
	}
	var rows []bench.Row
	for _, n := range nuisances {
		row, err := s.neighbour(ctx, n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.name, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (s *environment) neighbour(ctx context.Context, n nuisance) (row bench.Row, err error) {
	a, err := s.nuisance(ctx, n)
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, a.end()) }()
	if err := a.await(n.worst); err != nil {
		return row, err
	}
	run := func(ctx context.Context, number int) (bench.Sample, error) {
		return timed(func() error {
			_, err := s.once(ctx, number, sandbox.Spec{Scratch: sandbox.ScratchMemory, Limits: sandbox.Limits{CPUs: 1}}, "true")
			return err
		}, nil)
	}
	be := func(_ context.Context, loud bool) error { return a.setQuiet(!loud) }
	loud, quiet, err := bench.Blocks(ctx, s.neighbourRounds, inABlock, be, run, run)
	if err != nil {
		return row, err
	}
	for _, samples := range [][]bench.Sample{loud, quiet} {
		for i := range samples {
			samples[i].CPU = 0 // it includes that of the nuisance
		}
	}
	if err := a.end(); err != nil {
		return row, err
	}
	row = bench.Compare("fresh sandbox + true + gone beside "+n.name, "quiet", loud, quiet, neighbourBar)
	row.Note = fmt.Sprintf("both of one supervisor, each limited to 1 core; the other one is stopped and goes on in turns of %d runs, and "+
		"used %.2f cores while it was not", inABlock, a.used.cpu.Seconds()/a.used.wall.Seconds())
	return row, nil
}
