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

// deepCheck runs a sandbox to see whether that can be done. Its answer holds for a moment, and one is run at a time: whoever asks often is no load.
type deepCheck struct {
	mu   sync.Mutex
	at   time.Time
	last *wire.Deep
}

const (
	deepHolds = 5 * time.Second
	deepMost  = 30 * time.Second
)

func (c *deepCheck) look(ctx context.Context, e Engine) *wire.Deep {
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
	result, err := e.Execute(ctx, executor.Request{Language: deep.Language, Code: "echo " + word, Limits: sandbox.Limits{Wall: 10 * time.Second}})
	deep.Took = time.Since(began).Seconds()
	switch {
	case err != nil:
		deep.Error = err.Error()
	case strings.TrimSpace(string(result.Stdout.Bytes())) != word || result.Verdict != sandbox.VerdictOK:
		deep.Error = "the sandbox ran, and its verdict is " + string(result.Verdict)
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

// health is GET /v1/health: 200 if it is what was asked for, else 503. Without a token the answer says no more than that the server lives and takes runs.
func (s *Server) health(w http.ResponseWriter, r *http.Request) error {
	query, err := readQuery(r, "check", "deep")
	if err != nil {
		return err
	}
	check, deep := query.Get("check"), query.Get("deep")
	if check != "" && !slices.Contains([]string{"live", "ready"}, check) {
		return wrongField(wire.CodeInvalid, "check", "it is neither live nor ready")
	}
	if !slices.Contains([]string{"", "0", "1"}, deep) {
		return wrongField(wire.CodeInvalid, "deep", "it is neither 0 nor 1")
	}
	s.mu.Lock()
	queued, running := s.queued, len(s.active)-s.queued
	h := wire.Health{Live: true, Ready: !s.draining, Version: s.opts.Version, Queued: &queued, Running: &running}
	s.mu.Unlock()
	if !h.Ready {
		h.Reason = "it drains, and takes no more runs"
	}
	p, err := s.authenticate(r)
	var refused *wire.Problem
	switch {
	case err == nil:
		s.introduce(w)
	case deep == "1" || !errors.As(err, &refused) || refused.Code != wire.CodeUnauthorized:
		return err
	default: // without a key: that it lives, and whether it takes runs, as the status says anyway
		h = wire.Health{Live: true, Ready: h.Ready}
	}
	if deep == "1" {
		if !p.may(ScopeAdmin) {
			return newProblem(wire.CodeForbidden, "it needs the scope %s", ScopeAdmin)
		}
		h.Deep = s.deep.look(r.Context(), s.opts.Engine)
		if !h.Deep.OK {
			h.Ready, h.Reason = false, "no sandbox can be run"
		}
	}
	status := http.StatusOK
	if !h.Ready && check != "live" {
		status = http.StatusServiceUnavailable
	}
	answerJSON(w, status, appendJSON(nil, h))
	return nil
}

// languages is GET /v1/languages.
func (s *Server) languages(w http.ResponseWriter, r *http.Request) error {
	if _, err := readQuery(r); err != nil {
		return err
	}
	found := s.opts.Engine.CheckLanguages(r.Context())
	if s.opts.Auth != nil {
		for i := range found {
			found[i].Path = "" // where things are on the server is its owner's business
		}
	}
	answerJSON(w, http.StatusOK, appendJSON(nil, wire.Languages{Languages: found}))
	return nil
}
