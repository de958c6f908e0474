package verify

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/tests/report"
)

func sampleReport() *Report {
	return &Report{Checks: []*Check{
		{Name: "good", Suite: "python", File: "a.md", Line: 1, Status: report.Passed},
		{Name: "bad", Suite: "check go", File: "d e/ü.go", Line: 3, Status: report.Failed,
			Failure: &report.TestFailure{Message: "one\r\n::set-env name=X::y\n100%\xff"}},
		{Name: "gone", Status: report.Errored},
	}}
}

func TestSARIF(t *testing.T) {
	var b bytes.Buffer
	if err := sampleReport().WriteSARIF(&b); err != nil {
		t.Fatal(err)
	}
	var log struct {
		Version string
		Runs    []struct {
			Tool struct {
				Driver struct{ Rules []struct{ ID string } }
			}
			Results []struct {
				RuleID    string
				Message   struct{ Text string }
				Locations []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           struct{ StartLine int }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(b.Bytes(), &log); err != nil || log.Version != "2.1.0" || len(log.Runs) != 1 || len(log.Runs[0].Results) != 2 {
		t.Fatalf("%v %s", err, &b)
	}
	first := log.Runs[0].Results[0]
	at := first.Locations[0].PhysicalLocation
	if first.RuleID != "check go" || at.ArtifactLocation.URI != "d%20e/%C3%BC.go" || at.Region.StartLine != 3 || !strings.HasPrefix(first.Message.Text, "bad: one") {
		t.Errorf("%+v", first)
	}
}

// The message of a program can not be a command of the workflow.
func TestGitHub(t *testing.T) {
	var b bytes.Buffer
	if err := sampleReport().WriteGitHub(&b); err != nil {
		t.Fatal(err)
	}
	want := "::error title=check go failed,file=d e/ü.go,line=3::bad: one%0D%0A::set-env name=X::y%0A100%25\uFFFD\n::error title=error::gone: error\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &b, want)
	}
}
