// Package testregistry makes package registries for tests: small, real servers on the loopback, in the protocols that the languages' tools
// speak.
//
// What. [New] starts an HTTP server; PyPI, NPM, Go, Crates and Maven make its handlers from packages as data. Faults serves what a broken or
// hostile registry would.
//
// Place in the flow. Imported by tests of packages and installations only.
//
// Lifecycle. A server ends with its test.
//
// Concurrency. Servers may be used from any goroutine; their packages do not change.
//
// Limits. The servers have what installations ask for, and nothing to publish with.
package testregistry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Server is a registry.
type Server struct {
	*httptest.Server

	mu       sync.Mutex
	requests []string
}

// New serves a registry until the test ends. Every request is remembered.
func New(t testing.TB, handler http.Handler) *Server {
	t.Helper()
	s := &Server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
		s.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// Requests are the requests so far: METHOD PATH.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.requests...)
}

// Host is the server's address: HOST:PORT.
func (s *Server) Host() string { return strings.TrimPrefix(s.URL, "http://") }

// Config writes a registries.yaml in which registries have the given indexes. It returns the path.
func Config(t testing.TB, indexes map[string]string) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("registries:\n")
	for name, index := range indexes {
		fmt.Fprintf(&text, "  %s:\n    index: %s\n", name, index)
		if name == "go" {
			text.WriteString("    checksums: \"off\"\n")
		}
	}
	file := filepath.Join(t.TempDir(), "registries.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
