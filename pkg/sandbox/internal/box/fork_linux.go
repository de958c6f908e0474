package box

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-run/sandbox-run/internal/files"
	"github.com/sandbox-run/sandbox-run/internal/linux/cgroup"
	"github.com/sandbox-run/sandbox-run/internal/linux/spawn"
	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Fork is a process that a process of a phase has made with its own state. It is in the same namespaces, and in a cgroup of its own with the
// same limits.
type Fork struct {
	*Task
	group  *cgroup.Group
	phases *cgroup.PhaseGroup
	driver *pipeDriver

	once  sync.Once
	final monitor.Sample
	err   error
}

var (
	_ sandbox.Task     = (*Fork)(nil)
	_ sandbox.Driven   = (*Fork)(nil)
	_ sandbox.Measured = (*Fork)(nil)
	_ sandbox.Forkable = (*Fork)(nil)
	_ sandbox.Forkable = (*Task)(nil)
)

// pipeDriver is the supervisor's end of two named pipes. Their names are removed after the first bytes: the fork has opened them by then.
type pipeDriver struct {
	to, from *os.File
	remove   func()
}

func (d *pipeDriver) Read(p []byte) (n int, err error) {
	if n, err = d.from.Read(p); n > 0 {
		d.remove()
	}
	return n, err
}

func (d *pipeDriver) Write(p []byte) (int, error) { return d.to.Write(p) }

func (d *pipeDriver) Close() error {
	d.remove()
	return errors.Join(d.to.Close(), d.from.Close())
}

// CanFork reports whether a fork gets limits of its own, and can be told from other processes.
func (t *Task) CanFork() bool {
	p := t.phase
	return p.Group != nil && p.Poller == nil && p.Container == nil && !p.NoPIDNS && !p.InitInGroup && !p.Instance.Host.Opaque
}

// Fork makes the named pipes of another process in the sandbox, has it made by ask, and takes it on.
func (t *Task) Fork(ctx context.Context, ask func(dir string) (pid int, err error)) (_ sandbox.Task, err error) {
	i := t.phase.Instance
	if !t.CanFork() {
		return nil, &sandbox.Error{Backend: i.Host.Name, Op: "fork", Kind: sandbox.ErrUnsupported, Err: errors.New("a fork can get no limits of its own here")}
	}
	id := i.NextExec()
	dir := path.Join(sandbox.TmpDir, fmt.Sprintf(".sandbox-run-fork-%d", id))
	pipes, remove, err := i.makePipes(dir, "stdout", "stderr", "to_driver", "from_driver")
	if err != nil {
		return nil, err
	}
	d := &pipeDriver{os.NewFile(uintptr(pipes[2]), "to_driver"), os.NewFile(uintptr(pipes[3]), "from_driver"), remove}
	pid, err := ask(dir)
	if err == nil && (pid <= 1 || pid > 1<<22) {
		err = &sandbox.Error{Backend: i.Host.Name, Op: "fork", Err: fmt.Errorf("the interpreter made no process (its number is %d)", pid)}
	}
	if err != nil {
		_ = d.Close()
		_ = unix.Close(pipes[0])
		_ = unix.Close(pipes[1])
		return nil, err
	}
	program, pidfd, err := t.phase.Init.Take(ctx, id, uint32(pid), pipes[0], pipes[1]) //nolint:gosec // checked
	if err != nil {
		_ = d.Close()
		return nil, t.phase.failure("take on a fork", "fork", err)
	}
	defer pidfd.Close()
	f := &Fork{Task: &Task{program: program, phase: t.phase}, driver: d} // refused calls are counted where the filter was installed
	if iso, known := t.Isolation(); known {
		f.iso = &iso
	}
	i.mu.Lock()
	t.phase.tasks++
	i.mu.Unlock()
	t.phase.forks.Add(1)
	if err := f.confine(pidfd); err != nil {
		_ = unix.PidfdSendSignal(int(pidfd.Fd()), unix.SIGKILL, nil, 0)
		f.CloseOutput()
		_, _ = f.Wait()
		_, finishErr := f.Finish(context.WithoutCancel(ctx))
		return nil, errors.Join(t.phase.failure("limit a fork", "cgroup", err), finishErr)
	}
	return f, nil
}

