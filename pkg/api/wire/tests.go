package wire

import (
	"encoding/json"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

// Tests is the body of POST /v1/tests: a project, and which of its tests are run.
type Tests struct {
	Run         *Run     `json:"run" doc:"The project: its files, and the limits and settings of the run."`
	Framework   string   `json:"framework,omitempty" doc:"Name of the framework. Default: found by the files." example:"pytest"`
	Filter      string   `json:"filter,omitempty" doc:"Which tests are run, as the framework's own filter takes it."`
	FailFast    bool     `json:"fail_fast,omitempty" doc:"End at the first test that fails."`
	RerunFailed bool     `json:"rerun_failed,omitempty" doc:"Run failed tests once more; one that then passes is flaky, and does not fail the run."`
	Repeat      Count    `json:"repeat,omitempty" doc:"Run all tests that many times, each time in a fresh sandbox. At most 20."`
	TestTimeout Duration `json:"test_timeout,omitempty" doc:"The most time that one test may take."`
}

// MaxTestRepeat is the most that Tests.Repeat can be.
const MaxTestRepeat = 20

// DecodeTests reads the body of tests from an untrusted client. Its error is a *Problem that names every wrong field.
func DecodeTests(body []byte) (*Tests, error) {
	t := new(Tests)
	if err := DecodeStrict(body, t); err != nil {
		return nil, err
	}
	switch {
	case t.Run == nil:
		return nil, WrongField(CodeInvalid, "run", "%s", `it is missing; write it like {"run": {"files": [{"path": "test_a.py", "content": "…"}]}}`)
	case t.Repeat > MaxTestRepeat:
		return nil, WrongField(CodeCeiling, "repeat", "%d is above the maximum of %d", t.Repeat, MaxTestRepeat)
	}
	return t, nil
}

// TestsResult is the result of tests at a server.
type TestsResult struct {
	*executor.Result
	report.Report
	// Success is that of all tests and of their run.
	Success bool
}

// DecodeTestsResult reads a whole result of tests.
func DecodeTestsResult(b []byte) (*TestsResult, error) {
	var doc struct {
		report.Report
		Success bool `json:"success"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	r, err := DecodeResult(b)
	if err != nil {
		return nil, err
	}
	return &TestsResult{r, doc.Report, doc.Success}, nil
}
