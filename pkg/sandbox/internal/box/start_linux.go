package box

import (
	"context"
	"errors"
	"slices"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/measure"
)

// maxTries bounds how often a start may find that its phase has just ended.
const maxTries = 16

// Start runs a process in its phase.
func (i *Instance) Start(ctx context.Context, process *sandbox.Process) (sandbox.Task, error) {
	for tries := 1; ; tries++ {
		p, err := i.enter(ctx, process)
		if err != nil {
			return nil, err
		}
		t, err := i.startIn(ctx, p, process)
		// The last process of the phase ended, and the init with it, just before this start, or a fork did not become
		// the first: the process has not run, and gets a phase of its own.
		if errors.Is(err, spawn.ErrGone) && (!p.killed.Load() || p.abandoned.Load()) && ctx.Err() == nil && tries < maxTries {
			<-p.Init.Done() // its socket has ended; enter detects that
			continue
		}
		return t, err
	}
}

func (i *Instance) startIn(ctx context.Context, p *Phase, process *sandbox.Process) (sandbox.Task, error) {
	p.Entry.RLock()
	defer p.Entry.RUnlock()
	m := &initproto.Exec{
		ID: i.NextExec(), Paths: spawn.Candidates(process.Args[0], process.Env["PATH"]), Args: process.Args, Env: process.Environ(),
		Dir: process.Workdir, Seccomp: i.Filter, Held: i.Spec.Strict, Forbidden: i.Forbidden(),
		Merged: process.MergeOutput, Socket: process.DriverSocket,
	}
	if process.TTY != nil {
		m.Terminal, m.Rows, m.Cols = true, process.TTY.Rows, process.TTY.Cols
	}
	i.Kind.Describe(p, process, m)
	expected := i.Expected(p, m.Rlimits)
	err := p.prepareNetwork(ctx, process, &m.Device, expected)
	if err != nil {
		return nil, errors.Join(err, p.leaveUnused(ctx))
	}
	program, err := Answered(ctx, i.Host.Timeout, func(ctx context.Context) (*spawn.Program, error) { return p.run(ctx, m, expected) })
	if err != nil {
		return nil, errors.Join(p.StartFailure(expected, err), p.leaveUnused(ctx))
	}
	return i.Connected(ctx, i.NewTask(p, process, program, expected), process)
}

// leaveUnused removes a process that did not start from its phase.
func (p *Phase) leaveUnused(ctx context.Context) error {
	if !p.Leave() {
		return nil
	}
	p.Init.End()
	_, err := p.Finish(ctx)
	return err
}

// Connected connects the network of a task that has just started. A task without its network is ended.
func (i *Instance) Connected(ctx context.Context, t *Task, process *sandbox.Process) (sandbox.Task, error) {
	err := t.phase.connectNetwork(ctx, process)
	if err == nil {
		return t, nil
	}
	_ = t.Kill()
	t.CloseOutput()
	_, _ = t.Wait()
	_, finishErr := t.Finish(context.WithoutCancel(ctx))
	return nil, errors.Join(err, finishErr)
}

// run makes the init start a program, which is measured before its exec if its process is one of the host's.
func (p *Phase) run(ctx context.Context, m *initproto.Exec, expected *measure.Program) (*spawn.Program, error) {
	h := p.Instance.Host
	var examiner spawn.Examiner
	switch {
	case h.Opaque:
		if err := expected.ExamineLimits(); err != nil {
			return nil, err
		}
	case expected != nil:
		examiner = expected
	}
	if m.Terminal && h.TerminalRelay { // a relay does not hold its program
		return p.Container.RunOnTerminal(ctx, m)
	}
	return p.Init.Run(ctx, m, p.Join, p.Born, examiner)
}

// NextExec numbers the programs of the sandbox.
func (i *Instance) NextExec() uint64 { return i.execs.Add(1) }

// Expected is the isolation that a program of a phase must have; nil where programs are not measured. The limits are
// copied: their message may be changed later.
func (i *Instance) Expected(p *Phase, rlimits []initproto.Rlimit) *measure.Program {
	if i.Host.Grade == nil {
		return nil
	}
	return &measure.Program{
		Backend: i.Host.Name, Asked: i.claimed(), Group: p.Group, Limits: p.groupLimits(p.limits), Rlimits: slices.Clone(rlimits),
		WritableRoot: i.Spec.WritableRoot, Require: i.Spec.Require, Strict: i.Spec.Strict, Grade: i.Host.Grade,
	}
}

// Forbidden is a path that Landlock must refuse to a program; "" where there is no Landlock.
func (i *Instance) Forbidden() string {
	if i.Host.Opaque || i.claimed().Controls[sandbox.ControlLandlock] != sandbox.Enforced {
		return ""
	}
	return measure.Forbidden()
}

// NewTask returns the task of a program that has just started.
func (i *Instance) NewTask(p *Phase, process *sandbox.Process, program *spawn.Program, expected *measure.Program) *Task {
	i.Kind.Started(p, process)
	t := &Task{program: program, phase: p, driver: process.DriverSocket}
	if expected == nil {
		return t
	}
	if !i.Host.Opaque {
		policy := i.Policy
		policy.Interfaces = process.Network.HasLoopback()
		t.countRefusals(policy)
	}
	iso := expected.Isolation(program.Examined() || i.Host.Opaque)
	t.iso = &iso
	return t
}
