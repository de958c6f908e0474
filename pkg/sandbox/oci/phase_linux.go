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
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/measure"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/watch"
)

// phase is a container with the group that its programs are in. It lives as long as one of its processes.
type phase struct {
	i       *instance
	name    string
	c       *container
	init    *spawn.Init // nil until the runtime was started
	begun   chan error  // what came of begin, once
	nest    *cgroup.Nest
	group   *cgroup.Group // nil until it was made, and where nothing is limited by one
	watch   *watch.Watch  // counts where no cgroup does, or nil
	before  usage         // what went on before the first program
	join    []*os.File    // what a program writes to to enter the group; none if the runtime is in it
	limits  sandbox.Limits
	network sandbox.NetworkMode
	asked   bool // Setup was called
	failed  bool // and failed, or was not called: the init is dead, and the runtime buried
	killed  atomic.Bool
	floored atomic.Pointer[error] // why it was ended, if the host's disk has reached its floor
	frozen  atomic.Bool
	tasks   int // guarded by instance.mu: processes that were started and not finished

	opening  sync.Mutex
	consoles []*console // that were opened, guarded by opening

	once  sync.Once
	final monitor.Sample
	err   error
}

// begin has a place made for a bundle and, if that is all the runtime needs for now, has it started: it takes as long to get to its
// bundle as we take to make one. What becomes of it is for build to wait for.
func (i *instance) begin() *phase {
	r := i.b.runtime
	p := &phase{
		i: i, nest: i.supervisor.NewNest(i.nests), begun: make(chan error, 1),
		c: &container{work: i.work, kind: r.kind, runtime: r.path, dir: i.work.path("b")},
	}
	p.c.strip = sync.OnceValue(p.c.unfurnish)
	p.c.id = groupName(p.nest.Programs().Path())
	if i.id != nil { // a lodge does all of it
		p.begun <- nil
		return p
	}
	go func() {
		err := p.c.lay()
		if err == nil && r.ahead {
			p.init, err = p.c.start(func(control int) error { return p.c.launch(control, nil) })
		}
		p.begun <- err
	}()
	return p
}

// newPhase makes a container at once.
func (i *instance) newPhase(ctx context.Context, network sandbox.NetworkMode) (*phase, error) {
	p := i.begin()
	if err := p.build(ctx, network); err != nil {
		return nil, errors.Join(err, p.giveUp(ctx))
	}
	return p, nil
}

// giveUp ends a phase that was begun and not built.
func (p *phase) giveUp(ctx context.Context) error {
	if p.begun != nil {
		<-p.begun
		p.begun = nil
	}
	var stuck error
	if p.init != nil && !p.asked { // the runtime still waits
		p.failed = true
		if !p.init.Abandon() {
			stuck = failure("end "+p.c.kind.name, "cleanup", errStuck)
		}
	}
	_ = p.Kill()
	_, err := p.Finish(ctx)
	return errors.Join(stuck, err)
}

// build makes a container, and holds what it has got against what the sandbox is to have.
func (p *phase) build(ctx context.Context, network sandbox.NetworkMode) (err error) {
	i, r := p.i, p.i.b.runtime
	p.limits, p.network = i.spec.Limits, network
	group := p.nest.Programs()
	if i.id == nil || i.b.counts.Any {
		if err := group.Make(i.groupLimits(p.limits)); err != nil {
			return failure("make cgroup", "cgroup", err)
		}
		p.group = group
	}
	if i.id != nil {
		return p.lodge(ctx)
	}
	v2 := i.b.cgroups.Version() == "v2"
	if err := p.c.house(group, network == sandbox.NetworkLocalhost, v2); err != nil {
		return err
	}
	err = <-p.begun
	p.begun = nil
	if err != nil {
		return err
	}
	if p.init != nil {
		p.c.announce()
	}
	print := p.blueprint()
	print.network = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.c.network.Fd())
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
		print.cgroup = p.c.id
	}
	if err == nil && !r.whole {
		p.join, err = group.JoinFiles()
	}
	if err != nil {
		return failure("open cgroup", "cgroup", err)
	}
	if i.spec.WritableRoot {
		err = i.made()
	}
	var root int
	if err == nil {
		root, err = i.copyRoot()
	}
	if err != nil {
		return err
	}
	defer unix.Close(root)
	if err := i.made(); err != nil {
		return err
	}
	print.scratch = i.disk
	volumes, err := i.openVolumes()
	if err != nil {
		return err
	}
	defer closeVolumes(volumes)
	f, err := print.furnish(volumes)
	if err == nil {
		err = p.c.furnish(f, root, volumes)
	}
	if err != nil {
		return err
	}
	if p.init == nil {
		if p.init, err = p.c.start(func(control int) error { return p.c.launch(control, inside) }); err != nil {
			return err
		}
	}
	return p.setUp(ctx)
}

