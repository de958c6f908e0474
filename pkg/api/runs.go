package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// accept is POST /v1/runs: once it has answered, the run is not lost.
func (s *Server) accept(w http.ResponseWriter, r *http.Request) error {
	request, body, release, err := s.readRun(w, r)
	if err != nil {
		return err
	}
	defer release()
	p := PrincipalFrom(r.Context())
	j, err := s.prepare(r.Context(), p, WayAsync, request, digestOf(body))
	if err != nil {
		return err
	}
	j.key = r.Header.Get(wire.HeaderIdempotencyKey)
	if s.registry.unfinished() >= s.opts.Keep.Open {
		return &Refusal{Status: http.StatusServiceUnavailable, Reason: "too many runs wait already", RetryAfter: 5 * time.Second}
	}
	letGo := func() {}
	if ready, ok := s.opts.Admission.(Ready); ok {
		if letGo, err = ready.Reserve(j.ask); err != nil {
			return err
		}
	}
	ctx, a, err := s.enlist(context.WithoutCancel(r.Context()))
	if err != nil {
		letGo()
		return err
	}
	run := s.newRunOf(ctx, a, j, body)
	if err := s.registry.store.accept(&run.record); err != nil {
		letGo()
		s.discharge(a)
		return fmt.Errorf("keep the run: %w", err)
	}
	s.start(ctx, a, run, j, letGo)
	info := run.info(false)
	w.Header().Set("Location", wire.PathRuns+"/"+j.ID)
	w.Header().Set(wire.HeaderRunID, j.ID)
	answerJSON(w, http.StatusAccepted, appendJSON(nil, info))
	return nil
}

// newRunOf makes the run of a job that nobody knows of yet.
func (s *Server) newRunOf(ctx context.Context, a *active, j *job, body []byte) *run {
	r := newRun(record{
		ID: j.ID, Principal: *j.Principal, Accepted: j.Accepted, State: wire.StateQueued, Language: j.Language, Labels: j.run.Policy.Labels, Digest: j.digest,
		Request: json.RawMessage(body), Key: j.key,
	}, newJournal(s.registry.store.dir, j.ID, &s.opts.Keep))
	r.stop, r.input, r.request = a.stop, attach(ctx, j), j.run
	return r
}

// start makes a run known and sets it going.
func (s *Server) start(ctx context.Context, a *active, r *run, j *job, letGo func()) {
	s.registry.add(r)
	j.retry, j.ask.Accepted, j.ask.OnPosition = true, true, r.setPosition
	j.started = func() {
		letGo()
		if err := s.registry.store.begin(j.ID); err != nil {
			s.log.ErrorContext(ctx, "a run that begins could not be marked", "run", j.ID, "error", err)
		}
		r.begun()
		r.input.wait(s.opts.Keep.Interactive)
	}
	// What was asked for stays in memory until it is done, and may wait for long.
	release := s.held.keep(r.owner, len(r.record.Request))
	s.serving.Go(func() {
		defer s.discharge(a)
		defer letGo()
		defer release()
		s.async(ctx, r, j)
	})
}

// async runs an accepted job to its end, and keeps what became of it.
func (s *Server) async(ctx context.Context, r *run, j *job) {
	feed := &live{to: func(_ uint64, line []byte) { r.journal.append(ctx, line) }}
	j.req.OnEvent = feed.event
	f := s.perform(ctx, j)
	feed.end()
	r.input.close()
	if f.Err != nil && ctx.Err() != nil {
		f.Err = context.Cause(ctx) // rather than that something was cancelled
	}
	if f.Started.IsZero() && errors.Is(f.Err, errDraining) && s.registry.store.durable {
		_ = r.journal.close(nil)
		r.journal.end()
		return // the next server runs it
	}
	s.conclude(ctx, r, f, j.receipt)
}

