package api

import (
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/api/wire"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestRealTestsPolicy: tests get no more than a run of the same server.
func TestRealTestsPolicy(t *testing.T) {
	w := newRealServer(t)
	const file = `"files":[{"path":"test_a.py","content":"import unittest\nclass T(unittest.TestCase):\n    def test_a(self): pass\n"}]`
	for _, fields := range []string{
		`"backend":"process"`, `"require":"process"`, `"timeout":1e6`, `"memory":"1t"`, `"volumes":["/etc:/mnt"]`, `"workspace":"x"`,
		`"webhook":{"url":"http://127.0.0.1/"}`, `"interactive":true`, `"tty":true`, `"network":"full"`,
	} {
		run := w.request("POST", wire.PathRun, `{"language":"python",`+file+`,`+fields+`}`)
		tests := w.request("POST", wire.PathTests, `{"run":{`+file+`,`+fields+`}}`)
		if run.StatusCode/100 != 4 || tests.StatusCode/100 != 4 {
			t.Errorf("%s: %d, as tests %d", fields, run.StatusCode, tests.StatusCode)
		}
	}
	text := w.ask(200, "POST", wire.PathTests, `{"run":{`+file+`}}`)
	if r, err := wire.DecodeTestsResult(text); err != nil || !r.Success || r.Verdict != sandbox.VerdictOK || !strings.Contains(string(text), `"wall`) {
		t.Errorf("%v: %s", err, text)
	}
}
