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

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// ErrUnauthorized is an Authenticator's word for a token that nobody has.
var ErrUnauthorized = errors.New("no such token")

// errDraining ends runs when the server does.
var errDraining = errors.New("the server is about to end")

// errForgotten ends a run that its owner has deleted.
var errForgotten = errors.New("the run was called off by its owner")

// Access is who may use a mounted route.
type Access struct {
	// Scope that a principal needs; empty: any principal.
	Scope string
	// Public: nobody is asked for a token.
	Public bool
	// Draining: it answers while the server drains, too.
	Draining bool
}

// Server is the API. See the package comment for its life.
type Server struct {
	opts     Options
	log      *slog.Logger
	observer Observer
	mux      *http.ServeMux
	api      huma.API
	spec     specification
	registry *registry
	uploads  *uploads
	held     held // bodies
	results  held // and results, which others may be slow to take
	outputs  sandbox.OutputStore
	deep     deepCheck
	scratch  string // a directory of our own to remove at the end; empty: none

	closing context.Context // ends with Close
	close   context.CancelFunc
	serving sync.WaitGroup // what runs in the background

	mu       sync.Mutex
	draining bool
	closed   bool
	active   map[*active]struct{}
	visits   map[*visit]struct{}
	idle     chan struct{} // closed when active becomes empty, if somebody waits
	queued   int           // of active, those that have not been let in
	requests int           // being answered
	quiet    chan struct{} // made by Close, closed when none is; from then on none is let in
}

// active is a run under way, from its acceptance to its end.
type active struct {
	stop context.CancelCauseFunc
	job  *job // of a run that is answered on the spot; nil: the registry has it
}

// New makes a server and takes up what an earlier one left in Options.Dir.
func New(o Options) (*Server, error) {
	if o.Engine == nil {
		return nil, errors.New("api: there is no engine")
	}
	o.Policy, o.Keep = o.Policy.withDefaults(), o.Keep.withDefaults(o.Auth != nil)
	s := &Server{opts: o, log: o.Log, observer: o.Observer, mux: http.NewServeMux(), active: map[*active]struct{}{}, visits: map[*visit]struct{}{}}
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
		s.tidy()
		return nil, err
	}
	if s.uploads, err = openUploads(filepath.Join(dir, "files"), o.Keep, o.Auth != nil); err != nil {
		st.close()
		s.tidy()
		return nil, err
	}
	s.outputs.Limit, s.outputs.Dir = o.Keep.Spill, dir
	if !durable {
		s.outputs.Dir = "" // the directory for temporary files may be in memory
	}
	s.closing, s.close = context.WithCancel(context.Background())
	s.registry = newRegistry(st, o.Keep)
	s.routes()
	s.takeUp()
	s.serving.Go(s.sweep)
	return s, nil
}

// lookEvery is how often it is looked who is still welcome.
const lookEvery = time.Second

// sweep forgets what is no longer to be kept, now and then, and sends away who is no longer welcome.
func (s *Server) sweep() {
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-ticker.C:
			s.registry.sweep()
			s.uploads.sweep()
		case <-look.C:
			s.sendAway()
		case <-s.closing.Done():
			return
		}
	}
}

// Handler is all routes.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// API is where operations can be registered that are to be in the OpenAPI document; they are behind the same checks as Mount's, with the Access that
// Operation.Metadata has under the key "access".
func (s *Server) API() huma.API { return s.api }

// Mount adds a route of somebody else's, behind the same checks as the server's own. pattern is as for http.ServeMux, with a method.
func (s *Server) Mount(pattern string, a Access, h http.Handler) {
	s.mux.Handle(pattern, s.guard(a, h))
}

// serve is around everything: whatever goes wrong becomes a problem.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	answer := &answer{ResponseWriter: w}
	if !s.arrive() {
		WriteProblem(w, draining())
		return
	}
	defer s.depart()
	w.Header().Set("X-Content-Type-Options", "nosniff")
	defer func() {
		if cause := recover(); cause != nil {
			s.recovered(answer, r, cause)
		}
	}()
	handler, pattern := s.mux.Handler(r)
	if pattern == "" {
		s.unknown(answer, r, handler)
		return
	}
	s.mux.ServeHTTP(answer, r)
}

// arrive counts a request in, unless the server has ended; depart counts it out.
func (s *Server) arrive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quiet != nil {
		return false
	}
	s.requests++
	return true
}

func (s *Server) depart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests--; s.requests == 0 && s.quiet != nil {
		close(s.quiet)
	}
}

// silence lets no more requests in, and waits a while for those that are being answered. It reports whether they are gone.
func (s *Server) silence() bool {
	s.mu.Lock()
	s.quiet = make(chan struct{})
	if s.requests == 0 {
		close(s.quiet)
	}
	quiet := s.quiet
	s.mu.Unlock()
	select {
	case <-quiet:
		return true
	case <-time.After(quietPatience):
		return false
	}
}

// quietPatience is how long an answer may take to end once everything that it is about has.
const quietPatience = 10 * time.Second

