package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// visit is a request of somebody who was let in. A key can be taken away while its answer lasts: then the visit is ended, within a second or so.
type visit struct {
	principal *Principal
	end       context.CancelCauseFunc
}

// unwelcome is why: the same as for a new request.
func unwelcome() error {
	return newProblem(wire.CodeUnauthorized, "%s", goodbye)
}

// goodbye is the reason, for people.
const goodbye = "the key has been removed or rotated or has expired since"

// sentAway is the problem of one who was sent away; nil for one who was not.
func sentAway(ctx context.Context) *wire.Problem {
	var p *wire.Problem
	if ctx.Err() != nil && errors.As(context.Cause(ctx), &p) && p.Code == wire.CodeUnauthorized {
		return p
	}
	return nil
}

// still reports whether a principal would be let in now.
func (s *Server) still(p *Principal) bool {
	standing, ok := s.opts.Auth.(Standing)
	return !ok || standing.Still(p)
}

type visitKey struct{}

// begin makes a request a visit, until leave is called.
func (s *Server) begin(r *http.Request, p *Principal) (_ *http.Request, leave func()) {
	ctx := context.WithValue(r.Context(), principalKey{}, p)
	if _, ok := s.opts.Auth.(Standing); !ok {
		return r.WithContext(ctx), func() {}
	}
	ctx, end := context.WithCancelCause(ctx)
	v := &visit{p, end}
	s.mu.Lock()
	s.visits[v] = struct{}{}
	s.mu.Unlock()
	return r.WithContext(context.WithValue(ctx, visitKey{}, ctx)), func() {
		s.mu.Lock()
		delete(s.visits, v)
		s.mu.Unlock()
		end(nil)
	}
}

// whenUnwelcome calls f when the visit is ended, for what does not end with the request's context. stop is as context.AfterFunc's.
func whenUnwelcome(ctx context.Context, f func()) (stop func() bool) {
	if v, ok := ctx.Value(visitKey{}).(context.Context); ok {
		return context.AfterFunc(v, func() {
			if sentAway(v) != nil {
				f()
			}
		})
	}
	return func() bool { return true }
}

// sendAway ends the visits of those who would no longer be let in.
func (s *Server) sendAway() {
	s.mu.Lock()
	here := map[[2]string][]*visit{}
	for v := range s.visits {
		who := [2]string{v.principal.ID, v.principal.Secret}
		here[who] = append(here[who], v)
	}
	s.mu.Unlock()
	for _, visits := range here {
		if s.still(visits[0].principal) {
			continue
		}
		for _, v := range visits {
			v.end(unwelcome())
		}
	}
}
