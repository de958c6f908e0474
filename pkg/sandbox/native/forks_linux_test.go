package native

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/attack"
	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python/driver"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// forks is a backend whose processes are, where possible, forks of a zygote that execute the program: it runs the tests
// of all programs on forks.
type forks struct {
	*Backend
	launcher string // on the host

	forked, cold atomic.Int64

	mu      sync.Mutex
	zygotes map[string]sandbox.Zygote // by spec and process; nil where none is possible
}

// launcherInside is the path of the interpreter's program. A test that looks for leftovers has a path of its own.
var launcherInside = "/opt/sandboxtest-launch" + os.Getenv(forksVariable) + ".py"

// launcherSource becomes the program; it restores the signals that Python ignores.
const launcherSource = `import os, signal, sys
for s in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(s, signal.SIG_DFL)
try:
    os.execvpe(sys.argv[1], sys.argv[1:], os.environ)
except OSError:
    os._exit(127)
`

func newForks(b *Backend) (*forks, error) {
	dir, err := os.MkdirTemp("/var/tmp", "sandboxtest-launch"+os.Getenv(forksVariable)+"-")
	if err != nil {
		return nil, err
	}
	f := &forks{Backend: b, launcher: filepath.Join(dir, "launch.py"), zygotes: map[string]sandbox.Zygote{}}
	return f, errors.Join(os.Chmod(dir, 0o755), os.WriteFile(f.launcher, []byte(launcherSource), 0o644))
}

func (f *forks) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, z := range f.zygotes {
		if z != nil {
			errs = append(errs, z.Close())
		}
	}
	clear(f.zygotes)
	return errors.Join(append(errs, f.Backend.Close(), os.RemoveAll(filepath.Dir(f.launcher)))...)
}

func (f *forks) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	own := *spec
	own.Root.Add = append(own.Root.Add[:len(own.Root.Add):len(own.Root.Add)], sandbox.Mount{Source: f.launcher, Target: launcherInside})
	in, err := f.Backend.Create(ctx, &own)
	if err != nil {
		return nil, err
	}
	return &forksInstance{in.(*instance), f}, nil
}

// Forks refuses: a pool over this backend would fork into its instances, which are not the native backend's own.
func (f *forks) Forks(*sandbox.Spec, *sandbox.Process) error {
	return unsuited("every process is a fork already")
}

type forksInstance struct {
	*instance
	f *forks
}

func (i *forksInstance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	if len(i.Spec.Root.Add) > 1 { // the root of case W3, whose zygote would outlive the case
		i.f.cold.Add(1)
		return i.instance.Start(ctx, p)
	}
	q := *p
	q.Args = append([]string{pythonPath, launcherInside}, p.Args...)
	q.Warm = driver.Python("python")
	z, err := i.f.zygote(ctx, i.Spec, &q)
	if err == nil {
		var t sandbox.Task
		if t, err = z.Start(ctx, i.instance, &q); err == nil {
			i.f.forked.Add(1)
			return t, nil
		}
	}
	if !errors.Is(err, sandbox.ErrState) && !errors.Is(err, sandbox.ErrUnsupported) {
		return nil, err
	}
	i.f.cold.Add(1)
	return i.instance.Start(ctx, p)
}

func (f *forks) zygote(ctx context.Context, spec *sandbox.Spec, p *sandbox.Process) (sandbox.Zygote, error) {
	env := maps.Clone(p.Env)
	maps.DeleteFunc(env, func(name, _ string) bool { return !isReadAtStart(name) })
	key := fmt.Sprint(spec.Root, spec.User, spec.WritableRoot, env)
	f.mu.Lock()
	defer f.mu.Unlock()
	if z, ok := f.zygotes[key]; ok {
		if z == nil {
			return nil, unsuited("there is none")
		}
		return z, nil
	}
	z, err := f.Prepare(ctx, spec, p)
	if err != nil {
		f.zygotes[key] = nil
		return nil, err
	}
	f.zygotes[key] = z
	return z, nil
}

// forksVariable makes the victims of TestForkCrash fork, and marks their processes.
const forksVariable = "SANDBOXTEST_FORKS"

// Supervisors are killed at random times while their programs are forks: zygotes, forks that are being made and running
// forks leave nothing (W6).
func TestForkCrash(t *testing.T) {
	needRoot(t)
	dir := cacheDir(t)
	t.Setenv(cacheVariable, dir)
	mark := fmt.Sprintf("-%d-%x", os.Getpid(), time.Now().UnixNano())
	t.Setenv(forksVariable, mark)
	b := newBackend(t, Options{CacheDir: dir})
	conformance.Crash(t, b, sandbox.TierContainer)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	launchers, _ := filepath.Glob("/var/tmp/sandboxtest-launch" + mark + "-*") // made by the victims, which can not remove them
	for _, l := range launchers {
		_ = os.RemoveAll(l)
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range processes {
		if line, _ := os.ReadFile(p); strings.Contains(string(line), mark) {
			t.Errorf("%s is left: %q", p, line)
		}
	}
}

// Every attack is carried out by programs that are forks.
func TestForkAttack(t *testing.T) {
	needRoot(t)
	testenv.NeedAll(t, "TestAttackCommand (internal/cli), on cold sandboxes")
	f, err := newForks(newBackend(t, Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	// The zygote starts before, so that the suite does not count it as a leftover.
	m := sandbox.NewManager(f, sandbox.Options{})
	id, err := m.Create(context.Background(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"true"}}, sandbox.IO{}); err != nil ||
		res.Verdict != sandbox.VerdictOK {
		t.Fatalf("%+v, %v", res, err)
	}
	if err := m.Delete(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	allHeld(t, f, attack.GradeA, attack.GradeB)
	t.Logf("%d forks, %d cold starts", f.forked.Load(), f.cold.Load())
	if f.forked.Load() < 5*f.cold.Load() { // only terminals and roots of their own start cold
		t.Errorf("%d forks, %d cold starts", f.forked.Load(), f.cold.Load())
	}
}