// blueprint of the container. Namespaces that were made ahead are the caller's to add, and where the scratch is.
func (p *phase) blueprint() *blueprint {
	i := p.i
	return &blueprint{
		kind: p.c.kind, spec: i.spec, inmate: i.inmate, dir: p.c.dir, covers: i.b.covers(), filter: i.filters.bundle,
	}
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
	minded, end := context.WithCancelCause(ctx)
	defer end(nil)
	bounded, cancel := context.WithTimeout(minded, startPatience)
	defer cancel()
	go p.mind(bounded, end)
	p.asked = true
	_, err := p.init.Setup(bounded, &initproto.Setup{Housed: true, Root: -1, Scratch: -1}, nil)
	if err != nil {
		p.failed = true
		switch {
		case errors.Is(err, context.Canceled) && errors.Is(context.Cause(minded), errKilled):
			err = errKilled
		case bounded.Err() != nil && ctx.Err() == nil:
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
	if b := p.c.bundle; b != nil {
		_ = b.pipe.Close() // it has its config; nil is fine
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
	if i.id != nil {
		g = i.b.counts.Limits(l)
	}
	if i.b.runtime.kernel {
		g.Pids = roomForKernel + threadsOfProcess*l.Processes
	}
	return g
}

// Kill ends the container.
func (p *phase) Kill() error {
	p.killed.Store(true)
	p.killConsoles()
	if p.init != nil {
		p.init.Kill()
	}
	if p.frozen.Swap(false) {
		_ = p.group.Freeze(false) // a runtime of several processes ends only when all of them can
	}
	return nil
}

// Sound reports that the host's disk has reached its floor while the phase ran, or has lost what a program wrote.
func (p *phase) Sound() error {
	if err := p.floored.Load(); err != nil {
		return *err
	}
	return launch.DiskFailure(Name, p.i.b.opts.CacheDir, p.i.scratch.CheckBacking())
}

// stopAll ends what runs in the sandbox because the host's disk has reached its floor. While a program is being started nothing
// is ended: whoever watches the disk calls again.
func (i *instance) stopAll(err error) {
	err = launch.DiskFailure(Name, i.b.opts.CacheDir, err)
	if !i.mu.TryLock() {
		return
	}
	defer i.mu.Unlock()
	for _, p := range i.phases {
		if p.floored.CompareAndSwap(nil, &err) {
			_ = p.Kill()
		}
	}
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
		stuck := p.closeConsoles()
		if p.watch != nil {
			p.watch.End()
		}
		read, written, spent, err := p.bury()
		stuck = errors.Join(stuck, err)
		remove := func(remove func(context.Context) error) error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupPatience)
			defer cancel()
			return failure("remove cgroup", "cgroup", remove(ctx))
		}
		errs := []error{stuck}
		if p.group != nil {
			p.final = p.sample(p.group.Final())
			errs = append(errs, remove(p.group.Remove))
		} else {
			p.final = p.sample(cgroup.Stat{}, nil)
		}
		errs = append(errs, remove(p.nest.Remove))
		p.final.IORead, p.final.IOWrite = read, written
		if p.watch != nil {
			p.watch.Complete(&p.final, max(0, spent.user-p.before.user), max(0, spent.system-p.before.system))
		}
		if stuck == nil {
			errs = append(errs, p.c.clear(ctx))
		}
		p.err = errors.Join(errs...)
	})
	return p.final, p.err
}

// bury waits for the runtime's end, which comes after the container's, and returns what both have moved and spent.
func (p *phase) bury() (read, written uint64, spent usage, err error) {
	if p.init == nil {
		return 0, 0, usage{}, nil
	}
	if p.failed { // Setup has done it
		return 0, 0, usage{}, nil
	}
	look := func(pid int) {
		read, written = launch.ProcessIO(pid)
		var sum unix.Rusage // its own, and that of all it has buried
		if unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, &sum) == nil {
			spent = usage{time.Duration(sum.Utime.Nano()), time.Duration(sum.Stime.Nano())}
		}
	}
	insist := time.AfterFunc(initPatience, p.init.Kill)
	defer insist.Stop()
	if p.init.Reap(initPatience+cleanupPatience, look) {
		return read, written, spent, nil
	}
	_ = unix.PidfdSendSignal(p.c.pidfd, unix.SIGKILL, nil, 0) // the runtime itself
	if p.init.Reap(cleanupPatience, look) {
		return read, written, spent, nil
	}
	return 0, 0, usage{}, failure("end container", "cleanup", errStuck)
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
	var st cgroup.Stat
	var pids []int
	if p.group != nil {
		var err error
		if st, err = p.group.Stat(); err != nil {
			return monitor.Sample{}, err
		}
		pids, _ = p.group.Procs()
	}
	s := p.sample(st, nil)
	if p.watch != nil {
		if err := p.watch.Look(&s); err != nil {
			return monitor.Sample{}, err
		}
	}
	if !p.c.kind.whole {
		s.IORead, s.IOWrite = launch.ProcessIO(p.init.Inmate())
	}
	for _, pid := range pids[:min(len(pids), maxIOProcesses)] {
		read, written := launch.ProcessIO(pid)
		s.IORead, s.IOWrite = s.IORead+read, s.IOWrite+written
	}
	return s, nil
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
