package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/internal/testenv"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/native"
)

// Variables of a victim of TestCrash: the directory of its scratches and, from the suite, the mark of its processes.
const (
	cacheVariable = "SANDBOXTEST_CACHE"
	markVariable  = "SANDBOXTEST_VICTIM"
)

// waits is a process that prints its handshake and then waits, without a limit.
func waits(phase, mark string) sandbox.Process {
	return sandbox.Process{
		Phase: phase, Args: []string{"/bin/sh", "-c", `printf 'ready\n' >&2; read message; echo "$message"; cat; exit 3`, mark},
		Warm: &sandbox.Warm{Name: "sh", Env: map[string]string{"DRIVER": "1"}, Handshake: ready},
	}
}

// victimBackend is a pool that is full before anything is asked of it.
func victimBackend() (sandbox.Backend, error) {
	b, err := native.New(native.Options{CacheDir: os.Getenv(cacheVariable)})
	if err != nil {
		return nil, err
	}
	p := New(b, Options{Parallel: 4})
	m := sandbox.NewManager(p, sandbox.Options{})
	mark, _, _ := strings.Cut(os.Getenv(markVariable), " ")
	var full []*sandbox.Spec
	for n := range 4 {
		spec, err := m.Complete(sandbox.Spec{
			Limits: sandbox.Limits{Memory: sandbox.Size(64+n) * sandbox.MiB, Disk: 64 * sandbox.MiB, Inodes: 4096},
			Ahead:  []sandbox.Process{waits("compile", mark), waits("run", mark)},
		})
		if err != nil {
			return nil, err
		}
		full = append(full, &spec)
	}
	return p, p.Warm(context.Background(), full...)
}

