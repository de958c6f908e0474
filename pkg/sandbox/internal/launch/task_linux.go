package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/initproto"
	"github.com/sandbox-run/sandbox-run/internal/linux/scratch"
	"github.com/sandbox-run/sandbox-run/internal/linux/seccomp"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/internal/linux/supervisor"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Phase is what a task lives in.
type Phase interface {
	// Leave gives up a task's place and reports whether it was the last.
	Leave() (last bool)
	// Finish ends the phase and returns what it has used.
	Finish(ctx context.Context) (monitor.Sample, error)
	// Live is what the phase uses now.
	Live() (monitor.Sample, error)
	// Kill ends everything in the phase.
	Kill() error
	// Killed reports whether Kill was called, by whomever.
	Killed() bool
	// Sound reports why nothing that ran in the phase can be trusted: the host's disk has failed it. Called before Finish.
	Sound() error
}

// Task is one process of a phase.
type Task struct {
	program *spawn.Program
	phase   Phase
	watch   *seccomp.RefusalCounter // of refused calls; nil when nobody counts
	unknown string                  // why not, if somebody should
	iso     *sandbox.Isolation

	finishing sync.Once
	final     monitor.Sample
	err       error
}

var (
	_ sandbox.Task       = (*Task)(nil)
	_ sandbox.Terminal   = (*Task)(nil)
	_ sandbox.Timed      = (*Task)(nil)
	_ sandbox.Watched    = (*Task)(nil)
	_ sandbox.Witness    = (*Task)(nil)
	_ sandbox.Measured   = (*Task)(nil)
	_ sandbox.Resettable = (*Task)(nil)
)

// New is the task of a program that was started in a phase.
func New(program *spawn.Program, phase Phase) *Task { return &Task{program: program, phase: phase} }

// Watch counts the calls that the program's filter refuses, which was made from p. It is called before the task is
// anybody else's.
func (t *Task) Watch(p seccomp.Policy) {
	err := seccomp.Notifiable()
	if err == nil {
		err = errors.New("the kernel gave no listener to their filter")
		if l := t.program.TakeListener(); l != nil {
			t.watch, err = seccomp.NewRefusalCounter(l, p)
		}
	}
	if err != nil {
		t.unknown = err.Error()
	}
}

// Measured keeps what the program was found to have. It is called before the task is anybody else's.
func (t *Task) Measured(iso sandbox.Isolation) { t.iso = &iso }

// Isolation is what the program was found to have; false if its backend looks at nothing.
func (t *Task) Isolation() (iso sandbox.Isolation, known bool) {
	if t.iso == nil {
		return iso, false
	}
	return t.iso.Clone(), true
}

// Refusals yields each kind of refused call when it is first seen.
func (t *Task) Refusals() iter.Seq[sandbox.Violation] {
	return func(yield func(sandbox.Violation) bool) {
		if t.watch == nil {
			return
		}
		for r := range t.watch.First() {
			if !yield(violation(r, false)) {
				return
			}
		}
	}
}

// Refused is what was refused, or why that is not known.
func (t *Task) Refused() (list []sandbox.Violation, unknown string) {
	if t.watch == nil {
		return nil, t.unknown
	}
	refusals, saturated := t.watch.Refusals()
	for _, r := range refusals {
		list = append(list, violation(r, saturated))
	}
	if saturated && len(list) == 0 { // all of them were interrupted before anybody saw what they were
		unknown = "too many were interrupted by signals"
	}
	return list, unknown
}

// violation: no flag allows any of these.
func violation(r seccomp.Refusal, saturated bool) sandbox.Violation {
	return sandbox.Violation{Kind: sandbox.ViolationSyscall, Name: r.Name, Detail: r.Call, Count: r.Count, Saturated: saturated}
}

// Stdin is where the process reads from; with a terminal, what is typed.
func (t *Task) Stdin() io.WriteCloser { return t.program.Stdin() }

// Stdout is what the process prints; with a terminal, the terminal.
func (t *Task) Stdout() io.ReadCloser { return t.program.Stdout() }

// Stderr is nil with a terminal.
func (t *Task) Stderr() io.ReadCloser { return t.program.Stderr() }

// Signal reaches the process, or everything in its phase.
func (t *Task) Signal(sig syscall.Signal, scope sandbox.Scope) error {
	return t.program.Signal(sig, scope == sandbox.Tree)
}

// Kill ends the whole phase at once.
func (t *Task) Kill() error { return t.phase.Kill() }

// Resize tells the terminal its size.
func (t *Task) Resize(size sandbox.TTY) error { return t.program.Resize(size.Rows, size.Cols) }

