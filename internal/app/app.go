// Package app puts the parts together for the executables: which backends there are, what they
// are called, and what is known of the machine they run on.
//
// Place in the flow. Only packages below cmd import it; it imports every backend, so that nothing
// else has to. A further backend is one line in a table here.
//
// Lifecycle. Open makes a backend, which the caller closes.
//
// Concurrency. Nothing here has state.
//
// Limits. native and process exist on Linux only; elsewhere Open says so, and everything still
// compiles.
package app

import (
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The backends, by the names --backend knows.
const (
	Native  = "native"
	Process = "process"
)

// DefaultBackend is used when none is named. The weaker one is never chosen in its place.
const DefaultBackend = Native

// Backends lists the names of all backends, the default one first.
func Backends() []string { return []string{Native, Process} }

// Known refuses a name that is no backend's.
func Known(name string) error {
	if slices.Contains(Backends(), name) {
		return nil
	}
	return sandbox.Invalid("backend", "unknown backend %q; one of %s", name, strings.Join(Backends(), ", "))
}

// Open makes the backend of that name. An eager one starts on its first sandbox before it is asked
// for. The caller closes it.
func Open(name string, eager bool) (sandbox.Backend, error) {
	if err := Known(name); err != nil {
		return nil, err
	}
	return open(name, eager)
}

// Fact is something about this machine that helps to understand what it can enforce.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}
