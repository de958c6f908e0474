package box

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/census"
	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/faults"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// The intervals of polled limits. A core fills memory at a few GiB a second: the less is left, the sooner the next poll;
// the overshoot is the memory that is filled between two polls.
const (
	fillRate    = 4 << 30 // bytes a second
	pollSoonest = time.Millisecond
	pollLatest  = 20 * time.Millisecond
	// fewCounts are too few for a peak: a small program that ends meanwhile has had more memory than was seen. Its memory is not known.
	fewCounts = 4
)

// Counts are the limits that cgroups enforce on this machine.
type Counts struct{ Memory, Pids, CPU, Any bool }

func lookAtCounts(t *cgroup.Tree) Counts {
	c := Counts{Memory: t.Has(cgroup.Memory), Pids: t.Has(cgroup.Pids), CPU: t.Has(cgroup.CPU)}
	c.Any = c.Memory || c.Pids || c.CPU
	return c
}

// Limits are the limits that a cgroup enforces.
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

// Short reports whether cgroups leave a limit to the poller.
func (c Counts) Short() bool { return !c.Memory || !c.Pids || !c.CPU }

// instead describes how a limit is enforced without its cgroup controller. nproc: by RLIMIT_NPROC, for the limit on
// processes.
func (c Counts) instead(controller cgroup.Controller, nproc bool) (sandbox.ControlState, string) {
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
		return sandbox.Polled, fmt.Sprintf("; looked at every %v to %v instead: what is filled in between is over the limit "+
			"(a few MiB for one process, some 200 MiB for dozens at once), and what %s buffer is not seen%s", pollSoonest, pollLatest, unseen, more)
	case cgroup.Pids:
		if nproc {
			return sandbox.Enforced, "; RLIMIT_NPROC of its user namespace instead: what it refuses is not counted"
		}
		return sandbox.Polled, fmt.Sprintf("; looked at every %v to %v instead", pollSoonest, pollLatest)
	case cgroup.CPU:
		return sandbox.Polled, "; bound to that many processors instead: a fraction of one is not kept"
	}
	return sandbox.Absent, ""
}

// LimitPoller enforces the limits of a phase that no cgroup enforces, by polling its processes. Memory that is filled
// between two polls exceeds the limit. It is safe for concurrent use.
type LimitPoller struct {
	phase  *Phase
	census *census.Census
	limits atomic.Pointer[sandbox.Limits]

	started sync.Once
	quit    chan struct{}
	done    chan struct{} // closed when the polling has ended

	mu            sync.Mutex
	peak          uint64 // of what is not counted twice
	counts        int    // how many counts the peak is of
	largest       uint64 // highest memory of one process, by the kernel; 0: not known
	processesPeak int
	last          census.Count
	over          bool // the memory limit was exceeded
	crowded       bool // the process limit was
}

// NewPoller gives the phase a poller, which starts with the phase's first program. proc and shm are the sandbox's own,
// diag reports its sockets; the poller owns them. InitPID must be set: it is the process, a child or an unreaped
// descendant of this one, whose first thread forks all the others.
func (p *Phase) NewPoller(proc, shm, diag *os.File) {
	p.Poller = &LimitPoller{phase: p, census: census.Open(proc, shm, diag), quit: make(chan struct{}), done: make(chan struct{})}
}

// turn advances, so that sandboxes that are bound to processors are spread over all of them.
var turn atomic.Uint32

func (w *LimitPoller) host() *Host { return w.phase.Instance.Host }

// bind binds all later processes of a phase to as many processors as its limit allows.
func (w *LimitPoller) bind(cpus float64) error {
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return faults.Wrap(w.host().Name, "look at processors", "limits", err)
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
	// The thread that forks: children inherit its affinity.
	return faults.Wrap(w.host().Name, "bind to processors", "limits", unix.SchedSetaffinity(w.phase.InitPID, &some))
}

// begin starts the polling, with the limits of a phase that is about to start a program.
func (w *LimitPoller) begin(l sandbox.Limits) (err error) {
	w.limits.Store(&l)
	w.started.Do(func() {
		if !w.host().Counts.CPU {
			err = w.bind(l.CPUs)
		}
		go w.poll()
	})
	return err
}

// end stops the polling. The phase's init has ended, or was ordered to. It is called once.
func (w *LimitPoller) end() {
	close(w.quit)
	w.started.Do(func() { close(w.done) }) // it never began
	<-w.done
	_ = w.census.Close()
}

