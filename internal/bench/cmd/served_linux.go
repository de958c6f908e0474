package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/oci"
)

// pandas is the reason for the second preload set of Python.
var pandas = hello{language: "python", file: "main.py", text: "import pandas as pd\nprint(pd.DataFrame({'n': [0, %d]}).n.sum())\n"}

// request is a row of the server: a program, its rate of arrivals, and its bars.
type request struct {
	name    string
	program hello
	rate    float64 // arrivals a second; 0: one after the other, in pairs with the reference
	ratio   float64
	excess  float64
	instead []string // a command that replaces the one of the plan
	system  bool     // with the distribution's own programs, whatever else is on PATH: its Python has pandas
}

var requests = []request{
	{name: "Python hello", program: of("python"), rate: 20, ratio: 0.45},
	// Without other modules that are loaded at the start.
	{name: "Python hello, the distribution's", program: of("python"), rate: 20, ratio: 0.45, system: true},
	{name: "Python import pandas + small frame", program: pandas, rate: 5, ratio: 0.08, system: true},
	{name: "Node hello", program: of("javascript"), rate: 5, ratio: 0.35},
	{name: "TypeScript hello", program: of("typescript"), rate: 5, ratio: 0.40},
	{name: "Java hello, compile + run", program: of("java"), rate: 1, ratio: 0.35, instead: []string{"java", "Main.java"}},
	{name: "Go hello, new source", program: of("go"), ratio: 0.80, instead: []string{"go", "run", "main.go"}},
	{name: "Rust hello, new source", program: of("rust"), ratio: 1.05},
	{name: "Shell hello", program: of("shell"), excess: 5},
}

func of(language string) hello {
	for _, h := range hellos {
		if h.language == language {
			return h
		}
	}
	panic("no hello in " + language)
}

// Arrivals, and how they alternate with the reference.
const (
	poolTimes    = 20 // arrivals are at least this many times the size of the pool
	mostInABlock = 20
	refillWait   = time.Second // in which refills end, and are counted
	// refillTime follows a request of a pair, so that neither side shares the cores with refills.
	refillTime = 200 * time.Millisecond
)

// served compares a request over the unix socket, until its whole answer is read, with the same programs and flags without a sandbox.
func (s *environment) served(ctx context.Context) (rows []bench.Row, err error) {
	if out, err := exec.CommandContext(ctx, python3, "-c", "import pandas").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s has no pandas: %w: %s; try: scripts/deps.sh bench", python3, err, out)
	}
	for _, system := range []bool{false, true} {
		more, err := s.servedBy(ctx, system)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	peers, err := s.peers(ctx)
	return append(rows, peers...), err
}

// systemPath returns a PATH with the distribution's programs first.
func systemPath() string { return "PATH=/usr/bin:/bin:" + os.Getenv("PATH") }

func (s *environment) servedBy(ctx context.Context, system bool) (rows []bench.Row, err error) {
	var env []string
	if system {
		env = append(env, systemPath())
	}
	v, err := s.serveWith(ctx, env)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, v.close()) }()
	for _, r := range requests {
		if r.system != system {
			continue
		}
		row, err := s.request(ctx, v, &r, env)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (s *environment) request(ctx context.Context, v *server, r *request, env []string) (row bench.Row, err error) {
	dir, err := os.MkdirTemp("", "sandbox-run-bench-")
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, removal.Tree(context.WithoutCancel(ctx), dir)) }()
	b := &bare{environment: s, hello: r.program, dir: dir, env: env}
	if err := b.prepare(ctx); err != nil {
		return row, err
	}
	if r.instead != nil {
		if err := b.replace(ctx, r.instead); err != nil {
			return row, err
		}
	}
	if err := v.hello(ctx, &r.program); err != nil { // fills the prepared files and the pool
		return row, err
	}
	before, err := v.cpu()
	if err != nil {
		return row, err
	}
	var ours, ref []bench.Sample
	note := "bare: " + b.String()
	if r.rate == 0 {
		ask := func(ctx context.Context, _ int) (bench.Sample, error) {
			began := time.Now()
			err := v.hello(ctx, &r.program)
			wall := time.Since(began)
			time.Sleep(refillTime)
			return bench.Sample{Wall: wall}, err
		}
		ours, ref, err = bench.Pairs(ctx, min(3, s.warmup), s.probes, ask, b.sample)
	} else {
		var held float64
		ours, ref, held, err = s.arriving(ctx, v, r, b)
		note = fmt.Sprintf("the pool keeps at most %.0f sandboxes ready, of all that was asked for so far; blocks of arrivals and of the "+
			"reference by turns; %s", held, note)
	}
	if err != nil {
		return row, err
	}
	time.Sleep(refillWait)
	after, err := v.cpu()
	if err != nil {
		return row, err
	}
	name := r.name + ", HTTP over the unix socket, one after the other"
	runs := len(ours) + min(3, s.warmup)
	if r.rate > 0 {
		name, runs = fmt.Sprintf("%s, HTTP over the unix socket, arrivals %g /s", r.name, r.rate), len(ours)
	}
	row = bench.Compare(name, "bare", ours, ref, r.ratio)
	row.Ours.CPU = bench.Milliseconds(after-before) / float64(runs)
	if r.excess > 0 {
		row.Bar = &bench.Bar{Limit: r.excess, OfExcess: true}
	}
	row.Note = note + "; CPU/run is the mean of the server and all its descendants, what is made ready included, the client's not"
	return row, nil
}