// Wait blocks until the process has ended.
func (t *Task) Wait() (sandbox.Exit, error) {
	code, signal := t.program.Wait()
	return sandbox.Exit{Code: code, Signal: signal}, nil
}

// Took is how long the process ran, as its init saw it.
func (t *Task) Took() (time.Duration, bool) { return t.program.Took() }

// Lost: the init ended before the process did, and not by us.
func (t *Task) Lost() bool { return t.program.Lost() && !t.phase.Killed() }

// Finish ends the phase if this was its last process, and returns what the phase has used.
func (t *Task) Finish(ctx context.Context) (monitor.Sample, error) {
	t.finishing.Do(func() {
		t.program.CloseInput()
		if t.watch != nil {
			defer t.watch.Close()
		}
		sound := t.phase.Sound() // while the scratch is there: it may go with the phase
		if t.phase.Leave() {
			t.final, t.err = t.phase.Finish(ctx)
			t.err = errors.Join(t.err, sound)
			return
		}
		t.err = sound
		t.final, _ = t.phase.Live() // neighbours go on; a failed look is not worth failing the run
	})
	return t.final, t.err
}

// Sample is what the phase uses now.
func (t *Task) Sample() (monitor.Sample, error) { return t.phase.Live() }

// ResetPeaks counts the phase's peaks anew, where it can.
func (t *Task) ResetPeaks() error {
	if r, ok := t.phase.(sandbox.Resettable); ok {
		return r.ResetPeaks()
	}
	return errors.ErrUnsupported
}

// Sample turns a cgroup's counters into a sample.
func Sample(st cgroup.Stat) monitor.Sample {
	return monitor.Sample{
		CPUUser: st.CPUUser, CPUSystem: st.CPUSystem, Throttled: st.Throttled,
		Memory: st.MemoryCurrent, MemoryPeak: st.MemoryPeak, IORead: st.IORead, IOWrite: st.IOWrite,
		Processes: int(st.Pids), ProcessesPeak: int(st.PidsPeak), OOMKills: st.OOMKills, ProcessLimitHits: st.PidsLimitHits,
	}
}

// Failure is an error of a backend, with the next step.
func Failure(backend, op, stage string, err error) error {
	if err == nil {
		return nil
	}
	return &sandbox.Error{Backend: backend, Op: op, Stage: stage, Err: err, Hint: hint(stage, err)}
}

// DiskFailure is the error of a sandbox whose scratch the host's disk, at dir, can not keep.
func DiskFailure(backend, dir string, err error) error {
	if err == nil {
		return nil
	}
	hint := "free some space below " + dir
	if errors.Is(err, scratch.ErrFloor) {
		hint += ", or lower the server's --disk-floor"
	}
	return &sandbox.Error{Backend: backend, Op: "keep scratch", Stage: "scratch", Err: err, Hint: hint}
}

// LackRoom reports in an isolation that disks may take more than the host has, as a gap of the disk limit.
func LackRoom(iso *sandbox.Isolation, s *scratch.Scratch, dir string) {
	over, floor := s.Overcommitted()
	if over == 0 {
		return
	}
	iso.Lack(sandbox.ControlDisk, sandbox.Enforced,
		fmt.Sprintf("overcommitted: the scratches on the host's disk may take %v more than it has above its floor of %v;"+
			" sandboxes are stopped when it is reached",
			sandbox.Size(over), sandbox.Size(floor)),
		"free some space below "+dir+", or ask for a smaller --disk")
}

// hint is the next step: what a host has run out of, somebody can give it more of. Else the one every user has.
func hint(stage string, err error) string {
	switch {
	case errors.Is(err, unix.EMFILE):
		return "raise the limit on open files of this process (ulimit -n)"
	case errors.Is(err, unix.ENFILE):
		return "raise the machine's limit on open files (sysctl fs.file-max)"
	case errors.Is(err, unix.ENOMEM):
		return "free some memory, or raise the memory limit that sandbox-run itself runs under"
	case errors.Is(err, unix.EAGAIN) && stage == "namespaces":
		return "raise the limit on processes that sandbox-run itself runs under (ulimit -u, or its service's)"
	case errors.Is(err, unix.ENOSPC) && stage == "scratch":
		return "--scratch memory, or free some space (a server: lower --disk-floor)"
	case errors.Is(err, unix.ENOSPC) && stage == "namespaces": // not a disk: it is what the kernel says of too many
		return "raise the limits in /proc/sys/user that are used up"
	case errors.Is(err, unix.EROFS) && stage == "cgroup":
		return "remount it read-write, or run outside the container that made it so"
	}
	return "sandbox-run doctor"
}

