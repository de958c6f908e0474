package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// authenticatedRequest is an authenticated request. If its key is revoked while the answer lasts, the request is ended within about a
// second.
type authenticatedRequest struct {
	principal *Principal
	end       context.CancelCauseFunc
}

// errRevoked returns the problem of a revoked key, with the code of an invalid token.
func errRevoked() error {
	return wire.NewProblem(wire.CodeUnauthorized, "%s", revokedText)
}

// revokedText is its text.
const revokedText = "the key was removed or rotated, or has expired"

// revokedReason returns the problem of a request that was ended because its key was revoked; nil for other requests.
func revokedReason(ctx context.Context) *wire.Problem {
	var p *wire.Problem
	if ctx.Err() != nil && errors.As(context.Cause(ctx), &p) && p.Code == wire.CodeUnauthorized {
		return p
	}
	return nil
}

// stillAuthorized reports whether a principal is still authorized.
func (s *Server) stillAuthorized(p *Principal) bool {
	standing, ok := s.opts.Auth.(RevocationChecker)
	return !ok || standing.StillAuthorized(p)
}

type requestKey struct{}

// registerRequest registers an authenticated request, until leave is called.
func (s *Server) registerRequest(r *http.Request, p *Principal) (_ *http.Request, leave func()) {
	ctx := context.WithValue(r.Context(), principalKey{}, p)
	if _, ok := s.opts.Auth.(RevocationChecker); !ok {
		return r.WithContext(ctx), func() {}
	}
	ctx, end := context.WithCancelCause(ctx)
	v := &authenticatedRequest{p, end}
	s.mu.Lock()
	s.authenticated[v] = struct{}{}
	s.mu.Unlock()
	return r.WithContext(context.WithValue(ctx, requestKey{}, ctx)), func() {
		s.mu.Lock()
		delete(s.authenticated, v)
		s.mu.Unlock()
		end(nil)
	}
}

// whenRevoked calls f when the request's key is revoked, for work that does not end with the request's context. stop is that of
// context.AfterFunc.
func whenRevoked(ctx context.Context, f func()) (stop func() bool) {
	if v, ok := ctx.Value(requestKey{}).(context.Context); ok {
		return context.AfterFunc(v, func() {
			if revokedReason(v) != nil {
				f()
			}
		})
	}
	return func() bool { return true }
}

// endRevoked ends the requests of principals that are no longer authorized.
func (s *Server) endRevoked() {
	s.mu.Lock()
	byKey := map[[2]string][]*authenticatedRequest{}
	for v := range s.authenticated {
		id := [2]string{v.principal.ID, v.principal.Secret}
		byKey[id] = append(byKey[id], v)
	}
	s.mu.Unlock()
	for _, requests := range byKey {
		if s.stillAuthorized(requests[0].principal) {
			continue
		}
		for _, v := range requests {
			v.end(errRevoked())
		}
	}
}
