// Package report has the results of tests as data.
//
// What. Test, Summary and Report, with their JSON names; the kinds of events about tests.
//
// Place in the flow. pkg/tests makes them, the doors and the client of the HTTP API hand them on. The package has no code of its own that
// runs anything, so that sandbox-run can link it.
//
// Lifecycle. All are values.
//
// Concurrency. A Test of an event is a copy; that of a result is not changed any more.
//
// Limits. A report is the word of the program, which can forge it.
package report

import (
	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// The kinds of events about tests. Their Content is a Test as JSON.
const (
	EventStarted sandbox.EventKind = "test_started"
	EventEnded   sandbox.EventKind = "test"
)

// Status is the result of a test.
type Status string

// The statuses.
const (
	Passed   Status = "passed"
	Failed   Status = "failed"
	Skipped  Status = "skipped"
	Errored  Status = "error"   // beside the test's own checks: a file that can not be loaded, a fixture, a process that ended
	TimedOut Status = "timeout" // it took longer than Options.Timeout
	Running  Status = "running" // of an event
)

// Failed reports whether a test with this status fails the run.
func (s Status) Failed() bool { return s == Failed || s == Errored || s == TimedOut }

// Test is a test and its result, as the program reports it. Its JSON names are stable.
type Test struct {
	Name      string       `json:"name"`
	Suite     string       `json:"suite,omitempty" doc:"Package, class or binary of the test."`
	File      string       `json:"file,omitempty" doc:"Path relative to the project."`
	Line      int          `json:"line,omitempty"`
	Status    Status       `json:"status" enum:"passed,failed,skipped,error,timeout"`
	Duration  float64      `json:"duration" doc:"Seconds."`
	Output    string       `json:"output,omitempty" doc:"What the test printed, where the framework says which test printed it."`
	Truncated bool         `json:"output_truncated,omitempty"`
	Reason    string       `json:"reason,omitempty" doc:"Why it was skipped."`
	Failure   *TestFailure `json:"failure,omitempty" nullable:"false"`
	Flaky     bool         `json:"flaky,omitempty" doc:"Its attempts have different statuses."`
	Attempts  []Status     `json:"attempts,omitempty" nullable:"false" doc:"Statuses of several attempts, in order."`

	ID    string `json:"-"` // unique among the tests that run at the same time
	Trace string `json:"-"` // what explains a failure, if it is neither the message nor the output
}

// TestFailure is why a test failed.
type TestFailure struct {
	Message   string              `json:"message"`
	Diagnosis *diagnose.Diagnosis `json:"diagnosis,omitempty"`
}

// TestSummary counts tests by status.
type TestSummary struct {
	Total    int `json:"total"`
	Passed   int `json:"passed"`
	Failed   int `json:"failed"`
	Skipped  int `json:"skipped"`
	Errors   int `json:"errors"`
	Timeouts int `json:"timeouts"`
	Flaky    int `json:"flaky"`
}

// Report is what a project's tests have done, beside the result of their run.
type Report struct {
	Framework string      `json:"framework"`
	Complete  bool        `json:"complete" doc:"The framework has reported its end."`
	Stopped   string      `json:"stopped,omitempty" enum:"fail_fast,timeout" doc:"Why the run was ended before all tests were run."`
	Source    string      `json:"tests_source" enum:"program" doc:"Who says what tests have done: the program itself, which can forge it."`
	Summary   TestSummary `json:"summary"`
	Tests     []*Test     `json:"tests" nullable:"false"`
}

// SourceProgram is the value of Report.Source.
const SourceProgram = "program"

// Reasons of Report.Stopped.
const (
	StoppedFailFast = "fail_fast"
	StoppedTimeout  = "timeout"
)

// FailedTests returns how many tests have failed.
func (s *TestSummary) FailedTests() int { return s.Failed + s.Errors + s.Timeouts }

// Count counts tests.
func Count(list []*Test) (s TestSummary) {
	for _, t := range list {
		s.Total++
		switch t.Status {
		case Passed:
			s.Passed++
		case Failed:
			s.Failed++
		case Skipped:
			s.Skipped++
		case TimedOut:
			s.Timeouts++
		default:
			s.Errors++
		}
		if t.Flaky {
			s.Flaky++
		}
	}
	return s
}
