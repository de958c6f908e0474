package process

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/removal"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
)

// Name is what --backend calls this backend.
const Name = "process"

// patience bounds the removal of what a process leaves.
const patience = time.Second

// Options configure a Backend; the zero value serves.
type Options struct{}

// Backend runs processes on the host.
type Backend struct {
	cgroups *cgroup.Tree
	place   *launch.Claim
}

var (
	_ sandbox.Backend  = (*Backend)(nil)
	_ sandbox.Instance = (*instance)(nil)
	_ sandbox.Filer    = (*instance)(nil)
	_ launch.Phase     = (*phase)(nil)
)

// New looks at the machine and claims nothing yet.
func New(Options) (*Backend, error) {
	tree, err := cgroup.Open()
	if err != nil {
		return nil, failure("look at cgroups", "cgroup", err)
	}
	return &Backend{tree, launch.NewClaim(Name, tree)}, nil
}

func failure(op, stage string, err error) error { return launch.Failure(Name, op, stage, err) }

// Name is "process".
func (b *Backend) Name() string { return Name }

// hasCgroups reports whether all three limits can be the kernel's.
func (b *Backend) hasCgroups() bool {
	return b.cgroups.Has(cgroup.Memory) && b.cgroups.Has(cgroup.Pids) && b.cgroups.Has(cgroup.CPU)
}

// Probe says how little this backend promises.
func (b *Backend) Probe(context.Context) sandbox.Isolation {
	iso := sandbox.NewIsolation(Name)
	iso.Tier = sandbox.TierProcess
	for _, c := range sandbox.AllControls() {
		iso.Controls[c] = sandbox.Absent
	}
	iso.Enforce(sandbox.ControlOutput)
	iso.Controls[sandbox.ControlNoNewPrivs], iso.Controls[sandbox.ControlOpenFiles] = sandbox.Declared, sandbox.Declared
	// These hold for a program that does not resist. One that does has the ids of whoever started it: it can end
	// the process that watches it and, as root, leave its cgroup.
	polled := []sandbox.Control{sandbox.ControlWall}
	if b.hasCgroups() {
		polled = append(polled, sandbox.ControlCPUTime, sandbox.ControlMemory, sandbox.ControlProcesses, sandbox.ControlCPU)
		if b.cgroups.Has(cgroup.Swap) {
			polled = append(polled, sandbox.ControlSwap)
		}
	}
	for _, c := range polled {
		iso.Controls[c] = sandbox.Polled
	}
	for _, c := range sandbox.AllControls() {
		gap := sandbox.Gap{Control: c, State: iso.Controls[c], Remedy: "--backend native"}
		switch gap.State {
		case sandbox.Absent:
			gap.Reason = "the process backend runs on the host itself"
		case sandbox.Declared:
			gap.Reason = "the process backend does not look at what it has started"
		case sandbox.Polled:
			gap.Reason = "the program has the ids of whoever started it, and could get out of the way"
		default:
			continue
		}
		iso.Missing = append(iso.Missing, gap)
	}
	return iso
}

// refuse names what a spec asks for that only a wall could give.
func refuse(spec *sandbox.Spec) error {
	for _, f := range []struct {
		asked bool
		what  string
	}{
		{len(spec.Volumes) > 0, "volumes"},
		{spec.Root.Dir != "" || spec.Root.Image != "" || len(spec.Root.HostPaths) > 0, "another root"},
		{slices.ContainsFunc(spec.Root.Add, func(m sandbox.Mount) bool { return m.Source != m.Target }), "showing something in another place than the host has it"},
		{spec.WritableRoot, "a writable root"},
		{spec.Network == sandbox.NetworkLocalhost, "a network of its own"},
		{spec.Scratch == sandbox.ScratchDisk, "a scratch disk"},
	} {
		if f.asked {
			return &sandbox.Error{
				Backend: Name, Op: "create", Kind: sandbox.ErrUnsupported,
				Err: errors.New(f.what + " needs walls this backend does not have"), Hint: "--backend native",
			}
		}
	}
	return nil
}

