package native

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
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/measure"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/watch"
)

// phase is an init with its pid namespace and its cgroup. It lives as long as one of its processes.
type phase struct {
	i       *instance
	name    string
	init    *spawn.Init
	nest    *cgroup.PhaseGroup // of the init and its programs
	group   *cgroup.Group      // nil until set up has got that far
	join    []*os.File         // what a program writes to to enter the group, one per hierarchy
	born    *os.File           // what it is born in instead, where the kernel lets it; or nil
	root    int                // a copy of the root made ahead, or -1
	limits  sandbox.Limits
	watch   *watch.Watch          // counts where no cgroup does, or nil
	ready   bool                  // Setup was called
	failed  bool                  // Setup failed: the init is dead and buried
	floored atomic.Pointer[error] // why it was ended, if the host's disk has reached its floor
	killed  atomic.Bool           // by us; an init that nobody killed ends with its last process
	lost    atomic.Bool           // a fork did not begin in it: what came after that goes elsewhere
	tasks   int                   // guarded by instance.mu: processes that were started and not finished

	leaves bool // guarded by instance.mu until it is finished: nobody finds it any more, and Destroy waits until it is

	entry sync.RWMutex // written to while a fork comes in: nobody else may be there to see it
	held  []*os.File   // what a fork needs for as long as it lives

	once  sync.Once
	final monitor.Sample
	err   error
}

// spawn starts the init.
func (p *phase) spawn() (err error) {
	if p.nest == nil {
		p.nest = p.i.supervisor.NewNest(p.i.id.Init)
	}
	p.init, err = start(p.i.id, p.nest)
	return err
}

// takeRoot returns a copy of the sandbox's root, which the caller closes.
func (p *phase) takeRoot() (int, error) {
	if fd := p.root; fd >= 0 {
		p.root = -1
		return fd, nil
	}
	return p.i.root()
}

// makeGroup makes the cgroup that the programs of the phase will live in; the init stays outside.
func (p *phase) makeGroup() (err error) {
	p.limits = p.i.spec.Limits
	if !p.i.b.counts.Any {
		return nil
	}
	group := p.nest.Programs()
	if err := group.Make(p.i.b.counts.Limits(p.limits)); err != nil {
		return failure("make cgroup", "cgroup", err)
	}
	p.group = group
	p.born = p.nest.OpenProgramLeaf()
	p.join, err = group.JoinFiles()
	return failure("open cgroup", "cgroup", err)
}

