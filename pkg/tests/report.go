package tests

import (
	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
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
	running  Status = "running"
	dropped  Status = "" // no test
)

// Failed reports whether a test with this status fails the run.
func (s Status) Failed() bool { return s == Failed || s == Errored || s == TimedOut }

// Test is a test and its result, as the program reports it. Its JSON names are stable.
type Test struct {
	Name      string   `json:"name"`
	Suite     string   `json:"suite,omitempty" doc:"Package, class or binary of the test."`
	File      string   `json:"file,omitempty" doc:"Path relative to the project."`
	Line      int      `json:"line,omitempty"`
	Status    Status   `json:"status" enum:"passed,failed,skipped,error,timeout"`
	Duration  float64  `json:"duration" doc:"Seconds."`
	Output    string   `json:"output,omitempty" doc:"What the test printed, where the framework says which test printed it."`
	Truncated bool     `json:"output_truncated,omitempty"`
	Reason    string   `json:"reason,omitempty" doc:"Why it was skipped."`
	Failure   *Failure `json:"failure,omitempty" nullable:"false"`
	Flaky     bool     `json:"flaky,omitempty" doc:"Its attempts have different statuses."`
	Attempts  []Status `json:"attempts,omitempty" nullable:"false" doc:"Statuses of several attempts, in order."`

	id    string
	trace string // what explains a failure, if it is neither the message nor the output
}

// Failure is why a test failed.
type Failure struct {
	Message   string              `json:"message"`
	Diagnosis *diagnose.Diagnosis `json:"diagnosis,omitempty"`
}

// Summary counts tests by status.
type Summary struct {
	Total    int `json:"total"`
	Passed   int `json:"passed"`
	Failed   int `json:"failed"`
	Skipped  int `json:"skipped"`
	Errors   int `json:"errors"`
	Timeouts int `json:"timeouts"`
	Flaky    int `json:"flaky"`
}

// Result is the result of a project's tests: the program's report, and the result of the run that decides. With several attempts it is that
// of the first run that failed, or of the last one.
type Result struct {
	*executor.Result
	Framework string
	Tests     []*Test
	Summary   Summary
	// Complete is set if the framework has reported its end. A program that ends the process of its tests leaves it unset.
	Complete bool
	// Stopped is why the run was ended before all tests were run: fail_fast or timeout; empty: it was not.
	Stopped string
}

// Reasons of Result.Stopped.
const (
	StoppedFailFast = "fail_fast"
	StoppedTimeout  = "timeout"
)

// Success reports whether the run succeeded, its report is complete and has tests, and none of them failed.
func (r *Result) Success() bool {
	return r.Verdict == sandbox.VerdictOK && r.Complete && r.Summary.Total > 0 && r.failed() == 0
}

func (r *Result) failed() int { return r.Summary.Failed + r.Summary.Errors + r.Summary.Timeouts }

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
	Framework string  `json:"framework"`
	Complete  bool    `json:"complete" doc:"The framework has reported its end."`
	Stopped   string  `json:"stopped,omitempty" enum:"fail_fast,timeout" doc:"Why the run was ended before all tests were run."`
	Source    string  `json:"tests_source" enum:"program" doc:"Who says what tests have: the program itself, which can forge it."`
	Summary   Summary `json:"summary"`
	Tests     []*Test `json:"tests" nullable:"false"`
}

// Extend adds the tests to the document of the run.
func (r *Result) Extend(d executor.Document) Document {
	d.Success, d.ExitCode = r.Success(), r.ExitCode()
	list := r.Tests
	if list == nil {
		list = []*Test{}
	}
	return Document{d, r.Framework, r.Complete, r.Stopped, "program", r.Summary, list}
}

// MarshalJSON writes the Document.
func (r *Result) MarshalJSON() ([]byte, error) { return marshal(r.Extend(r.ToDocument())) }

// Encode is MarshalJSON for large output, which it encodes while it is written.
func (r *Result) Encode() (*sandbox.JSON, error) {
	return r.EncodeAs(func(d executor.Document) any { return r.Extend(d) })
}

func count(list []*Test) (s Summary) {
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
