package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
)

// clients is the number of concurrent clients, the same as in published measurements.
const clients = 8

// pressure measures a busy server at its peak, near it and far beyond it. It uses the distribution's Python, which loads no other modules
// at its start, as in published measurements of such rates.
func (s *environment) pressure(ctx context.Context) (rows []bench.Row, err error) {
	env := []string{systemPath()}
	v, err := s.serveWith(ctx, env)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, v.close()) }()
	peak, rate, err := s.peak(ctx, v, env)
	if err != nil {
		return nil, err
	}
	rows = append(rows, peak)
	near, err := s.near(ctx, v, 0.7*rate)
	if err != nil {
		return nil, err
	}
	beside, err := s.servedNeighbour(ctx, v)
	if err != nil {
		return nil, err
	}
	over, err := s.overload(ctx, v, 4*rate)
	return append(append(rows, near, beside), over...), err
}

// peak compares the rate of requests on all cores with the rate of the same program without a sandbox.
func (s *environment) peak(ctx context.Context, v *server, env []string) (row bench.Row, rate float64, err error) {
	// No other goroutine may reap orphans while workers wait for their own children.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
		return row, 0, err
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }()
	dir, err := os.MkdirTemp("", "sandbox-run-bench-")
	if err != nil {
		return row, 0, err
	}
	defer func() { err = errors.Join(err, removal.Tree(context.WithoutCancel(ctx), dir)) }()
	python := of("python")
	b := &bare{environment: s, hello: python, dir: dir, env: env}
	if err := errors.Join(b.prepare(ctx), b.write("workspace", 1)); err != nil {
		return row, 0, err
	}
	ask := func(ctx context.Context, _ int) error { return v.hello(ctx, &python) }
	reference := func(context.Context, int) error {
		for _, st := range b.steps[b.first:] {
			if err := b.do(st); err != nil {
				return err
			}
		}
		return nil
	}
	if _, err := bench.Throughput(ctx, clients, s.each/5, ask); err != nil {
		return row, 0, err
	}
	before, err := v.cpu()
	if err != nil {
		return row, 0, err
	}
	sums, byRound, err := bench.Rates(ctx, s.rounds, clients, 2*s.each, ask, reference)
	if err != nil {
		return row, 0, err
	}
	after, err := v.cpu()
	if err != nil {
		return row, 0, err
	}
	rate = sums[0].PerSecond()
	return bench.Row{
		Name: fmt.Sprintf("throughput of Python hello, HTTP over the unix socket, %d clients", clients), Unit: "/s",
		Bar:       &bench.Bar{Limit: 220, AtLeast: true},
		Ours:      bench.Stat{P50: rate, N: sums[0].Done, CPU: bench.Milliseconds(after-before) / float64(max(sums[0].Done, 1))},
		Reference: &bench.Stat{P50: sums[1].PerSecond(), N: sums[1].Done}, Versus: "bare",
		Ratio: roundRatio(sums[0], sums[1], byRound[0], byRound[1]),
		Note: fmt.Sprintf("the mean rate over %d rounds of %v, higher is better; every source is new; the clients share the cores with the "+
			"server; bare: as many at a time of %s", s.rounds, 2*s.each, b),
	}, rate, nil
}

// near measures the tail of latencies at 70 % of the peak.
func (s *environment) near(ctx context.Context, v *server, rate float64) (bench.Row, error) {
	python := of("python")
	n := max(3, int(rate*float64(s.rounds)*s.each.Seconds()*2))
	took, err := arrive(ctx, n, rate, func(ctx context.Context) error { return v.hello(ctx, &python) })
	if err != nil {
		return bench.Row{}, err
	}
	var ms []float64
	for _, d := range took {
		ms = append(ms, bench.Milliseconds(d))
	}
	p50, p99 := bench.Median(ms), bench.Quantile(ms, 0.99)
	return bench.Row{
		Name: "p99 / p50 of Python hello at 70 % of that rate", Unit: "×", Ours: bench.Stat{P50: p99 / p50, N: n}, Bar: &bench.Bar{Limit: 6},
		Note: fmt.Sprintf("%.0f arrivals a second, latency from when a request was due: p50 %.1f ms, p99 %.1f ms", rate, p50, p99),
	}, nil
}

