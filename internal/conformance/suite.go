package conformance

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Expectation is an ability that a backend must have. Other abilities are not tested, and listed.
type Expectation string

// The abilities.
const (
	Programs  Expectation = "programs"   // runs real programs: /bin/sh and coreutils, not scripts of a fake
	Isolated  Expectation = "isolation"  // namespaces, a root of its own, no privileges, a system-call filter
	Kernel    Expectation = "kernel"     // the host's own: programs are processes of the host, limited and visible as such
	Volumes   Expectation = "volumes"    // shows paths of the host inside
	Writable  Expectation = "writable"   // those can be written to
	Roots     Expectation = "roots"      // another root than the host's, writable if asked for
	Bare      Expectation = "bare"       // only the sandbox's own processes and file systems are visible: no sysfs, no helper
	NoSetUID  Expectation = "no set-uid" // no mount inside allows set-uid, not even an empty one
	OneFilter Expectation = "one filter" // on system calls: no engine has installed another one before
	AnyOwner  Expectation = "any owner"  // writable volumes may belong to any user, root included
	UniqueIDs Expectation = "unique ids" // every sandbox has ids of the host that no other sandbox and no user has
	Network   Expectation = "network"    // none and localhost
	Rules     Expectation = "rules"      // networks with rules
	PTY       Expectation = "pty"        // terminals
	DevTTY    Expectation = "dev tty"    // terminals have names, and can be opened by them
	Phases    Expectation = "phases"     // a pid namespace and a cgroup per phase
	Memory    Expectation = "memory"     // the limit is the kernel's
	Processes Expectation = "pids"       // the limit is the kernel's
	Disk      Expectation = "disk"       // bytes and inodes
	Inodes    Expectation = "inodes"     // the number of files is limited, too
	DiskApart Expectation = "disk apart" // from memory
	OpenFiles Expectation = "open files" // per process
	CPUTime   Expectation = "cpu time"   // CPU seconds of all processes together
	Live      Expectation = "live"       // processes stay between pieces of work (Manager.Start)
	Files     Expectation = "files"      // are copied in and out (sandbox.Filer)
	Metrics   Expectation = "metrics"    // numbers that are compared with the truth
)

// Expectations describe a backend.
type Expectations struct {
	// Tier is the tier that sandboxes must have.
	Tier sandbox.Tier
	Has  []Expectation
	// Probe is the name of the probe program inside, for a backend that has its own; empty for the
	// one that is built and mounted as a volume or, without Volumes, run from its path on the host.
	Probe string
	// ScratchDir is the directory of the backend's scratches, if it has one: no loop device may use it at the end.
	ScratchDir string
	// Zygotes: the backend keeps cgroups, of processes that it forks from, until it is closed.
	Zygotes bool
	// Slack is added to time bounds where an engine outside of this project does the work.
	Slack time.Duration
}

func (c Expectations) missing(needs []Expectation) []string {
	var list []string
	for _, n := range needs {
		if !slices.Contains(c.Has, n) {
			list = append(list, string(n))
		}
	}
	return list
}

// row is one case of the suite.
type row struct {
	name   string
	needs  []Expectation
	alone  bool // measures something that neighbours would disturb
	verify func(*env)
}

func rows() []row {
	return slices.Concat(basicRows, ioRows, outputRows, limitRows, treeRows, stateRows, fileRows, plantedRows, phaseRows, terminalRows,
		isolationRows, rootRows, addedRows, metricRows, liveRows)
}

// Run tests a backend for the abilities. It calls newBackend once, and closes the result.
func Run(t *testing.T, newBackend func(*testing.T) sandbox.Backend, expect Expectations) {
	runRows(t, newBackend, expect, rows())
}