// Supervisors that are killed with full pools leave nothing (W6).
func TestCrash(t *testing.T) {
	dir := cacheDir(t)
	t.Setenv(cacheVariable, dir)
	b, err := native.New(native.Options{CacheDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	conformance.Crash(t, b, sandbox.TierContainer)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// realPool is a pool over the native backend.
func realPool(t *testing.T, o Options) (*Pool, *sandbox.Manager) {
	dir := cacheDir(t)
	b, err := native.New(native.Options{CacheDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	p := New(b, o)
	m := sandbox.NewManager(p, sandbox.Options{})
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
	return p, m
}

// The message, the rest of the input, the output, the exit: through real pipes, and counted from the message on.
func TestNativeHit(t *testing.T) {
	p, m := realPool(t, Options{})
	spec := sandbox.Spec{Ahead: []sandbox.Process{waits("compile", "x"), waits("run", "x")}}
	if err := warmed(t, p, m, spec); err != nil {
		t.Fatal(err)
	}
	waited := time.Now()
	time.Sleep(3 * time.Second)
	ctx := context.Background()
	id, err := m.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Delete(ctx, id)
	for _, phase := range []string{"compile", "run"} {
		process := waits(phase, "x")
		process.Args = append(process.Args, "more")
		// The length has a NUL, which a shell's read drops; the text ends with a line.
		res, err := m.Run(ctx, id, process, sandbox.IO{Stdin: strings.NewReader("rest of\nthe input")})
		if err != nil {
			t.Fatal(err)
		}
		out := string(res.Stdout.Bytes())
		if res.Exit.Code != 3 || !strings.HasSuffix(out, "}\nrest of\nthe input") || !strings.Contains(out, `"more"]`) ||
			!strings.Contains(out, `"dir":"/workspace"`) || len(res.Stderr.Bytes()) > 0 {
			t.Errorf("%+v %q %q", res.Exit, out, res.Stderr.Bytes())
		}
		if took := res.Metrics.WallTime.Duration(); took > 3*time.Second {
			t.Errorf("it took %v, of which it had waited for most: it was ready %v ago", took, time.Since(waited))
		}
		if res.Metrics.MemoryPeak == 0 || res.Metrics.MemoryPeak > 16<<20 {
			t.Errorf("%+v", res.Metrics)
		}
	}
	if st := p.Stats(); st.Warm != 2 || st.Fallbacks != 0 {
		t.Errorf("%+v", st)
	}
}

// A waiting process that is killed or stopped is replaced, and the request is served (W5).
func TestNativeUnwell(t *testing.T) {
	for _, sig := range []string{"KILL", "STOP"} {
		t.Run(sig, func(t *testing.T) {
			p, m := realPool(t, Options{MessageTimeout: 300 * time.Millisecond})
			mark := fmt.Sprintf("unhealthy-%s-%d", sig, time.Now().UnixNano())
			spec := sandbox.Spec{Ahead: []sandbox.Process{waits("run", mark)}}
			if err := warmed(t, p, m, spec); err != nil {
				t.Fatal(err)
			}
			if got := stateOf(mark); got == "" || got == "T" { // the control
				t.Fatalf("it is in state %q before it is signalled", got)
			}
			p.mu.Lock()
			for _, s := range p.shapes {
				for _, pooled := range s.ready {
					for _, w := range pooled.waits {
						number := map[string]syscall.Signal{"KILL": syscall.SIGKILL, "STOP": syscall.SIGSTOP}[sig]
						if err := w.task.Signal(number, sandbox.Main); err != nil {
							t.Error(err)
						}
					}
				}
			}
			p.mu.Unlock()
			// A signal after the message was read ends the program.
			want := map[string]string{"KILL": "", "STOP": "T"}[sig]
			for end := time.Now().Add(time.Minute); stateOf(mark) != want; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("it is in state %q", stateOf(mark))
				}
			}
			cold := waits("run", mark)
			// Started cold, its handshake is ordinary output.
			res := run(t, m, spec, cold, "text\nrest")
			st := p.Stats()
			if st.Fallbacks+st.Unhealthy == 0 || st.Warm > st.Unhealthy {
				t.Errorf("%+v", st)
			}
			out := string(res.Stdout.Bytes())
			if st.Warm > 0 { // by a sandbox that was made meanwhile, which prints its message first
				_, out, _ = strings.Cut(out, "}\n")
			}
			if res.Exit.Code != 3 || out != "text\nrest" {
				t.Errorf("%+v %q %q", res.Exit, res.Stdout.Bytes(), res.Stderr.Bytes())
			}
		})
	}
}

// stateOf is the state of the process that has a mark among its arguments, as the kernel writes it; "" is none, or one that has ended.
func stateOf(mark string) string {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, line := range lines {
		if text, err := os.ReadFile(line); err != nil || !strings.Contains(string(text), mark) {
			continue
		}
		text, _ := os.ReadFile(filepath.Join(filepath.Dir(line), "stat"))
		if _, rest, ok := strings.Cut(string(text), ") "); ok {
			return strings.Trim(rest[:1], "ZX")
		}
	}
	return ""
}

func cacheDir(t testing.TB) string {
	t.Helper()
	testenv.NeedRoot(t)
	dir, err := os.MkdirTemp("/var/tmp", "pool-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "cache")
}

// A pool over the real backend keeps every promise of it.
func TestNativeConformance(t *testing.T) {
	testenv.NeedAll(t, "TestNativeHit, TestNativeQuick, TestNativeUnwell, and the backend's own TestConformance")
	dir := cacheDir(t)
	conformance.Run(t, func(t *testing.T) sandbox.Backend {
		b, err := native.New(native.Options{CacheDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return New(b, Options{})
	}, conformance.Expectations{
		Tier: sandbox.TierContainer, ScratchDir: dir,
		Has: []conformance.Expectation{
			conformance.Programs, conformance.Isolated, conformance.Kernel, conformance.Bare, conformance.NoSetUID, conformance.OneFilter,
			conformance.Volumes, conformance.Writable, conformance.AnyOwner, conformance.Roots, conformance.UniqueIDs, conformance.Network,
			conformance.Rules,
			conformance.PTY, conformance.DevTTY,
			conformance.Phases, conformance.Memory, conformance.Processes, conformance.Disk, conformance.Inodes, conformance.DiskApart,
			conformance.OpenFiles, conformance.CPUTime, conformance.Metrics, conformance.Live, conformance.Files,
		},
	})
}

// A program that ends before the pool has noticed its start has run, and is not run again.
func TestNativeQuick(t *testing.T) {
	p, m := realPool(t, Options{})
	quick := sandbox.Process{
		Args: []string{"/bin/sh", "-c", `printf 'ready\n' >&2; read message; echo ran >> /tmp/ran; cat /tmp/ran`},
		Warm: &sandbox.Warm{Name: "sh", Env: map[string]string{"DRIVER": "1"}, Handshake: ready},
	}
	spec := sandbox.Spec{Ahead: []sandbox.Process{quick}}
	for range 20 {
		if err := warmed(t, p, m, spec); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 3 { // some of them cold
			all.Go(func() {
				if res := run(t, m, spec, quick, "a line\n"); string(res.Stdout.Bytes()) != "ran\n" {
					t.Errorf("%q %q", res.Stdout.Bytes(), res.Stderr.Bytes())
				}
			})
		}
		all.Wait()
	}
	if st := p.Stats(); st.Fallbacks != 0 || st.Warm == 0 {
		t.Errorf("%+v", st)
	}
}
