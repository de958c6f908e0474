package executor

import (
	"io"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/template"
)

// Request is a program to run and what it may use. Only Code, Files or a Template must be given.
type Request struct {
	// Language by name or alias; empty is found out from file names, a shebang or project files.
	Language string
	// Code is a program in one file, called Name (by default what the language calls it: main.py).
	Code string
	Name string
	// Files are a tree. Paths are relative, with slashes.
	Files []File
	// Entry is the file of the tree that starts the program, or a directory where the language has such.
	Entry string

	// Template makes the program of Variables. The code, or the only file, is its variable code.
	Template  *template.Template
	Variables map[string]any

	// Image is what it runs on in place of this machine's toolchains: a reference, as Options.Images knows it.
	Image string

	Args  []string
	Stdin io.Reader // nil is empty
	Env   map[string]string

	Limits        sandbox.Limits // of the run; what is zero is the language's default, then the sandbox's
	CompileLimits sandbox.Limits
	Policy        Policy
	Options       LanguageOptions

	// Inputs are further files to have in the working directory, which are not part of the program.
	Inputs []File
	// Outputs are brought back: patterns as for sandbox.Selection, or relative to the working directory.
	Outputs sandbox.Selection
	// NoCache compiles even what was compiled before, and keeps nothing.
	NoCache bool

	// Asker is who asked, for the audit log. Evidence asks for Result.Evidence even where there is none.
	Asker    Asker
	Evidence bool

	// Lower brings the limits of the run and of compilers down before a plan is made with them, defaults included, and says what it lowered.
	Lower func(run, compile *sandbox.Limits) (notes []string)
	// OnPlan sees the plan before anything is made; OnEvent is told everything that happens, in order, of every phase.
	OnPlan func(*Plan)
	// OnReady is told when the sandbox is made, and how strong it is; nothing has run in it yet.
	OnReady func(*Plan, sandbox.Isolation)
	OnEvent func(sandbox.Event)
	Spill   *sandbox.Spill
	// OutputSpace holds kept output beyond sandbox.OutputMemory; nil: it is held in memory. A caller that sets it closes the Result.
	OutputSpace *sandbox.OutputSpace
	TTY         *sandbox.TTY
	Resize      <-chan sandbox.TTY
	Signals     <-chan syscall.Signal // for the program, while it runs
}

// File is one file of a program.
type File = language.File

// ValidateOutput refuses a pattern of outputs, relative to /workspace or absolute, that could only fail once the program has run.
func ValidateOutput(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil {
		return sandbox.Invalid("out", "%.80q: %w", pattern, err)
	}
	inside := pattern
	if !path.IsAbs(inside) {
		inside = path.Join(sandbox.WorkspaceDir, inside)
	}
	if pattern == "" || slices.Contains(strings.Split(pattern, "/"), "..") ||
		!slices.ContainsFunc(sandbox.ScratchDirs(), func(d string) bool { return strings.HasPrefix(inside+"/", d+"/") }) {
		return sandbox.Invalid("out", "%.80q names no files below %s; write it like *.png or results/**",
			pattern, strings.Join(sandbox.ScratchDirs(), ", "))
	}
	return sandbox.ValidatePattern(inside)
}

// Weight is what a run counts for where it is decided how many there may be at a time.
type Weight struct {
	Memory sandbox.Size
	CPUs   float64
}

// copies is how often what is kept of each of the two streams is in our own memory at the most where it has no space on disk: as it was
// printed, and in the document that is made of it.
const copies = 2 * 2

// ownMemory is what a run takes of our own memory where output has space on disk: both streams, the compilers' output, and buffers.
const ownMemory = 2*sandbox.OutputMemory + 2*sandbox.MiB

// Weight is what a request may take, without planning it: the larger of what its phases do, and what we keep of its output meanwhile.
//
// A program may use all of its memory, and is counted for that. A compiler may use far more than it ever does: its limit is there for
// the one in a thousand. It is counted for what compilers of its language are seen to need, unless the request itself says how much it
// is to have. Otherwise a small machine would compile one program at a time and be idle for the rest; what the one in a thousand takes
// beyond, the server finds out by looking at what the machine has left.
func (e *Executor) Weight(req Request) Weight {
	lang := &Language{}
	if l, err := e.lookUp(req.Language); err == nil && req.Language != "" {
		lang = l
	} else if j, err := e.newJob(&req); err == nil {
		lang = j.Language // of a request that is wrong, the run says so
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
	if req.OutputSpace != nil {
		w.Memory += min(copies*run.Output, ownMemory)
	} else {
		w.Memory += copies * run.Output
	}
	return w
}
