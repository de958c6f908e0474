package executor

import (
	"io"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/executor/lang/python"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/template"
)

// Request is a program to run and what it may use. Code, Files or a Template is required.
type Request struct {
	// Language is a name or an alias; if it is empty, file names, a shebang or project files decide.
	Language string
	// Code is a program in one file with the name Name (by default that of the language: main.py).
	Code string
	Name string
	// Files is a tree of files. Paths are relative, with slashes.
	Files []File
	// Entry is the file of the tree that starts the program, or a directory if the language allows that.
	Entry string
	// HostDir is the directory of this machine that Files were read from; "" for none. A language may show a part of it, read-only, that is
	// too large to copy: Python shows the packages of the project's virtual environment.
	HostDir string

	// Template and Variables make the program. The code, or the only file, is the variable code.
	Template  *template.Template
	Variables map[string]any

	// Image replaces this machine's toolchains: a reference that Options.Images can find.
	Image string

	Args  []string
	Stdin io.Reader // nil: empty
	Env   map[string]string

	Limits        sandbox.Limits // of the run; a zero field has the language's default, then the sandbox's
	CompileLimits sandbox.Limits
	Policy        Policy
	Options       LanguageOptions
	Tests         *language.Tests // goes with Options.Test; nil: tests print as their framework does

	// Inputs are further files in the working directory that are not part of the program.
	Inputs []File
	// Outputs are the files to copy out: patterns as for sandbox.Selection, or relative to the working directory.
	Outputs sandbox.Selection
	// NoCache compiles again and adds nothing to the cache.
	NoCache bool

	// Asker is the requester, for the audit log. Evidence sets Result.Evidence even without an audit log.
	Asker    Asker
	Evidence bool

	// Lower reduces the limits of the run and of compilers, defaults included, before the plan is made, and returns notes on what it
	// lowered.
	Lower func(run, compile *sandbox.Limits) (notes []string)
	// OnPlan is called with the plan before the sandbox is created; OnEvent with every event of every phase, in order.
	OnPlan func(*Plan)
	// OnReady is called with the isolation of the sandbox after its creation, before a program runs in it.
	OnReady func(*Plan, sandbox.Isolation)
	OnEvent func(sandbox.Event)
	Spill   *sandbox.Spill
	// OutputSpace stores kept output beyond sandbox.OutputMemory; nil: in memory. A caller that sets it closes the Result.
	OutputSpace *sandbox.OutputSpace
	TTY         *sandbox.TTY
	Resize      <-chan sandbox.TTY
	Signals     <-chan syscall.Signal // for the program, while it runs

	session bool            // of a session: it needs no code
	layer   *language.Layer // that a session's sandbox shows; nil: the packages are looked for
	there   []File          // of Files, by their paths: they are not copied
}

// File is one file of a program.
type File = language.File

// Environment returns the name of the virtual environment in HostDir that a run on this machine may use, and a server can not see; "" for
// none.
func (r *Request) Environment() string {
	if r.HostDir == "" {
		return ""
	}
	env := python.EnvironmentIn(r.HostDir)
	if language.HasDirectory(r.Files, env) {
		return "" // sent with the files
	}
	return env
}

// ValidateOutput refuses a pattern of outputs, relative to /workspace or absolute, that fails after every run.
func ValidateOutput(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil {
		return sandbox.Invalid("out", "%.80q: %w", pattern, err)
	}
	inside := absolute(pattern)
	if pattern == "" || slices.Contains(strings.Split(pattern, "/"), "..") ||
		!slices.ContainsFunc(sandbox.ScratchDirs(), func(d string) bool { return strings.HasPrefix(inside+"/", d+"/") }) {
		return sandbox.Invalid("out", "%.80q names no files below %s; write it like *.png or results/**",
			pattern, strings.Join(sandbox.ScratchDirs(), ", "))
	}
	return sandbox.ValidatePattern(inside)
}

// absolute returns a pattern of outputs as an absolute one. An absolute pattern stays as it was given.
func absolute(pattern string) string {
	if path.IsAbs(pattern) {
		return pattern
	}
	return path.Join(sandbox.WorkspaceDir, pattern)
}

// Weight is the share of the machine that admission counts for a run.
type Weight struct {
	Memory sandbox.Size
	CPUs   float64
}

// copies is how often kept output of both streams is in this process's memory, at most, without space on disk: as it was printed,
// and in the JSON document.
const copies = 2 * 2

// ownMemory is the memory of this process that a run takes if output has space on disk: both streams, the compilers' output, and
// buffers.
const ownMemory = 2*sandbox.OutputMemory + 2*sandbox.MiB

// Weight returns what a request may take, without planning it: the larger of its phases, and this process's memory for its
// output.
//
// A program counts with all of its memory. A compiler counts with what compilers of its language need in practice, unless the
// request sets a limit: the default limit is far higher, for rare programs, and counting it would let a small machine compile
// only one program at a time. The server checks the machine's free memory for the rare compiler that takes more.
func (e *Executor) Weight(req Request) Weight {
	lang := &Language{}
	if l, err := e.lookUp(req.Language); err == nil && req.Language != "" {
		lang = l
	} else if j, err := e.newJob(&req); err == nil {
		lang = j.Language // the run reports an invalid request
	}
	run, compile, _ := completeLimits(&req, lang, e.manager.Machine())
	w := Weight{run.Memory, run.CPUs}
	if lang.Working > 0 {
		most := compile.Memory
		if req.CompileLimits.Memory == 0 {
			most = min(most, lang.Working)
		}
		w.Memory = max(w.Memory, most)
	}
	if asksForPackages(&req.Options) {
		w.Memory = max(w.Memory, installWorking)
	}
	if req.OutputSpace != nil {
		w.Memory += min(copies*run.Output, ownMemory)
	} else {
		w.Memory += copies * run.Output
	}
	return w
}
