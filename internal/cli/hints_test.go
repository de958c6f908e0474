package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/executor"
	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestHintMissingFile reads the messages of interpreters and compilers.
func TestHintMissingFile(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.py", "helper.py", "data.txt", "main.go", "help.go", "A.java", "Price.java", "m.rs", "helpr.rs", "t.ts",
		"lib.ts", "s.js", "u.js"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		own, phase, said, code, want string
	}{
		{own: "a.py", said: "Traceback …\nModuleNotFoundError: No module named 'helper'\n", want: "helper.py"},
		{own: "a.py", said: "ModuleNotFoundError: No module named 'helper.sub'\n", want: "helper.py"},
		{own: "a.py", said: "ModuleNotFoundError: No module named 'helpers'\n"},
		{own: "a.py", said: "ModuleNotFoundError: No module named 'requests'\n"},
		{own: "a.py", said: "FileNotFoundError: [Errno 2] No such file or directory: 'data.txt'\n", want: "data.txt"},
		{own: "a.py", said: "ValueError: data.txt is malformed\n"},
		{own: "main.go", phase: executor.PhaseCompile, said: "./main.go:2:15: undefined: help\n", want: "help.go"},
		{own: "A.java", phase: executor.PhaseCompile, want: "Price.java",
			said: "A.java:1: error: cannot find symbol\nclass A {\n  ^\n  symbol:   variable Price\n  location: class A\n"},
		{own: "m.rs", phase: executor.PhaseCompile, said: "error[E0583]: file not found for module `helpr`\n", want: "helpr.rs"},
		{own: "m.rs", said: "panicked: Os { code: 2, kind: NotFound, message: \"No such file or directory\" }\n",
			code: `read("data.txt")`, want: "data.txt"},
		{own: "t.ts", phase: executor.PhaseCompile, said: "t.ts:1:16: ERROR: Could not resolve \"./lib\"\n", want: "lib.ts"},
		{own: "s.js", said: "Error: Cannot find module './u'\nRequire stack:\n", want: "u.js"},
	} {
		o := &runOptions{program: &source{beside: filepath.Join(dir, c.own), files: []executor.File{{Path: c.own, Data: []byte(c.code)}}}}
		r := &executor.Result{Result: sandbox.Result{Verdict: sandbox.VerdictNonzeroExit, Phase: c.phase,
			Stderr: sandbox.Output{Head: []byte(c.said)}}}
		got := o.hintMissingFile(r)
		if (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) || strings.Contains(got, "--in ") != (c.want != "" && c.phase == "") {
			t.Errorf("%q: %q", c.said, got)
		}
		r.Verdict = sandbox.VerdictOK
		if got := o.hintMissingFile(r); got != "" {
			t.Errorf("a program that succeeds: %q", got)
		}
	}
	o := &runOptions{program: &source{left: []leftOut{{".venv", builtinRule, false}, {"conf/my.env", gitIgnore, false}}}}
	r := &executor.Result{Result: sandbox.Result{Verdict: sandbox.VerdictNonzeroExit,
		Stderr: sandbox.Output{Head: []byte("/workspace/.venv/bin/python: No module named x\nENOENT: no such file, open 'conf/my.env'")}}}
	if got := o.hintMissingFile(r); !strings.HasSuffix(got, "--include /conf/my.env") {
		t.Errorf("%q", got)
	}
}
