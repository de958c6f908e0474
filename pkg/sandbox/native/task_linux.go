package native

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/measure"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// maxTries bounds how often a process may come too late for its phase.
const maxTries = 16

// Start runs a process in its phase.
func (i *instance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	for tries := 1; ; tries++ {
		ph, err := i.enter(ctx, p.Phase, p.Limits)
		if err != nil {
			return nil, err
		}
		t, err := i.startIn(ctx, ph, p)
		// The last of its processes ended, and the init with it, just when this one came, or a fork did not become the first: it
		// has not run, and gets a phase of its own.
		if errors.Is(err, spawn.ErrGone) && (!ph.killed.Load() || ph.lost.Load()) && ctx.Err() == nil && tries < maxTries {
			<-ph.init.Done() // its socket has ended; now everybody knows
			continue
		}
		return t, err
	}
}

func (i *instance) startIn(ctx context.Context, ph *phase, p *sandbox.Process) (sandbox.Task, error) {
	ph.entry.RLock()
	defer ph.entry.RUnlock()
	m := &initproto.Exec{
		ID: i.execs.Add(1), Paths: spawn.Candidates(p.Args[0], p.Env["PATH"]), Args: p.Args, Env: p.Environ(), Dir: p.Workdir,
		UID: uint32(i.spec.User.UID), GID: uint32(i.spec.User.GID), KeepGroups: i.id.KeepGroups,
		Rlimits: i.rlimits(ph, p.Limits), Seccomp: i.filter, Loopback: p.Network == sandbox.NetworkLocalhost, NewCgroupNS: true,
	}
	m.Landlock = rootfs.Landlock(i.spec, p.Network, i.policy.DenyUncounted)
	if p.TTY != nil {
		m.Terminal, m.Rows, m.Cols = true, p.TTY.Rows, p.TTY.Cols
	}
	walls := i.walls(ph, slices.Clone(m.Rlimits)) // not changed by whoever changes the message
	m.Forbidden, m.Held = i.forbidden(), i.spec.Strict
	program, err := answered(ctx, func(ctx context.Context) (*spawn.Program, error) {
		return ph.init.Run(ctx, m, ph.join, ph.born, walls)
	})
	if err != nil {
		err = ph.startFailure(walls, err)
		if ph.Leave() {
			ph.init.Kill()
			_, finishErr := ph.Finish(ctx)
			err = errors.Join(err, finishErr)
		}
		return nil, err
	}
	return i.begun(ph, p, program, walls), nil
}

// walls are what every program of a phase is to have.
func (i *instance) walls(ph *phase, rlimits []initproto.Rlimit) *measure.Program {
	return &measure.Program{
		Backend: Name, Asked: i.iso, Group: ph.group, Limits: i.b.counts.Limits(ph.limits), Rlimits: rlimits,
		WritableRoot: i.spec.WritableRoot, Require: i.spec.Require, Strict: i.spec.Strict, Grade: (*sandbox.Isolation).Grade,
	}
}

// forbidden is what Landlock must refuse to a program; "" where there is no Landlock.
func (i *instance) forbidden() string {
	if i.iso.Controls[sandbox.ControlLandlock] != sandbox.Enforced {
		return ""
	}
	return measure.Forbidden()
}

// begun is the task of a program that runs from now on.
func (i *instance) begun(ph *phase, p *sandbox.Process, program *spawn.Program, walls *measure.Program) sandbox.Task {
	if !i.b.opts.Eager { // whose callers would have their programs to themselves: see drop
		i.b.nursery.refill()
	}
	if p.Followed {
		i.expect()
	}
	t := launch.New(program, ph)
	t.Watch(i.policy)
	t.Measured(walls.Isolation(program.Examined()))
	return t
}

// rlimits of every process; the number of processes is among them only where no cgroup counts it.
func (i *instance) rlimits(ph *phase, l sandbox.Limits) []initproto.Rlimit {
	limits := launch.Rlimits(l, i.spec.VolumeCap())
	if !i.b.counts.Pids && i.b.self.NProc {
		n := uint64(l.Processes)
		if i.id.Stay {
			n += uint64(ph.init.Threads()) // it has the same id
		}
		limits = append(limits, initproto.Rlimit{Resource: unix.RLIMIT_NPROC, Soft: n, Max: n})
	}
	return launch.Within(limits)
}
