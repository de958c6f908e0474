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
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// accept handles POST /v1/runs. Once it has answered, a crash does not lose the run.
func (s *Server) accept(w http.ResponseWriter, r *http.Request) error {
	request, body, release, err := s.readRun(w, r)
	if err != nil {
		return err
	}
	defer release()
	p := PrincipalFrom(r.Context())
	j, err := s.prepare(p, WayAsync, request, audit.Digest(body))
	if err != nil {
		return err
	}
	j.key = r.Header.Get(wire.HeaderIdempotencyKey)
	if s.runs.unfinished() >= s.opts.Keep.Open {
		return &Refusal{
			Status: http.StatusServiceUnavailable, Reason: "too many runs are waiting; try again later", RetryAfter: 5 * time.Second,
		}
	}
	releasePlace := func() {}
	if ready, ok := s.opts.Admission.(Ready); ok {
		if releasePlace, err = ready.Reserve(j.admission); err != nil {
			return err
		}
	}
	ctx, a, err := s.registerRun(context.WithoutCancel(r.Context()))
	if err != nil {
		releasePlace()
		return err
	}
	run := s.newRunOf(ctx, a, j, body)
	run.unsynced, _ = r.Context().Value(unsyncedKey{}).(bool)
	if !run.unsynced {
		if err := s.runs.store.accept(&run.record); err != nil {
			releasePlace()
			s.unregisterRun(a)
			return fmt.Errorf("store the run: %w", err)
		}
	}
	s.start(ctx, a, run, j, releasePlace)
	w.Header().Set("Location", wire.PathRuns+"/"+j.ID)
	w.Header().Set(wire.HeaderRunID, j.ID)
	return answerJSON(w, http.StatusAccepted, run.info(false))
}

// newRunOf makes the run of a job. It is not in the store yet.
func (s *Server) newRunOf(ctx context.Context, a *active, j *job, body []byte) *run {
	r := newRun(record{
		ID: j.ID, Principal: *j.Principal, Accepted: j.Accepted, State: wire.StateQueued, Language: j.Language, Labels: j.run.Policy.Labels,
		Digest:  j.digest,
		Request: json.RawMessage(body), Key: j.key,
	}, newJournal(s.runs.store.dir, j.ID, &s.opts.Keep))
	r.stop, r.input, r.request = a.stop, attach(j), j.run
	return r
}

// start adds a run to the store and starts it. releasePlace frees its place in the queue.
func (s *Server) start(ctx context.Context, a *active, r *run, j *job, releasePlace func()) {
	s.runs.add(r)
	j.retry, j.admission.Accepted, j.admission.OnPosition = true, true, r.setPosition
	j.started = func() {
		releasePlace()
		if !r.unsynced {
			if err := s.runs.store.begin(j.ID); err != nil {
				s.log.ErrorContext(ctx, "start of a run not recorded", "run", j.ID, "error", err)
			}
		}
		r.begun()
		r.input.waitForClient(s.opts.Keep.Interactive)
	}
	// The request stays in memory until the run ends, and may wait for long.
	release := s.bodies.count(r.owner, len(r.record.Request))
	s.serving.Go(func() {
		defer s.unregisterRun(a)
		defer releasePlace()
		defer release()
		s.runAsync(ctx, r, j)
	})
}

// runAsync runs an accepted job to its end, and stores the outcome.
func (s *Server) runAsync(ctx context.Context, r *run, j *job) {
	feed := &live{to: func(_ uint64, line []byte) { r.journal.append(ctx, line) }}
	j.req.OnEvent = feed.event
	f := s.runJob(ctx, j)
	feed.end()
	r.input.close()
	if f.Err != nil && ctx.Err() != nil {
		f.Err = context.Cause(ctx) // the cause, not context.Canceled
	}
	if f.Started.IsZero() && errors.Is(f.Err, errDraining) && s.runs.store.durable && !r.unsynced {
		_ = r.journal.close(nil)
		r.journal.end()
		return // the next server runs it
	}
	s.conclude(ctx, r, f, j.receipt)
}

