package sandbox

import (
	"context"
	"fmt"
	"io"
	"iter"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
)

// Backend builds sandboxes of one kind. Implementations are safe for concurrent use.
type Backend interface {
	// Name is the value of --backend that selects this backend.
	Name() string
	// Probe reports the isolation that this machine can enforce through this backend. It runs no untrusted program.
	Probe(ctx context.Context) Isolation
	// Create builds a sandbox that is ready to start processes. The spec is complete and valid.
	// The caller owns the instance and must Destroy it.
	Create(ctx context.Context, spec *Spec) (Instance, error)
	// Collect finds the leftovers of dead supervisors and, unless dryRun, removes them.
	Collect(ctx context.Context, dryRun bool) ([]Residue, error)
	// Close releases the backend's resources. The caller destroys every instance first. Close may be called twice.
	Close() error
}

// Instance is one sandbox of a backend.
type Instance interface {
	// Isolation reports the controls that this sandbox has.
	Isolation() Isolation
	// Start runs a process. It returns once the program is executed, or with the reason why it is not. The error is of
	// kind ErrNotStarted if the program is the cause.
	Start(ctx context.Context, p *Process) (Task, error)
	// Destroy kills every process of the sandbox and removes the sandbox. It may be called in any state, and twice.
	Destroy(ctx context.Context) error
}

// Task is one started process. The caller reads the output, calls Wait once the process may have ended, and always
// calls Finish and CloseOutput.
type Task interface {
	// Stdin is the standard input of the process; with a terminal, its typed input. Closing it ends the input.
	Stdin() io.WriteCloser
	// ReadOutput waits for output and reads it from the stream, 0 for stdout or 1 for stderr, whose oldest unread data was
	// written first. With a terminal, and merged, all output is stdout. The error is that of the end of both streams. One
	// goroutine reads at a time.
	ReadOutput(p []byte) (stream, n int, err error)
	// CloseOutput ends ReadOutput, also while it waits. It may be called twice.
	CloseOutput()
	// Signal reaches the whole process tree of the phase (scope Tree) or the process alone. With scope Handler, it may return an error if the
	// process has no handler, or if that is not known.
	Signal(sig syscall.Signal, scope Scope) error
	// Kill ends the whole phase at once; the programs can not resist it. It may be called in any state, and twice.
	Kill() error
	// Wait blocks until the process has ended. Any number of callers may wait; all get the same exit.
	Wait() (Exit, error)
	// Finish is called after Wait. If the process is the last of its phase, Finish ends the processes that it left
	// running and removes the phase's cgroup. It returns the final sample, in bounded time, and is idempotent.
	Finish(ctx context.Context) (monitor.Sample, error)
	monitor.Source
}

// Scope selects the receivers of a signal.
type Scope int

// The scopes of a signal.
const (
	Main    Scope = iota // the process that was started
	Tree                 // everything in its phase
	Handler              // the process that was started, if it has a handler for the signal
)

// Terminal is implemented by a Task whose process has a terminal.
type Terminal interface {
	// Resize sets the size of the terminal.
	Resize(TTY) error
}

// Timed is implemented by a Task whose backend measures how long the process ran. The Manager's own times are late at
// both ends.
type Timed interface {
	// Took returns the measured time. It is called after Wait, and returns false if the time is not known.
	Took() (time.Duration, bool)
}

// Watched is implemented by a Task whose init can end before the process does.
type Watched interface {
	// Lost reports, after Wait, that the init ended first and the process with it: the exit is not the process's own.
	Lost() bool
}

// Witness is implemented by a Task whose backend counts refused system calls.
type Witness interface {
	// Refusals yields each kind of refused call when it first occurs, and ends with Finish at the latest.
	Refusals() iter.Seq[Violation]
	// Refused is called after Finish. It returns the refused calls, or the reason why they are not known.
	Refused() (violations []Violation, unknown string)
}

// Routed is implemented by a Task whose backend counts attempts to reach a network that the sandbox does not have.
type Routed interface {
	// NoRoutes returns, after Wait, how many connections and packets of the phase had no route so far.
	NoRoutes() uint64
}

