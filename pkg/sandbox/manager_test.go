package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/conformance"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// wait plays a program that ends when it is killed, or by SIGTERM.
func wait(p *conformance.FakeProcess) sandbox.Exit {
	_, _ = io.WriteString(p.Stdout, "ready\n")
	<-p.Killed
	return sandbox.Exit{}
}

func exit(p *conformance.FakeProcess) sandbox.Exit { return sandbox.Exit{} }

func newManager(t *testing.T, scripts map[string]conformance.Script) (*sandbox.Manager, *conformance.Fake) {
	t.Helper()
	f := conformance.NewFake(scripts)
	m := sandbox.NewManager(f, sandbox.Options{SampleInterval: 5 * time.Millisecond})
	t.Cleanup(func() {
		for range 2 {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
		if n := f.Alive(); n != 0 {
			t.Errorf("%d instances live on", n)
		}
	})
	return m, f
}

func create(t *testing.T, m *sandbox.Manager, s sandbox.Spec) string {
	t.Helper()
	id, err := m.Create(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// launch runs a program in the background and returns after its first output.
func launch(t *testing.T, m *sandbox.Manager, id string, p sandbox.Process) <-chan *sandbox.Result {
	t.Helper()
	said, done := make(chan struct{}), make(chan *sandbox.Result, 1)
	var once sync.Once
	go func() {
		res, err := m.Run(context.Background(), id, p, sandbox.IO{OnEvent: func(ev sandbox.Event) {
			if ev.Kind == sandbox.EventStdout {
				once.Do(func() { close(said) })
			}
		}})
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	select {
	case <-said:
	case <-time.After(time.Minute):
		t.Fatal("no word")
	}
	return done
}

func TestRefusesWhatIsWeaker(t *testing.T) {
	m, f := newManager(t, nil)
	weak := sandbox.NewIsolation("fake")
	weak.Tier = sandbox.TierNamespace
	weak.Lack(sandbox.ControlMemory, sandbox.Polled, "no cgroup", "")
	f.Pretend(weak)
	ctx := context.Background()
	var refusal *sandbox.Refusal
	if _, err := m.Create(ctx, sandbox.Spec{}); !errors.As(err, &refusal) || refusal.Require != sandbox.TierContainer {
		t.Error(err)
	}
	create(t, m, sandbox.Spec{Require: sandbox.TierNamespace})
	if _, err := m.Create(ctx, sandbox.Spec{Require: sandbox.TierNamespace, Strict: true}); !errors.Is(err, sandbox.ErrRefused) {
		t.Error(err)
	}
	if n := f.Alive(); n != 1 {
		t.Errorf("%d instances: a refused one was not destroyed", n)
	}
	// The isolation of the instance decides, not the capability check of the machine.
	weak.Tier = sandbox.TierProcess
	f.Pretend(weak)
	if _, err := m.Create(ctx, sandbox.Spec{Require: sandbox.TierNamespace}); !errors.Is(err, sandbox.ErrRefused) {
		t.Error(err)
	}
	if n := f.Alive(); n != 1 {
		t.Errorf("%d instances", n)
	}
}

func TestClosedManager(t *testing.T) {
	m, _ := newManager(t, map[string]conformance.Script{"wait": wait})
	id := create(t, m, sandbox.Spec{})
	done := launch(t, m, id, sandbox.Process{Args: []string{"wait"}})
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if res := <-done; res.Verdict != sandbox.VerdictCancelled {
		t.Errorf("%+v", res)
	}
	if _, err := m.Create(context.Background(), sandbox.Spec{}); !errors.Is(err, sandbox.ErrState) {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"stop": m.Stop(context.Background(), id), "kill": m.Kill(id),
	} {
		if !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := m.Delete(context.Background(), id); err != nil {
		t.Error(err)
	}
	if _, err := m.GetMetrics(id); !errors.Is(err, sandbox.ErrNotFound) {
		t.Error(err)
	}
}

func TestList(t *testing.T) {
	m, _ := newManager(t, nil)
	var ids []string
	for _, label := range []string{"a", "b", "c"} {
		ids = append(ids, create(t, m, sandbox.Spec{Labels: map[string]string{"l": label}}))
		time.Sleep(time.Millisecond)
	}
	for i, info := range m.List() {
		if info.ID != ids[i] || info.State != sandbox.StateReady || info.Labels["l"] != string(rune('a'+i)) || info.Limits.Memory == 0 ||
			info.Isolation.Backend != "fake" {
			t.Errorf("%+v", info)
		}
	}
}

func TestMetricsAreSummedOverPhases(t *testing.T) {
	use := func(p *conformance.FakeProcess) sandbox.Exit {
		p.Use(monitor.Sample{CPUUser: time.Second, Memory: 100, MemoryPeak: 150, Processes: 2, IOWrite: 10, DiskUsed: 5})
		return wait(p)
	}
	m, _ := newManager(t, map[string]conformance.Script{"use": use})
	id := create(t, m, sandbox.Spec{})
	var all []<-chan *sandbox.Result
	for _, phase := range []string{"a", "b", "b"} { // the two of b share its counters
		all = append(all, launch(t, m, id, sandbox.Process{Phase: phase, Args: []string{"use"}}))
	}
	got, err := m.GetMetrics(id)
	if err != nil || got.MemoryCurrent != 200 || got.MemoryPeak != 200 || got.CPUTime.Duration() != 2*time.Second ||
		got.ProcessesCurrent != 4 || got.IOWrite != 20 || got.DiskUsed != 5 || got.WallTime <= 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := m.Kill(id); err != nil {
		t.Error(err)
	}
	for _, done := range all {
		<-done
	}
}

// stubbed changes how a fake's instances start.
type stubbed struct {
	sandbox.Backend
	start func(context.Context, sandbox.Instance, *sandbox.Process) (sandbox.Task, error)
}

type stubbedInstance struct {
	sandbox.Instance
	b *stubbed
}

func (b *stubbed) Create(ctx context.Context, s *sandbox.Spec) (sandbox.Instance, error) {
	i, err := b.Backend.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	return &stubbedInstance{i, b}, nil
}

func (i *stubbedInstance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	return i.b.start(ctx, i.Instance, p)
}

// A hanging start is abandoned when the run is killed, deleted or cancelled, and the run has a result.
func TestStartThatHangs(t *testing.T) {
	entered := make(chan struct{}, 1)
	hangs := func(ctx context.Context, _ sandbox.Instance, _ *sandbox.Process) (sandbox.Task, error) {
		entered <- struct{}{}
		<-ctx.Done()
		return nil, &sandbox.Error{Op: "start", Err: ctx.Err()}
	}
	for name, end := range map[string]func(*sandbox.Manager, string, func()) error{
		"kill":   func(m *sandbox.Manager, id string, _ func()) error { return m.Kill(id) },
		"delete": func(m *sandbox.Manager, id string, _ func()) error { return m.Delete(context.Background(), id) },
		"cancel": func(_ *sandbox.Manager, _ string, cancel func()) error { cancel(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			m := sandbox.NewManager(&stubbed{conformance.NewFake(nil), hangs}, sandbox.Options{})
			defer m.Close()
			id := create(t, m, sandbox.Spec{})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() {
				<-entered
				if err := end(m, id, cancel); err != nil {
					t.Error(err)
				}
			}()
			res, err := m.Run(ctx, id, sandbox.Process{Args: []string{"x"}}, sandbox.IO{})
			if err != nil || res.Verdict != sandbox.VerdictCancelled {
				t.Errorf("%+v, %v", res, err)
			}
		})
	}
}

func TestStartThatFails(t *testing.T) {
	boom := errors.New("boom")
	m := sandbox.NewManager(&stubbed{conformance.NewFake(nil),
		func(context.Context, sandbox.Instance, *sandbox.Process) (sandbox.Task, error) { return nil, boom }}, sandbox.Options{})
	defer m.Close()
	id := create(t, m, sandbox.Spec{})
	if _, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"x"}}, sandbox.IO{}); !errors.Is(err, boom) {
		t.Error(err)
	}
	if info, err := m.Get(id); err != nil || info.State != sandbox.StateReady {
		t.Errorf("%+v, %v", info, err)
	}
}

// sampled changes a task's samples and its end.
type sampled struct {
	sandbox.Task
	sample func() (monitor.Sample, error)
	finish error
}

func (s *sampled) Sample() (monitor.Sample, error) { return s.sample() }
func (s *sampled) Finish(ctx context.Context) (monitor.Sample, error) {
	f, err := s.Task.Finish(ctx)
	return f, errors.Join(err, s.finish)
}

// witness is a task with refused system calls.
type witness struct {
	sandbox.Task
	refused []sandbox.Violation
	unknown string
}

func (w *witness) Refusals() iter.Seq[sandbox.Violation] { return slices.Values(w.refused) }
func (w *witness) Refused() ([]sandbox.Violation, string) {
	return w.refused, w.unknown
}

// Refused calls that a backend counted are in the result after the reached limits, and each is an event once. The reason
// why calls could not be counted is a note.
func TestRefusals(t *testing.T) {
	saw := []sandbox.Violation{{Kind: sandbox.ViolationSyscall, Name: "mount", Detail: "mount", Count: 2},
		{Kind: sandbox.ViolationSyscall, Name: "socket", Detail: "socket(AF_ALG)", Count: 1}}
	for _, w := range []witness{{}, {refused: saw}, {unknown: "old kernel"}} {
		b := &stubbed{conformance.NewFake(map[string]conformance.Script{"full": func(p *conformance.FakeProcess) sandbox.Exit {
			p.Use(monitor.Sample{DiskFull: true})
			return sandbox.Exit{}
		}}), nil}
		b.start = func(ctx context.Context, i sandbox.Instance, p *sandbox.Process) (sandbox.Task, error) {
			task, err := i.Start(ctx, p)
			return &witness{task, w.refused, w.unknown}, err
		}
		m := sandbox.NewManager(b, sandbox.Options{SampleInterval: -1})
		told := map[string]int{}
		res, err := m.Run(context.Background(), create(t, m, sandbox.Spec{}), sandbox.Process{Args: []string{"full"}},
			sandbox.IO{OnEvent: func(e sandbox.Event) {
				if e.Kind == sandbox.EventViolation {
					told[e.Violation.Kind+e.Violation.Name]++
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Violations) != 1+len(w.refused) || res.Violations[0].Kind != "disk" || !slices.Equal(res.Violations[1:], w.refused) {
			t.Errorf("%+v: %+v", w, res.Violations)
		}
		if len(told) != len(res.Violations) || told["disk"] != 1 || len(w.refused) > 0 &&
			(told["syscallmount"] != 1 || told["syscallsocket"] != 1) {
			t.Errorf("%+v: told of %v", w, told)
		}
		if noted := slices.ContainsFunc(res.Notes, func(n string) bool {
			return strings.HasSuffix(n,
				"not counted: old kernel")
		}); noted != (w.unknown != "") {
			t.Errorf("%+v: notes %q", w, res.Notes)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A failed sample does not switch the CPU limit off.
func TestCPULimitSurvivesFailedSamples(t *testing.T) {
	var looks atomic.Int32
	b := &stubbed{conformance.NewFake(map[string]conformance.Script{"wait": wait}), nil}
	b.start = func(ctx context.Context, i sandbox.Instance, p *sandbox.Process) (sandbox.Task, error) {
		task, err := i.Start(ctx, p)
		return &sampled{task, func() (monitor.Sample, error) {
			if looks.Add(1) < 5 {
				return monitor.Sample{}, syscall.EBUSY
			}
			return monitor.Sample{CPUUser: time.Hour}, nil
		}, nil}, err
	}
	m := sandbox.NewManager(b, sandbox.Options{SampleInterval: -1})
	defer m.Close()
	id := create(t, m, sandbox.Spec{Limits: sandbox.Limits{CPUTime: time.Millisecond, Wall: 20 * time.Second}})
	res, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"wait"}}, sandbox.IO{})
	if err != nil || res.Verdict != sandbox.VerdictCPULimit {
		t.Errorf("%+v, %v", res, err)
	}
}

// The CPU time of a program that ends before the first sample counts in full.
func TestCPULimitOfAQuickProgram(t *testing.T) {
	quick := func(p *conformance.FakeProcess) sandbox.Exit {
		p.Use(monitor.Sample{CPUUser: 3 * time.Second, CPUSystem: 2 * time.Second})
		return sandbox.Exit{}
	}
	m := sandbox.NewManager(conformance.NewFake(map[string]conformance.Script{"quick": quick}), sandbox.Options{SampleInterval: -1})
	defer m.Close()
	for limit, want := range map[time.Duration]sandbox.Verdict{4 * time.Second: sandbox.VerdictCPULimit,
		5 * time.Second: sandbox.VerdictOK, 0: sandbox.VerdictOK} {
		id := create(t, m, sandbox.Spec{Limits: sandbox.Limits{CPUTime: limit, Wall: 20 * time.Second}})
		res, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"quick"}}, sandbox.IO{})
		if err != nil || res.Verdict != want {
			t.Errorf("%v: %+v, %v", limit, res, err)
		}
	}
}

// A run that is cancelled because a directory of the host is full ends with disk_limit, whatever the program makes of
// SIGTERM; for any other
// cause it is cancelled.
func TestCancelledForAFullDisk(t *testing.T) {
	polite := func(p *conformance.FakeProcess) sandbox.Exit {
		wait(p)
		return sandbox.Exit{}
	}
	m, _ := newManager(t, map[string]conformance.Script{"wait": wait, "polite": polite})
	for _, program := range []string{"wait", "polite"} {
		for cause, want := range map[error]sandbox.Verdict{
			&sandbox.DiskFullError{Detail: "it is full", Allow: "--cap"}: sandbox.VerdictDiskLimit, errors.New("enough"): sandbox.VerdictCancelled,
		} {
			id := create(t, m, sandbox.Spec{})
			ctx, cancel := context.WithCancelCause(context.Background())
			time.AfterFunc(5*time.Millisecond, func() { cancel(fmt.Errorf("stop: %w", cause)) })
			res, err := m.Run(ctx, id, sandbox.Process{Args: []string{program}}, sandbox.IO{})
			if err != nil || res.Verdict != want || slices.ContainsFunc(res.Violations, func(v sandbox.Violation) bool {
				return v.Kind == "disk" && v.Detail == "it is full" && v.Allow == "--cap"
			}) != (want == sandbox.VerdictDiskLimit) {
				t.Errorf("%s, %v: %+v, %v", program, cause, res, err)
			}
		}
	}
}

// A program is asked to end by SIGINT after a Ctrl-C of the user, otherwise by SIGTERM.
func TestCancelledBySignal(t *testing.T) {
	trap := func(p *conformance.FakeProcess) sandbox.Exit {
		signals := p.Trap()
		_, _ = io.WriteString(p.Stdout, "ready\n")
		return sandbox.Exit{Code: int(<-signals)}
	}
	m, _ := newManager(t, map[string]conformance.Script{"trap": trap})
	for cause, want := range map[error]syscall.Signal{
		sandbox.SignalCause(syscall.SIGINT): syscall.SIGINT, fmt.Errorf("the client: %w", sandbox.SignalCause(syscall.SIGINT)): syscall.SIGINT,
		sandbox.SignalCause(syscall.SIGHUP): syscall.SIGTERM, errors.New("enough"): syscall.SIGTERM,
	} {
		ctx, cancel := context.WithCancelCause(context.Background())
		res, err := m.Run(ctx, create(t, m, sandbox.Spec{}), sandbox.Process{Args: []string{"trap"}, Limits: sandbox.Limits{Grace: time.Hour}},
			sandbox.IO{OnEvent: func(e sandbox.Event) {
				if e.Kind == sandbox.EventStdout {
					cancel(cause)
				}
			}})
		if err != nil || res.Verdict != sandbox.VerdictCancelled || res.Exit.Code != int(want) {
			t.Errorf("%v: %+v, %v", cause, res, err)
		}
	}
}

// At the time and CPU limits, a program that has a handler for its plan's signal gets that before SIGTERM, and the verdict stays. Nothing else
// sends it.
func TestStackSignal(t *testing.T) {
	const quit = 3
	got := make(chan []syscall.Signal, 1)
	record := func(p *conformance.FakeProcess, most int) sandbox.Exit {
		signals := p.Trap()
		p.Use(monitor.Sample{CPUUser: time.Hour})
		_, _ = io.WriteString(p.Stdout, "ready\n")
		var all []syscall.Signal
		for len(all) < most {
			select {
			case s := <-signals:
				if all = append(all, s); s == syscall.SIGTERM {
					most = 0
				}
			case <-p.Killed:
				most = 0
			}
		}
		got <- all
		return sandbox.Exit{Code: 2}
	}
	m, _ := newManager(t, map[string]conformance.Script{
		"goes on":    func(p *conformance.FakeProcess) sandbox.Exit { return record(p, 9) },
		"ends":       func(p *conformance.FakeProcess) sandbox.Exit { return record(p, 1) },
		"no handler": wait,
	})
	wall, cpu := sandbox.Limits{Wall: 2 * time.Second, Grace: time.Minute}, sandbox.Limits{CPUTime: time.Millisecond, Grace: time.Minute}
	for name, c := range map[string]struct {
		program string
		signal  int
		limits  sandbox.Limits
		cancel  bool
		want    []syscall.Signal
		verdict sandbox.Verdict
	}{
		"wall":       {"goes on", quit, wall, false, []syscall.Signal{quit, syscall.SIGTERM}, sandbox.VerdictTimeLimit},
		"cpu":        {"goes on", quit, cpu, false, []syscall.Signal{quit, syscall.SIGTERM}, sandbox.VerdictCPULimit},
		"ends by it": {"ends", quit, cpu, false, []syscall.Signal{quit}, sandbox.VerdictCPULimit},
		"no signal":  {"goes on", 0, cpu, false, []syscall.Signal{syscall.SIGTERM}, sandbox.VerdictCPULimit},
		"cancelled":  {"goes on", quit, sandbox.Limits{Grace: time.Minute}, true, []syscall.Signal{syscall.SIGTERM}, sandbox.VerdictCancelled},
		"no handler": {"no handler", quit, wall, false, nil, sandbox.VerdictTimeLimit},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		res, err := m.Run(ctx, create(t, m, sandbox.Spec{}), sandbox.Process{Args: []string{c.program}, StackSignal: c.signal, Limits: c.limits},
			sandbox.IO{OnEvent: func(e sandbox.Event) {
				if e.Kind == sandbox.EventStdout && c.cancel {
					cancel()
				}
			}})
		cancel()
		if err != nil || res.Verdict != c.verdict {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		if c.want == nil {
			if res.Exit.Signal != int(syscall.SIGTERM) {
				t.Errorf("%s: %+v", name, res.Exit)
			}
			continue
		}
		if all := <-got; !slices.Equal(all, c.want) {
			t.Errorf("%s: signals %v, want %v", name, all, c.want)
		}
		if len(res.Violations) > 1 { // that of the limit
			t.Errorf("%s: %+v", name, res.Violations)
		}
	}
}

// The first process of a phase that is ordered to end also ends the others: all were cancelled, also a process that ends
// before it gets the order.
func TestNeighboursAreCancelledTogether(t *testing.T) {
	b := &stubbed{conformance.NewFake(map[string]conformance.Script{"wait": wait, "late": wait}), nil}
	b.start = func(ctx context.Context, i sandbox.Instance, p *sandbox.Process) (sandbox.Task, error) {
		task, err := i.Start(ctx, p)
		if err != nil || p.Args[0] != "late" {
			return task, err
		}
		return &sampled{task, func() (monitor.Sample, error) {
			_, _ = task.Wait() // busy until both have happened
			time.Sleep(time.Millisecond)
			return monitor.Sample{}, syscall.EBUSY
		}, nil}, nil
	}
	m := sandbox.NewManager(b, sandbox.Options{SampleInterval: -1})
	defer m.Close()
	for n := range 20 {
		id := create(t, m, sandbox.Spec{Limits: sandbox.Limits{CPUTime: time.Millisecond}})
		first := launch(t, m, id, sandbox.Process{Args: []string{"wait"}})
		late := launch(t, m, id, sandbox.Process{Args: []string{"late"}})
		time.Sleep(5 * time.Millisecond) // until it is asked for its CPU time
		end := func() error { return m.Kill(id) }
		if n%2 == 1 {
			end = func() error { return m.Stop(context.Background(), id) }
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		for _, done := range []<-chan *sandbox.Result{first, late} {
			if res := <-done; res.Verdict != sandbox.VerdictCancelled {
				t.Fatalf("%s, %+v", res.Verdict, res.Exit)
			}
		}
	}
}

// The first process of a phase sets the phase's limits: the next one has them too, or asks for others and is refused.
func TestNeighboursShareLimits(t *testing.T) {
	m, _ := newManager(t, map[string]conformance.Script{"wait": wait, "exit": exit})
	id := create(t, m, sandbox.Spec{})
	first := launch(t, m, id, sandbox.Process{Args: []string{"wait"}, Limits: sandbox.Limits{Memory: 64 * sandbox.MiB}})
	for name, p := range map[string]sandbox.Process{
		"memory": {Limits: sandbox.Limits{Memory: 16 * sandbox.MiB}}, "pids": {Limits: sandbox.Limits{Processes: 3}},
		"cpus": {Limits: sandbox.Limits{CPUs: 0.25}}, "cpu_time": {Limits: sandbox.Limits{CPUTime: time.Second}},
		"network": {Network: sandbox.NetworkLocalhost},
	} {
		p.Args = []string{"exit"}
		if _, err := m.Run(context.Background(), id, p, sandbox.IO{}); !errors.Is(err, sandbox.ErrInvalid) ||
			!strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "another phase") {
			t.Errorf("%s: %v", name, err)
		}
		p.Phase = "own" // the control experiment
		if res, err := m.Run(context.Background(), id, p, sandbox.IO{}); err != nil || res.Verdict != sandbox.VerdictOK {
			t.Errorf("%s in a phase of its own: %+v, %v", name, res, err)
		}
	}
	res, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"exit"},
		Limits: sandbox.Limits{Wall: time.Second, OpenFiles: 48, Memory: 64 * sandbox.MiB}}, sandbox.IO{})
	if err != nil || res.Limits.Memory != 64*sandbox.MiB || res.Limits.OpenFiles != 48 || res.Limits.Wall != time.Second {
		t.Errorf("%+v, %v", res, err)
	}
	if res, err = m.Run(context.Background(), id, sandbox.Process{Args: []string{"exit"}}, sandbox.IO{}); err != nil ||
		res.Limits.Memory != 64*sandbox.MiB {
		t.Errorf("%+v, %v", res, err)
	}
	// A process that reaches its limit ends the phase; the other process is not at fault.
	if res, err = m.Run(context.Background(), id, sandbox.Process{Args: []string{"wait"},
		Limits: sandbox.Limits{Wall: 20 * time.Millisecond}}, sandbox.IO{}); err != nil || res.Verdict != sandbox.VerdictTimeLimit {
		t.Errorf("%+v, %v", res, err)
	}
	if res := <-first; res.Verdict != sandbox.VerdictCancelled {
		t.Errorf("the neighbour: %s", res.Verdict)
	}
}

