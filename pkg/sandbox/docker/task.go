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
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/docker/wire"
)

// task is one process of a container.
type task struct {
	i      *instance
	id     uint32
	phase  string
	stdin  *wire.Outlet
	stdout *wire.Inlet
	stderr *wire.Inlet // nil with a terminal
	tty    bool

	started  chan *initproto.Failed // nil: it runs
	exited   chan struct{}          // closed when exit is known
	finished chan struct{}          // closed when final is known

	mu       sync.Mutex
	seen     wire.Started
	exit     wire.Exited
	final    wire.Finished
	refusals []sandbox.Violation // each kind when it was first seen
	more     chan struct{}       // closed, and made anew, when there is one more
	last     wire.Counters
	killed   bool // by us

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
	_ sandbox.Measured = (*task)(nil)
)

func newTask(i *instance, p *sandbox.Process) *task {
	t := &task{
		i: i, phase: p.Phase, tty: p.TTY != nil, started: make(chan *initproto.Failed, 1),
		exited: make(chan struct{}), finished: make(chan struct{}), more: make(chan struct{}),
	}
	t.id = i.session.open(t.hear)
	t.stdin = i.session.conn.Outlet(wire.Stream(t.id, 0))
	t.stdout = i.session.conn.Inlet(wire.Stream(t.id, 1))
	if !t.tty {
		t.stderr = i.session.conn.Inlet(wire.Stream(t.id, 2))
	}
	return t
}

// Isolation is that of the container, in which what the helper has not seen on the program's process is declared.
func (t *task) Isolation() (sandbox.Isolation, bool) {
	iso := t.i.Isolation().Clone()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range ofProgram {
		if !slices.Contains(t.seen.Measured, string(c)) {
			iso.Declare("the helper could not look at the program's process", "--backend native", c)
		}
	}
	return iso, true
}

// ofProgram are the controls that each program has for itself; the rest is the container's.
var ofProgram = []sandbox.Control{
	sandbox.ControlSeccomp, sandbox.ControlNoNewPrivs, sandbox.ControlCapabilities, sandbox.ControlOpenFiles, sandbox.ControlUserNS, sandbox.ControlCgroupNS,
}

// maxKinds bounds how many kinds of refusals are kept; the helper has no more.
const maxKinds = 128

// hear takes what the helper says of this program.
func (t *task) hear(kind wire.Kind, body []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch kind {
	case wire.KindStarted:
		_ = wire.Parse(body, &t.seen) // what is not understood was not seen
		t.begin(nil)
	case wire.KindFailed:
		m, err := initproto.Decode(append([]byte(nil), body...))
		f, ok := m.(*initproto.Failed)
		if err != nil || !ok {
			f = &initproto.Failed{Stage: initproto.StageProtocol, Detail: "talk to helper", Errno: uint32(linuxEPROTO)}
		}
		t.begin(f)
	case wire.KindRefusal:
		var r seccomp.Refusal
		if json.Unmarshal(body, &r) == nil && len(t.refusals) < maxKinds {
			t.refusals = append(t.refusals, violation(r, false))
			close(t.more)
			t.more = make(chan struct{})
		}
	case wire.KindExited:
		select {
		case <-t.exited:
		default:
			if wire.Parse(body, &t.exit) != nil {
				t.exit = wire.Exited{Signal: int(syscall.SIGKILL), Lost: true}
			}
			close(t.exited)
		}
	case wire.KindFinished:
		select {
		case <-t.finished:
		default:
			if wire.Parse(body, &t.final) != nil {
				t.final = wire.Finished{Problem: wire.ErrMalformed.Error()}
			}
			close(t.finished)
		}
	}
}

func (t *task) begin(f *initproto.Failed) {
	select {
	case t.started <- f:
	default:
	}
}

// abandon lets go of a program that was not started.
func (t *task) abandon() {
	t.i.session.forget(t.id)
	_ = t.stdin.Close()
	_ = t.stdout.Close()
	if t.stderr != nil {
		_ = t.stderr.Close()
	}
}

// cancelStart sees to it that a program whose start was called off does not run on.
func (t *task) cancelStart() {
	t.i.b.goBeside(func(ctx context.Context) {
		defer t.abandon()
		select {
		case f := <-t.started:
			if f == nil {
				_ = t.Kill()
				_ = t.i.session.conn.Send(wire.KindFinish, t.id, nil)
				select {
				case <-t.finished:
				case <-t.i.session.done:
				case <-time.After(finishPatience):
				}
			}
		case <-t.i.session.done:
		case <-ctx.Done():
		case <-time.After(startPatience):
			_ = t.i.end()
		}
	})
}

// Stdin is where the process reads from; with a terminal, what is typed.
func (t *task) Stdin() io.WriteCloser { return t.stdin }

// Stdout is what the process prints; with a terminal, the terminal.
func (t *task) Stdout() io.ReadCloser { return t.stdout }

