package executor

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// TestCheck checks good and bad programs of every language. What they would print shows that they run nowhere but in the control.
func TestCheck(t *testing.T) {
	e := realEngine(t)
	for language, c := range map[string]struct{ good, bad, what, says string }{
		"python":     {"print('it has run')", "print('it has run')\nx = = 1", "parsed, not run", "main.py\", line 2"},
		"javascript": {"import fs from 'fs';\nconsole.log('it has run')", "console.log('it has run');\nlet a = ;", "parsed, not run", "main.js:2"},
		"typescript": {"const s: string = 'it has run'; console.log(s)", "console.log('it has run');\nlet a: = ;", "not type-checked", "main.ts:2"},
		"go": {
			"package main\nfunc main() { println(\"it has run\") }", "package main\nfunc main() { println(\"it has run\"); undefined() }",
			"compiled, not run", "main.go:2",
		},
		"rust": {"fn main() { println!(\"it has run\") }", "fn main() { println!(\"it has run\"); 1 + \"\"; }", "compiled, not run", "main.rs:1"},
		"java": {
			"class Main { public static void main(String[] a) { System.out.println(\"it has run\"); } }",
			"class Main { public static void main(String[] a) { System.out.println(\"it has run\"); int x = \"\"; } }",
			"compiled, not run", "Main.java:1",
		},
		"shell": {"echo it has run", "echo it has run\nif true; then\n", "parsed, not run", "line 3"},
	} {
		t.Run(language, func(t *testing.T) {
			for _, code := range []string{c.good, c.bad} {
				for _, check := range []bool{true, false} {
					if !check && code == c.bad {
						continue
					}
					r, err := e.Execute(t.Context(), Request{Language: language, Code: code, Options: LanguageOptions{Check: check}})
					if err != nil {
						t.Fatal(err)
					}
					said := string(r.Stdout.Bytes()) + string(r.Stderr.Bytes())
					want := sandbox.VerdictOK
					if code == c.bad {
						want = sandbox.VerdictCompileError
					}
					if r.Verdict != want || strings.Contains(said, "it has run\n") == check || check && code == c.bad && !strings.Contains(said, c.says) {
						t.Errorf("check %t of %q: %s: %s", check, code, r.Verdict, said)
					}
					noted := slices.ContainsFunc(r.Notes, func(n string) bool {
						return strings.HasPrefix(n, CheckedNote) && strings.Contains(n, c.what)
					})
					if noted != check {
						t.Errorf("check %t: %q", check, r.Notes)
					}
				}
			}
		})
	}
	for _, language := range []string{"sql", "postgres"} {
		_, err := e.Execute(t.Context(), Request{Language: language, Code: "SELECT 1", Options: LanguageOptions{Check: true}})
		if !errors.Is(err, sandbox.ErrInvalid) && !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("%s: %v", language, err)
		}
	}
}

// All files of a program are checked, and those of packages are not.
func TestCheckTree(t *testing.T) {
	check := LanguageOptions{Check: true}
	runPrograms(t, "python", []program{
		{name: "another file", req: Request{Options: check, Files: tree("main.py", "import helper", "helper.py", "def (")},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"helper.py"}},
	})
	runPrograms(t, "javascript", []program{
		{name: "another file", req: Request{Options: check, Files: tree("main.js", "1", "lib/a.mjs", "import")},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"a.mjs"}},
		{name: "a package", req: Request{Options: check, Files: tree("main.js", "1", "node_modules/x/index.js", "let a = ;")}},
	})
	runPrograms(t, "shell", []program{
		{name: "another file", req: Request{Options: check, Files: tree("main.sh", "true", "b.sh", "fi"), Entry: "main.sh"},
			verdict: sandbox.VerdictCompileError, code: 1, has: []string{"b.sh"}},
	})
}
