package api

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
)

// WaySession is POST /v1/sessions, and WayCell a cell.
const (
	WaySession Way = "session"
	WayCell    Way = "cell"
)

// SessionOptions configure sessions.
type SessionOptions struct {
	// Executor opens the sessions.
	Executor *executor.Executor
	// Bounds are those of the sessions. OnClose is the server's.
	Bounds session.Options
}

// SessionEvent is the creation or the end of a session.
type SessionEvent struct {
	ID       string
	Owner    string // the principal's ID
	Language string
	Ended    string // why it has ended; empty: it was created
}

// sessions are the sessions of a server. A session is admitted while its interpreter starts, and each cell like a run. An idle session is not:
// Admission subtracts what idle sessions use, as measured, from what it promises. Questions are not admitted: the limits of their session bound
// them.
type sessions struct {
	manager *session.Manager // nil: there are no sessions
	cells   *runStore        // by ID/N

	mu   sync.Mutex
	open map[string]*servedSession
}

// servedSession is a session, and what the server has for it.
type servedSession struct {
	*session.Session
	owner     string
	weight    executor.Weight
	workspace *sharedWorkspace

	mu   sync.Mutex
	cell *run // that has begun last
}

// sharedWorkspace is the workspace of a session and its forks.
type sharedWorkspace struct {
	opened  chan struct{} // closed when the session was made, or could not be made
	release func()        // nil: there is no workspace

	mu    sync.Mutex
	users int
}

func (w *sharedWorkspace) enter() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.users++
}

// leave closes the workspace when its last session has ended.
func (w *sharedWorkspace) leave() {
	w.mu.Lock()
	w.users--
	last := w.users == 0
	w.mu.Unlock()
	if last && w.release != nil {
		w.release()
	}
}

// cellMemory is how much of the events of a cell is in memory; there are many small ones.
const cellMemory = 16 * sandbox.KiB

func (s *Server) openSessions() {
	keep := s.opts.Keep
	keep.Memory = min(keep.Memory, cellMemory)
	s.sessions.cells, s.sessions.open = newRunStore(nil, keep), map[string]*servedSession{}
	if o := s.opts.Sessions; o != nil {
		bounds := o.Bounds
		bounds.OnClose = s.sessionClosed
		s.sessions.manager = session.NewManager(o.Executor, bounds)
	}
}

// closeSessions ends all sessions. Their cells have ended before.
func (s *Server) closeSessions() {
	if m := s.sessions.manager; m != nil {
		m.Close()
	}
}

// SessionCount is the number of sessions.
func (s *Server) SessionCount() int {
	if m := s.sessions.manager; m != nil {
		return m.Count()
	}
	return 0
}

// IdleMemory measures the memory that sessions without a running cell use.
func (s *Server) IdleMemory() sandbox.Size {
	if m := s.sessions.manager; m != nil {
		return m.IdleMemory()
	}
	return 0
}

// PrestartSessions starts a session of each of the languages that has sessions, for the first request without further settings. On a server
// with keys it does nothing: a session is started for one key.
func (s *Server) PrestartSessions(languages ...string) error {
	m := s.sessions.manager
	if m == nil || s.opts.Auth != nil {
		return nil
	}
	for _, l := range m.Languages() {
		for _, name := range languages {
			if l.Name != name {
				continue
			}
			j, err := s.prepare(owner, WaySession, &wire.Run{Language: name}, "")
			if err != nil {
				return err
			}
			m.Prestart(session.Request{Request: j.req, Owner: owner.ID})
		}
	}
	return nil
}

// noSessions is the problem of a server without sessions.
func noSessions() error {
	p := wire.NewProblem(wire.CodeUnsupported, "sessions are disabled on this server; its operator enables them with --max-sessions")
	p.Hint = "POST " + wire.PathRun + ", which runs a program"
	return p
}

// noSession is the same for unknown, foreign and ended sessions.
func noSession(id string) error {
	p := wire.NewProblem(wire.CodeNotFound, "session %.80q: there is none, or it has ended", id)
	p.Hint = "GET " + wire.PathSessions + ", which lists your sessions"
	return p
}

// sessionHandler answers a request about a session.
type sessionHandler func(w http.ResponseWriter, r *http.Request, own *servedSession) error

// onSession finds the session of a path, if it belongs to the principal.
func (s *Server) onSession(handle sessionHandler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		own, err := s.findSession(r)
		if err != nil {
			return err
		}
		if err := handle(w, r, own); err != nil {
			return sessionProblem(r, err)
		}
		return nil
	}
}

func (s *Server) findSession(r *http.Request) (*servedSession, error) {
	if s.sessions.manager == nil {
		return nil, noSessions()
	}
	id := r.PathValue("id")
	found, err := s.sessions.manager.Get(PrincipalFrom(r.Context()).ID, id)
	if err != nil {
		return nil, noSession(id)
	}
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	own := s.sessions.open[found.ID()]
	if own == nil {
		return nil, noSession(id) // it is being made, or is ending
	}
	return own, nil
}

