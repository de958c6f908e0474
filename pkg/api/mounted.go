package api

import (
	"context"
	"net/http"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// What those may use who mount routes of their own.

// ReadBody reads a JSON body within the policy's size and time. release gives its memory back.
func (s *Server) ReadBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	return s.readBody(w, r)
}

// Negotiate finds the form of an answer that a client prefers of those offered, the first of which is the default.
func Negotiate(r *http.Request, offered ...string) (string, error) { return negotiate(r, offered...) }

// Fail answers with the problem that an error is, and tells observers.
func (s *Server) Fail(w http.ResponseWriter, r *http.Request, err error) { s.fail(w, r, err) }

// Keyed finds the newest run that an owner has had accepted under an idempotency key, with the digest of its body, as long as it is kept.
func (s *Server) Keyed(owner, key string) (info wire.RunInfo, digest string, ok bool) {
	r := s.registry.keyed(owner, key)
	if r == nil {
		return info, "", false
	}
	r.mu.Lock()
	digest = r.record.Digest
	r.mu.Unlock()
	return r.info(false), digest, true
}

// keyed looks through an owner's runs: whoever asks has not found it in memory, which is rare.
func (g *registry) keyed(owner, key string) *run {
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

// WithBody is a request whose body has been read by ReadBody: ReadBody gives it again, and counts it once.
func WithBody(r *http.Request, body []byte) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
}
