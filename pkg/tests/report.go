package tests

import (
	"encoding/json"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

// Test, Status and Failure are those of a report.
type (
	Test    = report.Test
	Status  = report.Status
	Failure = report.TestFailure
)

// The statuses.
const (
	Passed   = report.Passed
	Failed   = report.Failed
	Skipped  = report.Skipped
	Errored  = report.Errored
	TimedOut = report.TimedOut
	dropped  = Status("") // no test
)

// Reasons why a run was ended.
const (
	StoppedFailFast = report.StoppedFailFast
	StoppedTimeout  = report.StoppedTimeout
)

// Result is the result of a project's tests: the program's report, and the result of the run that decides. With several attempts it is that
// of the first run that failed, or of the last one.
type Result struct {
	*executor.Result
	report.Report
}

// Success reports whether the run succeeded, its report is complete and has tests, and none of them failed.
func (r *Result) Success() bool {
	return r.Verdict == sandbox.VerdictOK && r.Complete && r.Summary.Total > 0 && r.Summary.FailedTests() == 0
}

// ExitCode returns the exit code of the command line: 0 for success, 1 for tests that failed or are not all reported, and otherwise that of
// the run: 124 at the time limit, 137 at the memory limit, 128 plus the number of a signal.
func (r *Result) ExitCode() int {
	switch {
	case r.Success():
		return 0
	case r.Stopped != "", r.Verdict == sandbox.VerdictOK, r.Verdict == sandbox.VerdictNonzeroExit:
		return 1
	}
	return r.Result.ExitCode()
}

// Document is a Result as JSON.
type Document struct {
	executor.Document
	report.Report
}

// Extend adds the tests to the document of the run.
func (r *Result) Extend(d executor.Document) Document {
	d.Success, d.ExitCode = r.Success(), r.ExitCode()
	said := r.Report
	if said.Tests == nil {
		said.Tests = []*Test{}
	}
	return Document{d, said}
}

// MarshalJSON writes the Document.
func (r *Result) MarshalJSON() ([]byte, error) { return json.Marshal(r.Extend(r.ToDocument())) }

// Encode is MarshalJSON for large output, which it encodes while it is written.
func (r *Result) Encode() (*sandbox.JSON, error) {
	return r.EncodeAs(func(d executor.Document) any { return r.Extend(d) })
}