// replace replaces the commands of the plan by another command, such as `go run main.go`.
func (b *bare) replace(ctx context.Context, args []string) error {
	path, err := exec.LookPath(args[0])
	for _, st := range b.steps { // the toolchain's own program, if it is not on PATH
		if candidate := filepath.Join(filepath.Dir(st.path), args[0]); err != nil {
			if _, missing := os.Stat(candidate); missing == nil {
				path, err = candidate, nil
			}
		}
	}
	if err != nil {
		return err
	}
	b.steps, b.first = []step{{path: path, args: args, env: os.Environ(), dir: filepath.Join(b.dir, "workspace")}}, 0
	_, err = b.sample(ctx, 0) // fills its own caches
	return err
}

// arriving measures arrivals at a fixed rate, whether earlier requests have ended or not: latency counts from the due time of a request.
func (s *environment) arriving(ctx context.Context, v *server, r *request, b *bare) (ours, ref []bench.Sample, held float64, err error) {
	total, block := max(s.pairs, 1), mostInABlock
	if s.smoke {
		block = total
	}
	for number := 0; len(ours) < total; {
		took, err := arrive(ctx, block, r.rate, func(ctx context.Context) error { return v.hello(ctx, &r.program) })
		if err != nil {
			return nil, nil, 0, err
		}
		for _, d := range took {
			ours = append(ours, bench.Sample{Wall: d})
		}
		// The present number of members is too low: the last request has taken one, and its refill is delayed.
		members, err := v.metric(ctx, "sandbox_run_pool_wanted_members")
		if err != nil {
			return nil, nil, 0, err
		}
		if held = max(held, members); !s.smoke {
			total = max(total, int(held)*poolTimes)
		}
		for range block {
			number++
			sample, err := b.sample(ctx, number)
			if err != nil {
				return nil, nil, 0, err
			}
			ref = append(ref, sample)
		}
	}
	return ours, ref, held, nil
}

// arrive sends n requests at a rate and returns how long each took from its due time, in their order. It fails if one fails.
func arrive(ctx context.Context, n int, rate float64, ask func(context.Context) error) ([]time.Duration, error) {
	took, errs := make([]time.Duration, n), make([]error, n)
	var all sync.WaitGroup
	begin := time.Now()
	for i := range n {
		due := begin.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		time.Sleep(time.Until(due))
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			errs[i] = ask(ctx)
			took[i] = time.Since(due)
		})
	}
	all.Wait()
	return took, errors.Join(append(errs, ctx.Err())...)
}

// peers measures the same program in other sandboxes, for information. Docker has rows of its own.
func (s *environment) peers(ctx context.Context) (rows []bench.Row, err error) {
	if _, err := os.Stat(python3); err != nil {
		return nil, fmt.Errorf("%w; try: scripts/deps.sh bench", err)
	}
	code := []string{python3, "-c", "print(1)"}
	bare := s.program(python3, code[1:]...)
	compare := func(name, note string, p *program) error {
		ours, ref, err := bench.Pairs(ctx, min(3, s.warmup), s.probes, always(p), always(bare))
		if err != nil {
			return err
		}
		row := bench.Compare(name, "bare", ours, ref, 0)
		row.Note = note
		rows = append(rows, row)
		return nil
	}
	bwrap := s.program(s.reference.path, append(append([]string{}, referenceArgs[:len(referenceArgs)-1]...), code...)...)
	if err := compare("a peer: Python hello in bubblewrap", "no limits, no filter: "+strings.Join(bwrap.args, " "), bwrap); err != nil {
		return nil, err
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return rows, nil // for information only
	}
	dir, err := os.MkdirTemp("/var/tmp", "sandbox-run-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, removal.Tree(context.WithoutCancel(ctx), dir)) }()
	bundle := filepath.Join(dir, "bundle")
	if err := errors.Join(os.Chmod(dir, 0o711), os.Mkdir(bundle, 0o711)); err != nil {
		return nil, err
	}
	if err := oci.Export(bundle, code); err != nil {
		return nil, err
	}
	return rows, compare("a peer: Python hello in runc", "the bundle of our own OCI backend",
		s.program(runc, "--root", filepath.Join(dir, "state"), "run", "--bundle", bundle, "sandbox-run-bench"))
}