func (w *LimitPoller) poll() {
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
		pause, over := w.compare()
		if over {
			_ = w.phase.Kill() // its end is handled like any other
			return
		}
		// Polling may use at most a quarter of a processor.
		timer.Reset(max(pause, 3*time.Since(began)))
	}
}

// compare counts once and returns the time until the next count, or that a limit was exceeded.
func (w *LimitPoller) compare() (pause time.Duration, over bool) {
	n, used, exact, err := w.count()
	if err != nil { // the namespace ends
		return pollLatest, false
	}
	counts, limits := w.host().Counts, w.limits.Load()
	limit := uint64(limits.Memory)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked(n, used, exact)
	w.crowded = !counts.Pids && !w.host().Self.NProc && n.Tasks > limits.Processes
	w.over = !counts.Memory && used > limit
	if w.crowded || w.over {
		return 0, true
	}
	left := time.Duration(float64(limit-min(limit, used)) / fillRate * float64(time.Second))
	return min(max(left, pollSoonest), pollLatest), false
}

// noteLocked records a count. The sum of several processes, in which shared memory counts for each, is no peak. With mu held.
func (w *LimitPoller) noteLocked(n census.Count, used uint64, exact bool) {
	w.last, w.processesPeak = n, max(w.processesPeak, n.Tasks)
	if exact {
		w.peak = max(w.peak, used)
		w.counts++
	}
}

// noteLargest records the highest memory of one process, as the kernel has it.
func (w *LimitPoller) noteLargest(memory uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.largest = max(w.largest, memory)
}

// count adds up all processes. Shared memory counts once where that makes a difference, and if exact is set.
func (w *LimitPoller) count() (n census.Count, used uint64, exact bool, err error) {
	if n, err = w.census.Take(); err != nil {
		return n, 0, false, err
	}
	used, exact = n.Memory+w.inScratch(), n.Processes == 1
	// A child that is forked meanwhile was counted with its parent's memory: only a value that is too high at every
	// count exceeds the limit.
	for look := 0; look < 3 && used > uint64(w.limits.Load().Memory) && !w.host().Counts.Memory; look++ {
		if divided, err := w.census.Memory(); err == nil {
			used, exact = min(used, divided+w.inScratch()), true
		}
	}
	return n, used, exact, nil
}

// inScratch is the memory of files in a scratch of memory.
func (w *LimitPoller) inScratch() uint64 {
	if s := w.phase.Instance.Scratch; s != nil {
		if u, err := s.Usage(); err == nil && s.InMemory() {
			return u.BytesUsed
		}
	}
	return 0
}

// resetPeaks drops the highest counts.
func (w *LimitPoller) resetPeaks() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.peak, w.counts, w.processesPeak = 0, 0, 0
}

// addTo adds the current use to a sample.
func (w *LimitPoller) addTo(s *monitor.Sample) error {
	n, used, exact, err := w.count()
	if err != nil {
		return err
	}
	if !exact && n.Processes > 0 { // samples are rare enough for it
		if divided, err := w.census.Memory(); err == nil {
			used, exact = min(used, divided+w.inScratch()), true
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked(n, used, exact)
	w.addLocked(s)
	if !w.host().Counts.Memory {
		s.Memory = used
	}
	if !w.host().Counts.Pids {
		s.Processes = n.Tasks
	}
	return nil
}

// addLocked fills in the values that cgroups did not count. With mu held.
func (w *LimitPoller) addLocked(s *monitor.Sample) {
	c := w.host().Counts
	if !c.Memory {
		s.MemoryPeak = max(w.peak, w.largest)
		if w.largest == 0 && w.counts < fewCounts && !w.over {
			s.MemoryPeak = 0
		}
		if w.over {
			s.OOMKills = 1
		}
	}
	if !c.Pids {
		s.ProcessesPeak = max(w.processesPeak, 1)
		if w.crowded {
			s.ProcessLimitHits = 1
		}
	}
	if s.CPUUser+s.CPUSystem == 0 {
		s.CPUUser, s.CPUSystem = w.last.CPUUser, w.last.CPUSystem
	}
}

// complete fills in a final sample, with the kernel's final CPU time: it is exact, and includes the init's own.
func (w *LimitPoller) complete(s *monitor.Sample, spent Usage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addLocked(s)
	if !w.host().Counts.Any {
		s.CPUUser, s.CPUSystem = max(spent.User, w.last.CPUUser), max(spent.System, w.last.CPUSystem)
	}
}