// servedNeighbour measures the latency of a request while another request runs a fork bomb on the same server.
func (s *environment) servedNeighbour(ctx context.Context, v *server) (row bench.Row, err error) {
	python := of("python")
	var bomb string
	end := func(ctx context.Context) error {
		if bomb == "" {
			return nil
		}
		_, err := v.do(ctx, http.MethodDelete, "/v1/runs/"+bomb, nil)
		bomb = ""
		return err
	}
	defer func() { err = errors.Join(err, end(context.WithoutCancel(ctx))) }()
	be := func(ctx context.Context, loud bool) error {
		if loud == (bomb != "") {
			return nil
		}
		if !loud {
			err := end(ctx)
			time.Sleep(resumed)
			return err
		}
		a, err := v.do(ctx, http.MethodPost, "/v1/runs", map[string]any{
			"language": "python", "code": fmt.Sprintf("import os\nn = %d\nwhile True:\n try: os.fork()\n except OSError: pass\n", v.number.Add(1)),
			"memory": "128MiB", "cpus": 1,
		})
		if err != nil {
			return err
		}
		bomb = a.ID
		for end := time.Now().Add(serverTimeout); ; time.Sleep(10 * time.Millisecond) {
			if a, err = v.get(ctx, "/v1/runs/"+bomb); err != nil || a.State == "running" {
				time.Sleep(resumed)
				return err
			}
			if a.State == "done" || time.Now().After(end) {
				return fmt.Errorf("the nuisance is %s", a.State)
			}
		}
	}
	run := func(ctx context.Context, _ int) (bench.Sample, error) {
		began := time.Now()
		err := v.hello(ctx, &python)
		wall := time.Since(began)
		time.Sleep(pause)
		return bench.Sample{Wall: wall}, err
	}
	loud, quiet, err := bench.Blocks(ctx, s.neighbourRounds, inABlock, be, run, run)
	if err != nil {
		return row, err
	}
	row = bench.Compare("Python hello over HTTP beside a fork bomb of the same server", "quiet", loud, quiet, neighbourBar)
	row.Note = fmt.Sprintf("the other is limited to 1 core, started and ended in turns of %d requests", inABlock)
	return row, nil
}

// overload measures a server that gets four times its peak rate for a minute.
func (s *environment) overload(ctx context.Context, v *server, rate float64) ([]bench.Row, error) {
	python := of("python")
	calm, err := bench.Series(ctx, 0, max(3, s.warmup), func(ctx context.Context, _ int) (bench.Sample, error) {
		began := time.Now()
		err := v.hello(ctx, &python)
		return bench.Sample{Wall: time.Since(began)}, err
	})
	if err != nil {
		return nil, err
	}
	usual := bench.Summarize(calm).P50
	ownBefore, _, err := v.pss()
	if err != nil {
		return nil, err
	}
	var right, refused, wrong atomic.Int64
	var first atomic.Pointer[string]
	watch, stop := context.WithCancel(ctx)
	highest := make(chan float64, 1)
	go func() {
		top := ownBefore
		for watch.Err() == nil {
			if own, err := pssOf(strconv.Itoa(v.cmd.Process.Pid)); err == nil {
				top = max(top, own)
			}
			time.Sleep(100 * time.Millisecond)
		}
		highest <- top
	}()
	n := max(3, int(rate*s.overloadFor.Seconds()))
	_, err = arrive(ctx, n, rate, func(ctx context.Context) error {
		switch err := v.hello(ctx, &python); {
		case err == nil:
			right.Add(1)
		case errors.Is(err, errBusy):
			refused.Add(1)
		default:
			text := err.Error()
			first.CompareAndSwap(nil, &text)
			wrong.Add(1)
		}
		return nil
	})
	ended := time.Now()
	stop()
	top := <-highest
	if err != nil {
		return nil, err
	}
	// The server has recovered after three successive requests of at most twice the earlier time.
	again := time.Duration(0)
	for inARow := 0; inARow < 3 && time.Since(ended) < time.Minute; {
		began := time.Now()
		err := v.hello(ctx, &python)
		if err == nil && bench.Milliseconds(time.Since(began)) <= max(2*usual, usual+5) {
			if inARow++; inARow == 1 {
				again = began.Sub(ended)
			}
			continue
		}
		inARow = 0
		time.Sleep(pause)
	}
	answered := right.Load() + refused.Load() + wrong.Load()
	note := fmt.Sprintf("%.0f arrivals a second for %v: %d ran and printed what they should, %d got 429 or 503, %d something else", rate,
		s.overloadFor, right.Load(), refused.Load(), wrong.Load())
	if text := first.Load(); text != nil {
		note += ": " + *text
	}
	return []bench.Row{
		{
			Name: "overload, 4 × capacity: requests that ran right or got 429 or 503", Unit: "%", Bar: &bench.Bar{Limit: 100, AtLeast: true},
			Note: note,
			Ours: bench.Stat{P50: 100 * float64(right.Load()+refused.Load()) / float64(max(answered, 1)), N: int(answered)},
		},
		{
			Name: "overload: the server's own memory at the most", Unit: "MB", Ours: bench.Stat{P50: top, N: 1}, Bar: &bench.Bar{Limit: 512},
			Note: fmt.Sprintf("%.1f MB before", ownBefore),
		},
		{
			Name: "overload: normal again after", Unit: "s", Ours: bench.Stat{P50: max(again.Seconds(), 0.001), N: 1}, Bar: &bench.Bar{Limit: 5},
			Note: fmt.Sprintf("the first of three in a row that take at most twice the usual %.1f ms", usual),
		},
	}, nil
}

