package sandbox

import (
	"context"
	"fmt"
	"io"
	"iter"
	"syscall"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
)

// Backend builds sandboxes of one kind. Implementations are safe for concurrent use.
type Backend interface {
	// Name is what --backend calls it.
	Name() string
	// Probe says what this machine can enforce through this backend, without running anything foreign.
	Probe(ctx context.Context) Isolation
	// Create builds a sandbox that is ready to start processes. The spec is complete and valid.
	// The caller owns the instance and must Destroy it.
	Create(ctx context.Context, spec *Spec) (Instance, error)
	// Collect finds what dead supervisors left behind and, unless dryRun, removes it.
	Collect(ctx context.Context, dryRun bool) ([]Residue, error)
	// Close releases what the backend holds. It is called after every instance is destroyed; twice is fine.
	Close() error
}

// Instance is one sandbox of a backend.
type Instance interface {
	// Isolation is what this sandbox really has.
	Isolation() Isolation
	// Start runs a process. It returns once the program was executed, or says why it could not be
	// (an error of kind ErrNotStarted when it is the program's own fault).
	Start(ctx context.Context, p *Process) (Task, error)
	// Destroy kills whatever runs and removes everything. It may be called in any state, twice.
	Destroy(ctx context.Context) error
}

// Task is one process that was started. The caller reads Stdout and Stderr, calls Wait once the
// process may have ended, and always Finish.
type Task interface {
	// Stdin is where the process reads from; with a terminal, what is typed. Closing it ends the input.
	Stdin() io.WriteCloser
	Stdout() io.ReadCloser
	// Stderr is nil when the process has a terminal.
	Stderr() io.ReadCloser
	// Signal reaches the whole process tree of the phase (scope Tree) or the process alone.
	Signal(sig syscall.Signal, scope Scope) error
	// Kill ends the whole phase at once and can not be resisted. It may be called in any state, twice.
	Kill() error
	// Wait blocks until the process has ended. Any number of callers get the same answer.
	Wait() (Exit, error)
	// Finish is called after Wait: it ends what the process left running, if it was the last of its
	// phase, removes the phase's cgroup, and returns its final sample. Bounded in time; idempotent.
	Finish(ctx context.Context) (monitor.Sample, error)
	monitor.Source
}

// Scope says whom a signal is for.
type Scope int

// The scopes of a signal.
const (
	Main Scope = iota // the process that was started
	Tree              // everything in its phase
)

// Terminal is what a Task is too when its process has a terminal.
type Terminal interface {
	// Resize tells the terminal its new size.
	Resize(TTY) error
}

// Timed is what a Task is too when its backend sees for itself how long the process ran. What the
// Manager hears is late at both ends.
type Timed interface {
	// Took is called after Wait; false when it is not known.
	Took() (time.Duration, bool)
}

// Watched is what a Task is too when whoever watches over its process inside can be lost.
type Watched interface {
	// Lost is called after Wait: the watcher ended first and took the process along, so the exit is not the process's own.
	Lost() bool
}

// Witness is what a Task is too when its backend sees which system calls were refused.
type Witness interface {
	// Refusals yields each kind of refused call when it is first seen, and ends with Finish at the latest.
	Refusals() iter.Seq[Violation]
	// Refused is called after Finish: what was refused, or why that is not known.
	Refused() (violations []Violation, unknown string)
}

// Measured is what a Task is too when its backend has looked at the started program.
type Measured interface {
	// Isolation is what the program was found to have; after Finish, with the limits that were in force at its end. False when it was not
	// looked at.
	Isolation() (iso Isolation, measured bool)
}

// Resettable is what a Task is too when its peaks can be counted anew: what came before is then not part of them.
type Resettable interface {
	ResetPeaks() error
}

