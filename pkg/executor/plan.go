package executor

import (
	"cmp"
	"maps"
	"path"
	"slices"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Plan is a prepared request: a sandbox, its files, and the commands that run in it one after the other. A plan is data: making
// it has no side effects.
type Plan struct {
	language.Plan

	program   int    // that many of Files are the program; the rest is input
	toolchain string // changes with every part of the compiler
	tenant    string // plans of the same tenant share compiled programs; "" is one tenant for all
	language  *Language
	install   *installation // packages that are to be installed first; nil: none
	layer     *language.Layer
	declared  func() []string // packages that the program declares and the request does not install; nil: none are looked for
}

// phaseOf returns the phase of this plan that corresponds to a phase of a plan made from it.
func (p *Plan) phaseOf(made *Plan, phase *Phase) *Phase {
	for i := range made.Phases {
		if &made.Phases[i] == phase {
			return &p.Phases[i]
		}
	}
	return phase
}

// The names of phases.
const (
	PhaseInstall = language.PhaseInstall
	PhaseCompile = language.PhaseCompile
	PhaseRun     = language.PhaseRun
	phaseCheck   = "check"
)

// Phase is one command of a plan.
type Phase = language.Phase

// ToolDir is the directory of sandbox-run's tools in a sandbox.
const ToolDir = language.ToolDir

// job is a request while its plan is made.
type job struct {
	language.Job
	req   *Request
	notes []string // for the plan
}

// completeLimits sets the limits that a request leaves open, of its run and of compilations: the language's defaults, then the
// sandbox's, at most what the machine has and the request's ceilings allow. The notes report lowered limits.
func completeLimits(req *Request, lang *Language, m sandbox.Machine) (run, compile sandbox.Limits, notes []string) {
	defaults := lang.Limits
	if req.Options.Test {
		defaults = lang.Test.Or(defaults)
	}
	run, notes = req.Limits.OrDefaults(defaults.Or(sandbox.DefaultLimits()), m)
	compile, _ = req.CompileLimits.OrDefaults(lang.Compile.Or(sandbox.DefaultCompileLimits()), m)
	if req.Lower != nil {
		notes = append(notes, req.Lower(&run, &compile)...)
	}
	return run, compile, notes
}

// newPlan turns a request into a plan. It has no side effects.
func newPlan(j *job, m sandbox.Machine) (*Plan, error) {
	req, pol := j.req, j.req.Policy
	if err := req.Limits.Validate(m); err != nil {
		return nil, err
	}
	if err := req.CompileLimits.ValidateAs("compile-", m); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(req.Env)) {
		if err := sandbox.ValidateVariable(name); err != nil {
			return nil, err
		}
	}
	run, compiling, notes := completeLimits(req, j.Language, m)
	j.CompileLimits = compiling
	plan := &Plan{language: j.Language}
	j.Plan = &plan.Plan
	plan.Plan = language.Plan{
		Language: j.Language.Name,
		Spec:     sandbox.Spec{Env: maps.Clone(req.Env), Limits: run},
		Notes:    append(notes, j.notes...),
	}
	pol.Apply(&j.Plan.Spec)
	if j.Image != nil {
		j.Plan.Spec.Workdir = cmp.Or(j.Plan.Spec.Workdir, sandbox.WorkspaceDir) // where the program is, not where the image starts
		j.Plan.Notes = append(j.Plan.Notes, j.Image.Apply(&j.Plan.Spec)...)
	}
	j.Dir = sandbox.WorkspaceDir
	if slices.ContainsFunc(pol.Volumes, func(v sandbox.Volume) bool { return v.Target == sandbox.WorkspaceDir }) {
		j.Dir = language.CodeDir
	}
	if j.Tool != nil {
		j.Plan.Version, j.ToolID = j.Tool.Version, j.Tool.ID
		j.Plan.Spec.Root.Add = slices.Clone(j.Tool.Mounts)
	}
	if j.Image != nil {
		j.ToolID += " image " + j.Image.ID // the image has everything that compiles
	}
	describe := j.Language.Plan
	if req.session {
		describe = j.Language.Session
	}
	if err := describe(&j.Job); err != nil {
		return nil, err
	}
	if req.Options.Check && !req.session {
		if err := keepChecks(&j.Job); err != nil {
			return nil, err
		}
	}
	plan.toolchain, plan.layer = j.ToolID, j.Layer
	if j.Layer != nil {
		plan.toolchain += " packages " + j.Layer.ID
	}
	// Languages may have added files.
	there := map[string]bool{}
	for _, f := range req.there {
		there[f.Path] = true
	}
	for _, f := range j.Files {
		if !there[f.Path] {
			j.Plan.Files = append(j.Plan.Files, f.Put(j.Inside(f.Path)))
		}
	}
	plan.program = len(j.Plan.Files)
	for _, f := range req.Inputs {
		j.Plan.Files = append(j.Plan.Files, f.Put(path.Join(sandbox.WorkspaceDir, f.Path)))
	}
	j.Plan.Files = append(j.Plan.Files, j.RunFiles...)
	j.Plan.Outputs = req.Outputs
	j.Plan.Outputs.Patterns = nil
	for _, p := range req.Outputs.Patterns {
		j.Plan.Outputs.Patterns = append(j.Plan.Outputs.Patterns, absolute(p))
	}
	if err := j.Plan.Outputs.Validate(); err != nil {
		return nil, err
	}
	for i := range j.Plan.Phases {
		phase := &j.Plan.Phases[i]
		p := &phase.Process
		p.Followed = i < len(j.Plan.Phases)-1
		if p.Phase == language.PhaseCell {
			p.MergeOutput = pol.MergeOutput
			continue
		}
		if p.Phase == PhaseRun {
			p.TTY, p.KillOnOutput, p.MergeOutput = req.TTY, pol.KillOnOutput, pol.MergeOutput
			continue
		}
		limits := j.CompileLimits.OfProcess()
		limits.Output = cmp.Or(limits.Output, j.Plan.Spec.Limits.Output)
		p.Limits, p.Network = limits, pol.CompileNetwork.Complete()
		if phase.Again != nil {
			phase.Again.Limits, phase.Again.Network, phase.Again.Followed = p.Limits, p.Network, p.Followed
		}
	}
	return plan, nil
}

// CheckedNote is the prefix of the note on what a check has checked.
const CheckedNote = language.CheckedNote

// keepChecks removes the run from the plan of a check: a compiler has checked the program.
func keepChecks(j *language.Job) error {
	phases := j.Plan.Phases
	last := len(phases) - 1
	if phases[last].Process.Phase != PhaseRun {
		return nil // the language has planned the check
	}
	if last == 0 {
		return sandbox.Errorf(sandbox.ErrUnsupported, "check", "leave out --check", "%s code can not be checked like this without running it",
			j.Language.Title)
	}
	j.Plan.Phases = phases[:last]
	j.Plan.Notes = append(j.Plan.Notes, CheckedNote+"compiled, not run")
	return nil
}
