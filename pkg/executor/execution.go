package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sandbox-run/sandbox-run/pkg/deps"
	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// execution is one call of Execute in progress.
type execution struct {
	e    *Executor
	req  *Request
	plan *Plan
	// planned is the plan before preparation, so that a lookup in the cache and an addition have the same key.
	planned *Plan
	// contents is the digest of the plan's files before they are copied into the sandbox; "" if nothing is cached.
	contents string
	id       string        // of the sandbox; that of a session is set from the start, and stays
	seq      uint64        // number of the last event of the earlier phases
	last     atomic.Uint64 // number of the last event; late events still write it
	out      Result

	input   *inputDigest        // nil if its digest is not recorded
	refused []sandbox.Violation // names and connections of earlier phases

	layer   *deps.Lease // of an installation, until the plan of the run has its own
	keeping chan error  // result of the cache addition that runs beside the next phase; or nil
}

func (x *execution) do(ctx context.Context) (_ *Result, err error) {
	m := x.e.manager
	x.out = Result{Language: x.plan.Language, Version: x.plan.Version}
	release, ok, err := x.havePackages(ctx)
	if err != nil {
		return nil, err
	}
	if !ok {
		return &x.out, nil
	}
	defer release()
	phases, made, err := x.compiled()
	if err != nil {
		return nil, err
	}
	defer closeFiles(made)
	x.planned = x.plan
	if x.plan.Prepare != nil {
		changed := *x.plan
		changed.Phases = slices.Clone(x.plan.Phases)
		phases = changed.Phases[len(changed.Phases)-len(phases):]
		compiling := slices.ContainsFunc(phases, func(p Phase) bool { return p.Process.Phase == PhaseCompile })
		x.plan = &changed
		release, err := x.plan.Prepare(ctx, &x.plan.Plan, compiling, x.e.opts.OnPrepare)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	defer x.awaitKept()
	if x.id == "" {
		spec := x.plan.Spec
		spec.Ahead = x.prestarted(phases)
		if x.id, err = m.Create(ctx, spec); err != nil {
			return nil, err
		}
		// An error of the removal is added to the other errors, and hides none of them.
		defer func() {
			if left := m.Delete(context.WithoutCancel(ctx), x.id); left != nil {
				if err == nil {
					x.out.Notes = append(x.out.Notes, CleanupNote+left.Error())
				} else {
					err = errors.Join(err, left)
				}
			}
		}()
	}
	if err := x.needsRoot(); err != nil {
		return nil, err
	}
	if x.req.OnReady != nil {
		info, err := m.Get(x.id)
		if err != nil {
			return nil, err
		}
		x.req.OnReady(x.plan, info.Isolation)
	}
	if err := x.put(ctx, phases, made); err != nil {
		return nil, err
	}
	for i := range phases {
		if i > 0 && phases[i].Process.Phase == PhaseRun {
			if err := m.Put(ctx, x.id, x.plan.Files[x.plan.program:]); err != nil {
				return nil, err
			}
		}
		ok, err := x.phase(ctx, &phases[i])
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
	}
	x.note(x.plan.Notes...)
	x.diagnose()
	if err := x.takeOutputs(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	return &x.out, nil
}

// put copies the files of the first phase into the sandbox. Compilers never see the inputs: every caller with the same program
// shares their products, which must not reveal inputs.
func (x *execution) put(ctx context.Context, phases []Phase, made []sandbox.File) error {
	files := x.plan.Files
	if phases[0].Process.Phase != PhaseRun {
		files = files[:x.plan.program]
	}
	return x.e.manager.Put(ctx, x.id, slices.Concat(files, made))
}

// CleanupNote is the prefix of the note about leftovers.
const CleanupNote = "clean-up: "

// compiled drops the phases whose products are in the cache, and returns these products.
func (x *execution) compiled() (phases []Phase, made []sandbox.File, err error) {
	phases = x.plan.Phases
	if slices.ContainsFunc(phases, func(p Phase) bool { return x.cacheable(&p) }) {
		if x.contents, err = x.plan.contents(); err != nil {
			return nil, nil, err
		}
	}
	for len(phases) > 1 && x.cacheable(&phases[0]) {
		files, ok := x.e.opts.Cache.get(x.plan.key(&phases[0], x.contents))
		if !ok {
			break
		}
		made = append(made, files...)
		x.out.Phases = append(x.out.Phases, PhaseResult{
			Name: phases[0].Process.Phase, Cached: true, Verdict: sandbox.VerdictOK, ProgramExitCode: new(int),
		})
		phases = phases[1:]
	}
	return phases, made, nil
}

// cacheable reports whether the key covers everything that a phase's products depend on. It does not cover volumes and networks, which
// the compiler sees as well.
func (x *execution) cacheable(p *Phase) bool {
	nameless := x.plan.Spec.Root.From != sandbox.ImageRef{} && x.plan.Spec.Root.From.ID == "" // its content is unknown
	return x.e.opts.Cache != nil && !x.req.NoCache && len(p.Produces) > 0 && len(x.plan.Spec.Volumes) == 0 && !nameless &&
		!p.Process.Network.HasLoopback()
}

// phaseOutput is the most output that PhaseResult keeps of each stream if output has a space of its own: the first and the last
// bytes. The result itself has all output of a phase that failed.
const phaseOutput = 256 * sandbox.KiB

// phase runs one phase and reports whether the next one may run.
func (x *execution) phase(ctx context.Context, p *Phase) (bool, error) {
	io := sandbox.IO{Spill: x.req.Spill, OutputSpace: x.req.OutputSpace, Resize: x.req.Resize}
	isRun := p.Process.Phase == PhaseRun
	if isRun {
		io.Stdin, io.Signals = x.req.Stdin, x.req.Signals
	}
	if x.req.OnEvent != nil {
		before := x.seq
		io.OnEvent = func(ev sandbox.Event) {
			ev.Seq += before
			ev.Phase = p.Process.Phase
			x.last.Store(ev.Seq)
			x.req.OnEvent(ev)
		}
	}
	r, err := x.runPhase(ctx, p, io)
	if err != nil {
		return false, err
	}
	x.seq = x.last.Load()
	notes, refused := x.out.Notes, x.refused
	x.out.Close() // that of the phase before
	x.out.Result = *r
	x.out.Notes = notes
	x.note(r.Notes...)
	if !isRun {
		if p.Process.Phase == PhaseInstall {
			nameNoFlags(x.out.Violations)
		} else {
			nameCompileFlags(x.out.Violations)
		}
		x.refused = append(x.refused, refusals(x.out.Violations)...)
	}
	x.out.Violations = append(slices.Clip(refused), x.out.Violations...) // compilers, too, may have been refused hosts
	if err := x.judge(ctx, p); err != nil {
		return false, err
	}
	said := PhaseResult{
		Name: p.Process.Phase, Verdict: x.out.Verdict, ExitCode: x.out.ExitCode(), ProgramExitCode: x.out.Exit.OwnCode(),
		Metrics: r.Metrics, Limits: r.Limits,
	}
	if !isRun {
		most := sandbox.Size(max(r.Stdout.Len(), r.Stderr.Len()))
		if x.req.OutputSpace != nil {
			most = min(most, phaseOutput)
		}
		said.Stdout, said.Stderr = strings.ToValidUTF8(string(r.Stdout.Edges(most)), "\uFFFD"),
			strings.ToValidUTF8(string(r.Stderr.Edges(most)), "\uFFFD")
		said.Truncated = r.Stdout.Truncated() || r.Stderr.Truncated() || sandbox.Size(max(r.Stdout.Len(), r.Stderr.Len())) > most
	}
	x.out.Phases = append(x.out.Phases, said)
	if x.out.Verdict != sandbox.VerdictOK {
		return false, nil
	}
	if x.cacheable(p) {
		x.awaitKept() // one addition at a time
		if entry, err := x.take(ctx, p); err != nil {
			x.notKept(err)
		} else {
			x.keep(entry)
		}
	}
	return true, nil
}

// refusals returns the violations that are refused names and connections.
func refusals(violations []sandbox.Violation) (list []sandbox.Violation) {
	for _, v := range violations {
		if v.Kind == sandbox.ViolationNetwork && v.Name != "" {
			list = append(list, v)
		}
	}
	return list
}

// nameNoFlags takes the flags from the violations of an installation: no flag gives it another network, or other limits.
func nameNoFlags(violations []sandbox.Violation) {
	for i := range violations {
		violations[i].Allow = ""
	}
}

// nameCompileFlags lets the violations of a compiler name the flags of compilers. The number of processes and the CPU time of compilers
// have no flags.
func nameCompileFlags(violations []sandbox.Violation) {
	for i := range violations {
		if flag, ok := strings.CutPrefix(violations[i].Allow, "--"); ok && violations[i].Kind == sandbox.ViolationNetwork {
			violations[i].Allow = "--compile-" + flag
			continue
		}
		for _, l := range sandbox.AllLimits() {
			switch flag := l.Flag(); {
			case violations[i].Allow != "--"+flag:
			case l.CompileDoc != "":
				violations[i].Allow = "--compile-" + flag
			case flag != "output-limit":
				violations[i].Allow = ""
			}
		}
	}
}

func (x *execution) notKept(err error) {
	x.note("what was compiled could not be cached: " + err.Error())
}

// note adds a note once: every phase reports the same notes on the shared sandbox.
func (x *execution) note(notes ...string) {
	for _, n := range notes {
		if !slices.Contains(x.out.Notes, n) {
			x.out.Notes = append(x.out.Notes, n)
		}
	}
}

// judge refines the sandbox's verdict with knowledge about the language.
func (x *execution) judge(ctx context.Context, p *Phase) error {
	r := &x.out.Result
	failed := r.Verdict == sandbox.VerdictNonzeroExit
	said := *r
	if p.Process.MergeOutput {
		said.Stderr = said.Stdout
	}
	noDisk := p.NoDiskExit != 0 && r.Exit.Code == p.NoDiskExit && (failed || r.Verdict == sandbox.VerdictDiskLimit)
	if noDisk {
		r.Exit.Code = 1
	}
	switch {
	case (failed || r.Verdict == sandbox.VerdictSignaled) && p.OutOfMemory != nil && p.OutOfMemory(&said):
		r.Verdict = sandbox.VerdictMemoryLimit
	case !failed:
	case r.Exit.Code == language.KitFailed && (p.Process.Args[0] == language.KitPath || p.Process.Args[0] == language.KitCopy):
		return language.KitError(p.Process.Phase, said.Stderr.Edges(sandbox.OutputMemory))
	case p.Process.Phase == PhaseInstall:
		r.Verdict = sandbox.VerdictInstallError
	case p.Process.Phase == PhaseCompile && x.overCap():
		r.Verdict = sandbox.VerdictDiskLimit
		r.Violations = append(r.Violations, x.plan.Spec.OverCap())
	case noDisk: // SQLite has taken the statement back, so that the last measurement found room
		r.Verdict = sandbox.VerdictDiskLimit
		r.Violations = append(r.Violations, r.Limits.DiskFull())
	case p.Process.Phase == PhaseCompile, p.SyntaxExit != 0 && r.Exit.Code == p.SyntaxExit:
		r.Verdict = sandbox.VerdictCompileError
	case p.Check != nil:
		suspects := p.Suspect(said.Stderr.Edges(sandbox.OutputMemory))
		if len(suspects) == 0 || !x.plan.has(suspects[len(suspects)-1]) {
			break
		}
		wrong, err := x.check(ctx, p, suspects)
		if err != nil {
			return err
		}
		if wrong {
			r.Verdict = sandbox.VerdictCompileError
		}
	}
	return nil
}

// overCap reports whether a compiler failed because the cap of a volume refused a larger file: the program is not at fault then.
func (x *execution) overCap() bool {
	said := x.out.Stderr.Edges(sandbox.OutputMemory)
	return x.plan.Spec.VolumeCap() > 0 && (bytes.Contains(said, []byte("ile too large")) ||
		bytes.Contains(said, []byte("File size limit exceeded")))
}

// has reports whether a path in the sandbox is a file of the program.
func (p *Plan) has(file string) bool {
	return slices.ContainsFunc(p.Files[:p.program], func(f sandbox.File) bool { return f.Path == file })
}

// check runs the check of a phase on the files of the program as they were given.
func (x *execution) check(ctx context.Context, p *Phase, suspects []string) (wrong bool, err error) {
	if err := x.e.manager.Put(ctx, x.id, x.plan.Files[:x.plan.program]); err != nil {
		return false, nil // a program that fills its disk has certainly run
	}
	process := *p.Check
	process.Phase, process.Args, process.Network = phaseCheck, append(slices.Clip(process.Args), suspects...), sandbox.NetworkNone
	r, err := x.e.manager.Run(ctx, x.id, process, sandbox.IO{})
	if err != nil {
		return false, err
	}
	return r.Verdict == sandbox.VerdictNonzeroExit, nil
}

// take copies the products of a phase into an entry of the cache, before the program runs and can change them.
func (x *execution) take(ctx context.Context, p *Phase) (_ *entry, err error) {
	// The files in the sandbox were read after their digest was computed.
	if x.planned.mayChange() {
		if now, err := x.planned.contents(); err != nil {
			return nil, err
		} else if now != x.contents {
			return nil, errors.New("its files have changed meanwhile")
		}
	}
	entry, err := x.e.opts.Cache.begin(x.planned.key(x.planned.phaseOf(x.plan, p), x.contents))
	if err != nil {
		return nil, err
	}
	left, err := x.e.manager.Take(ctx, x.id, sandbox.Selection{Patterns: p.Produces, MaxFiles: maxCachedFiles,
		MaxBytes: x.e.opts.Cache.most()}, func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
		return entry.add(f, r)
	})
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%s: %s", left[0].Path, left[0].Reason)
	}
	if err != nil {
		entry.abandon()
		return nil, err
	}
	return entry, nil
}

