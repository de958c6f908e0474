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

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// execution is one Execute under way.
type execution struct {
	e    *Executor
	req  *Request
	plan *Plan
	// planned is the plan before it was prepared: a look-up in the cache and an entry have one key.
	planned *Plan
	// contents is the digest of the plan's files before they were put into the sandbox; "" where nothing is cached.
	contents string
	id       string
	seq      uint64        // of the last event of the phases before
	last     atomic.Uint64 // of the last event; one that comes late writes it still
	out      Result

	input *witnessed // nil where its digest is not recorded

	keeping chan error // of what is being put into the cache while the next phase runs; or nil
}

func (x *execution) do(ctx context.Context) (_ *Result, err error) {
	m := x.e.manager
	x.out = Result{Language: x.plan.Language, Version: x.plan.Version}
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
	spec := x.plan.Spec
	spec.Ahead = x.prestarted(phases)
	if x.id, err = m.Create(ctx, spec); err != nil {
		return nil, err
	}
	// What can not be removed is said beside what happened, and does not hide it.
	defer func() {
		if left := m.Delete(context.WithoutCancel(ctx), x.id); left != nil {
			if err == nil {
				x.out.Notes = append(x.out.Notes, CleanupNote+left.Error())
			} else {
				err = errors.Join(err, left)
			}
		}
	}()
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
	if err := x.takeOutputs(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	return &x.out, nil
}

// put puts the files of the first phase into the sandbox. Compilers never see the inputs: their products are cached for every caller
// that has the same program, and must not reveal inputs (D8).
func (x *execution) put(ctx context.Context, phases []Phase, made []sandbox.File) error {
	files := x.plan.Files
	if phases[0].Process.Phase != PhaseRun {
		files = files[:x.plan.program]
	}
	return x.e.manager.Put(ctx, x.id, slices.Concat(files, made))
}

// CleanupNote begins the note on what could not be removed.
const CleanupNote = "clean-up: "

// compiled leaves out the phases whose products are in the cache, and returns the products.
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
		x.out.Phases = append(x.out.Phases, PhaseResult{Name: phases[0].Process.Phase, Cached: true, Verdict: sandbox.VerdictOK})
		phases = phases[1:]
	}
	return phases, made, nil
}

// cacheable reports whether a phase's products depend on nothing but what the key covers. The compiler also sees volumes, whose content
// is unknown.
func (x *execution) cacheable(p *Phase) bool {
	nameless := x.plan.Spec.Root.From != sandbox.ImageRef{} && x.plan.Spec.Root.From.ID == "" // its content is unknown
	return x.e.opts.Cache != nil && !x.req.NoCache && len(p.Produces) > 0 && len(x.plan.Spec.Volumes) == 0 && !nameless
}

// phaseOutput is what PhaseResult has of each stream of a phase at the most, where output has a space of its own: its first and its
// last bytes. A phase that kept the program from running has all of it in the result itself.
const phaseOutput = 256 * sandbox.KiB

// phase runs one phase and reports whether the next may follow.
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
	notes := x.out.Notes
	x.out.Close() // of the phase before
	x.out.Result = *r
	x.out.Notes = notes
	x.note(r.Notes...)
	if err := x.judge(ctx, p); err != nil {
		return false, err
	}
	said := PhaseResult{Name: p.Process.Phase, Verdict: x.out.Verdict, ExitCode: r.Exit.Code, Metrics: r.Metrics, Limits: r.Limits}
	if !isRun {
		most := sandbox.Size(max(r.Stdout.Len(), r.Stderr.Len()))
		if x.req.OutputSpace != nil {
			most = min(most, phaseOutput)
		}
		said.Stdout, said.Stderr = strings.ToValidUTF8(string(r.Stdout.Edges(most)), "\uFFFD"), strings.ToValidUTF8(string(r.Stderr.Edges(most)), "\uFFFD")
		said.Truncated = r.Stdout.Truncated() || r.Stderr.Truncated() || sandbox.Size(max(r.Stdout.Len(), r.Stderr.Len())) > most
	}
	x.out.Phases = append(x.out.Phases, said)
	if x.out.Verdict != sandbox.VerdictOK {
		return false, nil
	}
	if x.cacheable(p) {
		x.awaitKept() // one at a time
		if entry, err := x.take(ctx, p); err != nil {
			x.notKept(err)
		} else {
			x.keep(entry)
		}
	}
	return true, nil
}

func (x *execution) notKept(err error) {
	x.note("what was compiled could not be cached: " + err.Error())
}

// note adds what is worth knowing, once: every phase says it of the sandbox they share.
func (x *execution) note(notes ...string) {
	for _, n := range notes {
		if !slices.Contains(x.out.Notes, n) {
			x.out.Notes = append(x.out.Notes, n)
		}
	}
}

