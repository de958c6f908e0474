package api

import (
	"context"
	"net/http"
	"slices"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// Keyed returns an owner's newest run with that idempotency key, and the digest of its body, as long as the run is kept.
func (s *Server) Keyed(owner, key string) (info wire.RunInfo, digest string, ok bool) {
	r := s.runs.keyed(owner, key)
	if r == nil {
		return info, "", false
	}
	return r.info(false), r.current().Digest, true
}

// keyed searches an owner's runs. It is called only for keys that are not in the answer store, which is rare.
func (g *runStore) keyed(owner, key string) *run {
	g.mu.Lock()
	defer g.mu.Unlock()
	own := g.owners[owner]
	if own == nil {
		return nil
	}
	for _, r := range slices.Backward(own.runs) {
		if r.current().Key == key {
			return r
		}
	}
	return nil
}

type bodyKey struct{}

// WithBody returns a request whose body was read before: ReadBody returns that body again, and counts it once.
func WithBody(r *http.Request, body []byte) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
}
