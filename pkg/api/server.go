package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/sandbox-run/sandbox-run/pkg/api/internal/interval"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// ErrUnauthorized is the error of an Authenticator for an invalid token.
var ErrUnauthorized = errors.New("no such token")

// errDraining ends runs when the server does.
var errDraining = errors.New("the server is shutting down")

// errForgotten cancels a run that its owner has deleted.
var errForgotten = errors.New("its owner cancelled the run")

// Access is the access rule of a route.
type Access struct {
	// Scope is the scope that a principal needs; empty: any principal.
	Scope string
	// Public routes need no token.
	Public bool
	// Draining routes answer while the server drains, too.
	Draining bool
}

// Server is the HTTP API. See the package comment for its lifecycle.
type Server struct {
	opts       Options
	log        *slog.Logger
	observer   Observer
	mux        *http.ServeMux
	operations *huma.OpenAPI
	spec       specification
	runs       *runStore
	sessions   sessions
	uploads    *uploads
	bodies     memoryAccount // bodies in memory
	results    memoryAccount // results in memory, which clients may be slow to read
	outputs    sandbox.OutputStore
	deep       deepCheck
	scratch    string // a temporary directory to remove at the end; empty: none

	closing context.Context // ends with Close
	close   context.CancelFunc
	serving sync.WaitGroup // asynchronous runs

	stopReviews []func() // of what is kept, and of the keys of requests under way

	mu            sync.Mutex
	draining      bool
	closed        bool
	active        map[*active]struct{}
	authenticated map[*authenticatedRequest]struct{}
	queued        int            // runs in active that wait for admission
	running       sync.WaitGroup // the runs in active; none is added once draining is set
	ended         bool           // Close refuses further requests
	requests      sync.WaitGroup // being answered; none is added once ended is set
}

// active is a run under way, from its acceptance to its end.
type active struct {
	stop context.CancelCauseFunc
	job  *job // of a run whose client waits for the answer; nil: an asynchronous run
}

// New makes a server and loads the runs that an earlier one left in Options.Dir. The caller closes it.
func New(o Options) (*Server, error) {
	if o.Executor == nil {
		return nil, errors.New("api: no executor; set Options.Executor")
	}
	o.Policy, o.Keep = o.Policy.withDefaults(), o.Keep.withDefaults(o.Auth != nil)
	s := &Server{
		opts: o, log: o.Log, observer: o.Observer, mux: http.NewServeMux(), active: map[*active]struct{}{},
		authenticated: map[*authenticatedRequest]struct{}{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.observer == nil {
		s.observer = Observers{}
	}
	dir, durable := o.Dir, o.Dir != ""
	if !durable {
		var err error
		if dir, err = os.MkdirTemp("", "sandbox-run-api-"); err != nil {
			return nil, err
		}
		s.scratch = dir
	}
	st, err := openStore(filepath.Join(dir, "runs"), durable)
	if err != nil {
		s.removeScratch()
		return nil, err
	}
	if s.uploads, err = openUploads(filepath.Join(dir, "files"), o.Keep, o.Auth != nil); err != nil {
		st.close()
		s.removeScratch()
		return nil, err
	}
	s.outputs.Limit, s.outputs.Dir = o.Keep.Spill, dir
	if !durable {
		s.outputs.Dir = "" // the temporary directory may be in memory
	}
	s.closing, s.close = context.WithCancel(context.Background())
	s.runs = newRunStore(st, o.Keep)
	s.openSessions()
	s.routes()
	s.loadRuns()
	s.stopReviews = []func(){
		interval.Start(10*time.Second, func() {
			s.runs.prune()
			s.sessions.cells.prune()
			s.uploads.removeExpired()
		}),
		interval.Start(checkInterval, s.endRevoked),
	}
	return s, nil
}

// checkInterval is how often the keys of requests under way are checked.
const checkInterval = time.Second

// Handler returns the handler of all routes.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// Mount adds a route of another package, with the server's checks. pattern is that of http.ServeMux, with a method.
func (s *Server) Mount(pattern string, a Access, h http.Handler) {
	s.mux.Handle(pattern, s.withChecks(a, h))
}

// serve is the outermost handler: it turns panics and unknown routes into problems.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	answer := &answer{ResponseWriter: w}
	if !s.beginRequest() {
		WriteProblem(w, draining())
		return
	}
	defer s.requests.Done()
	w.Header().Set("X-Content-Type-Options", "nosniff")
	defer func() {
		if cause := recover(); cause != nil {
			s.answerPanic(answer, r, cause)
		}
	}()
	handler, pattern := s.mux.Handler(r)
	if pattern == "" {
		s.answerUnknown(answer, r, handler)
		return
	}
	s.mux.ServeHTTP(answer, r)
}

// beginRequest counts a request, unless the server has ended.
func (s *Server) beginRequest() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.requests.Add(1)
	}
	return !s.ended
}

