package diagnose_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sandbox-run/sandbox-run/pkg/diagnose"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

func output(text string) sandbox.Output {
	return sandbox.Output{Head: []byte(text), Total: uint64(len(text))}
}

// failed is a failed program of one file.
func failed(language, stderr, source string) *diagnose.Failure {
	return &diagnose.Failure{
		Language: language, Version: "3.11.7", Files: []string{"main.py", "lib/util.py"},
		Source: func(name string) (string, bool) { return source, name == "main.py" },
		Result: &sandbox.Result{Verdict: sandbox.VerdictNonzeroExit, Limits: sandbox.DefaultLimits(), Stderr: output(stderr)},
	}
}

// TestVerdicts: only failures of the program are diagnosed, and a false trace changes nothing but the diagnosis.
func TestVerdicts(t *testing.T) {
	const trace = "Traceback (most recent call last):\n  File \"/workspace/main.py\", line 1, in <module>\nKeyError: 'x'\n"
	for verdict, some := range map[sandbox.Verdict]bool{
		sandbox.VerdictOK: false, sandbox.VerdictCancelled: false, sandbox.VerdictInternalError: false, sandbox.VerdictInvalidRequest: false,
		sandbox.VerdictNonzeroExit: true, sandbox.VerdictSignaled: true, sandbox.VerdictMemoryLimit: true,
	} {
		f := failed("python", trace, "x")
		f.Result.Verdict = verdict
		if d := diagnose.Of(f); (d != nil) != some {
			t.Errorf("%s: %+v", verdict, d)
		} else if verdict == sandbox.VerdictMemoryLimit && d.Kind != diagnose.KindMemory {
			t.Errorf("a trace hides the limit: %s", d.Kind)
		}
		if f.Result.Verdict != verdict || string(f.Result.Stderr.Bytes()) != trace {
			t.Errorf("the result has changed")
		}
	}
	if d := diagnose.Of(failed("python", "", "x")); d != nil {
		t.Errorf("a program that says nothing: %+v", d)
	}
	if d := diagnose.Of(failed("cobol", trace, "x")); d != nil {
		t.Errorf("an unknown language: %+v", d)
	}
}

// TestBounds: whatever the size of the output, reading it takes bounded time, and the diagnosis is small.
func TestBounds(t *testing.T) {
	frame := "  File \"/workspace/main.py\", line 1, in " + strings.Repeat("f", 3000) + "\n"
	stderr := "Traceback (most recent call last):\n" + strings.Repeat(frame, 3000) + "ValueError: " + strings.Repeat("é",
		5_000_000) + "\n" +
		strings.Repeat("x", 20_000_000) + "\nTraceback (most recent call last):\n" + strings.Repeat(frame, 10) + "ValueError: " +
		strings.Repeat("é", 3000) + "\n"
	began := time.Now()
	d := diagnose.Of(failed("python", stderr, strings.Repeat("a", 500_000)))
	if took := time.Since(began); took > time.Minute {
		t.Errorf("%v", took)
	}
	if d == nil {
		t.Fatal("nothing")
	}
	if text, err := json.Marshal(d); err != nil || len(text) > 32<<10 {
		t.Errorf("%d bytes: %v", len(text), err)
	}
	if d.Kind == "" || len(d.Excerpt) > 2000 {
		t.Errorf("%s, %d", d.Kind, len(d.Excerpt))
	}
}

// TestHostileNames: a name in the output becomes part of a command line only if it can be a name.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{"x; rm -rf /", "--allow-install-scripts", "$(id)", "a b", "\x1b[31m", strings.Repeat("a", 500), ""} {
		for language, stderr := range map[string]string{
			"python": "Traceback (most recent call last):\n  File \"/workspace/main.py\", line 1, in <module>\n" +
				"ModuleNotFoundError: No module named '" + name + "'\n",
			"javascript": "Error: Cannot find module '" + name + "'\n    at x (/workspace/main.py:1:1)\n",
			"go":         "main.py:1:1: no required module provides package " + name + "; to add it:\n",
			"java":       "main.py:1: error: package " + name + " does not exist\n",
			"rust":       "error[E0432]: unresolved import `" + name + "`\n --> main.py:1:1\n",
		} {
			d := diagnose.Of(failed(language, stderr, "x"))
			if d == nil {
				continue
			}
			for _, s := range d.Suggestions {
				step, ok := strings.CutPrefix(s, "--deps ")
				word, _, _ := strings.Cut(step, ",")
				if ok && (sandbox.ShellQuote(word) != word || strings.HasPrefix(word, "-") || len(word) > 200) {
					t.Errorf("%s: %q leads to %q", language, name, s)
				}
			}
		}
	}
}

