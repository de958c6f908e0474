package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/bench"
)

// comparisons are the groups of -against: every row is of the executables in bin and of an older version's, in turns.
var comparisons = []rowGroup{
	{"version", (*environment).compareVersion},
	{"start", (*environment).compareStart},
	{"cold", (*environment).compareCold},
	{"warm", (*environment).compareWarm},
}

// slowdownBar is the bar of every row: it is missed if the whole interval of new/old lies above.
const slowdownBar = 1.05

// sql prints a table.
var sql = hello{language: "sql", file: "main.sql", text: "SELECT %d;\n", table: true}

// version is one of the two sets of executables, with directories of its own for caches, state and sources.
type version struct {
	name string // new or old
	bin  string
	dir  string
	env  []string // additional to that of a program
}

// versions are the new and the old version. Call remove when their processes have ended.
func (s *environment) versions() (sides [2]*version, remove func() error, err error) {
	dir, err := os.MkdirTemp("/var/cache", "sandbox-run-bench-") // on the same file system as the default cache
	if err != nil {
		return sides, nil, err
	}
	old, err := filepath.Abs(s.against)
	for i, v := range []*version{{name: "new", bin: filepath.Dir(s.cli)}, {name: "old", bin: old}} {
		v.dir = filepath.Join(dir, v.name)
		err = errors.Join(err, os.MkdirAll(filepath.Join(v.dir, "source"), 0o755))
		// No other server's socket is there: a command must not use a server that happens to run.
		v.env = append(v.env, "SANDBOX_RUN_SOCKET="+filepath.Join(v.dir, "none"))
		for _, kind := range []string{"CACHE", "STATE", "DATA"} {
			v.env = append(v.env, "XDG_"+kind+"_HOME="+filepath.Join(v.dir, strings.ToLower(kind)))
		}
		sides[i] = v
	}
	if err != nil {
		return sides, nil, errors.Join(err, discard(dir))
	}
	return sides, func() error { return discard(dir) }, nil
}

// environ is this process's own environment, by which toolchains are found, with the version's directories. Variables of sandbox-run are
// left out: SANDBOX_RUN_INIT, for one, would give both versions the same init.
func (v *version) environ() []string {
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "SANDBOX_RUN_") && name != "XDG_CACHE_HOME" && name != "XDG_STATE_HOME" && name != "XDG_DATA_HOME" {
			env = append(env, entry)
		}
	}
	return append(env, v.env...)
}

func (v *version) cli() string { return filepath.Join(v.bin, "sandbox-run") }

// describeVersions names both versions in the report, and fails if an executable is missing.
func (s *environment) describeVersions(ctx context.Context, report *bench.Report) (err error) {
	sides, remove, err := s.versions()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	var texts [2]string
	for i, v := range sides {
		for _, name := range []string{"sandbox-run", "sandbox-rund", "sandbox-init", "sandbox-kit"} {
			if _, err := os.Stat(filepath.Join(v.bin, name)); err != nil {
				return fmt.Errorf("the %s version: %w; try: make build in its tree", v.name, err)
			}
		}
		cmd := exec.CommandContext(ctx, v.cli(), "version")
		cmd.Env = v.environ()
		text, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s version: %w", v.cli(), err)
		}
		first, _, _ := strings.Cut(string(text), "\n")
		texts[i] = fmt.Sprintf("%s (%s)", v.bin, first)
	}
	report.References = []string{"old: " + texts[1]}
	report.Notes = []string{"new: " + texts[0], report.Notes[0],
		"CPU/run of a command is getrusage of it and its descendants; of a server it is the mean of the server and all its descendants over " +
			"the row, what is made ready included; ms"}
	return nil
}

// compareSides makes a row of pairs of both versions. The bar is of the interval.
func compareSides(ctx context.Context, name string, warmup, n int, run func(side int) bench.Run) (bench.Row, error) {
	ours, old, err := bench.Pairs(ctx, warmup, n, run(0), run(1))
	if err != nil {
		return bench.Row{}, fmt.Errorf("%s: %w", name, err)
	}
	return compareVersions(name, ours, old), nil
}

func compareVersions(name string, ours, old []bench.Sample) bench.Row {
	row := bench.Compare(name, "old", ours, old, 0)
	row.Bar = &bench.Bar{Limit: slowdownBar, OfInterval: true}
	return row
}

// compareProgram is a row of `sandbox-run ARGS`.
func (s *environment) compareProgram(ctx context.Context, args ...string) (rows []bench.Row, err error) {
	sides, remove, err := s.versions()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	row, err := compareSides(ctx, "sandbox-run "+strings.Join(args, " ")+", the whole command", s.warmup, s.pairs, func(side int) bench.Run {
		p := s.program(sides[side].cli(), args...)
		p.env = sides[side].env
		return always(p)
	})
	return []bench.Row{row}, err
}

func (s *environment) compareVersion(ctx context.Context) ([]bench.Row, error) {
	return s.compareProgram(ctx, "version")
}

func (s *environment) compareStart(ctx context.Context) ([]bench.Row, error) {
	return s.compareProgram(ctx, "exec", "--", "true")
}

// slow is the number of warm-up pairs and of pairs of a language whose runs take long.
func (s *environment) slow() (warmup, pairs int) { return min(3, s.warmup), min(s.pairs, s.probes) }