// answer remembers whether anything was said.
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

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// recovered answers for a handler that panicked: an id, and nothing of ours beyond.
func (s *Server) recovered(a *answer, r *http.Request, cause any) {
	if cause == http.ErrAbortHandler { //nolint:errorlint // it is thrown as it is
		panic(cause)
	}
	id := newID()
	s.log.ErrorContext(r.Context(), "panic", "id", id, "route", r.Pattern, "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
	if a.begun {
		panic(http.ErrAbortHandler) // the client must not take half an answer for a whole one
	}
	p := newProblem(wire.CodeInternal, "the server's log says why, under %s", id)
	p.Instance = "urn:sandbox-run:failure:" + id
	WriteProblem(a, p)
}

// unknown answers what no route is for, as the mux sees it: 404, or 405 with the methods that there are.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	seen := &verdict{header: http.Header{}}
	handler.ServeHTTP(seen, r)
	if seen.status == http.StatusMethodNotAllowed {
		allow := seen.header.Get("Allow")
		w.Header().Set("Allow", allow)
		s.fail(w, r, newProblem(wire.CodeMethod, "%.40q is none of %s", r.Method, allow))
		return
	}
	p := newProblem(wire.CodeNotFound, "there is nothing at %.200q", r.URL.Path)
	p.Hint = "GET " + wire.PathOpenAPI
	s.fail(w, r, p)
}

// verdict is an answer of which only the beginning is wanted.
type verdict struct {
	header http.Header
	status int
}

func (v *verdict) Header() http.Header         { return v.header }
func (v *verdict) WriteHeader(status int)      { v.status = status }
func (v *verdict) Write(b []byte) (int, error) { return len(b), nil }

// guard finds out whose request it is, and whether he may. Middleware comes after it.
func (s *Server) guard(a Access, h http.Handler) http.Handler {
	for i := len(s.opts.Middleware) - 1; i >= 0; i-- {
		h = s.opts.Middleware[i](h)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.Public {
			p, err := s.authenticate(r)
			if err == nil && !p.may(a.Scope) {
				r = r.WithContext(context.WithValue(r.Context(), principalKey{}, p))
				err = newProblem(wire.CodeForbidden, "it needs the scope %s", a.Scope)
			}
			if err != nil {
				s.fail(w, r, err)
				return
			}
			s.introduce(w)
			var leave func()
			r, leave = s.begin(r, p)
			defer leave()
		}
		if !a.Draining && s.isDraining() {
			s.fail(w, r, draining())
			return
		}
		h.ServeHTTP(w, r)
	})
}

// introduce says which version this is, to clients that may know.
func (s *Server) introduce(w http.ResponseWriter) {
	if s.opts.Version != "" {
		w.Header().Set(wire.HeaderVersion, s.opts.Version)
	}
}

// owner is whoever reaches a server without keys.
var owner = &Principal{ID: "owner", Name: "owner"}

// maxToken is longer than any token, and short enough to look at.
const maxToken = 4096

func (s *Server) authenticate(r *http.Request) (*Principal, error) {
	if s.opts.Auth == nil {
		return owner, nil
	}
	token := ""
	if header := r.Header.Get("Authorization"); header != "" {
		scheme, rest, _ := strings.Cut(header, " ")
		if token = strings.TrimSpace(rest); !strings.EqualFold(scheme, "Bearer") || len(token) > maxToken {
			return nil, unauthorized()
		}
	}
	p, err := s.opts.Auth.Authenticate(r.Context(), token)
	if errors.Is(err, ErrUnauthorized) || err == nil && p == nil {
		return nil, unauthorized()
	}
	return p, err
}

// unauthorized is the same whatever is wrong with a token (A2).
func unauthorized() error {
	return newProblem(wire.CodeUnauthorized, "send Authorization: Bearer TOKEN with a token of this server")
}

// may reports whether a principal has a scope. No scopes are all; admin is all; who may run may read.
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

// enlist counts a run among those under way. Its context ends with the caller's, or when the server wants it to end.
func (s *Server) enlist(ctx context.Context) (context.Context, *active, error) {
	ctx, stop := context.WithCancelCause(ctx)
	a := &active{stop: stop}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		stop(errDraining)
		return nil, nil, errDraining
	}
	s.active[a] = struct{}{}
	return ctx, a, nil
}

// onTheSpot lets a run be called off by its id while its client waits for the answer.
func (s *Server) onTheSpot(a *active, j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.job = j
}

// callOff ends such a run, if there is one of that id and owner, and returns it.
func (s *Server) callOff(id, owner string) *job {
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

func (s *Server) discharge(a *active) {
	a.stop(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.active, a)
	if len(s.active) == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// waits counts those that are not let in yet.
func (s *Server) waits(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued += by
}

// whenIdle is closed once nothing is under way.
func (s *Server) whenIdle() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle == nil {
		s.idle = make(chan struct{})
		if len(s.active) == 0 {
			closed := s.idle
			s.idle = nil
			close(closed)
			return closed
		}
	}
	return s.idle
}

// stopPatience is how long a run may take to end once it was told to: its own grace, and what cleaning up takes.
const stopPatience = 30 * time.Second

// Drain stops accepting (503), waits until the runs are over, and cancels them when ctx ends; its error is ctx's then. What was accepted and has not
// begun by then is run by the next server, if there is a Dir. It may be called again.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	idle := s.whenIdle()
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
	case <-time.After(stopPatience):
		return fmt.Errorf("api: runs did not end in time: %w", context.Cause(ctx))
	}
	return context.Cause(ctx)
}

// Close cancels everything and waits until it is over. Twice is fine.
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
		err = nil // that they were cancelled is what was asked for
	}
	s.close()
	s.serving.Wait()
	if !s.silence() {
		return errors.Join(err, errors.New("api: some clients do not take their answers; what those are read from stays open"))
	}
	s.registry.store.close()
	s.uploads.close()
	s.tidy()
	return err
}

// tidy removes a directory of our own. There is nothing in it but files that we named.
func (s *Server) tidy() {
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
