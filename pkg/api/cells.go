package api

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
	"github.com/sandbox-run/sandbox-run/pkg/session/protocol"
)

// A cell is a run of its session's cells, by the id SESSION/N: its events and its result are kept and read as those of an accepted run, until
// the session ends. A cell that has not begun ends with its client; one that has begun goes on, unless its client waits for the whole answer.

// question is what the running cell asks its user.
type question struct {
	mu      sync.Mutex
	seq     uint64         // number of the event that asks
	answers chan wire.Line // of the pending question; nil: there is none
}

var (
	errNoQuestion    = errors.New("the cell asks for no input")
	errOtherQuestion = errors.New("the cell does not ask that question any more")
)

// asked records the event of a question. Clients see it afterwards.
func (q *question) asked(seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seq, q.answers = seq, make(chan wire.Line, 1)
}

// wait blocks for the answer.
func (q *question) wait(ctx context.Context, _ protocol.Input) (line string, ok bool) {
	q.mu.Lock()
	answers := q.answers
	q.mu.Unlock()
	if answers == nil { // its event was dropped, because the cell is over
		return "", false
	}
	select {
	case l := <-answers:
		return l.Line, !l.End
	case <-ctx.Done():
		q.mu.Lock()
		defer q.mu.Unlock()
		q.answers = nil
		return "", false
	}
}

// answer answers the pending question.
func (q *question) answer(l *wire.Line) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case strings.ContainsAny(l.Line, "\r\n"):
		return protocolError("a line has no line end")
	case q.answers == nil:
		return errNoQuestion
	case l.Seq != 0 && l.Seq != q.seq:
		return errOtherQuestion
	}
	q.answers <- *l
	q.answers = nil
	return nil
}

// readCell decodes the body of a cell.
func readCell(body []byte) (*wire.Cell, error) {
	c := new(wire.Cell)
	return c, wire.DecodeStrict(body, c)
}

