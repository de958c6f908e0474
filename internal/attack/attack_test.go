package attack

import (
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func TestGrade(t *testing.T) {
	gap := sandbox.Isolation{Missing: []sandbox.Gap{{Control: sandbox.ControlSwap}}}
	for _, test := range []struct {
		tier     sandbox.Tier
		iso      sandbox.Isolation
		outcomes []Outcome
		want     Grade
		ok       bool
	}{
		{sandbox.TierContainer, sandbox.Isolation{}, []Outcome{Held, NotApplicable}, GradeA, true},
		{sandbox.TierContainer, gap, []Outcome{Held}, GradeB, true},
		{sandbox.TierContainer, sandbox.Isolation{}, []Outcome{Held, Known}, GradeB, true}, // never the best
		{sandbox.TierContainer, sandbox.Isolation{}, []Outcome{Held, Known, Breached}, GradeF, false},
		{sandbox.TierContainer, sandbox.Isolation{}, []Outcome{Known}, GradeC, false},
		{sandbox.TierNamespace, sandbox.Isolation{}, []Outcome{Held}, GradeB, true},
		{sandbox.TierProcess, gap, []Outcome{Held, NotApplicable}, GradeD, true},
		{sandbox.TierContainer, sandbox.Isolation{}, []Outcome{Held, Error}, GradeC, false},
		{sandbox.TierContainer, sandbox.Isolation{}, []Outcome{Held, Error, Breached}, GradeF, false},
		{sandbox.TierContainer, sandbox.Isolation{}, []Outcome{NotApplicable}, GradeC, false}, // nothing held is nothing shown
		{sandbox.TierContainer, sandbox.Isolation{}, nil, GradeC, false},
	} {
		r := &Report{Tier: test.tier, Isolation: test.iso}
		for _, o := range test.outcomes {
			r.Results = append(r.Results, Result{Outcome: o})
		}
		r.grade()
		if r.Grade != test.want || r.OK != test.ok || r.Grade.Meaning() == "" {
			t.Errorf("%+v: %s, %v", test, r.Grade, r.OK)
		}
		if n := r.Counts; n.Held+n.Breached+n.Known+n.NotApplicable+n.Error != len(test.outcomes) {
			t.Errorf("%+v", n)
		}
	}
}