// A failed removal is an error, not a result.
func TestFinishThatFails(t *testing.T) {
	boom := errors.New("cgroup is busy")
	b := &stubbed{conformance.NewFake(map[string]conformance.Script{"exit": exit}), nil}
	b.start = func(ctx context.Context, i sandbox.Instance, p *sandbox.Process) (sandbox.Task, error) {
		task, err := i.Start(ctx, p)
		return &sampled{task, task.Sample, boom}, err
	}
	m := sandbox.NewManager(b, sandbox.Options{})
	defer m.Close()
	id := create(t, m, sandbox.Spec{})
	if res, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{"exit"}}, sandbox.IO{}); !errors.Is(err, boom) ||
		res != nil {
		t.Errorf("%+v, %v", res, err)
	}
}

// Limits that a script reports as reached decide the verdict as the table says.
func TestVerdictsOfTouchedLimits(t *testing.T) {
	for want, s := range map[sandbox.Verdict]monitor.Sample{
		sandbox.VerdictMemoryLimit: {OOMKills: 1}, sandbox.VerdictDiskLimit: {DiskFull: true}, sandbox.VerdictNonzeroExit: {ProcessLimitHits: 3},
	} {
		m, _ := newManager(t, map[string]conformance.Script{"fail": func(p *conformance.FakeProcess) sandbox.Exit {
			p.Use(s)
			return sandbox.Exit{Code: 1}
		}})
		res, err := m.Run(context.Background(), create(t, m, sandbox.Spec{}), sandbox.Process{Args: []string{"fail"}}, sandbox.IO{})
		if err != nil || res.Verdict != want || len(res.Violations) != 1 {
			t.Errorf("%+v: %+v, %v", s, res, err)
		}
	}
}

