package sandbox

import (
	"context"
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

// Freezer is what an Instance is too when it can stop and continue everything in it. A frozen
// sandbox can still be killed.
type Freezer interface {
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error
}

// Warm describes how a language is kept warm: an interpreter that was started, loaded what
// programs will need, never saw foreign code, and forks a child per run.
type Warm struct {
	Args      []string // the interpreter and its flags
	Driver    []byte   // the program it runs: loads, says it is ready, forks on request
	Handshake string   // what the driver writes when it is ready
	Preload   []string // modules to load
}

// Forker is what a Backend is too when it can start processes by forking a warm interpreter.
type Forker interface {
	// Prepare starts a zygote. The caller closes it.
	Prepare(ctx context.Context, warm Warm) (Zygote, error)
}

// Zygote is a warm interpreter that serves any number of fresh sandboxes, one fork each.
type Zygote interface {
	// Fork starts p in a fresh sandbox made for spec, with the very posture a cold start has.
	Fork(ctx context.Context, spec *Spec, p *Process) (Instance, Task, error)
	// Close ends the zygote; forks that run go on. Twice is fine.
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