// Stderr is nil with a terminal.
func (t *task) Stderr() io.ReadCloser {
	if t.stderr == nil {
		return nil // not a nil pointer in an interface
	}
	return t.stderr
}

// Signal reaches the process, or everything in its phase.
func (t *task) Signal(sig syscall.Signal, scope sandbox.Scope) error {
	return failure("signal", "protocol", t.i.session.conn.Send(wire.KindSignal, t.id, wire.Signal(linuxSignal(sig), scope == sandbox.Tree)))
}

// Resize tells the terminal its size.
func (t *task) Resize(size sandbox.TTY) error {
	if !t.tty {
		return errors.New("the program has no terminal")
	}
	return failure("resize", "protocol", t.i.session.conn.Send(wire.KindResize, t.id, wire.Size(size.Rows, size.Cols)))
}

// insistAfter is how long the helper has to kill a phase before the daemon kills the container.
const insistAfter = 3 * time.Second

// Kill ends the whole phase at once. A helper that does not manage is killed with all it has.
func (t *task) Kill() error {
	t.mu.Lock()
	first := !t.killed
	t.killed = true
	t.mu.Unlock()
	select {
	case <-t.exited:
		return nil
	case <-t.i.session.done:
		return nil
	default:
	}
	if t.i.session.conn.Send(wire.KindKill, t.id, nil) != nil {
		return t.i.end()
	}
	if first {
		t.i.b.goBeside(func(context.Context) {
			select {
			case <-t.exited:
			case <-t.i.session.done:
			case <-time.After(insistAfter):
				_ = t.i.end()
			}
		})
	}
	return nil
}

// Wait blocks until the process has ended. One whose container went first was killed with it.
func (t *task) Wait() (sandbox.Exit, error) {
	select {
	case <-t.exited:
	case <-t.i.session.done:
		select {
		case <-t.exited: // just before
		default:
			return sandbox.Exit{Signal: int(syscall.SIGKILL)}, nil
		}
	}
	return sandbox.Exit{Code: t.exit.Code, Signal: t.exit.Signal}, nil
}

// Took is how long the process ran, as its init saw it.
func (t *task) Took() (time.Duration, bool) {
	select {
	case <-t.exited:
		return t.exit.Took, t.exit.Took > 0
	default:
		return 0, false
	}
}

// Lost: its init, or the container, ended before the process did, and not by us.
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

// finishPatience is how long the helper has to bury a phase.
const finishPatience = 8 * time.Second

// Finish ends what the process left running, if it was the last of its phase, and returns what the phase has used.
func (t *task) Finish(ctx context.Context) (monitor.Sample, error) {
	t.finishing.Do(func() {
		defer t.i.session.forget(t.id)
		defer t.i.leave(t.phase)
		defer t.wakeWitnesses()
		_ = t.stdin.Close()
		t.mu.Lock()
		t.sample = t.last.Sample() // unless something better comes
		t.mu.Unlock()
		if t.i.session.conn.Send(wire.KindFinish, t.id, nil) != nil {
			t.askWhy(ctx) // the container is gone, and everything with it
			return
		}
		select {
		case <-t.finished:
			t.sample = t.final.Counters.Sample()
			if t.final.Problem != "" {
				t.err = failure("end phase "+t.phase, "cleanup", errors.New(t.final.Problem))
			}
		case <-t.i.session.done:
			t.askWhy(ctx)
		case <-time.After(finishPatience):
			t.err = failure("end phase "+t.phase, "cleanup", errors.Join(errors.New("the container's helper does not answer; the container was killed"), t.i.end()))
		}
	})
	return t.sample, t.err
}

// askWhy asks the daemon whether memory ran out when a container has ended by itself. A program can be less likely than the helper to
// be ended then, and nobody is left inside to tell.
func (t *task) askWhy(ctx context.Context) {
	t.mu.Lock()
	killed := t.killed
	t.mu.Unlock()
	if !killed && t.sample.OOMKills == 0 && t.i.d.ranOutOfMemory(context.WithoutCancel(ctx), t.i.id, t.i.made) {
		t.sample.OOMKills = 1
	}
}

// samplePatience is how long a look may take.
const samplePatience = 2 * time.Second

// Sample is what the container uses now.
func (t *task) Sample() (monitor.Sample, error) {
	ctx, cancel := context.WithTimeout(context.Background(), samplePatience)
	defer cancel()
	r, err := t.i.session.ask(ctx, wire.KindSample, nil)
	var c wire.Counters
	if err == nil {
		err = wire.Parse(r.body, &c)
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

// wakeWitnesses tells those who read refusals that there will be no more.
func (t *task) wakeWitnesses() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.more != nil {
		close(t.more)
		t.more = nil
	}
}

// Refusals yields each kind of refused call when it is first seen.
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
			case <-t.i.session.done:
				return
			}
		}
	}
}

// Refused is what was refused, or why that is not known.
func (t *task) Refused() (list []sandbox.Violation, unknown string) {
	select {
	case <-t.finished:
	default:
		return nil, "the container was gone before it could be asked"
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
