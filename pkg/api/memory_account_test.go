package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// TestMemoryAccount: owners that take all they can get leave room for one more, and a result above the bound can still be sent.
func TestMemoryAccount(t *testing.T) {
	var h memoryAccount
	refused := func(err error, status int) {
		t.Helper()
		if r := (*Refusal)(nil); !errors.As(err, &r) || r.Status != status || r.RetryAfter <= 0 {
			t.Errorf("%+v, want %d", err, status)
		}
	}
	for _, owner := range []string{"a", "b", "c", "d"} {
		if err := h.reserve(owner, 1); err != nil {
			t.Errorf("%s: %v", owner, err)
		}
		for h.reserve(owner, 1<<20) == nil {
		}
		refused(h.reserve(owner, 1<<20), http.StatusTooManyRequests)
	}
	refused(h.reserve("e", maxAccount), http.StatusServiceUnavailable)
	for owner, n := range h.owners {
		h.drop(owner, n)
	}
	if h.total() != 0 || len(h.owners) != 0 {
		t.Errorf("%d of %v", h.total(), h.owners)
	}
	first, err := h.reserveResult("a", 10*maxAccount)
	must(t, err)
	second, err := h.reserveResult("a", 10*maxAccount)
	must(t, err)
	_, err = h.reserveResult("a", 10*maxAccount)
	refused(err, http.StatusTooManyRequests)
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.waitForResult(soon, "a", maxAccount); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	time.AfterFunc(50*time.Millisecond, first)
	third, err := h.waitForResult(t.Context(), "a", maxAccount)
	must(t, err)
	for _, release := range []func(){first, second, third} {
		release()
		release()
	}
	if h.total() != 0 {
		t.Errorf("%d", h.total())
	}
}

// TestResultsOfOne: a client that does not read its results gets no more for now; other clients do.
func TestResultsOfOne(t *testing.T) {
	w := newTestServer(t, func(o *Options) { o.Auth = keys{"a": {ID: "a"}, "b": {ID: "b"}} })
	w.token = "a"
	id := w.start("out x")
	w.waitForEnd(id)
	release := w.results.count("a", maxAccount/2+1)
	for _, path := range []string{wire.PathRuns + "/" + id, wire.PathRuns + "/" + id + "/files/x"} {
		w.problem(429, "GET", path, "")
	}
	w.problem(429, "POST", wire.PathRun, body("out x"))
	w.token = "b"
	w.ask(200, "POST", wire.PathRun, body("out x"))
	release()
	w.token = "a"
	w.ask(200, "POST", wire.PathRun, body("out x"))
	text := string(w.ask(200, "GET", wire.PathRuns+"/"+id, ""))
	var info wire.RunInfo
	must(t, json.Unmarshal([]byte(text), &info))
	if info.ID != id || info.Events == nil || !strings.Contains(string(info.Result), `"stdout":"x`) || !strings.HasSuffix(text, "}\n") {
		t.Errorf("%s", text)
	}
	// The client has the whole answer before its handler returns.
	eventually(t, "nothing is counted any more", func() bool { return w.results.total() == 0 })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestBodiesThatWait: bodies of waiting runs count as memory, and leave room for others.
func TestBodiesThatWait(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	w := newTestServer(t, func(o *Options) { o.Auth, o.Admission = keys{"a": {ID: "a"}, "b": {ID: "b"}}, g })
	w.token = "a"
	release := w.bodies.count("a", maxAccount/2-(4<<20)) // others of his
	large := `{"language":"act","code":"#` + strings.Repeat("x", 1<<20) + `"}`
	var refused bool
	for range 8 {
		answer := w.request("POST", wire.PathRuns, large)
		answer.Body.Close()
		if refused = answer.StatusCode == http.StatusTooManyRequests; refused {
			break
		}
	}
	if !refused {
		t.Error("all of them were accepted")
	}
	w.token = "b"
	w.ask(202, "POST", wire.PathRuns, body("out x"))
	release()
	close(g.open)
	eventually(t, "nothing is counted any more", func() bool { return w.bodies.total() == 0 })
}

// TestUploadsOfOne: empty files count, and one client's files leave room for others.
func TestUploadsOfOne(t *testing.T) {
	w := newTestServer(t, func(o *Options) {
		o.Auth, o.Keep.Uploads, o.Keep.Upload = keys{"a": {ID: "a"}, "b": {ID: "b"}}, 10_000, 8000
	})
	path := func(name string, i int) string { return fmt.Sprintf("%s/%s%d", wire.PathFiles, name, i) }
	w.token = "a"
	for i := range 32 { // half of as many as there may be
		w.ask(201, "PUT", path("empty", i), "")
	}
	if p := w.problem(429, "PUT", path("more", 0), ""); p.RetryAfter == 0 {
		t.Errorf("%+v", p)
	}
	w.ask(204, "DELETE", path("empty", 0), "")
	w.ask(201, "PUT", path("full", 0), strings.Repeat("x", 5000))
	w.ask(204, "DELETE", path("empty", 1), "")
	w.problem(429, "PUT", path("full", 1), "x")
	w.token = "b"
	w.ask(201, "PUT", path("full", 0), strings.Repeat("x", 2500))
	w.token = "a"
	for i := range 30 {
		w.ask(204, "DELETE", path("empty", i+2), "")
	}
	w.ask(204, "DELETE", path("full", 0), "")
	if u := w.uploads; u.size != 2500 || u.number != 1 || len(u.owners) != 1 {
		t.Errorf("%d bytes, %d files, %v", u.size, u.number, u.owners)
	}
}