// Networked is implemented by a Task whose backend has networks with rules.
type Networked interface {
	// NetworkRefusals yields each kind of refused name and connection when it first occurs, and ends with Finish at the latest.
	NetworkRefusals() iter.Seq[network.Refused]
	// Published are the ports of the phase on the host's loopback.
	Published() []network.Port
	// Network returns, after Finish of the last task of the phase, what its programs reached and what was refused. It is nil without
	// rules; unknown says why it is incomplete.
	Network() (report *network.Report, unknown string)
}

// Measured is implemented by a Task whose backend inspects the started program.
type Measured interface {
	// Isolation reports the measured controls of the program; after Finish, with the limits that were in force at its
	// end. It returns false if the program was not measured.
	Isolation() (iso Isolation, measured bool)
}

// Driven is implemented by a Task whose process may have a driver socket (Process.DriverSocket).
type Driven interface {
	// Driver is the supervisor's end of the socket; nil if this process can have none.
	Driver() io.ReadWriteCloser
	// StopAtEmpty makes ReadOutput return an error, now and from now on, when all output that was written has been read; false makes it
	// wait again.
	StopAtEmpty(stop bool)
	// AwaitEmpty waits until all output that was written has been read, but no longer than that.
	AwaitEmpty(atMost time.Duration)
	// NoRoutesSoFar is Routed.NoRoutes while the process runs.
	NoRoutesSoFar() uint64
	// NetworkSoFar is what the network of the phase did so far; nil without rules. SetNetwork begins anew, with another identity.
	NetworkSoFar() (r *network.Report, identity any)
}

// Forkable is implemented by a Driven Task whose process can make another one with its state.
type Forkable interface {
	// CanFork reports whether this sandbox allows it.
	CanFork() bool
	// Fork has ask make the process, and returns it as a Driven task with limits of its own, the same ones. ask gets a directory of the
	// sandbox with the named pipes of the new process, and returns its number in the sandbox, as this process says it.
	Fork(ctx context.Context, ask func(dir string) (pid int, err error)) (Task, error)
}

// Rewired is implemented by a Task whose network can change while it runs.
type Rewired interface {
	// SetNetwork puts the process's policy in force, for all processes of the phase. It ends connections. Without rules, a network that had
	// some refuses everything from then on. After an error the policy before holds, or the process has ended.
	SetNetwork(ctx context.Context, p *Process) error
}

// Paused is implemented by a Task whose process may wait for its user, which does not count as running.
type Paused interface {
	// Ran returns how long the process has run so far.
	Ran() time.Duration
}

// Resettable is implemented by a Task whose peaks can be counted anew: values from before the reset are then not part of
// them.
type Resettable interface {
	ResetPeaks() error
}

// Warm describes how a process of a language is prepared before a request for it arrives and before untrusted code
// reaches it. There are two ways. Both run the same command as a cold start.
//
// Prestarted: the process starts in a sandbox of its own, with the variables of Env in addition to its own; they make
// its interpreter run the driver before the program. The driver loads its modules, writes Handshake to standard error,
// and waits for one message on its standard input. It reads not one byte more than that message:
//
//	pool → driver   length (4 bytes, big endian), JSON: {"args": […], "env": {…}, "dir": "…"}
//
// The driver then removes every trace of itself, sets arguments, environment and directory as the message says, and lets
// the interpreter continue as in a cold start. The process is used once.
//
// Forked: with a backend that is a Forker, an interpreter waits in the same driver and forks for each run.
type Warm struct {
	// Name of the language and preload set, for metrics: python, python+pandas, node.
	Name string `json:"name"`
	// Args is the command that waits, for an interpreter that can not get its program later: the message then names the
	// command to run, and its args are Process.Args. Empty: Process.Args.
	Args []string `json:"args,omitempty"`
	// Env makes the interpreter run the driver.
	Env map[string]string `json:"env,omitempty"`
	// Files are the driver. They are in the sandbox when the process starts, and are removed before the program's files
	// arrive. A file of the program with the path of one of them is for a cold start, and put only then.
	Files []File `json:"files,omitempty"`
	// Handshake is the text that the driver writes when it is ready.
	Handshake string `json:"handshake"`
	// Fork: the driver can also fork.
	Fork bool `json:"fork,omitempty"`
	// Preload lists the modules to load in advance.
	Preload []string `json:"preload,omitempty"`
	// Fixed is the number of arguments that the process is started with, its own name included; the message has the
	// others. 0: all but the arguments that the user gives to the program.
	Fixed int `json:"fixed,omitempty"`
}

