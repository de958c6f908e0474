// Package app wires the parts of the executables: the backends by name, the executor, the image store, and facts about the machine.
//
// Place in the flow. Only internal/cli and packages below cmd import it. It imports every light backend, so that no other package has to;
// a new one is one line in a table here. A heavy backend has only its name here, and the executables that link it register it.
//
// Lifecycle. Open makes a backend, which the caller closes. OpenEarly starts to open one in the background.
//
// Concurrency. The package has no state but the registered backends; main calls Register before anything else. An EarlyBackend belongs to
// one goroutine.
//
// Limits. native, process and oci exist on Linux only; elsewhere Open returns an error, and everything still compiles.
//
// Automatic choice (choose.go). A pure function over findings: candidates in the order of their speed; the first that passes
// Isolation.Check is used, and later ones are not examined. Where the choice could be a backend that only sandbox-rund has (not root, not
// Linux, a tier above container), it is made before standard input is read, because input that was read can not be handed over.
package app

import (
	"errors"
	"runtime"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The backends, by their names in --backend.
const (
	Native  = "native"
	Process = "process"
	OCI     = "oci"
	Docker  = "docker" // heavy: registered by main, not linked here
)

// Options configures a backend.
type Options struct {
	Eager   bool          // start to make the first sandbox before it is requested
	Runtime string        // of a backend that drives another program; empty means its default
	Early   *EarlyBackend // a backend that is being opened already; nil means none
	// DockerHost is the address of the Docker or Podman daemon; empty means to search for one.
	DockerHost string
	// DiskFloor is the free space to leave on the disk of scratches; 0 means the backend's default.
	DiskFloor sandbox.Size
	// Image is the root of sandboxes without an image, for a backend that needs images.
	Image string
}

// Opener makes a backend. The caller closes it.
type Opener func(Options) (sandbox.Backend, error)

// registered are the heavy backends that this executable links.
var registered = map[string]Opener{}

// Register adds a heavy backend to this executable. Call it from main, before any other function of this package.
func Register(name string, open Opener) { registered[name] = open }

// Backends returns the names of the backends of this executable, the fastest first.
func Backends() []string {
	return slices.DeleteFunc(AllBackends(), func(name string) bool { return name == Docker && registered[name] == nil })
}

// AllBackends returns the names of the backends of all our executables, the fastest first.
func AllBackends() []string { return []string{Native, Process, OCI, Docker} }

// InOtherExecutable reports whether only another executable has the backend.
func InOtherExecutable(name string) bool {
	return slices.Contains(AllBackends(), name) && !slices.Contains(Backends(), name)
}

// CheckRuntime refuses a runtime for a backend that uses none.
func CheckRuntime(backend, runtime string) error {
	if runtime == "" || backend == OCI || backend == Docker || backend == Auto {
		return nil
	}
	return sandbox.Invalid("runtime", "the %s backend uses no runtime; use --backend %s", backend, OCI)
}

// CheckBackend refuses a name that no backend has.
func CheckBackend(name string) error {
	if name == Auto || slices.Contains(AllBackends(), name) {
		return nil
	}
	return sandbox.Invalid("backend", "unknown backend %q; use one of %s, %s", name, Auto, strings.Join(AllBackends(), ", "))
}

// Open makes the backend of that name. The caller closes it. It blocks until an early backend is open.
func Open(name string, o Options) (sandbox.Backend, error) {
	if err := CheckBackend(name); err != nil {
		return nil, err
	}
	if name == Auto {
		return nil, sandbox.Invalid("backend", "%s names no backend; choose one", name)
	}
	if InOtherExecutable(name) {
		return nil, &sandbox.Error{
			Backend: name, Op: "open", Kind: sandbox.ErrUnsupported, Err: errors.New("this executable does not have it"),
		}
	}
	if open := registered[name]; open != nil {
		return open(o)
	}
	if b, begun, err := o.Early.take(name); begun {
		return b, err
	}
	return open(name, o)
}

// EarlyBackend is the native backend being opened while the caller finds out whether it needs one. It is not safe for concurrent use.
type EarlyBackend struct {
	opened  chan struct{}
	backend sandbox.Backend
	err     error
	over    bool // taken or closed
}

// OpenEarly starts to open the native backend, with Eager set, and returns at once. The caller closes the EarlyBackend, used or not.
func OpenEarly() *EarlyBackend {
	a := &EarlyBackend{opened: make(chan struct{})}
	go func() {
		defer close(a.opened)
		a.backend, a.err = open(Native, Options{Eager: true})
	}()
	runtime.Gosched() // opening takes longer than the caller's work, and starting another thread takes time
	return a
}

// take returns the early backend, if it has that name and was not taken before. The caller then closes the backend.
func (a *EarlyBackend) take(name string) (b sandbox.Backend, begun bool, err error) {
	if a == nil || a.over || name != Native {
		return nil, false, nil
	}
	a.over = true
	<-a.opened
	return a.backend, true, a.err
}

// Close closes a backend that was not taken. It may be called twice, and on nil.
func (a *EarlyBackend) Close() error {
	if a == nil || a.over {
		return nil
	}
	a.over = true
	if <-a.opened; a.backend == nil {
		return nil
	}
	return a.backend.Close()
}

// Fact is a property of this machine that helps to understand which controls it can enforce.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}
