package language

import (
	"context"
	"maps"

	"github.com/sandbox-run/sandbox-run/pkg/executor/prepared"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Plan is what a language makes of a request: a sandbox, the files in it, and the commands that run there one after the other.
type Plan struct {
	Language string         `json:"language"`
	Version  string         `json:"language_version"`
	Spec     sandbox.Spec   `json:"sandbox"`
	Files    []sandbox.File `json:"files"`
	Phases   []Phase        `json:"phases"`
	// Outputs are taken after the last phase.
	Outputs sandbox.Selection `json:"outputs"`
	// Tables is a file in which the run leaves its results as data.
	Tables string   `json:"tables,omitempty"`
	Notes  []string `json:"notes,omitempty"`

	// Prepare makes ready on the host what the sandbox is shown, before the sandbox is made; compiling is false when the cache has what
	// the compiler would make. It may change the plan. release is called when the sandbox is gone.
	Prepare func(ctx context.Context, p *Plan, compiling bool, on prepared.Hook) (release func(), err error) `json:"-"`
}

// Names of phases.
const (
	PhaseCompile = "compile"
	PhaseRun     = sandbox.DefaultPhase
)

// Phase is one command of a plan.
type Phase struct {
	Process sandbox.Process `json:"process"`
	// Produces are the files a compiler makes, or directories of them: what later phases need, and all that is kept in the cache.
	Produces []string `json:"produces,omitempty"`
	// Check, when the phase failed, tells a program that never compiled from one that failed: it fails for the former. It sees the program
	// as it was given. Suspect reads from the phase's output which file is to be checked, and how: its last word is the file, and all are
	// added to Check's arguments. Without a file of the program there is no check.
	Check   *sandbox.Process             `json:"check,omitempty"`
	Suspect func(stderr []byte) []string `json:"-"`
	// Again is the second command of the phase. It runs when the first failed and Misled finds that this may be for a reason of ours.
	Again  *sandbox.Process         `json:"again,omitempty"`
	Misled func(stderr []byte) bool `json:"-"`
	// SyntaxExit is the exit code by which a tool of ours says that the program is not well-formed.
	SyntaxExit int `json:"syntax_exit,omitempty"`
	// OutOfMemory recognises a language's own way to say that its heap is full.
	OutOfMemory func(*sandbox.Result) bool `json:"-"`
}

// RunAgain gives the phase a second command, which differs from the first by one variable.
func (p *Phase) RunAgain(misled func(stderr []byte) bool, name, value string) {
	process := p.Process
	process.Env = maps.Clone(process.Env)
	process.Env[name] = value
	p.Again, p.Misled = &process, misled
}

// StartCold has all processes of the plan started cold.
func (p *Plan) StartCold() {
	for i := range p.Phases {
		p.Phases[i].Process.Warm = nil
	}
}

// Places inside.
const (
	// BuildDir is where compilers leave what they make.
	BuildDir = sandbox.TmpDir + "/build"
	// CodeDir is where the program lies when /workspace is a volume.
	CodeDir = sandbox.HomeDir + "/code"
	// ToolDir is where tools of ours are shown.
	ToolDir = "/opt/sandbox-run"
	// KitPath is the kit.
	KitPath = ToolDir + "/sandbox-kit"
	// KitCopy is the kit where nothing of the host can be shown, and it is a file like the program's.
	KitCopy = sandbox.HomeDir + "/.sandbox-run/sandbox-kit"
)
