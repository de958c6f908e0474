package oci

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/measure"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// enter finds the phase a process belongs to, or makes it.
func (i *instance) enter(ctx context.Context, p *sandbox.Process) (*phase, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.destroyed {
		return nil, &sandbox.Error{Backend: Name, Op: "start", Kind: sandbox.ErrState, Err: errors.New("the sandbox is destroyed")}
	}
	if ph := i.phases[p.Phase]; ph != nil {
		select {
		case <-ph.init.Done(): // ended a moment ago; its last process is about to say so
		default:
			if err := ph.loopback(p.Network); err != nil {
				return nil, err // it never had a place, and has none to give up
			}
			ph.tasks++
			return ph, nil
		}
	}
	ph := i.spare
	i.spare = nil
	if ph != nil && ph.network != p.Network && i.b.runtime.kernel {
		// Its kernel has looked at the network once and for all.
		_ = ph.Kill()
		if _, err := ph.Finish(ctx); err != nil {
			return nil, err
		}
		ph = nil
	}
	if ph == nil {
		var err error
		if ph, err = i.newPhase(ctx, p.Network); err != nil {
			return nil, err
		}
	}
	ph.name, ph.tasks = p.Phase, 1
	i.phases[p.Phase] = ph
	err := ph.limit(p.Limits)
	if err == nil {
		err = ph.loopback(p.Network)
	}
	if err != nil {
		ph.leaveLocked()
		_ = ph.Kill()
		_, finishErr := ph.Finish(ctx)
		return nil, errors.Join(err, finishErr)
	}
	return ph, nil
}

// loopback brings one up for a process that is to have it.
func (p *phase) loopback(network sandbox.NetworkMode) error {
	if network != sandbox.NetworkLocalhost || p.network == sandbox.NetworkLocalhost {
		return nil
	}
	if p.c.kind.kernel {
		return &sandbox.Error{Backend: Name, Op: "start", Kind: sandbox.ErrUnsupported, Err: fmt.Errorf("%s can not add a loopback to a container that was made without", p.c.kind.name), Hint: "another phase, or --network localhost for the whole sandbox"}
	}
	var err error
	if p.c.lodge != nil {
		_, err = p.c.lodge.ask(&lodging{What: lodgeLoopback}, nil, 0)
	} else {
		err = p.c.raise()
	}
	if err != nil {
		return err
	}
	p.network = network
	return nil
}

// limit puts limits in force, before the phase has its first program.
func (p *phase) limit(l sandbox.Limits) error {
	if want := p.i.groupLimits(l); p.group != nil && want != p.i.groupLimits(p.limits) {
		if err := p.group.Set(want); err != nil {
			return failure("set limits", "cgroup", err)
		}
	}
	p.limits = l
	if p.watch != nil {
		return p.watch.Begin(l)
	}
	return nil
}

// rlimits of a plain user's processes; their number is among them only where no cgroup counts it.
func (i *instance) rlimits(ph *phase, l sandbox.Limits) []initproto.Rlimit {
	limits := launch.Rlimits(l, i.spec.VolumeCap())
	if !i.b.counts.Pids && i.b.self.NProc {
		n := uint64(l.Processes)
		if i.id.Stay {
			n += uint64(spawn.Threads(ph.init.Inmate())) // it has the same id
		}
		limits = append(limits, initproto.Rlimit{Resource: unix.RLIMIT_NPROC, Soft: n, Max: n})
	}
	return launch.Within(limits)
}

// maxTries bounds how often a process may come too late for its phase.
const maxTries = 16