func runRows(t *testing.T, newBackend func(*testing.T) sandbox.Backend, expect Expectations, list []row) {
	probe := expect.Probe
	if probe == "" {
		probe = Probe(t)
	}
	b := newBackend(t)
	m := sandbox.NewManager(b, sandbox.Options{})
	before := lookAtHost(expect.ScratchDir)
	var notApplicable []string
	t.Run("cases", func(t *testing.T) { // returns after all parallel cases
		for _, r := range list {
			if lacks := expect.missing(r.needs); len(lacks) > 0 {
				notApplicable = append(notApplicable, fmt.Sprintf("%s (without %s)", r.name, strings.Join(lacks, ", ")))
				continue
			}
			t.Run(r.name, func(t *testing.T) {
				if !r.alone {
					t.Parallel()
				}
				r.verify(&env{T: t, b: b, m: m, expect: expect, host: probe})
			})
		}
	})
	if err := m.Close(); err != nil {
		t.Errorf("closing the manager: %v", err)
	}
	names := registrationsOf(os.Getpid())
	if left := before.groups(); len(left) > 0 && !expect.Zygotes {
		t.Errorf("cgroups left while the backend is open: %q", left)
	}
	for range 2 {
		if err := b.Close(); err != nil {
			t.Errorf("closing the backend: %v", err)
		}
	}
	for _, left := range before.left(names) {
		t.Errorf("left behind: %s", left)
	}
	if len(notApplicable) > 0 {
		t.Logf("not applicable to %s:\n  %s", b.Name(), strings.Join(notApplicable, "\n  "))
	}
}

// Main is the body of a backend's TestMain: it finds the init to use, runs the tests, and searches for
// leaked goroutines. With a newBackend the test binary can also be the supervisor that
// [Crash] kills.
func Main(m *testing.M, newBackend ...func() (sandbox.Backend, error)) int {
	if dir := os.Getenv("SANDBOX_RUN_TEST_BIN"); dir != "" {
		_ = os.Setenv("SANDBOX_RUN_INIT", filepath.Join(dir, "sandbox-init"))
	}
	if plan := os.Getenv(victimVariable); plan != "" && len(newBackend) > 0 {
		return victim(plan, newBackend[0])
	}
	before := rights()
	code := m.Run()
	CleanUp()
	if after := rights(); !slices.Equal(after, before) {
		fmt.Fprintf(os.Stderr, "the machine's files have changed: %q, before %q\n", after, before)
		return 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// env is the environment of a case.
type env struct {
	*testing.T
	b      sandbox.Backend
	m      *sandbox.Manager
	expect Expectations
	host   string // the probe's path on the host
}

// probeInside is the directory of the probe in sandboxes.
const probeInside = "/probe"

func (e *env) has(c Expectation) bool { return slices.Contains(e.expect.Has, c) }

// probe is a command line that runs the probe.
func (e *env) probe(args ...string) []string {
	at := e.host
	if e.has(Volumes) {
		at = probeInside
	}
	return append([]string{at}, args...)
}

func (e *env) sh(script string) []string { return []string{"/bin/sh", "-c", script} }

// markVariable is in the environment of every process of a case, so that it can be found from outside.
const markVariable = "SANDBOXTEST_MARK"

// small are limits that let many cases run side by side.
func small() sandbox.Limits {
	return sandbox.Limits{Wall: ample(60 * time.Second), Grace: 500 * time.Millisecond, Memory: 192 * sandbox.MiB, Disk: 64 * sandbox.MiB,
		Inodes: 4096}
}

func (e *env) spec(change ...func(*sandbox.Spec)) (sandbox.Spec, string) {
	var b [8]byte
	_, _ = rand.Read(b[:])
	mark := hex.EncodeToString(b[:])
	s := sandbox.Spec{Limits: small(), Require: e.expect.Tier, Env: map[string]string{markVariable: mark}}
	if e.has(Volumes) {
		s.Volumes = append(s.Volumes, sandbox.Volume{Source: e.host, Target: probeInside})
	}
	for _, c := range change {
		c(&s)
	}
	return s, mark
}

// emulated reports whether this is the virtual machine of scripts/guest.sh, whose processor is several times slower.
func emulated() bool { return os.Getenv("SANDBOXTEST_GUEST") != "" }

// ample is a time that suffices for a program on a real and on an emulated processor.
func ample(d time.Duration) time.Duration {
	if emulated() {
		return 6 * d
	}
	return d
}

// create makes a sandbox. At the end of the case it is deleted, and none of its processes may run.
func (e *env) create(change ...func(*sandbox.Spec)) string {
	e.Helper()
	spec, mark := e.spec(change...)
	id, err := e.m.Create(e.Context(), spec)
	if err != nil {
		e.Fatalf("create: %v", err)
	}
	e.Cleanup(func() {
		if err := e.m.Delete(context.Background(), id); err != nil {
			e.Errorf("delete: %v", err)
		}
		if alive := marked(mark); len(alive) > 0 {
			e.Errorf("processes still run: %q", alive)
		}
	})
	return id
}

// cannotCreate returns the error of a create that has to fail.
func (e *env) cannotCreate(change ...func(*sandbox.Spec)) error {
	e.Helper()
	spec, _ := e.spec(change...)
	id, err := e.m.Create(e.Context(), spec)
	if err == nil {
		_ = e.m.Delete(context.Background(), id)
		e.Fatal("create succeeded")
	}
	return err
}

// caseTimeout is far beyond what any case needs; a case that takes longer hangs.
const caseTimeout = 60 * time.Second

// do runs a process to its end.
func (e *env) do(id string, p sandbox.Process, io sandbox.IO) *sandbox.Result {
	e.Helper()
	res, err := e.try(id, p, io)
	if err != nil {
		e.Fatalf("run %q: %v", p.Args, err)
	}
	return res
}

func (e *env) try(id string, p sandbox.Process, io sandbox.IO) (*sandbox.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), ample(caseTimeout))
	defer cancel()
	res, err := e.m.Run(ctx, id, p, io)
	if ctx.Err() != nil {
		e.Errorf("run %q hung", p.Args)
	}
	return res, err
}

