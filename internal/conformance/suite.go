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

// Claim is an ability a backend says it has. What it does not claim is not tested, and listed.
type Claim string

// The claims.
const (
	Programs  Claim = "programs"   // runs real programs: /bin/sh and coreutils, not scripts of a fake
	Walls     Claim = "walls"      // namespaces, a root of its own, no privileges, a system-call filter
	Kernel    Claim = "kernel"     // the host's own: what runs inside is a process of the host's, limited and told of as such
	Volumes   Claim = "volumes"    // shows paths of the host inside
	Writable  Claim = "writable"   // those can be written to
	Roots     Claim = "roots"      // another root than the host's, writable if asked for
	Bare      Claim = "bare"       // nothing is seen inside but the sandbox's own: no sysfs, no process of ours
	NoSetUID  Claim = "no set-uid" // no mount inside lets set-uid count, not even an empty one
	OneFilter Claim = "one filter" // on system calls: nobody has put another of his own before it
	Anybody   Claim = "anybody"    // writable volumes may be anybody's, root's included
	Nobody    Claim = "nobody"     // to the host, every sandbox is somebody whom nobody else is
	Network   Claim = "network"    // none and localhost
	PTY       Claim = "pty"        // terminals
	DevTTY    Claim = "dev tty"    // those have names, and can be opened by them
	Phases    Claim = "phases"     // a pid namespace and a cgroup per phase
	Memory    Claim = "memory"     // the limit is the kernel's
	Processes Claim = "pids"       // the limit is the kernel's
	Disk      Claim = "disk"       // bytes and inodes
	Inodes    Claim = "inodes"     // the number of files is limited, too
	DiskApart Claim = "disk apart" // from memory
	OpenFiles Claim = "open files" // per process
	CPUTime   Claim = "cpu time"   // CPU seconds of all processes together
	Files     Claim = "files"      // go in and come out (sandbox.Filer)
	Metrics   Claim = "metrics"    // numbers that stand comparison with the truth
)

// Claims are what a backend says of itself.
type Claims struct {
	// Tier is what sandboxes are required to have.
	Tier sandbox.Tier
	Has  []Claim
	// Probe is the name of the probe program inside, for a backend that has its own; empty for the
	// one that is built and handed in as a volume or, without Volumes, run where it lies.
	Probe string
	// ScratchDir is where the backend keeps its disks, if it does: nothing may be bound to it at the end.
	ScratchDir string
	// Slack is how much longer things may take where an engine of somebody else's does them.
	Slack time.Duration
}

func (c Claims) missing(needs []Claim) []string {
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
	needs  []Claim
	alone  bool // measures something that neighbours would disturb
	verify func(*env)
}

func rows() []row {
	return slices.Concat(basicRows, ioRows, outputRows, limitRows, treeRows, stateRows, fileRows, plantedRows, phaseRows, terminalRows, wallRows, rootRows, addedRows, metricRows)
}

// Run holds a backend to what it claims. newBackend is called once; Run closes what it returns.
func Run(t *testing.T, newBackend func(*testing.T) sandbox.Backend, claims Claims) {
	probe := claims.Probe
	if probe == "" {
		probe = Probe(t)
	}
	b := newBackend(t)
	m := sandbox.NewManager(b, sandbox.Options{})
	before := lookAtHost(claims.ScratchDir)
	var notApplicable []string
	t.Run("cases", func(t *testing.T) { // returns when all parallel ones are through
		for _, r := range rows() {
			if lacks := claims.missing(r.needs); len(lacks) > 0 {
				notApplicable = append(notApplicable, fmt.Sprintf("%s (does not claim %s)", r.name, strings.Join(lacks, ", ")))
				continue
			}
			t.Run(r.name, func(t *testing.T) {
				if !r.alone {
					t.Parallel()
				}
				r.verify(&env{T: t, b: b, m: m, claims: claims, host: probe})
			})
		}
	})
	if err := m.Close(); err != nil {
		t.Errorf("closing the manager: %v", err)
	}
	names := claimsOf(os.Getpid())
	if left := before.groups(); len(left) > 0 {
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

// Main is the body of a backend's TestMain: it finds the init to use, runs the tests, and looks for
// goroutines that are left. With a newBackend the test binary can also play the supervisor that
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
		fmt.Fprintf(os.Stderr, "the machine is not as it was: %q, and it was %q\n", after, before)
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

// env is what a case works with.
type env struct {
	*testing.T
	b      sandbox.Backend
	m      *sandbox.Manager
	claims Claims
	host   string // where the probe is on the host
}

// probeDir is where sandboxes find the probe.
const probeInside = "/probe"

func (e *env) has(c Claim) bool { return slices.Contains(e.claims.Has, c) }

// probe is a command line that runs the probe.
func (e *env) probe(args ...string) []string {
	at := e.host
	if e.has(Volumes) {
		at = probeInside
	}
	return append([]string{at}, args...)
}

func (e *env) sh(script string) []string { return []string{"/bin/sh", "-c", script} }

// markVariable is in the environment of everything a case runs, so that it can be found from outside.
const markVariable = "SANDBOXTEST_MARK"

// small are limits that let many cases run side by side.
func small() sandbox.Limits {
	return sandbox.Limits{Wall: ample(60 * time.Second), Grace: 500 * time.Millisecond, Memory: 192 * sandbox.MiB, Disk: 64 * sandbox.MiB, Inodes: 4096}
}

func (e *env) spec(change ...func(*sandbox.Spec)) (sandbox.Spec, string) {
	var b [8]byte
	_, _ = rand.Read(b[:])
	mark := hex.EncodeToString(b[:])
	s := sandbox.Spec{Limits: small(), Require: e.claims.Tier, Env: map[string]string{markVariable: mark}}
	if e.has(Volumes) {
		s.Volumes = append(s.Volumes, sandbox.Volume{Source: e.host, Target: probeInside})
	}
	for _, c := range change {
		c(&s)
	}
	return s, mark
}

// emulated: in the virtual machine of scripts/guest.sh the processor is several times slower.
func emulated() bool { return os.Getenv("SANDBOXTEST_GUEST") != "" }

// ample is a time that a program needs less than, on a processor of its own or an emulated one.
func ample(d time.Duration) time.Duration {
	if emulated() {
		return 6 * d
	}
	return d
}

// create makes a sandbox that is deleted at the end of the case, and checked to leave no process.
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
			e.Errorf("processes live on: %q", alive)
		}
	})
	return id
}