// crowd measures the memory of an idle sandbox of a server.
func (s *environment) crowd(ctx context.Context) (rows []bench.Row, err error) {
	// The sum of the limits exceeds the machine's memory: idle sandboxes do not use theirs.
	v, err := s.serve(ctx, "--promise-memory", "64g", "--promise-cpus", "1024")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, v.close()) }()
	python := of("python")
	if err := v.hello(ctx, &python); err != nil {
		return nil, err
	}
	time.Sleep(refillWait)
	ownBefore, othersBefore, err := v.pss()
	if err != nil {
		return nil, err
	}
	availableBefore, err := available()
	if err != nil {
		return nil, err
	}
	var ids []string
	defer func() {
		for _, id := range ids {
			_, gone := v.do(context.WithoutCancel(ctx), http.MethodDelete, "/v1/runs/"+id, nil)
			err = errors.Join(err, gone)
		}
	}()
	for range s.crowdSize {
		a, err := v.do(ctx, http.MethodPost, "/v1/runs", map[string]any{
			"language": "shell", "code": fmt.Sprintf("exec sleep 1%06d\n", v.number.Add(1)), "memory": "32MiB", "cpus": 0.1, "timeout": "5m",
		})
		if err != nil {
			return nil, err
		}
		ids = append(ids, a.ID)
	}
	for _, id := range ids {
		for end := time.Now().Add(serverTimeout); ; time.Sleep(20 * time.Millisecond) {
			a, err := v.get(ctx, "/v1/runs/"+id)
			if err != nil {
				return nil, err
			}
			if a.State == "running" {
				break
			}
			if a.State != "queued" || time.Now().After(end) {
				return nil, fmt.Errorf("one of %d is %s", len(ids), a.State)
			}
		}
	}
	time.Sleep(refillWait)
	own, others, err := v.pss()
	if err != nil {
		return nil, err
	}
	availableAfter, err := available()
	if err != nil {
		return nil, err
	}
	calm, err := bench.Series(ctx, 1, max(3, s.warmup), func(ctx context.Context, _ int) (bench.Sample, error) {
		began := time.Now()
		err := v.hello(ctx, &python)
		return bench.Sample{Wall: time.Since(began)}, err
	})
	if err != nil {
		return nil, err
	}
	n := float64(len(ids))
	return []bench.Row{
		{
			Name: fmt.Sprintf("%d live idle sandboxes of a server: PSS of each", len(ids)), Unit: "MB", Bar: &bench.Bar{Limit: 6},
			Ours: bench.Stat{P50: max(own-ownBefore+others-othersBefore, 0.001) / n, N: len(ids)},
			Note: fmt.Sprintf("inits, programs and the server's growth of %.1f MB; a program that sleeps", own-ownBefore),
		},
		{
			Name: "the same, the kernel's part included", Unit: "MB", Ours: bench.Stat{P50: (availableBefore - availableAfter) / n, N: len(ids)},
			Note: "fall of MemAvailable; everything else on the machine is in it too",
		},
		{
			Name: "Python hello over HTTP beside them", Unit: "ms", Ours: bench.Summarize(calm), Bar: &bench.Bar{Limit: 500},
			Note: "the server is responsive",
		},
	}, nil
}