// in runs a command in a sandbox.
func (e *env) in(id string, args ...string) *sandbox.Result {
	e.Helper()
	return e.do(id, sandbox.Process{Args: args}, sandbox.IO{})
}

// once runs a command in a fresh sandbox.
func (e *env) once(args ...string) *sandbox.Result {
	e.Helper()
	return e.in(e.create(), args...)
}

// ok is the output of a probe that must succeed.
func (e *env) ok(res *sandbox.Result) string {
	e.Helper()
	if res.Verdict != sandbox.VerdictOK {
		e.Fatalf("%s\nstdout %.500q\nstderr %.500q", describe(res), res.Stdout.Bytes(), res.Stderr.Bytes())
	}
	return string(res.Stdout.Bytes())
}

// says fails unless the output of a probe equals want.
func (e *env) says(res *sandbox.Result, want string) {
	e.Helper()
	if got := strings.TrimSuffix(e.ok(res), "\n"); got != want {
		e.Errorf("got %.500q, want %.500q", got, want)
	}
}

func (e *env) verdict(res *sandbox.Result, want sandbox.Verdict) {
	e.Helper()
	if res.Verdict != want {
		e.Errorf("verdict %s, want %s\n%s\nstdout %.300q\nstderr %.300q", res.Verdict, want, describe(res), res.Stdout.Bytes(),
			res.Stderr.Bytes())
	}
}

func describe(r *sandbox.Result) string {
	return fmt.Sprintf("verdict %s, exit %+v, wall %v, violations %+v, metrics %+v", r.Verdict, r.Exit, r.Metrics.WallTime.Duration(),
		r.Violations, r.Metrics)
}

func violated(r *sandbox.Result, kind string) bool {
	return slices.ContainsFunc(r.Violations, func(v sandbox.Violation) bool { return v.Kind == kind })
}

// job is a run in the background.
type job struct {
	e    *env
	out  *lines
	done chan struct{}
	res  *sandbox.Result
	err  error
}

// start runs a process in the background. The run is waited for at the end of the case.
func (e *env) start(id string, p sandbox.Process, io sandbox.IO) *job {
	return e.startWith(context.Background(), id, p, io)
}

