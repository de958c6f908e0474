package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// deepCheck runs a program in a sandbox to check the server. It runs one check at a time and reuses its answer for a few seconds, so that
// frequent checks are no load.
type deepCheck struct {
	mu   sync.Mutex
	at   time.Time
	last *wire.Deep
}

const (
	deepHolds = 5 * time.Second
	deepMost  = 30 * time.Second
)

func (c *deepCheck) check(ctx context.Context, e Executor) *wire.Deep {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil && time.Since(c.at) < deepHolds {
		return c.last
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deepMost)
	defer cancel()
	began := time.Now()
	deep := &wire.Deep{Language: "shell"}
	const word = "alive"
	result, err := e.Execute(ctx, executor.Request{Language: deep.Language, Code: "echo " + word,
		Limits: sandbox.Limits{Wall: 10 * time.Second}})
	deep.Took = time.Since(began).Seconds()
	switch {
	case err != nil:
		deep.Error = err.Error()
	case strings.TrimSpace(string(result.Stdout.Bytes())) != word || result.Verdict != sandbox.VerdictOK:
		deep.Error = "the test program failed with verdict " + string(result.Verdict)
	default:
		deep.OK = true
	}
	if result != nil {
		deep.Tier = string(result.Isolation.Tier)
	}
	if p, ok := e.(interface {
		PreparationFailures() []executor.PreparationFailure
	}); ok {
		for _, f := range p.PreparationFailures() {
			deep.Lacks = append(deep.Lacks, f.String())
		}
	}
	c.last, c.at = deep, time.Now()
	return deep
}

// health handles GET /v1/health: 200 if the check succeeds, else 503. Without a token, the answer says only that the server is alive and
// whether it accepts runs.
func (s *Server) health(w http.ResponseWriter, r *http.Request) error {
	query, err := readQuery(r, "check", "deep")
	if err != nil {
		return err
	}
	check, deep := query.Get("check"), query.Get("deep")
	if check != "" && !slices.Contains([]string{"live", "ready"}, check) {
		return wire.WrongField(wire.CodeInvalid, "check", "unknown check; write it like live or ready")
	}
	if !slices.Contains([]string{"", "0", "1"}, deep) {
		return wire.WrongField(wire.CodeInvalid, "deep", "neither 0 nor 1; write it like 1")
	}
	s.mu.Lock()
	queued, running := s.queued, len(s.active)-s.queued
	h := wire.Health{Live: true, Ready: !s.draining, Version: s.opts.Version, Queued: &queued, Running: &running}
	s.mu.Unlock()
	if !h.Ready {
		h.Reason = "the server is shutting down and accepts no more runs"
	}
	p, err := s.authenticate(r)
	var refused *wire.Problem
	switch {
	case err == nil:
		s.setVersion(w)
	case deep == "1" || !errors.As(err, &refused) || refused.Code != wire.CodeUnauthorized:
		return err
	default: // without a key: no more than the status shows
		h = wire.Health{Live: true, Ready: h.Ready}
	}
	if deep == "1" {
		if !p.may(ScopeAdmin) {
			return wire.NewProblem(wire.CodeForbidden, "key: it needs the scope %s", ScopeAdmin)
		}
		h.Deep = s.deep.check(r.Context(), s.opts.Executor)
		if !h.Deep.OK {
			h.Ready, h.Reason = false, "the test program could not be run in a sandbox"
		}
	}
	status := http.StatusOK
	if !h.Ready && check != "live" {
		status = http.StatusServiceUnavailable
	}
	return answerJSON(w, status, h)
}

// languages handles GET /v1/languages.
func (s *Server) languages(w http.ResponseWriter, r *http.Request) error {
	if _, err := readQuery(r); err != nil {
		return err
	}
	found := s.opts.Executor.CheckLanguages(r.Context())
	if s.opts.Auth != nil {
		for i := range found {
			found[i].Path = "" // clients must not see paths of the server
		}
	}
	return answerJSON(w, http.StatusOK, wire.Languages{Languages: found})
}