// Kill ends the init, if there is one, and all it holds.
func (p *phase) Kill() error {
	p.killed.Store(true)
	if p.init != nil {
		p.init.Kill()
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

// startFailure is the error of a program that could not be started. One whose init was ended because the disk has reached its floor fails for
// that reason.
func (p *phase) startFailure(walls *measure.Program, err error) error {
	if floored := p.floored.Load(); floored != nil {
		return *floored
	}
	return walls.Failure(err)
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
func (i *instance) enter(ctx context.Context, name string, l sandbox.Limits) (*phase, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.phases[name] == nil && i.spare == nil {
		i.awaitSpare()
	}
	if i.destroyed {
		return nil, destroyed()
	}
	if p := i.phases[name]; p != nil {
		select {
		case <-p.init.Done(): // ended a moment ago; its last process is about to say so
		default:
			p.tasks++
			return p, nil
		}
	}
	p, err := i.nextLocked(ctx)
	if err != nil {
		return nil, err
	}
	p.name, p.tasks = name, 1
	i.phases[name] = p
	if err := p.limit(l); err != nil {
		p.leaveLocked()
		return nil, errors.Join(err, p.discard(ctx))
	}
	return p, nil
}

// nextLocked is a phase that nothing has run in: the spare one, or another. With mu held.
func (i *instance) nextLocked(ctx context.Context) (*phase, error) {
	if p := i.spare; p != nil {
		i.spare = nil
		return p, nil
	}
	p, err := i.newPhase()
	if err == nil {
		err = i.furnish(ctx, p)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// setAside returns a phase that nobody else enters, for a fork. The caller settles or abandons it.
func (i *instance) setAside(ctx context.Context) (*phase, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.spare == nil {
		i.awaitSpare()
	}
	if i.destroyed {
		return nil, destroyed()
	}
	p, err := i.nextLocked(ctx)
	if err == nil {
		i.aside = append(i.aside, p)
	}
	return p, err
}

// settle gives a phase that was set aside its name. An error of kind ErrState says that there is one of that name, or no sandbox any more.
func (i *instance) settle(p *phase, name string, l sandbox.Limits) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.destroyed {
		return destroyed()
	}
	if there := i.phases[name]; there != nil {
		return unsuited("something was started in phase %q before", name)
	}
	i.aside = slices.DeleteFunc(i.aside, func(o *phase) bool { return o == p })
	p.name, p.tasks = name, 1
	i.phases[name] = p
	return p.limit(l)
}

// abandon forgets a phase that was set aside, settled or not. The caller discards it.
func (i *instance) abandon(p *phase) {
	i.mu.Lock()
	defer i.mu.Unlock()
	p.lost.Store(true)
	p.forgetLocked()
}

// forgetLocked has nobody find a phase any more, which is about to be finished. Destroy has found it, or waits for that.
func (p *phase) forgetLocked() {
	i := p.i
	if !i.destroyed && !p.leaves {
		p.leaves = true
		i.burials.Add(1)
	}
	i.aside = slices.DeleteFunc(i.aside, func(o *phase) bool { return o == p })
	if i.phases[p.name] == p {
		delete(i.phases, p.name)
	}
}

// destroyed is for who comes too late.
func destroyed() error {
	return &sandbox.Error{Backend: Name, Op: "start", Kind: sandbox.ErrState, Err: errors.New("the sandbox is destroyed")}
}

// newPhase starts an init and makes a cgroup for what it will run.
func (i *instance) newPhase() (*phase, error) {
	p := &phase{i: i, root: -1}
	err := p.spawn()
	if err == nil {
		err = p.makeGroup()
	}
	if err != nil {
		return nil, errors.Join(err, p.discard(context.Background()))
	}
	return p, nil
}

// furnish sets a phase's init up. With mu held.
func (i *instance) furnish(ctx context.Context, p *phase) error {
	if err := i.setUp(ctx, p); err != nil {
		return errors.Join(err, p.discard(ctx))
	}
	return nil
}

// discard ends a phase that nothing was run in.
func (p *phase) discard(ctx context.Context) error {
	_ = p.Kill()
	_, err := p.Finish(ctx)
	return err
}

// expect makes the init of the phase that is to follow while another one's program runs.
func (i *instance) expect() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.destroyed || i.spare != nil || i.coming != nil {
		return
	}
	i.coming = make(chan struct{})
	go func() {
		p, err := i.newPhase()
		i.mu.Lock()
		defer i.mu.Unlock()
		defer func() {
			close(i.coming)
			i.coming = nil
		}()
		if err == nil {
			err = i.furnish(i.lives, p)
		}
		if err == nil { // else whoever needs one tries again, and has somebody to tell
			i.spare = p
		}
	}()
}

// awaitSpare waits for a spare that is being made. With mu held, which it lets go meanwhile.
func (i *instance) awaitSpare() {
	for i.coming != nil {
		coming := i.coming
		i.mu.Unlock()
		<-coming
		i.mu.Lock()
	}
}

// limit puts limits in force, before the phase has its first program.
func (p *phase) limit(l sandbox.Limits) error {
	if want := p.i.b.counts.Limits(l); p.group != nil && want != p.i.b.counts.Limits(p.limits) {
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
	p.forgetLocked()
	return true
}

// initPatience is how long an init may take to notice that it is done.
const initPatience = 500 * time.Millisecond

// Finish removes the phase, and returns what it has used. The init must have been told to end, or be ending. When it
// returns, everything that ran in the phase is gone; the init and the cgroups may be about to go: Destroy sees to it.
// Idempotent.
func (p *phase) Finish(ctx context.Context) (monitor.Sample, error) {
	p.once.Do(func() {
		if p.leaves {
			defer p.i.burials.Done()
		}
		for _, f := range slices.Concat(p.join, p.held, []*os.File{p.born}) {
			_ = f.Close() // nil is fine
		}
		if p.root >= 0 {
			_ = unix.Close(p.root)
		}
		if p.watch != nil {
			p.watch.End()
		}
		if p.counted() {
			// The kernel takes its time with the namespaces of an init. Nobody's result needs to wait for that.
			p.final = p.sample(p.group.Final())
			p.final.IORead, p.final.IOWrite = launch.ProcessIO(p.init.PID()) // not the cgroup's: see there
			p.i.b.burying.Add(1)
			p.i.burials.Go(func() {
				defer p.i.b.burying.Done()
				p.i.regret(errors.Join(p.bury(nil), p.remove(context.Background())))
			})
			return
		}
		var last usage
		stuck := p.bury(func(pid int) {
			last.read, last.written = launch.ProcessIO(pid)
			var sum unix.Rusage // its own, and that of all it has buried
			if unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, &sum) == nil {
				last.user, last.system = time.Duration(sum.Utime.Nano()), time.Duration(sum.Stime.Nano())
			}
		})
		if p.group != nil {
			p.final = p.sample(p.group.Final())
		} else {
			p.final = p.sample(cgroup.Stat{}, nil)
		}
		p.err = errors.Join(stuck, p.remove(ctx))
		p.final.IORead, p.final.IOWrite = last.read, last.written
		if p.watch != nil {
			p.watch.Complete(&p.final, last.user, last.system)
		}
	})
	return p.final, p.err
}

// counted says whether all that ran in the phase is gone and was waited for, so that what it used is known: the init may be
// there yet, and the kernel about to take it apart.
func (p *phase) counted() bool {
	if p.group == nil || p.watch != nil || !p.ready || p.failed || !p.i.b.counts.Pids {
		return false
	}
	empty, err := p.group.Empty()
	return empty && err == nil
}

// remove removes the cgroups, once the init is gone.
func (p *phase) remove(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupPatience)
	defer cancel()
	if p.group != nil {
		err = p.group.Remove(ctx)
	}
	return failure("remove cgroup", "cgroup", errors.Join(err, p.nest.Remove(ctx)))
}

// usage is what an init and all it has held used in the end.
type usage struct {
	read, written uint64
	user, system  time.Duration
}

// bury waits for the init's end, and has somebody look at it before it is forgotten.
func (p *phase) bury(look func(pid int)) error {
	gone := true
	switch {
	case p.init == nil || p.failed:
	case p.ready:
		// It ends by itself with its last process; should it not, it is made to.
		insist := time.AfterFunc(initPatience, p.init.Kill)
		defer insist.Stop()
		gone = p.init.Reap(initPatience+cleanupPatience, look)
	default:
		gone = p.init.Abandon()
	}
	if !gone {
		p.i.stuck.Store(true)
		return failure("end init", "cleanup", errStuck)
	}
	return nil
}

// errStuck is what even a kill can not change. The init and its cgroup are seen to when they can be: by
// this process, or by the next that starts.
var errStuck = errors.New("a process of the sandbox is in the kernel where no signal reaches it")

// sample turns counters into a sample. Counters that could not be read stay zero: the monitor keeps
// what it saw last.
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

// ResetPeaks counts the peaks anew: what was used so far was not the program's.
func (p *phase) ResetPeaks() error {
	if p.watch != nil {
		p.watch.ResetPeaks()
	}
	if p.group == nil {
		return nil
	}
	return p.group.ResetPeak()
}

// maxIOProcesses bounds what a live sample looks at; the final one has everybody.
const maxIOProcesses = 32

// Live is a sample of a phase that runs.
func (p *phase) Live() (monitor.Sample, error) {
	var s monitor.Sample
	var pids []int
	if p.group != nil {
		st, err := p.group.Stat()
		if err != nil {
			return monitor.Sample{}, err
		}
		s = p.sample(st, nil)
		pids, _ = p.group.Procs()
	} else {
		s = p.sample(cgroup.Stat{}, nil)
	}
	if p.watch != nil {
		if err := p.watch.Look(&s); err != nil {
			return monitor.Sample{}, err
		}
	}
	s.IORead, s.IOWrite = launch.ProcessIO(p.init.PID())
	for _, pid := range pids[:min(len(pids), maxIOProcesses)] {
		read, written := launch.ProcessIO(pid)
		s.IORead, s.IOWrite = s.IORead+read, s.IOWrite+written
	}
	return s, nil
}