// conclude writes down what became of a run, and only then lets anybody know.
func (s *Server) conclude(ctx context.Context, r *run, f *Finished, receipt json.RawMessage) {
	r.mu.Lock()
	c := r.record
	r.mu.Unlock()
	ended := f.Ended
	c.Ended, c.State, c.Receipt, c.Request = &ended, wire.StateDone, receipt, nil
	if f.Err != nil {
		if c.Problem = s.Problem(ctx, f.Err); c.Problem.Code == wire.CodeCancelled {
			c.Verdict = string(sandbox.VerdictCancelled) // as if it had begun
		}
		_ = r.journal.close(nil)
	} else {
		defer f.Close()
		c.Verdict, c.Language, c.Outputs = string(f.Result.Verdict), f.Result.Language, f.Document.Spans()
		if err := r.journal.close(func(seq uint64) *resultLine { return newResultLine(seq, ended, f.Document) }); err != nil {
			c.Problem = s.Problem(ctx, fmt.Errorf("keep the result: %w", err))
			c.Verdict, c.Receipt, c.Outputs, f.Document = "", nil, nil, nil // of a result that is lost
		}
	}
	tell := s.tells(ctx, c, f.Run, f.Document)
	s.settle(ctx, r, c)
	f.Close() // it can be read from the journal
	tell()
}

// tells has a run's webhook hear of its end, once tell is called.
func (s *Server) tells(ctx context.Context, c record, run *wire.Run, document *sandbox.JSON) (tell func()) {
	if run == nil || run.Webhook == nil || s.opts.Webhooks == nil {
		return func() {}
	}
	tell, err := s.opts.Webhooks.Keep(c.Principal.ID, run.Webhook, wire.RunInfo{
		ID: c.ID, State: c.State, Language: c.Language, Labels: c.Labels, Accepted: c.Accepted, Started: c.Started, Ended: c.Ended, Verdict: c.Verdict,
		Error: c.Problem, Receipt: c.Receipt,
	}, document)
	if err != nil {
		s.log.ErrorContext(ctx, "a webhook will not hear of a run", "run", c.ID, "error", err)
		return func() {}
	}
	return tell
}

// settle keeps the record of a run that is over.
func (s *Server) settle(ctx context.Context, r *run, c record) {
	if err := s.registry.store.finish(&c, r.journal); err != nil {
		// It is known as long as this server lives. What is on disk says that it was under way, which is the truth if nobody asks before the end.
		s.log.ErrorContext(ctx, "a result could not be kept", "run", c.ID, "error", err)
	}
	r.mu.Lock()
	r.record, r.position, r.request, r.stop = c, 0, nil, nil
	r.expires = c.Ended.Add(s.opts.Keep.For)
	r.size = r.journal.bytes() + recordSize
	r.journal.end() // with mu held: a run that is done has its last event
	r.mu.Unlock()
	close(r.over)
	s.registry.ended(r)
}

// recordSize is about what a record takes.
const recordSize = 1 << 10

func (r *run) begun() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.record.State, r.record.Started, r.position = wire.StateRunning, &now, 0
}

func (r *run) setPosition(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.record.State == wire.StateQueued {
		r.position = n
	}
}

func (r *run) isOver() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record.State.Over()
}

func (r *run) problem() *wire.Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record.Problem
}

// cancel ends a run that is under way.
func (r *run) cancel(why error) {
	r.mu.Lock()
	stop := r.stop
	r.mu.Unlock()
	if stop != nil {
		stop(why)
	}
}

// takeUp is what an earlier server left: what is done is there again, what was under way is lost, and what had not begun is run.
func (s *Server) takeUp() {
	runs, problems := s.registry.store.load()
	for _, err := range problems {
		s.log.Error("a run that was kept can not be read", "error", err)
	}
	for _, f := range runs {
		switch f.State {
		case wire.StateQueued:
			s.resume(f.record)
		case wire.StateLost:
			s.lose(f)
		default:
			r := newRun(f.record, f.journal)
			r.size = f.journal.bytes() + recordSize
			if f.Ended != nil {
				r.expires = f.Ended.Add(s.opts.Keep.For)
			}
			close(r.over)
			s.registry.add(r)
		}
	}
}