// keep commits an entry while the next phase runs; awaitKept waits for it.
func (x *execution) keep(e *entry) {
	kept := make(chan error, 1)
	x.keeping = kept
	go func() {
		err := e.commit()
		e.abandon()
		kept <- err
	}()
}

// awaitKept waits for the cache. A second call returns at once.
func (x *execution) awaitKept() {
	if x.keeping == nil {
		return
	}
	if err := <-x.keeping; err != nil {
		x.notKept(err)
	}
	x.keeping = nil
}

// takeOutputs copies out the requested files, and the tables of a query.
func (x *execution) takeOutputs(ctx context.Context) error {
	if x.plan.Tables != "" {
		if err := x.takeTables(ctx); err != nil {
			return err
		}
	}
	if len(x.plan.Outputs.Patterns) == 0 {
		return nil
	}
	left, err := x.e.manager.Take(ctx, x.id, x.plan.Outputs, func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
		data, err := io.ReadAll(r)
		x.out.Files = append(x.out.Files, OutputFile{Path: relativePath(f.Path), Mode: uint32(f.Mode.Perm()), Data: data})
		return err
	})
	for _, u := range left {
		x.out.Files = append(x.out.Files, OutputFile{Path: relativePath(u.Path), Reason: u.Reason})
	}
	return err
}

// needsRoot refuses a sandbox in which the paths of the command line do not exist. Only a request that accepts the lowest tier
// can get one.
func (x *execution) needsRoot() error {
	if x.plan.Spec.Require != sandbox.TierProcess {
		return nil
	}
	info, err := x.e.manager.Get(x.id)
	if err != nil || info.Isolation.Controls[sandbox.ControlRoot] != sandbox.Absent {
		return err
	}
	return sandbox.Errorf(sandbox.ErrUnsupported, info.Isolation.Backend, "--backend native, or sandbox-run exec for a command",
		"%s code is run from %s, and this backend has no root of its own to put it into", x.plan.language.Title, sandbox.WorkspaceDir)
}
