package executor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Session is the sandbox of a session, and the way in which its cells are executed: by a driver that stays (Start), or as programs that are
// compiled (Run). The caller closes it.
type Session struct {
	e        *Executor
	x        *execution
	releases []func()
	composer language.Composer // nil: a driver
	project  []File            // of the request, if cells are compiled

	mu     sync.Mutex // sessions that were forked share this one: it guards the plan and the request of x, and the numbers
	added  int        // installations while it runs
	starts int
}

// plan returns the present plan, which does not change.
func (s *Session) plan() *Plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.x.plan
}

// request returns a copy of the present request.
func (s *Session) request() Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.x.req
}

// InstallFailure is the error of a session whose packages could not be installed.
type InstallFailure struct{ Result *Result }

func (f *InstallFailure) Error() string {
	return "packages: " + explained(f.Result) + ": " +
		string(f.Result.Stderr.Edges(4*sandbox.KiB))
}

// HasSessions reports whether a language has sessions.
func HasSessions(l *Language) bool { return l.Session != nil || l.Cells != nil }

// OpenSession makes the sandbox of a session, with the packages and files of the request, which needs no code. Nothing runs in it yet.
func (e *Executor) OpenSession(ctx context.Context, req Request) (_ *Session, err error) {
	if err := e.Fill(&req); err != nil {
		return nil, err
	}
	req.session = true
	lang, err := e.lookUp(req.Language)
	if err != nil {
		return nil, err
	}
	if !HasSessions(lang) {
		return nil, sandbox.Errorf(sandbox.ErrUnsupported, "lang", "", "%s has no sessions", lang.Title)
	}
	s := &Session{e: e}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close(context.WithoutCancel(ctx)))
		}
	}()
	if lang.Cells != nil { // what an ordinary program needs
		req.session, s.composer, s.project = false, lang.Cells(), req.Files
		req.compose(lang, req.Files, []File{{Path: lang.Source, Data: []byte(sampleOf(lang))}})
		req.there = []File{{Path: req.Entry}} // the sample only decides what a program needs
	}
	plan, release, err := e.plan(ctx, &req)
	if err != nil {
		return nil, err
	}
	s.releases = append(s.releases, release)
	s.x = &execution{e: e, req: &req, plan: plan}
	s.x.out = Result{Language: plan.Language, Version: plan.Version}
	release, ok, err := s.x.havePackages(ctx)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &InstallFailure{&s.x.out}
	}
	s.releases = append(s.releases, release)
	if plan = s.x.plan; plan.Prepare != nil {
		changed := *plan
		changed.Phases = append([]Phase(nil), plan.Phases...)
		release, err := plan.Prepare(ctx, &changed.Plan, true, e.opts.OnPrepare)
		if err != nil {
			return nil, err
		}
		s.releases, s.x.plan = append(s.releases, release), &changed
	}
	if s.x.id, err = e.manager.Create(ctx, s.x.plan.Spec); err != nil {
		return nil, err
	}
	if err := s.x.needsRoot(); err != nil {
		return nil, err
	}
	files := s.x.plan.Files
	if s.composer != nil && len(s.project) == 0 {
		files = files[s.x.plan.program:]
	}
	return s, e.manager.Put(ctx, s.x.id, files)
}

// compose makes a composed program the program of a request. Beside files of a project, it is one more program of the project.
func (r *Request) compose(lang *Language, project, program []File) {
	r.Files = slices.Clone(project)
	dir := ""
	if len(project) > 0 {
		dir = lang.CellsDir
		r.Entry = path.Join(dir, lang.Source)
	}
	for _, f := range program {
		f.Path = path.Join(dir, f.Path)
		r.Files = append(r.Files, f)
	}
}

// Language is the language of the session, and Version that of its toolchain.
func (s *Session) Language() *Language { return s.plan().language }

// Version is the version of the toolchain.
func (s *Session) Version() string { return s.plan().Version }

// Deps describes the packages; nil: none.
func (s *Session) Deps() *Deps { return s.x.out.Deps }

// Notes are facts about the session that are no errors, such as lowered limits.
func (s *Session) Notes() []string { return slices.Concat(s.plan().Notes, s.x.out.Notes) }

// Limits are the limits of the session's cells.
func (s *Session) Limits() sandbox.Limits { return s.plan().Spec.Limits }

// Sandbox returns the manager and the id of the sandbox, for files and metrics.
func (s *Session) Sandbox() (*sandbox.Manager, string) { return s.e.manager, s.x.id }

// Composer composes programs of the cells; nil for a language with a driver.
func (s *Session) Composer() language.Composer { return s.composer }

