package box

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/measure"
)

// Container is the part of a phase that an OCI runtime adds.
type Container interface {
	// RunOnTerminal starts a program on a terminal that only the runtime can provide.
	RunOnTerminal(ctx context.Context, m *initproto.Exec) (*spawn.Program, error)
	// KillRelays ends the relays of those terminals. It is called before the init is killed.
	KillRelays()
	// CloseRelays does the same, and waits for their end.
	CloseRelays() error
	// KillRuntime ends the runtime of a container that did not end in time.
	KillRuntime()
	// Remove removes the container's resources on the host, after the end of the runtime.
	Remove(ctx context.Context) error
}

// Phase is an init with its pid namespace and its cgroups. It lives as long as one of its processes. A backend sets the
// exported fields before the end of Kind.SetUp.
type Phase struct {
	Instance  *Instance
	Container Container          // nil where the init is our own child
	Init      *spawn.Init        // nil before it is started
	InitPID   int                // the init in our pid namespace, from the end of SetUp on
	Cgroup    *cgroup.PhaseGroup // of the init and its programs; nil where programs have a group alone
	Group     *cgroup.Group      // the programs'; nil until it is made, and where nothing is limited by one
	Join      []*os.File         // files that a program writes to, to enter the group; one per hierarchy
	Born      *os.File           // cgroup that clone starts the program in instead, where the kernel can; or nil
	Poller    *LimitPoller       // keeps limits where no cgroup does, or nil
	Network   network.Policy
	Held      []*os.File // files that a fork needs until its end
	Frames    *os.File   // of the network device, where the init does not make it; or nil
	Before    Usage      // CPU time of the init's parents when the init was set up

	NetworkFixed bool // the container's kernel has looked at its network once and for all
	InitInGroup  bool // the init is in Group itself
	NoPIDNS      bool // the init has no pid namespace of its own: it is told to end its descendants, not killed

	// Asked: Setup was called on the init. Failed: it returned an error, and has reaped the init.
	Asked, Failed bool

	Entry sync.RWMutex // locked for writing while a fork enters: no other process of the phase may see it

	name       string
	limits     sandbox.Limits
	applied    cgroup.Limits // of Group
	reserved   atomic.Int64  // threads of the network, in addition to the limit of processes; set with networking locked
	networking sync.Mutex    // locked while network is set up
	loopback   bool          // its programs have one, and may open ports
	network    atomic.Pointer[phaseNetwork]
	floored    atomic.Pointer[error] // why it was ended, if the host's disk has reached its floor
	killed     atomic.Bool           // by us; an init that is not killed ends with its last process
	abandoned  atomic.Bool           // a fork did not start in it: later processes go to another phase
	tasks      int                   // guarded by Instance.mu: processes that were started and not finished
	forks      atomic.Int32          // of them: processes that others have made
	leaves     bool                  // guarded by Instance.mu until it is finished: no process finds it any more, and Destroy waits for it

	once  sync.Once
	final monitor.Sample
	err   error
}

// NewPhase returns a phase with the sandbox's limits and without any resources yet.
func NewPhase(i *Instance) *Phase { return &Phase{Instance: i, limits: i.Spec.Limits} }

// MakeGroup makes the cgroup of the phase's programs; the init stays outside.
func (p *Phase) MakeGroup(group *cgroup.Group) error {
	p.applied = p.groupLimits(p.limits)
	if err := group.Make(p.applied); err != nil {
		return p.failure("make cgroup", "cgroup", err)
	}
	p.Group = group
	return nil
}

// OpenJoinFiles opens the files by which programs join the group.
func (p *Phase) OpenJoinFiles() (err error) {
	p.Join, err = p.Group.JoinFiles()
	return p.failure("open cgroup", "cgroup", err)
}

func (p *Phase) failure(op, stage string, err error) error {
	return p.Instance.Host.Failure(op, stage, err)
}

// Tasks is the number of processes that were started and not finished.
func (p *Phase) Tasks() int {
	p.Instance.mu.Lock()
	defer p.Instance.mu.Unlock()
	return p.tasks
}

// Kill ends the init, if there is one, and all processes of the phase.
func (p *Phase) Kill() error {
	p.killed.Store(true)
	if p.Container != nil {
		p.Container.KillRelays()
	}
	if p.Init != nil {
		p.Init.End()
	}
	if p.NoPIDNS && p.Group != nil { // it holds the descendants that the init can not find
		return p.failure("kill cgroup", "cgroup", p.Group.Kill())
	}
	return nil
}

// Discard ends a phase that has run no process.
func (p *Phase) Discard(ctx context.Context) error {
	_ = p.Kill()
	_, err := p.Finish(ctx)
	return err
}

// checkDisk reports that the host's disk has reached its floor while the phase ran, or has lost data of a program.
func (p *Phase) checkDisk() error {
	if err := p.floored.Load(); err != nil {
		return *err
	}
	if p.Instance.Scratch == nil {
		return nil
	}
	return p.Instance.Host.diskFailure(p.Instance.Scratch.CheckBacking())
}

// StartFailure returns the error of a program that could not be started. If its init was ended because the disk has
// reached its floor, that is the error.
func (p *Phase) StartFailure(expected *measure.Program, err error) error {
	if floored := p.floored.Load(); floored != nil {
		return *floored
	}
	if expected == nil {
		return faults.Start(p.Instance.Host.Name, err)
	}
	return expected.Failure(err)
}