// quotaOf is a cap that the kernel enforces, full or not.
type quotaOf bool

func (full quotaOf) Full() bool { return bool(full) }

// The cap of a volume is a gap where it is polled; where the kernel enforces it, a full volume explains a failure.
func TestVolumeCaps(t *testing.T) {
	m, _ := newManager(t, map[string]conformance.Script{
		"exit": exit, "fail": func(*conformance.FakeProcess) sandbox.Exit { return sandbox.Exit{Code: 1} },
		"large": func(*conformance.FakeProcess) sandbox.Exit { return sandbox.Exit{Signal: 25} },
	})
	gap := sandbox.Gap{Reason: "no quotas here", Remedy: "another file system"}
	for _, c := range []struct {
		volume     sandbox.Volume
		command    string
		want       sandbox.Verdict
		violations int
		gap        string
	}{
		{sandbox.Volume{Cap: sandbox.MiB, CapGap: gap}, "fail", sandbox.VerdictNonzeroExit, 0, "no quotas here"},
		{sandbox.Volume{Cap: sandbox.MiB}, "large", sandbox.VerdictDiskLimit, 1, "deleted and still open"},
		{sandbox.Volume{Cap: sandbox.MiB, Quota: quotaOf(false)}, "fail", sandbox.VerdictNonzeroExit, 0, ""},
		{sandbox.Volume{Cap: sandbox.MiB, Quota: quotaOf(false)}, "large", sandbox.VerdictSignaled, 0, ""},
		{sandbox.Volume{Cap: sandbox.MiB, Quota: quotaOf(true)}, "fail", sandbox.VerdictDiskLimit, 1, ""},
		{sandbox.Volume{Cap: sandbox.MiB, Quota: quotaOf(true)}, "exit", sandbox.VerdictOK, 1, ""},
	} {
		c.volume.Source, c.volume.Target, c.volume.Writable = "/", "/data", true
		id := create(t, m, sandbox.Spec{Volumes: []sandbox.Volume{c.volume}})
		res, err := m.Run(context.Background(), id, sandbox.Process{Args: []string{c.command}}, sandbox.IO{})
		if err != nil || res.Verdict != c.want || len(res.Violations) != c.violations {
			t.Errorf("%+v, %s: %+v, %v", c.volume, c.command, res, err)
			continue
		}
		var gaps []string
		for _, g := range res.Isolation.Missing {
			if g.Control == sandbox.ControlDisk {
				gaps = append(gaps, g.Reason+" "+g.Remedy)
			}
		}
		said := strings.Join(gaps, " ")
		if len(gaps) > 1 || (c.gap == "") != (said == "") || !strings.Contains(said, c.gap) || !strings.Contains(said, c.volume.CapGap.Remedy) {
			t.Errorf("%+v: %q", c.volume, gaps)
		}
	}
}

// Defaults that were lowered are noted in each result, and shared by none.
func TestNotes(t *testing.T) {
	m, _ := newManager(t, map[string]conformance.Script{"exit": exit})
	res, err := m.Run(context.Background(), create(t, m, sandbox.Spec{}), sandbox.Process{Args: []string{"exit"}}, sandbox.IO{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range res.Notes {
		if !strings.Contains(n, "lowered") {
			t.Errorf("%q", n)
		}
	}
	res.Isolation.Controls[sandbox.ControlSeccomp] = sandbox.Absent
	again, err := m.Run(context.Background(), create(t, m, sandbox.Spec{}), sandbox.Process{Args: []string{"exit"}}, sandbox.IO{})
	if err != nil || again.Isolation.Controls[sandbox.ControlSeccomp] != sandbox.Enforced {
		t.Errorf("a result shares its isolation with another: %+v, %v", again, err)
	}
}