// Warm says how a process of a language can be made ready before anybody has asked for it, without having seen anything foreign. There
// are two ways, and what is run is the same by both: the very command of a cold start.
//
// Started ahead: the process is started in a sandbox of its own with the variables of Env besides its own, by which its interpreter runs the
// driver before it looks at the program. The driver loads what it can, writes Handshake to standard error, and waits for one message on
// its standard input, of which it reads not one byte more:
//
//	pool → driver   length (4 bytes, big endian), JSON: {"args": […], "env": {…}, "dir": "…"}
//
// It then takes back every trace of itself, sets arguments, environment and directory to what the message says, and lets the interpreter
// go on as if nothing had been. The process is used once.
//
// Forked: where the backend is a Forker, from an interpreter that waits in the same driver and forks for each run.
type Warm struct {
	// Name of the language and flavour, for metrics: python, python+pandas, node.
	Name string `json:"name"`
	// Args is the command that waits, where an interpreter can not be told of its program later: what runs is named by the message then, whose
	// args are Process.Args. Empty is Process.Args.
	Args []string `json:"args,omitempty"`
	// Env is what makes the interpreter run the driver.
	Env map[string]string `json:"env,omitempty"`
	// Files are the driver: they are in the sandbox when the process starts, and are gone before the program's own are put there.
	Files []File `json:"files,omitempty"`
	// Handshake is what the driver writes when it is ready.
	Handshake string `json:"handshake"`
	// Fork: the driver can fork, too.
	Fork bool `json:"fork,omitempty"`
	// Preload are modules to load beforehand.
	Preload []string `json:"preload,omitempty"`
	// Fixed is how many of the process's arguments it is started with, its own name included; the rest comes by the message. 0 is all but
	// those that the user gave to the program.
	Fixed int `json:"fixed,omitempty"`
}

// Forker is what a Backend is too when it can start processes by forking a warm interpreter.
type Forker interface {
	// Forks says whether processes like p can be forked into sandboxes like spec at all; an error of kind ErrUnsupported says why not.
	Forks(spec *Spec, p *Process) error
	// Prepare starts a zygote for processes like p, which has a Warm that can fork, in sandboxes like spec. The caller closes it.
	Prepare(ctx context.Context, spec *Spec, p *Process) (Zygote, error)
}

// Untrusted is a file of an interpreter that a user other than root may change. Forker.Prepare makes no zygote of such an interpreter: it would
// be executed outside of any sandbox.
type Untrusted struct {
	Path     string
	UID, GID uint32 // owner and group
	Mode     uint32 // permission bits
}

func (u *Untrusted) Error() string {
	return fmt.Sprintf("%s (owner %d:%d, mode %04o): a user other than root may change it, and a warm interpreter would load it outside of any sandbox", u.Path, u.UID, u.GID, u.Mode)
}

// Zygote is a warm interpreter that serves any number of fresh sandboxes, one fork each.
type Zygote interface {
	// Start does what Instance.Start does, for an instance of the same backend that was made for a spec like the zygote's and in which nothing
	// has been started in that phase: a fork of the interpreter becomes the process, with the very posture a cold start has. An error of kind
	// ErrState says that it can not serve this one, or any more; nothing foreign has run then, and the caller starts it cold.
	Start(ctx context.Context, in Instance, p *Process) (Task, error)
	// Fork does the first half of that: there is a fork in the sandbox, for a process like p of which nothing is known yet. Nothing is to be
	// started in the sandbox while it waits but itself. The caller starts or closes it, before the instance is destroyed.
	Fork(ctx context.Context, in Instance, p *Process) (Fork, error)
	// Done is closed when the zygote has ended, for whatever reason.
	Done() <-chan struct{}
	// Close ends the zygote; forks that run go on. Twice is fine.
	Close() error
}

// Fork is a fork of a warm interpreter that waits in a sandbox. It does not need its zygote any more.
type Fork interface {
	// Start has it become the process. Errors are those of Zygote.Start, and end it.
	Start(ctx context.Context, p *Process) (Task, error)
	// Alive says whether it still waits.
	Alive() bool
	// Close ends it, if it was not started. Twice is fine.
	Close() error
}

// ImageInfo is what an image says of itself.
type ImageInfo struct {
	ImageRef
	Env             []string // NAME=value
	Workdir         string
	Entrypoint, Cmd []string
}

// ImageKeeper is what a Backend is too when it keeps images of its own: its sandboxes are made of those, by Root.Image, and
// show nothing of the host (Root.HostPaths, Root.Add). Others are given the directory of an unpacked image, by Root.Dir.
type ImageKeeper interface {
	// LookUp says what the image of that reference is. It downloads nothing: an image that is not there is an error
	// of kind ErrNotFound.
	LookUp(ctx context.Context, ref string) (ImageInfo, error)
}

// Residue is something a dead supervisor left behind.
type Residue struct {
	Kind    string `json:"kind"` // "cgroup", "lock", "directory", …
	Name    string `json:"name"`
	Removed bool   `json:"removed"`
	Problem string `json:"problem,omitempty"` // why it could not be removed
}