// sessionProblem makes a problem of an error of package session.
func sessionProblem(r *http.Request, err error) error {
	switch {
	case errors.Is(err, session.ErrNotFound):
		return noSession(r.PathValue("id"))
	case errors.Is(err, session.ErrBusy):
		return &Refusal{Status: http.StatusTooManyRequests, Reason: plainError(err), RetryAfter: time.Second}
	}
	return err
}

// plainError is the text of an error without its next step.
func plainError(err error) string {
	text, _, _ := strings.Cut(err.Error(), "; try: ")
	return text
}

// endedProblem is the problem of a session whose interpreter has ended.
func endedProblem(err error) *wire.Problem {
	return wire.NewProblem(wire.CodeEnded, "%s", plainError(err))
}

// createSession handles POST /v1/sessions. A failed installation of packages has the answer that it has for a run.
func (s *Server) createSession(w http.ResponseWriter, r *http.Request) error {
	if s.sessions.manager == nil {
		return noSessions()
	}
	if _, err := readQuery(r); err != nil {
		return err
	}
	body, release, err := s.ReadBody(w, r)
	if err != nil {
		return err
	}
	defer release()
	asked := new(wire.Session)
	if err := wire.DecodeStrict(body, asked); err != nil {
		return err
	}
	j, err := s.prepare(PrincipalFrom(r.Context()), WaySession, &asked.Run, audit.Digest(body))
	if err != nil {
		return err
	}
	own, err := s.openSession(r.Context(), j, asked)
	if err != nil {
		return s.createProblem(w, err)
	}
	return answerCreated(w, own)
}

func answerCreated(w http.ResponseWriter, own *servedSession) error {
	w.Header().Set("Location", wire.PathSessions+"/"+own.ID())
	return answerJSON(w, http.StatusCreated, own.Info())
}

// answerFailedInstall answers as for a run whose packages could not be installed. It returns other errors.
func answerFailedInstall(w http.ResponseWriter, err error) error {
	var failed *executor.InstallFailure
	if !errors.As(err, &failed) {
		return err
	}
	defer failed.Result.Close()
	document, err := failed.Result.Encode()
	if err == nil {
		answerDocument(w, document.Size()+1, document, strings.NewReader("\n"))
	}
	return err
}

// createProblem tells the share of the principal from that of the server.
func (s *Server) createProblem(w http.ResponseWriter, err error) error {
	if !errors.Is(err, session.ErrBusy) {
		return answerFailedInstall(w, err)
	}
	refusal := &Refusal{Status: http.StatusTooManyRequests, Reason: plainError(err), RetryAfter: 5 * time.Second}
	if most := s.opts.Sessions.Bounds.Sessions; most > 0 && s.SessionCount() >= most {
		refusal.Status = http.StatusServiceUnavailable
	}
	return refusal
}

// openSession makes the session of a job.
func (s *Server) openSession(ctx context.Context, j *job, asked *wire.Session) (*servedSession, error) {
	ctx, a, err := s.registerRun(ctx)
	if err != nil {
		return nil, err
	}
	defer s.unregisterRun(a)
	leave, err := s.enter(ctx, j)
	if err != nil {
		return nil, err
	}
	defer leave()
	if !s.stillAuthorized(j.Principal) { // the request may have waited for long
		return nil, errRevoked()
	}
	own := &servedSession{owner: j.Principal.ID, workspace: &sharedWorkspace{opened: make(chan struct{})}}
	defer close(own.workspace.opened)
	own.weight = executor.Weight{Memory: j.admission.Memory, CPUs: j.admission.CPUs}
	if err := s.addWorkspace(ctx, j, own); err != nil {
		return nil, err
	}
	if own.Session, err = s.sessions.manager.Create(ctx, session.Request{
		Request: j.req, Owner: own.owner, Name: asked.Name, Idle: time.Duration(asked.Idle), Lifetime: time.Duration(asked.Lifetime),
	}); err != nil {
		own.workspace.leave()
		return nil, err
	}
	s.addSession(ctx, own)
	return own, nil
}

// addSession adds a session that was made.
func (s *Server) addSession(ctx context.Context, own *servedSession) {
	s.sessions.mu.Lock()
	s.sessions.open[own.ID()] = own
	s.sessions.mu.Unlock()
	s.observer.Session(ctx, SessionEvent{ID: own.ID(), Owner: own.owner, Language: own.Language().Name})
	if own.Info().State == session.StateClosed { // meanwhile
		s.sessionClosed(own.ID(), own.owner, "it was closed")
	}
}

