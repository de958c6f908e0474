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

type principalOf struct{}

// HandlerOf returns the handler of all routes for a principal that was authenticated before: a mounted route uses it to send further requests
// for the principal of its own request.
func (s *Server) HandlerOf(p *Principal) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serve(w, r.WithContext(context.WithValue(r.Context(), principalOf{}, p)))
	})
}

type unsyncedKey struct{}

// WithoutSync returns a request whose accepted run is written to disk only when it is over, and not synced: the answer comes earlier, and a
// crash of the server loses a run that is under way.
func WithoutSync(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), unsyncedKey{}, true))
}

type bodyKey struct{}

// WithBody returns a request whose body was read before: ReadBody returns that body again, and counts it once.
func WithBody(r *http.Request, body []byte) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
}
