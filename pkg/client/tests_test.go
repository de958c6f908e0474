package client

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

// Tests yields the run's events, the tests, and a result with both; every broken stream ends with an error.
func TestTests(t *testing.T) {
	const test = `{"seq":2,"time":"2026-01-01T00:00:00Z","kind":"test","content":{"name":"a","status":"failed","duration":0.5,` +
		`"failure":{"message":"why"}}}` + "\n"
	result := strings.Replace(strings.Replace(resultLine, `"success":true`, `"success":false`, 1), `"stdout":""`,
		`"framework":"pytest","complete":true,"tests_source":"program","summary":{"total":1,"failed":1},"tests":[{"name":"a","status":"failed"}],"stdout":""`, 1)
	for name, c := range map[string]struct{ body, says string }{
		"whole":        {line(1, "x") + test + "\n" + result, ""},
		"cut":          {line(1, "x") + test, "connection to the server was lost"},
		"no test":      {strings.Replace(test, `{"name"`, `["name"`, 1), "server event"},
		"wrong test":   {strings.Replace(test, `"name":"a"`, `"name":1`, 1), "decode test"},
		"wrong result": {strings.Replace(result, `"total":1`, `"total":"x"`, 1), "decode result"},
		"a problem":    {`{"kind":"error","problem":{"title":"t","code":"refused"}}` + "\n", "t"},
	} {
		t.Run(name, func(t *testing.T) {
			path, _ := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if body, err := io.ReadAll(r.Body); err != nil || r.URL.Path != wire.PathTests || !strings.Contains(string(body), `"filter":"f"`) {
					t.Errorf("%v: %s %s", err, r.URL, body)
				}
				_, _ = io.WriteString(w, c.body)
			}))
			var kinds []string
			var failed error
			for ev, err := range New(newUnix(t, path)).Tests(t.Context(), &wire.Tests{Run: &wire.Run{Code: "x"}, Filter: "f"}) {
				if failed = errors.Join(failed, err); err != nil {
					continue
				}
				kinds = append(kinds, string(ev.Kind))
				if ev.Kind == report.EventEnded && (ev.Test.Name != "a" || ev.Test.Status != report.Failed || ev.Test.Failure.Message != "why") {
					t.Errorf("%+v", ev.Test)
				}
				if ev.Kind == executor.EventResult && (ev.Result.Success || ev.Result.Summary.Failed != 1 || len(ev.Result.Tests) != 1 ||
					ev.Result.Verdict != "ok" || !ev.Result.Complete) {
					t.Errorf("%+v", ev.Result)
				}
			}
			switch {
			case c.says != "":
				if failed == nil || !strings.Contains(failed.Error(), c.says) {
					t.Error(failed)
				}
			case failed != nil || strings.Join(kinds, " ") != "stdout test result":
				t.Error(failed, kinds)
			}
		})
	}
}
