package api

import (
	"context"
	"errors"
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
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// Problem turns an error of this package, the executor or an interface of Options into an answer. A failure of the server is logged under
// an id. Only a server without keys sends its text, because it may reveal details of the server.
func (s *Server) Problem(ctx context.Context, err error) *wire.Problem {
	var (
		known   *wire.Problem
		refusal *Refusal
		weak    *sandbox.Refusal
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
	case errors.Is(err, session.ErrEnded):
		return endedProblem(err)
	case errors.As(err, &large):
		return wire.NewProblem(wire.CodeTooLarge, "body: it is larger than %s, the most that the operator allows", sandbox.Size(large.Limit))
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return wire.NewProblem(wire.CodeTooSlow, "body: it did not arrive in time")
	case errors.As(err, &none) && none.Missing == nil:
		p := wire.NewProblem(wire.CodeMissing, "")
		p.Hint = none.How()
		p.Detail = strings.TrimSuffix(none.Error(), "; try: "+p.Hint)
		p.Errors = []wire.FieldError{{Field: "image", Message: p.Detail}}
		return p
	case errors.As(err, &missing): // the text has the next step
		p := wire.NewProblem(wire.CodeMissing, "")
		p.Detail = err.Error()
		return p
	case errors.Is(err, image.ErrNotFound), errors.Is(err, image.ErrAmbiguous):
		return executorProblem(wire.CodeMissing, err)
	case errors.Is(err, sandbox.ErrInvalid):
		return executorProblem(wire.CodeInvalid, err)
	case errors.As(err, &weak):
		p := wire.NewProblem(wire.CodeRefused, "%s", fieldNames(weak.Detail()))
		p.Hint = fieldNames(weak.Hint())
		return p
	case errors.Is(err, sandbox.ErrRefused):
		return executorProblem(wire.CodeRefused, err)
	case errors.Is(err, sandbox.ErrNotStarted):
		return executorProblem(wire.CodeNotStarted, err)
	case errors.Is(err, sandbox.ErrUnsupported):
		return executorProblem(wire.CodeUnsupported, err)
	case errors.Is(err, errForgotten):
		return wire.NewProblem(wire.CodeCancelled, "run: its owner cancelled it")
	case errors.Is(err, errDraining):
		return draining()
	case errors.Is(err, context.Canceled):
		return wire.NewProblem(wire.CodeClosed, "connection: the client has closed it")
	}
	return s.failure(ctx, err)
}

// failure logs a failure of the server under an id, and returns a problem with that id.
func (s *Server) failure(ctx context.Context, err error) *wire.Problem {
	p, id := newFailure()
	s.log.ErrorContext(ctx, "request failed", "id", id, "error", err)
	if s.opts.Auth == nil {
		p.Detail = withoutHint(err, p)
	}
	return p
}

// newFailure makes a problem that has only an id, under which the caller logs the cause.
func newFailure() (p *wire.Problem, id string) {
	id = NewID()
	p = wire.NewProblem(wire.CodeInternal, "server: its log has the cause under id %s", id)
	p.Instance = "urn:sandbox-run:failure:" + id
	return p, id
}

// executorProblem makes a problem of an error of the executor, with the field names of the API.
func executorProblem(code string, err error) *wire.Problem {
	p := wire.NewProblem(code, "")
	p.Detail = fieldNames(withoutHint(err, p))
	if p.Hint = fieldNames(p.Hint); p.Hint == executor.DefineLanguage { // the file is the operator's
		p.Hint = "GET " + wire.PathLanguages + ", which lists the languages of this server"
	}
	if cause, advice, ok := wire.CutAdvice(p.Detail); ok {
		p.Detail, p.Hint = cause, advice
	}
	var e *sandbox.Error
	if errors.As(err, &e) && e.Op != "" {
		name, object, named := strings.Cut(e.Op, " ") // such as workspace w, read main.py
		if field := fieldOf(name); field != "" {
			message := p.Detail
			if e.Err != nil {
				message, _, _ = wire.CutAdvice(fieldNames(e.Err.Error()))
			}
			if named {
				message = object + ": " + message
			}
			p.Errors = []wire.FieldError{{Field: field, Message: message}}
			p.Detail = field + ": " + message
		}
	}
	return p
}

// withoutHint returns an error's text without its hint, which it moves to the problem's field.
func withoutHint(err error, p *wire.Problem) string {
	var e *sandbox.Error
	if errors.As(err, &e) && e.Hint != "" {
		p.Hint = e.Hint
		return strings.Replace(err.Error(), "; try: "+e.Hint, "", 1)
	}
	return err.Error()
}

// renamed are the fields with another name in the executor.
var renamed = map[string]string{
	"lang": "language", "file": "files", "read": "files", "volume": "volumes", "var": "vars", "command": "args",
}

// fieldOf returns the API's name of a field by the executor's; "" for an operation that is no field.
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

// fieldNames replaces the flags in a text of the executor by the fields of the API: `leave out --lang` becomes `leave out language`.
func fieldNames(text string) string {
	if !strings.Contains(text, "--") {
		return text
	}
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "--")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		end := strings.IndexFunc(after, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') })
		if end < 0 {
			end = len(after)
		}
		name := after[:end]
		// Inside a name of the client, such as my--test.py, it is no flag.
		if field := fieldOf(name); field != "" && (b.Len() == 0 || before != "" && strings.ContainsRune(" `(", rune(before[len(before)-1]))) {
			name = field
		} else {
			name = "--" + name
		}
		b.WriteString(name)
		text = after[end:]
	}
}

func (r *Refusal) problem() *wire.Problem {
	code := r.Code
	if code == "" {
		code = wire.CodeBusy
		if r.Status == http.StatusTooManyRequests {
			code = wire.CodeTooMany
		}
	}
	p := wire.NewProblem(code, "%s", r.Reason)
	if r.Status != 0 {
		p.Status = r.Status
	}
	p.Position, p.RetryAfter = r.Position, seconds(r.RetryAfter)
	return p
}

// seconds rounds up, so that a retry is not too early.
func seconds(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	return int(math.Ceil(d.Seconds()))
}

func draining() *wire.Problem {
	p := wire.NewProblem(wire.CodeDraining, "server: it is shutting down and accepts no more runs")
	p.RetryAfter = 5
	return p
}

// Fail answers with the problem of an error. It reports the problem to the observer, unless the error is that of a run.
func (s *Server) Fail(w http.ResponseWriter, r *http.Request, err error) {
	ctx := r.Context()
	p := s.Problem(ctx, err)
	var ofRun *ranError
	if !errors.As(err, &ofRun) {
		s.observer.Refused(ctx, refused(ctx, r, p))
	}
	// net/http reads the rest of the body, to use the connection again; bound that.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unreadTimeout))
	WriteProblem(w, p)
}

func refused(ctx context.Context, r *http.Request, p *wire.Problem) Refused {
	return Refused{Principal: PrincipalFrom(ctx), Method: r.Method, Route: r.Pattern, Status: p.Status, Code: p.Code, Detail: p.Detail}
}

const unreadTimeout = 3 * time.Second

// ranError is the error of a run that was reported to the observer already.
type ranError struct{ error }

func (e *ranError) Unwrap() error { return e.error }

// WriteProblem sends a problem.
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
		h.Set("Connection", "close") // do not read the rest of the body
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(wire.AppendJSON(nil, p)) // fails when the client is gone
}