// fork handles POST /v1/sessions/{id}/fork.
func (s *Server) fork(w http.ResponseWriter, r *http.Request, own *servedSession) error {
	asked := new(wire.Fork)
	if err := s.readDocument(w, r, asked); err != nil {
		return err
	}
	ctx, a, err := s.registerRun(r.Context())
	if err != nil {
		return err
	}
	defer s.unregisterRun(a)
	leave := func() {}
	defer func() { leave() }()
	begin := func(ctx context.Context) error { // as for a new session; not before its turn, which a cell has that waits for admission
		p := PrincipalFrom(ctx)
		left, err := s.enter(ctx, &job{admission: p.admission(own.weight)})
		if err != nil {
			return err
		}
		leave = left
		if !s.stillAuthorized(p) {
			return errRevoked()
		}
		return nil
	}
	forked := &servedSession{owner: own.owner, weight: own.weight, workspace: own.workspace}
	own.workspace.enter()
	if forked.Session, err = own.Fork(ctx, session.ForkOptions{Name: asked.Name, Replay: asked.Replay, Begin: begin}); err != nil {
		own.workspace.leave()
		return s.createProblem(w, err)
	}
	s.addSession(ctx, forked)
	return answerCreated(w, forked)
}

// addWorkspace makes a workspace of the server the session's /workspace until it ends. A session whose workspace exceeds its cap ends.
func (s *Server) addWorkspace(ctx context.Context, j *job, own *servedSession) error {
	if j.run.Workspace == "" {
		return nil
	}
	w, err := s.openWorkspace(ctx, j)
	if err != nil {
		return err
	}
	release, err := w.Begin(context.WithoutCancel(ctx), workspaceFiles(j.req.Inputs), func(cause error) { go s.endFull(own.workspace, cause) },
		workspaceFull)
	if err != nil {
		return err
	}
	own.workspace.users, own.workspace.release = 1, func() {
		if err := release(); err != nil {
			s.log.ErrorContext(ctx, "closing the workspace of a session failed", "error", err)
		}
	}
	j.req.Inputs = nil
	volume := w.Volume()
	volume.CapSettings = workspaceFields
	j.req.Policy.Volumes = append(j.req.Policy.Volumes, volume)
	return nil
}

// endFull ends the sessions whose workspace is full, with their cells first.
func (s *Server) endFull(w *sharedWorkspace, cause error) {
	<-w.opened
	var full []*servedSession
	s.sessions.mu.Lock()
	for _, own := range s.sessions.open {
		if own.workspace == w {
			full = append(full, own)
		}
	}
	s.sessions.mu.Unlock()
	for _, own := range full {
		own.mu.Lock()
		cell := own.cell
		own.mu.Unlock()
		if cell != nil {
			cell.cancel(cause)
			select {
			case <-cell.over:
			case <-time.After(stopTimeout):
			}
		}
		own.Close()
	}
}

// sessionClosed removes what the server has for a session that has ended.
func (s *Server) sessionClosed(id, owner, why string) {
	s.sessions.mu.Lock()
	own := s.sessions.open[id]
	delete(s.sessions.open, id)
	s.sessions.mu.Unlock()
	if own == nil {
		return // it was never handed out, or is handed out now: openSession looks again
	}
	s.sessions.cells.forgetGroup(owner, id+"/")
	own.workspace.leave()
	s.observer.Session(context.Background(), SessionEvent{ID: id, Owner: owner, Language: own.Language().Name, Ended: why})
}

// isOpen reports whether a session has not ended.
func (s *Server) isOpen(id string) bool {
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	return s.sessions.open[id] != nil
}

// listSessions handles GET /v1/sessions.
func (s *Server) listSessions(w http.ResponseWriter, r *http.Request) error {
	if s.sessions.manager == nil {
		return noSessions()
	}
	if _, err := readQuery(r); err != nil {
		return err
	}
	list := wire.SessionList{Sessions: []session.Info{}}
	for _, own := range s.sessions.manager.List(PrincipalFrom(r.Context()).ID) {
		if info := own.Info(); info.State != session.StateClosed {
			list.Sessions = append(list.Sessions, info)
		}
	}
	return answerJSON(w, http.StatusOK, list)
}

// showSession handles GET /v1/sessions/{id}.
func (s *Server) showSession(w http.ResponseWriter, r *http.Request, own *servedSession) error {
	if _, err := readQuery(r); err != nil {
		return err
	}
	return answerJSON(w, http.StatusOK, own.Info())
}

// closeSession handles DELETE /v1/sessions/{id}.
func (s *Server) closeSession(w http.ResponseWriter, r *http.Request, own *servedSession) error {
	if _, err := readQuery(r); err != nil {
		return err
	}
	own.Close()
	w.WriteHeader(http.StatusNoContent)
	return nil
}