// conclude stores the outcome of a run, and only then shows it to clients.
func (s *Server) conclude(ctx context.Context, r *run, f *Finished, receipt json.RawMessage) {
	c, ended := r.current(), f.Ended
	c.Ended, c.State, c.Receipt, c.Request = &ended, wire.StateDone, receipt, nil
	if f.Err != nil {
		if c.Problem = s.Problem(ctx, f.Err); c.Problem.Code == wire.CodeCancelled {
			c.Verdict = string(sandbox.VerdictCancelled) // as for a run that had begun
		}
		_ = r.journal.close(nil)
	} else {
		defer f.Close()
		c.Verdict, c.Language, c.Outputs = string(f.Result.Verdict), f.Result.Language, f.Document.Spans()
		if err := r.journal.close(func(seq uint64) *resultLine { return newResultLine(seq, ended, f.Document) }); err != nil {
			c.Problem = s.Problem(ctx, fmt.Errorf("store the result: %w", err))
			c.Verdict, c.Receipt, c.Outputs, f.Document = "", nil, nil, nil // the result is lost
		}
	}
	send := s.keepWebhook(ctx, c, f.Run, f.Document)
	s.storeOutcome(ctx, r, c)
	f.Close() // the journal has the result
	send()
}

// keepWebhook stores the webhook of a finished run. The caller calls send when the run's outcome is visible.
func (s *Server) keepWebhook(ctx context.Context, c record, run *wire.Run, document *sandbox.JSON) (send func()) {
	if run == nil || run.Webhook == nil || s.opts.Webhooks == nil {
		return func() {}
	}
	send, err := s.opts.Webhooks.Keep(c.Principal.ID, run.Webhook, c.info(), document)
	if err != nil {
		s.log.ErrorContext(ctx, "webhook not queued", "run", c.ID, "error", err)
		return func() {}
	}
	return send
}

// storeOutcome stores the record of a finished run.
func (s *Server) storeOutcome(ctx context.Context, r *run, c record) {
	write := func(sync bool) {
		if err := r.home.store.finish(&c, r.journal, sync); err != nil {
			// This server still knows the outcome. The record on disk says that the run was under way, so the next server reports it as lost.
			s.log.ErrorContext(ctx, "result not stored", "run", c.ID, "error", err)
		}
	}
	if r.home.store != nil && !r.unsynced {
		write(r.home.store.durable)
	}
	r.mu.Lock()
	r.record, r.position, r.request, r.stop = c, 0, nil, nil
	r.expires = c.Ended.Add(s.opts.Keep.For)
	r.size = r.journal.bytes() + recordSize
	r.journal.end() // with mu held: a finished run has its last event
	r.mu.Unlock()
	close(r.over)
	r.home.ended(r)
	if r.home.store != nil && r.unsynced { // its client need not wait for the disk
		write(false)
		if r.home.get(r.owner, r.id) != r { // deleted meanwhile
			r.home.store.forget(r.id)
		}
	}
}

// recordSize is the approximate size of a record.
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

// current returns a copy of the run's record.
func (r *run) current() record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record
}

func (r *run) isOver() bool { return r.current().State.Over() }

// cancel cancels a run that is under way.
func (r *run) cancel(why error) {
	r.mu.Lock()
	stop := r.stop
	r.mu.Unlock()
	if stop != nil {
		stop(why)
	}
}

// loadRuns loads the runs of an earlier server: finished runs are available again, started ones are lost, and queued ones are run.
func (s *Server) loadRuns() {
	runs, problems := s.runs.store.load()
	for _, err := range problems {
		s.log.Error("stored run not read", "error", err)
	}
	for _, f := range runs {
		switch f.State {
		case wire.StateQueued:
			s.resume(f.record)
		case wire.StateLost:
			s.reportLost(f)
		default:
			r := newRun(f.record, f.journal)
			r.size = f.journal.bytes() + recordSize
			if f.Ended != nil {
				r.expires = f.Ended.Add(s.opts.Keep.For)
			}
			close(r.over)
			s.runs.add(r)
		}
	}
}

