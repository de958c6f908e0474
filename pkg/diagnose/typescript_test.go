package diagnose_test

import (
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestTSC: the first error of the checker of types is explained, and the same text of a program that runs is not.
func TestTSC(t *testing.T) {
	const text = "main.ts(x,y): error TS: no\n(1,2): error TS1: no\nmain.ts(3,7): error TS2322: Type 'string' is not assignable to type 'number'.\n" +
		"main.ts(4,1): error TS2304: Cannot find name 'y'.\n"
	f := &diagnose.Failure{Language: "typescript", Files: []string{"main.ts"}, Source: func(string) (string, bool) {
		return "// a\n// b\nconst x: number = \"a\";\ny;\n", true
	}, Result: &sandbox.Result{
		Verdict: sandbox.VerdictCompileError, Exit: sandbox.Exit{Code: 2}, Stdout: sandbox.Output{Head: []byte(text), Total: uint64(len(text))},
	}}
	d := diagnose.Of(f)
	if d == nil || d.Message != "TS2322: Type 'string' is not assignable to type 'number'." || d.Location == nil || d.Location.File != "main.ts" ||
		d.Location.Line != 3 || d.Location.Column != 7 {
		t.Errorf("%+v", d)
	}
	f.Result.Verdict = sandbox.VerdictNonzeroExit
	if d := diagnose.Of(f); d != nil && d.Kind == "compile_error" {
		t.Errorf("%+v", d)
	}
}
