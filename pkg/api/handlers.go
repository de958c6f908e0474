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

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// handler answers a request; its error becomes a problem, if nothing was answered.
type handler func(w http.ResponseWriter, r *http.Request) error

func (s *Server) handler(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			s.fail(w, r, err)
		}
	})
}

// answerJSON writes a document, which may be in pieces, as it is.
func answerJSON(w http.ResponseWriter, status int, document ...[]byte) {
	h := w.Header()
	h.Set("Content-Type", wire.TypeJSON)
	h.Set("Cache-Control", "no-store")
	size := 0
	for _, piece := range document {
		size += len(piece)
	}
	h.Set("Content-Length", strconv.Itoa(size))
	w.WriteHeader(status)
	for _, piece := range document {
		if _, err := w.Write(piece); err != nil {
			return // who does not read on does not want it
		}
	}
}

// answerDocument answers with a document that may be large and is written in parts, which have so many bytes together. A client may take its time for
// all of it, but not for any part.
func answerDocument(w http.ResponseWriter, size int64, parts ...io.WriterTo) {
	h := w.Header()
	h.Set("Content-Type", wire.TypeJSON)
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	control := http.NewResponseController(w)
	out := writerFunc(func(b []byte) (int, error) {
		_ = control.SetWriteDeadline(time.Now().Add(stallMost)) // there is no connection in some tests
		return w.Write(b)
	})
	w.WriteHeader(http.StatusOK)
	for _, p := range parts {
		if _, err := p.WriteTo(out); err != nil {
			return // the client has gone, or hears by the length that this is not all
		}
	}
	_ = control.Flush()
	_ = control.SetWriteDeadline(time.Time{}) // the connection may serve others
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// readQuery reads the query and refuses what is not known, or given twice.
func readQuery(r *http.Request, known ...string) (url.Values, error) {
	if r.URL.RawQuery == "" {
		return nil, nil
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, newProblem(wire.CodeMalformed, "the query can not be read: %s", err)
	}
	for name, values := range query {
		switch {
		case !slices.Contains(known, name):
			return nil, wrongField(wire.CodeInvalid, clipped(name), "there is no such parameter; there is %s", strings.Join(known, ", "))
		case len(values) > 1:
			return nil, wrongField(wire.CodeInvalid, name, "it is given %d times", len(values))
		}
	}
	return query, nil
}

func clipped(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// readRun reads the body of a run.
func (s *Server) readRun(w http.ResponseWriter, r *http.Request) (run *wire.Run, body []byte, release func(), err error) {
	if _, err := readQuery(r); err != nil {
		return nil, nil, nil, err
	}
	body, release, err = s.readBody(w, r)
	if err != nil {
		return nil, nil, nil, err
	}
	if run, err = wire.Decode(body); err != nil {
		release()
		return nil, nil, nil, err
	}
	return run, body, release, nil
}

// run is POST /v1/run: the whole result, or events while they happen. A client that goes away cancels its run.
func (s *Server) run(w http.ResponseWriter, r *http.Request) error {
	kind, err := negotiate(r, wire.TypeJSON, wire.TypeSSE, wire.TypeNDJSON)
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
	j, err := s.prepare(r.Context(), PrincipalFrom(r.Context()), way, run, digestOf(body))
	if err != nil {
		return err
	}
	ctx, a, err := s.enlist(r.Context())
	if err != nil {
		return err
	}
	defer s.discharge(a)
	s.onTheSpot(a, j)
	in := attach(ctx, j)
	defer in.close()
	w.Header().Set(wire.HeaderRunID, j.ID)
	if way == WayStream {
		return s.runStream(ctx, w, kind, j, a)
	}
	f := s.perform(ctx, j)
	if f.Err != nil {
		return &ranError{f.Err}
	}
	defer f.Close()
	letGo := s.results.keep(j.Principal.ID, f.Document.Memory())
	defer letGo()
	setReceipt(w, j)
	answerDocument(w, f.Document.Size()+1, f.Document, strings.NewReader("\n"))
	return nil
}

func setReceipt(w http.ResponseWriter, j *job) {
	if j.receipt != nil {
		w.Header().Set(wire.HeaderReceipt, base64.StdEncoding.EncodeToString(j.receipt))
	}
}

// runStream runs a job and sends its events. Until the first of them, what goes wrong has a status of its own.
func (s *Server) runStream(ctx context.Context, w http.ResponseWriter, kind string, j *job, a *active) error {
	out := newStream(w, kind)
	defer out.end()
	welcome := whenUnwelcome(ctx, out.hurry)
	defer welcome()
	quiet := out.beats()
	defer quiet()
	feed := &live{to: func(seq uint64, line []byte) {
		if err := out.write(seq, line); err != nil {
			a.stop(err)
		}
	}}
	j.req.OnEvent = feed.event
	f := s.perform(ctx, j)
	next := feed.end()
	switch {
	case f.Err != nil && !out.started():
		return &ranError{f.Err}
	case f.Err != nil:
		_ = out.notice(wire.Notice{Kind: wire.KindError, Problem: s.Problem(ctx, f.Err)})
	default:
		defer f.Close()
		letGo := s.results.keep(j.Principal.ID, f.Document.Memory())
		defer letGo()
		_ = out.writeResult(next, newResultLine(next, time.Now(), f.Document))
		if j.receipt != nil {
			_ = out.notice(wire.Notice{Kind: wire.KindReceipt, Receipt: j.receipt})
		}
	}
	return nil
}