// refuseRequests refuses further requests, and waits a while for those under way. It returns whether they have ended.
func (s *Server) refuseRequests() bool {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	select {
	case <-whenDone(&s.requests):
		return true
	case <-time.After(requestsTimeout):
		return false
	}
}

// whenDone returns a channel that is closed when the group is done.
func whenDone(group *sync.WaitGroup) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		group.Wait()
	}()
	return done
}

// requestsTimeout bounds the end of requests after all runs have ended.
const requestsTimeout = 10 * time.Second

// answer records whether an answer was begun.
type answer struct {
	http.ResponseWriter
	begun bool
}

func (a *answer) WriteHeader(status int) {
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	a.begun = true
	return a.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController find the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// answerPanic answers for a handler that panicked with a problem that has only an id.
func (s *Server) answerPanic(a *answer, r *http.Request, cause any) {
	if cause == http.ErrAbortHandler { //nolint:errorlint // net/http compares it by identity
		panic(cause)
	}
	p, id := newFailure()
	s.log.ErrorContext(r.Context(), "panic", "id", id, "route", r.Pattern, "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
	if a.begun {
		panic(http.ErrAbortHandler) // abort: the client must not see a partial answer as complete
	}
	WriteProblem(a, p)
}

// answerUnknown answers a request without a route: 404, or 405 with the allowed methods.
func (s *Server) answerUnknown(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	seen := &headRecorder{header: http.Header{}}
	handler.ServeHTTP(seen, r)
	if seen.status == http.StatusMethodNotAllowed {
		allow := seen.header.Get("Allow")
		w.Header().Set("Allow", allow)
		p := wire.NewProblem(wire.CodeMethod, "method: %.40q is not supported here", r.Method)
		p.Hint = "use " + allow
		s.Fail(w, r, p)
		return
	}
	p := wire.NewProblem(wire.CodeNotFound, "path: %.200q is not one of the API", r.URL.Path)
	p.Hint = wire.DescribeRequests
	s.Fail(w, r, p)
}

// headRecorder records status and headers of an answer.
type headRecorder struct {
	header http.Header
	status int
}

func (v *headRecorder) Header() http.Header         { return v.header }
func (v *headRecorder) WriteHeader(status int)      { v.status = status }
func (v *headRecorder) Write(b []byte) (int, error) { return len(b), nil }

// withChecks authenticates and authorizes requests, then calls the middleware and the handler.
func (s *Server) withChecks(a Access, h http.Handler) http.Handler {
	for i := len(s.opts.Middleware) - 1; i >= 0; i-- {
		h = s.opts.Middleware[i](h)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.Public {
			p, err := s.authenticate(r)
			if err == nil && !p.may(a.Scope) {
				r = r.WithContext(context.WithValue(r.Context(), principalKey{}, p))
				err = wire.NewProblem(wire.CodeForbidden, "key: it needs the scope %s", a.Scope)
			}
			if err != nil {
				s.Fail(w, r, err)
				return
			}
			s.setVersion(w)
			var leave func()
			r, leave = s.registerRequest(r, p)
			defer leave()
		}
		if !a.Draining && s.isDraining() {
			s.Fail(w, r, draining())
			return
		}
		h.ServeHTTP(w, r)
	})
}

// setVersion adds the server's version to the answer, for authenticated clients only.
func (s *Server) setVersion(w http.ResponseWriter) {
	if s.opts.Version != "" {
		w.Header().Set(wire.HeaderVersion, s.opts.Version)
	}
}

// owner is the principal of every client of a server without keys.
var owner = &Principal{ID: "owner", Name: "owner"}

// maxToken is longer than any valid token.
const maxToken = 4096

func (s *Server) authenticate(r *http.Request) (*Principal, error) {
	if p, ok := r.Context().Value(principalOf{}).(*Principal); ok {
		return p, nil
	}
	if s.opts.Auth == nil {
		return owner, nil
	}
	token := r.Header.Get(wire.HeaderKey)
	if header := r.Header.Get("Authorization"); header != "" {
		scheme, rest, _ := strings.Cut(header, " ")
		if token = strings.TrimSpace(rest); !strings.EqualFold(scheme, "Bearer") {
			return nil, unauthorized()
		}
	}
	if len(token) > maxToken {
		return nil, unauthorized()
	}
	p, err := s.opts.Auth.Authenticate(r.Context(), token)
	if errors.Is(err, ErrUnauthorized) || err == nil && p == nil {
		return nil, unauthorized()
	}
	return p, err
}

// unauthorized is the same for every invalid token, so that it reveals nothing.
func unauthorized() error {
	return wire.NewProblem(wire.CodeUnauthorized, "Authorization: the request has no valid token")
}

// may reports whether a principal has a scope. No scopes means all; admin includes all; run includes read.
func (p *Principal) may(scope string) bool {
	if scope == "" || len(p.Scopes) == 0 {
		return true
	}
	for _, has := range p.Scopes {
		if has == scope || has == ScopeAdmin || has == ScopeRun && scope == ScopeRead {
			return true
		}
	}
	return false
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// registerRun counts a run as under way. Its context ends with the caller's, or when the server cancels the run. The caller calls
// unregisterRun.
func (s *Server) registerRun(ctx context.Context) (context.Context, *active, error) {
	ctx, stop := context.WithCancelCause(ctx)
	a := &active{stop: stop}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		stop(errDraining)
		return nil, nil, errDraining
	}
	s.active[a] = struct{}{}
	s.running.Add(1)
	return ctx, a, nil
}

// setWaitingJob makes a run cancellable by its id while its client waits for the answer.
func (s *Server) setWaitingJob(a *active, j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.job = j
}

// cancelWaiting cancels such a run, if there is one with that id and owner, and returns it.
func (s *Server) cancelWaiting(id, owner string) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.active {
		if a.job != nil && a.job.ID == id && a.job.Principal.ID == owner {
			a.stop(errForgotten)
			return a.job
		}
	}
	return nil
}

