package cli

import (
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestExplain: the text has what the program's own output does not show.
func TestExplain(t *testing.T) {
	const excerpt = "  1 | a\n> 2 | return d[k]\n    |         ^"
	at := &diagnose.Location{File: "main.py", Line: 2}
	hosts := diagnose.Of(&diagnose.Failure{Language: "python", Result: &sandbox.Result{
		Verdict:    sandbox.VerdictNonzeroExit,
		Violations: []sandbox.Violation{{Kind: sandbox.ViolationNetwork}},
		Stderr:     outputOf("socket.gaierror: [Errno -3] Temporary failure in name resolution\n"),
	}})
	for name, c := range map[string]struct {
		d             *diagnose.Diagnosis
		verdict       sandbox.Verdict
		stderr, notes string
		excerpt       bool
		hint          string
		none          bool
	}{
		"nothing to say": {none: true},
		"the program has shown the line": {
			d: &diagnose.Diagnosis{Kind: diagnose.KindError, Location: at, Excerpt: excerpt}, stderr: "  return d[k]\n", none: true,
		},
		"the program has not shown the line": {d: &diagnose.Diagnosis{Kind: diagnose.KindError, Location: at, Excerpt: excerpt}, excerpt: true},
		"a cause and steps": {
			d:    &diagnose.Diagnosis{Kind: diagnose.KindKey, Cause: "there is no key", Suggestions: []string{"one", "two"}},
			hint: "there is no key; try: one; or two",
		},
		"only a step": {d: &diagnose.Diagnosis{Kind: diagnose.KindName, Suggestions: []string{"one"}}, hint: "one"},
		"the compiler's own help": {
			d: &diagnose.Diagnosis{Kind: diagnose.KindName, Suggestions: []string{"rustc: use that: `x`"}}, stderr: "help: use that\n", none: true,
		},
		"a hint about a file of the host": {
			d:     &diagnose.Diagnosis{Kind: diagnose.KindModule, Cause: "it is missing", Suggestions: []string{"--deps helper"}},
			notes: hintNote + "helper.py is beside main.py", none: true,
		},
		"a limit has its own line": {
			d: &diagnose.Diagnosis{Kind: diagnose.KindTime, Cause: "it ran too long"}, verdict: sandbox.VerdictTimeLimit, none: true,
		},
		"a limit with a place": {
			d: &diagnose.Diagnosis{Kind: diagnose.KindTime, Cause: "it ran too long", Location: at, Excerpt: excerpt}, verdict: sandbox.VerdictTimeLimit,
			hint: "the program was at main.py:2", excerpt: true,
		},
		"a host without a name": {d: hosts, none: true},
	} {
		r := &sandbox.Result{Verdict: sandbox.VerdictNonzeroExit, Stderr: outputOf(c.stderr)}
		if c.verdict != "" {
			r.Verdict = c.verdict
		}
		if c.notes != "" {
			r.Notes = []string{c.notes}
		}
		e := (&outcome{noun: "program", diagnosis: c.d}).explain(r)
		switch {
		case (e == nil) != c.none:
			t.Errorf("%s: %+v", name, e)
		case e != nil && (e.hint() != c.hint || (e.excerpt != "") != c.excerpt):
			t.Errorf("%s: %q, %q", name, e.hint(), e.excerpt)
		}
	}
	if hosts == nil || hosts.Kind != diagnose.KindNetwork {
		t.Errorf("%+v", hosts)
	}
}

func outputOf(text string) sandbox.Output {
	return sandbox.Output{Head: []byte(text), Total: uint64(len(text))}
}