func (e *env) startWith(ctx context.Context, id string, p sandbox.Process, io sandbox.IO) *job {
	j := &job{e: e, out: newLines(), done: make(chan struct{})}
	also := io.OnEvent
	io.OnEvent = func(ev sandbox.Event) {
		j.out.add(ev)
		if also != nil {
			also(ev)
		}
	}
	go func() {
		defer close(j.done)
		j.res, j.err = e.m.Run(ctx, id, p, io)
	}()
	e.Cleanup(func() {
		if err := e.m.Delete(context.Background(), id); err != nil {
			e.Errorf("delete: %v", err)
		}
		<-j.done
	})
	return j
}

// ready waits until the process has printed "ready".
func (j *job) ready() *job {
	j.e.Helper()
	return j.says("ready")
}

// says waits until the output contains a text.
func (j *job) says(text string) *job {
	j.e.Helper()
	deadline := time.After(caseTimeout / 2)
	for {
		got, changed := j.out.get()
		if strings.Contains(got, text) {
			return j
		}
		select {
		case <-changed:
		case <-j.done:
			if got, _ := j.out.get(); !strings.Contains(got, text) {
				j.e.Fatalf("ended without printing %q: %v, %v, printed %.300q", text, j.res, j.err, got)
			}
			return j
		case <-deadline:
			j.e.Fatalf("printed only %.300q, not %q", got, text)
		}
	}
}

// result waits for the end of the run.
func (j *job) result() *sandbox.Result {
	j.e.Helper()
	select {
	case <-j.done:
	case <-time.After(caseTimeout):
		j.e.Fatal("the run does not end")
	}
	if j.err != nil {
		j.e.Fatalf("run: %v", j.err)
	}
	return j.res
}

// lines collects the output of a process while it runs.
type lines struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{}
}

func newLines() *lines { return &lines{changed: make(chan struct{})} }

func (l *lines) add(ev sandbox.Event) {
	if ev.Kind != sandbox.EventStdout && ev.Kind != sandbox.EventStderr {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(ev.Data)
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *lines) get() (string, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String(), l.changed
}

// noise is the stream that the probe writes, too.
type noise struct{ x uint64 }

func newNoise() io.Reader { return &noise{88172645463325252} }

func (n *noise) Read(p []byte) (int, error) {
	for i := range p {
		n.x ^= n.x << 13
		n.x ^= n.x >> 7
		n.x ^= n.x << 17
		p[i] = byte(n.x >> 32)
	}
	return len(p), nil
}

// within fails unless do takes at most limit.
func (e *env) within(limit time.Duration, what string, do func()) {
	e.Helper()
	if emulated() {
		limit *= 2
	}
	limit += e.expect.Slack
	spare, stop := busyness(limit)
	defer stop()
	began := time.Now()
	do()
	took := time.Since(began)
	if more := spare(); took > limit+more {
		e.Errorf("%s took %v; at most %v, and %v because the machine is busy", what, took, limit, more)
	}
}

// busyness measures how busy the machine is until stop is called. spare returns how much longer than on an idle machine an operation with
// that limit may have taken since: as long as tasks of this machine had to wait for a processor (/proc/pressure/cpu), up to nine times the
// limit (with 25 runnable tasks on two processors each gets less than a tenth); or five times as long as a sleeper overslept, if that is
// more. On an idle machine it is almost zero.
func busyness(limit time.Duration) (spare func() time.Duration, stop func()) {
	const nap = 10 * time.Millisecond
	var most atomic.Int64
	over := make(chan struct{})
	go func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			began := time.Now()
			time.Sleep(nap)
			most.Store(max(most.Load(), int64(time.Since(began)-nap)))
		}
	}()
	before := waitedForCPU()
	spare = func() time.Duration {
		return max(5*time.Duration(most.Load()), min(waitedForCPU()-before, 9*limit))
	}
	return spare, func() { close(over) }
}

// waitedForCPU is for how long, since the machine was started, some task has waited for a processor; 0 where the kernel does not report it.
func waitedForCPU() time.Duration {
	var microseconds int64
	if _, total, ok := strings.Cut(string(readFile("/proc/pressure/cpu")), "total="); ok {
		_, _ = fmt.Sscan(total, &microseconds)
	}
	return time.Duration(microseconds) * time.Microsecond
}

func readFile(name string) []byte {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	return b
}