// Create makes the private directory.
func (b *Backend) Create(ctx context.Context, spec *sandbox.Spec) (sandbox.Instance, error) {
	if err := refuse(spec); err != nil {
		return nil, err
	}
	sup, err := b.place.Take()
	if err != nil {
		return nil, err
	}
	dir, err := sup.NewDir()
	if err != nil {
		return nil, failure("make directory", "scratch", err)
	}
	i := &instance{b: b, supervisor: sup, spec: spec, dir: dir, iso: b.Probe(ctx), phases: map[string]*phase{}}
	i.files.top = -1
	for _, d := range files.Parts {
		if err == nil {
			err = os.Mkdir(filepath.Join(dir, d.Name), 0o700)
		}
	}
	if err == nil {
		i.files.top, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, errors.Join(failure("make directory", "scratch", err), i.Destroy(context.WithoutCancel(ctx)))
	}
	return i, nil
}

// Collect finds what dead supervisors left behind and, unless dryRun, removes it.
func (b *Backend) Collect(ctx context.Context, dryRun bool) ([]sandbox.Residue, error) {
	return b.place.Collect(ctx, dryRun)
}

// Close gives up the claim. Every instance must be destroyed. Twice is fine.
func (b *Backend) Close() error { return b.place.Close() }

// instance is a private directory and the inits that run in it.
type instance struct {
	b          *Backend
	supervisor *supervisor.Supervisor
	spec       *sandbox.Spec
	iso        sandbox.Isolation
	dir        string
	files      shelf
	execs      atomic.Uint64

	mu        sync.Mutex
	phases    map[string]*phase
	destroyed bool
}

// phase is an init, the processes it has started, and their cgroup if there is one.
type phase struct {
	i      *instance
	name   string
	init   *spawn.Init
	group  *cgroup.Group
	join   []*os.File
	born   *os.File    // what programs are born in instead, where the kernel lets them; or nil
	tasks  int         // guarded by instance.mu
	killed atomic.Bool // by us; an init that nobody killed ends with its last process

	once  sync.Once
	final monitor.Sample
	err   error
}

// Isolation is what this sandbox really has.
func (i *instance) Isolation() sandbox.Isolation { return i.iso }

// enter finds the phase a process belongs to, or makes it.
func (i *instance) enter(ctx context.Context, name string, l sandbox.Limits) (*phase, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.destroyed {
		return nil, &sandbox.Error{Backend: Name, Op: "start", Kind: sandbox.ErrState, Err: errors.New("the sandbox is destroyed")}
	}
	if p := i.phases[name]; p != nil {
		select {
		case <-p.init.Done():
		default:
			p.tasks++
			return p, nil
		}
	}
	p := &phase{i: i, name: name, tasks: 1}
	if i.b.hasCgroups() {
		group := i.supervisor.NewGroup()
		if err := group.Make(cgroup.Limits{CPU: l.CPUs, Memory: uint64(l.Memory), Pids: l.Processes}); err != nil {
			return nil, failure("make cgroup", "cgroup", err)
		}
		p.group = group
		p.born = group.OpenForClone()
		var err error
		if p.join, err = group.JoinFiles(); err != nil {
			_, cleanErr := p.Finish(ctx)
			return nil, errors.Join(failure("open cgroup", "cgroup", err), cleanErr)
		}
	}
	init, err := spawn.Start(spawn.Options{})
	if err == nil {
		if _, err = init.Setup(ctx, &initproto.Setup{Root: -1, Scratch: -1}, nil); err == nil {
			p.init = init
		}
	}
	if err != nil {
		_, cleanErr := p.Finish(ctx)
		return nil, errors.Join(failure("start init", "process", err), cleanErr)
	}
	i.phases[name] = p
	return p, nil
}

// Leave gives up a process's place and reports whether it was the last.
func (p *phase) Leave() (last bool) {
	p.i.mu.Lock()
	defer p.i.mu.Unlock()
	p.tasks--
	if p.tasks > 0 {
		return false
	}
	if p.i.phases[p.name] == p {
		delete(p.i.phases, p.name)
	}
	return true
}

// inside is where a place of the sandbox is on the host.
func (i *instance) inside(p string) string {
	if rest, ok := files.Beneath(p); ok {
		return filepath.Join(i.dir, rest)
	}
	return p
}

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
		// The last of its processes ended, and the init with it, just when this one came.
		if errors.Is(err, spawn.ErrGone) && !ph.killed.Load() && ctx.Err() == nil && tries < maxTries {
			<-ph.init.Done() // its socket has ended; now everybody knows
			continue
		}
		return t, err
	}
}

