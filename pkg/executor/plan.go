package executor

import (
	"cmp"
	"context"
	"io"
	"maps"
	"os"
	"path"
	"slices"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Plan is a request made ready: a sandbox, the files in it, and the commands that run there one after the other. It is
// data: nothing has been looked at or made yet.
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

	program   int    // that many of Files are the program; the rest is input
	toolchain string // its ID
	tenant    string // whose compiled programs it may use and adds to; "" is one pool for all
	language  *Language
	// prepare makes ready on the host what the sandbox is shown, before it is made; compiling is false when the cache has what the
	// compiler would make. It may change the plan. release is called when the sandbox is gone.
	prepare func(ctx context.Context, p *Plan, compiling bool, on prepareHook) (release func(), err error)
}

// phaseOf is the phase that became p in a plan which was made of this one.
func (p *Plan) phaseOf(made *Plan, phase *Phase) *Phase {
	for i := range made.Phases {
		if &made.Phases[i] == phase {
			return &p.Phases[i]
		}
	}
	return phase
}

// prepareHook is told what is being prepared that takes a while.
type prepareHook func(what string) (done func())

func (h prepareHook) begin(what string) (done func()) {
	if h == nil {
		return func() {}
	}
	return h(what)
}

// Names of phases.
const (
	PhaseCompile = "compile"
	PhaseRun     = sandbox.DefaultPhase
	phaseCheck   = "check"
)

// Phase is one command of a plan.
type Phase struct {
	Process sandbox.Process `json:"process"`
	// Produces are the files a compiler makes, or directories of them: what later phases need, and all that is kept in the cache.
	Produces []string `json:"produces,omitempty"`
	// Check, when the phase failed, tells a program that never compiled from one that failed: it fails for the former. It sees the
	// program as it was given. Suspect reads from what was printed which file is to be looked at, and how: its last word is the
	// file, and all are added to Check's arguments. Without a file of the program there is no check.
	Check   *sandbox.Process             `json:"check,omitempty"`
	Suspect func(stderr []byte) []string `json:"-"`
	// Again is what is run in the phase's place when that failed and Misled finds that this may have been for a reason of ours.
	Again  *sandbox.Process         `json:"again,omitempty"`
	Misled func(stderr []byte) bool `json:"-"`
	// SyntaxExit is the exit code by which a tool of ours says that the program is not well-formed.
	SyntaxExit int `json:"syntax_exit,omitempty"`
	// OutOfMemory recognises a language's own way to say that its heap is full.
	OutOfMemory func(*sandbox.Result) bool `json:"-"`
}

// Places inside.
const (
	// buildDir is where compilers leave what they make.
	buildDir = sandbox.TmpDir + "/build"
	// codeDir is where the program lies when /workspace is somebody's volume.
	codeDir = sandbox.HomeDir + "/code"
	// ToolDir is where tools of ours are shown.
	ToolDir = "/opt/sandbox-run"
	// kitInside is the kit.
	kitInside = ToolDir + "/sandbox-kit"
	// kitCopied is the kit where nothing of the host can be shown, and it is a file like the program's.
	kitCopied = sandbox.HomeDir + "/.sandbox-run/sandbox-kit"
)

// job is a request on its way to a plan.
type job struct {
	engine   *Executor
	req      *Request
	files    []File // the program
	entry    string // relative; "." where the language takes directories
	lang     *Language
	tool     *toolchain.Toolchain
	image    *Image    // that it runs on; nil is this machine
	notes    []string  // for the plan
	kit      string    // path of the kit on the host; "" when there is none
	kitID    string    // changes when the kit does
	commands *commands // shell: the only programs there are; nil is all
	dir      string    // where the program lies inside
	plan     *Plan

	compiling sandbox.Limits // of compilers

	warmDir string     // on the host, for what toolchains prepare once; "" when there is none
	modules []goModule // that the program needs and the user has
}

// completeLimits fills in what a request leaves open of the limits of its run and of compiling: the language's defaults, then the sandbox's, no
// more than the machine has and the request's ceilings allow. The notes say what was lowered.
func completeLimits(req *Request, lang *Language, m sandbox.Machine) (run, compile sandbox.Limits, notes []string) {
	run, notes = req.Limits.OrDefaults(lang.Limits.Or(sandbox.DefaultLimits()), m)
	compile, _ = req.CompileLimits.OrDefaults(lang.Compile.Or(sandbox.DefaultCompileLimits()), m)
	if req.Lower != nil {
		notes = append(notes, req.Lower(&run, &compile)...)
	}
	return run, compile, notes
}