// startCell checks a cell and starts it as soon as it is its turn. The caller waits for run.started, and then looks at run.failure.
func (s *Server) startCell(ctx context.Context, own *servedSession, c *wire.Cell, body []byte) (*run, error) {
	p := PrincipalFrom(ctx)
	limited := executor.Request{Limits: c.Limits}
	limited.Policy.Bounds = boundsOf(limited.Policy.Bounds)
	if err := s.opts.Policy.Ceilings.Check(&limited, p.Limits); err != nil {
		return nil, aboveCeiling(err)
	}
	if err := errors.Join(s.checkReceipt(c.Receipt), s.results.reserve(p.ID, 0)); err != nil {
		return nil, err
	}
	j := &job{
		Info:   Info{ID: own.ID(), Principal: p, Way: WayCell, Language: own.Language().Name, Accepted: time.Now()},
		run:    &wire.Run{Receipt: c.Receipt, Interactive: c.Interactive}, // what observers look at
		digest: audit.Digest(body), admission: p.admission(own.weight),
	}
	ctx, a, err := s.registerRun(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	r := newRun(record{
		ID: j.ID, Principal: *p, Accepted: j.Accepted, State: wire.StateQueued, Language: j.Language, Digest: j.digest,
	}, newJournal(s.runs.store.dir, NewID(), &s.sessions.cells.keep))
	r.stop, r.question, r.started, r.home = a.stop, &question{}, make(chan struct{}), s.sessions.cells
	s.serving.Go(func() {
		defer s.unregisterRun(a)
		s.runCell(ctx, own, r, j, c)
	})
	return r, nil
}

// runCell runs a cell to its end, and keeps the outcome. A cell that fails before it begins is not kept.
func (s *Server) runCell(ctx context.Context, own *servedSession, r *run, j *job, c *wire.Cell) {
	feed := &live{to: func(_ uint64, line []byte) { r.journal.append(ctx, line) }}
	f := s.executeCell(ctx, own, r, j, c, feed)
	feed.end()
	if f.Err != nil && ctx.Err() != nil {
		f.Err = context.Cause(ctx) // the cause, not context.Canceled
	}
	select {
	case <-r.started:
		s.conclude(ctx, r, f, j.receipt)
		if !s.isOpen(own.ID()) {
			r.home.forget(r)
		}
	default:
		r.mu.Lock()
		r.failure = f.Err
		r.record.State, r.record.Problem, r.stop = wire.StateDone, s.Problem(ctx, sessionProblemOf(own.ID(), f.Err)), nil
		r.mu.Unlock()
		_ = r.journal.close(nil)
		r.journal.end()
		close(r.over)
		close(r.started)
	}
}

// executeCell executes the cell in its session. It is admitted when it is its turn.
func (s *Server) executeCell(ctx context.Context, own *servedSession, r *run, j *job, c *wire.Cell, feed *live) (f *Finished) {
	f = j.finished()
	observed := false // the observer knows of it
	leave := func() {}
	defer func() {
		if cause := recover(); observed || cause != nil {
			s.report(ctx, j, f, cause)
		}
		leave()
	}()
	cell := session.Cell{
		Code: c.Code, Limits: c.Limits, OutputSpace: s.outputs.For(j.Principal.ID),
		Begin: func(ctx context.Context, n uint64) error {
			j.ID = own.ID() + "/" + strconv.FormatUint(n, 10)
			f.Info = j.Info
			s.observer.Queued(ctx, j.Info)
			observed = true
			left, err := s.admit(ctx, j, f)
			if err == nil {
				leave = left
				s.beginCell(own, r, j.ID)
			}
			return err
		},
		OnEvent: func(ev sandbox.Event) {
			if ev.Kind == sandbox.EventInput {
				r.question.asked(ev.Seq)
			}
			feed.event(ev)
		},
	}
	if c.Interactive {
		cell.Input = r.question.wait
	}
	result, err := own.Execute(ctx, cell)
	if f.Err = err; result != nil {
		result.Evidence = &executor.Evidence{CodeSHA256: audit.Digest([]byte(c.Code))}
		f.Result = &result.Result
	}
	settle(ctx, f, result)
	return f
}

// beginCell adds a cell to the store, because its turn has come.
func (s *Server) beginCell(own *servedSession, r *run, id string) {
	r.mu.Lock()
	now := time.Now()
	r.id, r.record.ID, r.record.State, r.record.Started = id, id, wire.StateRunning, &now
	r.mu.Unlock()
	s.sessions.cells.add(r)
	own.mu.Lock()
	own.cell = r
	own.mu.Unlock()
	close(r.started)
}

// sessionProblemOf is sessionProblem without a request.
func sessionProblemOf(id string, err error) error {
	if errors.Is(err, session.ErrNotFound) {
		return noSession(id)
	}
	return err
}

// postCell handles POST /v1/sessions/{id}/cells: the whole result, or a stream of events.
func (s *Server) postCell(w http.ResponseWriter, r *http.Request, own *servedSession) error {
	kind, err := Negotiate(r, wire.TypeJSON, wire.TypeSSE, wire.TypeNDJSON)
	if err != nil {
		return err
	}
	if _, err := readQuery(r); err != nil {
		return err
	}
	body, release, err := s.ReadBody(w, r)
	if err != nil {
		return err
	}
	defer release()
	c, err := readCell(body)
	if err != nil {
		return err
	}
	run, err := s.startCell(r.Context(), own, c, body)
	release()
	if err != nil {
		return err
	}
	unhook := context.AfterFunc(r.Context(), func() { run.cancel(context.Cause(r.Context())) })
	defer unhook()
	<-run.started
	if err := run.failed(); err != nil {
		return err
	}
	w.Header().Set(wire.HeaderRunID, run.id)
	if kind == wire.TypeJSON {
		<-run.over
		return s.answerCell(w, run)
	}
	unhook()
	s.stream(w, r, kind, run, 1)
	return nil
}

// answerCell sends the whole result of a cell that is over.
func (s *Server) answerCell(w http.ResponseWriter, r *run) error {
	c := r.current()
	if c.Problem != nil {
		return &ranError{c.Problem}
	}
	release, err := s.results.reserveResult(r.owner, chunk)
	if err != nil {
		return err
	}
	defer release()
	document, leave, err := r.result()
	if err != nil {
		return err
	}
	defer leave()
	if c.Receipt != nil {
		w.Header().Set(wire.HeaderReceipt, base64.StdEncoding.EncodeToString(c.Receipt))
	}
	answerDocument(w, document.Size()+1, sectionWriter{document}, strings.NewReader("\n"))
	return nil
}

// cellSocket handles GET /v1/sessions/{id}/cells/ws: the first message is the cell. A Ready has its number.
func (s *Server) cellSocket(w http.ResponseWriter, r *http.Request, own *servedSession) error {
	if _, err := readQuery(r); err != nil {
		return err
	}
	return s.takeOver(w, r, func(ctx context.Context, cancel context.CancelFunc, conn *websocket.Conn) {
		p := PrincipalFrom(ctx)
		c := &socketConn{server: s, owner: p.ID, conn: conn}
		body, release, err := s.readFirstBody(ctx, conn, p)
		var cell *wire.Cell
		if err == nil {
			cell, err = readCell(body)
		}
		if err == nil {
			c.run, err = s.startCell(ctx, own, cell, body)
		}
		if release != nil {
			release()
		}
		switch {
		case err == nil:
			c.ready = func() any {
				info := own.Info()
				return wire.Ready{
					Kind: wire.KindReady, Run: c.run.id, Language: info.Language, Version: info.Version, Isolation: info.Isolation,
				}
			}
			c.serve(ctx, cancel, 1)
			select {
			case <-c.run.started: // it goes on
			default:
				c.run.cancel(errGone)
			}
		case release != nil: // the message was read, but the cell is refused
			problem := s.Problem(ctx, sessionProblem(r, err))
			s.observer.Refused(ctx, refused(ctx, r, problem))
			_ = c.notice(ctx, wire.Notice{Kind: wire.KindError, Problem: problem})
			_ = conn.Close(websocket.StatusNormalClosure, "")
		}
	})
}

// findCell returns the cell of a path, if its session belongs to the principal.
func (s *Server) findCell(r *http.Request) (*run, error) {
	own, err := s.findSession(r)
	if err != nil {
		return nil, err
	}
	cell := s.sessions.cells.get(own.owner, own.ID()+"/"+r.PathValue("cell"))
	if cell == nil {
		p := wire.NewProblem(wire.CodeNotFound, "cell %.40q: it has not begun, or is no longer kept", r.PathValue("cell"))
		p.Hint = "GET " + wire.PathSessions + "/{id}/history, which lists the cells"
		return nil, p
	}
	return cell, nil
}

// showCell handles GET /v1/sessions/{id}/cells/{cell}.
func (s *Server) showCell(w http.ResponseWriter, r *http.Request) error {
	if _, err := readQuery(r); err != nil {
		return err
	}
	return s.showRun(w, r, s.findCell)
}

// cellEvents handles GET /v1/sessions/{id}/cells/{cell}/events.
func (s *Server) cellEvents(w http.ResponseWriter, r *http.Request) error {
	return s.eventsOf(w, r, s.findCell)
}

// cellResume handles GET /v1/sessions/{id}/cells/{cell}/ws.
func (s *Server) cellResume(w http.ResponseWriter, r *http.Request) error {
	return s.socketOf(w, r, s.findCell)
}
