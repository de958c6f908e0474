package native

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
	"github.com/sandbox-run/sandbox-run/pkg/sandbox/internal/rootfs"
)

// How often a watch looks. A core fills memory at a few GiB a second: the less there is left, the sooner it looks
// again, and the overshoot is what is filled between two looks.
const (
	fillRate    = 4 << 30 // bytes a second
	lookSoonest = time.Millisecond
	lookLatest  = 20 * time.Millisecond
)

// watch keeps the limits of a phase that no cgroup keeps, by looking at its processes again and again.
type watch struct {
	p      *phase
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

// watches reports whether this machine's cgroups leave something to count.
func (b *Backend) watches() bool { return !b.counts.memory || !b.counts.pids || !b.counts.cpu }

// instead says how a limit is kept without its cgroup controller.
func (b *Backend) instead(c cgroup.Controller) (sandbox.ControlState, string) {
	switch c {
	case cgroup.Memory, cgroup.Swap:
		if b.counts.memory {
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
		if b.self.nproc {
			return sandbox.Enforced, "; RLIMIT_NPROC of its user namespace instead: what it refuses is not counted"
		}
		return sandbox.Polled, fmt.Sprintf("; looked at every %v to %v instead", lookSoonest, lookLatest)
	case cgroup.CPU:
		return sandbox.Polled, "; bound to that many processors instead: a fraction of one is not kept"
	}
	return sandbox.Absent, ""
}

// countsPerNamespace: since Linux 5.14 RLIMIT_NPROC counts the processes of an id in its user namespace, before that
// in the whole machine.
func countsPerNamespace() bool {
	var u unix.Utsname
	var major, minor int
	if unix.Uname(&u) != nil {
		return false
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 5 || major == 5 && minor >= 14
}

// newWatch takes over the descriptors.
func newWatch(p *phase, proc, shm, diag *os.File) *watch {
	return &watch{p: p, census: census.Open(proc, shm, diag), quit: make(chan struct{}), done: make(chan struct{})}
}

// turn goes round, so that sandboxes that are bound to processors are not all bound to the same.
var turn atomic.Uint32

// bind has everything that a phase will start run on as many processors as its limit allows.
func bind(pid int, cpus float64) error {
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return failure("look at processors", "limits", err)
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
	// The thread that forks: children take after it. It is our child and was not waited for.
	return failure("bind to processors", "limits", unix.SchedSetaffinity(pid, &some))
}

// begin starts to look, with the limits of a phase that is about to have a program.
func (w *watch) begin(l sandbox.Limits) (err error) {
	w.limits.Store(&l)
	w.started.Do(func() {
		if !w.p.i.b.counts.cpu {
			err = bind(w.p.init.PID(), l.CPUs)
		}
		go w.keep()
	})
	return err
}

// end stops looking. The phase's init has ended, or was told to. Once only.
func (w *watch) end() {
	close(w.quit)
	w.started.Do(func() { close(w.done) }) // nobody ever looked
	<-w.done
	_ = w.census.Close()
}

func (w *watch) keep() {
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
			_ = w.p.Kill() // that it ends is seen to like any other end
			return
		}
		// Looking is not worth more than a quarter of a processor.
		timer.Reset(max(pause, 3*time.Since(began)))
	}
}

// police looks once and says when to look again, or that a limit was exceeded.
func (w *watch) police() (pause time.Duration, over bool) {
	n, used, err := w.count()
	if err != nil { // the namespace ends
		return lookLatest, false
	}
	b, limits := w.p.i.b, w.limits.Load()
	limit := uint64(limits.Memory)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sawLocked(n, used)
	w.crowded = !b.counts.pids && !b.self.nproc && n.Tasks > limits.Processes
	w.over = !b.counts.memory && used > limit
	if w.crowded || w.over {
		return 0, true
	}
	left := time.Duration(float64(limit-min(limit, used)) / fillRate * float64(time.Second))
	return min(max(left, lookSoonest), lookLatest), false
}

// sawLocked notes what was counted. With mu held.
func (w *watch) sawLocked(n census.Count, used uint64) {
	w.last = n
	w.peak, w.processesPeak = max(w.peak, used), max(w.processesPeak, n.Tasks)
}

// count looks at all there is. What several processes share counts once where it would make a difference.
func (w *watch) count() (n census.Count, used uint64, err error) {
	if n, err = w.census.Take(); err != nil {
		return n, 0, err
	}
	used = n.Memory + w.inScratch()
	if used > uint64(w.limits.Load().Memory) && !w.p.i.b.counts.memory {
		if exact, err := w.census.Memory(); err == nil {
			used = exact + w.inScratch()
		}
	}
	return n, used, nil
}

// inScratch is what files in memory take.
func (w *watch) inScratch() uint64 {
	if s := w.p.i.scratch; s != nil {
		if u, err := s.Usage(); err == nil && s.InMemory() {
			return u.BytesUsed
		}
	}
	return 0
}

// look adds what is used now to a sample.
func (w *watch) look(s *monitor.Sample) error {
	n, used, err := w.count()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sawLocked(n, used)
	w.addLocked(s)
	if !w.p.i.b.counts.memory {
		s.Memory = used
	}
	if !w.p.i.b.counts.pids {
		s.Processes = n.Tasks
	}
	return nil
}

// addLocked fills in what cgroups did not count. With mu held.
func (w *watch) addLocked(s *monitor.Sample) {
	c := w.p.i.b.counts
	if !c.memory {
		s.MemoryPeak = w.peak
		if w.over {
			s.OOMKills = 1
		}
	}
	if !c.pids {
		s.ProcessesPeak = w.processesPeak
		if w.crowded {
			s.ProcessLimitHits = 1
		}
	}
	if s.CPUUser+s.CPUSystem == 0 {
		s.CPUUser, s.CPUSystem = w.last.CPUUser, w.last.CPUSystem
	}
}

// complete fills in a final sample. The CPU time is then exact, and includes the init's own.
func (w *watch) complete(s *monitor.Sample, last usage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addLocked(s)
	if !w.p.i.b.counts.any {
		s.CPUUser, s.CPUSystem = max(last.user, w.last.CPUUser), max(last.system, w.last.CPUSystem)
	}
}
