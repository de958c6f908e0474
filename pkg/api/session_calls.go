package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/network"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/session"
)

// call makes a handler of a call without a body that changes the session, and answers with its Info. It ends even if its client disconnects.
func call(do func(ctx context.Context, own *servedSession) error) sessionHandler {
	return func(w http.ResponseWriter, r *http.Request, own *servedSession) error {
		if _, err := readQuery(r); err != nil {
			return err
		}
		if err := do(context.WithoutCancel(r.Context()), own); err != nil {
			return err
		}
		return answerJSON(w, http.StatusOK, own.Info())
	}
}

// query makes a handler of a question without a body.
func query[T any](question func(ctx context.Context, own *servedSession) (T, error)) sessionHandler {
	return func(w http.ResponseWriter, r *http.Request, own *servedSession) error {
		if _, err := readQuery(r); err != nil {
			return err
		}
		answer, err := question(r.Context(), own)
		if err != nil {
			return err
		}
		return answerJSON(w, http.StatusOK, answer)
	}
}

// ask makes a handler of a question about a document.
func ask[Q, A any](s *Server, question func(ctx context.Context, own *servedSession, q *Q) (A, error)) sessionHandler {
	return func(w http.ResponseWriter, r *http.Request, own *servedSession) error {
		q := new(Q)
		if err := s.readDocument(w, r, q); err != nil {
			return err
		}
		answer, err := question(r.Context(), own, q)
		if err != nil {
			return err
		}
		return answerJSON(w, http.StatusOK, answer)
	}
}

// readDocument reads a body into a value.
func (s *Server) readDocument(w http.ResponseWriter, r *http.Request, into any) error {
	if _, err := readQuery(r); err != nil {
		return err
	}
	body, release, err := s.ReadBody(w, r)
	if err != nil {
		return err
	}
	defer release()
	return wire.DecodeStrict(body, into)
}

// network handles PUT /v1/sessions/{id}/network: within the ceiling of the operator and the key, as for a run.
func (s *Server) network(w http.ResponseWriter, r *http.Request, own *servedSession) error {
	asked := new(wire.Network)
	if err := s.readDocument(w, r, asked); err != nil {
		return err
	}
	if err := asked.Network.Validate(); err != nil {
		return sandbox.Invalid("network", "%w", err)
	}
	req := executor.Request{Policy: executor.Policy{Network: asked.Network, Bounds: boundsOf(network.Bounds{})}}
	if err := s.opts.Policy.Ceilings.Check(&req, PrincipalFrom(r.Context()).Limits); err != nil {
		return aboveCeiling(err)
	}
	if err := own.SetNetwork(r.Context(), asked.Network); err != nil {
		return aboveCeiling(err)
	}
	return answerJSON(w, http.StatusOK, own.Info())
}

// packages handles POST /v1/sessions/{id}/packages. A failed installation has the answer that it has for a run.
func (s *Server) packages(w http.ResponseWriter, r *http.Request, own *servedSession) error {
	asked := new(wire.Packages)
	if err := s.readDocument(w, r, asked); err != nil {
		return err
	}
	deps, err := own.AddPackages(r.Context(), asked.Packages)
	if err != nil {
		return answerFailedInstall(w, err)
	}
	return answerJSON(w, http.StatusOK, wire.Added{Deps: deps})
}

// historyOf lists the cells of a session.
func historyOf(_ context.Context, own *servedSession) (wire.History, error) {
	h := wire.History{Cells: own.History()}
	if h.Cells == nil {
		h.Cells = []session.Past{}
	}
	return h, nil
}

// complete completes a word. Without a cursor, it is at the end.
func complete(ctx context.Context, own *servedSession, q *wire.Completion) (any, error) {
	cursor := len(q.Code)
	if q.Cursor != nil {
		cursor = *q.Cursor
	}
	return own.Complete(ctx, q.Code, cursor)
}

// input handles POST /v1/sessions/{id}/input.
func (s *Server) input(w http.ResponseWriter, r *http.Request, own *servedSession) error {
	line := new(wire.Line)
	if err := s.readDocument(w, r, line); err != nil {
		return err
	}
	if line.End && line.Line != "" {
		return wire.WrongField(wire.CodeInvalid, "end", "both a line and the end of the input are given")
	}
	own.mu.Lock()
	cell := own.cell
	own.mu.Unlock()
	err := errNoQuestion
	if cell != nil {
		err = cell.question.answer(line)
	}
	var against protocolError
	switch {
	case errors.As(err, &against):
		return wire.WrongField(wire.CodeInvalid, "line", "%s", err)
	case err != nil:
		return wire.NewProblem(wire.CodeConflict, "input: %s", err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
