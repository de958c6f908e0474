package web

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/sandbox-run/sandbox-run/pkg/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server with a certificate of its own and writes it to a file.
func serve(t *testing.T, h http.HandlerFunc) (s *httptest.Server, ca string) {
	t.Helper()
	s = httptest.NewTLSServer(h)
	s.Config.ErrorLog = nil
	t.Cleanup(s.Close)
	ca = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return s, ca
}

func open(t *testing.T, address string, o Options) *Transport {
	t.Helper()
	w, err := New(address, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func ask(t *testing.T, w *Transport, r *client.Request) (string, *client.Response, error) {
	t.Helper()
	resp, err := w.RoundTrip(t.Context(), r)
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), resp, err
}

func TestKeyAndCertificate(t *testing.T) {
	s, ca := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			http.Redirect(w, r, "https://example.invalid/", http.StatusFound)
			return
		}
		w.Header().Set("X-Key", r.Header.Get("Authorization"))
		_, _ = io.Copy(w, r.Body)
	})
	w := open(t, s.URL+"/", Options{Key: "secret", CAFile: ca})
	text, resp, err := ask(t, w, &client.Request{Method: "POST", Path: "/v1/run", Body: strings.NewReader("body"), Length: 4})
	if err != nil || text != "body" || resp.Header.Get("X-Key") != "Bearer secret" {
		t.Error(text, resp, err)
	}
	// Redirects are not followed.
	if _, resp, err := ask(t, w, &client.Request{Method: "GET", Path: "/elsewhere"}); err != nil || resp.Status != http.StatusFound {
		t.Error(resp, err)
	}
	// A server with another certificate gets no request.
	if _, _, err := ask(t, open(t, s.URL, Options{Key: "secret"}), &client.Request{Method: "GET", Path: "/"}); !errors.Is(err,
		client.ErrNotSent) {
		t.Error(err)
	}
}

func TestAddresses(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for address, c := range map[string]struct {
		o    Options
		says string
	}{
		"ftp://x": {Options{}, "is no http:// or https:// address"}, "https://": {Options{}, "only a host"},
		"https://u:p@h": {Options{}, "only a host"}, "https://h?q": {Options{}, "only a host"},
		"http://example.com": {Options{Key: "k"}, "unencrypted"}, "https://a": {Options{Key: "a\nb"}, "API key has"},
		"https://b": {Options{CAFile: "/none"}, "server-ca"}, "https://c": {Options{CAFile: empty}, "no certificate"},
	} {
		if _, err := New(address, c.o); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), ":p@") {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{"http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1", "https://example.com/base"} {
		if _, err := New(address, Options{Key: "k"}); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, _, err := ask(t, open(t, "http://127.0.0.1:1", Options{}), &client.Request{Method: "GET", Path: "/"}); !errors.Is(err,
		client.ErrNoServer) || !errors.Is(err, client.ErrNotSent) {
		t.Error(err)
	}
}

func TestIdleTimeout(t *testing.T) {
	release := make(chan struct{})
	s, ca := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" {
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
		}
		<-release
	})
	t.Cleanup(func() { close(release) }) // before the server is closed, which waits
	w := open(t, s.URL, Options{CAFile: ca})
	for _, path := range []string{"/head", "/body"} {
		if _, _, err := ask(t, w, &client.Request{Method: "GET", Path: path, IdleTimeout: 100 * time.Millisecond}); !errors.Is(err,
			client.ErrIdleTimeout) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestSocket(t *testing.T) {
	s, ca := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Who", r.Header.Get("Authorization"))
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"title":"not you","code":"forbidden"}`)
			return
		}
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"p"}})
		if err != nil {
			return
		}
		kind, data, err := c.Read(r.Context())
		if err == nil {
			_ = c.Write(r.Context(), kind, data)
		}
		_ = c.Close(websocket.StatusNormalClosure, "")
	})
	w := open(t, s.URL, Options{Key: "k", CAFile: ca})
	socket, header, err := w.Dial(t.Context(), "/", "p")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if header.Get("X-Who") != "Bearer k" {
		t.Error(header)
	}
	if err := socket.Send(t.Context(), []byte("hello"), false); err != nil {
		t.Fatal(err)
	}
	if data, binary, err := socket.Receive(t.Context()); err != nil || binary || string(data) != "hello" {
		t.Error(string(data), binary, err)
	}
	if _, _, err := socket.Receive(context.Background()); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	var problem *client.Problem
	if _, _, err := w.Dial(t.Context(), "/no", "p"); !errors.As(err, &problem) || problem.Status != http.StatusForbidden ||
		!strings.Contains(err.Error(), "not you") {
		t.Error(err)
	}
	if _, _, err := w.Dial(t.Context(), "/", "other"); err == nil {
		t.Error("another protocol is spoken")
	}
}
