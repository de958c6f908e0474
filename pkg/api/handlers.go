package api

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/internal/stream"
	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
)

// handler answers a request. Its error is sent as a problem, if no answer was begun.
type handler func(w http.ResponseWriter, r *http.Request) error

func (s *Server) handler(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			s.Fail(w, r, err)
		}
	})
}

// answerJSON sends a document. It returns nil: a write fails when the client is gone.
func answerJSON(w http.ResponseWriter, status int, document any) error {
	text := wire.AppendJSON(nil, document)
	h := w.Header()
	h.Set("Content-Type", wire.TypeJSON)
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text)
	return nil
}

// answerDocument sends a document of that size in parts. Each part, not the whole, has a time limit.
func answerDocument(w http.ResponseWriter, size int64, parts ...io.WriterTo) {
	h := w.Header()
	h.Set("Content-Type", wire.TypeJSON)
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	control := http.NewResponseController(w)
	out := writerFunc(func(b []byte) (int, error) {
		_ = control.SetWriteDeadline(time.Now().Add(stream.StallTimeout)) // fails without a connection, as in some tests
		return w.Write(b)
	})
	w.WriteHeader(http.StatusOK)
	for _, p := range parts {
		if _, err := p.WriteTo(out); err != nil {
			return // the client is gone, or sees by the length that the document is incomplete
		}
	}
	_ = control.Flush()
	_ = control.SetWriteDeadline(time.Time{}) // the connection may serve other requests
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// readQuery reads the query and refuses unknown and repeated parameters.
func readQuery(r *http.Request, known ...string) (url.Values, error) {
	if r.URL.RawQuery == "" {
		return nil, nil
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, wire.NewProblem(wire.CodeMalformed, "query: decode: %s", err)
	}
	for name, values := range query {
		switch {
		case !slices.Contains(known, name):
			return nil, wire.WrongField(wire.CodeInvalid, wire.Clip(name), "unknown parameter; use one of %s", strings.Join(known, ", "))
		case len(values) > 1:
			return nil, wire.WrongField(wire.CodeInvalid, name, "given %d times; give it once", len(values))
		}
	}
	return query, nil
}

// readRun reads and decodes the body of a run. The caller calls release when it no longer uses the body.
func (s *Server) readRun(w http.ResponseWriter, r *http.Request) (run *wire.Run, body []byte, release func(), err error) {
	if _, err := readQuery(r); err != nil {
		return nil, nil, nil, err
	}
	body, release, err = s.ReadBody(w, r)
	if err != nil {
		return nil, nil, nil, err
	}
	if run, err = wire.Decode(body); err != nil {
		release()
		return nil, nil, nil, err
	}
	return run, body, release, nil
}

// run handles POST /v1/run: the whole result, or a stream of events. A client that disconnects cancels its run.
func (s *Server) run(w http.ResponseWriter, r *http.Request) error {
	kind, err := Negotiate(r, wire.TypeJSON, wire.TypeSSE, wire.TypeNDJSON)
	if err != nil {
		return err
	}
	run, body, release, err := s.readRun(w, r)
	if err != nil {
		return err
	}
	defer release()
	way := WayRun
	if kind != wire.TypeJSON {
		way = WayStream
	}
	j, err := s.prepare(PrincipalFrom(r.Context()), way, run, audit.Digest(body))
	if err != nil {
		return err
	}
	return s.answer(w, r, kind, j)
}

// answer runs a job, and sends its result or its events.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, kind string, j *job) error {
	ctx, a, err := s.registerRun(r.Context())
	if err != nil {
		return err
	}
	defer s.unregisterRun(a)
	s.setWaitingJob(a, j)
	in := attach(j)
	defer in.close()
	w.Header().Set(wire.HeaderRunID, j.ID)
	if j.Way == WayStream {
		return s.runStream(ctx, w, kind, j, a)
	}
	f := s.runJob(ctx, j)
	if f.Err != nil {
		return &ranError{f.Err}
	}
	defer f.Close()
	releaseResult := s.results.count(j.Principal.ID, f.Document.Memory())
	defer releaseResult()
	setReceipt(w, j)
	answerDocument(w, f.Document.Size()+1, f.Document, strings.NewReader("\n"))
	return nil
}

func setReceipt(w http.ResponseWriter, j *job) {
	if j.receipt != nil {
		w.Header().Set(wire.HeaderReceipt, base64.StdEncoding.EncodeToString(j.receipt))
	}
}

// runStream runs a job and sends its events. Before the first event, an error has a status of its own.
func (s *Server) runStream(ctx context.Context, w http.ResponseWriter, kind string, j *job, a *active) error {
	out, done := newEventStream(ctx, w, kind)
	defer done()
	feed := &live{to: func(seq uint64, line []byte) {
		if err := out.portion(portion{first: seq, data: line}); err != nil {
			a.stop(err)
		}
	}}
	j.req.OnEvent = feed.event
	f := s.runJob(ctx, j)
	next := feed.end()
	switch {
	case f.Err != nil && !out.Started():
		return &ranError{f.Err}
	case f.Err != nil:
		_ = out.notice(wire.Notice{Kind: wire.KindError, Problem: s.Problem(ctx, f.Err)})
	default:
		defer f.Close()
		release := s.results.count(j.Principal.ID, f.Document.Memory())
		defer release()
		_ = newResultLine(next, time.Now(), f.Document).send(next, out.portion)
		if j.receipt != nil {
			_ = out.notice(wire.Notice{Kind: wire.KindReceipt, Receipt: j.receipt})
		}
	}
	return nil
}
