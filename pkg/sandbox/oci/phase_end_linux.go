package oci

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
)

// Kill ends the container.
func (p *phase) Kill() error {
	p.killed.Store(true)
	p.killConsoles()
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

// stopAll ends what runs in the sandbox because the host's disk has reached its floor. While a program is being started nothing
// is ended: the watch of the disk calls again.
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
