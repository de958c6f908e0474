package api

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
)

// A request may wait for the end of a run, and for no longer than it asks.
func TestWait(t *testing.T) {
	w := newTestServer(t)
	id := w.start("out here\nwait", `"timeout":"300s"`)
	path := wire.PathRuns + "/" + id + "?wait="
	var info wire.RunInfo
	decode(t, w.ask(200, "GET", path+"1", ""), &info)
	if info.State.Over() {
		t.Errorf("%+v", info)
	}
	ended := make(chan []byte, 1)
	go func() { ended <- w.ask(200, "GET", path+"60", "") }()
	w.ask(202, "DELETE", wire.PathRuns+"/"+id, "")
	select {
	case text := <-ended:
		decode(t, text, &info)
	case <-time.After(testTimeout):
		t.Fatal("no answer")
	}
	if info.Verdict != "cancelled" {
		t.Errorf("%+v", info)
	}
	for _, wrong := range []string{"-1", "61", "x", "1.5"} {
		w.problem(422, "GET", path+wrong, "")
	}
	w.problem(404, "GET", wire.PathRuns+"/none?wait=60", "")
}

// A run without sync is on disk when it is over, and outlives the server then; one under way does not.
func TestWithoutSync(t *testing.T) {
	dir := t.TempDir()
	durable := func(o *Options) { o.Dir = dir }
	w := newTestServer(t, durable)
	start := func(code string, fields ...string) (info wire.RunInfo) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, wire.PathRuns, strings.NewReader(body(code, fields...)))
		r.Header.Set("Content-Type", wire.TypeJSON)
		answer := httptest.NewRecorder()
		w.HandlerOf(&Principal{ID: "one"}).ServeHTTP(answer, WithoutSync(r))
		if answer.Code != http.StatusAccepted {
			t.Fatalf("%d %s", answer.Code, answer.Body)
		}
		decode(t, answer.Body.Bytes(), &info)
		return info
	}
	files := func() (names []string) {
		all, err := os.ReadDir(filepath.Join(dir, "runs"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			names = append(names, e.Name())
		}
		return names
	}
	done, waiting := start("out hello"), start("wait", `"timeout":"300s"`)
	eventually(t, "it is on disk", func() bool { return slices.Contains(files(), done.ID+suffixDone) })
	if slices.ContainsFunc(files(), func(name string) bool { return strings.HasPrefix(name, waiting.ID) }) {
		t.Errorf("%v", files())
	}
	w.problem(404, "GET", wire.PathRuns+"/"+done.ID, "") // another principal's
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w.open(durable)
	if r := w.runs.get("one", done.ID); r == nil || r.current().Verdict != "ok" {
		t.Errorf("%+v", r)
	}
	if r := w.runs.get("one", waiting.ID); r != nil && r.current().Verdict != "cancelled" {
		t.Errorf("%+v", r.current())
	}
	gone := w.runs.get("one", done.ID)
	w.runs.forget(gone)
	if slices.Contains(files(), done.ID+suffixDone) {
		t.Errorf("%v", files())
	}
}