// TakeCells gives this session the cells of another one, which is closed next.
func (s *Session) TakeCells(of *Session) { s.composer = of.composer }

// CheckNetwork refuses a network policy that is wrong, or beyond the operator's bounds.
func (s *Session) CheckNetwork(p network.Policy) error {
	_, err := sandbox.CompileNetwork(p, s.plan().Spec.Bounds)
	return err
}

// Network is the network policy of the processes that start from now on.
func (s *Session) Network() network.Policy { return s.request().Policy.Network }

// SetNetwork sets the network policy of the processes that start from now on.
func (s *Session) SetNetwork(p network.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	plan := *s.x.plan
	plan.Phases = slices.Clone(plan.Phases)
	for i := range plan.Phases {
		if name := plan.Phases[i].Process.Phase; name == language.PhaseCell || name == PhaseRun {
			plan.Phases[i].Process.Network = p
		}
	}
	s.x.plan, s.x.req.Policy.Network = &plan, p
}

// Start starts the driver. It may be called again after the end of the process that an earlier call has started.
func (s *Session) Start(ctx context.Context) (*sandbox.Live, error) {
	s.mu.Lock()
	p := s.x.plan.Phases[0].Process
	p.DriverSocket = true
	if s.starts++; s.starts > 1 { // forks may still run in the phase of an earlier one
		p.Phase = fmt.Sprintf("%s-%d", p.Phase, s.starts)
	}
	s.mu.Unlock()
	return s.e.manager.Start(ctx, s.x.id, p)
}

// Judge refines the verdict of a cell with knowledge about the language.
func (s *Session) Judge(r *sandbox.Result) {
	full := s.plan().Phases[0].OutOfMemory
	if full != nil && (r.Verdict == sandbox.VerdictNonzeroExit || r.Verdict == sandbox.VerdictSignaled) && full(r) {
		r.Verdict = sandbox.VerdictMemoryLimit
	}
}

// Run compiles and runs the program of a cell in the session's sandbox. req has the settings of the cell: limits, output and events.
func (s *Session) Run(ctx context.Context, c *language.Composition, req Request) (*Result, error) {
	own := s.request()
	own.Code, own.Inputs = "", nil
	own.compose(s.Language(), s.project, c.Files)
	own.there = s.project // cells may have changed it
	own.layer = s.plan().layer
	own.NoCache = true // earlier cells may have changed what a compiler reads in this sandbox
	own.Stdin, own.OnEvent, own.OutputSpace = req.Stdin, req.OnEvent, req.OutputSpace
	own.Limits = sandbox.Limits{Wall: req.Limits.Wall, CPUTime: req.Limits.CPUTime, Output: req.Limits.Output}.Or(own.Limits)
	plan, release, err := s.e.plan(ctx, &own)
	if err != nil {
		return nil, err
	}
	defer release()
	for i := range plan.Phases { // the sandbox has the session's limits and first network
		if p := &plan.Phases[i].Process; p.Phase == PhaseRun {
			p.Limits.Wall, p.Limits.CPUTime, p.Limits.Output = req.Limits.Wall, req.Limits.CPUTime, req.Limits.Output
			p.Network = own.Policy.Network
		}
	}
	x := &execution{e: s.e, req: &own, plan: plan, id: s.x.id}
	r, err := x.do(ctx)
	if err != nil {
		x.out.Close()
	}
	return r, err
}

// Record writes a cell to the audit log, if there is one.
func (s *Session) Record(cell, code string, r *sandbox.Result, failed error) error {
	log := s.e.opts.Audit
	if log == nil {
		return nil
	}
	entry := NewAuditEntry(s.e.opts.EntryPoint, cell, nil, &s.plan().Spec, r, failed)
	entry.Who.Key, entry.Language, entry.Version, entry.Code = s.request().Asker.Key, s.plan().Language, s.plan().Version, code
	_, err := log.Record(entry)
	return err
}

// Inside returns the path in the sandbox of a file of the session: relative to the working directory, or absolute.
func (s *Session) Inside(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(sandbox.WorkspaceDir, name)
}

// Env returns the variables that every process of the session has.
func (s *Session) Env() map[string]string { return maps.Clone(s.plan().Spec.Env) }

// Close ends the session's processes and removes its sandbox. It may be called twice.
func (s *Session) Close(ctx context.Context) (err error) {
	if s.x != nil && s.x.id != "" {
		err = s.e.manager.Delete(ctx, s.x.id)
	}
	for _, release := range s.releases {
		release()
	}
	s.releases = nil
	return err
}

func explained(r *Result) string {
	info := r.Verdict.Info()
	return info.Explain(&r.Result, "installation", "--")
}