// compareCold are whole commands, each with a new source. The first of them make the prepared files, and are left out.
func (s *environment) compareCold(ctx context.Context) (rows []bench.Row, err error) {
	sides, remove, err := s.versions()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	for _, h := range []hello{of("python"), of("shell"), of("javascript"), sql, of("go")} {
		warmup, n := s.warmup, s.pairs
		if h.compiled {
			warmup, n = s.slow()
		}
		row, err := compareSides(ctx, h.language+" hello, the whole command, source changed each time", warmup, n, func(side int) bench.Run {
			file, env := filepath.Join(sides[side].dir, "source", h.file), sides[side].environ()
			command := step{path: sides[side].cli(), args: []string{"sandbox-run", "--cpus", "2", "--quiet", file}, env: env}
			return func(context.Context, int) (bench.Sample, error) {
				if err := os.WriteFile(file, fmt.Appendf(nil, h.text, s.number.Add(1)), 0o644); err != nil {
					return bench.Sample{}, err
				}
				return timed(func() error { return s.do(command) }, nil)
			}
		})
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// compareWarm are requests to a server of each version, both running, and their throughput.
func (s *environment) compareWarm(ctx context.Context) (rows []bench.Row, err error) {
	sides, remove, err := s.versions()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	var servers [2]*server
	defer func() { // before the directories are removed
		for _, v := range servers {
			if v != nil {
				err = errors.Join(err, v.close())
			}
		}
	}()
	for i, side := range sides {
		if servers[i], err = s.serveFrom(ctx, side.bin, side.environ()); err != nil {
			return nil, fmt.Errorf("the %s version: %w", side.name, err)
		}
	}
	programs := []hello{of("python"), of("shell"), of("javascript"), sql}
	if _, err := exec.LookPath("javac"); err == nil {
		programs = append(programs, of("java"))
	}
	for _, h := range programs {
		row, err := s.compareRequests(ctx, &servers, &h)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	row, err := s.compareThroughput(ctx, &servers)
	return append(rows, row), err
}

func (s *environment) compareRequests(ctx context.Context, servers *[2]*server, h *hello) (bench.Row, error) {
	warmup, n := s.warmup, s.pairs
	if h.compiled {
		warmup, n = s.slow()
	}
	// The first requests make prepared files and zygotes, whose CPU time is of no single run.
	for i := range 2 * (1 + warmup) {
		v := servers[i%2]
		if err := errors.Join(v.hello(ctx, h), v.settle(ctx)); err != nil {
			return bench.Row{}, fmt.Errorf("%s: %w", h.language, err)
		}
	}
	before, err := cpuOf(servers)
	if err != nil {
		return bench.Row{}, err
	}
	name := h.language + " hello, HTTP over the unix socket, one after the other"
	row, err := compareSides(ctx, name, 0, n, func(side int) bench.Run {
		return func(ctx context.Context, _ int) (bench.Sample, error) {
			began := time.Now()
			err := servers[side].hello(ctx, h)
			wall := time.Since(began)
			return bench.Sample{Wall: wall}, errors.Join(err, servers[side].settle(ctx))
		}
	})
	if err != nil {
		return row, err
	}
	after, err := cpuOf(servers)
	if err != nil {
		return row, err
	}
	row.Ours.CPU = bench.Milliseconds(after[0]-before[0]) / float64(n)
	row.Reference.CPU = bench.Milliseconds(after[1]-before[1]) / float64(n)
	row.Note = "the next request is sent when the refills of the server's pool have ended"
	return row, nil
}

func cpuOf(servers *[2]*server) (used [2]time.Duration, err error) {
	for i, v := range servers {
		if used[i], err = v.cpu(); err != nil {
			return used, err
		}
	}
	return used, nil
}

const (
	settleStep    = 50 * time.Millisecond
	settleTimeout = 5 * time.Second
)

// settle waits until the server and its descendants use no more CPU time: refills of the pool have ended.
func (v *server) settle(ctx context.Context) error {
	last := time.Duration(-1)
	for end := time.Now().Add(settleTimeout); ctx.Err() == nil && time.Now().Before(end); {
		time.Sleep(settleStep)
		used, err := v.cpu()
		if err != nil || used == last {
			return err
		}
		last = used
	}
	return ctx.Err()
}

// compareThroughput is the time per request of busy servers, in turns. Every round is a sample.
func (s *environment) compareThroughput(ctx context.Context, servers *[2]*server) (bench.Row, error) {
	python := of("python")
	ask := func(v *server) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error { return v.hello(ctx, &python) }
	}
	for _, v := range servers {
		if _, err := bench.Throughput(ctx, clients, s.each, ask(v)); err != nil {
			return bench.Row{}, err
		}
	}
	rounds := 5 * s.rounds
	_, rates, err := bench.Rates(ctx, rounds, clients, s.each, ask(servers[0]), ask(servers[1]))
	if err != nil {
		return bench.Row{}, err
	}
	var samples [2][]bench.Sample
	for side, byRound := range rates {
		for _, rate := range byRound {
			samples[side] = append(samples[side], bench.Sample{Wall: time.Duration(float64(time.Second) / rate)})
		}
	}
	row := compareVersions(fmt.Sprintf("throughput of Python hello, HTTP over the unix socket, %d clients: time per request", clients),
		samples[0], samples[1])
	row.Note = fmt.Sprintf("%d rounds of %v of each version in turns; the clients share the cores with the server", rounds, s.each)
	return row, nil
}