// limit puts limits in force, before the phase starts its first program.
func (p *Phase) limit(l sandbox.Limits) error {
	p.limits = l
	if err := p.applyLimits(); err != nil {
		return err
	}
	if p.Poller != nil {
		return p.Poller.begin(l)
	}
	return nil
}

// applyLimits sets the limits of the cgroup where they have changed.
func (p *Phase) applyLimits() error {
	want := p.groupLimits(p.limits)
	if p.Group == nil || want == p.applied {
		return nil
	}
	if err := p.Group.Set(want); err != nil {
		return p.failure("set limits", "cgroup", err)
	}
	p.applied = want
	return nil
}

// ErrStuck is the error of an init or a runtime that even SIGKILL does not end. This process, or the next collector,
// removes it and its cgroup later.
var ErrStuck = errors.New("a process of the sandbox, or its runtime, is in the kernel where no signal reaches it")

// Finish removes the phase, and returns its use of resources. The init must have been ordered to end, or be ending. When
// Finish returns, all programs of the phase are gone; the init and the cgroups may still be ending: Destroy waits for
// them. Idempotent.
func (p *Phase) Finish(ctx context.Context) (monitor.Sample, error) {
	p.once.Do(func() {
		i := p.Instance
		if p.leaves {
			defer i.ending.Done()
		}
		networkErr := p.endNetwork() // its start in the background has used the files
		for _, f := range slices.Concat(p.Join, p.Held, []*os.File{p.Born, p.Frames}) {
			_ = f.Close() // Close of nil is allowed
		}
		defer func() { p.err = errors.Join(p.err, networkErr) }()
		var stuck error
		if p.Container != nil {
			stuck = p.Container.CloseRelays()
		}
		if p.Poller != nil {
			p.Poller.end()
		}
		if p.isCounted() {
			// The kernel takes its time with the namespaces of an init. No result needs to wait for that.
			p.final = p.sample(p.Group.Final())
			p.final.IORead, p.final.IOWrite = processIO(p.InitPID) // not the cgroup's: see there
			i.Host.reaping.Add(1)
			i.ending.Go(func() {
				defer i.Host.reaping.Done()
				p.closeNetwork()
				i.addEndError(errors.Join(p.reapInit(nil), p.removeGroups(context.Background())))
			})
			return
		}
		p.closeNetwork()
		var read, written uint64
		var spent Usage
		stuck = errors.Join(stuck, p.reapInit(func(pid int) {
			read, written = processIO(pid)
			var sum unix.Rusage // its own, and that of all it has waited for
			if unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, &sum) == nil {
				spent = Usage{time.Duration(sum.Utime.Nano()), time.Duration(sum.Stime.Nano())}
			}
		}))
		if p.Group != nil {
			p.final = p.sample(p.Group.Final())
		} else {
			p.final = p.sample(cgroup.Stat{}, nil)
		}
		p.err = errors.Join(stuck, p.removeGroups(ctx))
		p.final.IORead, p.final.IOWrite = read, written
		if p.Poller != nil {
			p.Poller.complete(&p.final, Usage{max(0, spent.User-p.Before.User), max(0, spent.System-p.Before.System)})
		}
		if p.Container != nil && stuck == nil {
			p.err = errors.Join(p.err, p.Container.Remove(ctx))
		}
	})
	return p.final, p.err
}

// isCounted reports whether all programs of the phase are gone and reaped, so that their use is known: the init may
// still exist while the kernel removes its namespaces. A runtime has to remove its state first.
func (p *Phase) isCounted() bool {
	if p.Group == nil || p.Poller != nil || p.Container != nil || p.NoPIDNS || !p.Asked || p.Failed || !p.Instance.Host.Counts.Pids {
		return false
	}
	return p.isEmpty()
}

// removeGroups removes the cgroups, once the init is gone.
func (p *Phase) removeGroups(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if p.Group != nil {
		err = p.Group.Remove(ctx)
	}
	if p.Cgroup != nil {
		err = errors.Join(err, p.Cgroup.Remove(ctx))
	}
	return p.failure("remove cgroup", "cgroup", err)
}

// initTimeout is how long an init may take to notice that its last program has ended, and a runtime to clean up after
// it.
const initTimeout = 500 * time.Millisecond

// endTimeout is how long the init may take to end by itself. Without a pid namespace and a cgroup, processes that it has
// not killed when it is killed itself live on: on a slow machine it needs its time.
func (p *Phase) endTimeout() time.Duration {
	switch {
	case !p.NoPIDNS:
		return initTimeout
	case p.Group != nil:
		return time.Second
	}
	return 5 * time.Second
}

// reapInit waits for the end of the init, or of its runtime, and calls look before its pid is released.
func (p *Phase) reapInit(look func(pid int)) error {
	gone := true
	switch {
	case p.Init == nil || p.Failed:
	case p.Asked:
		// The init ends by itself with its last process; otherwise it is killed.
		timeout := p.endTimeout()
		insist := time.AfterFunc(timeout, p.Init.Kill)
		defer insist.Stop()
		if p.NoPIDNS {
			p.Init.HangUp()
		}
		gone = p.Init.Reap(timeout+cleanupTimeout, look)
		if !gone && p.Container != nil {
			p.Container.KillRuntime()
			gone = p.Init.Reap(cleanupTimeout, look)
		}
	default:
		gone = p.Init.Abandon()
	}
	if !gone {
		p.Instance.stuck.Store(true)
		return p.failure("end init", "cleanup", ErrStuck)
	}
	return nil
}