// lose says of a run that nobody knows what became of it. What is kept of its events still is.
func (s *Server) lose(f found) {
	r := newRun(f.record, f.journal)
	r.record.State = wire.StateRunning // until it is settled
	s.registry.add(r)
	now := time.Now()
	c := f.record
	c.State, c.Ended, c.Request = wire.StateLost, &now, nil
	c.Problem = newProblem(wire.CodeLost, "the server ended while it was under way; nothing of it is left running")
	c.Problem.Hint = "run it again"
	request, _ := wire.Decode(f.Request) // it was read before
	tell := s.tells(context.Background(), c, request, nil)
	s.settle(context.Background(), r, c)
	tell()
}

// resume runs what was accepted before. The policy is today's.
func (s *Server) resume(c record) {
	ctx := context.Background()
	request, err := wire.Decode(c.Request)
	var j *job
	if err == nil {
		p := c.Principal
		j, err = s.prepare(ctx, &p, WayAsync, request, c.Digest)
	}
	if err != nil {
		r := newRun(c, newJournal(s.registry.store.dir, c.ID, &s.opts.Keep))
		s.registry.add(r)
		s.conclude(ctx, r, &Finished{Ended: time.Now(), Err: err, Run: request}, nil)
		return
	}
	ctx, a, err := s.enlist(ctx)
	if err != nil {
		return // it ends already; the next one runs it
	}
	j.ID, j.Accepted, j.key = c.ID, c.Accepted, c.Key
	s.start(ctx, a, s.newRunOf(ctx, a, j, c.Request), j, func() {})
}

// find is the run that a path names, if it is the principal's own.
func (s *Server) find(r *http.Request) (*run, error) {
	id := r.PathValue("id")
	run := s.registry.get(PrincipalFrom(r.Context()).ID, id)
	if run == nil {
		return nil, newProblem(wire.CodeNotFound, "there is no run %.40q, or it is no longer kept", id)
	}
	return run, nil
}

// show is GET /v1/runs/{id}.
func (s *Server) show(w http.ResponseWriter, r *http.Request) error {
	if _, err := readQuery(r); err != nil {
		return err
	}
	run, err := s.find(r)
	if err != nil {
		return err
	}
	release, err := s.results.result(run.owner, chunk)
	if err != nil {
		return err
	}
	defer release()
	info := run.info(true)
	document, leave, err := run.result()
	if err != nil {
		if _, gone := s.find(r); gone != nil {
			return gone // it was forgotten meanwhile
		}
		return err
	}
	defer leave()
	if document == nil {
		answerJSON(w, http.StatusOK, appendJSON(nil, info))
		return nil
	}
	before, after := around(info)
	answerDocument(w, int64(len(before))+document.Size()+int64(len(after)), bytes.NewReader(before), sectionWriter{document}, bytes.NewReader(after))
	return nil
}

// around is a run as JSON, before and after its result, which may be large.
func around(info wire.RunInfo) (before, after []byte) {
	place, _ := json.Marshal(newID()) // a text; nobody can have guessed it
	info.Result = place
	before, after, _ = bytes.Cut(appendJSON(nil, info), place)
	return before, after
}

// sectionWriter writes a part of a file.
type sectionWriter struct{ *io.SectionReader }