// cannotCreate is the error of a create that has to fail.
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

// patience is far beyond what any case needs; a case that takes longer hangs.
const patience = 60 * time.Second

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
	ctx, cancel := context.WithTimeout(context.Background(), ample(patience))
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

// says fails unless the output of a probe is exactly that.
func (e *env) says(res *sandbox.Result, want string) {
	e.Helper()
	if got := strings.TrimSuffix(e.ok(res), "\n"); got != want {
		e.Errorf("got %.500q, want %.500q", got, want)
	}
}

func (e *env) verdict(res *sandbox.Result, want sandbox.Verdict) {
	e.Helper()
	if res.Verdict != want {
		e.Errorf("verdict %s, want %s\n%s\nstdout %.300q\nstderr %.300q", res.Verdict, want, describe(res), res.Stdout.Bytes(), res.Stderr.Bytes())
	}
}

func describe(r *sandbox.Result) string {
	return fmt.Sprintf("verdict %s, exit %+v, wall %v, violations %+v, metrics %+v", r.Verdict, r.Exit, r.Metrics.WallTime.Duration(), r.Violations, r.Metrics)
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

// ready waits until the process has said so.
func (j *job) ready() *job {
	j.e.Helper()
	return j.says("ready")
}

// says waits until the output contains a text.
func (j *job) says(text string) *job {
	j.e.Helper()
	deadline := time.After(patience / 2)
	for {
		got, changed := j.out.get()
		if strings.Contains(got, text) {
			return j
		}
		select {
		case <-changed:
		case <-j.done:
			if got, _ := j.out.get(); !strings.Contains(got, text) {
				j.e.Fatalf("ended without saying %q: %v, %v, said %.300q", text, j.res, j.err, got)
			}
			return j
		case <-deadline:
			j.e.Fatalf("said only %.300q, not %q", got, text)
		}
	}
}

// result waits for the end of the run.
func (j *job) result() *sandbox.Result {
	j.e.Helper()
	select {
	case <-j.done:
	case <-time.After(patience):
		j.e.Fatal("the run does not end")
	}
	if j.err != nil {
		j.e.Fatalf("run: %v", j.err)
	}
	return j.res
}

// lines collects what a process prints, while it prints it.
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

// noise is the stream the probe writes too.
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

// within fails unless something took no longer than that.
func (e *env) within(limit time.Duration, what string, do func()) {
	e.Helper()
	if emulated() {
		limit *= 2
	}
	limit += e.claims.Slack
	spare, stop := busyness(limit)
	defer stop()
	began := time.Now()
	do()
	took := time.Since(began)
	if more := spare(); took > limit+more {
		e.Errorf("%s took %v; at most %v, and %v because the machine is busy", what, took, limit, more)
	}
}

// busyness watches how busy the machine is until stop is called. spare says how much longer than on an idle machine something that may take
// so long can have taken since: as long as tasks of this machine had to wait for a processor (/proc/pressure/cpu), up to nine times the
// limit (with 25 runnable tasks on two processors each gets less than a tenth); or five times as long as a sleeper overslept, if that is more. On an idle machine it is next to nothing.
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

// waitedForCPU is for how long, since the machine was started, some task has waited for a processor; 0 where the kernel does not tell.
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