// TestUserFrames: frames of the user's code come first, others are marked.
func TestUserFrames(t *testing.T) {
	d := diagnose.Of(failed("python", `Traceback (most recent call last):
  File "/workspace/main.py", line 2, in <module>
    run()
  File "/usr/lib/python3.11/json/decoder.py", line 3, in decode
    x
  File "/workspace/lib/util.py", line 9, in helper
    y
  File "/workspace/node_modules/x.py", line 1, in z
ValueError: x
`, "a\nrun()\n"))
	var got []string
	for _, f := range d.Frames {
		mark := " "
		if f.User {
			mark = "*"
		}
		got = append(got, mark+f.File)
	}
	if want := "*lib/util.py,*main.py, node_modules/x.py, /usr/lib/python3.11/json/decoder.py"; strings.Join(got, ",") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestExcerpt: lines around, a caret below the column, and no control characters.
func TestExcerpt(t *testing.T) {
	const source = "one\ntwo\n\tthree = \x1b[31m3\nfour\nfive\nsix\n"
	d := diagnose.Of(failed("javascript", "Error: x\n    at f (/workspace/main.py:3:8)\n", source))
	const want = "  1 | one\n  2 | two\n> 3 |     three = ·[31m3\n    |           ^\n  4 | four\n  5 | five"
	if d == nil || d.Excerpt != want {
		t.Errorf("%+v\nwant\n%s", d, want)
	}
	if got := diagnose.MarkedLine(want); got != "three = ·[31m3" {
		t.Errorf("%q", got)
	}
	long := strings.Repeat("a", 1000) + "X" + strings.Repeat("b", 1000)
	d = diagnose.Of(failed("javascript", "Error: x\n    at f (/workspace/main.py:1:1001)\n", long))
	lines := strings.Split(d.Excerpt, "\n")
	if at := strings.IndexByte(lines[1], '^'); len(lines) != 2 || []rune(lines[0])[at] != 'X' {
		t.Errorf("%s", d.Excerpt)
	}
	d = diagnose.Of(failed("javascript", "Error: x\n    at f (/workspace/main.py:99:1)\n", source))
	if d.Excerpt != "" {
		t.Errorf("a line that is not there: %s", d.Excerpt)
	}
}

// FuzzOf reads hostile output in every language.
func FuzzOf(f *testing.F) {
	for _, c := range readCases(f) {
		f.Add(c.lang(), c.stderr, c.files[c.order[0]])
	}
	f.Fuzz(func(t *testing.T, language, stderr, source string) {
		for _, verdict := range []sandbox.Verdict{sandbox.VerdictNonzeroExit, sandbox.VerdictCompileError, sandbox.VerdictTimeLimit} {
			in := failed(language, stderr, source)
			in.Result.Verdict = verdict
			d := diagnose.Of(in)
			if d == nil {
				continue
			}
			text, err := json.Marshal(d)
			if err != nil || len(text) > 64<<10 {
				t.Fatalf("%d bytes: %v", len(text), err)
			}
			if d.Kind.Describe() == "" || len(d.Frames) > 20 || !utf8.ValidString(d.Message+d.Cause+d.Excerpt) {
				t.Fatalf("%+v", d)
			}
		}
	})
}

// TestKindsAreDocumented compares the table of the guide with the kinds.
func TestKindsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/guide/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Kinds")
	rows := ""
	for _, k := range diagnose.Kinds() {
		rows += "| `" + string(k) + "` | " + k.Describe() + " |\n"
	}
	if !strings.Contains(table, rows) {
		t.Errorf("the table of kinds has to be:\n%s", rows)
	}
}
