package session

import (
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestDiagnosis: a cell that fails says where and why, in the code of the cell that has the error.
func TestDiagnosis(t *testing.T) {
	s := create(t, newManager(t, Options{}), in("python"))
	s.shows("def port(config):\n    return config['port']", "")
	r := s.do("port({'prot': 1})")
	d := r.Diagnosis
	if d == nil || d.Kind != diagnose.KindKey || d.Location == nil || d.Location.File != "<cell 1>" || d.Location.Line != 2 {
		t.Fatalf("%+v; stderr %s", d, r.Stderr.Bytes())
	}
	if diagnose.MarkedLine(d.Excerpt) != "return config['port']" || len(d.Suggestions) != 1 {
		t.Errorf("%+v", d)
	}
	if r := s.do("1"); r.Diagnosis != nil {
		t.Errorf("a cell that succeeds: %+v", r.Diagnosis)
	}
	r = s.cell(Cell{Code: "import time\ntime.sleep(100)", Limits: sandbox.Limits{Wall: 300 * time.Millisecond}})
	if d := r.Diagnosis; d == nil || d.Kind != diagnose.KindTime || d.Location == nil || d.Location.Line != 2 {
		t.Errorf("%+v; stderr %s", d, r.Stderr.Bytes())
	}
}
