package language

import (
	"context"
	"maps"

	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Plan is a request as a language prepares it: a sandbox, its files, and the commands that run in it one after the other.
type Plan struct {
	Language string         `json:"language"`
	Version  string         `json:"language_version"`
	Spec     sandbox.Spec   `json:"sandbox"`
	Files    []sandbox.File `json:"files"`
	Phases   []Phase        `json:"phases"`
	// Outputs are copied out after the last phase.
	Outputs sandbox.Selection `json:"outputs"`
	// Tables is a file in which the run leaves its results as data.
	Tables string   `json:"tables,omitempty"`
	Notes  []string `json:"notes,omitempty"`

	// Framework and Report are the framework of a run with Request.Tests, and the form of its report.
	Framework string `json:"framework,omitempty"`
	Report    string `json:"report,omitempty"`

	// Prepare makes the prepared files on the host that the sandbox shows, before the sandbox is created; compiling is false if the
	// cache has the products. Prepare may change the plan. The executor calls release after it has deleted the sandbox.
	Prepare func(ctx context.Context, p *Plan, compiling bool, on prepared.Hook) (release func(), err error) `json:"-"`
}

// UnusedNote is the prefix of the note on a part of the program's directory that the run does not use, with the reason.
const UnusedNote = "not used: "

// CheckedNote is the prefix of the note on what a check has checked.
const CheckedNote = "checked: "

// HintNote is the prefix of the note on what would probably have helped a program that failed.
const HintNote = "hint: "

// The names of phases.
const (
	PhaseInstall = "install"
	PhaseCompile = "compile"
	PhaseRun     = sandbox.DefaultPhase
)

// Phase is one command of a plan.
type Phase struct {
	Process sandbox.Process `json:"process"`
	// Produces are the files or directories that a compiler makes: later phases need them, and the cache keeps only them.
	Produces []string `json:"produces,omitempty"`
	// Check runs after a failed phase on the original files, and fails if the program never compiled. Suspect reads the file to
	// check from the phase's output: its last word is the file, and all words are added to Check's arguments. Without a file of the
	// program, Check does not run.
	Check   *sandbox.Process             `json:"check,omitempty"`
	Suspect func(stderr []byte) []string `json:"-"`
	// Again is the second command of the phase. It runs if the first failed and Misled finds that prepared files may be the cause.
	Again  *sandbox.Process         `json:"again,omitempty"`
	Misled func(stderr []byte) bool `json:"-"`
	// SyntaxExit is the exit code of a kit tool for a program with syntax errors.
	SyntaxExit int `json:"syntax_exit,omitempty"`
	// NoDiskExit is the exit code of a kit tool that a full disk stopped. The program's exit code is then 1.
	NoDiskExit int `json:"no_disk_exit,omitempty"`
	// OutOfMemory recognises the language's own message for a full heap.
	OutOfMemory func(*sandbox.Result) bool `json:"-"`
}

// RunAgain gives the phase a second command that differs from the first by one variable.
func (p *Phase) RunAgain(misled func(stderr []byte) bool, name, value string) {
	process := p.Process
	process.Env = maps.Clone(process.Env)
	process.Env[name] = value
	p.Again, p.Misled = &process, misled
}

// StartCold removes the warm starts from all processes of the plan.
func (p *Plan) StartCold() {
	for i := range p.Phases {
		p.Phases[i].Process.Warm = nil
	}
}

// Paths in the sandbox.
const (
	// BuildDir is the directory of compilers' output.
	BuildDir = sandbox.TmpDir + "/build"
	// CodeDir is the directory of the program if /workspace is a volume.
	CodeDir = sandbox.HomeDir + "/code"
	// ToolDir is the directory of sandbox-run's tools.
	ToolDir = "/opt/sandbox-run"
	// KitPath is the path of the kit.
	KitPath = ToolDir + "/sandbox-kit"
	// KitCopy is the path of a copy of the kit, for sandboxes that can show nothing of the host.
	KitCopy = sandbox.HomeDir + "/.sandbox-run/sandbox-kit"
)
