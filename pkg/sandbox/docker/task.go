package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/containerproto"
)

// task is one process of a container.
type task struct {
	i      *instance
	id     uint32
	phase  string
	stdin  *containerproto.Outlet
	stdout *containerproto.Inlet // pieces of both streams
	output containerproto.OutputReader
	tty    bool

	started  chan *initproto.Failed // nil: the program runs
	exited   chan struct{}          // closed when exit is set
	finished chan struct{}          // closed when final is set

	mu       sync.Mutex
	seen     containerproto.Started
	exit     containerproto.Exited
	final    containerproto.Finished
	refusals []sandbox.Violation // one per kind of call
	more     chan struct{}       // closed and replaced when refusals grows
	last     containerproto.Counters
	killed   bool // by Kill

	finishing sync.Once
	sample    monitor.Sample
	err       error
}

var (
	_ sandbox.Task     = (*task)(nil)
	_ sandbox.Terminal = (*task)(nil)
	_ sandbox.Timed    = (*task)(nil)
	_ sandbox.Watched  = (*task)(nil)
	_ sandbox.Witness  = (*task)(nil)
	_ sandbox.Routed   = (*task)(nil)
	_ sandbox.Measured = (*task)(nil)
)

func newTask(i *instance, p *sandbox.Process) *task {
	t := &task{
		i: i, phase: p.Phase, tty: p.TTY != nil, started: make(chan *initproto.Failed, 1),
		exited: make(chan struct{}), finished: make(chan struct{}), more: make(chan struct{}),
	}
	t.id = i.connection.register(t.handleMessage)
	t.stdin = i.connection.conn.Outlet(containerproto.Stream(t.id, 0))
	t.stdout = i.connection.conn.Inlet(containerproto.Stream(t.id, 1))
	t.output.From = t.stdout
	return t
}

// Isolation is that of the container. Controls that the helper has not measured on the program's process are declared.
func (t *task) Isolation() (sandbox.Isolation, bool) {
	iso := t.i.Isolation().Clone()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range ofProgram {
		if !slices.Contains(t.seen.Measured, string(c)) {
			iso.Declare("the helper could not measure the program's process", "--backend native", c)
		}
	}
	return iso, true
}

// ofProgram are the controls of each program; the others are the container's.
var ofProgram = []sandbox.Control{
	sandbox.ControlSeccomp, sandbox.ControlNoNewPrivs, sandbox.ControlCapabilities, sandbox.ControlOpenFiles, sandbox.ControlUserNS,
	sandbox.ControlCgroupNS,
}

// maxKinds bounds how many kinds of refusals are kept; the helper sends no more.
const maxKinds = 128

// handleMessage handles the helper's messages about this program.
func (t *task) handleMessage(kind containerproto.Kind, body []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch kind {
	case containerproto.KindStarted:
		_ = containerproto.Parse(body, &t.seen) // unparsable: nothing was measured
		t.setStarted(nil)
	case containerproto.KindFailed:
		m, err := initproto.Decode(append([]byte(nil), body...))
		f, ok := m.(*initproto.Failed)
		if err != nil || !ok {
			f = &initproto.Failed{Stage: initproto.StageProtocol, Detail: "talk to helper", Errno: uint32(linuxEPROTO)}
		}
		t.setStarted(f)
	case containerproto.KindRefusal:
		var r seccomp.Refusal
		if json.Unmarshal(body, &r) == nil && len(t.refusals) < maxKinds {
			t.refusals = append(t.refusals, violation(r, false))
			close(t.more)
			t.more = make(chan struct{})
		}
	case containerproto.KindExited:
		select {
		case <-t.exited:
		default:
			if containerproto.Parse(body, &t.exit) != nil {
				t.exit = containerproto.Exited{Signal: int(syscall.SIGKILL), Lost: true}
			}
			close(t.exited)
		}
	case containerproto.KindFinished:
		select {
		case <-t.finished:
		default:
			if containerproto.Parse(body, &t.final) != nil {
				t.final = containerproto.Finished{Problem: containerproto.ErrMalformed.Error()}
			}
			close(t.finished)
		}
	}
}

