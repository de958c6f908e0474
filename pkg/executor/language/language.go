// Package language has the type of a language, and the functions with which the package of a language makes a plan.
//
// What. A [Language] is data and a few functions: names, file names, toolchain, image, limits, and how a [Job] becomes a [Plan]. Each
// language is one value of this type in a directory of its own, pkg/executor/lang/NAME.
//
// Place in the flow. A leaf: packages of languages import it, and the executor's table imports them. It imports toolchains,
// prepared files and the types of sandboxes.
//
//	Request ──► Job{Files, Entry, Tool, …} ──► Language.Inspect ──► Language.Plan ──► Plan ──► executor
//	                                           reads the host       pure
//
// Lifecycle. Languages are static data. A Job lives until its plan is made; a Plan's Prepare runs before the sandbox is created,
// once per run.
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

// Language describes a language: how to recognise it, what it needs, and how a request becomes a plan.
type Language struct {
	Name    string // in requests and results
	Title   string // for people
	Aliases []string
	// How the executor recognises a program.
	Extensions   []string // of file names, with the dot
	Interpreters []string // in a shebang
	Projects     []string // files that only a project of this language has
	// Source is the file name of code without a name, and Dialects has other names by alias.
	Source   string
	Dialects []Dialect
	// Mains are names of entry files, the likeliest first.
	Mains []string
	// Indexes are files that make their directory an entry: python -m has __main__.py.
	Indexes []string
	// Directory means that the compiler takes the whole tree, so that the request need not name a file.
	Directory bool
	// NamedEntry means that the entry may also be a name of the language, such as a class.
	NamedEntry bool
	// Sample is a small program whose plan shows what ordinary programs need; empty: the number 0.
	Sample string
	// Toolchain finds the programs of the language; nil for a language that needs none.
	Toolchain *toolchain.Description
	// Tier is the lowest tier of sandboxes in which the language runs; empty: any.
	Tier sandbox.Tier
	// Image is the image for machines without the toolchain; empty: none.
	Image string
	// Variables are the user's environment variables that change a run, beside those of the toolchain.
	Variables []string
	// Options are the names of the Options that the language has.
	Options []string
	// Limits and Compile are the defaults that differ from the common ones.
	Limits, Compile sandbox.Limits
	// Test are the defaults of a run with Options.Test that differ from Limits.
	Test sandbox.Limits
	// Working is the memory that compiling an ordinary program takes, rounded up; 0 without a compiler. See Executor.Weight.
	Working sandbox.Size

	// FindEntry, if set, returns the entry that the project's own files name: a file, or a name for which Plan finds the code. asked is the
	// entry of the request; "": the project's default. It returns "" without such an entry.
	FindEntry func(files []File, asked string) string
	// Inspect, if set, reads from the host what the plan needs, and stores it in Job.Inspected.
	Inspect func(context.Context, *Job) error
	// Packages, if set, returns how the packages that the program declares are installed; nil if it declares none. It has no side effects.
	Packages func(*Job) (*Packages, error)
	// Imports is the directory of a layer from which the driver of a session can import; empty: a session takes no packages later.
	Imports string
	// Plan adds phases, files and mounts to the job's plan. It has no side effects.
	Plan func(*Job) error
	// Session, if set, does the same for a session, whose one phase is that of a driver (AddDriver); the job may have no code.
	Session func(*Job) error
	// Cells, if set, returns the Composer of a new session, for a language whose cells are compiled programs. Session is nil then.
	Cells func() Composer
	// CellsDir is the directory of a project in which its cells are compiled, so that they can import the project's packages.
	CellsDir string
}

// Dialect is an alias with another file name for code.
type Dialect struct{ Alias, Source string }

// SourceOf returns the file name of code without a name, for the language name in the request.
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

// Index returns the file that makes a directory an entry, or "".
func (l *Language) Index(files []File, dir string) string { return FirstFile(files, dir, l.Indexes) }

// Options are settings of some languages. A language refuses an option that it does not have.
type Options struct {
	Commands         []string // shell: the only programs in the sandbox
	ForbidImports    []string // python: refuse a program whose syntax tree imports these
	Release          bool     // rust: optimise
	Edition          string   // rust
	Test             bool     // go, rust, python, javascript, java: run the tests even if there is a main
	EnableAssertions bool     // java: execute assert statements
	Module           string   // python: run this module, as python -m does
	Setup            []string // sql, postgres: files to run first

	Deps                []string // packages, in the form of the language's tool
	Install             bool     // install what the program declares, too
	Lock                string   // text of a Lock: install exactly this
	ReturnLock          bool     // the result has the text of the lock
	Frozen              bool     // refuse an installation without a lock
	DepsRefresh         bool     // do not use what an earlier installation resolved
	AllowInstallScripts bool     // build packages from source; without a network
}