// judge refines the sandbox's verdict by what only a language knows.
func (x *execution) judge(ctx context.Context, p *Phase) error {
	r := &x.out.Result
	failed := r.Verdict == sandbox.VerdictNonzeroExit
	switch {
	case (failed || r.Verdict == sandbox.VerdictSignaled) && p.OutOfMemory != nil && p.OutOfMemory(r):
		r.Verdict = sandbox.VerdictMemoryLimit
	case !failed:
	case r.Exit.Code == language.KitFailed && (p.Process.Args[0] == language.KitPath || p.Process.Args[0] == language.KitCopy):
		return language.KitError(p.Process.Phase, r.Stderr.Edges(sandbox.OutputMemory))
	case p.Process.Phase == PhaseCompile && x.overCap():
		r.Verdict = sandbox.VerdictDiskLimit
		r.Violations = append(r.Violations, x.plan.Spec.OverCap())
	case p.Process.Phase == PhaseCompile, p.SyntaxExit != 0 && r.Exit.Code == p.SyntaxExit:
		r.Verdict = sandbox.VerdictCompileError
	case p.Check != nil:
		suspects := p.Suspect(r.Stderr.Edges(sandbox.OutputMemory))
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

// overCap reports whether a compiler has failed because it could make no file larger than the cap of a volume: it is not the program
// that is wrong.
func (x *execution) overCap() bool {
	said := x.out.Stderr.Edges(sandbox.OutputMemory)
	return x.plan.Spec.VolumeCap() > 0 && (bytes.Contains(said, []byte("ile too large")) || bytes.Contains(said, []byte("File size limit exceeded")))
}

// has reports whether a path inside is a file of the program.
func (p *Plan) has(file string) bool {
	return slices.ContainsFunc(p.Files[:p.program], func(f sandbox.File) bool { return f.Path == file })
}

// check looks at the program as it was given, whatever it has made of itself since.
func (x *execution) check(ctx context.Context, p *Phase, suspects []string) (wrong bool, err error) {
	if err := x.e.manager.Put(ctx, x.id, x.plan.Files[:x.plan.program]); err != nil {
		return false, nil // it has filled its disk: that it ran is certain then
	}
	process := *p.Check
	process.Phase, process.Args = phaseCheck, append(slices.Clip(process.Args), suspects...)
	r, err := x.e.manager.Run(ctx, x.id, process, sandbox.IO{})
	if err != nil {
		return false, err
	}
	return r.Verdict == sandbox.VerdictNonzeroExit, nil
}

// take copies what a phase has made into an entry of the cache. It is done before the program runs, which could change it.
func (x *execution) take(ctx context.Context, p *Phase) (_ *entry, err error) {
	// What was put into the sandbox was read after the digest was made.
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
	left, err := x.e.manager.Take(ctx, x.id, sandbox.Selection{Patterns: p.Produces, MaxFiles: maxCachedFiles, MaxBytes: x.e.opts.Cache.most()}, func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
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

// keep gives an entry its name, while the next phase runs; awaitKept waits for it.
func (x *execution) keep(e *entry) {
	kept := make(chan error, 1)
	x.keeping = kept
	go func() {
		err := e.commit()
		e.abandon()
		kept <- err
	}()
}

// awaitKept waits for the cache. Twice is fine.
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
	relative := func(p string) string { return strings.TrimPrefix(p, sandbox.WorkspaceDir+"/") }
	left, err := x.e.manager.Take(ctx, x.id, x.plan.Outputs, func(f sandbox.File, _ sandbox.Size, r io.Reader) error {
		data, err := io.ReadAll(r)
		x.out.Files = append(x.out.Files, OutputFile{Path: relative(f.Path), Mode: uint32(f.Mode.Perm()), Data: data})
		return err
	})
	for _, u := range left {
		x.out.Files = append(x.out.Files, OutputFile{Path: relative(u.Path), Reason: u.Reason})
	}
	return err
}

// needsRoot refuses a sandbox in which the program would not be where its command line says. Only a request for the lowest tier can get
// one.
func (x *execution) needsRoot() error {
	if x.plan.Spec.Require != sandbox.TierProcess {
		return nil
	}
	info, err := x.e.manager.Get(x.id)
	if err != nil || info.Isolation.Controls[sandbox.ControlRoot] != sandbox.Absent {
		return err
	}
	return &sandbox.Error{
		Op: info.Isolation.Backend, Kind: sandbox.ErrUnsupported, Hint: "--backend native, or sandbox-run exec for a command",
		Err: fmt.Errorf("%s code is run from %s, and this backend has no root of its own to put it into", x.plan.language.Title, sandbox.WorkspaceDir),
	}
}