func (s *Server) unregisterRun(a *active) {
	a.stop(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.active, a)
	s.running.Done()
}

// addQueued changes the number of runs that wait for admission.
func (s *Server) addQueued(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued += by
}

// stopTimeout bounds the end of cancelled runs: their grace, and the cleanup.
const stopTimeout = 30 * time.Second

// Drain stops accepting (503) and blocks until the runs have ended. When ctx ends, it cancels them and returns ctx's error. With a Dir, the
// next server runs accepted runs that have not begun. It may be called again.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	idle := whenDone(&s.running)
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for a := range s.active {
		a.stop(errDraining)
	}
	s.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(stopTimeout):
		return fmt.Errorf("api: drain: runs did not end in time: %w", context.Cause(ctx))
	}
	return context.Cause(ctx)
}

// Close cancels all runs and waits until they have ended. It may be called twice.
func (s *Server) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		<-s.closing.Done()
		return nil
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errDraining)
	err := s.Drain(ctx)
	if errors.Is(err, errDraining) && !strings.HasPrefix(err.Error(), "api:") {
		err = nil // the cancellation was intended
	}
	s.close()
	for _, stop := range s.stopReviews {
		stop()
	}
	s.serving.Wait()
	s.closeSessions()
	if !s.refuseRequests() {
		return errors.Join(err, errors.New("api: close: some clients do not read their answers; their files stay open"))
	}
	s.runs.store.close()
	s.uploads.close()
	s.removeScratch()
	return err
}

// removeScratch removes the temporary directory. It has only files that the server named.
func (s *Server) removeScratch() {
	if s.scratch == "" {
		return
	}
	for _, sub := range []string{"runs", "files", ""} {
		dir := filepath.Join(s.scratch, sub)
		if names, err := os.ReadDir(dir); err == nil {
			for _, n := range names {
				_ = os.Remove(filepath.Join(dir, n.Name()))
			}
		}
		_ = os.Remove(dir)
	}
}
