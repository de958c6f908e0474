package executor

import (
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor/language"
	"github.com/sandbox-run/sandbox-run/pkg/template"
)

// A request's template makes its program; what does not fit it is said.
func TestTemplateOfARequest(t *testing.T) {
	python, err := template.Open().Get("harness", "python")
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]any{"cases": `[{"args": [1], "want": 1}]`}
	e := New(nil, Options{})
	req := Request{Code: "def solve(x): return x\n", Template: python, Variables: cases}
	j, err := e.newJob(&req)
	if err != nil {
		t.Fatal(err)
	}
	if j.Language.Name != "python" || j.Entry != "harness.py" || language.Find(j.Files, "snippet.py") == nil ||
		!strings.Contains(string(language.Find(j.Files, "snippet.py").Data), "def solve(x)") {
		t.Errorf("%s, %s, %+v", j.Language.Name, j.Entry, j.Files)
	}
	if _, changed := cases[codeVariable]; changed {
		t.Error("the caller's variables were changed")
	}
	for want, req := range map[string]Request{
		"missing variables: cases":          {Code: "x", Template: python},
		"unknown variables: nothing":        {Code: "x", Template: python, Variables: map[string]any{"cases": "[]", "nothing": 1}},
		"is python, not go":                 {Language: "golang", Code: "x", Template: python, Variables: cases},
		"takes one file of code":            {Files: []File{{Path: "a.py"}, {Path: "b.py"}}, Template: python, Variables: cases},
		"a template says itself":            {Code: "x", Entry: "a.py", Template: python, Variables: cases},
		"of no use without a template":      {Code: "x", Language: "python", Variables: cases},
		"unknown language \"gobbledygook\"": {Language: "gobbledygook", Code: "x", Template: python, Variables: cases},
	} {
		if _, err := e.newJob(&req); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v instead of %q", err, want)
		}
	}
}