// reportLost reports a run as lost. Its stored events stay available.
func (s *Server) reportLost(f found) {
	r := newRun(f.record, f.journal)
	r.record.State = wire.StateRunning // until storeOutcome stores its record
	s.runs.add(r)
	now := time.Now()
	c := f.record
	c.State, c.Ended, c.Request = wire.StateLost, &now, nil
	c.Problem = wire.NewProblem(wire.CodeLost, "the server ended while the run was under way; no process of it is left")
	c.Problem.Hint = "submit the run again"
	request, _ := wire.Decode(f.Request) // it was valid when it was accepted
	send := s.keepWebhook(context.Background(), c, request, nil)
	s.storeOutcome(context.Background(), r, c)
	send()
}

// resume runs a queued run of an earlier server, under the current policy.
func (s *Server) resume(c record) {
	ctx := context.Background()
	request, err := wire.Decode(c.Request)
	var j *job
	if err == nil {
		p := c.Principal
		j, err = s.prepare(&p, WayAsync, request, c.Digest)
	}
	if err != nil {
		r := newRun(c, newJournal(s.runs.store.dir, c.ID, &s.opts.Keep))
		s.runs.add(r)
		s.conclude(ctx, r, &Finished{Ended: time.Now(), Err: err, Run: request}, nil)
		return
	}
	ctx, a, err := s.registerRun(ctx)
	if err != nil {
		return // the server is shutting down; the next one runs it
	}
	j.ID, j.Accepted, j.key = c.ID, c.Accepted, c.Key
	s.start(ctx, a, s.newRunOf(ctx, a, j, c.Request), j, func() {})
}

// find returns the run of a path, if it belongs to the principal.
func (s *Server) find(r *http.Request) (*run, error) {
	id := r.PathValue("id")
	run := s.runs.get(PrincipalFrom(r.Context()).ID, id)
	if run == nil {
		return nil, wire.NewProblem(wire.CodeNotFound, "run %.40q: it does not exist or is no longer kept", id)
	}
	return run, nil
}

// maxWait is the longest time that GET /v1/runs/{id} waits.
const maxWait = 60

// show handles GET /v1/runs/{id}.
func (s *Server) show(w http.ResponseWriter, r *http.Request) error {
	query, err := readQuery(r, "wait")
	if err != nil {
		return err
	}
	if text := query.Get("wait"); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil || seconds < 0 || seconds > maxWait {
			return wire.WrongField(wire.CodeInvalid, "wait", "not a number from 0 to %d; write it like 30", maxWait)
		}
		run, err := s.find(r)
		if err != nil {
			return err
		}
		timer := time.NewTimer(time.Duration(seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-run.over:
		case <-timer.C:
		case <-s.closing.Done():
		case <-r.Context().Done():
		}
	}
	return s.showRun(w, r, s.find)
}

// showRun sends a run, with its result if it is over.
func (s *Server) showRun(w http.ResponseWriter, r *http.Request, find func(*http.Request) (*run, error)) error {
	run, err := find(r)
	if err != nil {
		return err
	}
	release, err := s.results.reserveResult(run.owner, chunk)
	if err != nil {
		return err
	}
	defer release()
	info := run.info(true)
	document, leave, err := run.result()
	if err != nil {
		if _, gone := find(r); gone != nil {
			return gone // it was deleted meanwhile
		}
		return err
	}
	defer leave()
	if document == nil {
		return answerJSON(w, http.StatusOK, info)
	}
	before, after := around(info)
	answerDocument(w, int64(len(before))+document.Size()+int64(len(after)),
		bytes.NewReader(before), sectionWriter{document}, bytes.NewReader(after))
	return nil
}

