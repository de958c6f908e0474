package language

import (
	"encoding/json"
	"path"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Tests selects the tests of a run with Options.Test, and has the run report each of them. The standard output of the run is then the
// report, in the form that Plan.Report names. What the tests print goes to standard error, except that of Go, which is in the report.
type Tests struct {
	Framework string        `json:"framework"` // of several that the language has; empty: as the files say
	Filter    string        `json:"filter"`    // as the framework's own filter takes it
	Names     []string      `json:"names"`     // the only tests to run, as an earlier report names them
	FailFast  bool          `json:"fail_fast"`
	Timeout   time.Duration `json:"-"` // of one test, for frameworks that can go on after it
}

// Forms of reports, which pkg/tests reads.
const (
	ReportRecords = "records" // lines of JSON, by the reporters of sandbox-run
	ReportGo      = "go"      // -test.v=test2json, and a line for each package
	ReportLibtest = "libtest" // --format=json
	ReportTAP     = "tap"
	ReportJUnit   = "junit" // XML, several documents one after the other
)

// TestsDir is the directory of reporters in the sandbox.
const TestsDir = sandbox.HomeDir + "/.sandbox-run/tests"

// SendReport makes descriptor 3 of a run the report, and sends what the run prints to standard error.
func (p *Phase) SendReport() {
	p.Process.Args = append([]string{"/bin/sh", "-c", `exec "$@" 3>&1 1>&2`, "report"}, p.Process.Args...)
}

// AddReporter copies a reporter into the sandbox, and beside it what the request asks of it (tests.json).
func (j *Job) AddReporter(name string, text []byte) (file string, err error) {
	asked, err := json.Marshal(struct {
		*Tests
		Timeout float64 `json:"timeout"` // seconds
	}{j.Request.Tests, j.Request.Tests.Timeout.Seconds()})
	if err != nil {
		return "", err
	}
	file = path.Join(TestsDir, name)
	j.RunFiles = append(j.RunFiles, sandbox.File{Path: file, Mode: 0o644, Data: text},
		sandbox.File{Path: path.Join(TestsDir, "tests.json"), Mode: 0o644, Data: asked})
	return file, nil
}
