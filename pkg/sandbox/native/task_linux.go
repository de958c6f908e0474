package native

import (
	"context"
	"errors"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// task is one process of a phase.
type task struct {
	*spawn.Program
	p *phase

	finishing sync.Once
	final     monitor.Sample
	finishErr error
}

// Start runs a process in its phase.
func (i *instance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	ph, err := i.enter(ctx, p.Phase, p.Limits)
	if err != nil {
		return nil, err
	}
	m := &initproto.Exec{
		ID: i.execs.Add(1), Paths: spawn.Candidates(p.Args[0], p.Env["PATH"]), Args: p.Args, Env: p.Environ(), Dir: p.Workdir,
		UID: uint32(i.spec.User.UID), GID: uint32(i.spec.User.GID),
		Rlimits: rlimits(ph.limits), Seccomp: i.filter, Loopback: p.Network == sandbox.NetworkLocalhost, NewCgroupNS: true,
	}
	landlock(m, i.spec, p.Network)
	if p.TTY != nil {
		m.Terminal, m.Rows, m.Cols = true, p.TTY.Rows, p.TTY.Cols
	}
	program, err := ph.init.Run(ctx, m, ph.join)
	if err != nil {
		err = initFailure(err)
		if i.leave(ph) {
			ph.init.Kill()
			_, finishErr := ph.finish(ctx)
			err = errors.Join(err, finishErr)
		}
		return nil, err
	}
	i.b.nursery.refill() // while the program runs
	return &task{Program: program, p: ph}, nil
}

// rlimits of every process. The cgroup counts processes and memory better than these could; they
// bound what cgroups do not.
func rlimits(l sandbox.Limits) []initproto.Rlimit {
	files := uint64(l.OpenFiles)
	const mib = 1 << 20
	return []initproto.Rlimit{
		// 1, not 0: a core handler behind a pipe ignores 0 (R10).
		{Resource: unix.RLIMIT_CORE, Soft: 1, Max: 1},
		{Resource: unix.RLIMIT_NOFILE, Soft: files, Max: files},
		{Resource: unix.RLIMIT_MEMLOCK, Soft: 8 * mib, Max: 8 * mib},
		{Resource: unix.RLIMIT_MSGQUEUE, Soft: 819200, Max: 819200},
		{Resource: unix.RLIMIT_SIGPENDING, Soft: 4096, Max: 4096},
		{Resource: unix.RLIMIT_NICE, Soft: 0, Max: 0},
		{Resource: unix.RLIMIT_RTPRIO, Soft: 0, Max: 0},
		{Resource: unix.RLIMIT_STACK, Soft: 8 * mib, Max: unix.RLIM_INFINITY},
	}
}

// Signal reaches the process, or everything in its phase.
func (t *task) Signal(sig syscall.Signal, scope sandbox.Scope) error {
	return t.Program.Signal(sig, scope == sandbox.Tree)
}

// Kill ends the whole phase at once.
func (t *task) Kill() error {
	t.p.init.Kill()
	return nil
}

// Resize tells the terminal its size.
func (t *task) Resize(size sandbox.TTY) error { return t.Program.Resize(size.Rows, size.Cols) }

// Wait blocks until the process has ended.
func (t *task) Wait() (sandbox.Exit, error) {
	code, signal := t.Program.Wait()
	return sandbox.Exit{Code: code, Signal: signal}, nil
}

// Finish ends the phase if this was its last process, and returns what the phase has used.
func (t *task) Finish(ctx context.Context) (monitor.Sample, error) {
	t.finishing.Do(func() {
		t.CloseInput()
		if t.p.i.leave(t.p) {
			t.final, t.finishErr = t.p.finish(ctx)
			return
		}
		t.final, _ = t.p.live() // neighbours go on; a failed look is not worth failing the run
	})
	return t.final, t.finishErr
}

// Sample is what the phase uses now.
func (t *task) Sample() (monitor.Sample, error) { return t.p.live() }