func (t *task) setStarted(f *initproto.Failed) {
	select {
	case t.started <- f:
	default:
	}
}

// discardStart releases the streams of a program that was not started.
func (t *task) discardStart() {
	t.i.connection.unregister(t.id)
	_ = t.stdin.Close()
	t.CloseOutput()
}

// cancelStart makes sure that a program whose start was cancelled does not run on.
func (t *task) cancelStart() {
	t.i.b.runBackground(func(ctx context.Context) {
		defer t.discardStart()
		select {
		case f := <-t.started:
			if f == nil {
				_ = t.Kill()
				_ = t.i.connection.conn.Send(containerproto.KindFinish, t.id, nil)
				select {
				case <-t.finished:
				case <-t.i.connection.done:
				case <-time.After(finishTimeout):
				}
			}
		case <-t.i.connection.done:
		case <-ctx.Done():
		case <-time.After(startTimeout):
			_ = t.i.killContainer()
		}
	})
}

// Stdin is the input of the process; with a terminal, the keyboard.
func (t *task) Stdin() io.WriteCloser { return t.stdin }

// ReadOutput reads the output of the process in the order in which the helper has read it.
func (t *task) ReadOutput(p []byte) (stream, n int, err error) { return t.output.ReadOutput(p) }

// CloseOutput ends ReadOutput.
func (t *task) CloseOutput() { _ = t.stdout.Close() } // nil always

// Signal signals the process, or all processes of its phase. The manager sends signals that all systems number alike.
func (t *task) Signal(sig syscall.Signal, scope sandbox.Scope) error {
	return failure("signal", "protocol", t.i.connection.conn.Send(containerproto.KindSignal, t.id,
		containerproto.Signal(int(sig), byte(scope))))
}

// Resize sets the size of the terminal.
func (t *task) Resize(size sandbox.TTY) error {
	if !t.tty {
		return errors.New("the program has no terminal")
	}
	return failure("resize", "protocol", t.i.connection.conn.Send(containerproto.KindResize, t.id, containerproto.Size(size.Rows, size.Cols)))
}

// insistAfter is how long the helper has to kill a phase before the daemon kills the container.
const insistAfter = 3 * time.Second

// Kill ends the whole phase at once. If the helper does not do it in time, the daemon kills the container.
func (t *task) Kill() error {
	t.mu.Lock()
	first := !t.killed
	t.killed = true
	t.mu.Unlock()
	select {
	case <-t.exited:
		return nil
	case <-t.i.connection.done:
		return nil
	default:
	}
	if t.i.connection.conn.Send(containerproto.KindKill, t.id, nil) != nil {
		return t.i.killContainer()
	}
	if first {
		t.i.b.runBackground(func(context.Context) {
			select {
			case <-t.exited:
			case <-t.i.connection.done:
			case <-time.After(insistAfter):
				_ = t.i.killContainer()
			}
		})
	}
	return nil
}

// Wait blocks until the process has ended. A process whose container ended first was killed with it.
func (t *task) Wait() (sandbox.Exit, error) {
	select {
	case <-t.exited:
	case <-t.i.connection.done:
		select {
		case <-t.exited: // just before the end of the stream
		default:
			return sandbox.Exit{Signal: int(syscall.SIGKILL)}, nil
		}
	}
	return sandbox.Exit{Code: t.exit.Code, Signal: t.exit.Signal}, nil
}

// NoRoutes is how many connections and packets of the phase had no route.
func (t *task) NoRoutes() uint64 {
	select {
	case <-t.exited:
		return t.exit.NoRoutes
	default:
		return 0
	}
}

// Took is how long the process ran, as its init measured it.
func (t *task) Took() (time.Duration, bool) {
	select {
	case <-t.exited:
		return t.exit.Took, t.exit.Took > 0
	default:
		return 0, false
	}
}

