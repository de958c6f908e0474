package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/watch"
)

// phase is a container with the group that its programs are in. It lives as long as one of its processes.
type phase struct {
	i       *instance
	name    string
	c       *container
	init    *spawn.Init // nil until the runtime was started
	begun   chan error  // what came of begin, once
	nest    *cgroup.PhaseGroup
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
	tasks   int                   // guarded by instance.mu: processes that were started and not finished

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
	dir, err := p.nest.MakeInitLeaf()
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
