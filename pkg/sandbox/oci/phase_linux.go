package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// phase is a container with the group that its programs are in. It lives as long as one of its processes.
type phase struct {
	i       *instance
	name    string
	c       *container
	init    *spawn.Init // nil until the runtime was started
	nest    *cgroup.Nest
	group   *cgroup.Group // nil until it was made
	join    []*os.File    // what a program writes to to enter the group; none if the runtime is in it
	limits  sandbox.Limits
	network sandbox.NetworkMode
	failed  bool // Setup failed: the init is dead, and the runtime buried
	killed  atomic.Bool
	tasks   int // guarded by instance.mu: processes that were started and not finished

	once  sync.Once
	final monitor.Sample
	err   error
}

// newPhase makes a container, and holds what it has got against what the sandbox is to have.
func (i *instance) newPhase(ctx context.Context, network sandbox.NetworkMode) (_ *phase, err error) {
	r := i.b.runtime
	p := &phase{
		i: i, limits: i.spec.Limits, network: network, nest: i.supervisor.NewNest(i.ids.root),
		c: &container{work: i.work, kind: r.kind, runtime: r.path, bundle: i.work.path("b")},
	}
	defer func() {
		if err != nil {
			_ = p.Kill()
			_, finishErr := p.Finish(ctx)
			err = errors.Join(err, finishErr)
		}
	}()
	group := p.nest.Programs()
	if err := group.Make(i.groupLimits(p.limits)); err != nil {
		return nil, failure("make cgroup", "cgroup", err)
	}
	p.group = group
	p.c.id = groupName(group.Path())
	v2 := i.b.cgroups.Version() == "v2"
	if err := p.c.house(group, network == sandbox.NetworkLocalhost, v2); err != nil {
		return nil, err
	}
	filters := i.filters
	print := &blueprint{
		kind: r.kind, spec: i.spec, ids: i.ids, dir: p.c.bundle, scratch: i.disk, covers: i.b.covers(), filter: filters.bundle,
		network: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.c.network.Fd()),
	}
	if p.c.groups != nil {
		print.groups = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.c.groups.Fd())
	}
	var inside *cgroup.Group
	switch {
	case r.whole:
		inside = group
	case v2:
		print.cgroup, err = p.unified()
	default:
		print.cgroup = groupName(group.Path())
	}
	if err == nil && !r.whole {
		p.join, err = group.JoinFiles()
	}
	if err != nil {
		return nil, failure("open cgroup", "cgroup", err)
	}
	root, err := i.root()
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	volumes, err := i.openVolumes()
	if err != nil {
		return nil, err
	}
	defer closeVolumes(volumes)
	if err := p.c.furnish(print, root, volumes); err != nil {
		return nil, err
	}
	if p.init, err = p.c.start(inside); err != nil {
		return nil, err
	}
	return p, p.setUp(ctx)
}

// unified is the path of the init's own group on a machine with v2 cgroups.
func (p *phase) unified() (string, error) {
	dir, err := p.nest.InitDir()
	if err != nil {
		return "", err
	}
	path, ok := strings.CutPrefix(dir, unifiedMount)
	if !ok {
		return "", fmt.Errorf("%q: not below %s, where runtimes look for it", dir, unifiedMount)
	}
	return path, nil
}

// unifiedMount is where every runtime expects the v2 tree.
const unifiedMount = "/sys/fs/cgroup"

// setUp waits for the init's first word, and looks at where it is.
func (p *phase) setUp(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	_, err := p.init.Setup(bounded, &initproto.Setup{Housed: true, Root: -1, Scratch: -1}, nil)
	if err != nil {
		p.failed = true
		if bounded.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no answer within %v: %w", startPatience, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var told *spawn.Error
		if errors.As(err, &told) { // the init is there, and says itself what is wrong
			return launch.StartFailure(Name, err)
		}
		if text := p.c.said(); text != "" {
			err = errors.New(text) // it knows better than our socket, which was merely closed
		}
		return failure(p.c.kind.name+" run", "runtime", err)
	}
	if err := p.c.met(p.init.Inmate()); err != nil {
		return err
	}
	return p.verify()
}

// roomForKernel is what a kernel in between takes beside what it runs: threads of its own, and some for each process.
const (
	roomForKernel    = 64
	threadsOfProcess = 4
)

func (i *instance) groupLimits(l sandbox.Limits) cgroup.Limits {
	g := cgroup.Limits{Memory: uint64(l.Memory), Pids: l.Processes, CPU: l.CPUs}
	if i.b.runtime.kernel {
		g.Pids = roomForKernel + threadsOfProcess*l.Processes
	}
	return g
}

// Kill ends the container.
func (p *phase) Kill() error {
	p.killed.Store(true)
	if p.init != nil {
		p.init.Kill()
	}
	return nil
}

// Killed reports whether it was us who ended it.
func (p *phase) Killed() bool { return p.killed.Load() }

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
			ph.tasks++
			return ph, ph.loopback(p.Network)
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
	if err := p.c.raise(); err != nil {
		return err
	}
	p.network = network
	return nil
}

// limit puts limits in force, before the phase has its first program.
func (p *phase) limit(l sandbox.Limits) error {
	if want := p.i.groupLimits(l); want != p.i.groupLimits(p.limits) {
		if err := p.group.Set(want); err != nil {
			return failure("set limits", "cgroup", err)
		}
	}
	p.limits = l
	return nil
}