// makePipes makes named pipes in the scratch, and opens them for reading and writing.
func (i *Instance) makePipes(dir string, names ...string) (fds []int, remove func(), err error) {
	beneath, ok := files.Beneath(dir)
	if !ok {
		return nil, nil, i.Host.Failure("make pipes", "fork", unix.EINVAL)
	}
	opener := i.Mounts.Opener(i.Scratch, i.ID.Owner)
	remove = sync.OnceFunc(func() {
		for _, name := range names {
			_ = opener.Remove(path.Join(beneath, name)) // at the latest they end with the sandbox
		}
	})
	for _, name := range names {
		fd, err := opener.Create(path.Join(beneath, name), unix.S_IFIFO|0o600)
		if err != nil {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
			remove()
			return nil, nil, i.Host.Failure("make pipes", "fork", err)
		}
		fds = append(fds, fd)
	}
	return fds, remove, nil
}

// confine puts the fork into a cgroup of its own, and checks that it is there and limited.
func (f *Fork) confine(pidfd *os.File) error {
	p := f.phase
	f.phases = p.Instance.Supervisor.NewPhaseCgroup(p.Instance.ID.Init)
	f.group = f.phases.Programs()
	want := p.Instance.Host.Limits(p.limits)
	if err := f.group.Make(want); err != nil {
		return err
	}
	pid, err := pidOf(pidfd) // as late as possible: a process that ends leaves its number to others
	if err != nil {
		return err
	}
	if err := f.group.Enter(pid, spawn.Threads(pid)); err != nil {
		return err
	}
	if spawn.Threads(pid) > 1 { // of a thread that started meanwhile, perhaps elsewhere
		if err := f.group.Enter(pid, 2); err != nil {
			return err
		}
	}
	has, _, err := f.group.ReadLimits()
	if err != nil {
		return err
	}
	if has != want {
		return fmt.Errorf("its cgroup has the limits %+v, not %+v", has, want)
	}
	if now, err := pidOf(pidfd); err != nil || now != pid {
		return errors.Join(errors.New("it has ended"), err)
	}
	return nil
}

// pidOf returns the number of a process in this pid namespace.
func pidOf(pidfd *os.File) (pid int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd.Fd()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if n, _ := fmt.Sscanf(line, "Pid: %d", &pid); n == 1 && pid > 0 {
			return pid, nil
		}
	}
	return 0, errors.New("it has ended")
}

// Driver is the supervisor's end of the fork's pipes.
func (f *Fork) Driver() io.ReadWriteCloser { return f.driver }

// Signal reaches the process, or every process that it has made.
func (f *Fork) Signal(sig syscall.Signal, scope sandbox.Scope) error {
	switch scope {
	case sandbox.Tree:
		_, err := f.group.Signal(sig, 0)
		return err
	case sandbox.Handler:
		return f.program.SignalHandler(sig)
	}
	return f.program.Signal(sig, false)
}

// Kill ends the fork and the processes that it has made.
func (f *Fork) Kill() error {
	if f.group == nil {
		return f.program.Signal(syscall.SIGKILL, false)
	}
	return f.phase.failure("kill cgroup", "cgroup", f.group.Kill())
}

// Sample is the current use of the fork.
func (f *Fork) Sample() (monitor.Sample, error) {
	st, err := f.group.Stat()
	if err != nil {
		return monitor.Sample{}, err
	}
	s := f.phase.sample(st, nil)
	s.Processes, s.ProcessesPeak = int(st.Pids), int(st.PidsPeak)
	return s, nil
}

// ResetPeaks counts the peaks anew.
func (f *Fork) ResetPeaks() error { return f.group.ResetPeak() }

// Finish ends the processes of the fork, and removes its cgroup; if it was the last of its phase, it ends the phase.
func (f *Fork) Finish(ctx context.Context) (monitor.Sample, error) {
	f.once.Do(func() {
		if f.group != nil {
			f.final = f.phase.sample(f.group.Final())
			f.err = f.phase.failure("remove cgroup", "cgroup", errors.Join(f.group.Remove(ctx), f.phases.Remove(ctx)))
		}
		_ = f.driver.Close()
		f.phase.forks.Add(-1)
		if f.phase.Leave() {
			_, err := f.phase.Finish(ctx)
			f.err = errors.Join(f.err, err)
		}
	})
	return f.final, f.err
}

// networkPID is the process of the phase's network; 0: there is none.
func (p *Phase) networkPID() int {
	if n := p.network.Load(); n != nil {
		if <-n.started; n.process != nil {
			return n.process.PID()
		}
	}
	return 0
}
