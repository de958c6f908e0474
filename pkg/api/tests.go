package api

import (
	"context"
	"net/http"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/audit"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/tests"
)

// tests handles POST /v1/tests. It is a run as any other: with its policy, ceilings, admission, audit and receipt.
func (s *Server) tests(w http.ResponseWriter, r *http.Request) error {
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
	asked, err := wire.DecodeTests(body)
	if err != nil {
		return err
	}
	way := WayRun
	if kind != wire.TypeJSON {
		way = WayStream
	}
	p := PrincipalFrom(r.Context())
	j, err := s.prepare(p, way, asked.Run, audit.Digest(body))
	if err != nil {
		return err
	}
	o := tests.Options{
		Framework: asked.Framework, Filter: asked.Filter, FailFast: asked.FailFast, RerunFailed: asked.RerunFailed, Repeat: int(asked.Repeat),
		TestTimeout: time.Duration(asked.TestTimeout),
	}
	if err := tests.Prepare(&j.req, &o); err != nil {
		return err
	}
	j.Language = j.req.Language
	j.admission = p.admission(s.weigh(j)) // the language is known now, and tests have limits of their own
	j.do = func(ctx context.Context) (*executor.Result, encoder, error) {
		result, err := tests.Run(ctx, testEngine{s, j}, j.req, o, nil)
		if err != nil {
			return nil, nil, err
		}
		return result.Result, result, nil
	}
	return s.answer(w, r, kind, j)
}

// encoder is a result that may be large.
type encoder interface{ Encode() (*sandbox.JSON, error) }

// testEngine runs the attempts of a job of tests.
type testEngine struct {
	s *Server
	j *job
}

func (e testEngine) Execute(ctx context.Context, req executor.Request) (*executor.Result, error) {
	attempt := *e.j
	attempt.req = req
	return e.s.execute(ctx, &attempt)
}
