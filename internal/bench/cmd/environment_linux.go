package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/bench"
	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
)

// rowGroup is a group of rows that are measured together.
type rowGroup struct {
	name string // what -only matches
	run  func(*environment, context.Context) ([]bench.Row, error)
}

// measures are all groups against references, in the order of the table.
var measures = []rowGroup{
	{"library", (*environment).library},
	{"command", (*environment).command},
	{"images", (*environment).images},
	{"oci", (*environment).oci},
	{"docker", (*environment).docker},
	{"languages", (*environment).languages},
	{"served", (*environment).served},
	{"pressure", (*environment).pressure},
	{"crowd", (*environment).crowd},
	{"soak", (*environment).soak},
	{"audit", (*environment).audit},
	{"inits", (*environment).inits},
	{"throughput", (*environment).throughput},
	{"idle", (*environment).idle},
	{"overhead", (*environment).overhead},
	{"neighbours", (*environment).neighbours},
	{"unpack", (*environment).unpack},
	{"network", (*environment).network},
	{"packages", (*environment).packages},
	{"sessions", (*environment).sessions},
	{"mcp", (*environment).mcp},
	{"tests", (*environment).tests},
	{"bare", (*environment).bare},
}

// environment has the parts that all measures share.
type environment struct {
	*options
	backend   *native.Backend
	manager   *sandbox.Manager
	cache     string // of this process alone, so that its loop devices are recognised
	null      *os.File
	reference *program // bwrap … true
	cli       string   // bin/sandbox-run
	self      string   // this executable, which is the probe too
	gone      leftovers
	// base is the first number in sources, chosen at random: the cache still has programs of earlier benchmarks. Numbers have
	// at most 31 bits, which every language supports. number is the last number sent to servers.
	base   int
	number atomic.Int64
}

const (
	mostBase  = 1 << 30
	numbersOf = 1 << 20 // of the languages' own rows; those of servers follow
)

// measure makes the environment, runs every selected measure in it, and removes it.
func measure(ctx context.Context, o *options, progress io.Writer) (report *bench.Report, err error) {
	s, err := newEnvironment(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.clear()) }()
	report = &bench.Report{
		Machine:    machine(),
		References: []string{s.reference.String()},
		Notes: []string{
			fmt.Sprintf("interleaved pairs, the first side alternating; medians; %d warm-up pairs left out; %v between runs; nothing measured "+
				"twice", o.warmup, pause),
			"both sides are started from this process: the reference by syscall.ForkExec and wait4 (cheaper than os/exec), the library by calls; " +
				"CPU/run is getrusage of this process and its descendants, ms",
		},
	}
	groups := measures
	if o.against != "" {
		groups = comparisons
		if err := s.describeVersions(ctx, report); err != nil {
			return nil, err
		}
	}
	report.Machine.LoadStart = load()
	var names []string
	for _, m := range groups {
		names = append(names, m.name)
		if !o.only.MatchString(m.name) {
			continue
		}
		began := time.Now()
		rows, err := m.run(s, ctx)
		fmt.Fprintf(progress, "bench: %s took %.1f s\n", m.name, time.Since(began).Seconds())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		report.Rows = append(report.Rows, rows...)
	}
	if len(report.Rows) == 0 {
		return nil, fmt.Errorf("-only %s matches none of %s", o.only, strings.Join(names, ", "))
	}
	report.Machine.LoadEnd = load()
	return report, nil
}

func newEnvironment(o *options) (*environment, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("native sandboxes need root")
	}
	s := &environment{options: o, base: rand.IntN(mostBase)}
	s.number.Store(int64(s.base + numbersOf))
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return nil, err
	}
	s.cli = filepath.Join(bin, "sandbox-run")
	init := filepath.Join(bin, "sandbox-init")
	for _, p := range []string{s.cli, init} {
		if _, err := os.Stat(p); err != nil {
			return nil, fmt.Errorf("%w; try: make build", err)
		}
	}
	// A program that uses the library has sandbox-init beside it in the same way.
	if err := os.Setenv("SANDBOX_RUN_INIT", init); err != nil {
		return nil, err
	}
	if s.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if s.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		return nil, fmt.Errorf("the reference is missing: %w; try: scripts/deps.sh bench", err)
	}
	s.reference = s.program(bwrap, referenceArgs...)
	// On the same file system as the default cache, so that its cost is the same.
	if s.cache, err = os.MkdirTemp("/var/cache", "sandbox-run-bench-"); err != nil {
		return nil, err
	}
	if s.backend, err = native.New(native.Options{CacheDir: s.cache}); err != nil {
		return nil, errors.Join(err, s.clear())
	}
	s.manager = sandbox.NewManager(s.backend, sandbox.Options{})
	s.gone = leftovers{cache: s.cache}
	// This process is the parent of bwrap's orphans, so that their CPU time counts.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, errors.Join(err, s.clear())
	}
	return s, nil
}

// clear removes the environment.
func (s *environment) clear() error {
	var errs []error
	if s.manager != nil {
		errs = append(errs, s.manager.Close())
	}
	if s.backend != nil {
		errs = append(errs, s.backend.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	errs = append(errs, removal.Tree(ctx, s.cache), s.null.Close(), unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0))
	return errors.Join(errs...)
}

func machine() bench.Machine {
	m := bench.Machine{Cores: runtime.NumCPU(), Kernel: word("/proc/sys/kernel/osrelease", 0), Go: runtime.Version(), Date: time.Now()}
	text, _ := os.ReadFile("/proc/cpuinfo") // on failure the report has no model
	if _, rest, found := strings.Cut(string(text), "model name"); found {
		line, _, _ := strings.Cut(rest, "\n")
		m.CPU = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), ":"))
	}
	return m
}

func load() string { return word("/proc/loadavg", 0) }

// word returns a field of a small file of the kernel, or "?".
func word(path string, n int) string {
	text, err := os.ReadFile(path)
	fields := strings.Fields(string(text))
	if err != nil || n >= len(fields) {
		return "?"
	}
	return fields[n]
}

// cpuTime returns the CPU time of this process, or of its reaped descendants.
func cpuTime(who int) (time.Duration, error) {
	var u unix.Rusage
	err := unix.Getrusage(who, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}

// pause lets the machine finish deferred work of either side, so that it does not slow the other side down: kernel threads remove
// namespaces, the library starts a spare init.
const pause = 3 * time.Millisecond

// timed measures f. Its CPU time is this process's during f, and that of descendants reaped by f
// or by after, whose own work is not counted.
func timed(f func() error, after func() error) (bench.Sample, error) {
	var errs [5]error
	var own, others [2]time.Duration
	own[0], errs[0] = cpuTime(unix.RUSAGE_SELF)
	others[0], errs[1] = cpuTime(unix.RUSAGE_CHILDREN)
	began := time.Now()
	errs[2] = f()
	wall := time.Since(began)
	own[1], errs[3] = cpuTime(unix.RUSAGE_SELF)
	if after != nil && errs[2] == nil {
		errs[2] = after()
	}
	others[1], errs[4] = cpuTime(unix.RUSAGE_CHILDREN)
	time.Sleep(pause)
	return bench.Sample{Wall: wall, CPU: own[1] - own[0] + others[1] - others[0]}, errors.Join(errs[:]...)
}

// children returns the pids of this process's children.
func children() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	self := strconv.Itoa(os.Getpid())
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // ended meanwhile
		}
		// The name in parentheses may have any characters; after it: state, parent, …
		after := string(text[strings.LastIndexByte(string(text), ')')+1:])
		if f := strings.Fields(after); len(f) > 1 && f[1] == self {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
