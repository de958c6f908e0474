package verify

import (
	"encoding/json"
	"io"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/tests"
	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

// Check is a block, a file or a test that was checked, in the form of a test's result.
type Check = report.Test

// Report is what was checked, and whether all of it is right. Its JSON names are stable.
type Report struct {
	Checks []*Check
	// Updated are the documents that were rewritten.
	Updated []string
	// Isolation is that of the first sandbox; nil: none was needed.
	Isolation *sandbox.Isolation
	Notes     []string
}

// Success reports whether no check has failed.
func (r *Report) Success() bool {
	s := report.Count(r.Checks)
	return s.FailedTests() == 0
}

// ExitCode returns the exit code of the command line: 0 or 1.
func (r *Report) ExitCode() int {
	if r.Success() {
		return 0
	}
	return 1
}

// Document is a Report as JSON.
type Document struct {
	Success   bool               `json:"success"`
	ExitCode  int                `json:"exit_code"`
	Summary   report.TestSummary `json:"summary"`
	Checks    []*Check           `json:"checks" nullable:"false"`
	Updated   []string           `json:"updated,omitempty" nullable:"false" doc:"Documents whose output blocks were rewritten."`
	Isolation *sandbox.Isolation `json:"isolation,omitempty" doc:"Of the first sandbox; the others have the same settings."`
	Notes     []string           `json:"notes,omitempty" nullable:"false"`
}

// Document converts the report.
func (r *Report) Document() Document {
	checks := r.Checks
	if checks == nil {
		checks = []*Check{}
	}
	return Document{r.Success(), r.ExitCode(), report.Count(checks), checks, r.Updated, r.Isolation, r.Notes}
}

// MarshalJSON writes the Document.
func (r *Report) MarshalJSON() ([]byte, error) { return json.Marshal(r.Document()) }

// WriteJUnit writes the checks as JUnit XML.
func (r *Report) WriteJUnit(w io.Writer) error {
	return tests.WriteJUnitReport(w, "verify", r.Checks, "")
}