// Lost reports that the init, or the container, ended before the process did, and not by Kill.
func (t *task) Lost() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.exited:
		return t.exit.Lost && !t.killed
	default:
		return !t.killed
	}
}

// finishTimeout is how long the helper has to end a phase.
const finishTimeout = 8 * time.Second

// Finish ends the other processes of the phase, if the process was its last, and returns what the phase has used.
func (t *task) Finish(ctx context.Context) (monitor.Sample, error) {
	t.finishing.Do(func() {
		defer t.i.connection.unregister(t.id)
		defer t.i.leavePhase(t.phase)
		defer t.wakeReaders()
		_ = t.stdin.Close()
		t.mu.Lock()
		t.sample = t.last.Sample() // the fallback
		t.mu.Unlock()
		if t.i.connection.conn.Send(containerproto.KindFinish, t.id, nil) != nil {
			t.checkOutOfMemory(ctx) // the container has ended
			return
		}
		select {
		case <-t.finished:
			t.sample = t.final.Counters.Sample()
			if t.final.Problem != "" {
				t.err = failure("end phase "+t.phase, "cleanup", errors.New(t.final.Problem))
			}
		case <-t.i.connection.done:
			t.checkOutOfMemory(ctx)
		case <-time.After(finishTimeout):
			t.err = failure("end phase "+t.phase, "cleanup",
				errors.Join(errors.New("the container's helper does not answer; the container was killed"), t.i.killContainer()))
		}
	})
	return t.sample, t.err
}

// checkOutOfMemory asks the daemon for an OOM kill when a container has ended by itself. The OOM killer can choose the helper
// before the program, and then no process inside is left to report it.
func (t *task) checkOutOfMemory(ctx context.Context) {
	t.mu.Lock()
	killed := t.killed
	t.mu.Unlock()
	if !killed && t.sample.OOMKills == 0 && t.i.d.ranOutOfMemory(context.WithoutCancel(ctx), t.i.id, t.i.made) {
		t.sample.OOMKills = 1
	}
}

// sampleTimeout bounds one sample.
const sampleTimeout = 2 * time.Second

// Sample is what the container uses now.
func (t *task) Sample() (monitor.Sample, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sampleTimeout)
	defer cancel()
	r, err := t.i.connection.request(ctx, containerproto.KindSample, nil)
	var c containerproto.Counters
	if err == nil {
		err = containerproto.Parse(r.body, &c)
	}
	if err != nil {
		return monitor.Sample{}, err
	}
	t.mu.Lock()
	t.last = c
	t.mu.Unlock()
	return c.Sample(), nil
}

func violation(r seccomp.Refusal, saturated bool) sandbox.Violation {
	return sandbox.Violation{Kind: sandbox.ViolationSyscall, Name: r.Name, Detail: r.Call, Count: r.Count, Saturated: saturated}
}

// wakeReaders ends the iterators of Refusals.
func (t *task) wakeReaders() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.more != nil {
		close(t.more)
		t.more = nil
	}
}

// Refusals yields each kind of refused call when it is reported, until the program has ended.
func (t *task) Refusals() iter.Seq[sandbox.Violation] {
	return func(yield func(sandbox.Violation) bool) {
		for n := 0; ; {
			t.mu.Lock()
			list, more := t.refusals[n:], t.more
			t.mu.Unlock()
			for _, v := range list {
				if !yield(v) {
					return
				}
			}
			if n += len(list); more == nil {
				return
			}
			if len(list) > 0 {
				continue
			}
			select {
			case <-more:
			case <-t.i.connection.done:
				return
			}
		}
	}
}

// Refused are the refused calls, or why they are unknown.
func (t *task) Refused() (list []sandbox.Violation, unknown string) {
	select {
	case <-t.finished:
	default:
		return nil, "the container ended before it reported them"
	}
	for _, r := range t.final.Refusals {
		list = append(list, violation(r, t.final.Saturated))
	}
	unknown = t.final.Unknown
	if t.final.Saturated && len(list) == 0 {
		unknown = "too many were interrupted by signals"
	}
	return list, unknown
}
