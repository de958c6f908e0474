package watch

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/census"
	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/launch"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// How often a watch looks. A core fills memory at a few GiB a second: the less there is left, the sooner it looks
// again, and the overshoot is what is filled between two looks.
const (
	fillRate    = 4 << 30 // bytes a second
	lookSoonest = time.Millisecond
	lookLatest  = 20 * time.Millisecond
)

// Counts are the limits that cgroups keep here.
type Counts struct{ Memory, Pids, CPU, Any bool }

// Look finds out which they are.
func Look(t *cgroup.Tree) Counts {
	c := Counts{Memory: t.Has(cgroup.Memory), Pids: t.Has(cgroup.Pids), CPU: t.Has(cgroup.CPU)}
	c.Any = c.Memory || c.Pids || c.CPU
	return c
}

// Limits are those that a group is to keep.
func (c Counts) Limits(l sandbox.Limits) (g cgroup.Limits) {
	if c.Memory {
		g.Memory = uint64(l.Memory)
	}
	if c.Pids {
		g.Pids = l.Processes
	}
	if c.CPU {
		g.CPU = l.CPUs
	}
	return g
}

// Short reports whether cgroups leave something to count.
func (c Counts) Short() bool { return !c.Memory || !c.Pids || !c.CPU }

// Instead says how a limit is kept without its cgroup controller. nproc: by RLIMIT_NPROC, if it is the one on processes.
func (c Counts) Instead(controller cgroup.Controller, nproc bool) (sandbox.ControlState, string) {
	switch controller {
	case cgroup.Memory, cgroup.Swap:
		if c.Memory {
			return sandbox.Absent, ""
		}
		unseen := "pipes, and sockets whose sender is closed,"
		if !census.SeesSockets() {
			unseen = "pipes and sockets" // a module that is missing: unix_diag
		}
		more := ""
		if rootfs.LandlockABI() < rootfs.MinLandlockABI {
			more = ", nor is what is mapped from /dev/zero and shared"
		}
		return sandbox.Polled, fmt.Sprintf("; looked at every %v to %v instead: what is filled in between is over the limit (a few MiB for one process, some 200 MiB for dozens at once), and what %s buffer is not seen%s", lookSoonest, lookLatest, unseen, more)
	case cgroup.Pids:
		if nproc {
			return sandbox.Enforced, "; RLIMIT_NPROC of its user namespace instead: what it refuses is not counted"
		}
		return sandbox.Polled, fmt.Sprintf("; looked at every %v to %v instead", lookSoonest, lookLatest)
	case cgroup.CPU:
		return sandbox.Polled, "; bound to that many processors instead: a fraction of one is not kept"
	}
	return sandbox.Absent, ""
}

// Options say what is watched.
type Options struct {
	Backend string // for errors
	Counts  Counts // what need not be watched
	NProc   bool   // RLIMIT_NPROC keeps the number of processes
	Scratch *scratch.Scratch
	// Init is the process, our child or a descendant that was not waited for, whose first thread forks all the rest.
	Init int
	Kill func() // ends the sandbox; called once at most, when a limit is exceeded
	// Proc and Shm are the sandbox's own, Diag tells of its sockets. They are taken over.
	Proc, Shm, Diag *os.File
}

// Watch is one sandbox's, or of one of its phases.
type Watch struct {
	o      Options
	census *census.Census
	limits atomic.Pointer[sandbox.Limits]

	started sync.Once
	quit    chan struct{}
	done    chan struct{} // closed when nobody looks any more

	mu            sync.Mutex
	peak          uint64
	processesPeak int
	last          census.Count
	over          bool // the memory limit was exceeded
	crowded       bool // the process limit was
}

// New looks at nothing yet.
func New(o Options) *Watch {
	return &Watch{o: o, census: census.Open(o.Proc, o.Shm, o.Diag), quit: make(chan struct{}), done: make(chan struct{})}
}

// turn goes round, so that sandboxes that are bound to processors are not all bound to the same.
var turn atomic.Uint32

// bind has everything that a phase will start run on as many processors as its limit allows.
func (w *Watch) bind(cpus float64) error {
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return launch.Failure(w.o.Backend, "look at processors", "limits", err)
	}
	var usable []int
	for cpu := range len(all) * 64 {
		if all.IsSet(cpu) {
			usable = append(usable, cpu)
		}
	}
	want := int(cpus)
	if float64(want) < cpus {
		want++
	}
	if want >= len(usable) {
		return nil
	}
	first := int(turn.Add(uint32(want)))
	for n := range want {
		some.Set(usable[(first+n)%len(usable)])
	}
	// The thread that forks: children take after it.
	return launch.Failure(w.o.Backend, "bind to processors", "limits", unix.SchedSetaffinity(w.o.Init, &some))
}