// WriteTo writes it to w.
func (s sectionWriter) WriteTo(w io.Writer) (int64, error) {
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{s.SectionReader}, make([]byte, min(chunk, s.Size())))
	if err == nil && n < s.Size() {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Pages of lists.
const (
	defaultPage = 50
	maxPage     = 500
)

// list is GET /v1/runs.
func (s *Server) list(w http.ResponseWriter, r *http.Request) error {
	query, err := readQuery(r, "limit", "cursor")
	if err != nil {
		return err
	}
	limit := defaultPage
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxPage {
			return wrongField(wire.CodeInvalid, "limit", "it is not a number from 1 to %d", maxPage)
		}
	}
	runs, next, err := s.registry.list(PrincipalFrom(r.Context()).ID, query.Get("cursor"), limit)
	if err != nil {
		return wrongField(wire.CodeInvalid, "cursor", "%s", err)
	}
	page := wire.RunList{Runs: make([]wire.RunInfo, 0, len(runs)), Next: next}
	for _, run := range runs {
		page.Runs = append(page.Runs, run.info(false))
	}
	answerJSON(w, http.StatusOK, appendJSON(nil, page))
	return nil
}

// remove is DELETE /v1/runs/{id}: it calls off a run that is under way (202), and forgets one that is over (204).
func (s *Server) remove(w http.ResponseWriter, r *http.Request) error {
	if j := s.callOff(r.PathValue("id"), PrincipalFrom(r.Context()).ID); j != nil {
		answerJSON(w, http.StatusAccepted, appendJSON(nil, &wire.RunInfo{ID: j.ID, State: wire.StateRunning, Language: j.Language, Accepted: j.Accepted}))
		return nil
	}
	run, err := s.find(r)
	if err != nil {
		return err
	}
	if run.isOver() {
		s.registry.forget(run)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	run.cancel(errForgotten)
	info := run.info(false)
	answerJSON(w, http.StatusAccepted, appendJSON(nil, info))
	return nil
}

// file is GET /v1/runs/{id}/files/{path…}: a file that the run brought back, as it is.
func (s *Server) file(w http.ResponseWriter, r *http.Request) error {
	run, err := s.find(r)
	if err != nil {
		return err
	}
	if !run.isOver() {
		return newProblem(wire.CodeConflict, "the run is not over")
	}
	if p := run.problem(); p != nil {
		return newProblem(wire.CodeNotFound, "the run has no result: %s", p.Detail)
	}
	document, leave, err := run.result()
	if err != nil {
		return err
	}
	defer leave()
	size := document.Size()
	run.mu.Lock()
	outputs := run.record.Outputs
	run.mu.Unlock()
	for _, o := range outputs {
		size -= o[1]
	}
	release, err := s.results.result(run.owner, size)
	if err != nil {
		return err
	}
	defer release()
	text, err := without(document, size, outputs)
	if err != nil {
		return err
	}
	files, err := wire.DecodeFiles(text)
	if err != nil {
		return err
	}
	name := r.PathValue("path")
	for _, candidate := range []string{name, "/" + name} {
		for _, f := range files {
			switch {
			case f.Path != candidate:
			case f.Reason != "":
				return newProblem(wire.CodeConflict, "%.200q was not brought back: %s", name, f.Reason)
			default:
				serveBytes(w, path.Base(name), f.Data)
				return nil
			}
		}
	}
	p := newProblem(wire.CodeNotFound, "the run brought back no file %.200q", name)
	p.Hint = "name it in out, such as *.png or results/**"
	return p
}

// without reads a result without its large outputs.
func without(document *io.SectionReader, size int64, outputs [][2]int64) (json.RawMessage, error) {
	text := make([]byte, 0, size)
	var at int64
	for _, o := range append(outputs[:len(outputs):len(outputs)], [2]int64{document.Size(), 0}) {
		n := len(text)
		text = text[:n+int(o[0]-at)]
		if _, err := document.ReadAt(text[n:], at); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		at = o[0] + o[1]
	}
	return text, nil
}

// serveBytes sends foreign bytes so that no browser takes them for a page.
func serveBytes(w http.ResponseWriter, name string, data []byte) {
	serveHead(w, name, int64(len(data)))
	_, _ = w.Write(data) // who does not read on does not want it
}

func serveHead(w http.ResponseWriter, name string, size int64) {
	h := w.Header()
	h.Set("Content-Type", wire.TypeBinary)
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": strings.ToValidUTF8(name, "_")}))
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.FormatInt(size, 10))
}