// Start runs a process in its phase.
func (i *instance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	if p.TTY != nil && i.b.runtime.consoles && i.id != nil {
		return nil, needsRoot("a terminal", i.b.runtime.name) // a lodge executes one runtime, and no second
	}
	for tries := 1; ; tries++ {
		ph, err := i.enter(ctx, p)
		if err != nil {
			return nil, err
		}
		t, err := i.startIn(ctx, ph, p)
		// The last of its processes ended, and the init with it, just when this one came: it has not run, and gets a phase of
		// its own.
		if errors.Is(err, spawn.ErrGone) && !ph.killed.Load() && ctx.Err() == nil && tries < maxTries {
			<-ph.init.Done()
			continue
		}
		return t, err
	}
}

func (i *instance) startIn(ctx context.Context, ph *phase, p *sandbox.Process) (sandbox.Task, error) {
	m := &initproto.Exec{
		ID: i.execs.Add(1), Paths: spawn.Candidates(p.Args[0], p.Env["PATH"]), Args: p.Args, Env: p.Environ(), Dir: p.Workdir,
		Rlimits: launch.Within(launch.Rlimits(p.Limits, i.spec.VolumeCap())), Seccomp: i.filters.program,
	}
	if i.id != nil && !i.b.runtime.kernel {
		m.UID, m.GID, m.KeepGroups = uint32(i.spec.User.UID), uint32(i.spec.User.GID), i.id.KeepGroups
		m.NewUserNS, m.NewCgroupNS = i.inmate.renames, true
		m.Rlimits = i.rlimits(ph, p.Limits)
	}
	if i.b.runtime.kernel {
		// Of the rest it knows only that they can not be changed: it dumps no core, has no priorities, and its queues are memory.
		m.Rlimits = slices.DeleteFunc(m.Rlimits, func(r initproto.Rlimit) bool {
			return r.Resource != unix.RLIMIT_NOFILE && r.Resource != unix.RLIMIT_STACK && r.Resource != unix.RLIMIT_MEMLOCK
		})
	} else {
		m.Landlock = rootfs.Landlock(i.spec, p.Network, i.policy.DenyUncounted)
	}
	if p.TTY != nil {
		m.Terminal, m.Rows, m.Cols = true, p.TTY.Rows, p.TTY.Cols
	}
	bounded, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	walls := i.walls(ph, m)
	examiner := spawn.Examiner(walls)
	var program *spawn.Program
	var err error
	if i.b.runtime.kernel { // it has no listeners, and its programs are no processes of the host's
		examiner, err = nil, walls.ExamineLimits()
	}
	if err != nil {
		// Nothing was started.
	} else if m.Terminal && i.b.runtime.consoles { // which nothing holds
		program, err = ph.startOnConsole(bounded, m)
	} else {
		program, err = ph.init.Run(bounded, m, ph.join, nil, examiner)
	}
	if err != nil {
		if floored := ph.floored.Load(); floored != nil { // which has ended the init
			err = *floored
		} else {
			err = walls.Failure(err)
		}
		if ph.Leave() {
			ph.init.Kill()
			_, finishErr := ph.Finish(ctx)
			err = errors.Join(err, finishErr)
		}
		return nil, err
	}
	if i.b.runtime.ahead {
		go func() { _ = ph.c.strip() }() // clear waits for it
	}
	t := launch.New(program, ph)
	if !i.b.runtime.kernel {
		t.Watch(i.policy)
	}
	t.Measured(walls.Isolation(program.Examined() || i.b.runtime.kernel))
	return t, nil
}

// walls are what every program of a phase is to have.
func (i *instance) walls(ph *phase, m *initproto.Exec) *measure.Program {
	m.Held = i.spec.Strict
	w := &measure.Program{
		Backend: Name, Asked: i.Isolation(), Group: ph.group, Limits: i.groupLimits(ph.limits), Rlimits: slices.Clone(m.Rlimits),
		WritableRoot: i.spec.WritableRoot, Require: i.spec.Require, Strict: i.spec.Strict, Grade: i.b.grade,
	}
	if w.Asked.Controls[sandbox.ControlLandlock] == sandbox.Enforced && !i.b.runtime.kernel {
		m.Forbidden = measure.Forbidden()
	}
	return w
}