// Begin starts to look, with the limits of a phase that is about to have a program.
func (w *Watch) Begin(l sandbox.Limits) (err error) {
	w.limits.Store(&l)
	w.started.Do(func() {
		if !w.o.Counts.CPU {
			err = w.bind(l.CPUs)
		}
		go w.keep()
	})
	return err
}

// End stops looking. The phase's init has ended, or was told to. Once only.
func (w *Watch) End() {
	close(w.quit)
	w.started.Do(func() { close(w.done) }) // nobody ever looked
	<-w.done
	_ = w.census.Close()
}

func (w *Watch) keep() {
	defer close(w.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-w.quit:
			return
		case <-timer.C:
		}
		began := time.Now()
		pause, over := w.police()
		if over {
			w.o.Kill() // that it ends is seen to like any other end
			return
		}
		// Looking is not worth more than a quarter of a processor.
		timer.Reset(max(pause, 3*time.Since(began)))
	}
}

// police looks once and says when to look again, or that a limit was exceeded.
func (w *Watch) police() (pause time.Duration, over bool) {
	n, used, err := w.count()
	if err != nil { // the namespace ends
		return lookLatest, false
	}
	counts, limits := w.o.Counts, w.limits.Load()
	limit := uint64(limits.Memory)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sawLocked(n, used)
	w.crowded = !counts.Pids && !w.o.NProc && n.Tasks > limits.Processes
	w.over = !counts.Memory && used > limit
	if w.crowded || w.over {
		return 0, true
	}
	left := time.Duration(float64(limit-min(limit, used)) / fillRate * float64(time.Second))
	return min(max(left, lookSoonest), lookLatest), false
}

// sawLocked notes what was counted. With mu held.
func (w *Watch) sawLocked(n census.Count, used uint64) {
	w.last = n
	w.peak, w.processesPeak = max(w.peak, used), max(w.processesPeak, n.Tasks)
}

// count looks at all there is. What several processes share counts once where it would make a difference.
func (w *Watch) count() (n census.Count, used uint64, err error) {
	if n, err = w.census.Take(); err != nil {
		return n, 0, err
	}
	used = n.Memory + w.inScratch()
	// A child that is born while one looks has been counted with its parent's memory: what is too much is so at every look.
	for look := 0; look < 3 && used > uint64(w.limits.Load().Memory) && !w.o.Counts.Memory; look++ {
		if exact, err := w.census.Memory(); err == nil {
			used = min(used, exact+w.inScratch())
		}
	}
	return n, used, nil
}

// inScratch is what files in memory take.
func (w *Watch) inScratch() uint64 {
	if s := w.o.Scratch; s != nil {
		if u, err := s.Usage(); err == nil && s.InMemory() {
			return u.BytesUsed
		}
	}
	return 0
}

// ResetPeaks forgets the highest counts.
func (w *Watch) ResetPeaks() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.peak, w.processesPeak = 0, 0
}

// Look adds what is used now to a sample.
func (w *Watch) Look(s *monitor.Sample) error {
	n, used, err := w.count()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sawLocked(n, used)
	w.addLocked(s)
	if !w.o.Counts.Memory {
		s.Memory = used
	}
	if !w.o.Counts.Pids {
		s.Processes = n.Tasks
	}
	return nil
}

// addLocked fills in what cgroups did not count. With mu held.
func (w *Watch) addLocked(s *monitor.Sample) {
	c := w.o.Counts
	if !c.Memory {
		s.MemoryPeak = w.peak
		if w.over {
			s.OOMKills = 1
		}
	}
	if !c.Pids {
		s.ProcessesPeak = w.processesPeak
		if w.crowded {
			s.ProcessLimitHits = 1
		}
	}
	if s.CPUUser+s.CPUSystem == 0 {
		s.CPUUser, s.CPUSystem = w.last.CPUUser, w.last.CPUSystem
	}
}

// Complete fills in a final sample, with the CPU time that the kernel has counted in the end: it is exact, and includes the
// init's own.
func (w *Watch) Complete(s *monitor.Sample, user, system time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addLocked(s)
	if !w.o.Counts.Any {
		s.CPUUser, s.CPUSystem = max(user, w.last.CPUUser), max(system, w.last.CPUSystem)
	}
}