// StartFailure tells the program's own fault from ours.
func StartFailure(backend string, err error) error {
	var e *spawn.Error
	if !errors.As(err, &e) {
		return Failure(backend, "talk to init", "protocol", err)
	}
	out := &sandbox.Error{Backend: backend, Op: e.Detail, Stage: e.Stage.String(), Err: e.Errno, Hint: hint(e.Stage.String(), e.Errno)}
	switch e.Stage {
	case initproto.StageRootfs:
		if e.Detail == "make proc" && e.Errno == unix.EPERM {
			out.Hint = "uncover /proc: inside a container, --security-opt systempaths=unconfined"
		}
	case initproto.StageExec:
		out.Kind, out.Hint = sandbox.ErrNotStarted, ""
		if e.Errno == unix.ENOENT {
			out.Hint = "name a program that exists inside the sandbox"
		}
	case initproto.StageWorkdir:
		out.Kind, out.Hint = sandbox.ErrInvalid, "a directory that exists inside the sandbox"
	}
	return out
}

// residue turns what a collection found into what a backend reports.
func residue(found []supervisor.Found) []sandbox.Residue {
	all := make([]sandbox.Residue, len(found))
	for i, f := range found {
		all[i] = sandbox.Residue{Kind: f.Kind, Name: f.Name, Removed: f.Removed}
		if f.Problem != nil {
			all[i].Problem = f.Problem.Error()
		}
	}
	return all
}

// Rlimits of every process. The cgroup counts processes and memory better than these could; they
// bound what cgroups do not. largest is the most that a file may have; 0 is no limit but the disk's.
func Rlimits(l sandbox.Limits, largest sandbox.Size) []initproto.Rlimit {
	files := uint64(l.OpenFiles)
	const mib = 1 << 20
	limits := []initproto.Rlimit{
		// 1, not 0: a core handler behind a pipe ignores 0 (R10).
		{Resource: unix.RLIMIT_CORE, Soft: 1, Max: 1},
		{Resource: unix.RLIMIT_NOFILE, Soft: files, Max: files},
		{Resource: unix.RLIMIT_MEMLOCK, Soft: 8 * mib, Max: 8 * mib},
		{Resource: unix.RLIMIT_MSGQUEUE, Soft: 819200, Max: 819200},
		{Resource: unix.RLIMIT_SIGPENDING, Soft: 4096, Max: 4096},
		{Resource: unix.RLIMIT_NICE, Soft: 0, Max: 0},
		{Resource: unix.RLIMIT_RTPRIO, Soft: 0, Max: 0},
		{Resource: unix.RLIMIT_STACK, Soft: 8 * mib, Max: unix.RLIM_INFINITY},
	}
	if largest > 0 {
		limits = append(limits, initproto.Rlimit{Resource: unix.RLIMIT_FSIZE, Soft: uint64(largest), Max: uint64(largest)})
	}
	return limits
}

// Within lowers limits to what this process has itself: more takes a capability that root need not have.
func Within(limits []initproto.Rlimit) []initproto.Rlimit {
	for i := range limits {
		l := &limits[i]
		var own unix.Rlimit
		if unix.Getrlimit(int(l.Resource), &own) == nil {
			l.Max = min(l.Max, own.Max)
			l.Soft = min(l.Soft, l.Max)
		}
	}
	return limits
}

// ProcessTime is the processor time that a process has taken, with those that it has buried, by the kernel's ticks; 0 of one that is
// gone.
func ProcessTime(pid int) (user, system time.Duration) {
	const tick = time.Second / 100 // what user space is told, on every architecture that there is a sandbox for
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0
	}
	// The name, in brackets, may be anything. utime, stime, cutime and cstime are the 14th to 17th field; the state is the 3rd.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 15 {
		return 0, 0
	}
	var n [4]int
	for i := range n {
		n[i], _ = strconv.Atoi(fields[11+i])
	}
	return time.Duration(n[0]+n[2]) * tick, time.Duration(n[1]+n[3]) * tick
}

// ProcessIO is what a process and those of its children that were waited for have moved to and
// from storage. cgroup v1 counts nothing without a throttle rule, v2 counts what goes through a loop
// device twice; this is right.
func ProcessIO(pid int) (read, written uint64) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/io")
	if err != nil {
		return 0, 0
	}
	field := func(name string) uint64 {
		_, after, found := bytes.Cut(text, []byte("\n"+name+": "))
		if !found {
			return 0
		}
		line, _, _ := bytes.Cut(after, []byte("\n"))
		n, _ := strconv.ParseUint(string(line), 10, 64)
		return n
	}
	return field("read_bytes"), field("write_bytes")
}