func (i *instance) startIn(ctx context.Context, ph *phase, p *sandbox.Process) (sandbox.Task, error) {
	here := *p
	here.Env = maps.Clone(p.Env)
	here.Env["HOME"] = i.inside(p.Env["HOME"])
	here.Env["TMPDIR"] = i.inside(sandbox.TmpDir)
	files := uint64(p.Limits.OpenFiles)
	m := &initproto.Exec{
		ID: i.execs.Add(1), Paths: spawn.Candidates(p.Args[0], p.Env["PATH"]), Args: p.Args, Env: here.Environ(), Dir: i.inside(p.Workdir),
		Rlimits: launch.Within([]initproto.Rlimit{
			{Resource: unix.RLIMIT_CORE, Soft: 1, Max: 1}, // 1, not 0: a core handler behind a pipe ignores 0
			{Resource: unix.RLIMIT_NOFILE, Soft: files, Max: files},
			{Resource: unix.RLIMIT_FSIZE, Soft: uint64(i.spec.Limits.Disk), Max: uint64(i.spec.Limits.Disk)},
		}),
	}
	if p.TTY != nil {
		m.Terminal, m.Rows, m.Cols = true, p.TTY.Rows, p.TTY.Cols
	}
	program, err := ph.init.Run(ctx, m, ph.join, ph.born, nil)
	if err != nil {
		err = launch.StartFailure(Name, err)
		if ph.Leave() {
			_, finishErr := ph.Finish(ctx)
			err = errors.Join(err, finishErr)
		}
		return nil, err
	}
	return launch.New(program, ph), nil
}

// Finish ends the init, which ends all that descends from it, and removes the cgroup with whatever
// has got away from it. Idempotent.
func (p *phase) Finish(ctx context.Context) (monitor.Sample, error) {
	p.once.Do(func() {
		if p.init != nil {
			// Without a cgroup, what an init has not killed when it is killed itself lives on: on a slow machine it needs its time.
			ends := patience
			if p.group == nil {
				ends = 5 * patience
			}
			insist := time.AfterFunc(ends, p.init.Kill)
			defer insist.Stop()
			p.init.HangUp()
			if !p.init.Reap(ends+patience, nil) {
				p.err = failure("end init", "cleanup", errors.New("it is in the kernel where no signal reaches it"))
			}
		}
		for _, f := range append(p.join, p.born) {
			_ = f.Close() // nil is fine
		}
		if p.group == nil {
			return
		}
		if st, err := p.group.Final(); err == nil {
			p.final = launch.Sample(st)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		p.err = errors.Join(p.err, failure("remove cgroup", "cgroup", p.group.Remove(ctx)))
	})
	return p.final, p.err
}

// Live is what the phase uses now.
func (p *phase) Live() (monitor.Sample, error) {
	if p.group == nil {
		return monitor.Sample{}, errors.New("no cgroup to count in")
	}
	st, err := p.group.Stat()
	return launch.Sample(st), err
}

// Kill ends the whole phase: the init, on losing its supervisor, kills its descendants; the cgroup
// holds those it can not find.
func (p *phase) Kill() error {
	p.killed.Store(true)
	p.init.HangUp()
	if p.group != nil {
		return failure("kill cgroup", "cgroup", p.group.Kill())
	}
	return nil
}

// Killed reports whether it was us who ended it.
func (p *phase) Killed() bool { return p.killed.Load() }

// Sound: its files are on the host's own file system, which tells the program itself of errors.
func (p *phase) Sound() error { return nil }

// Destroy kills whatever runs and removes everything. It may be called in any state, twice.
func (i *instance) Destroy(ctx context.Context) error {
	i.mu.Lock()
	if i.destroyed {
		i.mu.Unlock()
		return nil
	}
	i.destroyed = true
	alive := make([]*phase, 0, len(i.phases))
	for _, p := range i.phases {
		alive = append(alive, p)
	}
	i.mu.Unlock()
	var errs []error
	for _, p := range alive {
		_, err := p.Finish(ctx)
		errs = append(errs, err)
	}
	i.files.close()
	return errors.Join(append(errs, failure("remove directory", "scratch", removal.Tree(ctx, i.dir)))...)
}