// Leave gives up a process's place and reports whether it was the last.
func (p *phase) Leave() (last bool) {
	p.i.mu.Lock()
	defer p.i.mu.Unlock()
	return p.leaveLocked()
}

func (p *phase) leaveLocked() (last bool) {
	p.tasks--
	if p.tasks > 0 {
		return false
	}
	if p.i.phases[p.name] == p {
		delete(p.i.phases, p.name)
	}
	return true
}

// initPatience is how long an init may take to notice that it is done, and a runtime to clear up after it.
const initPatience = 500 * time.Millisecond

// errStuck is what even a kill can not change.
var errStuck = errors.New("a process of the sandbox, or its runtime, does not end")

// Finish waits until the container is gone, and removes what it had. The init must have been told to end, or be ending.
// Idempotent.
func (p *phase) Finish(ctx context.Context) (monitor.Sample, error) {
	p.once.Do(func() {
		for _, f := range p.join {
			_ = f.Close()
		}
		read, written, stuck := p.bury()
		remove := func(remove func(context.Context) error) error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupPatience)
			defer cancel()
			return failure("remove cgroup", "cgroup", remove(ctx))
		}
		errs := []error{stuck}
		if p.group != nil {
			p.final = p.sample(p.group.Final())
			errs = append(errs, remove(p.group.Remove))
		}
		errs = append(errs, remove(p.nest.Remove))
		p.final.IORead, p.final.IOWrite = read, written
		if stuck == nil {
			errs = append(errs, p.c.clear(ctx))
		}
		p.err = errors.Join(errs...)
	})
	return p.final, p.err
}

// bury waits for the runtime's end, which comes after the container's, and returns what both have moved.
func (p *phase) bury() (read, written uint64, err error) {
	if p.init == nil {
		return 0, 0, nil
	}
	if p.failed { // Setup has done it
		return 0, 0, nil
	}
	look := func(pid int) { read, written = launch.ProcessIO(pid) }
	insist := time.AfterFunc(initPatience, p.init.Kill)
	defer insist.Stop()
	if p.init.Reap(initPatience+cleanupPatience, look) {
		return read, written, nil
	}
	_ = unix.PidfdSendSignal(p.c.pidfd, unix.SIGKILL, nil, 0) // the runtime itself
	if p.init.Reap(cleanupPatience, look) {
		return read, written, nil
	}
	return 0, 0, failure("end container", "cleanup", errStuck)
}

// sample turns counters into a sample. Counters that could not be read stay zero: the monitor keeps what it saw last.
func (p *phase) sample(st cgroup.Stat, err error) monitor.Sample {
	s := launch.Sample(st)
	if err != nil {
		s = monitor.Sample{}
	}
	if p.i.scratch == nil {
		return s
	}
	if u, err := p.i.scratch.Usage(); err == nil {
		s.DiskUsed, s.DiskFull = u.BytesUsed, u.Full
	}
	return s
}

// maxIOProcesses bounds what a live sample looks at; the final one has everybody.
const maxIOProcesses = 32

// Live is a sample of a phase that runs.
func (p *phase) Live() (monitor.Sample, error) {
	st, err := p.group.Stat()
	if err != nil {
		return monitor.Sample{}, err
	}
	s := p.sample(st, nil)
	pids, _ := p.group.Procs()
	if !p.c.kind.whole {
		s.IORead, s.IOWrite = launch.ProcessIO(p.init.Inmate())
	}
	for _, pid := range pids[:min(len(pids), maxIOProcesses)] {
		read, written := launch.ProcessIO(pid)
		s.IORead, s.IOWrite = s.IORead+read, s.IOWrite+written
	}
	return s, nil
}

// maxTries bounds how often a process may come too late for its phase.
const maxTries = 16

// Start runs a process in its phase.
func (i *instance) Start(ctx context.Context, p *sandbox.Process) (sandbox.Task, error) {
	if p.TTY != nil && i.b.runtime.kernel {
		return nil, unsupported("a terminal", i.b.runtime.name) // its end of one can not be handed out
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
		Rlimits: launch.Within(launch.Rlimits(p.Limits)), Seccomp: i.filters.program,
	}
	if i.b.runtime.kernel {
		// Of the rest it knows only that they can not be changed: it dumps no core, has no priorities, and its queues are memory.
		m.Rlimits = slices.DeleteFunc(m.Rlimits, func(r initproto.Rlimit) bool {
			return r.Resource != unix.RLIMIT_NOFILE && r.Resource != unix.RLIMIT_STACK && r.Resource != unix.RLIMIT_MEMLOCK
		})
	} else {
		rootfs.Landlock(m, i.spec, p.Network, false)
	}
	if p.TTY != nil {
		m.Terminal, m.Rows, m.Cols = true, p.TTY.Rows, p.TTY.Cols
	}
	bounded, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	program, err := ph.init.Run(bounded, m, ph.join, nil)
	if err != nil {
		err = launch.StartFailure(Name, err)
		if ph.Leave() {
			ph.init.Kill()
			_, finishErr := ph.Finish(ctx)
			err = errors.Join(err, finishErr)
		}
		return nil, err
	}
	t := launch.New(program, ph)
	if !i.b.runtime.kernel {
		t.Watch(i.policy)
	}
	return t, nil
}
