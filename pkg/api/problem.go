package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/image"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// titles are the kinds of problem in words, with their status.
var titles = map[string]struct {
	status int
	title  string
}{
	wire.CodeInvalid:      {http.StatusUnprocessableEntity, "A field of the request is wrong"},
	wire.CodeMalformed:    {http.StatusBadRequest, "The request is not as HTTP or JSON want it"},
	wire.CodeTooLarge:     {http.StatusRequestEntityTooLarge, "The body is too large"},
	wire.CodeTooSlow:      {http.StatusRequestTimeout, "The body did not come in time"},
	wire.CodeMediaType:    {http.StatusUnsupportedMediaType, "The body is of another type than is understood"},
	wire.CodeUnauthorized: {http.StatusUnauthorized, "A valid token is needed"},
	wire.CodeForbidden:    {http.StatusForbidden, "The token does not allow this"},
	wire.CodeRefused:      {http.StatusForbidden, "Refused by policy"},
	wire.CodeCeiling:      {http.StatusForbidden, "A limit is above what the operator allows"},
	wire.CodeNotFound:     {http.StatusNotFound, "There is no such thing"},
	wire.CodeMethod:       {http.StatusMethodNotAllowed, "The method is not for this path"},
	wire.CodeNotAccepted:  {http.StatusNotAcceptable, "There is no answer of that type"},
	wire.CodeConflict:     {http.StatusConflict, "Not possible in this state"},
	wire.CodeGone:         {http.StatusGone, "It is no longer kept"},
	wire.CodeTooMany:      {http.StatusTooManyRequests, "Your share is used up for now"},
	wire.CodeBusy:         {http.StatusServiceUnavailable, "The server is busy"},
	wire.CodeDraining:     {http.StatusServiceUnavailable, "The server is about to end"},
	wire.CodeUnsupported:  {http.StatusNotImplemented, "This server has no such ability"},
	wire.CodeMissing:      {http.StatusNotImplemented, "What the program needs is not installed here"},
	wire.CodeNotStarted:   {http.StatusUnprocessableEntity, "The program could not be started"},
	wire.CodeCancelled:    {http.StatusConflict, "The run was called off before it began"},
	wire.CodeLost:         {http.StatusInternalServerError, "The server ended while the run was under way"},
	wire.CodeClosed:       {499, "The client went away"},
	wire.CodeInternal:     {http.StatusInternalServerError, "The server failed"},
}

// newProblem makes a problem of a code and what is wrong.
func newProblem(code, format string, args ...any) *wire.Problem {
	t := titles[code]
	return &wire.Problem{Type: wire.ProblemBase + code, Code: code, Title: t.title, Status: t.status, Detail: fmt.Sprintf(format, args...)}
}

// wrongField is a problem with one field.
func wrongField(code, field, format string, args ...any) *wire.Problem {
	message := fmt.Sprintf(format, args...)
	p := newProblem(code, "%s: %s", field, message)
	p.Errors = []wire.FieldError{{Field: field, Message: message}}
	return p
}

// Problem turns any error of this package, of the engine or of a seam into an answer. What is our own failure is logged under an id, and told
// in full only to the owner of the server: it may name what is not everybody's business (A1).
func (s *Server) Problem(ctx context.Context, err error) *wire.Problem {
	var (
		known   *wire.Problem
		refusal *Refusal
		large   *http.MaxBytesError
		timeout net.Error
		missing *toolchain.Missing
		none    *executor.NoImage
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &refusal):
		return refusal.problem()
	case errors.As(err, &large):
		return newProblem(wire.CodeTooLarge, "the body is larger than %s", sandbox.Size(large.Limit))
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return newProblem(wire.CodeTooSlow, "send the body faster, or in parts by PUT %s/{id}", wire.PathFiles)
	case errors.As(err, &none) && none.Missing == nil:
		p := newProblem(wire.CodeMissing, "")
		p.Hint = none.How()
		p.Detail = strings.TrimSuffix(none.Error(), "; try: "+p.Hint)
		p.Errors = []wire.FieldError{{Field: "image", Message: p.Detail}}
		return p
	case errors.As(err, &missing): // says what to do, and what else
		p := newProblem(wire.CodeMissing, "")
		p.Detail = err.Error()
		return p
	case errors.Is(err, image.ErrNotFound), errors.Is(err, image.ErrAmbiguous):
		return ofEngine(wire.CodeMissing, err)
	case errors.Is(err, sandbox.ErrInvalid):
		return ofEngine(wire.CodeInvalid, err)
	case errors.Is(err, sandbox.ErrRefused):
		return ofEngine(wire.CodeRefused, err)
	case errors.Is(err, sandbox.ErrNotStarted):
		return ofEngine(wire.CodeNotStarted, err)
	case errors.Is(err, sandbox.ErrUnsupported):
		return ofEngine(wire.CodeUnsupported, err)
	case errors.Is(err, errForgotten):
		return newProblem(wire.CodeCancelled, "it was called off by its owner")
	case errors.Is(err, errDraining):
		return draining()
	case errors.Is(err, context.Canceled):
		return newProblem(wire.CodeClosed, "nobody waits for the answer any more")
	}
	return s.failure(ctx, err)
}

