package executor

import (
	"reflect"
	"testing"
	"time"

	"github.com/sandbox-run/sandbox-run/pkg/monitor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// Two commands of one phase have one limit.
func TestRestOfAPhase(t *testing.T) {
	p := Phase{Again: &sandbox.Process{Args: []string{"again"}, Limits: sandbox.Limits{Wall: 10 * time.Second, Memory: 1}}}
	first := &sandbox.Result{Limits: sandbox.Limits{Wall: 10 * time.Second, Disk: 7}}
	first.Metrics.WallTime, first.Metrics.CPUTime = monitor.Seconds(4*time.Second), monitor.Seconds(9*time.Second)
	again, left := secondCommand(&p, first)
	if l := again.Limits; !left || l.Wall != 6*time.Second || l.CPUTime != 0 || l.Memory != 1 || l.Disk != 0 || again.Args[0] != "again" {
		t.Errorf("%+v, %v", again, left)
	}
	if p.Again.Limits.Wall != 10*time.Second {
		t.Error("the plan was changed")
	}
	first.Limits.CPUTime = 10 * time.Second
	if again, left = secondCommand(&p, first); !left || again.Limits.CPUTime != time.Second {
		t.Errorf("%+v, %v", again.Limits, left)
	}
	first.Metrics.CPUTime = monitor.Seconds(10 * time.Second)
	if _, left = secondCommand(&p, first); left {
		t.Error("there is no CPU time left")
	}
	first.Limits.CPUTime, first.Metrics.WallTime = 0, monitor.Seconds(11*time.Second)
	if _, left = secondCommand(&p, first); left {
		t.Error("there is no time left")
	}
}

func TestTogether(t *testing.T) {
	first := &sandbox.Result{Verdict: sandbox.VerdictNonzeroExit, Limits: sandbox.Limits{Wall: time.Minute}}
	first.Metrics = monitor.Metrics{WallTime: 3e9, CPUTime: 1e9, CPUUser: 5e8, CPUSystem: 5e8, MemoryPeak: 70, ProcessesPeak: 2, IORead: 1}
	second := &sandbox.Result{Verdict: sandbox.VerdictOK, Limits: sandbox.Limits{Wall: time.Second}}
	second.Metrics = monitor.Metrics{WallTime: 1e9, CPUTime: 1e9, CPUUser: 1e9, MemoryPeak: 60, ProcessesPeak: 5, IORead: 2}
	r := joinResults(first, second)
	want := monitor.Metrics{WallTime: 4e9, CPUTime: 2e9, CPUUser: 15e8, CPUSystem: 5e8, MemoryPeak: 70, ProcessesPeak: 5, IORead: 3,
		CPUPercent: 50}
	if !reflect.DeepEqual(r.Metrics, want) || r.Verdict != sandbox.VerdictOK || r.Limits.Wall != time.Minute {
		t.Errorf("%+v", r)
	}
	if second.Metrics.IORead != 2 {
		t.Error("the second's own was changed")
	}
}
