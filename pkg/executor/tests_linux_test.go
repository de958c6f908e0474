package executor

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
	"github.com/sandbox-run/sandbox-run/pkg/toolchain"
)

// TestPythonTests runs projects with the runners that python -m starts outside.
func TestPythonTests(t *testing.T) {
	const code = "def twice(x):\n    return 2 * x\n"
	const good = "import unittest\nfrom calc import twice\nclass T(unittest.TestCase):\n    def test_good(self):\n" +
		"        self.assertEqual(twice(21), 42)\n"
	const bad = good + "    def test_bad(self):\n        self.assertEqual(twice(1), 1)\n"
	test := LanguageOptions{Test: true}
	runPrograms(t, "python", []program{
		{name: "unittest", req: Request{Options: test, Files: tree("calc.py", code, "tests/__init__.py", "", "tests/test_calc.py", bad)},
			verdict: nonzero, code: 1, has: []string{"FAIL: test_bad", "Ran 2 tests", "FAILED (failures=1)"}},
		{name: "verbose", req: Request{Options: test, Files: tree("calc.py", code, "test_calc.py", good), Args: []string{"-v"}},
			has: []string{"test_good (test_calc.T", "... ok", "Ran 1 test"}},
		{name: "a directory", req: Request{Options: test, Entry: "tests",
			Files: tree("calc.py", code, "tests/__init__.py", "", "tests/test_calc.py", good, "test_other.py", bad)},
			has: []string{"Ran 1 test"}},
		{name: "a file", req: Request{Options: test, Files: tree("checks.py", strings.Replace(good, "from calc import twice", code, 1))},
			has: []string{"Ran 1 test"}},
	})
	if exec.Command("/usr/bin/python3", "-m", "pytest", "--version").Run() != nil {
		t.Skip("needs the package python3-pytest")
	}
	e := realEngine(t)
	opts := e.opts
	opts.Toolchains = &toolchain.Finder{NoStore: true, Environ: []string{"PATH=/usr/bin:/bin"}}
	const functions = "from calc import twice\n\ndef test_good():\n    assert twice(21) == 42\n\ndef test_bad():\n    assert twice(1) == 1\n"
	runProgramsOn(t, New(e.manager, opts), "python", []program{
		{name: "pytest", req: Request{Options: test, Files: tree("calc.py", code, "test_calc.py", functions)},
			verdict: nonzero, code: 1, has: []string{"1 failed, 1 passed", "assert 2 == 1"}},
		{name: "pytest, selected", req: Request{Options: test, Files: tree("calc.py", code, "test_calc.py", functions),
			Args: []string{"-v", "-k", "good"}}, has: []string{"test_calc.py::test_good PASSED", "1 passed, 1 deselected"}},
	})
}

func TestNodeTests(t *testing.T) {
	const code = "exports.twice = (x) => 2 * x;\n"
	const good = "const { test } = require('node:test');\nconst assert = require('node:assert');\nconst { twice } = require('../calc.js');\n" +
		"test('good', () => assert.equal(twice(21), 42));\n"
	test := LanguageOptions{Test: true}
	runPrograms(t, "javascript", []program{
		{name: "failing", req: Request{Options: test, Files: tree("package.json", "{}", "calc.js", code, "test/calc.test.js",
			good+"test('bad', () => assert.equal(twice(1), 1));\n")}, verdict: nonzero, code: 1, has: []string{"ok 1 - good", "not ok 2 - bad", "# fail 1"}},
		{name: "arguments", req: Request{Options: test, Args: []string{"--test-name-pattern=good", "--test-reporter=spec"},
			Files: tree("calc.js", code, "test/calc.test.js", good+"test('bad', () => assert.equal(twice(1), 1));\n")},
			has: []string{"✔ good"}, hasNot: []string{"✖ bad"}},
		{name: "a file", req: Request{Options: test, Entry: "test/one.js",
			Files: tree("calc.js", code, "test/one.js", good, "test/two.js", "throw 1")}, has: []string{"# pass 1", "# fail 0"}},
	})
}

// TestBlank: a program without code is refused alike, whatever it comes from.
func TestBlank(t *testing.T) {
	e := realEngine(t)
	for _, text := range []string{"", "\n", " \t\r\n\n"} {
		for _, language := range []string{"python", "javascript", "go", "rust", "java", "shell", "sql"} {
			l, err := e.lookUp(language)
			if err != nil {
				t.Fatal(err)
			}
			for name, req := range map[string]Request{
				"code":      {Language: language, Code: text},
				"file":      {Files: tree(l.Source, text)},
				"directory": {Language: language, Files: tree(l.Source, text, "data.txt", "x")},
			} {
				if _, err := e.Execute(t.Context(), req); !errors.Is(err, sandbox.ErrInvalid) {
					t.Errorf("%s, %s, %q: %v", language, name, text, err)
				}
			}
		}
	}
	expect(t, Request{Language: "python", Files: tree("main.py", "import empty", "empty.py", "")}, want{})
	expect(t, Request{Language: "python", Code: "# nothing"}, want{})
}
