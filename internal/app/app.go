// Package app puts the parts together for the executables: which backends there are, what they
// are called, and what is known of the machine they run on.
//
// Place in the flow. Only internal/cli and what is below cmd import it; it imports every backend that is
// light, so that nothing else has to. A further one is one line in a table here. One that is heavy has its
// name here, and is registered by the executables that link it.
//
// Lifecycle. Open makes a backend, which the caller closes. OpenAhead begins to.
//
// Concurrency. Nothing here has state but the registered backends (Register is for main, before anything else) and an Ahead,
// which is its caller's alone.
//
// Limits. native, process and oci exist on Linux only; elsewhere Open says so, and everything still
// compiles.
package app

import (
	"errors"
	"runtime"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The backends, by the names --backend knows.
const (
	Native  = "native"
	Process = "process"
	OCI     = "oci"
	Docker  = "docker" // takes heavy libraries: registered, not linked here
)

// Options are how a backend is opened.
type Options struct {
	Eager   bool   // it starts on its first sandbox before it is asked for
	Runtime string // of a backend that drives another program; empty is its default
	Ahead   *Ahead // what was begun before; nil is nothing
	// DockerHost is the address of Docker's daemon, or Podman's; empty looks for one.
	DockerHost string
	// DiskFloor is the free space that the disk below scratches keeps; 0 is the backend's default.
	DiskFloor sandbox.Size
	// Image is the root of sandboxes that name none, for a backend that makes them of images.
	Image string
}

// Opener makes a backend.
type Opener func(Options) (sandbox.Backend, error)

// registered are the heavy backends of this executable.
var registered = map[string]Opener{}

// Register gives this executable a heavy backend.
func Register(name string, open Opener) { registered[name] = open }

// Backends lists the names of the backends that this executable has, the fastest first.
func Backends() []string {
	names := []string{Native, Process, OCI}
	if registered[Docker] != nil {
		names = append(names, Docker)
	}
	return names
}

// AllBackends lists the names of all backends there are, in whichever executable, the fastest first.
func AllBackends() []string { return []string{Native, Process, OCI, Docker} }

// Elsewhere reports whether a name is that of a backend which only another executable has.
func Elsewhere(name string) bool {
	return slices.Contains(AllBackends(), name) && !slices.Contains(Backends(), name)
}

// TakesRuntime refuses a runtime for a backend that uses none.
func TakesRuntime(backend, runtime string) error {
	if runtime == "" || backend == OCI || backend == Docker || backend == Auto {
		return nil
	}
	return sandbox.Invalid("runtime", "the %s backend uses none; it is for --backend %s", backend, OCI)
}

// Known refuses a name that is no backend's.
func Known(name string) error {
	if name == Auto || slices.Contains(AllBackends(), name) {
		return nil
	}
	return sandbox.Invalid("backend", "unknown backend %q; one of %s, %s", name, Auto, strings.Join(AllBackends(), ", "))
}

// Open makes the backend of that name. The caller closes it.
func Open(name string, o Options) (sandbox.Backend, error) {
	if err := Known(name); err != nil {
		return nil, err
	}
	if name == Auto {
		return nil, sandbox.Invalid("backend", "%s is not one by itself", name)
	}
	if Elsewhere(name) {
		return nil, &sandbox.Error{
			Backend: name, Op: "open", Kind: sandbox.ErrUnsupported, Err: errors.New("it is not part of this executable"),
		}
	}
	if open := registered[name]; open != nil {
		return open(o)
	}
	if b, begun, err := o.Ahead.take(name); begun {
		return b, err
	}
	return open(name, o)
}

// Ahead is the native backend being opened, while the caller finds out whether it needs one. It is not safe for concurrent use.
type Ahead struct {
	opened  chan struct{}
	backend sandbox.Backend
	err     error
	over    bool // somebody has it, or nobody ever will
}

// OpenAhead begins to open the native backend, eagerly. The caller closes what comes of it, used or not.
func OpenAhead() *Ahead {
	a := &Ahead{opened: make(chan struct{})}
	go func() {
		defer close(a.opened)
		a.backend, a.err = open(Native, Options{Eager: true})
	}()
	runtime.Gosched() // it has the longer way to go, and another thread takes a while to come
	return a
}

// take gives away what was begun, if it is of that name and nobody has it yet.
func (a *Ahead) take(name string) (b sandbox.Backend, begun bool, err error) {
	if a == nil || a.over || name != Native {
		return nil, false, nil
	}
	a.over = true
	<-a.opened
	return a.backend, true, a.err
}

// Close closes a backend that nobody has taken. Twice, and of nothing, is fine.
func (a *Ahead) Close() error {
	if a == nil || a.over {
		return nil
	}
	a.over = true
	if <-a.opened; a.backend == nil {
		return nil
	}
	return a.backend.Close()
}

// Fact is something about this machine that helps to understand what it can enforce.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}
