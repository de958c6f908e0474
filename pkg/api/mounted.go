package api

import (
	"context"
	"net/http"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// Methods for handlers that other packages mount.

// ReadBody reads a JSON body within the policy's bounds of size and time. The caller calls release when it no longer uses the body.
func (s *Server) ReadBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	return s.readBody(w, r)
}

// Negotiate returns the content type that the client prefers among those offered. The first is the default.
func Negotiate(r *http.Request, offered ...string) (string, error) { return negotiate(r, offered...) }

// Fail answers with the problem of an error, and reports it to the observer.
func (s *Server) Fail(w http.ResponseWriter, r *http.Request, err error) { s.fail(w, r, err) }

// Keyed returns an owner's newest run with that idempotency key, and the digest of its body, as long as the run is kept.
func (s *Server) Keyed(owner, key string) (info wire.RunInfo, digest string, ok bool) {
	r := s.runs.keyed(owner, key)
	if r == nil {
		return info, "", false
	}
	r.mu.Lock()
	digest = r.record.Digest
	r.mu.Unlock()
	return r.info(false), digest, true
}

// keyed searches an owner's runs. It is called only for keys that are not in the answer store, which is rare.
func (g *runStore) keyed(owner, key string) *run {
	g.mu.Lock()
	defer g.mu.Unlock()
	own := g.owners[owner]
	if own == nil {
		return nil
	}
	for i := len(own.runs) - 1; i >= 0; i-- {
		r := own.runs[i]
		r.mu.Lock()
		found := r.record.Key == key
		r.mu.Unlock()
		if found {
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
