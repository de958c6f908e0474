package box

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproc"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Task is one process of a phase.
type Task struct {
	program   *spawn.Program
	phase     *Phase
	refusals  *seccomp.RefusalCounter // nil when refused calls are not counted
	uncounted string                  // why not, where they should be
	iso       *sandbox.Isolation
	driver    bool // its standard input is a driver socket

	finishing sync.Once
	final     monitor.Sample
	err       error
}

var (
	_ sandbox.Task       = (*Task)(nil)
	_ sandbox.Terminal   = (*Task)(nil)
	_ sandbox.Timed      = (*Task)(nil)
	_ sandbox.Watched    = (*Task)(nil)
	_ sandbox.Witness    = (*Task)(nil)
	_ sandbox.Routed     = (*Task)(nil)
	_ sandbox.Networked  = (*Task)(nil)
	_ sandbox.Measured   = (*Task)(nil)
	_ sandbox.Resettable = (*Task)(nil)
	_ sandbox.Driven     = (*Task)(nil)
)

// countRefusals counts the calls that the program's filter, made from p, refuses.
func (t *Task) countRefusals(p seccomp.Policy) {
	err := seccomp.Notifiable()
	if err == nil {
		err = errors.New("the kernel gave no listener to their filter")
		if l := t.program.TakeListener(); l != nil {
			t.refusals, err = seccomp.NewRefusalCounter(l, p)
		}
	}
	if err != nil {
		t.uncounted = err.Error()
	}
}

// Isolation is the measured isolation of the program; false if its backend does not measure programs.
func (t *Task) Isolation() (iso sandbox.Isolation, known bool) {
	if t.iso == nil {
		return iso, false
	}
	iso = t.iso.Clone()
	if n := t.phase.network.Load(); n != nil {
		if <-n.started; n.filter != nil {
			iso.Network = sandbox.DescribeNetwork(n.policy, n.filter, n.published)
		}
	}
	return iso, true
}

// Refusals yields each kind of refused call when it first occurs.
func (t *Task) Refusals() iter.Seq[sandbox.Violation] {
	return func(yield func(sandbox.Violation) bool) {
		if t.refusals == nil {
			return
		}
		for r := range t.refusals.First() {
			if !yield(violation(r, false)) {
				return
			}
		}
	}
}

// Refused returns the refused calls, or the reason why they are not known.
func (t *Task) Refused() (list []sandbox.Violation, unknown string) {
	if t.refusals == nil {
		return nil, t.uncounted
	}
	refusals, saturated := t.refusals.Refusals()
	for _, r := range refusals {
		list = append(list, violation(r, saturated))
	}
	if saturated && len(list) == 0 { // all of them were interrupted before the counter read them
		unknown = "too many were interrupted by signals"
	}
	return list, unknown
}

// violation: no flag allows any of these calls.
func violation(r seccomp.Refusal, saturated bool) sandbox.Violation {
	return sandbox.Violation{Kind: sandbox.ViolationSyscall, Name: r.Name, Detail: r.Call, Count: r.Count, Saturated: saturated}
}

// Stdin is the standard input of the process; with a terminal, its typed input.
func (t *Task) Stdin() io.WriteCloser { return t.program.Stdin() }

// ReadOutput reads from the stream with the oldest unread data.
func (t *Task) ReadOutput(p []byte) (stream, n int, err error) { return t.program.ReadOutput(p) }

// Driver is the supervisor's end of the driver socket; nil where a process has none.
func (t *Task) Driver() io.ReadWriteCloser {
	if t.phase.Instance.Host.Opaque { // no socket of the host's kernel reaches a process of another kernel
		return nil
	}
	return t.program.Socket()
}

// StopAtEmpty makes ReadOutput return an error instead of waiting, or wait again.
func (t *Task) StopAtEmpty(stop bool) { t.program.StopAtEmpty(stop) }

// AwaitEmpty waits until all output that was written has been read.
func (t *Task) AwaitEmpty(atMost time.Duration) { t.program.AwaitEmpty(atMost) }

// CloseOutput ends ReadOutput.
func (t *Task) CloseOutput() { t.program.CloseOutput() }

// Signal reaches the process, or every process of its phase but for forks. Processes of a driver have it when Signal returns: one for a cell
// must not reach the next one.
func (t *Task) Signal(sig syscall.Signal, scope sandbox.Scope) error {
	if scope == sandbox.Handler {
		return t.program.SignalHandler(sig)
	}
	if scope == sandbox.Tree && (t.phase.forks.Load() > 0 || t.driver && t.CanFork()) {
		_, err := t.phase.Group.Signal(sig, t.phase.networkPID())
		return err
	}
	return t.program.Signal(sig, scope == sandbox.Tree)
}

// Kill ends the whole phase at once, but for its forks.
func (t *Task) Kill() error {
	if t.phase.forks.Load() > 0 && t.phase.Group.KillOthers(t.phase.networkPID()) == nil {
		return nil
	}
	return t.phase.Kill()
}

// Resize sets the size of the terminal.
func (t *Task) Resize(size sandbox.TTY) error { return t.program.Resize(size.Rows, size.Cols) }

// Wait blocks until the process has ended.
func (t *Task) Wait() (sandbox.Exit, error) {
	code, signal := t.program.Wait()
	return sandbox.Exit{Code: code, Signal: signal}, nil
}

// Took is how long the process ran, as its init measured it.
func (t *Task) Took() (time.Duration, bool) { return t.program.Took() }

// NoRoutes is how many connections and packets of the phase had no route.
func (t *Task) NoRoutes() uint64 { return t.program.NoRoutes() }

// NoRoutesSoFar is the same while the process runs.
func (t *Task) NoRoutesSoFar() uint64 {
	if t.phase.InitPID <= 0 {
		return 0
	}
	return initproc.NoRoutes(t.phase.InitPID)
}

// Lost reports that the init ended before the process did, and not by the supervisor.
func (t *Task) Lost() bool { return t.program.Lost() && !t.phase.killed.Load() }

// Finish ends the phase if this was its last process, and returns the phase's use of resources.
func (t *Task) Finish(ctx context.Context) (monitor.Sample, error) {
	t.finishing.Do(func() {
		t.program.CloseInput()
		if t.refusals != nil {
			defer t.refusals.Close()
		}
		if t.phase.Poller != nil {
			t.phase.Poller.noteLargest(t.program.MaxRSS())
		}
		diskErr := t.phase.checkDisk() // before the end of the phase, which may remove the scratch
		if t.phase.Leave() {
			t.final, t.err = t.phase.Finish(ctx)
			t.err = errors.Join(t.err, diskErr)
			return
		}
		t.err = diskErr
		t.final, _ = t.phase.sampleLive() // other processes of the phase continue; a failed sample does not fail the run
	})
	return t.final, t.err
}

// Sample is the current use of the phase.
func (t *Task) Sample() (monitor.Sample, error) { return t.phase.sampleLive() }

// ResetPeaks counts the phase's peaks anew: the use so far was not the program's.
func (t *Task) ResetPeaks() error { return t.phase.resetPeaks() }