// around returns the JSON of a run before and after its result, which may be large.
func around(info wire.RunInfo) (before, after []byte) {
	place, _ := json.Marshal(NewID()) // a random string, which no field contains
	info.Result = place
	before, after, _ = bytes.Cut(wire.AppendJSON(nil, info), place)
	return before, after
}

// sectionWriter writes a section of a file.
type sectionWriter struct{ *io.SectionReader }

// WriteTo writes the section to w.
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

// list handles GET /v1/runs.
func (s *Server) list(w http.ResponseWriter, r *http.Request) error {
	query, err := readQuery(r, "limit", "cursor")
	if err != nil {
		return err
	}
	limit := defaultPage
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxPage {
			return wire.WrongField(wire.CodeInvalid, "limit", "not a number from 1 to %d; write it like 50", maxPage)
		}
	}
	runs, next, err := s.runs.list(PrincipalFrom(r.Context()).ID, query.Get("cursor"), limit)
	if err != nil {
		return wire.WrongField(wire.CodeInvalid, "cursor", "%s", err)
	}
	page := wire.RunList{Runs: make([]wire.RunInfo, 0, len(runs)), Next: next}
	for _, run := range runs {
		page.Runs = append(page.Runs, run.info(false))
	}
	return answerJSON(w, http.StatusOK, page)
}

// remove handles DELETE /v1/runs/{id}: it cancels a run that is under way (202), and deletes a finished one (204).
func (s *Server) remove(w http.ResponseWriter, r *http.Request) error {
	if j := s.cancelWaiting(r.PathValue("id"), PrincipalFrom(r.Context()).ID); j != nil {
		return answerJSON(w, http.StatusAccepted, &wire.RunInfo{
			ID: j.ID, State: wire.StateRunning, Language: j.Language, Accepted: j.Accepted,
		})
	}
	run, err := s.find(r)
	if err != nil {
		return err
	}
	if run.isOver() {
		s.runs.forget(run)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	run.cancel(errForgotten)
	return answerJSON(w, http.StatusAccepted, run.info(false))
}

// file handles GET /v1/runs/{id}/files/{path…}: it sends an output file of the run.
func (s *Server) file(w http.ResponseWriter, r *http.Request) error {
	run, err := s.find(r)
	if err != nil {
		return err
	}
	if !run.isOver() {
		return wire.NewProblem(wire.CodeConflict, "run: it is still under way")
	}
	if p := run.current().Problem; p != nil {
		return wire.NewProblem(wire.CodeNotFound, "run: it has no result: %s", p.Detail)
	}
	document, leave, err := run.result()
	if err != nil {
		return err
	}
	defer leave()
	size := document.Size()
	outputs := run.current().Outputs
	for _, o := range outputs {
		size -= o[1]
	}
	release, err := s.results.reserveResult(run.owner, size)
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
				p := wire.NewProblem(wire.CodeConflict, "file %.200q: it was not copied out: %s", name, f.Reason)
				p.Hint = "submit the run again, so that the file can be copied out"
				return p
			default:
				serveBytes(w, path.Base(name), f.Data)
				return nil
			}
		}
	}
	p := wire.NewProblem(wire.CodeNotFound, "run: it has no output file %.200q", name)
	p.Hint = "list it in out, such as *.png or results/**"
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

// serveBytes sends a program's bytes so that no browser shows them as a page.
func serveBytes(w http.ResponseWriter, name string, data []byte) {
	serveHead(w, name, int64(len(data)))
	_, _ = w.Write(data) // fails when the client is gone
}

func serveHead(w http.ResponseWriter, name string, size int64) {
	h := w.Header()
	h.Set("Content-Type", wire.TypeBinary)
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": strings.ToValidUTF8(name, "_")}))
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.FormatInt(size, 10))
}