func available() (float64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return megabytes(text, "MemAvailable:")
}

// footing are the resources of a server.
type footing struct {
	rss                         float64
	descriptors, groups, mounts int
}

func (v *server) footing() (f footing, err error) {
	pid := strconv.Itoa(v.cmd.Process.Pid)
	if f.rss, err = pssOf(pid); err != nil {
		return f, err
	}
	fds, err := os.ReadDir("/proc/" + pid + "/fd")
	if err != nil {
		return f, err
	}
	f.descriptors = len(fds)
	for _, m := range []string{"/proc/self/mountinfo", "/proc/" + pid + "/mountinfo"} {
		text, err := os.ReadFile(m)
		if err != nil {
			return f, err
		}
		f.mounts += strings.Count(string(text), "\n")
	}
	record := ""
	for _, fd := range fds { // its registration lists the roots of its cgroups
		target, err := os.Readlink("/proc/" + pid + "/fd/" + fd.Name())
		if err == nil && strings.HasPrefix(target, registryDir+"s") {
			record = target
		}
	}
	if record == "" {
		return f, fmt.Errorf("no registration of the server below %s", registryDir)
	}
	text, err := os.ReadFile(record)
	if err != nil {
		return f, err
	}
	for _, root := range strings.Fields(string(text)) {
		names, err := filepath.Glob(filepath.Join(root, filepath.Base(record), "*"))
		if err != nil {
			return f, err
		}
		for _, n := range names {
			if st, err := os.Stat(n); err == nil && st.IsDir() {
				f.groups++
			}
		}
	}
	return f, nil
}

// soak checks that a server's resources have not grown after a long mixed load. It runs only with -soak.
func (s *environment) soak(ctx context.Context) (rows []bench.Row, err error) {
	if s.soakFor == 0 {
		return nil, nil
	}
	v, err := s.serve(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, v.close()) }()
	programs := []hello{of("python"), of("shell"), of("javascript"), of("python"), of("typescript"), of("python")}
	var turn, done atomic.Int64
	mixed := func(d time.Duration) error {
		rate, err := bench.Throughput(ctx, 4, d, func(ctx context.Context, _ int) error {
			h := programs[turn.Add(1)%int64(len(programs))]
			return v.hello(ctx, &h)
		})
		done.Add(int64(rate.Done))
		return err
	}
	rest := func() (footing, error) { // the pool is filled, and no request runs
		time.Sleep(min(s.soakFor/10, 30*time.Second))
		return v.footing()
	}
	if err := mixed(s.soakFor / 10); err != nil {
		return nil, err
	}
	before, err := rest()
	if err != nil {
		return nil, err
	}
	if err := mixed(s.soakFor); err != nil {
		return nil, fmt.Errorf("%w: %s", err, v.said())
	}
	after, err := rest()
	if err != nil {
		return nil, err
	}
	note := fmt.Sprintf("%d runs of mixed load in %v", done.Load(), s.soakFor)
	row := func(what, unit string, grown, limit float64) bench.Row {
		return bench.Row{Name: "soak: growth of the server's " + what, Unit: unit, Ours: bench.Stat{P50: grown, N: int(done.Load())},
			Bar: &bench.Bar{Limit: limit}, Note: note}
	}
	return []bench.Row{
		row("memory", "MB", after.rss-before.rss, 16), // garbage that is not collected yet
		row("descriptors", "", float64(after.descriptors-before.descriptors), 8),
		row("cgroups", "", float64(after.groups-before.groups), 4), // the number of pooled sandboxes varies
		row("mounts", "", float64(after.mounts-before.mounts), 0),
	}, nil
}