// Forker is implemented by a Backend that can start processes as forks of a zygote.
type Forker interface {
	// Forks reports whether processes like p can be forked into sandboxes like spec; an error of kind ErrUnsupported has
	// the reason.
	Forks(spec *Spec, p *Process) error
	// Prepare starts a zygote for processes like p, whose Warm can fork, in sandboxes like spec. The caller closes the
	// zygote.
	Prepare(ctx context.Context, spec *Spec, p *Process) (Zygote, error)
}

// Untrusted is a file of an interpreter that a user other than root may change. Forker.Prepare makes no zygote of such
// an interpreter, because a zygote executes the file outside of any sandbox.
type Untrusted struct {
	Path     string
	UID, GID uint32 // owner and group
	Mode     uint32 // permission bits
}

func (u *Untrusted) Error() string {
	return fmt.Sprintf("%s (owner %d:%d, mode %04o): a user other than root may change it, and a warm interpreter would load it "+
		"outside of any sandbox", u.Path, u.UID, u.GID, u.Mode)
}

// Zygote is an interpreter that serves any number of fresh sandboxes, one fork each.
type Zygote interface {
	// Start does the same as Instance.Start. The instance is of the same backend, made for a spec like the zygote's, and
	// has started no process in that phase. A fork of the interpreter becomes the process, with the same posture as
	// after a cold start. An error of kind ErrState says that the zygote can not serve this process; no untrusted code
	// has run then, and the caller starts the process cold.
	Start(ctx context.Context, in Instance, p *Process) (Task, error)
	// Fork does the first half of Start: it forks into the sandbox for a process like p, whose command is not known yet.
	// Until the fork is started, the caller starts no other process in that sandbox. The caller starts or closes the
	// fork before it destroys the instance.
	Fork(ctx context.Context, in Instance, p *Process) (Fork, error)
	// Done is closed when the zygote has ended, for any reason.
	Done() <-chan struct{}
	// Close ends the zygote; its running forks continue. Close may be called twice.
	Close() error
}

// Fork is a fork of a zygote that waits in a sandbox. It does not need its zygote any more.
type Fork interface {
	// Start turns the fork into the process. Errors are those of Zygote.Start, and end the fork.
	Start(ctx context.Context, p *Process) (Task, error)
	// Alive reports whether the fork still waits.
	Alive() bool
	// Close ends the fork if it was not started. Close may be called twice.
	Close() error
}

// ImageInfo is the metadata of an image.
type ImageInfo struct {
	ImageRef
	Env             []string // NAME=value
	Workdir         string
	Entrypoint, Cmd []string
}

// ImageKeeper is implemented by a Backend with an image store of its own. Its sandboxes are made of those images, by
// Root.Image, and show no host paths (Root.HostPaths, Root.Add). Other backends get the directory of an unpacked image,
// by Root.Dir.
type ImageKeeper interface {
	// LookUp returns the metadata of the image with that reference. It downloads nothing: a missing image is an error of
	// kind ErrNotFound.
	LookUp(ctx context.Context, ref string) (ImageInfo, error)
}

// Residue is a leftover of a dead supervisor.
type Residue struct {
	Kind    string `json:"kind"` // "cgroup", "lock", "directory", …
	Name    string `json:"name"`
	Removed bool   `json:"removed"`
	Problem string `json:"problem,omitempty"` // why it could not be removed
}