// newPlan turns a request into a plan. It is pure.
func newPlan(j *job, m sandbox.Machine) (*Plan, error) {
	req, pol := j.req, j.req.Policy
	if err := req.Limits.Validate(m); err != nil {
		return nil, err
	}
	if err := req.CompileLimits.ValidateAs("compile-", m); err != nil {
		return nil, err
	}
	run, compiling, notes := completeLimits(req, j.lang, m)
	j.compiling = compiling
	j.plan = &Plan{
		Language: j.lang.Name,
		language: j.lang,
		Spec:     sandbox.Spec{Env: maps.Clone(req.Env), Limits: run},
		Notes:    append(notes, j.notes...),
	}
	pol.Apply(&j.plan.Spec)
	if j.image != nil {
		j.plan.Spec.Workdir = cmp.Or(j.plan.Spec.Workdir, sandbox.WorkspaceDir) // where the program is, not where the image would start
		j.plan.Notes = append(j.plan.Notes, j.image.Apply(&j.plan.Spec)...)
	}
	j.dir = sandbox.WorkspaceDir
	if slices.ContainsFunc(pol.Volumes, func(v sandbox.Volume) bool { return v.Target == sandbox.WorkspaceDir }) {
		j.dir = codeDir
	}
	if j.tool != nil {
		j.plan.Version, j.plan.toolchain = j.tool.Version, j.tool.ID
		j.plan.Spec.Root.Add = slices.Clone(j.tool.Mounts)
	}
	if j.image != nil {
		j.plan.toolchain += " image " + j.image.ID // it is all that compiles
	}
	if err := j.lang.plan(j); err != nil {
		return nil, err
	}
	// Languages may have added files of their own.
	for _, f := range j.files {
		j.plan.Files = append(j.plan.Files, sandbox.File{Path: j.inside(f.Path), Mode: f.Mode, Data: f.Data, Open: f.Open})
	}
	j.plan.program = len(j.plan.Files)
	for _, f := range req.Inputs {
		j.plan.Files = append(j.plan.Files, sandbox.File{Path: path.Join(sandbox.WorkspaceDir, f.Path), Mode: f.Mode, Data: f.Data, Open: f.Open})
	}
	j.plan.Outputs = req.Outputs
	j.plan.Outputs.Patterns = nil
	for _, p := range req.Outputs.Patterns {
		if !path.IsAbs(p) {
			p = path.Join(sandbox.WorkspaceDir, p)
		}
		j.plan.Outputs.Patterns = append(j.plan.Outputs.Patterns, p)
	}
	if err := j.plan.Outputs.Validate(); err != nil {
		return nil, err
	}
	for i := range j.plan.Phases {
		phase := &j.plan.Phases[i]
		p := &phase.Process
		p.Followed = i < len(j.plan.Phases)-1
		if p.Phase == PhaseRun {
			p.TTY, p.KillOnOutput = req.TTY, pol.KillOnOutput
			continue
		}
		limits := j.compiling.OfProcess()
		limits.Output = cmp.Or(limits.Output, j.plan.Spec.Limits.Output)
		p.Limits, p.Network = limits, sandbox.NetworkNone
		if phase.Again != nil {
			phase.Again.Limits, phase.Again.Network, phase.Again.Followed = p.Limits, p.Network, p.Followed
		}
	}
	return j.plan, nil
}

// inside is where a file of the program lies.
func (j *job) inside(rel string) string { return path.Join(j.dir, rel) }

// memory is what the run may use.
func (j *job) memory() sandbox.Size { return j.plan.Spec.Limits.Memory }

// env sets a variable for every phase, unless the user has.
func (j *job) env(name, value string) {
	if _, own := j.plan.Spec.Env[name]; own {
		return
	}
	if j.plan.Spec.Env == nil {
		j.plan.Spec.Env = map[string]string{}
	}
	j.plan.Spec.Env[name] = value
}

// toolEnv sets what the toolchain needs, for every phase.
func (j *job) toolEnv() {
	for k, v := range j.tool.Env {
		j.env(k, v)
	}
}

// compile adds a compiler's phase, which runs where the program lies.
func (j *job) compile(produces []string, args ...string) *Phase {
	j.plan.Phases = append(j.plan.Phases, Phase{
		Process:  sandbox.Process{Phase: PhaseCompile, Args: args, Workdir: j.dir},
		Produces: produces,
	})
	return &j.plan.Phases[len(j.plan.Phases)-1]
}

// run adds the run: a command, and the user's arguments.
func (j *job) run(args ...string) *Phase {
	j.plan.Phases = append(j.plan.Phases, Phase{
		Process: sandbox.Process{Phase: PhaseRun, Args: append(slices.Clip(args), j.req.Args...)},
	})
	return &j.plan.Phases[len(j.plan.Phases)-1]
}

// workdir is where the run starts.
func (j *job) workdir() string {
	if j.plan.Spec.Workdir == "" {
		return sandbox.WorkspaceDir
	}
	return j.plan.Spec.Workdir
}

// again is how a phase is run once more, with another variable.
func (p *Phase) again(misled func(stderr []byte) bool, name, value string) {
	process := p.Process
	process.Env = maps.Clone(process.Env)
	process.Env[name] = value
	p.Again, p.Misled = &process, misled
}

// useKit shows our own tools inside, and returns what to call them by.
func (j *job) useKit() (string, error) {
	if j.kit == "" {
		return "", errNoKit(j.lang.Title)
	}
	j.plan.toolchain += " kit " + j.kitID // it is part of what compiles
	if j.kept() {
		kit := j.kit
		j.plan.Files = append(j.plan.Files, sandbox.File{Path: kitCopied, Mode: 0o755, Open: func() (io.ReadCloser, error) { return os.Open(kit) }})
		return kitCopied, nil
	}
	j.plan.Spec.Root.Add = append(j.plan.Spec.Root.Add, sandbox.Mount{Source: j.kit, Target: kitInside})
	return kitInside, nil
}

// kept reports whether the backend keeps the image itself: then nothing of the host can be shown on it.
func (j *job) kept() bool { return j.image != nil && j.image.Dir == "" }

// warmth is where toolchains of this machine keep what they prepare; "" where there is no such place, and for those of an image: what
// they prepare, they would prepare outside of any sandbox.
func (j *job) warmth() string {
	if j.image != nil {
		return ""
	}
	return j.warmDir
}
