// Package language has the type of a language, and all that the package of a language builds a plan with.
//
// What. A [Language] is data and a few functions: names, file names, toolchain, image, limits, and how a [Job] becomes a [Plan]. Each
// language is one value of this type in a directory of its own, pkg/executor/lang/NAME.
//
// Place in the flow. A leaf: packages of languages import it, the executor's table imports them. It imports toolchains, what they have
// prepared, and sandbox types.
//
//	Request ──► Job{Files, Entry, Tool, …} ──► Language.Inspect ──► Language.Plan ──► Plan ──► executor
//	                                           reads the host       pure
//
// Lifecycle. Languages are static data. A Job lives until its plan is made; a Plan's Prepare runs before the sandbox is made, once per run.
//
// Concurrency. Languages are never changed. A Job belongs to one goroutine.
//
// Limits. Values of languages are initialised at every start of the everyday executable: they are composite literals that the linker
// lays out, without maps, closures or function calls.
package language

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Language is everything that is known of a language: how it is recognised, what it needs, and how a request becomes a plan.
type Language struct {
	Name    string // as requests and results call it
	Title   string // as people write it
	Aliases []string
	// How a program is recognised.
	Extensions   []string // of file names, with the dot
	Interpreters []string // in a shebang
	Projects     []string // files that only a project of this language has
	// Source is the file name of code that has none, and Dialects are other names for it by alias.
	Source   string
	Dialects []Dialect
	// Mains are the names of files that start a tree of files, the likeliest first.
	Mains []string
	// Indexes make an entry of the directory they lie in: python -m has __main__.py.
	Indexes []string
	// Directory: the tree itself is what is compiled; no file of it needs to be named.
	Directory bool
	// NamedEntry: the entry may also be a name of the language, such as a class.
	NamedEntry bool
	// Sample is a small program that is planned to learn what ordinary programs need; empty is an empty line.
	Sample string
	// Toolchain is how its programs are found; nil for a language that needs none.
	Toolchain *toolchain.Description
	// Image is the image it runs on where there is no toolchain; empty is none.
	Image string
	// Variables of the user's environment decide what becomes of a run, beside those of the toolchain.
	Variables []string
	// Options are the names of the Options that it understands.
	Options []string
	// Limits and Compile are defaults where the language needs others than the common ones.
	Limits, Compile sandbox.Limits
	// Working is the memory that compiling an ordinary program takes, counted generously; 0 where nothing is compiled. See Executor.Weight.
	Working sandbox.Size

	// FindEntry, where there is one, returns the file that the project itself names as its entry; "" is none.
	FindEntry func([]File) string
	// Inspect, where there is one, reads from the host what the plan needs to know of it, and leaves that in Job.Inspected.
	Inspect func(context.Context, *Job) error
	// Plan adds phases, files and mounts to the job's plan. It has no side effects.
	Plan func(*Job) error
}

// Dialect is an alias whose code has another file name than the language's.
type Dialect struct{ Alias, Source string }

// SourceOf is the file name of code that has none, in the language as it was asked for.
func (l *Language) SourceOf(asked string) string {
	for _, d := range l.Dialects {
		if strings.EqualFold(strings.TrimSpace(asked), d.Alias) {
			return d.Source
		}
	}
	return l.Source
}

// Owns reports whether a file's name has one of the language's extensions.
func (l *Language) Owns(name string) bool {
	ext := strings.ToLower(path.Ext(name))
	return ext != "" && slices.Contains(l.Extensions, ext)
}

// Index is the file that makes an entry of a directory, or "".
func (l *Language) Index(files []File, dir string) string {
	for _, i := range l.Indexes {
		if p := path.Join(dir, i); Find(files, p) != nil {
			return p
		}
	}
	return ""
}

// Options are settings that only some languages understand. Giving one to a language that does not is an error.
type Options struct {
	Commands      []string // shell: the only programs there are
	ForbidImports []string // python: refuse a program whose syntax tree imports these
	Release       bool     // rust: optimise
	Edition       string   // rust
	Test          bool     // go, rust: run the tests even if there is a main
	Setup         []string // sql, postgres: files to run first
}