// failure is our own: it has an id, by which the log tells of it.
func (s *Server) failure(ctx context.Context, err error) *wire.Problem {
	id := newID()
	s.log.ErrorContext(ctx, "request failed", "id", id, "error", err)
	p := newProblem(wire.CodeInternal, "the server's log says why, under %s", id)
	p.Instance = "urn:sandbox-run:failure:" + id
	if s.opts.Auth == nil {
		p.Detail = withoutHint(err, p)
	}
	return p
}

// ofEngine says what the engine has said, under the names that fields have here.
func ofEngine(code string, err error) *wire.Problem {
	p := newProblem(code, "")
	p.Detail = withoutHint(err, p)
	var e *sandbox.Error
	if errors.As(err, &e) && e.Op != "" {
		if field := fieldOf(e.Op); field != "" {
			message := p.Detail
			if e.Err != nil {
				message = e.Err.Error()
			}
			p.Errors = []wire.FieldError{{Field: field, Message: message}}
			p.Detail = field + ": " + message
		}
	}
	return p
}

// withoutHint is an error's text with the next step in a field of its own.
func withoutHint(err error, p *wire.Problem) string {
	var e *sandbox.Error
	if errors.As(err, &e) && e.Hint != "" {
		p.Hint = e.Hint
		return strings.Replace(err.Error(), "; try: "+e.Hint, "", 1)
	}
	return err.Error()
}

// renamed are the fields that the engine calls otherwise.
var renamed = map[string]string{"lang": "language", "file": "files", "volume": "volumes", "var": "vars", "user": "uid"}

// fieldOf is the name of a field by what the engine calls it; empty for what is no field.
func fieldOf(op string) string {
	name, rest := op, ""
	if at := strings.IndexAny(op, "[."); at > 0 {
		name, rest = op[:at], op[at:]
	}
	name = strings.ReplaceAll(name, "-", "_")
	if n, ok := renamed[name]; ok {
		name = n
	}
	if !wire.IsField(name) {
		return ""
	}
	return name + rest
}

func (r *Refusal) problem() *wire.Problem {
	code := r.Code
	if code == "" {
		code = wire.CodeBusy
		if r.Status == http.StatusTooManyRequests {
			code = wire.CodeTooMany
		}
	}
	p := newProblem(code, "%s", r.Reason)
	if r.Status != 0 {
		p.Status = r.Status
	}
	p.Position, p.RetryAfter = r.Position, seconds(r.RetryAfter)
	return p
}

// seconds rounds up: earlier is no use.
func seconds(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	return int(math.Ceil(d.Seconds()))
}

func draining() *wire.Problem {
	p := newProblem(wire.CodeDraining, "it takes no more runs")
	p.RetryAfter = 5
	return p
}

// fail answers with a problem. Observers hear of it, unless it was a run's.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	ctx := r.Context()
	p := s.Problem(ctx, err)
	var ofRun *ranError
	if !errors.As(err, &ofRun) {
		s.observer.Refused(ctx, Refused{Principal: PrincipalFrom(ctx), Method: r.Method, Route: r.Pattern, Status: p.Status, Code: p.Code, Detail: p.Detail})
	}
	// What is left of the body is read on by the server, to use the connection again, and not for ever.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unreadPatience))
	WriteProblem(w, p)
}

const unreadPatience = 3 * time.Second

// ranError is the error of a run that observers have heard of.
type ranError struct{ error }

func (e *ranError) Unwrap() error { return e.error }

// WriteProblem answers with a problem.
func WriteProblem(w http.ResponseWriter, p *wire.Problem) {
	h := w.Header()
	h.Set("Content-Type", wire.TypeProblem)
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case http.StatusRequestTimeout, http.StatusRequestEntityTooLarge:
		h.Set("Connection", "close") // what is left of the body is not waited for
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(appendJSON(nil, p)) // who does not read on does not want it
}
