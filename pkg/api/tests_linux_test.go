package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

// testsBody is the body of a project with one file of unittest.
func testsBody(t *testing.T, methods string, more map[string]any) string {
	t.Helper()
	run := map[string]any{"timeout": 120, "files": []map[string]string{{"path": "test_a.py",
		"content": "import unittest, os, time\nclass T(unittest.TestCase):\n" + methods}}}
	body := map[string]any{"run": run}
	for k, v := range more {
		body[k] = v
	}
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const goodMethod = "    def test_good(self): pass\n"

func TestRealTests(t *testing.T) {
	w := newRealServer(t)
	r, err := wire.DecodeTestsResult(w.ask(200, "POST", wire.PathTests, testsBody(t, goodMethod+"    def test_bad(self): self.fail('why')\n",
		map[string]any{"rerun_failed": true})))
	if err != nil || r.Success || r.Verdict != sandbox.VerdictNonzeroExit || len(r.Tests) != 2 || r.Summary.Failed != 1 || !r.Complete ||
		r.Source != report.SourceProgram || r.Isolation.Tier != sandbox.TierContainer {
		t.Fatalf("%v: %+v", err, r)
	}
	bad := r.Tests[0]
	if bad.Name != "test_bad" || bad.Status != report.Failed || len(bad.Attempts) != 2 || bad.Failure == nil ||
		!strings.Contains(bad.Failure.Message, "why") || bad.Failure.Diagnosis == nil {
		t.Errorf("%+v", bad)
	}
	// A stream has numbers without gaps, through all attempts.
	answer := w.requestContext(t.Context(), "POST", wire.PathTests, strings.NewReader(testsBody(t, goodMethod, map[string]any{"repeat": 2})),
		"Accept", wire.TypeNDJSON)
	started, ended, last := 0, 0, executor.Event{}
	for i, line := range lines(t, answer.Body) {
		ev, err := wire.DecodeEvent(line)
		if err != nil || ev.Seq != uint64(i+1) {
			t.Fatalf("%v: line %d: %s", err, i+1, line)
		}
		switch ev.Kind {
		case report.EventStarted:
			started++
		case report.EventEnded:
			ended++
			if !bytes.Contains(ev.Content, []byte(`"status":"passed"`)) {
				t.Errorf("%s", ev.Content)
			}
		}
		last = ev
	}
	if started != 2 || ended != 2 || last.Kind != executor.EventResult || last.Result.Verdict != sandbox.VerdictOK {
		t.Errorf("%d started, %d ended, %+v", started, ended, last)
	}
	sse := w.requestContext(t.Context(), "POST", wire.PathTests, strings.NewReader(testsBody(t, goodMethod, nil)), "Accept", wire.TypeSSE)
	var text bytes.Buffer
	if _, err := text.ReadFrom(sse.Body); err != nil || !strings.Contains(text.String(), "event: test\ndata: {") ||
		!strings.Contains(text.String(), "event: result\ndata: {") {
		t.Errorf("%v: %s", err, &text)
	}
	for body, field := range map[string]string{
		`{}`:                               "run",
		`{"run":{"code":"1"},"x":1}`:       "x",
		`{"run":{"code":"1"}}`:             "no tests are found",
		`{"run":{"code":"1"},"repeat":21}`: "repeat",
		testsBody(t, goodMethod, map[string]any{"framework": "nose"}): "nose",
		testsBody(t, goodMethod, map[string]any{"test_timeout": -1}):  "test_timeout",
	} {
		answer := w.request("POST", wire.PathTests, body)
		var text bytes.Buffer
		if _, err := text.ReadFrom(answer.Body); err != nil || answer.StatusCode/100 != 4 || !strings.Contains(text.String(), field) {
			t.Errorf("%s: %v %d %s", body, err, answer.StatusCode, &text)
		}
	}
}

// TestRealTestsVanish: a client that disconnects ends its tests.
func TestRealTestsVanish(t *testing.T) {
	w := newRealServer(t)
	mark := "testing" + NewID()[:8]
	ctx, vanish := context.WithCancel(t.Context())
	defer vanish()
	over := make(chan struct{})
	body := testsBody(t, "    def test_hang(self): os.execvp('sleep', ['"+mark+"', '250'])\n", nil)
	go func() {
		defer close(over)
		r, _ := http.NewRequestWithContext(ctx, "POST", "http://server"+wire.PathTests, strings.NewReader(body))
		r.Header.Set("Content-Type", wire.TypeJSON)
		if answer, err := w.client.Do(r); err == nil {
			answer.Body.Close()
		}
	}()
	eventually(t, "it runs", func() bool { return processes(mark) == 1 })
	vanish()
	<-over
	eventually(t, "no process is left", func() bool { return processes(mark) == 0 })
	eventually(t, "no sandbox is left", func() bool { return len(real.manager.List()) == 0 })
}
